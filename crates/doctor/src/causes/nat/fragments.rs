//! Too little memory or time to put fragments together.

use super::reason::Reason;
use super::rows::fragment_settings;
use super::{NOT_INJECTED, add_rows, count, each_gateway, ids};
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{EvidenceSource, Namespace, NatRow};
use crate::finding::{Finding, Fix, Setting};

pub(super) const CAUSE: Cause = Cause {
    id: "nat-fragments-dropped",
    title: "fragments find no room in the NAT",
    about: "A NAT needs the ports of a datagram, which only its first fragment has, so connection tracking puts fragments \
            together first. The memory for that is bounded by ipfrag_high_thresh, and the time by ipfrag_time. With very \
            small values every datagram in fragments is lost: long DNS answers, IKE with certificates, tunnels.",
    must: &[
        "a row about fragments fails",
        "ipfrag_high_thresh is below 128 KiB, or ipfrag_time is 0; over IPv6 nf_conntrack_frag6_high_thresh and nf_conntrack_frag6_timeout",
    ],
    should: &["no rule refuses fragments"],
    must_not: &["both settings are the kernel's own or larger"],
    lookalikes: &[
        ("nat-packets-dropped", "there a rule refuses fragments"),
        ("reassembly-memory", "there fragments were lost in the window"),
    ],
    yields_to: &[],
    remedy: "Set the kernel's own values: 4 MiB and 30 s. `weir tune apply --profile rfc` does so on trial.",
    sources: &["RFC 4787, REQ-14", "net/ipv4/ip_fragment.c", "net/ipv4/inet_fragment.c: inet_frag_alloc"],
    not_injected: Some(NOT_INJECTED),
    ..Cause::of(Group::Nat, |view| {
        each_gateway(view, CAUSE.id, |reason| matches!(reason, Reason::Fragments), fill)
    })
};

fn fill(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    rows: &[(&NatRow, Reason<'_>)],
    finding: &mut Finding,
) {
    let ipv6 = view.evidence.nat.as_ref().is_some_and(|table| table.is_of_ipv6());
    let mut settings = Vec::new();
    for (name, own) in fragment_settings(ipv6) {
        if let Some(now) = namespace.setting(name).filter(|now| *now < own) {
            finding.seen(EvidenceSource::Settings, format!("{name} = {now}"));
            settings.push(Setting::new(name, now, own, format!("the kernel's own value is {own}")));
        }
    }
    add_rows(finding, rows);
    finding.summary = format!(
        "{} of the table fail for want of room for fragments: {}.",
        count(rows.len()),
        ids(rows.iter().map(|(row, _)| *row))
    );
    finding.fixes.push(Fix::set("make room for fragments", "up to 4 MiB of memory for fragments", settings));
}
