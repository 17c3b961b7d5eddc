//! A flow whose mapping has ended: silence, a reset, or a new mapping.

use weir_text::order;

use super::judge::{does, made, not_sure, not_testable, translates};
use super::verdicts::Judged;
use super::{Group, Level, Row};
use crate::Observations;
use crate::observed::{Afterwards, Answered, Idle, Met};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "udp-after-idle",
        group: Group::Timers,
        rfc: 4787,
        section: "4.3",
        requirement: "",
        level: Level::Described,
        asks: "the fate of datagrams of a flow whose mapping has ended",
        sent: "a datagram from outside to the ended mapping, and one from the host of another one",
        breaks: "",
        judge: |o| after(o, |idle| &idle.udp_afterwards).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-after-idle",
        group: Group::Timers,
        rfc: 5382,
        section: "5",
        requirement: "",
        level: Level::Described,
        asks: "the fate of segments of an established connection whose mapping has ended",
        sent: "a segment with data from outside to the ended mapping, and one from the host of another one",
        breaks: "",
        judge: |o| after(o, |idle| &idle.tcp_afterwards).unwrap_or_else(|e| e),
    },
];

fn after(o: &Observations, of: fn(&Idle) -> &Option<Afterwards>) -> Judged {
    translates(o)?;
    let Some(seen) = of(made(&o.idle)?) else {
        return Ok(not_testable("no mapping was left alone until its end"));
    };
    let all = seen.from_outside.iter().chain(&seen.from_inside);
    if all.clone().any(|met| met.after.is_none() && met.answered.is_none() && !met.sure) {
        return Ok(not_sure("neither the packets nor control packets arrived"));
    }
    let silent = if seen.answers_are_seen { "silence" } else { "nothing arrives" };
    let outside = |met: &Met| match (met.after, met.answered) {
        (Some(_), _) => "it reaches the host".to_owned(),
        (None, answered) => answer(answered, silent),
    };
    let inside = |met: &Met| match (met.after, met.answered) {
        (Some(after), _) if after == met.before => "a new mapping with the same port".to_owned(),
        (Some(_), _) => "a new mapping with another port".to_owned(),
        (None, answered) => answer(answered, silent),
    };
    let sides =
        [("outside", counted(&seen.from_outside, outside)), ("inside", counted(&seen.from_inside, inside))];
    let told = sides.into_iter().filter(|(_, words)| !words.is_empty());
    let told: Vec<String> = told.map(|(side, words)| format!("from {side}: {words}")).collect();
    Ok(does(told.join("; ")))
}

fn answer(answered: Option<Answered>, silent: &str) -> String {
    match answered {
        Some(Answered::Reset) => "a reset".to_owned(),
        Some(Answered::Icmp { kind, code }) => format!("ICMP {kind}/{code}"),
        None => silent.to_owned(),
    }
}

/// `silence`, or `a reset (1 of 2), silence (1 of 2)`.
fn counted(all: &[Met], words: impl Fn(&Met) -> String) -> String {
    let mut found: Vec<String> = all.iter().map(words).collect();
    order::by_key(&mut found, Clone::clone);
    let groups: Vec<&[String]> = found.chunk_by(|a, b| a == b).collect();
    let one = |group: &&[String]| match groups.len() {
        1 => group[0].clone(),
        _ => format!("{} ({} of {})", group[0], group.len(), all.len()),
    };
    groups.iter().map(one).collect::<Vec<_>>().join(", ")
}
