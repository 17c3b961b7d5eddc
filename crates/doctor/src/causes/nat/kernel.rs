//! Rows that the kernel's NAT does not meet under any setting.

use super::reason::Reason;
use super::{NOT_INJECTED, each_gateway, ids, name_of};
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{EvidenceSource, Namespace, NatRow};
use crate::finding::{Finding, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "nat-kernel-limit",
    title: "the kernel's NAT does not meet these rows under any setting",
    about: "Some requirements are no matter of settings or rules: source NAT of Linux shares outside ports of hosts that use \
            one source port, admits packets of contacted endpoints only, answers packets of inside hosts to its own outside \
            address itself, keeps identifications, and drops packets without an error when ports run out. The finding lists \
            the rows with the reason of each, and what reaches it instead. It is a note: nothing is broken here.",
    must: &["a row fails that every gateway of the kernel in `weir nat lab --all` fails"],
    should: &["the outside address of the table is one of this host"],
    must_not: &["a rule or setting of this host explains the row"],
    lookalikes: &[
        ("nat-ports-drawn", "there a rule draws ports, and the row fails in full"),
        ("hairpin-missing", "there a published service is called from its own network in the window"),
    ],
    yields_to: &[],
    remedy: "Ports of services: `weir publish` forwards them as a full cone, independent of the destination. Inside hosts that \
             call each other: names that resolve to inside addresses.",
    sources: &["RFC 4787, REQ-1, REQ-3, REQ-8, REQ-9", "RFC 5508, REQ-8", "net/netfilter/nf_nat_core.c"],
    not_injected: Some(NOT_INJECTED),
    ..Cause::of(Group::Nat, |view| {
        each_gateway(view, CAUSE.id, |reason| matches!(reason, Reason::Kernel(_)), fill)
    })
};

fn fill(_: &EvidenceView<'_>, _: &Namespace, rows: &[(&NatRow, Reason<'_>)], finding: &mut Finding) {
    finding.severity = Severity::Note;
    for (row, reason) in rows {
        let Reason::Kernel(limit) = reason else { continue };
        let text = format!("{}: {}; {}. Instead: {}", name_of(row), row.seen, limit.why, limit.reach);
        finding.seen(EvidenceSource::Rules, text);
    }
    finding.summary = format!(
        "no setting of the kernel's NAT changes {}; the JSON has the reason of each, and what reaches it instead.",
        ids(rows.iter().map(|(row, _)| *row))
    );
}
