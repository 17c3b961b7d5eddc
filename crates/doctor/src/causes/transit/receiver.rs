//! Receivers of connections that pass here read too slowly.

use super::{recipes, signs};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, TransitNetwork};
use crate::finding::{Confidence, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "transit-receiver",
    title: "a receiver beyond this host reads too slowly",
    about: "The receiver of a connection that passes here closed its receive window: its program does not read what has come. The \
            sender has to wait, and the connection is slow though the path is free. This is no fault of the network; a ticket \
            that says \"slow through the gateway\" may have it as its reason.",
    must: &[
        "a side closed its receive window for at least a tenth of the window in sight, on a connection that passes here",
    ],
    should: &["it did so for a half of it"],
    must_not: &["segments are lost on the way to it"],
    lookalikes: &[
        ("receive-window-limited", "the receiver is this host"),
        ("transit-queue", "the wait is in the path"),
    ],
    remedy: "Look at the program that receives, on its own host: `ss -tm` there shows the bytes that wait to be read. Nothing on \
             this host changes it.",
    sources: &["RFC 9293 section 3.8.6", "RFC 7323 section 2"],
    recipes: recipes::receiver,
    ..Cause::of(Group::Transit, examine)
};

/// Shares of the window in sight.
const SHARE: f64 = 0.1;
const HALF: f64 = 0.5;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let all = view.namespaces().flat_map(|n| signs::networks(n).map(move |network| (n, network)));
    all.filter_map(|(n, network)| of(view, n, network)).collect()
}

fn of(view: &EvidenceView<'_>, namespace: &Namespace, network: &TransitNetwork) -> Option<Finding> {
    let (flows, longest_ns) = network.shut;
    let share = longest_ns as f64 / 1e9 / view.evidence.window_s.max(0.1);
    if flows == 0 || share < SHARE || signs::is_lossy(network) {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    // No network is at fault.
    finding.severity = Severity::Note;
    finding.confidence = if share >= HALF { Confidence::High } else { Confidence::Medium };
    finding.object.clone_from(&network.network);
    finding.impact = flows as f64 / network.flows.max(1) as f64;
    finding.summary = format!(
        "Programs in {} read too slowly: {flows} of {} connections had a closed receive window, one of them for {:.1} s.",
        network.network,
        network.flows,
        longest_ns as f64 / 1e9
    );
    finding.seen(
        EvidenceSource::Transit,
        format!("zero windows from {} by {}", network.network, network.interface),
    );
    finding.not.push("not the path: no loss beyond what is usual was seen on it".into());
    finding.missing = view.missing(namespace, &[EvidenceSource::Transit]);
    let look = Fix::look("see on the receiving host which program has bytes to read", [sh!("ss -tmnp")]);
    finding.fixes.push(look.elsewhere());
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{host, network};
    use super::*;
    use crate::evidence::Repeated;

    fn found(shut: (u64, u64), lost_to: Repeated) -> Vec<Finding> {
        let host = host(vec![TransitNetwork { shut, lost_to, ..network(true) }]);
        examine(&EvidenceView::of(&host))
    }

    #[test]
    fn a_window_that_stays_closed_is_noted_and_a_moment_is_not() {
        let found_here = found((2, 6_000_000_000), Repeated::default());
        assert_eq!((found_here[0].severity, found_here[0].confidence), (Severity::Note, Confidence::High));
        assert_eq!(found((2, 500_000_000), Repeated::default()), []);
        assert_eq!(found((0, 0), Repeated::default()), []);
        let lossy = Repeated { lost: 100, of: 1000, low: 0.08, high: 0.12 };
        assert_eq!(found((2, 6_000_000_000), lossy), []);
    }
}
