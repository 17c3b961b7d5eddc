//! No transfer exceeds the greatest rate of a workload: neither probes nor fills, bursts nor answers.

use super::*;

/// Rates of everything that was sent; `None` stands for "as fast as it goes".
fn offered(testbed: &Simulated) -> Vec<Option<f64>> {
    let sent = testbed.made.iter().flat_map(|t| t.egress.iter().chain(&t.ingress));
    sent.map(|sending| match sending.offer {
        Offer::Unlimited => None,
        Offer::Rate(rate) => Some(rate),
    })
    .collect()
}

#[track_caller]
fn keeps_to(packets: &Packets, bound: f64) {
    for delay in [Delay::OneWay, Delay::RoundTrip] {
        // The sender could do far more, and slips now and then.
        let mut testbed = Simulated { slips: 0.1, holds: 20_000, ..Simulated::default() };
        measure_delay(packets, &mut testbed, delay);
        let offered = offered(&testbed);
        let over = offered.iter().find(|rate| rate.is_none_or(|rate| rate > bound * (1.0 + 1e-9)));
        assert!(!offered.is_empty() && over.is_none(), "{packets:?} offered {over:?}, above {bound}");
    }
}

#[test]
fn every_procedure_keeps_to_max_rate() {
    use Procedure::*;
    for procedure in [
        Rate,
        Throughput,
        FrameLoss,
        BackToBack,
        Latency,
        Pdv,
        Establishment,
        EstablishmentValidated,
        ThroughputBidirectional,
        TearDown,
        Capacity,
    ] {
        for search in [Search::Quick, Search::Rfc9693] {
            for bound in [30e3, 2e6] {
                let flows = (procedure == Capacity).then_some(50_000);
                keeps_to(&Packets { max_rate: Some(bound), search, flows, ..quick(procedure) }, bound);
            }
        }
    }
}

#[test]
fn a_rate_bounds_fills_unless_max_rate_does() {
    for procedure in [Procedure::Rate, Procedure::Latency, Procedure::Pdv] {
        let packets = Packets { rate: Some(2000.0), ..quick(procedure) };
        keeps_to(&packets, 2000.0);
        let packets = Packets { max_rate: Some(50e3), ..packets };
        keeps_to(&packets, 50e3);
        let mut testbed = Simulated::default();
        measure(&packets, &mut testbed);
        assert_eq!(offered(&testbed)[0], Some(50e3), "the fill");
    }
}

#[test]
fn the_time_told_knows_that_a_fill_is_slow() {
    let packets = Packets { rate: Some(100.0), ..quick(Procedure::Rate) };
    let mut testbed = Simulated::default();
    measure(&packets, &mut testbed);
    let (told, took) = (packets.expected_seconds(Duration::ZERO, WINDOW), testbed.clock.as_secs_f64());
    assert!(took > 10.0 && (0.8..1.25).contains(&(told / took)), "{told:.1} s told, {took:.1} s taken");
}
