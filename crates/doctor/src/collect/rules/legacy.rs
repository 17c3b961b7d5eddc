//! The old tables of iptables as evidence.

use weir_netlink::iptables::{Chain as OldChain, Family, Rule as OldRule, Table, Target, text};
use weir_netlink::nftables::text::conntrack_states;

use super::listing::RULES;
use crate::evidence::{Backend, Chain, Delta, Rule, RuleVerdict, Ruleset};

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
        let matters = matches!(found.verdict, RuleVerdict::Drop | RuleVerdict::Reject | RuleVerdict::Queue)
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

fn verdict(target: &Target) -> RuleVerdict {
    match target {
        Target::Drop => RuleVerdict::Drop,
        Target::Accept => RuleVerdict::Accept,
        Target::Named(name) if name == "REJECT" => RuleVerdict::Reject,
        Target::Named(name) if name == "NFQUEUE" => RuleVerdict::Queue,
        _ => RuleVerdict::Other,
    }
}

pub(super) fn evidence(family: &str, table: &str, chain: &str, number: u64, rule: &OldRule) -> Rule {
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
