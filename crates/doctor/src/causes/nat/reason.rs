//! Sorts each failing row to the one thing on this host that fails it.

use super::rows::{
    ADDRESSES, FRAGMENTS, LIMITS, Limit, PACKETS, PORTS, TIMERS, Timer, UNSOLICITED, fragment_settings,
};
use crate::evidence::{Namespace, NatHost, NatRow, NatRule, NatTable, Refused, RuleVerdict, TimeoutRule};

/// The cause of a failing row.
pub(super) enum Reason<'a> {
    /// A setting that ended the mapping: its name, and its value in s.
    Timer(&'static Timer, &'static str, u64),
    /// A rule that gives connections a shorter time; in s, where it is known.
    TimeoutRule(&'a TimeoutRule, Option<u64>),
    /// A rule that draws ports, or has a range of its own.
    Ports(&'a NatRule),
    /// A rule that gives one host several addresses.
    Addresses(&'a NatRule),
    /// A rule or policy that refuses the packet.
    Refused(&'a Refused),
    /// The host answers the SYN itself: by a rule, or its kernel does.
    Answers(Option<&'a Refused>),
    /// Too little memory, or time, for fragments.
    Fragments,
    /// The kernel's NAT does so under every setting.
    Kernel(&'static Limit),
    /// Nothing on this host, with the evidence.
    Elsewhere(String),
}

/// Precision of an idle time: late timers and the steps of the search.
const SLACK_S: f64 = 1.0;
const SLACK_RATIO: f64 = 0.02;

/// The kernel's own value is 4 MiB. A datagram of 64 KiB in fragments of 1,500 bytes takes about 100 KiB of buffers.
const LITTLE_MEMORY: u64 = 128 << 10;
/// The kernel's own value is 30 s (RFC 1122 section 3.3.2: 60 to 120 s). Below one round trip of a slow path it loses fragments.
const LITTLE_TIME_S: u64 = 1;

/// Each failing row, with its reason. The namespace translates sources.
pub(super) fn explain<'a>(table: &'a NatTable, namespace: &'a Namespace) -> Vec<(&'a NatRow, Reason<'a>)> {
    let Some(host) = &namespace.nat else { return Vec::new() };
    let all = table.failing.iter().map(|row| (row, of(table, namespace, host, row)));
    // A packet that vanished is explained by a rule or a setting, or by the rules that let it pass here.
    let known = |(row, reason): &(&NatRow, Reason<'_>)| match reason {
        Reason::Refused(_) | Reason::Fragments => true,
        Reason::Elsewhere(_) => !row.vanished || is_asked(host, &row.id),
        _ => !row.vanished,
    };
    all.filter(known).collect()
}

/// True if the rules were evaluated for every packet of the row.
fn is_asked(host: &NatHost, id: &str) -> bool {
    let kinds = PACKETS.iter().find(|(row, _)| *row == id).map(|(_, kinds)| *kinds).unwrap_or_default();
    !kinds.is_empty() && kinds.iter().all(|kind| host.asked.iter().any(|a| a == kind))
}

fn of<'a>(table: &NatTable, namespace: &Namespace, host: &'a NatHost, row: &NatRow) -> Reason<'a> {
    let id = row.id.as_str();
    if let Some(timer) = TIMERS.iter().find(|timer| timer.row == id) {
        return timed(table, namespace, host, timer);
    }
    // Without translation the inside host itself gets the SYN.
    if id == UNSOLICITED && !table.is_untranslated() {
        return answered(host);
    }
    if let Some(refused) = refused(host, id) {
        return Reason::Refused(refused);
    }
    // Address by address: a port that changes along with it is no fault of its own.
    if ADDRESSES.contains(&id) && (table.changes_address || id.ends_with("pooling")) {
        return match host.rules.iter().find(|rule| rule.changes_address() && rule.is_about(id)) {
            Some(rule) => Reason::Addresses(rule),
            None => Reason::Elsewhere(format!(
                "{}, though each rule here for such packets gives a host one outside address",
                row.seen
            )),
        };
    }
    let drawn = |rule: &&NatRule| {
        rule.is_about(id) && (rule.random || rule.ports.is_some() && id != "udp-first-packets")
    };
    if PORTS.contains(&id)
        && !row.partly
        && let Some(rule) = host.rules.iter().find(drawn)
    {
        return Reason::Ports(rule);
    }
    if FRAGMENTS.contains(&id) && has_little_room(namespace, table.is_of_ipv6()) {
        return Reason::Fragments;
    }
    let by_kernel = LIMITS.iter().find(|limit| limit.rows.contains(&id));
    match by_kernel.filter(|_| row.partly || !DRAWN_ONLY.contains(&id)) {
        Some(limit) => Reason::Kernel(limit),
        None => Reason::Elsewhere(nothing_here(host, id, row)),
    }
}

/// Rows that the kernel's NAT fails in full only where a rule draws ports or changes addresses.
const DRAWN_ONLY: [&str; 3] = ["udp-mapping", "tcp-mapping", "udp-first-packets"];

/// The evidence that nothing here fails the row.
fn nothing_here(host: &NatHost, id: &str, row: &NatRow) -> String {
    if is_asked(host, id) {
        let kinds = PACKETS.iter().filter(|(row, _)| *row == id).flat_map(|(_, kinds)| *kinds);
        let kinds: Vec<&str> = kinds.copied().collect();
        format!("{}, though the rules here let such packets pass ({})", row.seen, kinds.join(", "))
    } else if PORTS.contains(&id) {
        format!("{}, though no rule here draws the ports of such packets", row.seen)
    } else {
        format!("{}, and no rule or setting here does this", row.seen)
    }
}

fn refused<'a>(host: &'a NatHost, id: &str) -> Option<&'a Refused> {
    let (_, kinds) = PACKETS.iter().find(|(row, _)| *row == id)?;
    let found =
        |sure: bool| host.refused.iter().find(|r| r.sure == sure && kinds.contains(&r.packet.as_str()));
    found(true).or_else(|| found(false))
}

/// The SYN gets to this host's own TCP, unless a rule drops it in silence.
fn answered(host: &NatHost) -> Reason<'_> {
    let by = host.refused.iter().find(|r| r.packet == UNSOLICITED.trim_start_matches("tcp-"));
    let rejects = |r: &&Refused| r.rule.as_ref().is_some_and(|rule| rule.verdict == RuleVerdict::Reject);
    let answer = host.refused.iter().find(|r| r.packet == "unsolicited-syn" && rejects(r));
    match by.filter(|r| r.sure && !rejects(r)) {
        Some(silent) => {
            Reason::Elsewhere(format!("answered, though {} drops such SYNs in silence", told(silent)))
        }
        None => Reason::Answers(answer),
    }
}

/// `the policy of chain inet filter input`, or the rule.
pub(super) fn told(refused: &Refused) -> String {
    match &refused.rule {
        Some(rule) => super::line_of(rule),
        None => format!("the policy of chain {}", refused.chain.join(" ")),
    }
}

fn has_little_room(namespace: &Namespace, ipv6: bool) -> bool {
    let [(memory, _), (time, _)] = fragment_settings(ipv6);
    let below = |name: &str, bound: u64| namespace.setting(name).is_some_and(|value| value < bound);
    below(memory, LITTLE_MEMORY) || below(time, LITTLE_TIME_S)
}

/// True if a mapping that lives so long, s, ends between the two times.
fn fits(seconds: u64, (alive, dead): (f64, f64)) -> bool {
    let slack = SLACK_S.max(SLACK_RATIO * seconds as f64);
    alive - slack <= seconds as f64 && seconds as f64 <= dead + slack
}

fn timed<'a>(
    table: &NatTable,
    namespace: &Namespace,
    host: &'a NatHost,
    timer: &'static Timer,
) -> Reason<'a> {
    let ended = table.ended.get(timer.experiment).copied();
    let protocol = timer.protocol(table.is_of_ipv6());
    let names: Vec<&'static str> = timer.names(table.is_of_ipv6()).collect();
    let last = |name: &str| name.split_once("nf_conntrack_").map_or(name, |(_, end)| end).to_owned();
    let own_times = |rule: &TimeoutRule| -> Vec<u64> {
        names.iter().filter_map(|name| rule.seconds.get(&last(name)).copied()).collect()
    };
    let rules = || host.timeouts.iter().filter(|rule| [0, protocol].contains(&rule.protocol));
    for rule in rules() {
        if let Some(seconds) =
            own_times(rule).into_iter().find(|s| ended.is_some_and(|ended| fits(*s, ended)))
        {
            return Reason::TimeoutRule(rule, Some(seconds));
        }
    }
    let values: Vec<(&'static str, u64)> =
        names.iter().filter_map(|name| Some((*name, namespace.setting(name)?))).collect();
    let short =
        |(_, s): &&(&'static str, u64)| *s < timer.least_s && ended.is_none_or(|ended| fits(*s, ended));
    if let Some((name, seconds)) = values.iter().find(short) {
        return Reason::Timer(timer, name, *seconds);
    }
    if let Some(rule) = rules().find(|rule| own_times(rule).is_empty()) {
        return Reason::TimeoutRule(rule, None);
    }
    let here: Vec<String> = values.iter().map(|(name, s)| format!("{name} = {s} s")).collect();
    let here =
        if here.is_empty() { "its settings here are not in sight".to_owned() } else { here.join(", ") };
    Reason::Elsewhere(match ended {
        Some((alive, dead)) => format!("ends between {alive:.1} and {dead:.1} s, and here {here}"),
        None => format!("ends too soon, and here {here}"),
    })
}
