//! Evidence queries of the causes in this group.

use weir_text::units::{Unit, quantity};

use crate::causes::{EvidenceView, Taken};
use crate::evidence::{DropGroup, Interface, Namespace, Qdisc};

/// Drops on one interface of a namespace that `is_mine` says yes to.
pub(super) fn on<'a>(
    view: &EvidenceView<'a>,
    namespace: &Namespace,
    interface: &Interface,
    is_mine: impl Fn(&DropGroup) -> bool,
) -> Taken<'a> {
    view.take(namespace, |d| d.interface == interface.index && is_mine(d))
}

/// How often it happens in a second.
pub(super) fn per_second(view: &EvidenceView<'_>, times: u64) -> f64 {
    times as f64 / view.evidence.window_s.max(0.1)
}

/// Bits per second in words.
pub(super) fn rate(bits_per_second: f64) -> String {
    quantity(Unit::Bps, bits_per_second, None)
}

/// A queueing discipline as tc(8) names it.
pub(super) fn named(qdisc: &Qdisc) -> String {
    format!("{} {}", qdisc.kind, qdisc.handle)
}

/// The words of tc(8) that say which one is meant.
pub(super) fn address(qdisc: &Qdisc) -> String {
    let parent = match qdisc.parent.as_str() {
        "root" => "root".to_owned(),
        parent => format!("parent {parent}"),
    };
    if qdisc.handle == "0:" { parent } else { format!("{parent} handle {}", qdisc.handle) }
}

/// Finds the next level above: the class or queueing discipline that its parent names.
fn above<'a>(interface: &'a Interface, qdisc: &Qdisc) -> Option<&'a Qdisc> {
    let other = |q: &&Qdisc| !std::ptr::eq(*q, qdisc) && q.handle != qdisc.handle;
    let all = || interface.qdiscs.iter().filter(other);
    let class = all().find(|q| q.class && q.handle == qdisc.parent);
    class.or_else(|| {
        // Without classes only the first half counts; a class's own discipline has its first half.
        let of = if qdisc.class && qdisc.parent == "root" { &qdisc.handle } else { &qdisc.parent };
        let (major, _) = of.split_once(':')?;
        all().find(|q| !q.class && q.handle.split_once(':') == Some((major, "")) && major != "0")
    })
}

/// The one that sets the pace of a queue: itself or the nearest above it that is set to a rate.
pub(super) fn shaper<'a>(interface: &'a Interface, qdisc: &'a Qdisc) -> Option<&'a Qdisc> {
    let mut at = qdisc;
    // No hierarchy is deeper (TC_HTB_MAXDEPTH is 8, and each level may hold a discipline and a class).
    for _ in 0..16 {
        if at.rate_bps.is_some() {
            return Some(at);
        }
        at = above(interface, at)?;
    }
    None
}

/// The discipline that threw packets away itself: those above it count the same packets again.
pub(super) fn culprit(interface: &Interface) -> Option<&Qdisc> {
    // `clsact` and `ingress` queue nothing: what they count is what filters threw away.
    let queues = |q: &&Qdisc| !q.class && !matches!(q.kind.as_str(), "clsact" | "ingress");
    let dropping = || interface.qdiscs.iter().filter(queues).filter(|q| q.dropped.change() > 0);
    let has_dropping_child = |q: &&Qdisc| {
        let below = |c: &Qdisc| {
            let mut at = c;
            for _ in 0..16 {
                match above(interface, at) {
                    Some(up) if std::ptr::eq(up, *q) => return true,
                    Some(up) => at = up,
                    None => return false,
                }
            }
            false
        };
        dropping().any(|c| !std::ptr::eq(c, *q) && below(c))
    };
    dropping().filter(|q| !has_dropping_child(q)).max_by_key(|q| q.dropped.change())
}
