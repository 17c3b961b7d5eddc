//! Whether a sender with a rate kept it, and whether what it did late decides the result.

use weir_record::{Fault, FaultCode};
use weir_stats::Histogram;

use super::send::Sent;
use crate::part::{merged, sum};
use crate::{Direction, Part};

/// Lateness from which a sender may itself be the cause of loss: Linux's default queues on the way (net.core.netdev_max_backlog
/// and txqueuelen, 1000 packets each) hold what a stall of 1 ms sets free at once, up to a million datagrams a second.
const LATE_NS: u64 = 1_000_000;

/// Share of datagrams that may be late before the trial is void: one in a hundred moves no quantile up to p99, and bursts
/// of a hypervisor's steal stay below it.
const LATE_SHARE: f64 = 0.01;

/// Fewer late datagrams than this move no quantile that is shown, which takes six values beyond it, and a burst of so few fills no
/// queue.
const LATE_LEAST: u64 = 6;

/// Least share of the wanted datagrams that must have left in the window for the trial to be one of that rate.
const RATE_KEPT: f64 = 0.999;

/// The schedule of one direction's senders, and how they kept it.
#[derive(Debug)]
struct Schedule {
    wanted: f64,
    left: f64,
    /// Datagrams at the window's edges, where a schedule may have one batch more or less.
    edge: f64,
    late: u64,
    latest_ns: u64,
    timed: u64,
}

/// Writes the report of a sending end, for [`fault`]. Nothing if it has no rate or was stopped.
pub(super) fn tell(part: &mut Part, way: Direction, sent: &[Sent]) {
    let wanted: f64 = sent.iter().filter_map(|s| s.wanted).sum();
    if wanted <= 0.0 {
        return;
    }
    let mut lateness = Histogram::new();
    sent.iter().for_each(|s| lateness.merge(&s.lateness));
    part.histograms.insert(format!("{way}_lateness"), lateness.into());
    if sent.iter().any(|s| s.cut_short) {
        return;
    }
    part.set(&format!("{way}_wanted"), wanted);
    part.set(&format!("{way}_left"), sent.iter().map(|s| s.datagrams.total()).sum::<u64>() as f64);
    part.set(&format!("{way}_edge"), sent.iter().map(|s| s.batch).sum::<usize>() as f64);
}

/// The senders' fault of one direction, of whose datagrams so many were lost.
///
/// A burst after a stall can lose at most the datagrams that were late. If more than twice as many were lost, the path lost most
/// of them: the loss is a result. The spread of the delays is then the tester's, and is not [shown](spread_is_its_own).
pub(super) fn fault(parts: &[Part], way: Direction, lost: f64) -> Option<Fault> {
    let schedule = Schedule::of(parts, way)?;
    let host = if way == Direction::Egress { "initiator" } else { "responder" };
    let detail = format!(
        "{:.3} % of the set rate left, {:.2} % of it more than 1 ms late, the latest by {:.1} ms",
        schedule.left / schedule.wanted * 100.0,
        schedule.late as f64 / schedule.timed.max(1) as f64 * 100.0,
        schedule.latest_ns as f64 / 1e6
    );
    if schedule.is_short() || (schedule.is_late() && lost <= 2.0 * schedule.late as f64) {
        return Some(Fault::void(FaultCode::LateSends, host, detail));
    }
    (schedule.late > 0).then(|| Fault::noted(FaultCode::LateSends, host, detail))
}

/// True if so much was late that the delays' spread is the sender's own, whatever was lost.
pub(super) fn spread_is_its_own(parts: &[Part], way: Direction) -> bool {
    Schedule::of(parts, way).is_some_and(|s| s.is_late())
}

impl Schedule {
    fn of(parts: &[Part], way: Direction) -> Option<Schedule> {
        let total = |name: &str| sum(parts, &format!("{way}_{name}"));
        let wanted = total("wanted");
        let lateness = merged(parts, &format!("{way}_lateness"));
        let late = lateness.answered().buckets().filter(|(ns, _)| *ns > LATE_NS).map(|(_, n)| n).sum();
        (wanted > 0.0).then(|| Schedule {
            wanted,
            left: total("left"),
            edge: total("edge"),
            late,
            latest_ns: lateness.answered().max(),
            timed: lateness.len(),
        })
    }

    fn is_short(&self) -> bool {
        self.wanted - self.left > ((1.0 - RATE_KEPT) * self.wanted).max(self.edge)
    }

    fn is_late(&self) -> bool {
        self.late >= LATE_LEAST && self.late as f64 > LATE_SHARE * self.timed as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: Direction = Direction::Egress;

    fn sender(wanted: f64, left: f64, late: u64) -> Part {
        let mut part = Part::default();
        for (name, value) in [("wanted", wanted), ("left", left), ("edge", 1.0)] {
            part.set(&format!("{WAY}_{name}"), value);
        }
        let mut lateness = Histogram::new();
        lateness.record_n(2_000, left as u64 - late);
        lateness.record_n(3_000_000, late);
        part.histograms.insert(format!("{WAY}_lateness"), lateness.into());
        part
    }

    fn is_void(part: Part, lost: f64) -> Option<bool> {
        fault(&[part], WAY, lost).map(|f| f.void)
    }

    #[test]
    fn one_in_a_hundred_may_be_late_and_five_of_few() {
        assert_eq!(is_void(sender(10_000.0, 10_000.0, 0), 0.0), None);
        assert_eq!(is_void(sender(10_000.0, 10_000.0, 100), 0.0), Some(false));
        assert_eq!(is_void(sender(10_000.0, 10_000.0, 101), 0.0), Some(true));
        assert_eq!(is_void(sender(300.0, 300.0, 5), 5.0), Some(false));
        assert_eq!(is_void(sender(300.0, 300.0, 6), 0.0), Some(true));
    }

    #[test]
    fn a_loss_that_lateness_cannot_explain_is_the_hop_s() {
        assert_eq!(is_void(sender(300.0, 300.0, 20), 40.0), Some(true));
        assert_eq!(is_void(sender(300.0, 300.0, 20), 41.0), Some(false));
        assert_eq!(is_void(sender(300.0, 300.0, 300), 300.0), Some(true));
        assert!(spread_is_its_own(&[sender(300.0, 300.0, 20)], WAY));
        assert!(!spread_is_its_own(&[sender(300.0, 300.0, 5)], WAY));
        assert!(!spread_is_its_own(&[sender(300.0, 300.0, 20)], Direction::Ingress));
    }

    #[test]
    fn a_rate_that_was_not_kept_is_void_whatever_was_lost() {
        assert_eq!(is_void(sender(10_000.0, 9_990.0, 0), 0.0), None);
        assert_eq!(is_void(sender(10_000.0, 9_989.0, 0), 9_000.0), Some(true));
        // One of few at the window's edge.
        assert_eq!(is_void(sender(300.0, 299.0, 0), 0.0), None);
        assert_eq!(is_void(sender(300.0, 298.0, 0), 0.0), Some(true));
    }
}
