//! A rule that draws outside ports, or takes them out of a range of its own.

use super::reason::Reason;
use super::{NOT_INJECTED, add_rows, add_rules, count, each_gateway, ids};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::iptables::program;
use crate::command::{Unwritable, nft};
use crate::evidence::{Backend, Namespace, NatRow, NatRule};
use crate::finding::{Finding, Fix};

pub(super) const CAUSE: Cause = Cause {
    id: "nat-ports-drawn",
    title: "the rule for source NAT draws ports",
    about: "A rule for source NAT with `random` or `fully-random` draws a port for each connection, and one with a port \
            range (`to :1024-2048`) does so for every inside port outside of the range. Each destination then sees another \
            port of the same inside port: mapping is address- and port-dependent (\"symmetric\"), so that hole punching \
            fails. Parity and range of ports are lost, too.",
    must: &[
        "a row about ports fails",
        "a rule that translates such connections has random, fully-random or a range of ports",
    ],
    should: &["the outside address of the table is one of this host"],
    must_not: &[
        "rows are met in part only: two hosts with one port, which every NAT of the kernel treats so",
    ],
    lookalikes: &[
        ("nat-address-pool", "there the outside address changes from destination to destination"),
        ("nat-kernel-limit", "there ports are kept unless two hosts use the same one"),
        ("nat-elsewhere", "there no rule of this host draws ports"),
    ],
    yields_to: &[],
    remedy: "Write the rule without random, fully-random and range. Price: connections of several hosts from one source port \
             may clash (tcp-first-syns), and ports are easier to guess.",
    sources: &[
        "RFC 4787, REQ-1, REQ-3a, REQ-4",
        "RFC 5382, REQ-1",
        "net/netfilter/nf_nat_core.c: get_unique_tuple",
    ],
    not_injected: Some(NOT_INJECTED),
    ..Cause::of(Group::Nat, |view| {
        each_gateway(view, CAUSE.id, |reason| matches!(reason, Reason::Ports(_)), fill)
    })
};

fn fill(_: &EvidenceView<'_>, _: &Namespace, rows: &[(&NatRow, Reason<'_>)], finding: &mut Finding) {
    let rules = rows.iter().filter_map(|(_, reason)| match reason {
        Reason::Ports(rule) => Some(*rule),
        _ => None,
    });
    let rules = add_rules(finding, rules);
    add_rows(finding, rows);
    finding.summary = format!(
        "{} of the table fail because the rule for source NAT draws ports: {}.",
        count(rows.len()),
        ids(rows.iter().map(|(row, _)| *row))
    );
    finding.fixes.extend(rules.into_iter().map(without));
}

fn without(rule: &NatRule) -> Fix {
    let risk = "hosts that use one source port at once may lose a SYN (tcp-first-syns), and ports are easier to guess";
    edited(
        rule,
        "write the rule without random, fully-random and port range",
        risk,
        "THE_RULE_WITHOUT_RANDOM_AND_PORTS",
    )
}

/// A rule that its owner writes anew: as a command of nft, or by hand.
pub(super) fn edited(rule: &NatRule, title: &str, risk: &str, how: &'static str) -> Fix {
    if rule.rule.backend == Backend::Nft {
        let (commands, undo) = nft::edit(&rule.rule, how);
        return Fix::new(title, risk, commands, undo);
    }
    let program = program(rule.rule.backend, &rule.rule.family);
    let look = format!("change it in the program that made it; `{program} -t nat -S` shows it");
    Fix::new(
        title,
        risk,
        [Err(Unwritable::new("the rule", &rule.rule.text, "belongs to another program", &look))],
        [],
    )
}
