//! Figures and bounds of the procedures, each to the last frame: what the tester counts, when a sender has slipped, how often
//! something is made anew.

use super::super::plan::{Method, PresetFigures};
use super::*;
use crate::transfer::{Received, Sent};

/// A testbed of which the outcome of each transfer is altered: the transfer opens flows or not, sender, receiver.
struct Altered<F> {
    inner: Simulated,
    alter: F,
}

impl<F: FnMut(bool, &mut Sent, &mut Received)> Testbed for Altered<F> {
    fn flush(&mut self) -> Result<(Duration, Option<(u64, u64)>), TestbedError> {
        self.inner.flush()
    }

    fn tracked(&mut self) -> Result<Option<u64>, TestbedError> {
        self.inner.tracked()
    }

    fn transfer(&mut self, transfer: &Transfer) -> Result<TransferOutcome, TestbedError> {
        let mut outcome = self.inner.transfer(transfer)?;
        for (sent, received) in outcome.egress.iter_mut().chain(&mut outcome.ingress) {
            (self.alter)(transfer.forget, sent, received);
        }
        Ok(outcome)
    }
}

/// The findings, and how many transfers were made.
fn altered(
    packets: &Packets,
    duration: Duration,
    alter: impl FnMut(bool, &mut Sent, &mut Received),
) -> (Findings, usize) {
    altered_of(Simulated::default(), packets, duration, alter)
}

fn altered_of(
    inner: Simulated,
    packets: &Packets,
    duration: Duration,
    alter: impl FnMut(bool, &mut Sent, &mut Received),
) -> (Findings, usize) {
    let setting = ProcedureSettings { duration, ..SETTING };
    let mut testbed = Altered { inner, alter };
    let findings = run(packets, &setting, &mut testbed).unwrap();
    (findings, testbed.inner.made.len())
}

fn at_rate(procedure: Procedure, rate: f64) -> Packets {
    Packets { rate: Some(rate), ..quick(procedure) }
}

fn details(findings: &Findings) -> Vec<&str> {
    findings.faults.iter().map(|fault| fault.detail.as_str()).collect()
}

#[test]
fn counts_are_summed_over_all_transfers() {
    // A fill of 1000 flows, and 500,000 frames.
    let (found, made) = altered(&at_rate(Procedure::Rate, 500e3), WINDOW, |_, sent, received| {
        (sent.refused, sent.late_max_ns) = (11, sent.frames);
        (received.mistranslated, received.reordered, received.duplicated) = (3, 5, 7);
    });
    assert_eq!(made, 2);
    for (name, expected) in [
        ("transfers", 2.0),
        ("void_transfers", 0.0),
        ("mistranslated", 6.0),
        ("reordered", 10.0),
        ("duplicated", 14.0),
        ("refused", 22.0),
        ("late_max_ns", 500_000.0),
        ("sent", 500_000.0),
        ("lost", 3.0),
        ("loss_ratio", 0.000_006),
        ("flows_tried", 1000.0),
    ] {
        assert_eq!(value(&found, name), expected, "{name}");
    }
    near(value(&found, "tester_cpu_ns_per_packet"), 100.0, 1e-9);
    // The window begins after the fill: 1000 frames at 200,000 a second are 999 intervals of 5 us.
    let [offered, lost] = &found.series[..] else { panic!("{:?}", found.series) };
    assert_eq!((offered.points.len(), offered.points[0].1, lost.points[0].1), (1, 500e3, 0.000_006));
    near(offered.points[0].0, 0.004_995, 1e-9);
}

#[test]
fn a_sender_has_slipped_from_its_bounds_on() {
    let slips = |rate: f64, seconds: f64, slip_ratio: f64| {
        let duration = Duration::from_secs_f64(seconds);
        let (found, _) = altered(&at_rate(Procedure::Rate, rate), duration, |fill, sent, _| {
            sent.slip_ratio = if fill { 0.0 } else { slip_ratio };
        });
        found.faults.iter().any(|f| f.void && f.code == FaultCode::LateSends)
    };
    // 0.6 ms of a second are 0.06 %; of 0.1 s they would be more than a quarter of the width of 1 %; of 100 s less than 1e-5.
    for (rate, seconds, bound) in [(500e3, 1.0, 6e-4), (500e3, 0.1, 0.0025), (1000.0, 100.0, 1e-5)] {
        assert!(!slips(rate, seconds, bound * 0.999), "{seconds} s");
        assert!(slips(rate, seconds, bound * 1.001), "{seconds} s");
    }
    assert!(!slips(1000.0, 100.0, 1e-5), "the bound itself");
    // A frame that was not sent is one as well.
    let (found, _) = altered(&at_rate(Procedure::Rate, 500e3), WINDOW, |fill, sent, _| {
        sent.frames -= u64::from(!fill);
    });
    assert_eq!(details(&found), ["sending 499999 of 500000 frames took 0.000 % longer than it should"]);
    let (found, _) = altered(&at_rate(Procedure::Rate, 500e3), WINDOW, |fill, sent, _| {
        sent.slip_ratio = if fill { 0.0 } else { 0.25 };
    });
    assert_eq!(details(&found), ["sending 500000 of 500000 frames took 25.000 % longer than it should"]);
}

#[test]
fn frames_without_room_at_the_receiver_void_the_rate() {
    let (found, _) = altered(&at_rate(Procedure::Rate, 500e3), WINDOW, |fill, _, received| {
        received.own_drops = if fill { 0 } else { 250 };
    });
    assert_eq!(
        details(&found),
        [
            "the receiver's own buffer was too small for what arrived",
            "250 frames (0.050 %) arrived, and the receiver's buffer had no room for them"
        ]
    );
    assert_eq!(found.faults.iter().map(|f| f.void).collect::<Vec<_>>(), [false, true]);
    assert!(found.series.is_empty(), "no step of the measurement");
}

#[test]
fn loss_of_ten_bursts_after_a_late_sender_may_be_its_own() {
    // 2 ms late at 100,000 frames a second is a burst of 200 frames.
    for (late_ns, lost, transfers, void) in [
        (2_000_000, 0, 2, 0),
        (2_000_000, 1, 8, 3),
        (2_000_000, 2000, 8, 3),
        (2_000_000, 2001, 2, 0),
        (1_000_000, 1, 2, 0),
        (1_000_001, 1, 8, 3),
    ] {
        let (found, made) = altered(&at_rate(Procedure::Latency, 100e3), WINDOW, |fill, sent, received| {
            if !fill {
                sent.late_max_ns = late_ns;
                received.frames -= lost;
            }
        });
        assert_eq!(
            (made, value(&found, "void_transfers")),
            (transfers, f64::from(void)),
            "{late_ns} ns, {lost}"
        );
        let told: Vec<_> =
            found.faults.iter().filter(|f| !f.void && f.code == FaultCode::LateSends).collect();
        assert_eq!(told.len(), usize::from(void > 0));
        let words = format!("each time with the sender late ({:.1} ms)", late_ns as f64 / 1e6);
        assert!(told.iter().all(|fault| fault.detail.ends_with(&words)), "{told:?}");
    }
}

#[test]
fn a_sender_may_slip_eleven_times() {
    let slipping = |times: u32| {
        let mut left = times;
        altered(&at_rate(Procedure::Latency, 100e3), WINDOW, move |fill, sent, _| {
            if !fill && left > 0 {
                left -= 1;
                sent.slip_ratio = 0.5;
            }
        })
    };
    let (found, made) = slipping(11);
    assert_eq!((made, value(&found, "void_transfers"), found.faults.len()), (24, 11.0, 0));
    let (found, made) = slipping(12);
    assert_eq!((made, value(&found, "void_transfers")), (24, 12.0));
    assert_eq!(details(&found), ["the sender did not keep up 100000 a second, 12 times"]);
}

#[test]
fn the_ceiling_is_sought_in_steps_of_a_twentieth() {
    // Without a rate 3 M/s; each of 22 rates is tried three times, with a fill for each.
    let (found, made) = altered(&quick(Procedure::Throughput), WINDOW, |fill, sent, _| {
        sent.slip_ratio = if fill { 0.0 } else { 1.0 };
    });
    assert_eq!(made, 2 + 22 * 3 * 2);
    let least = 3e6 * 0.95_f64.powi(22);
    assert_eq!(
        details(&found),
        [format!("the sender keeps up no rate, not even {least:.0} frames a second")]
    );
    // No rate below one frame a second is tried.
    let slow = Simulated { unlimited_pps: 0.9, ..Simulated::default() };
    let (found, made) = altered_of(slow, &quick(Procedure::Throughput), WINDOW, |_, _, _| {});
    assert_eq!((made, details(&found)), (2, vec!["the sender keeps up no rate, not even 0 frames a second"]));
    // The third try counts: no step is made, and 3 % are kept in hand.
    let mut tries = 0;
    let (found, _) = altered(&quick(Procedure::Throughput), WINDOW, |fill, sent, _| {
        tries += u32::from(!fill);
        sent.slip_ratio = if (2..=3).contains(&tries) { 1.0 } else { 0.0 };
    });
    near(value(&found, "offered_max_pps"), 3e6 * 0.97, 1e-6);
    // `max-rate` is kept to the last frame, unless the sender does not keep it up.
    let packets = Packets { max_rate: Some(2e6), ..quick(Procedure::Throughput) };
    assert_eq!(value(&altered(&packets, WINDOW, |_, _, _| {}).0, "offered_max_pps"), 2e6);
    let mut tries = 0;
    let (found, _) = altered(&packets, WINDOW, |fill, sent, _| {
        tries += u32::from(!fill);
        sent.slip_ratio = if tries <= 3 { 1.0 } else { 0.0 };
    });
    near(value(&found, "offered_max_pps"), 2e6 * 0.95 * 0.97, 1e-9);
}

#[test]
fn no_rate_has_more_frames_than_their_numbers() {
    let mut testbed = Simulated { unlimited_pps: 6e6, paced_pps: 6e6, ..Simulated::default() };
    let found = measure(&Packets { search: Search::Rfc2544, ..quick(Procedure::Throughput) }, &mut testbed);
    // 28 bits in a trial of 60 s, and 3 % in hand.
    let most = f64::from((1 << 28) - 1) / 60.0;
    near(value(&found, "offered_max_pps"), most * 0.97, 1e-9);
    // Asked for as `max-rate` it is a bound like any other.
    let bounded = Packets { search: Search::Rfc2544, max_rate: Some(most), ..quick(Procedure::Throughput) };
    let mut testbed = Simulated { unlimited_pps: 6e6, paced_pps: 6e6, ..Simulated::default() };
    assert_eq!(value(&measure(&bounded, &mut testbed), "offered_max_pps"), most);
}

#[test]
fn a_fill_is_made_at_five_rates_of_four_turns() {
    let mut testbed = Simulated { refuses_every: Some(2), ..Simulated::default() };
    let found = measure(&quick(Procedure::Throughput), &mut testbed);
    let fills: Vec<_> = testbed
        .made
        .iter()
        .filter_map(|t| t.egress.as_ref().map(|s| (t.forget, s)))
        .filter(|(_, s)| s.tuples.order == Order::Permutation)
        .map(|(forget, s)| (s.offer, s.tuples.seed, forget))
        .collect();
    let of = |rate: f64| (0..4).map(move |turn: u64| (Offer::Rate(rate), 7 + (turn << 32), turn == 0));
    let first: Vec<_> = [200e3, 100e3, 50e3, 25e3, 12.5e3].into_iter().flat_map(of).collect();
    assert_eq!(fills[..20], first);
    // Later ones, of a gateway that refused flows before, are made at one rate.
    for later in fills[20..].chunks(4) {
        assert_eq!(later, of(200e3).collect::<Vec<_>>());
    }
    assert!(details(&found)[0].starts_with(
        "500 of 1000 flows could not be opened, not even at 12500 a second: their frames count as any others"
    ));
    assert_eq!((value(&found, "flows_unopened"), value(&found, "unopened_ratio")), (500.0, 0.5));
}

#[test]
fn a_rate_at_its_bound_is_still_one_of_a_table_with_room() {
    let capacity = |share: f64, slow: std::ops::RangeInclusive<u64>, holds: usize| {
        // A gateway that is slow with so many connections takes them at no more than that share of the rate before.
        let alter = |_: bool, sent: &mut Sent, received: &mut Received| {
            let rate = sent.frames as f64 / (sent.duration_ns as f64 / 1e9);
            if slow.contains(&sent.frames) && rate > 300e3 * share * 1.01 {
                (received.frames, received.flows) = (0, 0);
            }
        };
        let packets = Packets { flows: Some(8000), ..quick(Procedure::Capacity) };
        let gateway = Simulated { holds, ..Simulated::default() };
        let (found, _) = altered_of(gateway, &packets, WINDOW, alter);
        (value(&found, "capacity_connections"), value(&found, "capacity_establishment_per_s"))
    };
    assert_eq!(capacity(0.2, 3000..=8000, usize::MAX), (8000.0, 60e3));
    let (connections, rate) = capacity(0.4, 6000..=6000, 6500);
    assert_eq!(rate, 120e3);
    near(connections, 6500.0, 0.01);
}

#[test]
fn the_rate_of_a_table_is_sought_to_a_tenth_and_its_entries_are_compared() {
    // Entries of others count as well.
    let gateway = Simulated { opens_per_s: 100e3, holds: 6500, sticky: 5, ..Simulated::default() };
    let packets = Packets { flows: Some(8000), ..quick(Procedure::Capacity) };
    let (found, _) = altered_of(gateway, &packets, WINDOW, |_, _, _| {});
    just_below(value(&found, "capacity_establishment_per_s"), 100e3, 0.1);
    assert!(details(&found).iter().all(|detail| !detail.contains("but the gateway counts")), "{found:?}");
}

#[test]
fn delays_need_five_hundred_tagged_frames() {
    for (rate, too_few) in [(500.0, false), (499.0, true)] {
        let (found, _) = altered(&at_rate(Procedure::Latency, rate), WINDOW, |_, _, _| {});
        assert_eq!(
            details(&found).iter().any(|detail| detail.contains("tagged frames were sent")),
            too_few,
            "{rate}"
        );
    }
}

#[test]
fn flows_that_the_tester_itself_did_not_open_are_no_result() {
    let opened = |own_drops: u64, unsent: u64| {
        let (found, _) = altered(&at_rate(Procedure::Rate, 500e3), WINDOW, |_, sent, received| {
            received.flows = received.flows.saturating_sub(1);
            received.own_drops = own_drops;
            sent.frames -= unsent;
        });
        let void = found.faults.iter().find(|f| f.void).map(|f| f.code);
        (void, found.values.contains_key("forwarding_rate_pps"))
    };
    assert_eq!(opened(0, 0), (None, true));
    assert_eq!(opened(1, 0), (Some(FaultCode::ReceiverDrops), false));
    assert_eq!(opened(0, 1), (Some(FaultCode::LateSends), false));
}

#[test]
fn a_table_may_keep_one_entry_in_a_hundred_flows() {
    let emptied = |sticky: usize| {
        let gateway = Simulated { sticky, ..Simulated::default() };
        let (found, _) = altered_of(gateway, &at_rate(Procedure::Rate, 500e3), WINDOW, |_, _, _| {});
        found.faults.iter().map(|f| (f.void, f.code)).collect::<Vec<_>>()
    };
    assert_eq!(emptied(0), []);
    assert_eq!(emptied(10), [(false, FaultCode::ConnectionFailed)]);
    assert!(emptied(11).contains(&(true, FaultCode::ConnectionFailed)));
}

#[test]
fn nothing_sent_has_no_cost_per_packet() {
    let (found, _) = altered(&at_rate(Procedure::Rate, 500e3), WINDOW, |_, sent, received| {
        (sent.frames, received.frames, received.flows) = (0, 0, 0);
    });
    assert!(!found.values.contains_key("tester_cpu_ns_per_packet"), "{found:?}");
    assert!(found.faults.iter().any(|f| f.void), "{found:?}");
}

#[test]
fn a_rate_bounds_its_transfers_in_frames_and_time() {
    let mut testbed = Simulated::default();
    measure(&at_rate(Procedure::Rate, 500e3), &mut testbed);
    let limits: Vec<_> = testbed
        .made
        .iter()
        .map(|t| t.egress.as_ref().unwrap())
        .map(|s| (s.limit.frames, s.limit.duration))
        .collect();
    // Half as long again as planned, and a second: 5 ms and 1 s are planned.
    assert_eq!(limits, [(1000, Duration::from_micros(1_007_500)), (500_000, Duration::from_millis(2500))]);
}

/// Seconds that are expected, by hand, of the presets' figures: window 1 s, warm-up 2 s.
#[test]
fn the_expected_time_is_that_of_the_transfers() {
    let seconds = |packets: &Packets| packets.expected_seconds(2 * WINDOW, WINDOW);
    // Drain 2 s and messages 0.03 s: 2.03 s. A fill of 1000 flows: 2.035 s. Both and two messages more: 4.125 s. Bisection from
    // a million to a thousand: 11 trials of 60 s. Four more transfers find the ceiling.
    let throughput = 11.0 * 60.0 + 15.0 * 4.125;
    let log2_100 = 6.643_856_189_774_724;
    let capacity = {
        // 262,144 entries at 300,000 a second; log2 of 262.144 doublings, 18 halvings to one connection.
        let longest = 262_144.0 / 300e3;
        8.034_215_715_337_912 * 2.0 * 2.09 + 4.0 * longest + 18.0 * (2.5 * 2.09 + 4.0 * longest)
    };
    for (procedure, expected) in [
        (Procedure::Rate, 2.0 + 1.0 + 2.035 + 2.03),
        (Procedure::Throughput, throughput),
        (Procedure::ThroughputBidirectional, throughput),
        (Procedure::FrameLoss, 6.0 * 64.125 + 4.0 * 4.125),
        (Procedure::BackToBack, throughput + 4.0 * 30.0 + 24.0 * 4.125 + 50.0 * 1.5 * log2_100 * 4.125),
        (Procedure::Latency, throughput + 60.0 + 60.0 + 4.125),
        (Procedure::Pdv, throughput + 60.0 + 4.125),
        // 50,000 connections at 500,000 a second: 0.1 s, with two messages 2.19 s; 11 trials and 4 more.
        (Procedure::Establishment, 15.0 * 2.19),
        (Procedure::EstablishmentValidated, 1.5 * 15.0 * 2.19),
        (Procedure::TearDown, 10.0 * (2.03 + 0.25 + 0.09)),
        (Procedure::Capacity, capacity),
    ] {
        near(seconds(&Packets { search: Search::Rfc9693, ..quick(procedure) }), expected, 1e-9);
    }
    // With a rate nothing is searched for; 1000 flows at 500 a second are filled in 2 s.
    let with_rate = |procedure| Packets { search: Search::Rfc9693, ..at_rate(procedure, 500.0) };
    near(seconds(&with_rate(Procedure::Latency)), 60.0 + 60.0 + 2.03 + 2.0 + 2.03 + 0.06, 1e-9);
    near(seconds(&with_rate(Procedure::Pdv)), 60.0 + 2.03 + 2.0 + 2.03 + 0.06, 1e-9);
    // MLRsearch, quick: 6 trials of 0.1 s, 3 of 0.1 x sqrt(2), 6 of 0.2 s; drain 0.05 s, so 0.225 s around each.
    let quick_throughput = 0.6 + 0.3 * 2.0_f64.sqrt() + 1.2 + 19.0 * 0.225;
    near(seconds(&quick(Procedure::Throughput)), quick_throughput, 1e-7);
    near(seconds(&quick(Procedure::Latency)), quick_throughput + 1.0 + 0.225, 1e-7);
    // Fewer connections than the first number that is tried: one doubling; 0.5 % are log2(200) halvings.
    let few = Packets { flows: Some(1000), ..quick(Procedure::Capacity) };
    let longest = 1000.0 / 300e3;
    let expected = 2.0 * 0.14 + 4.0 * longest + 7.643_856_189_774_724 * (2.5 * 0.14 + 4.0 * longest);
    near(seconds(&few), expected, 1e-9);
}

#[test]
fn a_search_is_described_with_its_figures() {
    for (search, procedure, expected) in [
        (Search::Quick, Procedure::Throughput, "MLRsearch with trials of 0.2 s, 0.6 s a load, to 1 %"),
        (Search::Mlr, Procedure::Pdv, "MLRsearch with trials of 1 s, 21 s a load, to 0.5 %"),
        (Search::Rfc9693, Procedure::Throughput, "bisection with trials of 60 s, to 1000/s"),
        (Search::Quick, Procedure::Establishment, "MLRsearch with up to 3 trials a rate, to 1 %"),
        (Search::Rfc2544, Procedure::EstablishmentValidated, "MLRsearch with one trial a rate, to 0.5 %"),
        (Search::Rfc9693, Procedure::Establishment, "bisection to 1000/s"),
        (Search::Mlr, Procedure::Establishment, "MLRsearch with up to 5 trials a rate, to 0.5 %"),
        (Search::Quick, Procedure::Capacity, "bisection to 0.5 %"),
        (Search::Rfc2544, Procedure::Capacity, "bisection to one connection"),
    ] {
        let packets = Packets { search, ..quick(procedure) };
        assert_eq!(packets.plan().describe(procedure), expected);
    }
}

#[test]
fn the_figures_of_the_presets_are_those_of_the_docs() {
    let page = include_str!("../../../../../docs/explanation/packets.md");
    let docs = |name: &str| -> Vec<&str> {
        let row = page.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap();
        row.split('|').map(str::trim).skip(2).take(4).collect()
    };
    let plans = [Search::Quick, Search::Mlr, Search::Rfc2544, Search::Rfc9693]
        .map(|search| Packets { search, ..quick(Procedure::Throughput) }.plan());
    let written = |word: &dyn Fn(&PresetFigures) -> String| plans.iter().map(word).collect::<Vec<_>>();
    let seconds = |duration: Duration| format!("{} s", duration.as_secs_f64());
    assert_eq!(docs("wait for stragglers"), written(&|plan| seconds(plan.drain)));
    assert_eq!(docs("tear-downs"), written(&|plan| plan.tear_downs.to_string()));
    let capacity = written(&|plan| plan.describe(Procedure::Capacity).replace("bisection ", ""));
    assert_eq!(docs("capacity"), capacity);
    // All trials of a bisection have one length; its shorter probe only looks how fast the sender is.
    assert_eq!(docs("first trials")[..3], written(&|plan| seconds(plan.probe()))[..3]);
    assert_eq!(docs("width of the result")[..3], written(&|plan| format!("{} %", plan.width() * 100.0))[..3]);
    // 1000 a second of the 500,000 that estimates assume.
    assert_eq!((docs("width of the result")[3], plans[3].width()), ("1000 frames/s", 0.002));
    let opening: Vec<u64> = plans.iter().map(|plan| plan.longest_opening.as_secs()).collect();
    assert_eq!(opening, [5, 20, 60, 60]);
}

#[test]
fn trials_of_establishment_count_as_a_second_each_and_lose_nothing() {
    for (search, sum_s, width) in [(Search::Quick, 3, 0.01), (Search::Mlr, 5, 0.005)] {
        let packets = Packets { search, loss_ratio: 0.01, ..quick(Procedure::Establishment) };
        let Method::Mlr(goal) = packets.plan().establishment() else { panic!("MLRsearch") };
        let lengths =
            [goal.initial_duration, goal.final_duration, goal.duration_sum].map(|d| d.as_secs_f64());
        assert_eq!((lengths, goal.loss_ratio, goal.width), ([1.0, 1.0, f64::from(sum_s)], 0.0, width));
    }
}

#[test]
fn a_throughput_comes_with_its_bounds() {
    let bounds = ["throughput_pps", "throughput_upper_pps", "conditional_throughput_pps", "offered_max_pps"];
    for (packets, has) in [
        (quick(Procedure::Throughput), true),
        (quick(Procedure::Latency), true),
        (quick(Procedure::Pdv), true),
        (at_rate(Procedure::Latency, 100e3), false),
    ] {
        let found = measure(&packets, &mut Simulated::default());
        let metrics = packets.metrics(Delay::OneWay);
        for name in bounds {
            assert_eq!(found.values.contains_key(name), has, "{packets:?}: {name}");
            assert_eq!(metrics.iter().any(|m| m.name == name), has, "{packets:?}: {name}");
        }
        assert!(
            metrics.iter().any(|m| m.name == "offered_pps") != (packets.procedure == Procedure::Throughput)
        );
    }
}

#[test]
fn what_every_procedure_counts_is_among_its_metrics() {
    for procedure in [Procedure::Rate, Procedure::Latency, Procedure::Throughput, Procedure::Establishment] {
        let packets = quick(procedure);
        let found = measure(&packets, &mut Simulated::default());
        let metrics = packets.metrics(Delay::OneWay);
        for name in ["mistranslated", "refused"] {
            assert!(found.values.contains_key(name), "{procedure:?}: {name} is not measured");
            assert!(metrics.iter().any(|m| m.name == name), "{procedure:?}: {name} is no metric");
        }
    }
}
