//! The gateway itself answers a SYN that no mapping expects.

use super::reason::{Reason, told};
use super::{NOT_INJECTED, add_rows, each_gateway};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{Line, sh};
use crate::evidence::{EvidenceSource, Namespace, NatRow};
use crate::finding::{Finding, Fix};

pub(super) const CAUSE: Cause = Cause {
    id: "nat-syn-answered",
    title: "unsolicited SYNs are answered by a reset",
    about: "A SYN from outside to a port without a mapping is for the gateway itself: no program listens there, and its TCP \
            answers with a reset at once, or a rule rejects it. RFC 5382 asks for six seconds of silence: with hole punching \
            the SYN of the first peer arrives before the second one has sent its own, and a reset ends the attempt.",
    must: &["the row tcp-unsolicited-syn fails", "no rule of this host drops such a SYN in silence"],
    should: &["the outside address of the table is one of this host"],
    must_not: &["a rule drops it: something before this host answers"],
    lookalikes: &[
        ("no-listener", "there packets were lost in the window because no program listens"),
        ("nat-elsewhere", "there this host drops such SYNs in silence"),
    ],
    yields_to: &[],
    remedy: "Drop SYNs for which no program listens: `weir tune apply --profile rfc --silent-syn INTERFACE` does so on trial, \
             by a table of its own.",
    sources: &["RFC 5382, REQ-4", "net/ipv4/tcp_ipv4.c: tcp_v4_rcv, no_tcp_socket"],
    not_injected: Some(NOT_INJECTED),
    ..Cause::of(Group::Nat, |view| {
        each_gateway(view, CAUSE.id, |reason| matches!(reason, Reason::Answers(_)), fill)
    })
};

fn fill(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    rows: &[(&NatRow, Reason<'_>)],
    finding: &mut Finding,
) {
    let by = rows.iter().find_map(|(_, reason)| if let Reason::Answers(by) = reason { *by } else { None });
    finding.summary = match by {
        Some(_) => "A rule of this host rejects SYNs from outside that no mapping expects.".to_owned(),
        None => "This host's own TCP answers SYNs from outside that no mapping expects.".to_owned(),
    };
    match by {
        Some(rule) => {
            finding.object = told(rule);
            finding.seen(EvidenceSource::Rules, format!("{} rejects it in {}", told(rule), rule.hook));
        }
        None => finding.seen(EvidenceSource::Rules, "no rule of this host drops such a SYN in silence"),
    }
    add_rows(finding, rows);
    let interface = outside_interface(view, namespace);
    let apply: Line = match interface {
        Some(name) => sh!("weir tune apply --profile rfc --silent-syn {}", name),
        None => sh!("weir tune apply --profile rfc --silent-syn OUTSIDE_INTERFACE"),
    };
    finding.fixes.push(Fix::new(
        "drop SYNs without a listener in silence, on trial",
        "a client of a stopped service waits for its time-out instead of being refused at once; idle times are raised, too",
        [apply],
        [sh!("weir tune rollback")],
    ));
}

/// The interface that has the table's outside address.
fn outside_interface<'a>(view: &EvidenceView<'_>, namespace: &'a Namespace) -> Option<&'a str> {
    let outside = &view.evidence.nat.as_ref()?.outside;
    let has = |(address, _): &(std::net::IpAddr, u8)| outside.contains(address);
    namespace.interfaces.iter().find(|i| i.addresses.iter().any(has)).map(|i| i.name.as_str())
}
