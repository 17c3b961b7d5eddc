//! Paths on which a verdict must stay right or become `not sure`: with loss, behind two NATs, and without any ICMP.

mod reference;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use reference::combinations::CLASSES;
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
            let lossy = verdicts(&table(Memory::lossy(behaviour.clone(), 2, seed)));
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
            let lossy = Memory::lossy(behaviour.clone(), 2, seed).delayed(DELAY);
            for (row, verdict) in verdicts(&table(lossy)) {
                let fine = verdict == truth[row] || verdict == Compliance::NotSure;
                assert!(fine, "{row}: {verdict:?} instead of {:?}: {defect:?} seed {seed}", truth[row]);
            }
        }
    }
}

/// A carrier's NAT without defects in front of a home router with one: the defect shows as it does alone, or the row is not sure.
#[test]
fn a_second_nat_hides_no_failure_of_the_first() {
    let carrier = [[198, 19, 2, 1], [198, 19, 2, 2]].map(IpAddr::from);
    let outer = Behaviour { addresses: carrier, ..Behaviour::default() };
    let good = verdicts(&table(Memory::chain(vec![Behaviour::default(), outer.clone()], Duration::ZERO)));
    for (row, verdict) in good {
        assert!(!matches!(verdict, Compliance::Fails | Compliance::Partly), "{row}: {verdict:?}");
    }
    for defect in [
        Defect::SynDataDropped,
        Defect::HalfCloseEnds,
        Defect::ResetDropped,
        Defect::OtherAnswersDropped,
        Defect::NoSimultaneousOpen,
        Defect::FragmentsDropped,
        Defect::ErrorsInDropped,
        Defect::ErrorsEndMapping,
        Defect::QueriesDropped,
    ] {
        let failing = |table: &Table| -> Vec<&'static str> {
            let bad = |v: Compliance| matches!(v, Compliance::Fails | Compliance::Partly);
            table.rows.iter().filter(|l| bad(l.judgement.verdict)).map(|l| l.id).collect()
        };
        let mut alone = failing(&table(Memory::new(Behaviour::with(defect), Duration::ZERO)));
        // The carrier's NAT leads a hairpinned SYN back to the home router, which drops it as it drops any from a contacted endpoint.
        if defect == Defect::NoSimultaneousOpen {
            alone.insert(0, "tcp-hairpin");
        }
        // It leads back an error about a hairpinned packet too, which then comes from outside.
        if defect == Defect::ErrorsInDropped {
            alone.insert(1, "icmp-error-hairpin");
        }
        let chain = Memory::chain(vec![Behaviour::with(defect), outer.clone()], Duration::ZERO);
        assert_eq!(failing(&table(chain)), alone, "{defect:?}");
    }
}

#[test]
fn a_path_that_carries_nothing_has_no_verdict() {
    for line in table(Memory::lossy(Behaviour::default(), 100, 1)).rows {
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
        "icmp-error-hairpin",
        "tcp-icmp-error-in",
        "icmp-error-quote-options",
        "icmp-error-quote-unchecked",
        "icmp-error-short-quote",
        "udp-too-long",
    ];
    assert_eq!(failing, expected);
}
