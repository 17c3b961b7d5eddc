//! The procedures against gateways of known truth.

mod adjusted;
mod bounds;
mod bursts;
mod exact;
mod impaired;
mod queues;
mod round_trips;
mod tear_down;

use std::time::Duration;

use weir_record::FaultCode;

use super::simulated::{DELAY_NS, Simulated};
use super::{Delay, Findings, ProcedureSettings, run};
use crate::testbed::{Testbed, TestbedError};
use crate::transfer::{Family, Offer, Order, Transfer, TransferOutcome};
use crate::workload::{Packets, Procedure, Search};

const WINDOW: Duration = Duration::from_secs(1);

const SETTING: ProcedureSettings = ProcedureSettings {
    warmup: Duration::ZERO,
    duration: WINDOW,
    family: Family::Ipv4,
    delay: Delay::OneWay,
    seed: 7,
};

fn quick(procedure: Procedure) -> Packets {
    Packets { procedure, search: Search::Quick, ..Packets::default() }
}

#[track_caller]
fn measure(packets: &Packets, testbed: &mut Simulated) -> Findings {
    measure_delay(packets, testbed, Delay::OneWay)
}

#[track_caller]
fn measure_delay(packets: &Packets, testbed: &mut Simulated, delay: Delay) -> Findings {
    packets.validate().unwrap();
    let setting = ProcedureSettings { delay, ..SETTING };
    let findings = run(packets, &setting, testbed).unwrap();
    assert!(!testbed.mixed_up, "connections were made where they should exist, or the other way round");
    for def in packets.metrics(delay).iter().filter(|d| d.headline && findings.faults.iter().all(|f| !f.void))
    {
        let there = match &def.source {
            weir_record::metric::Source::Value => findings.values.contains_key(&def.name),
            weir_record::metric::Source::Quantile { histogram, .. } => {
                findings.histograms.contains_key(histogram)
            }
        };
        assert!(there || !testbed.has_table, "{} is missing in {findings:?}", def.name);
    }
    findings
}

#[track_caller]
fn value(findings: &Findings, name: &str) -> f64 {
    *findings.values.get(name).unwrap_or_else(|| panic!("{name} is missing in {findings:?}"))
}

/// At most that share below the truth, and not above it.
#[track_caller]
fn just_below(got: f64, truth: f64, share: f64) {
    assert!(got <= truth * (1.0 + 1e-6) && got >= truth * (1.0 - share), "{got} for {truth}");
}

#[track_caller]
fn near(got: f64, truth: f64, share: f64) {
    assert!((got / truth - 1.0).abs() <= share, "{got} for {truth}");
}

#[test]
fn rate_without_a_rate() {
    let mut testbed = Simulated::default();
    let found = measure(&quick(Procedure::Rate), &mut testbed);
    near(value(&found, "forwarding_rate_pps"), 1e6, 1e-6);
    near(value(&found, "ns_per_packet"), 1000.0, 1e-6);
    near(value(&found, "offered_pps"), 3e6, 1e-6);
    near(value(&found, "loss_ratio"), 2.0 / 3.0, 1e-5);
    assert_eq!(value(&found, "tracked_connections"), 1000.0);
    near(value(&found, "tester_cpu_ns_per_packet"), 100.0, 1e-6);
    assert_eq!(found.faults, []);
    let last = testbed.made.last().unwrap().egress.as_ref().unwrap();
    assert_eq!((last.offer, last.limit.duration), (Offer::Unlimited, WINDOW));
}

#[test]
fn rate_at_a_rate() {
    let packets = Packets { rate: Some(500e3), ..quick(Procedure::Rate) };
    let found = measure(&packets, &mut Simulated::default());
    near(value(&found, "forwarding_rate_pps"), 500e3, 1e-6);
    assert_eq!(value(&found, "loss_ratio"), 0.0);
    assert_eq!(found.histograms["delay"].len(), 500_000 / 16);
    assert_eq!(found.faults, []);
    // More than the sender can: void, and not the gateway's loss.
    let packets = Packets { rate: Some(4e6), ..quick(Procedure::Rate) };
    let found = measure(&packets, &mut Simulated { forwards_pps: 1e9, ..Simulated::default() });
    assert!(found.faults.iter().any(|f| f.void && f.code == FaultCode::LateSends), "{found:?}");
}

#[test]
fn throughput_is_found_within_the_width() {
    for truth in [20e3, 333_333.0, 2.5e6] {
        for (search, width) in [(Search::Quick, 0.01), (Search::Mlr, 0.005), (Search::Rfc2544, 0.005)] {
            let mut testbed = Simulated { forwards_pps: truth, ..Simulated::default() };
            let packets = Packets { search, ..quick(Procedure::Throughput) };
            let found = measure(&packets, &mut testbed);
            just_below(value(&found, "throughput_pps"), truth, width * 1.001);
            assert!(value(&found, "throughput_upper_pps") > truth);
            assert_eq!(value(&found, "conditional_throughput_pps"), value(&found, "throughput_pps"));
            assert_eq!(found.faults, []);
        }
        let mut testbed = Simulated { forwards_pps: truth, ..Simulated::default() };
        let found =
            measure(&Packets { search: Search::Rfc9693, ..quick(Procedure::Throughput) }, &mut testbed);
        let got = value(&found, "throughput_pps");
        assert!(got <= truth && truth - got <= 1000.0, "{got} for {truth}");
    }
}

#[test]
fn each_trial_starts_from_an_empty_table_with_the_same_flows() {
    let mut testbed = Simulated::default();
    measure(&quick(Procedure::Throughput), &mut testbed);
    // `mixed_up`, looked at by `measure`, says that each fill met an empty table and each trial a full one. They alternate:
    for pair in testbed.made.chunks(2) {
        let [fill, trial] = pair else { panic!("a fill without a trial") };
        assert!(fill.forget && !trial.forget);
        let (fill, trial) = (fill.egress.as_ref().unwrap(), trial.egress.as_ref().unwrap());
        assert_eq!((fill.tuples.order, trial.tuples.order), (Order::Permutation, Order::Random));
        // RFC 4814: the same set in every trial, and its ports.
        assert_eq!((fill.tuples.seed, fill.tuples.flows), (7, 1000));
        assert_eq!((trial.tuples.seed, trial.tuples.flows), (7, 1000));
        assert_eq!(
            (trial.tuples.source_ports.clone(), trial.tuples.destination_ports.clone()),
            (1024..=65535, 1..=49151)
        );
    }
}

#[test]
fn the_tester_as_the_limit_is_said() {
    let mut testbed = Simulated { forwards_pps: 1e9, paced_pps: 2e6, ..Simulated::default() };
    let found = measure(&quick(Procedure::Throughput), &mut testbed);
    // Found by steps of 5 % from what it sends without a rate.
    just_below(value(&found, "throughput_pps"), 2e6, 0.05);
    let [fault] = &found.faults[..] else { panic!("{:?}", found.faults) };
    assert!(
        !fault.void && fault.code == FaultCode::TesterCpu && fault.detail.contains("lower bound"),
        "{fault:?}"
    );
}

#[test]
fn nothing_is_offered_above_max_rate() {
    let packets = Packets { max_rate: Some(250e3), ..quick(Procedure::Throughput) };
    let mut testbed = Simulated::default();
    let found = measure(&packets, &mut testbed);
    assert_eq!(value(&found, "throughput_pps"), 250e3);
    assert!(found.faults[0].detail.contains("max-rate = 250000 was carried"), "{found:?}");
    for sending in testbed.made.iter().filter_map(|t| t.egress.as_ref()) {
        assert!(matches!(sending.offer, Offer::Rate(rate) if rate <= 250e3), "{sending:?}");
    }
}

#[test]
fn slips_of_the_sender_are_not_blamed_on_the_gateway() {
    // Every second transfer.
    let mut testbed = Simulated { slips: 0.5, ..Simulated::default() };
    let found = measure(&quick(Procedure::Throughput), &mut testbed);
    just_below(value(&found, "throughput_pps"), 1e6, 0.0101);
    assert!(value(&found, "void_transfers") > 0.0);
    assert!(found.faults.iter().all(|f| !f.void), "{:?}", found.faults);
    // A sender that always slips measures nothing.
    let found = measure(&quick(Procedure::Throughput), &mut Simulated { slips: 1.0, ..Simulated::default() });
    assert!(found.faults.iter().any(|f| f.void && f.code == FaultCode::TesterCpu), "{found:?}");
    assert!(!found.values.contains_key("throughput_pps"));
}

#[test]
fn loss_after_a_late_sender_is_told() {
    let mut testbed = Simulated { late_ns: 5_000_000, ..Simulated::default() };
    let found = measure(&quick(Procedure::Throughput), &mut testbed);
    assert!(
        found.faults.iter().all(|f| !f.void && f.code == FaultCode::LateSends) && !found.faults.is_empty()
    );
    assert_eq!(value(&found, "late_max_ns"), 5e6);
}

#[test]
fn background_loss() {
    let lossy = || Simulated { loses_every: Some(1000), ..Simulated::default() };
    let found = measure(&quick(Procedure::Throughput), &mut lossy());
    // Ten frames a trial are the least, and lose none; what loses none of a whole trial has under a thousand frames.
    assert!(value(&found, "throughput_pps") < 1000.0 / 0.2, "{found:?}");
    let bearing = Packets { loss_ratio: 0.005, ..quick(Procedure::Throughput) };
    let found = measure(&bearing, &mut lossy());
    // Forwarded are 0.999 of the capacity; 0.995 of this load.
    just_below(value(&found, "throughput_pps"), 0.999e6 / 0.995, 0.0101);
    near(value(&found, "conditional_throughput_pps"), value(&found, "throughput_pps"), 0.005);
}

#[test]
fn frame_loss_ends_after_two_lossless_steps() {
    let packets = Packets { max_rate: Some(1e6), ..quick(Procedure::FrameLoss) };
    let found = measure(&packets, &mut Simulated { forwards_pps: 750e3, ..Simulated::default() });
    near(value(&found, "loss_ratio"), 0.25, 1e-4);
    near(value(&found, "loss_ratio_at_90"), 1.0 - 750.0 / 900.0, 1e-4);
    near(value(&found, "loss_ratio_at_80"), 1.0 - 750.0 / 800.0, 1e-4);
    assert_eq!(value(&found, "loss_ratio_at_70"), 0.0);
    assert_eq!(value(&found, "loss_ratio_at_60"), 0.0);
    assert!(!found.values.contains_key("loss_ratio_at_50"));
    near(value(&found, "forwarding_rate_pps"), 750e3, 1e-5);
}

#[test]
fn back_to_back_finds_the_buffer() {
    // A burst of n frames at 2 M/s takes n / 2 M; 1 M/s go out meanwhile, so n / 2 must find room: n = 10,000, or 5 ms. Corrected
    // for what went out: 2.5 ms.
    for max_rate in [None, Some(2e6)] {
        let mut testbed =
            Simulated { buffer: 5000.0, unlimited_pps: 2e6, paced_pps: 2e6, ..Simulated::default() };
        let packets = Packets { search: Search::Mlr, max_rate, ..quick(Procedure::BackToBack) };
        let found = measure(&packets, &mut testbed);
        just_below(value(&found, "back_to_back_frames"), 10_000.0, 0.0101);
        near(value(&found, "buffer_time_ns"), 5e6, 0.011);
        // In trials of a second the buffer adds 0.5 % to the throughput.
        near(value(&found, "corrected_buffer_time_ns"), 2.5e6, 0.02);
        assert_eq!(found.faults, []);
    }
    let found =
        measure(&quick(Procedure::BackToBack), &mut Simulated { forwards_pps: 1e9, ..Simulated::default() });
    assert!(found.faults.iter().any(|f| f.detail.contains("burst") && !f.void), "{found:?}");
}

#[test]
fn latency_and_pdv_at_the_throughput_rate() {
    let mut testbed = Simulated::default();
    let found = measure(&quick(Procedure::Latency), &mut testbed);
    just_below(value(&found, "offered_pps"), 1e6, 0.0101);
    let delay = found.histograms["delay"].answered();
    assert!((500..=21_000).contains(&delay.len()), "{}", delay.len());
    near(delay.quantile(0.5).unwrap() as f64, DELAY_NS.0 as f64, 0.001);
    near(delay.quantile(0.999).unwrap() as f64, DELAY_NS.1 as f64, 0.001);

    let packets = Packets { rate: Some(100e3), ..quick(Procedure::Pdv) };
    let mut testbed = Simulated::default();
    let found = measure(&packets, &mut testbed);
    let variation = found.histograms["pdv"].quantile(0.999).unwrap().value;
    near(variation, (DELAY_NS.1 - DELAY_NS.0) as f64, 0.002);
    assert_eq!(found.histograms["delay"].len(), 100_000, "all frames");
    assert_eq!(testbed.made.len(), 2, "with a rate nothing is searched for");

    let packets = Packets { rate: Some(400.0), ..quick(Procedure::Latency) };
    let found = measure(&packets, &mut Simulated::default());
    assert!(found.faults[0].void && found.faults[0].detail.contains("400 tagged frames"), "{found:?}");
}

#[test]
fn rfc_latency_has_a_minute_before_the_first_tag() {
    let packets = Packets { rate: Some(10e3), search: Search::Rfc2544, ..quick(Procedure::Latency) };
    let mut testbed = Simulated::default();
    measure(&packets, &mut testbed);
    let sent: Vec<_> = testbed
        .made
        .iter()
        .map(|t| t.egress.as_ref().unwrap())
        .map(|s| (s.limit.frames, s.stamp_every))
        .collect();
    assert_eq!(sent, [(1000, 0), (600_000, 0), (600_000, 30)]);
}

#[test]
fn establishment_rate() {
    for (search, width) in [(Search::Quick, 0.01), (Search::Mlr, 0.005), (Search::Rfc2544, 0.005)] {
        let mut testbed = Simulated::default();
        let found = measure(&Packets { search, ..quick(Procedure::Establishment) }, &mut testbed);
        just_below(value(&found, "establishment_per_s"), 400e3, width * 1.001);
        assert_eq!(value(&found, "tracked_connections"), 50_000.0, "as many entries as connections");
        assert_eq!(found.faults, []);
        assert!(testbed.made.iter().all(|t| t.forget), "every trial is a first phase");
    }
    let mut testbed = Simulated::default();
    let found =
        measure(&Packets { search: Search::Rfc9693, ..quick(Procedure::Establishment) }, &mut testbed);
    let got = value(&found, "establishment_per_s");
    assert!(got <= 400e3 && 400e3 - got <= 1000.0, "{got}");
}

#[test]
fn a_gateway_that_evicts_silently_fails_validation() {
    let evicting = || Simulated { holds: 10_000, evicts: true, ..Simulated::default() };
    let found = measure(&quick(Procedure::Establishment), &mut evicting());
    just_below(value(&found, "establishment_per_s"), 400e3, 0.0101);
    let found = measure(&quick(Procedure::EstablishmentValidated), &mut evicting());
    just_below(value(&found, "establishment_per_s"), 400e3, 0.0101);
    assert_eq!(value(&found, "validated_establishment_per_s"), 0.0);
    assert_eq!(value(&found, "tracked_connections"), 10_000.0);
}

#[test]
fn the_validated_rate_is_never_above_the_other() {
    for seed_of_slips in [0.0, 0.1] {
        let mut testbed = Simulated { slips: seed_of_slips, ..Simulated::default() };
        let found = measure(&quick(Procedure::EstablishmentValidated), &mut testbed);
        let (plain, validated) =
            (value(&found, "establishment_per_s"), value(&found, "validated_establishment_per_s"));
        just_below(validated, 400e3, 0.0201);
        assert!(validated <= plain, "{validated} {plain}");
        // One frame back for each connection, at a rate below that at which they were made.
        let back = testbed.made.iter().filter_map(|t| t.ingress.as_ref());
        assert!(back.clone().count() > 0);
        for sending in back {
            assert_eq!((sending.limit.frames, sending.tuples.order), (50_000, Order::Permutation));
            assert!(matches!(sending.offer, Offer::Rate(rate) if rate <= 0.8 * plain * 1.000_001));
        }
    }
}

#[test]
fn a_table_too_small_for_the_connections_ends_the_search() {
    let mut testbed = Simulated { holds: 5000, ..Simulated::default() };
    let found = measure(&quick(Procedure::Establishment), &mut testbed);
    assert_eq!(value(&found, "establishment_per_s"), 0.0);
    assert!(testbed.clock < Duration::from_secs(300), "{:?}", testbed.clock);
}

#[test]
fn a_rate_of_fewer_than_ten_frames_a_trial_is_no_throughput() {
    // Trials of 0.2 s, the first ones of 0.1 s: from 100 a second on.
    for (forwards_pps, carried) in [(60.0, 0.0), (150.0, 150.0)] {
        let mut testbed = Simulated { forwards_pps, ..Simulated::default() };
        let found = measure(&quick(Procedure::Throughput), &mut testbed);
        near(value(&found, "throughput_pps") + 1.0, carried + 1.0, 0.02);
    }
}

#[test]
fn bidirectional_throughput_is_that_of_each_direction() {
    let mut testbed = Simulated::default();
    let found = measure(&quick(Procedure::ThroughputBidirectional), &mut testbed);
    just_below(value(&found, "throughput_pps"), 500e3, 0.0101);
    let both = testbed.made.iter().find_map(|t| t.egress.as_ref().zip(t.ingress.as_ref())).unwrap();
    assert_eq!((both.0.offer, both.0.limit), (both.1.offer, both.1.limit));
    assert_ne!(both.0.tuples.seed, both.1.tuples.seed, "both ways do not march in step");
}

#[test]
fn capacity_is_found_however_the_table_overflows() {
    for (search, share) in [(Search::Quick, 0.01), (Search::Mlr, 0.01), (Search::Rfc9693, 0.0003)] {
        for evicts in [false, true] {
            for holds in [7, 999, 5000, 100_000] {
                let mut testbed = Simulated { holds, evicts, ..Simulated::default() };
                let found = measure(&Packets { search, ..quick(Procedure::Capacity) }, &mut testbed);
                let got = value(&found, "capacity_connections");
                let allowed = (holds as f64 * share).max(1.0);
                assert!(got <= holds as f64 && holds as f64 - got <= allowed, "{got} for {holds}");
                assert_eq!(value(&found, "tracked_connections"), got);
                assert_eq!(found.faults, []);
            }
        }
    }
}

#[test]
fn capacity_needs_no_exact_sender() {
    let mut testbed = Simulated { holds: 5000, slips: 1.0, ..Simulated::default() };
    let found = measure(&quick(Procedure::Capacity), &mut testbed);
    just_below(value(&found, "capacity_connections"), 5000.0, 0.01);
    assert_eq!(found.faults, []);
}

#[test]
fn capacity_beyond_what_is_tried() {
    let packets = Packets { flows: Some(6000), ..quick(Procedure::Capacity) };
    let found = measure(&packets, &mut Simulated::default());
    assert_eq!(value(&found, "capacity_connections"), 6000.0);
    assert!(found.faults[0].detail.contains("lower bound") && !found.faults[0].void, "{found:?}");
}

#[test]
fn a_fill_that_is_too_fast_is_made_anew_slower() {
    let mut testbed = Simulated { opens_per_s: 60e3, ..Simulated::default() };
    let found = measure(&quick(Procedure::Throughput), &mut testbed);
    just_below(value(&found, "throughput_pps"), 1e6, 0.0101);
    assert_eq!((found.faults.len(), value(&found, "unopened_ratio")), (0, 0.0));
}

#[test]
fn a_table_that_is_not_empty_after_a_flush() {
    let mut testbed = Simulated { sticky: 100, ..Simulated::default() };
    let found = measure(&quick(Procedure::Rate), &mut testbed);
    assert!(found.faults.iter().any(|f| f.void && f.detail.contains("still holds")), "{found:?}");
    // A few of others' connections, the one over which we speak with the gateway among them, are only told.
    let mut testbed = Simulated { sticky: 5, ..Simulated::default() };
    let found = measure(&quick(Procedure::Rate), &mut testbed);
    assert!(found.faults.len() == 1 && !found.faults[0].void, "{found:?}");
}

#[test]
fn what_the_hosts_cannot_do_is_an_error() {
    struct Broken;
    impl Testbed for Broken {
        fn flush(&mut self) -> Result<(Duration, Option<(u64, u64)>), TestbedError> {
            Ok((Duration::ZERO, None))
        }
        fn tracked(&mut self) -> Result<Option<u64>, TestbedError> {
            Ok(None)
        }
        fn transfer(&mut self, _: &Transfer) -> Result<TransferOutcome, TestbedError> {
            Err(TestbedError("the responder is gone".into()))
        }
    }
    let setting = |family| ProcedureSettings { warmup: WINDOW, family, ..SETTING };
    let error = run(&quick(Procedure::Throughput), &setting(Family::Ipv4), &mut Broken).unwrap_err();
    assert_eq!(error.to_string(), "the responder is gone");
    let short = Packets { frame_bytes: Some(64), ..quick(Procedure::Rate) };
    let error = run(&short, &setting(Family::Ipv6), &mut Simulated::default()).unwrap_err();
    assert_eq!(error.to_string(), "frame-bytes = 64: valid is 84 to 9018 with IPv6");
}

#[test]
fn a_warm_up_comes_before_the_window_and_is_not_in_it() {
    let setting = ProcedureSettings { warmup: 2 * WINDOW, family: Family::Ipv6, ..SETTING };
    let mut testbed = Simulated::default();
    let packets = Packets { rate: Some(1000.0), ..quick(Procedure::Rate) };
    run(&packets, &setting, &mut testbed).unwrap();
    let frames = |t: &Transfer| t.egress.as_ref().unwrap().limit.frames;
    assert_eq!(testbed.made.iter().map(frames).collect::<Vec<_>>(), [1000, 2000, 1000]);
    assert!(testbed.made.iter().all(|t| t.egress.as_ref().unwrap().frame.bytes == 84));
}

#[test]
fn the_search_is_told_step_by_step() {
    let found = measure(&quick(Procedure::Throughput), &mut Simulated::default());
    let [offered, lost] = &found.series[..] else { panic!("{:?}", found.series) };
    assert_eq!((offered.name.as_str(), lost.name.as_str()), ("offered_pps", "loss_ratio"));
    assert_eq!(offered.points.len(), lost.points.len());
    // All rates but not the fills; at each the share that a million a second leaves.
    for ((t, pps), (_, loss)) in offered.points.iter().zip(&lost.points) {
        let truth = (1.0 - 1e6 / pps).max(0.0);
        assert!((loss - truth).abs() < 1e-4, "{loss} at {pps}, {t} s");
    }
    assert!(offered.points.len() as f64 >= value(&found, "transfers") / 2.0 - 1.0);
}

#[test]
fn the_time_told_is_near_the_time_taken() {
    use Procedure::*;
    let all = [
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
    ];
    for procedure in all {
        for search in [Search::Quick, Search::Mlr, Search::Rfc2544, Search::Rfc9693] {
            let packets = Packets { search, ..quick(procedure) };
            let mut testbed = Simulated {
                forwards_pps: 700e3,
                opens_per_s: 450e3,
                holds: 200_000,
                unlimited_pps: 1.2e6,
                paced_pps: 1.1e6,
                collapse: 0.2,
                ..Simulated::default()
            };
            measure(&packets, &mut testbed);
            let told = packets.expected_seconds(Duration::ZERO, WINDOW);
            let took = testbed.clock.as_secs_f64();
            let ratio = told / took;
            assert!((0.5..2.0).contains(&ratio), "{procedure:?} {search:?}: {told:.1} s of {took:.1} s");
        }
    }
}
