//! The table of the reference NAT: each class and each defect changes the rows that it should, and no others.

mod combinations;
#[path = "../reference/mod.rs"]
mod reference;

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use reference::combinations::{CLASSES, of_ports};
use reference::consequences::consequences;
use reference::memory::Memory;
use reference::{Behaviour, Defect, PortRule, Strangers};
use weir_nat::capture::Recorder;
use weir_nat::rows::judge::Dependence::{Address, AddressAndPort, EndpointIndependent};
use weir_nat::{Compliance, Table, measure};

/// Longer than the five minutes of RFC 4787 REQ-5c, with room for the refresh rows.
const LIMIT: Duration = Duration::from_secs(400);
/// Longer than the reference NAT's time of connections, with room for their refresh.
const CONNECTIONS: Duration = Duration::from_secs(10_500);

fn table(behaviour: Behaviour) -> Table {
    let mut ends = Memory::new(behaviour.clone(), LIMIT).with_connections(CONNECTIONS);
    let mut observations = measure(&mut ends, &mut |_| true).unwrap();
    // The end of ports is looked for without the mappings that are left alone.
    let quick = measure(&mut Memory::new(behaviour, Duration::ZERO), &mut |_| true).unwrap();
    (observations.exhaustion, observations.new_mappings) = (quick.exhaustion, quick.new_mappings);
    observations.tcp_exhaustion = quick.tcp_exhaustion;
    Table::of(&observations)
}

fn verdicts(table: &Table) -> BTreeMap<&'static str, Compliance> {
    table.rows.iter().map(|line| (line.id, line.judgement.verdict)).collect()
}

/// Rows whose verdict differs from that of a NAT without defects.
fn changed(table: &Table) -> BTreeMap<&'static str, Compliance> {
    static BASELINE: OnceLock<BTreeMap<&str, Compliance>> = OnceLock::new();
    let baseline = BASELINE.get_or_init(|| verdicts(&self::table(Behaviour::default())));
    let differs = |(id, verdict): &(&'static str, Compliance)| baseline[id] != *verdict;
    verdicts(table).into_iter().filter(differs).collect()
}

fn seen<'a>(table: &'a Table, id: &str) -> &'a str {
    &table.line(id).unwrap().judgement.seen
}

#[test]
fn a_nat_without_defects_meets_everything() {
    let table = table(Behaviour::default());
    for line in &table.rows {
        // Each host has an outside address of its own: no port has to be changed, or goes to the other one.
        let of_one = line.id.ends_with("port-randomness") || line.id.ends_with("port-reuse");
        let kept = of_one && line.judgement.verdict == Compliance::NotTestable;
        let fine = kept || matches!(line.judgement.verdict, Compliance::Meets | Compliance::Described);
        assert!(fine, "{}: {:?}", line.id, line.judgement);
    }
    assert_eq!(table.kind.classic, Some("full cone"));
}

/// A packet of a row is in its file, and every row has some.
#[test]
fn every_row_names_its_packets() {
    let recorded = |idle| {
        let mut ends = Memory::new(Behaviour::default(), idle);
        let mut recorder = Recorder::new(&mut ends);
        (measure(&mut recorder, &mut |_| true).unwrap(), recorder.files())
    };
    let (observations, mut files) = recorded(LIMIT);
    let ends_ports = |experiment: &str| experiment.ends_with("-exhaustion");
    files.extend(recorded(Duration::ZERO).1.into_iter().filter(|file| ends_ports(file.experiment)));
    let table = Table::of(&observations).with_packets(&files);
    for line in &table.rows {
        assert!(!line.packets.is_empty(), "{}", line.id);
        for packets in &line.packets {
            let experiment = packets.file.strip_suffix(".pcapng").unwrap();
            assert!(files.iter().any(|file| file.experiment == experiment), "{packets:?}");
            assert!(!packets.frames.is_empty(), "{}", line.id);
        }
    }
    let mapping = &table.line("udp-mapping").unwrap().packets;
    // Three ports to four destinations, each as it was sent and as it was seen.
    assert_eq!((mapping[0].file.as_str(), mapping[0].frames.as_str()), ("udp-mapping.pcapng", "1-24"));
    assert_eq!(mapping[1].file, "udp-collision.pcapng");
}

#[test]
fn all_nine_classes_are_told_apart() {
    for mapping in CLASSES {
        for filtering in CLASSES {
            let table = table(Behaviour { mapping, filtering, ..Behaviour::default() });
            assert_eq!((table.kind.mapping, table.kind.filtering), (Some(mapping), Some(filtering)));
            let classic = match (mapping, filtering) {
                (EndpointIndependent, EndpointIndependent) => "full cone",
                (EndpointIndependent, Address) => "restricted cone",
                (EndpointIndependent, AddressAndPort) => "port restricted cone",
                _ => "symmetric",
            };
            assert_eq!(table.kind.classic, Some(classic));
            let mut expected = BTreeMap::new();
            if mapping != EndpointIndependent {
                expected.insert("udp-mapping", Compliance::Fails);
                expected.insert("tcp-mapping", Compliance::Fails);
                expected.insert("icmp-query-mapping", Compliance::Fails);
            }
            if filtering == AddressAndPort {
                expected.insert("udp-filtering", Compliance::Fails);
                expected.insert("tcp-filtering", Compliance::Fails);
            }
            // If both depend on the destination, a hairpinned packet comes from a stranger.
            if mapping != EndpointIndependent && filtering != EndpointIndependent {
                expected.insert("udp-hairpin", Compliance::NotTestable);
                expected.insert("udp-hairpin-source", Compliance::NotTestable);
                expected.insert("icmp-error-hairpin", Compliance::NotTestable);
                expected.insert("icmp-query-hairpin", Compliance::NotTestable);
                expected.insert("tcp-hairpin", Compliance::NotTestable);
                expected.insert("tcp-hairpin-source", Compliance::NotTestable);
            }
            assert_eq!(changed(&table), expected, "{mapping:?} {filtering:?}");
        }
    }
}

#[test]
fn overlapping_fragments_and_limits_of_hosts_are_described() {
    let overlap = |defects| {
        seen(&table(Behaviour { defects, ..Behaviour::default() }), "udp-fragments-overlapping").to_owned()
    };
    assert_eq!(overlap(vec![]), "dropped both ways");
    let joined = "put together with the data of the later fragment both ways";
    assert_eq!(overlap(vec![Defect::OverlapsJoined]), joined);
    let one = [reference::ADDRESSES[0]; 2];
    let limit = |behaviour| {
        let mut ends = Memory::new(behaviour, Duration::ZERO);
        seen(&Table::of(&measure(&mut ends, &mut |_| true).unwrap()), "udp-host-limit").to_owned()
    };
    let words = limit(Behaviour::default());
    assert!(words.starts_with("each host has an outside address of its own: "), "{words}");
    let words = limit(Behaviour { addresses: one, ..Behaviour::default() });
    assert!(words.starts_with("one host took all of "), "{words}");
    let words = limit(Behaviour { addresses: one, pool: 600, host_limit: 200, ..Behaviour::default() });
    assert!(words.starts_with("one host got ") && words.contains("left for the next host"), "{words}");
}

/// All of a batch arrive one delay after they were sent.
#[test]
fn the_rate_of_new_mappings_has_its_number_and_interval() {
    let rate = |delay| {
        let mut ends = Memory::new(Behaviour { pool: 1_200, ..Behaviour::default() }, Duration::ZERO);
        ends = ends.delayed(Duration::from_millis(delay));
        seen(&Table::of(&measure(&mut ends, &mut |_| true).unwrap()), "udp-new-mappings").to_owned()
    };
    let words = "16000 a second (median of n = 30 batches of 64, 95 % interval 16000 to 16000); \
                 mappings that exist: 16000 packets a second";
    assert_eq!(rate(4), words);
    assert_eq!(rate(0), "30 batches of 64 in less time than the clock shows");
}

#[test]
fn types_of_icmp_are_named() {
    let dropped =
        "dropped: source quench, redirect, timestamp request from inside, address mask request from inside";
    let other = "dropped: parameter problem, source quench, redirect, timestamp request from inside, \
                 address mask request from inside";
    let passes = format!("pass: parameter problem; {dropped}");
    for (defect, row, words) in [
        (None, "icmp-other-types", &*passes),
        (Some(Defect::ProblemsDropped), "icmp-other-types", other),
        (None, "icmp-error-types", "all 7 arrive"),
        (Some(Defect::ProhibitedDropped), "icmp-error-types", "missing: administratively prohibited"),
        (Some(Defect::TooBigDropped), "icmp-error-types", "missing: fragmentation needed"),
        (Some(Defect::TooBigDropped), "icmp-too-big-in", "about TCP: did not arrive"),
        (
            Some(Defect::TooBigMtuChanged),
            "icmp-too-big-in",
            "about TCP: arrived with an MTU of 1280 instead of 1300",
        ),
    ] {
        let defects = defect.into_iter().collect();
        let mut ends = Memory::new(Behaviour { defects, ..Behaviour::default() }, Duration::ZERO);
        assert_eq!(seen(&Table::of(&measure(&mut ends, &mut |_| true).unwrap()), row), words, "{defect:?}");
    }
}

#[test]
fn checks_of_sequence_numbers_are_described() {
    for (defects, words) in [
        (vec![], "outwards: passes; inwards: passes"),
        (vec![Defect::SequenceChecked], "outwards: dropped; inwards: dropped"),
        (vec![Defect::SequenceLeaks], "outwards: leaves with the inside address; inwards: dropped"),
    ] {
        let mut ends = Memory::new(Behaviour { defects, ..Behaviour::default() }, Duration::ZERO);
        let table = Table::of(&measure(&mut ends, &mut |_| true).unwrap());
        assert_eq!(seen(&table, "tcp-sequence-check"), words);
    }
}

#[test]
fn options_and_segment_size_are_described() {
    for (defect, id, words) in [
        (None, "tcp-options", "keeps window scale, timestamps and SACK permitted"),
        (None, "tcp-mss", "keeps 1460"),
        (
            None,
            "tcp-options-in",
            "keeps window scale, timestamps and SACK permitted; segment size: keeps 1460",
        ),
        (
            Some(Defect::OptionsInStripped),
            "tcp-options-in",
            "changes or removes window scale, timestamps, SACK permitted; segment size: removes it (sent: 1460)",
        ),
        (Some(Defect::OptionsInStripped), "tcp-options", "keeps window scale, timestamps and SACK permitted"),
        (Some(Defect::MssLowered), "tcp-mss", "changes 1460 to 1360"),
        (Some(Defect::OptionsStripped), "tcp-mss", "removes it (sent: 1460)"),
        (
            Some(Defect::OptionsStripped),
            "tcp-options",
            "changes or removes window scale, timestamps, SACK permitted",
        ),
    ] {
        let table = table(Behaviour { defects: defect.into_iter().collect(), ..Behaviour::default() });
        assert_eq!(seen(&table, id), words, "{defect:?}");
    }
}

/// A NAT with one address holds a port for two minutes, and needs not if its filter depends on the destination.
#[test]
fn reuse_of_ports_is_judged_by_its_time_and_the_filter() {
    let one = Behaviour {
        addresses: [reference::ADDRESSES[0]; 2],
        udp_unanswered: Duration::from_secs(125),
        ..Behaviour::default()
    };
    let at_once = Behaviour { defects: vec![Defect::PortsReusedAtOnce], ..one.clone() };
    let random = Behaviour { ports: PortRule::Random, ..one.clone() };
    let filtered = Behaviour { filtering: AddressAndPort, ..at_once.clone() };
    let brief = Behaviour { udp_unanswered: Duration::from_secs(350), ..one.clone() };
    for (behaviour, verdict, words) in [
        (one, Compliance::Meets, "kept from the other host for 11"),
        (at_once, Compliance::Fails, "given to the other host at most "),
        (filtered, Compliance::Meets, "given to the other host at most "),
        (random, Compliance::NotTestable, "ports are not kept"),
        (brief, Compliance::NotTestable, "kept from the other host for "),
    ] {
        let table = table(behaviour.clone());
        let judgement = &table.line("udp-port-reuse").unwrap().judgement;
        assert_eq!(judgement.verdict, verdict, "{judgement:?} {behaviour:?}");
        assert!(judgement.seen.starts_with(words), "{judgement:?}");
    }
}

/// A NAT that tracks connections may give a closed one's port away, and none may do so with that of an open one.
#[test]
fn reuse_of_ports_of_tcp_is_judged_by_open_connections_too() {
    let one = Behaviour { addresses: [reference::ADDRESSES[0]; 2], ..Behaviour::default() };
    let brief = Behaviour { tcp_closed: Duration::from_secs(20), ..one.clone() };
    let tracking = Behaviour { tcp_held: Duration::ZERO, ..brief.clone() };
    let filtered = Behaviour { filtering: Address, ..tracking.clone() };
    let random = Behaviour { ports: PortRule::Random, ..one.clone() };
    let forgetting = Behaviour { defects: vec![Defect::TcpPortsForgotten], ..one.clone() };
    let overloading = Behaviour { defects: vec![Defect::PortsOverload], ..one.clone() };
    let kept = "kept from the other host for 1";
    let given = "given to the other host 24 s after the close, ";
    for (behaviour, verdict, words) in [
        (one, Compliance::Meets, kept.to_owned()),
        (brief, Compliance::Meets, kept.to_owned()),
        (tracking, Compliance::Meets, format!("{given}and that of an open one is kept")),
        (filtered, Compliance::Meets, format!("{given}which REQ-8 allows where the filter")),
        (random, Compliance::NotTestable, "ports are not kept".to_owned()),
        (forgetting, Compliance::Fails, "that of an open connection given to the other host 32 s".to_owned()),
        (overloading, Compliance::Fails, "that of an open connection given to the other host 8 s".to_owned()),
    ] {
        let table = table(behaviour.clone());
        let judgement = &table.line("tcp-port-reuse").unwrap().judgement;
        assert_eq!(judgement.verdict, verdict, "{judgement:?} {behaviour:?}");
        assert!(judgement.seen.starts_with(&words), "{judgement:?}");
    }
}

/// Silence, a reset or an ICMP error for the one side; a new mapping or none for the other.
#[test]
fn packets_after_the_end_of_their_mapping_are_described() {
    let brief = || Behaviour { tcp_established: Duration::from_secs(200), ..Behaviour::default() };
    let told = Behaviour { strangers: Strangers::Unreachable, ..brief() };
    let random = Behaviour { ports: PortRule::Random, ..brief() };
    let strict = Behaviour { defects: vec![Defect::ResetEndsMapping], ..brief() };
    let long = Behaviour { udp_unanswered: 2 * LIMIT, ..Behaviour::default() };
    let inside = |which: &str| format!("from inside: a new mapping with {which} port");
    let (same, other) = (inside("the same"), inside("another"));
    let silence = "from outside: silence; ";
    let none = "no mapping was left alone until its end".to_owned();
    for (behaviour, udp, tcp) in [
        (brief(), format!("{silence}{same}"), format!("{silence}{same}")),
        (told, format!("from outside: ICMP 3/3; {same}"), format!("from outside: a reset; {same}")),
        (random, format!("{silence}{other}"), format!("{silence}{other}")),
        (strict, format!("{silence}{same}"), format!("{silence}from inside: silence")),
        (long, none, format!("{silence}{same}")),
    ] {
        let table = table(behaviour.clone());
        assert_eq!(
            [seen(&table, "udp-after-idle"), seen(&table, "tcp-after-idle")],
            [udp, tcp],
            "{behaviour:?}"
        );
    }
}

/// With one outside address, ports of one host must be changed.
#[test]
fn changed_ports_at_random_meet_the_requirement() {
    let table = table(Behaviour { addresses: [reference::ADDRESSES[0]; 2], ..Behaviour::default() });
    let expected = [
        ("icmp-query-hairpin", Compliance::Described),
        ("tcp-port-reuse", Compliance::Meets),
        ("tcp-port-randomness", Compliance::Meets),
        ("tcp-pooling", Compliance::NotTestable),
        ("udp-pooling", Compliance::NotTestable),
        ("udp-port-randomness", Compliance::Meets),
    ];
    assert_eq!(changed(&table), BTreeMap::from(expected));
    let contiguity = "kept by 4 of 4 pairs, and by 0 of 4 whose ports another host uses too";
    assert_eq!(seen(&table, "udp-port-contiguity"), contiguity);
}

#[test]
fn each_defect_changes_its_rows_and_no_others() {
    for defect in Defect::ALL {
        let table = table(Behaviour::with(defect));
        let expected: BTreeMap<_, _> = consequences(defect).iter().copied().collect();
        assert_eq!(changed(&table), expected, "{defect:?}");
        let described = seen(&table, "ip-dscp-ecn");
        let tos = if defect == Defect::TosCleared { "changed outwards, inwards" } else { "kept" };
        assert_eq!(described, format!("DSCP {tos}, ECN {tos}"), "{defect:?}");
    }
}

#[test]
fn rules_for_ports_are_described() {
    for (ports, words) in [
        (PortRule::Preserve, "keeps the port (all of 20)"),
        (PortRule::Sequential, "chooses another port (all of 20)"),
        (PortRule::Random, "chooses another port (all of 20)"),
    ] {
        let table = table(Behaviour { ports, ..Behaviour::default() });
        assert_eq!(seen(&table, "udp-port-preservation"), words);
        let pairs = if ports == PortRule::Random { 0 } else { 4 };
        let contiguity =
            format!("kept by {pairs} of 4 pairs, and by {pairs} of 4 whose ports another host uses too");
        assert_eq!(seen(&table, "udp-port-contiguity"), contiguity);
        assert_eq!(changed(&table), of_ports(ports).iter().copied().collect());
    }
}

#[test]
fn idle_times_are_found_within_a_quarter_second_or_one_percent() {
    for (unanswered, answered) in [(3, 5), (30, 120), (119, 299), (120, 300), (121, 301)] {
        let [udp_unanswered, udp_answered] = [unanswered, answered].map(Duration::from_secs);
        let mut ends = Memory::new(Behaviour { udp_unanswered, udp_answered, ..Behaviour::default() }, LIMIT);
        let idle = measure(&mut ends, &mut |_| true).unwrap().idle.unwrap();
        for (tries, truth) in [(&idle.unanswered, unanswered), (&idle.answered, answered)] {
            let truth = truth as f64;
            let (alive, dead) = weir_nat::experiments::bracket(tries).unwrap();
            assert!(alive < truth && truth <= dead, "{alive} {dead} {truth}");
            assert!(dead - alive <= (0.01 * truth).max(0.25) + 0.05, "{alive} {dead}");
        }
        let table = table(Behaviour { udp_unanswered, udp_answered, ..Behaviour::default() });
        let verdict = |id| table.line(id).unwrap().judgement.verdict;
        let expected = |truth: u64, least| if truth < least { Compliance::Fails } else { Compliance::Meets };
        assert_eq!(verdict("udp-idle-unanswered"), expected(unanswered, 120));
        assert_eq!(verdict("udp-idle-answered"), expected(answered, 120));
        assert_eq!(verdict("udp-idle-default"), expected(answered, 300));
    }
}

#[test]
fn refresh_from_outside_is_described() {
    for refresh_from_outside in [true, false] {
        let table = table(Behaviour { refresh_from_outside, ..Behaviour::default() });
        for id in ["udp-refresh-in", "tcp-refresh-in"] {
            let words = seen(&table, id);
            assert_eq!(words.starts_with("alive"), refresh_from_outside, "{id}: {words}");
        }
        assert!(changed(&table).is_empty());
    }
}

#[test]
fn an_answer_to_strangers_changes_no_verdict() {
    for filtering in [Address, AddressAndPort] {
        let silent = table(Behaviour { filtering, ..Behaviour::default() });
        let strangers = Strangers::Unreachable;
        let polite = table(Behaviour { filtering, strangers, ..Behaviour::default() });
        assert_eq!(verdicts(&silent), verdicts(&polite));
    }
}
