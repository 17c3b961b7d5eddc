//! Defects in NATs of every class and port rule: one by one, and several at a time.

use std::time::Duration;

use weir_nat::{Table, measure};

use crate::reference::combinations::{CLASSES, Draws, PORT_RULES, Verdicts, expected};
use crate::reference::memory::Memory;
use crate::reference::{Behaviour, Defect};
use crate::{table, verdicts};

/// Without timers, which take longest.
fn quick(behaviour: Behaviour) -> Verdicts {
    verdicts(&Table::of(&measure(&mut Memory::new(behaviour, Duration::ZERO), &mut |_| true).unwrap()))
}

/// Verdicts that are not as expected.
fn wrong(behaviour: &Behaviour, found: &Verdicts, plain: &Verdicts) -> Option<String> {
    let expected = expected(behaviour, plain);
    let wrong = found.iter().filter(|(id, verdict)| expected[*id] != **verdict);
    let wrong: Vec<_> =
        wrong.map(|(id, verdict)| format!("{id}: {verdict:?}, not {:?}", expected[id])).collect();
    let Behaviour { mapping, filtering, ports, defects, .. } = behaviour;
    (!wrong.is_empty()).then(|| format!("{mapping:?} {filtering:?} {ports:?} {defects:?}: {wrong:?}"))
}

#[test]
fn each_defect_changes_its_rows_and_no_others_in_every_class() {
    let plain = quick(Behaviour::default());
    let mut failures = Vec::new();
    for (mapping, filtering) in CLASSES.iter().flat_map(|m| CLASSES.iter().map(|f| (*m, *f))) {
        for ports in PORT_RULES {
            for defects in Defect::ALL.iter().map(|defect| vec![*defect]).chain([Vec::new()]) {
                let behaviour = Behaviour { mapping, filtering, ports, defects, ..Behaviour::default() };
                failures.extend(wrong(&behaviour, &quick(behaviour.clone()), &plain));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn add_up(seed: u32, combinations: u32) {
    let mut draws = Draws::from_seed(seed);
    let plain = [quick(Behaviour::default()), verdicts(&table(Behaviour::default()))];
    let mut failures = Vec::new();
    for n in 0..combinations {
        // Every fourth has timers too.
        let timers = n % 4 == 0;
        let behaviour = draws.behaviour();
        let found = if timers { verdicts(&table(behaviour.clone())) } else { quick(behaviour.clone()) };
        failures.extend(wrong(&behaviour, &found, &plain[usize::from(timers)]));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Defects whose rows are not those of each other: their consequences add up.
#[test]
fn two_hundred_combinations_of_defects_change_their_rows_and_no_others() {
    add_up(0x2545_f491, 200);
}

#[test]
fn soak_combinations_of_defects_change_their_rows_and_no_others() {
    for seed in 1..=10 {
        add_up(seed, 400);
    }
}
