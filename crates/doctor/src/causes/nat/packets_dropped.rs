//! A rule or policy that refuses packets which a NAT must carry.

use super::reason::{Reason, told};
use super::{NOT_INJECTED, add_rows, count, each_gateway, ids};
use crate::causes::firewall::commands::remove;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::iptables::{Name, program};
use crate::command::nft::{self, nft};
use crate::command::sh;
use crate::evidence::{Backend, EvidenceSource, Namespace, NatRow, Refused};
use crate::finding::{Confidence, Finding, Fix};

pub(super) const CAUSE: Cause = Cause {
    id: "nat-packets-dropped",
    title: "a rule refuses packets that a NAT must carry",
    about: "The table says that packets do not get through the NAT: ICMP errors about its connections, pings, SYNs that \
            cross, fragments, or other protocols. The rules of this host (nftables and both kinds of iptables) were \
            evaluated for such packets, with the table's addresses, and one of them refuses them. A condition that the \
            doctor cannot evaluate may match: the finding then says \"may refuse\", with low confidence. Often a rule drops ICMP before one accepts `ct state related`. \
            Traceroute then shows no hops, and path MTU discovery fails.",
    must: &[
        "a row about such packets fails",
        "the rules refuse such a packet when they are evaluated for it",
    ],
    should: &["every condition of the rule is known"],
    must_not: &["the rules let such packets pass"],
    lookalikes: &[
        (
            "nft-rule-drop",
            "there packets were dropped in the window; here rules are evaluated for the table's packets",
        ),
        ("nat-fragments-dropped", "there the memory for fragments is too small"),
        ("nat-elsewhere", "there the rules let them pass"),
    ],
    yields_to: &[],
    remedy: "Accept `ct state established,related` before the rule, or delete the rule.",
    sources: &["RFC 5508, REQ-3 to REQ-5, REQ-10", "RFC 4787, REQ-14", "RFC 5382, REQ-2"],
    not_injected: Some(NOT_INJECTED),
    ..Cause::of(Group::Nat, |view| {
        each_gateway(view, CAUSE.id, |reason| matches!(reason, Reason::Refused(_)), fill)
    })
};

fn fill(_: &EvidenceView<'_>, _: &Namespace, rows: &[(&NatRow, Reason<'_>)], finding: &mut Finding) {
    let mut all: Vec<&Refused> = Vec::new();
    for (_, reason) in rows {
        let Reason::Refused(refused) = reason else { continue };
        if all.iter().all(|known| told(known) != told(refused)) {
            all.push(refused);
        }
    }
    finding.object = all.iter().map(|refused| told(refused)).collect::<Vec<_>>().join("; ");
    for refused in &all {
        let perhaps = if refused.sure { "refuses" } else { "may refuse" };
        let text = format!("{} {perhaps} {} in {}", told(refused), refused.packet, refused.hook);
        finding.seen(EvidenceSource::Rules, text);
    }
    add_rows(finding, rows);
    if all.iter().any(|refused| !refused.sure) {
        finding.confidence = Confidence::Low;
    }
    finding.summary = format!(
        "{} of the table fail because this host's rules refuse the packets: {}.",
        count(rows.len()),
        ids(rows.iter().map(|(row, _)| *row))
    );
    for refused in all {
        finding.fixes.extend(accept(refused));
        finding.fixes.extend(refused.rule.as_ref().map(remove));
    }
}

/// Lets packets of known connections pass, before the rule; of no use for new ones.
fn accept(refused: &Refused) -> Option<Fix> {
    let known = [
        "error-in",
        "time-exceeded-in",
        "too-big-in",
        "error-out",
        "too-big-made",
        "query-in",
        "reset-in",
        "crossing-syn",
    ];
    if !known.contains(&refused.packet.as_str()) {
        return None;
    }
    let [family, table, chain] = &refused.chain;
    let title = "let packets of known connections pass first";
    let risk = "such packets pass every later rule of this chain unchecked";
    if refused.backend == Backend::Nft {
        let at = nft::chain(family, table, chain);
        let add = match &refused.rule {
            Some(rule) => {
                nft!("-e -a insert rule {} handle {} ct state established,related accept", at, rule.handle)
            }
            None => nft!("-e -a add rule {} ct state established,related accept", at),
        };
        let undo = nft!("delete rule {} handle HANDLE_SHOWN_BY_THE_COMMAND_ABOVE", at);
        return Some(Fix::new(title, risk, [add], [undo]));
    }
    let program = program(refused.backend, family);
    let (table, chain) = (Name(table), Name(chain));
    let position = refused.rule.as_ref().map_or(1, |rule| rule.position.max(1));
    Some(Fix::new(
        title,
        risk,
        [sh!(
            "{} -t {} -I {} {} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            program,
            table,
            chain,
            position
        )],
        [sh!("{} -t {} -D {} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT", program, table, chain)],
    ))
}
