//! A run in parts has the verdicts of a whole one, wherever it was broken off.

mod reference;

use std::io;
use std::time::Duration;

use reference::Behaviour;
use reference::memory::Memory;
use weir_nat::experiments::longest_left;
use weir_nat::{Compliance, Earlier, Ends, Observations, Progress, Table, measure, measure_from};

const LIMIT: Duration = Duration::from_secs(400);
const CONNECTIONS: Duration = Duration::from_secs(7_500);
/// How often the timers are kept.
const INTERVAL: Duration = Duration::from_secs(60);

/// Keeps what a run has seen, and ends it after that many times.
struct Broken {
    left: usize,
    last: Duration,
    kept: Earlier,
}

impl Progress for Broken {
    fn begins(&mut self, _: &'static str) -> bool {
        true
    }

    fn wants_part(&mut self, now: Duration) -> bool {
        let due = now.saturating_sub(self.last) >= INTERVAL;
        if due {
            self.last = now;
        }
        due
    }

    fn seen(&mut self, seen: &Observations, complete: Option<&'static str>) -> io::Result<()> {
        self.kept.seen = seen.clone();
        self.kept.complete.extend(complete.map(str::to_owned));
        self.left = self.left.checked_sub(1).ok_or(io::ErrorKind::Interrupted)?;
        Ok(())
    }
}

fn ends(behaviour: &Behaviour) -> Memory {
    Memory::new(behaviour.clone(), LIMIT).with_connections(CONNECTIONS)
}

/// A part on a NAT of its own, as a new lab has one: what is kept, how long it took, and the result if it was not broken off.
fn part(behaviour: &Behaviour, earlier: Earlier, keeps: usize) -> (Earlier, Duration, Option<Observations>) {
    let mut ends = ends(behaviour);
    let begun = ends.now();
    let mut broken = Broken { left: keeps, last: begun, kept: earlier.clone() };
    let seen = measure_from(&mut ends, earlier, &mut broken);
    (broken.kept, ends.now() - begun, seen.ok())
}

/// Verdicts and what was seen, but for the ports of hairpinned packets: another part uses other ones.
fn judgements(seen: &Observations) -> Vec<(&'static str, Compliance, String)> {
    // A second part does not wait for hours to see what follows the end of a connection's mapping.
    let lines = Table::of(seen).rows.into_iter().filter(|line| line.id != "tcp-after-idle");
    let words = |line: weir_nat::table::Line| {
        let seen = if line.id.ends_with("hairpin-source") { String::new() } else { line.judgement.seen };
        (line.row.id, line.judgement.verdict, seen)
    };
    lines.map(words).collect()
}

/// A NAT whose timers all end within the limits, and one without end.
fn behaviours() -> [Behaviour; 2] {
    let short = Behaviour {
        udp_unanswered: Duration::from_secs(30),
        udp_answered: Duration::from_secs(170),
        icmp_query: Duration::from_secs(61),
        tcp_opening: Duration::from_secs(240),
        tcp_established: Duration::from_secs(2_000),
        ..Behaviour::default()
    };
    [short, Behaviour::default()]
}

#[test]
fn a_run_that_is_broken_off_anywhere_has_the_same_verdicts() {
    for behaviour in behaviours() {
        let whole = measure(&mut ends(&behaviour), &mut |_| true).unwrap();
        let (all, ..) = part(&behaviour, Earlier::default(), usize::MAX);
        assert!(all.is_whole() && all.seen == whole);
        let mut broken_in_the_timers = 0;
        for keeps in [0, 5, 24, 25, 26, 27, 28, 30, 34, 54, 74] {
            let (kept, _, seen) = part(&behaviour, Earlier::default(), keeps);
            assert!(seen.is_none() && !kept.is_whole(), "{keeps}");
            broken_in_the_timers += usize::from(kept.seen.idle.is_some() && !kept.complete.contains("idle"));
            // And once more: what was kept is not lost by a second part that ends early.
            let (again, _, _) = part(&behaviour, kept.clone(), 1);
            assert!(again.complete.is_superset(&kept.complete));
            let (_, _, seen) = part(&behaviour, again, usize::MAX);
            for (part, whole) in judgements(&seen.unwrap()).into_iter().zip(judgements(&whole)) {
                assert_eq!(part, whole, "{keeps}");
            }
        }
        assert!(broken_in_the_timers >= 4, "{broken_in_the_timers}");
    }
}

/// Times that are decided are not waited for again: a connection that ended after 2,000 s says so about all longer times.
#[test]
fn a_decided_timer_is_not_waited_for_again() {
    let [short, endless] = behaviours();
    let limits = ends(&short).conditions().limits;
    assert_eq!(longest_left(limits, &Earlier::default()), CONNECTIONS);
    let decided = |behaviour: &Behaviour, after: Duration| {
        let mut keeps = 24;
        loop {
            let (kept, took, seen) = part(behaviour, Earlier::default(), keeps);
            assert!(seen.is_none());
            if took >= after {
                return kept;
            }
            keeps += 1;
        }
    };
    // The last packet that asks whether a segment has started the time anew comes at 1.6 times that of the segment.
    let kept = decided(&short, Duration::from_secs(2_900));
    // A new mapping of UDP, to see what follows its end.
    let left = longest_left(limits, &kept).as_secs_f64();
    assert!((30.0..31.0).contains(&left), "{left}");
    let (_, took, seen) = part(&short, kept, usize::MAX);
    assert!(seen.is_some() && took < Duration::from_secs(60), "{took:?}");
    // All lived: the longest time is still open, and takes as long as before.
    let kept = decided(&endless, Duration::from_secs(2_100));
    assert_eq!(longest_left(limits, &kept), CONNECTIONS);
    let (_, took, _) = part(&endless, kept, usize::MAX);
    assert!(took >= CONNECTIONS, "{took:?}");
}
