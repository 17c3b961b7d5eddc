//! The old tables of iptables as evidence.

use weir_sys::iptables::{Chain as OldChain, Family, Rule as OldRule, Table, Target};

use super::listing::RULES;
use super::text::conntrack_states;
use crate::evidence::{Backend, Chain, Delta, Rule, Ruleset, Verdict};

/// Adds what the old tables hold.
pub(super) fn add(tables: &[Table], ruleset: &mut Ruleset) {
    for table in tables {
        let family = match table.family {
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
        };
        for chain in &table.chains {
            add_chain(family, table, chain, ruleset);
        }
    }
}

fn add_chain(family: &str, table: &Table, chain: &OldChain, ruleset: &mut Ruleset) {
    ruleset.chains.push(Chain {
        backend: Backend::IptablesLegacy,
        family: family.into(),
        table: table.name.clone(),
        name: chain.name.clone(),
        hook: chain.policy.is_some().then(|| chain.name.to_lowercase()),
        priority: None,
        policy: chain.policy.as_ref().map(|(target, _)| verdict(target)),
        policy_packets: chain.policy.as_ref().map(|(_, packets)| Delta::at(*packets)),
    });
    ruleset.total += chain.rules.len() as u64;
    let hooks = hooks(table, &chain.name);
    for (at, rule) in chain.rules.iter().enumerate() {
        let found = evidence(family, &table.name, &chain.name, at as u64 + 1, rule);
        let matters = matches!(found.verdict, Verdict::Drop | Verdict::Reject | Verdict::Queue)
            || found.limit
            || found.random
            || found.logs
            || found.set.is_some();
        if matters && ruleset.rules.len() < RULES {
            ruleset.rules.push(Rule { hooks: hooks.clone(), ..found });
        }
    }
}

/// Built-in chains from which that one can be reached.
fn hooks(table: &Table, chain: &str) -> Vec<String> {
    let mut reached = vec![chain];
    let mut at = 0;
    while let Some(to) = reached.get(at).copied() {
        at += 1;
        for from in &table.chains {
            let jumps =
                |r: &OldRule| matches!(&r.target, Target::Jump(name) | Target::Goto(name) if name == to);
            if from.rules.iter().any(jumps) && !reached.contains(&from.name.as_str()) {
                reached.push(&from.name);
            }
        }
    }
    let base = table.chains.iter().filter(|c| c.policy.is_some());
    base.filter(|c| reached.contains(&c.name.as_str())).map(|c| c.name.to_lowercase()).collect()
}

fn verdict(target: &Target) -> Verdict {
    match target {
        Target::Drop => Verdict::Drop,
        Target::Accept => Verdict::Accept,
        Target::Named(name) if name == "REJECT" => Verdict::Reject,
        Target::Named(name) if name == "NFQUEUE" => Verdict::Queue,
        _ => Verdict::Other,
    }
}

fn evidence(family: &str, table: &str, chain: &str, number: u64, rule: &OldRule) -> Rule {
    let has = |names: &[&str]| rule.matches.iter().any(|(name, _)| names.contains(&name.as_str()));
    let limit = has(&["limit", "hashlimit", "connlimit", "quota"]);
    let states = rule.matches.iter().find_map(|(name, info)| conntrack_states(name, info));
    Rule {
        backend: Backend::IptablesLegacy,
        family: family.into(),
        table: table.into(),
        chain: chain.into(),
        handle: number,
        position: number,
        hooks: Vec::new(),
        text: text(chain, rule),
        comment: rule.matches.iter().find(|(name, _)| name == "comment").map(|(_, info)| until_zero(info)),
        verdict: verdict(&rule.target),
        packets: Some(Delta::at(rule.packets)),
        invalid: states == Some(1),
        limit,
        set: has(&["set"]).then(|| "ipset".to_owned()),
        random: has(&["statistic"]),
        logs: matches!(&rule.target, Target::Named(name) if name == "LOG") && !limit,
        decided: (0, 0),
    }
}

fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The rule near to what `iptables -S` prints: ports, states and names, of other matches the name alone.
fn text(chain: &str, rule: &OldRule) -> String {
    let mut words = vec![format!("-A {chain}")];
    if !rule.asks.is_empty() {
        words.push(rule.asks.clone());
    }
    for (name, info) in rule.matches.iter().filter(|(name, _)| name != "comment") {
        words.push(format!("-m {name}"));
        match name.as_str() {
            "tcp" => words.extend(ports(info, info.get(11).copied())),
            "udp" => words.extend(ports(info, info.get(8).copied())),
            _ => {}
        }
    }
    words.push(match &rule.target {
        Target::Accept => "-j ACCEPT".to_owned(),
        Target::Drop => "-j DROP".to_owned(),
        Target::Return => "-j RETURN".to_owned(),
        Target::Continue => return words.join(" "),
        Target::Jump(name) | Target::Named(name) => format!("-j {name}"),
        Target::Goto(name) => format!("-g {name}"),
    });
    words.join(" ")
}

/// `struct xt_tcp` and `struct xt_udp` begin with the ranges of source and destination ports; the flags that negate them are
/// 1 and 2.
fn ports(info: &[u8], negated: Option<u8>) -> Vec<String> {
    let number = |at: usize| Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?));
    let range = |option: &str, at: usize, not: u8| {
        let (first, last) = (number(at)?, number(at + 2)?);
        let value = match (first, last) {
            (0, u16::MAX) => return None,
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}:{last}"),
        };
        let not = if negated.unwrap_or(0) & not != 0 { "! " } else { "" };
        Some(format!("{not}{option} {value}"))
    };
    [range("--sport", 0, 1), range("--dport", 4, 2)].into_iter().flatten().collect()
}
