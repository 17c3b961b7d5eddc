//! The traffic of one `[[workload]]`: through sockets, or single frames.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};
use weir_gateway::Role;
use weir_load::Workload;
use weir_packets::Delay;
use weir_packets::workload::Packets;
use weir_record::MetricDef;

use super::section::from_json;

/// The traffic to send and measure, selected by `kind`.
#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// Through sockets, by two ends that talk to each other.
    Sockets(Workload),
    /// Single frames, by procedures that need no answering peer.
    Packets(Packets),
}

/// The kind of [`Load::Packets`].
const PACKETS: &str = "packets";

/// Overhead of a trial of single frames in addition to its traffic, seconds, as measured in the lab. It loads and attaches
/// programs, and proves the path with a first frame.
const ENDPOINTS_S: f64 = 0.6;

/// Programs that a workload's end needs on the host of that role.
pub(crate) fn programs(workload: &Workload, role: Role) -> Vec<&'static str> {
    match role {
        Role::Initiator => workload.engine().programs(),
        Role::Responder => workload.engine().responder_programs(),
        Role::Gateway => Vec::new(),
    }
}

impl Load {
    /// The kind as written in scenarios, e.g. `tcp-stream`.
    pub fn kind(&self) -> &'static str {
        match self {
            Load::Sockets(w) => w.engine().kind(),
            Load::Packets(w) => w.kind(),
        }
    }

    /// Describes the load with its options in one line for people.
    pub fn describe(&self) -> String {
        match self {
            Load::Sockets(w) => w.engine().describe(),
            Load::Packets(w) => w.describe(),
        }
    }

    /// Options out of range or contradicting each other: one message that names the key and what is valid.
    pub fn validate(&self) -> Result<(), String> {
        match self {
            Load::Sockets(w) => w.engine().validate(),
            Load::Packets(w) => w.validate(),
        }
    }

    /// Its own metrics on hosts whose clocks let single frames be timed like that, headline ones first.
    pub fn metrics(&self, delay: Delay) -> Vec<MetricDef> {
        match self {
            Load::Sockets(w) => w.engine().metrics(),
            Load::Packets(w) => w.metrics(delay),
        }
    }

    /// Programs that must be installed on the host of that role.
    pub fn programs(&self, role: Role) -> Vec<&'static str> {
        match self {
            Load::Sockets(w) => programs(w, role),
            Load::Packets(_) => Vec::new(),
        }
    }

    /// Seconds that a trial will probably take.
    pub fn expected_seconds(&self, warmup: Duration, window: Duration) -> f64 {
        match self {
            Load::Sockets(w) => {
                (warmup + window).as_secs_f64() + w.engine().properties().overhead.as_secs_f64()
            }
            Load::Packets(w) => w.expected_seconds(warmup, window) + ENDPOINTS_S,
        }
    }
}

impl Load {
    /// The same with other options, where it is of single frames; their names and values are as in a scenario.
    ///
    /// # Errors
    /// A message: an unknown option, or an invalid value.
    pub(super) fn changed(&self, options: &Map<String, Value>) -> Result<Load, String> {
        let Load::Packets(packets) = self else { return Ok(self.clone()) };
        let text = serde_json::to_string(packets).map_err(|e| e.to_string())?;
        let mut whole: Value = from_json(&text)?;
        if let Some(table) = whole.as_object_mut() {
            table.extend(options.clone());
        }
        let changed = Load::Packets(from_json(&whole.to_string())?);
        changed.validate()?;
        Ok(changed)
    }
}

impl<'de> Deserialize<'de> for Load {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By way of a value, because the crates that know the kinds do not know each other.
        let mut value = Value::deserialize(deserializer)?;
        if let Some(table) = value.as_object_mut()
            && table.get("kind").is_some_and(|kind| kind == PACKETS)
        {
            table.remove("kind");
            return from_json(&value.to_string()).map(Load::Packets).map_err(de::Error::custom);
        }
        from_json(&value.to_string()).map(Load::Sockets).map_err(|words| {
            // The error for a mistyped kind lists all kinds.
            let unknown_kind = words.starts_with("unknown variant") && words.contains("`udp-stream`");
            de::Error::custom(if unknown_kind { format!("{words}, `{PACKETS}`") } else { words })
        })
    }
}

#[cfg(test)]
mod tests {
    use weir_packets::workload::{Procedure, Search};

    use super::super::Scenario;
    use super::*;

    const TEXT: &str = r#"name = "frames"
title = "Single frames"
[preset.short]
packets = { search = "quick", flows = 50 }
[[variant]]
kind = "routed"
[[workload]]
name = "rate"
kind = "packets"
frame-bytes = 128
[[workload]]
name = "search"
kind = "packets"
procedure = "throughput"
search = "rfc2544"
[[workload]]
name = "rr"
kind = "tcp-rr"
"#;

    fn load(text: &str) -> Result<Scenario, String> {
        Scenario::load(text, "f.toml").map_err(|e| e.to_string())
    }

    fn packets(scenario: &Scenario, index: usize) -> &Packets {
        let Load::Packets(packets) = &scenario.workloads[index].workload else { panic!("not of frames") };
        packets
    }

    #[test]
    fn single_frames_are_a_kind_like_the_others() {
        let scenario = load(TEXT).unwrap();
        assert_eq!(packets(&scenario, 0).frame_bytes, Some(128));
        assert_eq!(packets(&scenario, 1).procedure, Procedure::Throughput);
        assert_eq!(scenario.workloads[0].workload.kind(), "packets");
        assert!(matches!(&scenario.workloads[2].workload, Load::Sockets(_)));
        // A search by RFC 2544 takes minutes, and the estimate knows.
        let (rate, search) = (&scenario.workloads[0], &scenario.workloads[1]);
        let seconds = |w: &super::super::WorkloadEntry| w.workload.expected_seconds(w.warmup, w.duration);
        assert!(seconds(rate) < 5.0 && seconds(search) > 120.0, "{} {}", seconds(rate), seconds(search));
    }

    /// One workload of single frames between hosts that are there, with these options.
    fn between_hosts(options: &str) -> String {
        format!(
            "name = \"frames\"\ntitle = \"Single frames\"\n[testbed]\nkind = \"hosts\"\n\
             [testbed.initiator]\nhost = \"local\"\naddress = \"10.0.0.1\"\n\
             [testbed.responder]\nhost = \"ssh://b\"\naddress = \"10.0.0.2\"\n\
             [[variant]]\nkind = \"path\"\n[[workload]]\nname = \"w\"\nkind = \"packets\"\n{options}\n"
        )
    }

    #[test]
    fn towards_hosts_that_are_there_nothing_is_sent_without_a_bound() {
        for options in
            ["", "procedure = \"throughput\"", "procedure = \"back-to-back\"", "procedure = \"capacity\""]
        {
            let error = load(&between_hosts(options)).unwrap_err();
            assert!(
                error.contains("[[workload]]") && error.contains("no `max-rate`, which"),
                "{options}: {error}"
            );
            load(&between_hosts(&format!("{options}\nmax-rate = 10000"))).unwrap();
        }
        load(&between_hosts("rate = 1000")).unwrap();
        // In the lab no foreign network is in between.
        load(TEXT).unwrap();
    }

    #[test]
    fn frames_too_long_for_xdp_are_refused_where_it_is_asked_for() {
        let long = TEXT.replace("frame-bytes = 128", "frame-bytes = 9018\nengine = \"xdp\"");
        let error = load(&format!("{long}[testbed]\nmtu = 9000\n")).unwrap_err();
        for word in ["f.toml:", "frame-bytes = 9018", "engine = \"xdp\"", "64 to 3400", "\"auto\""] {
            assert!(error.contains(word), "no {word}: {error}");
        }
        load(&format!("{}[testbed]\nmtu = 9000\n", long.replace("xdp", "auto"))).unwrap();
    }

    #[test]
    fn a_preset_changes_all_workloads_of_frames_and_no_other() {
        let mut scenario = load(TEXT).unwrap();
        scenario.apply_preset("short").unwrap();
        for index in [0, 1] {
            assert_eq!(packets(&scenario, index).search, Search::Quick);
            assert_eq!(packets(&scenario, index).flows, Some(50));
        }
        assert_eq!(packets(&scenario, 0).frame_bytes, Some(128));
        assert!(matches!(&scenario.workloads[2].workload, Load::Sockets(_)));
        assert!(scenario.to_toml().contains("search = \"quick\""), "the text is what was run");
    }

    #[test]
    fn mistakes_are_told_with_their_line_and_the_nearest_valid_value() {
        for (there, instead, words) in [
            (
                "kind = \"packets\"\nframe",
                "kind = \"pakcets\"\nframe",
                "f.toml:9: unknown kind \"pakcets\" in [[workload]]; nearest valid value: \"packets\"",
            ),
            (
                "frame-bytes = 128",
                "frame-byte = 128",
                "f.toml:10: unknown key `frame-byte` in [[workload]]; nearest valid value: \"frame-bytes\"",
            ),
            (
                "frame-bytes = 128",
                "frame-bytes = 63",
                "f.toml:10: [[workload]]: frame-bytes = 63: valid is 64",
            ),
            (
                "frame-bytes = 128",
                "frame-bytes = 1519",
                "f.toml:10: [[workload]]: frame-bytes = 1519: the testbed's mtu = 1500 carries frames of up to 1518",
            ),
            (
                "frame-bytes = 128",
                "under = { kind = \"tcp-rr\" }",
                "f.toml:10: [[workload]]: under: single frames are measured by themselves",
            ),
            (
                "procedure = \"throughput\"",
                "procedure = \"thruput\"",
                "f.toml:14: unknown procedure \"thruput\" in [[workload]]; nearest valid value: \"throughput\"",
            ),
            (
                "search = \"quick\"",
                "search = \"quik\"",
                "f.toml:4: unknown search \"quik\" in preset's packets; nearest valid value: \"quick\"",
            ),
            (
                "flows = 50",
                "flow = 50",
                "f.toml:4: unknown key `flow` in preset's packets; nearest valid value: \"flows\"",
            ),
            (
                "{ search = \"quick\", flows = 50 }",
                "3",
                "f.toml:4: [preset.short]: `packets` must be a table",
            ),
        ] {
            assert_eq!(TEXT.matches(there).count(), 1, "{there}");
            let error = load(&TEXT.replace(there, instead)).unwrap_err();
            assert!(error.starts_with(words), "{instead}\n  gives {error}\n  not   {words}");
        }
        let ipv6 =
            format!("{TEXT}[testbed]\nfamily = \"ipv6\"\n").replace("frame-bytes = 128", "frame-bytes = 70");
        let error = load(&ipv6).unwrap_err();
        assert!(error.contains("frame-bytes = 70") && error.contains("IPv6"), "{error}");
    }
}
