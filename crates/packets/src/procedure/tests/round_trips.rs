//! Delay between machines with clocks of their own.

use super::*;

#[test]
fn round_trips_are_no_one_way_delay() {
    for (procedure, headline) in [
        (Procedure::Latency, "rtt_p50_ns"),
        (Procedure::Pdv, "pdv_ns"),
        (Procedure::Rate, "forwarding_rate_pps"),
    ] {
        let packets = Packets { rate: Some(100e3), ..quick(procedure) };
        let found = measure_delay(&packets, &mut Simulated::default(), Delay::RoundTrip);
        let names = if procedure == Procedure::Pdv { &["pdv", "rtt"][..] } else { &["rtt"] };
        assert_eq!(found.histograms.keys().collect::<Vec<_>>(), names, "{procedure:?}");
        let metrics = packets.metrics(Delay::RoundTrip);
        assert_eq!(metrics[0].name, headline);
        for name in ["rtt_p50_ns", "rtt_p999_ns", "rtt_p99_ns"] {
            let metric = metrics.iter().find(|m| m.name == name).unwrap();
            assert!(
                metric.label.starts_with("round trip p") && metric.help.contains("RFC 2681"),
                "{metric:?}"
            );
        }
        assert!(metrics.iter().all(|m| !m.name.starts_with("delay") && !m.help.contains("one-way")));
        let one_way: Vec<String> = packets.metrics(Delay::OneWay).into_iter().map(|m| m.name).collect();
        let renamed: Vec<String> = metrics.iter().map(|m| m.name.replace("rtt_", "delay_")).collect();
        assert_eq!(one_way, renamed, "nothing else differs");
    }
    let packets = Packets { rate: Some(400.0), ..quick(Procedure::Latency) };
    let found = measure_delay(&packets, &mut Simulated::default(), Delay::RoundTrip);
    assert!(found.faults[0].detail.starts_with("400 tagged frames were sent"), "{found:?}");
}
