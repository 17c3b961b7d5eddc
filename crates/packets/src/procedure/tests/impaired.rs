//! A gateway that breaks something is measured, and never looks faster.

use weir_record::{Better, MetricDef, Source};
use weir_stats::Censored;

use super::*;

const ALL: [Procedure; 11] = [
    Procedure::Rate,
    Procedure::Throughput,
    Procedure::FrameLoss,
    Procedure::BackToBack,
    Procedure::Latency,
    Procedure::Pdv,
    Procedure::Establishment,
    Procedure::EstablishmentValidated,
    Procedure::ThroughputBidirectional,
    Procedure::TearDown,
    Procedure::Capacity,
];

fn worth(def: &MetricDef, found: &Findings) -> Option<Censored> {
    match &def.source {
        Source::Value => found.values.get(&def.name).map(|v| Censored::from(*v)),
        Source::Quantile { histogram, q } => found.histograms.get(histogram)?.quantile(*q),
    }
}

fn headlines(packets: &Packets, found: &Findings) -> Vec<(String, Better, f64)> {
    let defs = packets.metrics(Delay::OneWay);
    let value = |def: &MetricDef| {
        let value = worth(def, found).unwrap_or_else(|| panic!("{} is missing in {found:?}", def.name));
        (def.name.clone(), def.better, value.value)
    };
    defs.iter().filter(|def| def.headline).map(value).collect()
}

#[test]
fn a_gateway_that_drops_everything_is_a_result() {
    for procedure in ALL {
        let packets = quick(procedure);
        let mut testbed = Simulated { refuses_every: Some(1), forwards_pps: 1e9, ..Simulated::default() };
        let found = measure(&packets, &mut testbed);
        assert!(found.faults.iter().all(|f| !f.void), "{procedure:?}: {:?}", found.faults);
        // The responder knows no flow that it could answer.
        assert!(testbed.made.iter().all(|transfer| transfer.ingress.is_none()), "{procedure:?}");
        for (name, better, value) in headlines(&packets, &found) {
            match (name.as_str(), better) {
                (_, Better::Higher) => assert_eq!(value, 0.0, "{procedure:?} {name}"),
                ("loss_ratio", _) => assert_eq!(value, 1.0, "{procedure:?}"),
                ("ns_per_packet", _) => assert!(value > 0.9e9 && value < 1.1e9, "{procedure:?}: {value}"),
                _ => assert_eq!(value, f64::INFINITY, "{procedure:?} {name}"),
            }
        }
        if procedure.fills() {
            assert_eq!(value(&found, "unopened_ratio"), 1.0, "{procedure:?}");
        }
        assert!(testbed.clock < Duration::from_secs(300), "{procedure:?} took {:?}", testbed.clock);
    }
}

#[test]
fn a_gateway_that_refuses_connections_is_faster_in_nothing() {
    for procedure in ALL {
        // At a rate the delays are those of the same load.
        let rate = matches!(procedure, Procedure::Latency | Procedure::Pdv).then_some(100e3);
        let packets = Packets { rate, ..quick(procedure) };
        let gateway = || Simulated { buffer: 5000.0, ..Simulated::default() };
        let good = measure(&packets, &mut gateway());
        let good = headlines(&packets, &good);
        for refuses_every in [10, 2] {
            let mut testbed = Simulated { refuses_every: Some(refuses_every), ..gateway() };
            let bad = measure(&packets, &mut testbed);
            assert!(bad.faults.iter().all(|f| !f.void), "{procedure:?}: {:?}", bad.faults);
            let share = 1.0 / f64::from(refuses_every);
            if procedure.fills() {
                assert!((value(&bad, "unopened_ratio") - share).abs() < 1e-9, "{procedure:?}");
            }
            let mut worse = 0;
            for ((name, better, good), (_, _, bad)) in good.iter().zip(headlines(&packets, &bad)) {
                let (less, more) = if *better == Better::Higher { (bad, *good) } else { (*good, bad) };
                assert!(less <= more * (1.0 + 1e-6), "{procedure:?} {name}: {bad} where {good} is right");
                worse += usize::from(less < more);
            }
            assert!(worse > 0, "{procedure:?}");
        }
    }
}

#[test]
fn lost_frames_have_an_infinite_delay() {
    for (loses_every, worst_is_known) in [(2000, true), (500, false)] {
        let packets = Packets { rate: Some(100e3), ..quick(Procedure::Pdv) };
        let mut testbed = Simulated { loses_every: Some(loses_every), ..Simulated::default() };
        let found = measure(&packets, &mut testbed);
        let delay = &found.histograms["delay"];
        assert_eq!((delay.len(), delay.failed()), (100_000, 100_000 / loses_every));
        for name in ["delay", "pdv"] {
            let worst = found.histograms[name].quantile(0.999).unwrap();
            assert_eq!(
                worst.value.is_finite(),
                worst_is_known,
                "{name} of one lost in {loses_every}: {worst:?}"
            );
        }
        assert_eq!(value(&found, "lost"), delay.failed() as f64);
        assert_eq!(value(&found, "sent"), 100_000.0);
    }
}

#[test]
fn without_a_throughput_delay_is_measured_with_its_losses() {
    // As many frames as are tagged at least, twice: whatever time they have.
    for (duration, rate) in [(WINDOW, 1000.0), (WINDOW * 4, 250.0)] {
        let setting = ProcedureSettings { duration, ..SETTING };
        let mut testbed = Simulated { refuses_every: Some(10), ..Simulated::default() };
        let found = run(&quick(Procedure::Latency), &setting, &mut testbed).unwrap();
        assert_eq!((value(&found, "throughput_pps"), value(&found, "offered_pps")), (0.0, rate));
        let words = "loses frames at any rate";
        assert!(found.faults.iter().any(|f| f.detail.contains(words)), "{:?}", found.faults);
        let delay = &found.histograms["delay"];
        assert_eq!((delay.len(), delay.failed()), (1000, 100));
        assert_eq!(delay.quantile(0.91), Some(Censored::FAILED));
    }
}

#[test]
fn a_gateway_that_forwards_for_a_moment_has_no_greater_rate() {
    struct Stalls(Simulated);
    impl Testbed for Stalls {
        fn flush(&mut self) -> Result<(Duration, Option<(u64, u64)>), TestbedError> {
            self.0.flush()
        }
        fn tracked(&mut self) -> Result<Option<u64>, TestbedError> {
            self.0.tracked()
        }
        fn transfer(&mut self, transfer: &Transfer) -> Result<TransferOutcome, TestbedError> {
            let mut outcome = self.0.transfer(transfer)?;
            if let Some((_, received)) = outcome.egress.as_mut().filter(|_| !transfer.forget) {
                received.frames /= 10;
                received.duration_ns /= 10;
            }
            Ok(outcome)
        }
    }
    let found = run(&quick(Procedure::Rate), &SETTING, &mut Stalls(Simulated::default())).unwrap();
    near(value(&found, "forwarding_rate_pps"), 0.1e6, 1e-4);
    near(value(&found, "ns_per_packet"), 10_000.0, 1e-4);
}

#[test]
fn a_tester_that_did_not_send_opens_no_flows_and_blames_nobody_else() {
    let mut testbed = Simulated { refuses_every: Some(2), paced_pps: 100.0, ..Simulated::default() };
    let found = measure(&quick(Procedure::Rate), &mut testbed);
    assert!(found.faults.iter().any(|f| f.void && f.code == FaultCode::LateSends), "{:?}", found.faults);
    assert!(!found.values.contains_key("forwarding_rate_pps"));
}
