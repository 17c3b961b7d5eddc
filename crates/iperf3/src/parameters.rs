//! The client's request: one JSON object at the beginning of a test.

use serde_json::{Map, Value, json};
use weir_netlink::Protocol;
use weir_text::escape::line;

/// Who sends; the client opens every connection in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The client sends.
    #[default]
    Egress,
    /// The server sends (`-R`).
    Ingress,
    /// Both do, each on streams of its own (`--bidir`).
    Both,
}

/// Most streams in one direction (MAX_STREAMS of iperf.h).
pub(super) const MAX_STREAMS: u32 = 128;
/// Longest test, seconds (MAX_TIME).
pub(super) const MAX_TIME_S: u32 = 86_400;
/// Longest omitted time, seconds (MAX_OMIT_TIME).
pub(super) const MAX_OMIT_S: u32 = 600;
/// Longest write on a TCP stream, bytes (MAX_BLOCKSIZE).
pub(super) const MAX_LENGTH: u32 = 1 << 20;
/// Datagrams' payload, bytes (MIN_BLOCKSIZE with 64-bit counters, MAX_UDP_BLOCKSIZE).
pub(super) const UDP_LENGTHS: std::ops::RangeInclusive<u32> = 16..=65_507;
/// Largest segment, bytes (MAX_MSS).
pub(super) const MAX_MSS: u32 = 32_767;
/// Most writes in a burst (MAX_BURST).
pub(super) const MAX_BURST: u32 = 1000;
/// Largest socket buffer, bytes (MAX_TCP_BUFFER).
pub(super) const MAX_WINDOW: u32 = 512 << 20;
/// Write on a TCP stream, bytes, if nothing else is asked for.
pub(super) const TCP_LENGTH: u32 = 128 << 10;
/// Payload of a datagram, bytes, if nothing else is asked for or known of the path.
pub(super) const UDP_LENGTH: u32 = 1460;

/// Characters of the client's title that are repeated in the server's output.
const TITLE_CHARS: usize = 80;

/// One test's parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Parameters {
    pub(super) protocol: Protocol,
    pub(super) way: Way,
    pub(super) streams: u32,
    /// Seconds; 0 if bytes or blocks end the test.
    pub(super) time_s: u32,
    /// Seconds before that, which do not count.
    pub(super) omit_s: u32,
    /// Bytes that end the test; 0 for none.
    pub(super) bytes: u64,
    /// Writes or datagrams that end the test; 0 for none.
    pub(super) blocks: u64,
    /// Bytes of a write, or of a datagram's payload.
    pub(super) length: u32,
    /// Bit rate of each stream; 0 for as fast as it goes.
    pub(super) rate_bps: u64,
    /// The kernel's own pacing of each socket (SO_MAX_PACING_RATE), bits per second; 0 for none.
    pub(super) fq_rate_bps: u64,
    /// Writes in a burst; 0 for none.
    pub(super) burst: u32,
    /// SO_SNDBUF and SO_RCVBUF, bytes; 0 leaves it to the kernel.
    pub(super) window: u32,
    /// TCP_MAXSEG; 0 leaves it to the path.
    pub(super) mss: u32,
    pub(super) nodelay: bool,
    /// Type-of-service byte.
    pub(super) tos: u8,
    pub(super) zerocopy: bool,
    pub(super) dont_fragment: bool,
    /// 64-bit numbers in UDP datagrams.
    pub(super) counters_64bit: bool,
    pub(super) get_server_output: bool,
    pub(super) congestion: Option<String>,
    /// Printable, at most 80 characters.
    pub(super) title: Option<String>,
    /// The client's version, e.g. `3.12`.
    pub(super) client_version: Option<String>,
    /// The client sent a user and a password.
    pub(super) authenticates: bool,
}

/// The reason for refusing parameters: iperf3's number (iperf_api.h), which is all that the client gets, and words for the
/// server's own log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i32,
    pub(super) words: String,
}

impl Refusal {
    pub(super) fn new(code: i32, words: impl Into<String>) -> Self {
        Refusal { code, words: words.into() }
    }
}

/// IEDURATION.
pub(super) const TOO_LONG: i32 = 5;
/// IENUMSTREAMS.
pub(super) const TOO_MANY_STREAMS: i32 = 6;
/// IETOTALRATE.
pub(super) const TOO_FAST: i32 = 27;
/// IERECVPARAMS.
pub(super) const NOT_UNDERSTOOD: i32 = 114;
/// IESETBUF.
pub(super) const NO_BUFFERS: i32 = 124;
/// IEPROTOCOL.
const NO_PROTOCOL: i32 = 131;
/// IEAUTHTEST.
const NOT_AUTHORISED: i32 = 142;

impl Parameters {
    /// True if the client sends.
    pub(super) fn egress(&self) -> bool {
        self.way != Way::Ingress
    }

    /// True if the server sends.
    pub(super) fn ingress(&self) -> bool {
        self.way != Way::Egress
    }

    /// Streams of the whole test.
    pub(super) fn all_streams(&self) -> usize {
        let ways = if self.way == Way::Both { 2 } else { 1 };
        self.streams as usize * ways
    }

    /// Bytes in one direction that end the test, if it does not end by time: whole writes, since newer versions count nothing
    /// else at the receiver.
    pub(super) fn goal_bytes(&self) -> Option<u64> {
        let length = u64::from(self.length.max(1));
        let blocks = match (self.bytes, self.blocks) {
            (0, 0) => return None,
            (0, blocks) => blocks,
            (bytes, _) => bytes.div_ceil(length),
        };
        Some(blocks.saturating_mul(length))
    }

    /// Read what a client sent. Unknown names are ignored, and so are values of another type than iperf3 asks for (it does so
    /// since CVE-2024-53580); what is missing has iperf3's default.
    pub(super) fn parse(value: &Value) -> Result<Parameters, Refusal> {
        let Value::Object(map) = value else {
            return Err(Refusal::new(NOT_UNDERSTOOD, "the parameters are no JSON object"));
        };
        let flag = |name: &str| map.get(name) == Some(&Value::Bool(true));
        if flag("sctp") && !flag("tcp") && !flag("udp") {
            return Err(Refusal::new(NO_PROTOCOL, "it asks for SCTP"));
        }
        let protocol = if flag("udp") && !flag("tcp") { Protocol::Udp } else { Protocol::Tcp };
        let default_length = if protocol == Protocol::Udp { UDP_LENGTH } else { TCP_LENGTH };
        let lengths = if protocol == Protocol::Udp { UDP_LENGTHS } else { 1..=MAX_LENGTH };
        let length_code = if protocol == Protocol::Udp { 20 } else { 7 };
        let number = |name, default, code, range| number(map, name, default, code, range);
        let way = match (flag("bidirectional"), flag("reverse")) {
            (true, _) => Way::Both,
            (false, true) => Way::Ingress,
            (false, false) => Way::Egress,
        };
        let p = Parameters {
            protocol,
            way,
            streams: number("parallel", 1, TOO_MANY_STREAMS, 1..=MAX_STREAMS)?,
            time_s: number("time", 10, TOO_LONG, 0..=MAX_TIME_S)?,
            omit_s: number("omit", 0, 12, 0..=MAX_OMIT_S)?,
            bytes: amount(map, "num"),
            blocks: amount(map, "blockcount"),
            length: match number("len", 0, length_code, 0..=*lengths.end())? {
                0 => default_length,
                n if lengths.contains(&n) => n,
                n => return Err(Refusal::new(length_code, format!("len is {n}"))),
            },
            rate_bps: amount(map, "bandwidth"),
            fq_rate_bps: amount(map, "fqrate"),
            burst: number("burst", 0, 15, 0..=MAX_BURST)?,
            window: number("window", 0, 8, 0..=MAX_WINDOW)?,
            mss: number("MSS", 0, 10, 0..=MAX_MSS)?,
            nodelay: flag("nodelay"),
            tos: number("TOS", 0, 21, 0..=255)? as u8,
            zerocopy: truthy(map, "zerocopy"),
            dont_fragment: truthy(map, "dont_fragment"),
            counters_64bit: truthy(map, "udp_counters_64bit"),
            get_server_output: truthy(map, "get_server_output"),
            congestion: text(map, "congestion").filter(|c| c.len() < 16),
            title: text(map, "title"),
            client_version: text(map, "client_version"),
            authenticates: map.contains_key("authtoken"),
        };
        if p.authenticates {
            return Err(Refusal::new(
                NOT_AUTHORISED,
                "it sends a user and a password, which this server does not know",
            ));
        }
        if p.time_s == 0 && p.goal_bytes().is_none() {
            return Err(Refusal::new(TOO_LONG, "it names no end"));
        }
        Ok(p)
    }

    /// As a client of version 3.12 says it.
    pub(super) fn to_json(&self) -> Value {
        let mut map = Map::new();
        let mut set = |name: &str, value: Value| map.insert(name.to_owned(), value);
        set(if self.protocol == Protocol::Udp { "udp" } else { "tcp" }, json!(true));
        set("omit", json!(self.omit_s));
        set("time", json!(self.time_s));
        set("num", json!(self.bytes));
        set("blockcount", json!(self.blocks));
        set("parallel", json!(self.streams));
        set("len", json!(self.length));
        set("pacing_timer", json!(1000));
        match self.way {
            Way::Egress => {}
            Way::Ingress => drop(set("reverse", json!(true))),
            Way::Both => drop(set("bidirectional", json!(true))),
        }
        let numbers = [
            ("MSS", u64::from(self.mss)),
            ("window", self.window.into()),
            ("bandwidth", self.rate_bps),
            ("fqrate", self.fq_rate_bps),
            ("burst", self.burst.into()),
            ("TOS", self.tos.into()),
        ];
        for (name, value) in numbers.into_iter().filter(|(_, value)| *value != 0) {
            set(name, json!(value));
        }
        if self.nodelay {
            set("nodelay", json!(true));
        }
        // Numbers, not true: so do all versions.
        let ones = [
            ("zerocopy", self.zerocopy),
            ("dont_fragment", self.dont_fragment),
            ("udp_counters_64bit", self.counters_64bit),
            ("get_server_output", self.get_server_output),
        ];
        for (name, _) in ones.into_iter().filter(|(_, on)| *on) {
            set(name, json!(1));
        }
        let texts = [
            ("congestion", &self.congestion),
            ("title", &self.title),
            ("client_version", &self.client_version),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                set(name, json!(value));
            }
        }
        Value::Object(map)
    }
}

/// A whole number in its range; a fraction is cut off as C does.
fn number(
    map: &Map<String, Value>,
    name: &str,
    default: u32,
    code: i32,
    range: std::ops::RangeInclusive<u32>,
) -> Result<u32, Refusal> {
    let Some(value) = map.get(name).and_then(Value::as_f64) else { return Ok(default) };
    let whole = value.trunc();
    let inside = whole >= f64::from(*range.start()) && whole <= f64::from(*range.end());
    if !inside {
        let words = format!("{name} is {value}; valid is {} to {}", range.start(), range.end());
        return Err(Refusal::new(code, words));
    }
    Ok(whole as u32)
}

/// Reads a number of bytes, blocks or bits per second; 0 for a negative value or no number.
fn amount(map: &Map<String, Value>, name: &str) -> u64 {
    map.get(name).and_then(|v| v.as_u64().or_else(|| v.as_f64().map(|f| f as u64))).unwrap_or(0)
}

/// Reads a flag that some versions write as true and others as a number.
fn truthy(map: &Map<String, Value>, name: &str) -> bool {
    match map.get(name) {
        Some(Value::Bool(on)) => *on,
        Some(Value::Number(n)) => n.as_f64().is_some_and(|n| n != 0.0),
        _ => false,
    }
}

/// A short text without what a terminal would obey.
fn text(map: &Map<String, Value>, name: &str) -> Option<String> {
    let text = map.get(name)?.as_str()?;
    Some(printable(text)).filter(|t| !t.is_empty())
}

/// At most 80 characters, and none that a terminal would obey.
pub(super) fn printable(text: &str) -> String {
    line(text).chars().take(TITLE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_stock_client_sends_is_read() {
        // Taken off the wire: `iperf3 3.12 -c 127.0.0.1 -u -b 10M/5 -P 3 -l 1000 -t 2 -O 1 --udp-counters-64bit -R -T name`.
        let text = r#"{"udp":true,"omit":1,"time":2,"num":0,"blockcount":0,"parallel":3,"reverse":true,"len":1000,
            "bandwidth":10000000,"pacing_timer":1000,"burst":5,"title":"name","udp_counters_64bit":1,"client_version":"3.12"}"#;
        let p = Parameters::parse(&serde_json::from_str(text).unwrap()).unwrap();
        let expected = Parameters {
            protocol: Protocol::Udp,
            way: Way::Ingress,
            streams: 3,
            time_s: 2,
            omit_s: 1,
            length: 1000,
            rate_bps: 10_000_000,
            burst: 5,
            counters_64bit: true,
            title: Some("name".into()),
            client_version: Some("3.12".into()),
            ..Parameters::default()
        };
        assert_eq!(p, expected);
        assert_eq!((p.egress(), p.ingress(), p.all_streams(), p.goal_bytes()), (false, true, 3, None));
    }

    #[test]
    fn unknown_names_and_wrong_types_are_as_if_they_were_not_there() {
        let value = json!({"tcp": true, "time": "5", "parallel": [1], "reverse": 1, "nodelay": "yes", "gso": 1, "flux": {}});
        let p = Parameters::parse(&value).unwrap();
        assert_eq!((p.time_s, p.streams, p.way, p.nodelay), (10, 1, Way::Egress, false));
        assert_eq!(p.length, TCP_LENGTH);
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_iperf3s_number() {
        let cases = [
            (json!({"tcp": true, "time": 86401}), 5),
            (json!({"tcp": true, "time": -1}), 5),
            (json!({"tcp": true, "time": 0}), 5),
            (json!({"tcp": true, "parallel": 129}), 6),
            (json!({"tcp": true, "parallel": 0}), 6),
            (json!({"tcp": true, "len": 1_048_577}), 7),
            (json!({"tcp": true, "omit": 601}), 12),
            (json!({"tcp": true, "MSS": 32_768}), 10),
            (json!({"tcp": true, "burst": 1001}), 15),
            (json!({"udp": true, "len": 65_508}), 20),
            (json!({"udp": true, "len": 15}), 20),
            (json!({"tcp": true, "TOS": 256}), 21),
            (json!({"sctp": true}), 131),
            (json!({"tcp": true, "authtoken": "x"}), 142),
            (json!([]), 114),
        ];
        for (value, code) in cases {
            assert_eq!(Parameters::parse(&value).unwrap_err().code, code, "{value}");
        }
    }

    #[test]
    fn blocks_and_bytes_are_a_goal_in_bytes() {
        let p = Parameters::parse(&json!({"tcp": true, "time": 0, "blockcount": 7, "len": 1000})).unwrap();
        assert_eq!(p.goal_bytes(), Some(7000));
        let p = Parameters::parse(&json!({"tcp": true, "num": 12345, "blockcount": 0})).unwrap();
        assert_eq!(p.goal_bytes(), Some(131_072));
        let p =
            Parameters::parse(&json!({"tcp": true, "time": 0, "blockcount": u64::MAX, "len": 1000})).unwrap();
        assert_eq!(p.goal_bytes(), Some(u64::MAX));
    }

    #[test]
    fn a_title_cannot_reach_a_terminal_raw() {
        let p =
            Parameters::parse(&json!({"tcp": true, "title": "a\u{1b}[31m\n".to_owned() + &"x".repeat(200)}))
                .unwrap();
        let title = p.title.unwrap();
        assert!(!title.chars().any(char::is_control) && title.chars().count() == 80, "{title:?}");
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| prop::collection::vec(inner, 0..4).prop_map(Value::from))
    }

    const NAMES: [&str; 24] = [
        "tcp",
        "udp",
        "sctp",
        "omit",
        "time",
        "num",
        "blockcount",
        "parallel",
        "MSS",
        "nodelay",
        "reverse",
        "bidirectional",
        "window",
        "len",
        "bandwidth",
        "fqrate",
        "burst",
        "TOS",
        "title",
        "congestion",
        "get_server_output",
        "udp_counters_64bit",
        "zerocopy",
        "client_version",
    ];

    proptest! {
        #[test]
        fn any_object_is_within_bounds_or_refused(
            entries in prop::collection::vec((prop::sample::select(NAMES.to_vec()), json()), 0..24)
        ) {
            let map: Map<String, Value> = entries.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
            if let Ok(p) = Parameters::parse(&Value::Object(map)) {
                prop_assert!((1..=MAX_STREAMS).contains(&p.streams));
                prop_assert!(p.time_s <= MAX_TIME_S && p.omit_s <= MAX_OMIT_S);
                prop_assert!((1..=MAX_LENGTH).contains(&p.length) && p.window <= MAX_WINDOW);
                prop_assert!(p.time_s > 0 || p.goal_bytes().is_some());
                // A repeated value is understood in the same way.
                prop_assert_eq!(Parameters::parse(&p.to_json()), Ok(p));
            }
        }
    }
}
