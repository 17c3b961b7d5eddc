//! Source NAT to several addresses, of which one host gets more than one.

use super::ports::edited;
use super::reason::Reason;
use super::{NOT_INJECTED, add_rows, add_rules, count, each_gateway, ids};
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{Namespace, NatRow};
use crate::finding::Finding;

pub(super) const CAUSE: Cause = Cause {
    id: "nat-address-pool",
    title: "one host gets several outside addresses",
    about: "A rule translates sources to a range of addresses. Without `persistent` the kernel chooses the address by a hash \
            of source and destination, so that one host has another address for each destination; a rule with numgen or \
            statistic changes it from one connection to the next. Logins that are tied to an address fail, and so do calls \
            whose media and signalling go to different servers.",
    must: &[
        "a row about pooling fails, or one inside port is seen by several outside addresses",
        "a rule translates such connections to more than one address without persistent, or by chance",
    ],
    should: &["the outside addresses of the table are those of the rule"],
    must_not: &["every rule gives one address"],
    lookalikes: &[
        ("nat-ports-drawn", "there the port changes, and the address stays"),
        ("nat-elsewhere", "there no rule of this host has more than one address"),
    ],
    yields_to: &[],
    remedy: "Add `persistent` to the rule (`--persistent` of iptables): the address then depends on the inside host alone. Price: \
             busy hosts no longer spread over the addresses, so that the ports of one may run out sooner.",
    sources: &["RFC 4787, REQ-2", "RFC 6888, REQ-2", "net/netfilter/nf_nat_core.c: find_best_ips_proto"],
    not_injected: Some(NOT_INJECTED),
    ..Cause::of(Group::Nat, |view| {
        each_gateway(view, CAUSE.id, |reason| matches!(reason, Reason::Addresses(_)), fill)
    })
};

fn fill(view: &EvidenceView<'_>, _: &Namespace, rows: &[(&NatRow, Reason<'_>)], finding: &mut Finding) {
    let rules = rows.iter().filter_map(|(_, reason)| match reason {
        Reason::Addresses(rule) => Some(*rule),
        _ => None,
    });
    let rules = add_rules(finding, rules);
    add_rows(finding, rows);
    let addresses = view.evidence.nat.as_ref().map_or(0, |table| table.outside.len());
    finding.summary = format!(
        "{} of the table fail because one host gets several of {addresses} outside addresses: {}.",
        count(rows.len()),
        ids(rows.iter().map(|(row, _)| *row))
    );
    let risk = "a host keeps to one address: the ports of a busy one may run out sooner";
    finding.fixes.extend(
        rules
            .into_iter()
            .map(|rule| edited(rule, "add persistent to the rule", risk, "THE_RULE_WITH_PERSISTENT")),
    );
}
