//! Options: read, checked, told.

use serde_json::json;

use super::*;
use crate::procedure::Delay;

fn read(value: serde_json::Value) -> Packets {
    serde_json::from_value(value).unwrap()
}

#[test]
fn options_are_read_and_written_as_in_scenarios() {
    let packets = read(json!({
        "procedure": "throughput-bidirectional", "search": "rfc9693", "frame-bytes": 1518, "protocol": "tcp-syn",
        "flows": 4_000_000, "source-ports": [1, 40000], "destination-ports": [1, 100], "max-rate": 1e6, "engine": "af-packet",
    }));
    assert_eq!(packets.procedure, Procedure::ThroughputBidirectional);
    assert_eq!((packets.search, packets.protocol), (Search::Rfc9693, Protocol::TcpSyn));
    assert_eq!(packets.engine.engine(), Some(Engine::AfPacket));
    packets.validate().unwrap();
    let again = serde_json::to_value(&packets).unwrap();
    assert_eq!(read(again), packets);
    assert!(
        serde_json::from_value::<Packets>(json!({"frame_bytes": 64})).is_err(),
        "unknown keys are refused"
    );
}

#[test]
fn names_are_those_of_scenarios() {
    for name in [
        "rate",
        "throughput",
        "frame-loss",
        "back-to-back",
        "latency",
        "pdv",
        "establishment",
        "establishment-validated",
        "throughput-bidirectional",
        "tear-down",
        "capacity",
    ] {
        let packets = read(json!({ "procedure": name }));
        assert_eq!(packets.procedure.name(), name);
        packets.validate().unwrap();
        let metrics = packets.metrics(Delay::OneWay);
        assert!(metrics[0].headline, "{name}");
        let mut names: Vec<&str> = metrics.iter().map(|m| m.name.as_str()).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|n| n[0] != n[1]), "{name}: a metric twice in {names:?}");
    }
}

#[test]
fn ports_unless_told_otherwise_are_those_of_rfc_4814() {
    let tuples = Packets::default().tuples(1, Order::Random, 0);
    assert_eq!((tuples.source_ports, tuples.destination_ports), (1024..=65535, 1..=49151));
}

#[test]
fn each_bad_option_is_named_with_what_is_valid() {
    for (options, message) in [
        (json!({"frame-bytes": 63}), "frame-bytes = 63: valid is 64 to 9018"),
        (json!({"frame-bytes": 9019}), "frame-bytes = 9019: valid is 64 to 9018"),
        (
            json!({"frame-bytes": 3401, "engine": "xdp"}),
            "frame-bytes = 3401 with engine = \"xdp\": valid is 64 to 3400, since live frames lie in one page of memory; \
             longer ones go by packet sockets, with engine = \"auto\" or \"af-packet\"",
        ),
        (
            json!({"frame-bytes": 9018, "inject": "gateway"}),
            "frame-bytes = 9018 with inject = \"gateway\": valid is 64 to 3400, since only live frames enter there, and they \
             lie in one page of memory; longer ones go with inject = \"wire\"",
        ),
        (json!({"flows": 0}), "flows = 0: valid is 1 to 16777216"),
        (
            json!({"source-ports": [2000, 1000]}),
            "source-ports = [2000, 1000]: valid is [first, last] with 1 <= first <= last <= 65535",
        ),
        (
            json!({"destination-ports": [0, 9]}),
            "destination-ports = [0, 9]: valid is [first, last] with 1 <= first <= last <= 65535",
        ),
        (json!({"rate": 0.5}), "rate = 0.5: valid is 1 to 100000000"),
        (json!({"max-rate": 1e9}), "max-rate = 1000000000: valid is 1 to 100000000"),
        (json!({"rate": 10.0, "max-rate": 5.0}), "rate = 10: valid is up to max-rate = 5"),
        (
            json!({"procedure": "throughput", "rate": 10.0}),
            "rate with procedure = \"throughput\": valid with \"rate\", \"latency\" and \"pdv\"; a search is bounded by max-rate",
        ),
        (json!({"procedure": "throughput", "loss-ratio": 0.6}), "loss-ratio = 0.6: valid is 0 to 0.5"),
        (
            json!({"procedure": "establishment", "loss-ratio": 0.1}),
            "loss-ratio with procedure = \"establishment\": valid is 0",
        ),
        (
            json!({"procedure": "throughput", "search": "rfc9693", "loss-ratio": 0.1}),
            "loss-ratio with search = \"rfc9693\": valid is 0",
        ),
        (
            json!({"procedure": "capacity", "inject": "gateway"}),
            "inject = \"gateway\" with procedure = \"capacity\": valid is \"wire\", since the responder sends, too",
        ),
        (
            json!({"flows": 21, "source-ports": [1, 10], "destination-ports": [5, 6]}),
            "flows = 21: valid is 1 to 20, as many as there are pairs of source-ports and destination-ports",
        ),
        (
            json!({"procedure": "establishment", "flows": 10}),
            "flows = 10 with procedure = \"establishment\": valid is 1000 to 16777216",
        ),
    ] {
        assert_eq!(read(options.clone()).validate(), Err(message.to_owned()), "{options}");
    }
}

#[test]
fn the_shortest_frame_is_that_of_the_family() {
    let packets = Packets::default();
    assert_eq!(packets.frame(Family::Ipv4).unwrap().bytes, 64);
    assert_eq!(packets.frame(Family::Ipv6).unwrap().bytes, 84);
    let long = Packets { frame_bytes: Some(1518), ..packets };
    assert_eq!(long.frame(Family::Ipv6).unwrap().bytes, 1518);
}

#[test]
fn what_it_does_is_told() {
    assert_eq!(
        Packets::default().describe(),
        "forwarding rate, the shortest UDP frames, 1000 flows, as fast as possible"
    );
    let packets = read(json!({
        "procedure": "establishment-validated", "search": "quick", "flows": 60000, "frame-bytes": 128, "max-rate": 1e5,
    }));
    assert_eq!(
        packets.describe(),
        "validated connection establishment rate (RFC 9693), MLRsearch with up to 3 trials a rate, to 1 %, \
         128-byte UDP frames, 60000 connections, at most 100000 a second"
    );
}

#[test]
fn frames_too_long_for_live_ones_go_by_packet_sockets_only_where_nothing_else_is_asked_for() {
    for (options, outgrows) in [
        (json!({"frame-bytes": 3400}), false),
        (json!({"frame-bytes": 3401}), true),
        (json!({"frame-bytes": 3401, "engine": "af-packet"}), false),
        (json!({"frame-bytes": 3400, "engine": "xdp"}), false),
        (json!({}), false),
    ] {
        let packets = read(options.clone());
        packets.validate().unwrap();
        assert_eq!(packets.outgrows_live_frames(), outgrows, "{options}");
    }
}

#[test]
fn the_bound_is_max_rate_or_else_the_rate() {
    for (options, bound) in [
        (json!({}), None),
        (json!({"rate": 10.0}), Some(10.0)),
        (json!({"max-rate": 20.0}), Some(20.0)),
        (json!({"rate": 10.0, "max-rate": 20.0}), Some(20.0)),
    ] {
        assert_eq!(read(options.clone()).bound(), bound, "{options}");
    }
}
