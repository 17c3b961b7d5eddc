//! Rows that fail, and nothing on this host makes them.

use super::reason::{Reason, explain};
use super::{NOT_INJECTED, count, gateways, has_outside_address, ids, name_of, of_rows};
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{EvidenceSource, Namespace, NatRow, NatSource, NatTable};
use crate::finding::{Confidence, Finding};

pub(super) const CAUSE: Cause = Cause {
    id: "nat-elsewhere",
    title: "another NAT on the path fails these rows",
    about: "The table shows every NAT and firewall between its two ends, and its worst one decides a row. These rows fail, \
            and the settings and rules of this host do not do that: its timers are longer than the measured time, its rules \
            let such packets pass, or it translates nothing. So another NAT on the path does: a carrier's, a cloud's, a home \
            router, or a second namespace of this machine. A table of the lab is about the lab's gateway, not about a path.",
    must: &["a row fails", "no setting and no rule of this host explains it, as far as both were readable"],
    should: &["the outside address of the table is no address of this host"],
    must_not: &["rules or settings were not in sight"],
    lookalikes: &[
        ("nat-timers-short", "there a setting of this host lies within the measured time"),
        ("nat-kernel-limit", "there every NAT of the kernel fails the row"),
    ],
    yields_to: &[],
    remedy: "Bring the table to the next NAT on the path. `weir nat check` from this host itself leaves this host's NAT out: rows \
             that still fail belong to those behind it.",
    sources: &["RFC 6888, section 3: NATs of carriers in front of those of customers"],
    not_injected: Some(NOT_INJECTED),
    ..Cause::of(Group::Nat, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let Some(table) = view.evidence.nat.as_ref().filter(|table| !table.failing.is_empty()) else {
        return Vec::new();
    };
    let known: Vec<&Namespace> = view.namespaces().filter(|n| n.nat.is_some()).collect();
    if known.is_empty() {
        return vec![unknown(view, table)];
    }
    let gateways = gateways(view);
    if gateways.is_empty() {
        return vec![no_nat(view, table)];
    }
    gateways.into_iter().filter_map(|namespace| at(view, namespace, table)).collect()
}

fn at(view: &EvidenceView<'_>, namespace: &Namespace, table: &NatTable) -> Option<Finding> {
    let rows: Vec<(&NatRow, String)> = explain(table, namespace)
        .into_iter()
        .filter_map(|(row, reason)| if let Reason::Elsewhere(why) = reason { Some((row, why)) } else { None })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let mut finding = of_rows(view, CAUSE.id, namespace, rows.iter().map(|(row, _)| *row));
    finding.summary = summary(table, rows.iter().map(|(row, _)| *row), rows.len());
    finding.evidence.extend(address(namespace, table));
    for (row, why) in &rows {
        finding.seen(EvidenceSource::Rules, format!("{}: {why}", name_of(row)));
    }
    Some(finding)
}

fn summary<'a>(table: &NatTable, rows: impl Iterator<Item = &'a NatRow>, n: usize) -> String {
    let who = match table.source {
        NatSource::Check => "another NAT on the path does",
        NatSource::Lab => "the lab's gateway has others",
    };
    format!("The rules and settings here do not fail {} of the table; {who}: {}.", count(n), ids(rows))
}

/// Whether the outside address is one of this host.
fn address(namespace: &Namespace, table: &NatTable) -> Option<crate::finding::Fact> {
    let outside = table.outside.first()?;
    if table.source == NatSource::Lab || has_outside_address(namespace, table) {
        return None;
    }
    let text =
        format!("the outside address {outside} is no address of this host: another one translates as well");
    Some(crate::finding::Fact::seen(EvidenceSource::Interfaces, text))
}

/// No namespace translates sources.
fn no_nat(view: &EvidenceView<'_>, table: &NatTable) -> Finding {
    let machine = Namespace { name: "machine".into(), ..Namespace::default() };
    let mut finding = of_rows(view, CAUSE.id, &machine, table.failing.iter());
    finding.confidence = Confidence::High;
    finding.summary = summary(table, table.failing.iter(), table.failing.len());
    finding.seen(
        EvidenceSource::Rules,
        "no rule of this host translates sources, in any namespace that was read",
    );
    finding
}

/// The rules could not be read.
fn unknown(view: &EvidenceView<'_>, table: &NatTable) -> Finding {
    let mut finding = view.machine_finding(CAUSE.id, crate::finding::Severity::Note);
    finding.confidence = Confidence::Low;
    finding.missing = vec![EvidenceSource::Rules];
    finding.summary = format!(
        "{} of the table fail, and the rules of this host are not in sight: run the doctor as root.",
        count(table.failing.len())
    );
    finding
}
