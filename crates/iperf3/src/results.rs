//! The results that the two ends exchange when a test is over.

use serde_json::{Map, Value, json};

use super::parameters::{MAX_STREAMS, printable};

/// The kernel's share and the program's of the time that passed, percent of one core.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct Cpu {
    /// Both together.
    pub total_percent: f64,
    /// In the program.
    pub user_percent: f64,
    /// In the kernel on its behalf.
    pub system_percent: f64,
}

/// The server's own output, in the form that the server chose.
#[derive(Debug, Clone, PartialEq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServerOutput {
    /// As it prints it. Text from outside: not for a terminal as it is.
    Text(String),
    /// As its `-J` writes it.
    Json(Value),
}

/// One stream as one end saw it. Bytes leave the omitted time out; packets and errors have it in, and say how much it was.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct StreamResult {
    pub(super) id: i64,
    pub(super) bytes: u64,
    /// Segments sent again; `None` where the end does not know.
    pub(super) retransmits: Option<u64>,
    /// Jitter of RFC 1889, seconds.
    pub(super) jitter_s: f64,
    /// Lost datagrams.
    pub(super) errors: u64,
    pub(super) omitted_errors: u64,
    /// Sender: datagrams sent. Receiver: greatest number that came.
    pub(super) packets: u64,
    pub(super) omitted_packets: u64,
    /// Length of the counted time, seconds; `None` from versions before 3.2.
    pub(super) seconds: Option<f64>,
}

/// All that one end tells.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Results {
    pub(super) cpu: Cpu,
    /// True if this end sends and knows its retransmissions.
    pub(super) has_retransmits: bool,
    pub(super) congestion: Option<String>,
    pub(super) output: Option<ServerOutput>,
    pub(super) streams: Vec<StreamResult>,
}

impl Results {
    /// Read what the other end sent. iperf3 refuses results that lack a required name; so does this.
    pub(super) fn parse(value: &Value) -> Result<Results, String> {
        let map = value.as_object().ok_or("the results are no JSON object")?;
        let float = |name: &str| required(map, name).map(|v| v.as_f64().unwrap_or(0.0));
        let cpu = Cpu {
            total_percent: float("cpu_util_total")?,
            user_percent: float("cpu_util_user")?,
            system_percent: float("cpu_util_system")?,
        };
        let has_retransmits = required(map, "sender_has_retransmits")?.as_f64() == Some(1.0);
        let list = required(map, "streams")?.as_array().ok_or("`streams` is no list")?;
        if list.len() > 2 * MAX_STREAMS as usize {
            return Err(format!("results of {} streams", list.len()));
        }
        let output = match (map.get("server_output_json"), map.get("server_output_text")) {
            (Some(json), _) => Some(ServerOutput::Json(json.clone())),
            (None, Some(Value::String(text))) => Some(ServerOutput::Text(text.clone())),
            _ => None,
        };
        let congestion = map.get("congestion_used").and_then(Value::as_str).map(printable);
        let streams = list.iter().map(StreamResult::parse).collect::<Result<Vec<_>, _>>()?;
        Ok(Results { cpu, has_retransmits, congestion, output, streams })
    }

    pub(super) fn to_json(&self) -> Value {
        let mut map = Map::new();
        let mut set = |name: &str, value: Value| map.insert(name.to_owned(), value);
        set("cpu_util_total", json!(self.cpu.total_percent));
        set("cpu_util_user", json!(self.cpu.user_percent));
        set("cpu_util_system", json!(self.cpu.system_percent));
        // -1 is what a receiver says.
        set("sender_has_retransmits", json!(if self.has_retransmits { 1 } else { -1 }));
        if let Some(congestion) = &self.congestion {
            set("congestion_used", json!(congestion));
        }
        match &self.output {
            Some(ServerOutput::Text(text)) => drop(set("server_output_text", json!(text))),
            Some(ServerOutput::Json(value)) => drop(set("server_output_json", value.clone())),
            None => {}
        }
        set("streams", self.streams.iter().map(|s| s.to_json()).collect());
        Value::Object(map)
    }
}

impl StreamResult {
    fn parse(value: &Value) -> Result<StreamResult, String> {
        let map = value.as_object().ok_or("a stream's result is no JSON object")?;
        let whole = |name: &str| required(map, name).map(|v| count(v).unwrap_or(0));
        let (start, end) = (map.get("start_time"), map.get("end_time"));
        let seconds = match (start.and_then(Value::as_f64), end.and_then(Value::as_f64)) {
            (Some(start), Some(end)) => Some((end - start).max(0.0)).filter(|s| s.is_finite()),
            _ => None,
        };
        let omitted = |name: &str| map.get(name).and_then(count).unwrap_or(0);
        Ok(StreamResult {
            id: required(map, "id")?.as_f64().unwrap_or(0.0) as i64,
            bytes: whole("bytes")?,
            retransmits: count(required(map, "retransmits")?),
            jitter_s: required(map, "jitter")?.as_f64().filter(|j| j.is_finite()).unwrap_or(0.0),
            errors: whole("errors")?,
            omitted_errors: omitted("omitted_errors"),
            packets: whole("packets")?,
            omitted_packets: omitted("omitted_packets"),
            seconds,
        })
    }

    fn to_json(self) -> Value {
        json!({
            "id": self.id,
            "bytes": self.bytes,
            "retransmits": self.retransmits.map_or(json!(-1), |n| json!(n)),
            "jitter": self.jitter_s,
            "errors": self.errors,
            "omitted_errors": self.omitted_errors,
            "packets": self.packets,
            "omitted_packets": self.omitted_packets,
            "start_time": 0,
            "end_time": self.seconds.unwrap_or(0.0),
        })
    }
}

fn required<'a>(map: &'a Map<String, Value>, name: &str) -> Result<&'a Value, String> {
    map.get(name).ok_or_else(|| format!("the results lack `{name}`"))
}

/// A count; `None` for what is negative, which stands for "not known", or no number.
fn count(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64().filter(|f| *f >= 0.0).map(|f| f as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_stock_server_sends_is_read() {
        let text = r#"{"cpu_util_total":1.5,"cpu_util_user":0.5,"cpu_util_system":1.0,"sender_has_retransmits":-1,
            "congestion_used":"cubic","streams":[{"id":1,"bytes":125000,"retransmits":-1,"jitter":0.00002,"errors":3,
            "omitted_errors":1,"packets":103,"omitted_packets":50,"start_time":0,"end_time":1.000123}]}"#;
        let r = Results::parse(&serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!((r.cpu.total_percent, r.has_retransmits), (1.5, false));
        let expected = StreamResult {
            id: 1,
            bytes: 125_000,
            retransmits: None,
            jitter_s: 0.00002,
            errors: 3,
            omitted_errors: 1,
            packets: 103,
            omitted_packets: 50,
            seconds: Some(1.000123),
        };
        assert_eq!(r.streams, [expected]);
        assert_eq!(r.congestion.as_deref(), Some("cubic"));
    }

    #[test]
    fn what_iperf3_calls_fatal_is_an_error() {
        let mut whole = Results { streams: vec![StreamResult::default()], ..Results::default() }.to_json();
        for name in
            ["cpu_util_total", "cpu_util_user", "cpu_util_system", "sender_has_retransmits", "streams"]
        {
            let mut value = whole.clone();
            value.as_object_mut().unwrap().remove(name);
            assert!(Results::parse(&value).unwrap_err().contains(name));
        }
        for name in ["id", "bytes", "retransmits", "jitter", "errors", "packets"] {
            let mut value = whole.clone();
            value["streams"][0].as_object_mut().unwrap().remove(name);
            assert!(Results::parse(&value).unwrap_err().contains(name));
        }
        whole["streams"] = (0..257).map(|_| StreamResult::default().to_json()).collect();
        assert!(Results::parse(&whole).is_err());
    }

    #[test]
    fn json_output_is_preferred_to_text() {
        let mut value = Results::default().to_json();
        value["server_output_text"] = "text".into();
        assert_eq!(Results::parse(&value).unwrap().output, Some(ServerOutput::Text("text".into())));
        value["server_output_json"] = json!({"end": 1});
        assert_eq!(Results::parse(&value).unwrap().output, Some(ServerOutput::Json(json!({"end": 1}))));
    }

    fn stream() -> impl Strategy<Value = StreamResult> {
        let some = 0..1u64 << 53;
        (
            (1..300i64, some.clone(), prop::option::of(some.clone()), 0.0..10.0f64),
            (some.clone(), some.clone(), some.clone(), some, 0.0..1e5f64),
        )
            .prop_map(|((id, bytes, retransmits, jitter_s), (errors, oe, packets, op, s))| {
                StreamResult {
                    id,
                    bytes,
                    retransmits,
                    jitter_s,
                    errors,
                    omitted_errors: oe,
                    packets,
                    omitted_packets: op,
                    seconds: Some(s),
                }
            })
    }

    proptest! {
        #[test]
        fn results_survive_the_wire(streams in prop::collection::vec(stream(), 0..8), has in any::<bool>()) {
            let results = Results { has_retransmits: has, streams, ..Results::default() };
            let text = results.to_json().to_string();
            let back = Results::parse(&serde_json::from_str(&text).unwrap()).unwrap();
            prop_assert_eq!(back.streams.len(), results.streams.len());
            for (a, b) in back.streams.iter().zip(&results.streams) {
                prop_assert_eq!((a.id, a.bytes, a.retransmits, a.errors), (b.id, b.bytes, b.retransmits, b.errors));
                prop_assert!((a.jitter_s - b.jitter_s).abs() <= 1e-12);
            }
        }

        #[test]
        fn any_text_is_results_or_an_error(text in ".{0,300}") {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                let _ = Results::parse(&value);
            }
        }
    }
}
