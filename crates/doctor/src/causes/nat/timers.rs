//! Idle times of connection tracking that are shorter than the RFCs ask for.

use super::reason::Reason;
use super::{NOT_INJECTED, count, each_gateway, ids, line_of};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::Unwritable;
use crate::command::nft::{self, nft};
use crate::evidence::{Backend, EvidenceSource, Namespace, NatRow, TimeoutRule};
use crate::finding::{Confidence, Finding, Fix, Setting};

pub(super) const CAUSE: Cause = Cause {
    id: "nat-timers-short",
    title: "the NAT forgets mappings sooner than the RFCs ask for",
    about: "A table of `weir nat` says that idle mappings end too soon, and the time agrees with a setting of connection \
            tracking on this host, or with a rule that gives connections times of their own (`ct timeout`, `-j CT \
            --timeout` with a policy of `nfct`). Linux shows four bytes of a policy's name in its rule: times in which \
            several such policies differ count as unknown, which lowers confidence. The kernel's own values are shorter than the RFCs': UDP without an answer 30 s, ICMP 30 s, \
            connections of TCP that are being opened 120 s, after one FIN 60 s, after a reset 10 s.",
    must: &[
        "a row about an idle time fails",
        "the value of the setting, or of the rule, lies within the measured time",
    ],
    should: &["the outside address of the table is one of this host"],
    must_not: &["the setting is as long as the RFC asks for: another NAT or firewall forgets sooner"],
    lookalikes: &[
        ("nat-elsewhere", "there the settings of this host are longer than the measured time"),
        ("udp-timeout-short", "there late packets are lost in the window; here a table was measured"),
    ],
    yields_to: &[],
    remedy: "Raise the setting: `weir tune apply --profile rfc` does so on trial. Times of a rule are changed where the rule \
             is written.",
    sources: &["RFC 4787, REQ-5", "RFC 5382, REQ-5", "RFC 5508, REQ-2", "RFC 7857, section 2.2"],
    not_injected: Some(NOT_INJECTED),
    ..Cause::of(Group::Nat, |view| {
        each_gateway(
            view,
            CAUSE.id,
            |reason| matches!(reason, Reason::Timer(..) | Reason::TimeoutRule(..)),
            fill,
        )
    })
};

fn fill(_: &EvidenceView<'_>, _: &Namespace, rows: &[(&NatRow, Reason<'_>)], finding: &mut Finding) {
    finding.summary = format!(
        "{} of the table's timers fail by this host's connection tracking: {}.",
        rows.len(),
        ids(rows.iter().map(|(row, _)| *row))
    );
    let mut settings: Vec<Setting> = Vec::new();
    let mut ruled: Vec<&TimeoutRule> = Vec::new();
    for (row, reason) in rows {
        match reason {
            Reason::Timer(timer, name, seconds) => {
                finding.seen(
                    EvidenceSource::Settings,
                    format!("{name} = {seconds} s; {}: {}", row.id, row.seen),
                );
                let least = timer.least_s;
                let why = format!("{} asks for {least} s", row.id);
                match settings.iter_mut().find(|s| s.name == *name) {
                    Some(known) => known.why = format!("{}; {why}", known.why),
                    None => settings.push(Setting::new(*name, seconds, least, why)),
                }
            }
            Reason::TimeoutRule(rule, seconds) => {
                let time = seconds.map_or("of unknown time".to_owned(), |s| format!("of {s} s"));
                let what = if rule.rule.backend == Backend::Nft { "object" } else { "policy" };
                let text = format!(
                    "{} ({what} {} {time}); {}: {}",
                    line_of(&rule.rule),
                    rule.object,
                    row.id,
                    row.seen
                );
                finding.seen(EvidenceSource::Rules, text);
                if seconds.is_none() {
                    finding.confidence = Confidence::Low;
                }
                if !ruled.contains(rule) {
                    ruled.push(rule);
                }
            }
            _ => {}
        }
    }
    if !settings.is_empty() {
        let title = format!("raise the idle times of {}", count(settings.len()).replace("row", "setting"));
        let risk = "entries live longer after their last packet: the table needs more room";
        finding.fixes.push(Fix::set(title, risk, settings));
    }
    finding.fixes.extend(ruled.into_iter().map(by_rule));
}

/// The kernel changes no times of an object that rules refer to: its owner writes it anew.
fn by_rule(rule: &TimeoutRule) -> Fix {
    let owner = &rule.rule;
    let title = "change the times of the rule where it is written";
    match owner.backend {
        Backend::Nft => {
            let chain = nft::chain(&owner.family, &owner.table, &owner.chain);
            Fix::look(title, [nft!("-a list chain {}", chain)])
        }
        _ => {
            let look = "`nfct list timeout` shows its times";
            Fix::look(
                title,
                [Err(Unwritable::new("the rule", &owner.text, "belongs to another program", look))],
            )
        }
    }
}
