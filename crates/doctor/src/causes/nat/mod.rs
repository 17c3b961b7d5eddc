//! Rows of a table of `weir nat` that fail, and what on this host makes them. Nothing is found without a table: on a host with the
//! kernel's own settings several rows fail, and it loses nothing by that.

mod address_pool;
mod elsewhere;
#[cfg(test)]
mod fixture;
mod fragments;
mod kernel;
mod packets_dropped;
mod ports;
mod reason;
mod rows;
mod syn_answered;
mod timers;

use super::{Cause, EvidenceView};
use crate::evidence::{EvidenceSource, Namespace, NatRow, NatRule, NatSource, NatTable};
use crate::finding::{Confidence, Finding, Severity};
use reason::{Reason, explain};

/// Those of this group.
pub(super) static CAUSES: &[&Cause] = &[
    &timers::CAUSE,
    &ports::CAUSE,
    &address_pool::CAUSE,
    &packets_dropped::CAUSE,
    &syn_answered::CAUSE,
    &fragments::CAUSE,
    &kernel::CAUSE,
    &elsewhere::CAUSE,
];

/// Rows that no setting of the kernel's NAT meets: their names, the kernel's way, and what reaches them instead.
pub fn limits() -> impl Iterator<Item = (&'static [&'static str], &'static str, &'static str)> {
    rows::LIMITS.iter().map(|limit| (limit.rows, limit.why, limit.reach))
}

/// Why the self-test makes none of them.
const NOT_INJECTED: &str = "its evidence is a table of `weir nat check`, which takes a server outside of the NAT; \
                            `crates/cli/tests/nat_doctor.rs` makes both.";

/// Namespaces that the table can be about: those that translate sources, and of these the one that has the outside address, or
/// else the own one. If nothing on the way translates, also those that only forward: their rules and timers decide as well.
fn gateways<'a>(view: &EvidenceView<'a>) -> Vec<&'a Namespace> {
    let Some(table) = &view.evidence.nat else { return Vec::new() };
    let forwarding = if table.is_of_ipv6() { "net.ipv6.conf.all.forwarding" } else { "net.ipv4.ip_forward" };
    let forwards = |n: &Namespace| table.is_untranslated() && n.setting(forwarding) == Some(1);
    let is_gateway = |n: &&Namespace| n.nat.as_ref().is_some_and(|nat| !nat.rules.is_empty() || forwards(n));
    let all: Vec<&Namespace> = view.namespaces().filter(is_gateway).collect();
    let chosen = |is: &dyn Fn(&Namespace) -> bool| -> Vec<&Namespace> {
        all.iter().copied().filter(|n| is(n)).collect()
    };
    let (holders, own) = (chosen(&|n| has_outside_address(n, table)), chosen(&|n| n.own));
    [holders, own].into_iter().find(|some| !some.is_empty()).unwrap_or(all)
}

/// True if the table's outside address is one of the namespace, or of its rules.
fn has_outside_address(namespace: &Namespace, table: &NatTable) -> bool {
    let rules = namespace.nat.as_ref().map(|nat| nat.rules.as_slice()).unwrap_or_default();
    table.outside.iter().any(|address| {
        let own = namespace.interfaces.iter().any(|i| i.addresses.iter().any(|(a, _)| a == address));
        own || rules.iter().any(|rule| rule.gives(*address))
    })
}

/// A finding about rows of the table, for each gateway with rows that `is_mine` selects; `fill` completes it.
fn each_gateway(
    view: &EvidenceView<'_>,
    cause: &str,
    is_mine: fn(&Reason<'_>) -> bool,
    fill: fn(&EvidenceView<'_>, &Namespace, &[(&NatRow, Reason<'_>)], &mut Finding),
) -> Vec<Finding> {
    let Some(table) = &view.evidence.nat else { return Vec::new() };
    let mut findings = Vec::new();
    for namespace in gateways(view) {
        let mut mine = explain(table, namespace);
        mine.retain(|(_, reason)| is_mine(reason));
        if !mine.is_empty() {
            let mut finding = of_rows(view, cause, namespace, mine.iter().map(|(row, _)| *row));
            finding.confidence = confidence(namespace, table);
            fill(view, namespace, &mine, &mut finding);
            findings.push(finding);
        }
    }
    findings
}

/// A finding to be filled: a warning if a row is an absolute requirement.
fn of_rows<'a>(
    view: &EvidenceView<'_>,
    cause: &str,
    namespace: &Namespace,
    mut rows: impl Iterator<Item = &'a NatRow>,
) -> Finding {
    let binds = rows.any(NatRow::binds);
    Finding {
        severity: if binds { Severity::Warning } else { Severity::Note },
        ..view.finding(cause, namespace, 0)
    }
}

/// High if the table was measured through this very host.
fn confidence(namespace: &Namespace, table: &NatTable) -> Confidence {
    let measured_here = table.source == NatSource::Check && has_outside_address(namespace, table);
    if measured_here { Confidence::High } else { Confidence::Medium }
}

/// `udp-mapping (RFC 4787 REQ-1, MUST)`.
fn name_of(row: &NatRow) -> String {
    format!("{} (RFC {} {}, {})", row.id, row.rfc, row.requirement, row.level)
}

/// `udp-mapping, tcp-mapping`.
fn ids<'a>(rows: impl IntoIterator<Item = &'a NatRow>) -> String {
    rows.into_iter().map(|row| row.id.as_str()).collect::<Vec<_>>().join(", ")
}

/// `1 row`, `2 rows`.
fn count(n: usize) -> String {
    if n == 1 { "1 row".to_owned() } else { format!("{n} rows") }
}

/// The rule in a line, with its place: `rule ip nat post handle 7: oifname out0 masquerade random`.
fn line_of(rule: &crate::evidence::Rule) -> String {
    let place = match rule.backend {
        crate::evidence::Backend::IptablesLegacy => format!("number {}", rule.position),
        _ => format!("handle {}", rule.handle),
    };
    format!("rule {} {} {} {place}: {}", rule.family, rule.table, rule.chain, rule.text)
}

/// Adds each row with what the table saw.
fn add_rows(finding: &mut Finding, rows: &[(&NatRow, Reason<'_>)]) {
    for (row, _) in rows {
        finding.seen(EvidenceSource::Rules, format!("{}: {}", name_of(row), row.seen));
    }
}

/// Adds the rules at fault, each once, and returns them.
fn add_rules<'a>(finding: &mut Finding, rules: impl Iterator<Item = &'a NatRule>) -> Vec<&'a NatRule> {
    let mut all: Vec<&NatRule> = Vec::new();
    for rule in rules {
        if !all.contains(&rule) {
            finding.seen(EvidenceSource::Rules, line_of(&rule.rule));
            all.push(rule);
        }
    }
    finding.object = all.iter().map(|rule| line_of(&rule.rule)).collect::<Vec<_>>().join("; ");
    all
}
