//! Paths on which a verdict must stay right or become `not sure`: with loss, behind two NATs, and without any ICMP.

mod reference;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use reference::combinations::{CLASSES, is_of_timers};
use reference::consequences::consequences;
use reference::memory::Memory;
use reference::{Behaviour, Defect};
use weir_nat::rows::judge::Dependence;
use weir_nat::{Compliance, Table, measure};

fn table(mut ends: Memory) -> Table {
    Table::of(&measure(&mut ends, &mut |_| true).unwrap())
}

fn verdicts(table: &Table) -> BTreeMap<&'static str, Compliance> {
    table.rows.iter().map(|line| (line.id, line.judgement.verdict)).collect()
}

#[test]
fn loss_makes_no_verdict_wrong() {
    let mut behaviours: Vec<Behaviour> = Defect::ALL.into_iter().map(Behaviour::with).collect();
    for mapping in CLASSES {
        let classes = CLASSES.map(|filtering| Behaviour { mapping, filtering, ..Behaviour::default() });
        behaviours.extend(classes);
    }
    for behaviour in behaviours {
        let truth = verdicts(&table(Memory::new(behaviour.clone(), Duration::ZERO)));
        for seed in 1..=4 {
            let lossy = verdicts(&table(Memory::new(behaviour.clone(), Duration::ZERO).losing(2, seed)));
            for (row, verdict) in lossy {
                let fine = verdict == truth[row] || verdict == Compliance::NotSure;
                assert!(fine, "{row}: {verdict:?} instead of {:?}: {behaviour:?} seed {seed}", truth[row]);
            }
        }
    }
}

/// Five times the time that the ends wait for a packet: only the control packets bridge it.
const DELAY: Duration = Duration::from_millis(100);

#[test]
fn delay_changes_no_verdict() {
    for defect in Defect::ALL {
        let memory = || Memory::new(Behaviour::with(defect), Duration::ZERO);
        let truth = verdicts(&table(memory()));
        assert_eq!(verdicts(&table(memory().delayed(DELAY))), truth, "{defect:?}");
    }
}

#[test]
fn loss_and_delay_make_no_verdict_wrong() {
    for defect in Defect::ALL {
        let behaviour = Behaviour::with(defect);
        let truth = verdicts(&table(Memory::new(behaviour.clone(), Duration::ZERO)));
        for seed in 1..=2 {
            let lossy = Memory::new(behaviour.clone(), Duration::ZERO).losing(2, seed).delayed(DELAY);
            for (row, verdict) in verdicts(&table(lossy)) {
                let fine = verdict == truth[row] || verdict == Compliance::NotSure;
                assert!(fine, "{row}: {verdict:?} instead of {:?}: {defect:?} seed {seed}", truth[row]);
            }
        }
    }
}

/// Timers, on a path with delay, with loss too, and behind a second NAT without defects.
#[test]
fn no_path_makes_a_verdict_about_timers_wrong() {
    // As in the tests of classes: longer than five minutes, and than the reference NAT's time of connections.
    let [limit, connections] = [400, 10_500].map(Duration::from_secs);
    let timed = |nats| Memory::chain(nats, limit).with_connections(connections);
    let carrier = [[198, 19, 2, 1], [198, 19, 2, 2]].map(IpAddr::from);
    let outer = Behaviour { addresses: carrier, ..Behaviour::default() };
    let of_timers = |defect: &Defect| consequences(*defect).iter().any(|(id, _)| is_of_timers(id));
    let defects = Defect::ALL.into_iter().filter(of_timers).map(|defect| vec![defect]);
    let good = verdicts(&table(timed(vec![Behaviour::default()])));
    for (n, defects) in (1..).zip(defects.chain([Vec::new()])) {
        let behaviour = Behaviour { defects, ..Behaviour::default() };
        let one = || timed(vec![behaviour.clone()]);
        let truth = verdicts(&table(one()));
        // The carrier's mapping ends though the home router keeps its own alive.
        let kept = [Defect::ErrorsRefresh, Defect::ResetsRefresh, Defect::QueryErrorsRefresh];
        let hidden = kept.iter().any(|defect| behaviour.has(*defect));
        let behind = if hidden { &good } else { &truth };
        let paths = [
            ("delay", &truth, one().delayed(DELAY)),
            ("loss and delay", &truth, one().losing(2, n).delayed(DELAY)),
            ("two NATs", behind, timed(vec![behaviour.clone(), outer.clone()])),
        ];
        for (path, truth, ends) in paths {
            for (row, verdict) in verdicts(&table(ends)).into_iter().filter(|(row, _)| is_of_timers(row)) {
                let fine = verdict == truth[row] || verdict == Compliance::NotSure;
                assert!(
                    fine,
                    "{row}: {verdict:?} instead of {:?}: {path}, {:?}",
                    truth[row], behaviour.defects
                );
            }
        }
    }
}

/// The place of a NAT with a defect; the other place has one without.
#[derive(Debug, Clone, Copy, PartialEq)]
enum DefectiveNat {
    Home,
    Carrier,
}

/// The rows of a defect that are not those that it has alone, with their verdicts; `None`: the other NAT hides it.
fn beside_another(place: DefectiveNat, defect: Defect) -> Option<&'static [(&'static str, Compliance)]> {
    use Compliance::{Described, Fails, Meets, NotTestable, Partly};
    Some(match (place, defect) {
        // One of both lowers the hop limit, drops what the other leaks, or has no mapping.
        (
            _,
            Defect::TtlKept
            | Defect::UnmappedErrorsPass
            | Defect::ExhaustionLeaks
            | Defect::TcpExhaustionLeaks,
        )
        // Both have as many ports: the home router's end, and the carrier's do not.
        | (
            DefectiveNat::Carrier,
            Defect::ExhaustionSilent
            | Defect::ExhaustionWrongCode
            | Defect::ExhaustionShares
            | Defect::ExhaustionEvicts
            | Defect::TcpExhaustionSilent
            | Defect::TcpExhaustionWrongCode
            | Defect::TcpExhaustionResets
            | Defect::TcpExhaustionShares
            | Defect::TcpExhaustionEvicts,
        )
        // Both links are as narrow: the home router's comes first.
        | (DefectiveNat::Carrier, Defect::TooLongVanishes | Defect::TooLongWrongMtu | Defect::DfCleared)
        // The carrier's NAT leads packets for its own addresses back, answers strangers, translates the source of errors, and checks
        // those from outside.
        | (
            DefectiveNat::Home,
            Defect::NoHairpin
            | Defect::HairpinInsideSource
            | Defect::HairpinErrorsDropped
            | Defect::HairpinErrorHalf
            | Defect::QueriesNotHairpinned
            | Defect::SynReset
            | Defect::ErrorOutSourceKept
            | Defect::BadErrorsPass
            | Defect::BadQuotesPass
            | Defect::QuoteOptionsUnread,
        ) => return None,
        (_, Defect::IdKept) => &[("ip-identification", Meets)],
        // The home router has room for ever, and the carrier's ports end.
        (DefectiveNat::Home, Defect::ExhaustionEvicts) => &[
            ("udp-exhaustion-told", Meets),
            ("udp-exhaustion-dropped", Meets),
            ("udp-host-limit", Described),
        ],
        (DefectiveNat::Home, Defect::TcpExhaustionEvicts) => {
            &[("tcp-exhaustion-told", Meets), ("tcp-exhaustion-dropped", Meets)]
        }
        // One leaks them, and the other drops or translates them.
        (_, Defect::OthersLeaked) => &[
            ("protocol-dccp", Partly),
            ("protocol-esp", Partly),
            ("protocol-gre", Partly),
            ("protocol-sctp", Partly),
            ("protocol-udp-lite", Partly),
        ],
        (DefectiveNat::Home, Defect::FragmentsLeaked) => {
            &[("udp-fragments-in-order", Partly), ("udp-fragments-reversed", Partly)]
        }
        // The carrier's NAT sends the fragments on in an order of its own.
        (DefectiveNat::Home, Defect::FragmentsInOrderOnly) => &[("udp-fragments-in-order", Partly)],
        // It leads a hairpinned SYN, and errors about hairpinned packets, back to the home router as from outside.
        (DefectiveNat::Home, Defect::NoSimultaneousOpen) => {
            &[("tcp-hairpin", Fails), ("tcp-hairpin-source", NotTestable)]
        }
        (DefectiveNat::Home, Defect::ErrorsInDropped | Defect::InnerIpChecksumStale | Defect::ErrorCodeChanged) => {
            &[("icmp-error-hairpin", Fails)]
        }
        // The home router is the host to which the error quotes a packet that it never sent.
        (DefectiveNat::Carrier, Defect::HairpinInsideSource) => &[("icmp-error-hairpin", Fails)],
        // It drops errors that quote a damaged header.
        (DefectiveNat::Carrier, Defect::InnerIpChecksumStale) => &[
            ("icmp-error-types", Fails),
            ("icmp-too-big-in", Fails),
            ("icmp-error-checksum", NotTestable),
            ("icmp-error-in", Fails),
            ("icmp-error-quote-options", Fails),
            ("icmp-error-quote-unchecked", Fails),
            ("icmp-error-short-quote", Fails),
        ],
        // Packets that the home router fragmented are fragments to the carrier's NAT.
        (DefectiveNat::Carrier, Defect::FragmentsDropped) => &[("udp-too-long-fragmented", Fails)],
        (DefectiveNat::Carrier, Defect::FragmentsInOrderOnly) => {
            &[("udp-fragments-in-order", Partly), ("udp-too-long-fragmented", Fails)]
        }
        (DefectiveNat::Carrier, Defect::FragmentsLeaked) => &[
            ("udp-fragments-in-order", Partly),
            ("udp-fragments-reversed", Partly),
            ("udp-too-long-fragmented", Fails),
        ],
        _ => &[],
    })
}

/// A carrier's NAT in front of a home router: a defect of either shows as it does alone, but for what the other one makes of it.
#[test]
fn each_defect_of_either_of_two_nats_changes_its_rows_and_no_others() {
    let carrier = [[198, 19, 2, 1], [198, 19, 2, 2]].map(IpAddr::from);
    let at_carrier = |behaviour: Behaviour| Behaviour { addresses: carrier, ..behaviour };
    let chain = |home, outer| verdicts(&table(Memory::chain(vec![home, at_carrier(outer)], Duration::ZERO)));
    let alone = |behaviour| verdicts(&table(Memory::new(behaviour, Duration::ZERO)));
    let good = alone(Behaviour::default());
    assert_eq!(chain(Behaviour::default(), Behaviour::default()), good);
    for place in [DefectiveNat::Home, DefectiveNat::Carrier] {
        for defect in Defect::ALL {
            let expected = match beside_another(place, defect) {
                None => good.clone(),
                Some(others) => {
                    let mut rows = alone(Behaviour::with(defect));
                    rows.extend(others.iter().copied());
                    rows
                }
            };
            let found = match place {
                DefectiveNat::Home => chain(Behaviour::with(defect), Behaviour::default()),
                DefectiveNat::Carrier => chain(Behaviour::default(), Behaviour::with(defect)),
            };
            let wrong: Vec<_> = found.iter().filter(|(id, verdict)| expected[*id] != **verdict).collect();
            assert!(wrong.is_empty(), "{place:?} {defect:?}: {wrong:?}");
        }
    }
}

#[test]
fn a_path_that_carries_nothing_has_no_verdict() {
    for line in table(Memory::new(Behaviour::default(), Duration::ZERO).losing(100, 1)).rows {
        let open = matches!(line.judgement.verdict, Compliance::NotSure | Compliance::NotTestable);
        assert!(open, "{}: {:?}", line.id, line.judgement);
    }
}

/// The stricter of two NATs shows.
#[test]
fn behind_two_nats_the_stricter_class_is_seen() {
    let rank = |class: Dependence| CLASSES.iter().position(|c| *c == class);
    let stricter = |a, b| if rank(a) >= rank(b) { a } else { b };
    let carrier = [[198, 19, 2, 1], [198, 19, 2, 2]].map(IpAddr::from);
    let pairs = || CLASSES.iter().flat_map(|a| CLASSES.iter().map(|b| (*a, *b)));
    for (mapping, carrier_mapping) in pairs() {
        for (filtering, carrier_filtering) in pairs() {
            let home = Behaviour { mapping, filtering, ..Behaviour::default() };
            let outer = Behaviour {
                addresses: carrier,
                mapping: carrier_mapping,
                filtering: carrier_filtering,
                ..Behaviour::default()
            };
            let table = table(Memory::chain(vec![home, outer], Duration::ZERO));
            let expected =
                (Some(stricter(mapping, carrier_mapping)), Some(stricter(filtering, carrier_filtering)));
            assert_eq!((table.kind.mapping, table.kind.filtering), expected);
            for line in &table.rows {
                let class = ["mapping", "filtering"].iter().any(|subject| line.id.ends_with(subject));
                let failing = matches!(line.judgement.verdict, Compliance::Fails | Compliance::Partly);
                assert!(class || !failing, "{}: {:?}", line.id, line.judgement);
            }
        }
    }
}

#[test]
fn without_any_icmp_only_its_rows_fail() {
    let defects = vec![
        Defect::QueriesDropped,
        Defect::ErrorsInDropped,
        Defect::ErrorsOutDropped,
        Defect::TooLongVanishes,
    ];
    let table = table(Memory::new(Behaviour { defects, ..Behaviour::default() }, Duration::ZERO));
    let failing: Vec<&str> =
        table.rows.iter().filter(|l| l.judgement.verdict == Compliance::Fails).map(|l| l.id).collect();
    let expected = [
        "icmp-query",
        "icmp-error-in",
        "icmp-error-out",
        "tcp-icmp-error-out",
        "icmp-error-hairpin",
        "tcp-icmp-error-in",
        "icmp-error-quote-options",
        "icmp-error-quote-unchecked",
        "icmp-error-short-quote",
        "icmp-error-types",
        "icmp-too-big-in",
        "udp-too-long",
    ];
    assert_eq!(failing, expected);
}
