//! Commands that show, take away or go around a rule, as they would be typed.

use std::net::IpAddr;

use super::charge::Charge;
use crate::causes::shell::word;
use crate::evidence::{Backend, Rule, Tuple, Verdict};
use crate::finding::Fix;

/// The program that speaks for a backend and family.
fn iptables(backend: Backend, family: &str) -> &'static str {
    match (backend, family) {
        (Backend::IptablesLegacy, "ip6") => "ip6tables-legacy",
        (Backend::IptablesLegacy, _) => "iptables-legacy",
        (_, "ip6") => "ip6tables",
        _ => "iptables",
    }
}

/// The command that shows the chain with what it counts.
pub(super) fn show(charge: &Charge<'_>) -> String {
    let (table, chain) = (word(charge.table()), word(charge.chain_name()));
    match charge.backend() {
        Some(Backend::Nft) | None => format!("nft -a list chain {} {table} {chain}", charge.family()),
        Some(backend) => {
            let program = iptables(backend, charge.family());
            format!("{program} -t {table} -L {chain} -n -v --line-numbers")
        }
    }
}

/// Fixes for a rule or policy that throws away what it should not: look, let the packets pass, take the rule away.
pub(super) fn fixes(charge: &Charge<'_>, example: Option<Tuple>) -> Vec<Fix> {
    let look = Fix {
        title: "look at it first; if this is meant, nothing is wrong".into(),
        commands: vec![show(charge)],
        risk: "none, it only shows".into(),
        ..Fix::default()
    };
    let mut fixes = vec![look];
    fixes.extend(example.and_then(|tuple| accept(charge, tuple)));
    match charge.rule {
        Some(rule) => fixes.push(remove(rule)),
        None => fixes.push(open_policy(charge)),
    }
    fixes
}

/// Lets packets like that one pass, by a rule before the one at fault.
pub(super) fn accept(charge: &Charge<'_>, tuple: Tuple) -> Option<Fix> {
    let (table, chain) = (word(charge.table()), word(charge.chain_name()));
    let family = charge.family();
    let title = "let packets like these pass".to_owned();
    let risk = "packets that match it pass every later rule of this hook's chain unchecked".to_owned();
    if charge.backend() == Some(Backend::Nft) {
        let matches = nft_matches(family, tuple)?;
        let place = match charge.rule {
            Some(rule) => format!(
                "nft -e -a insert rule {family} {table} {chain} handle {} {matches} accept",
                rule.handle
            ),
            None => format!("nft -e -a add rule {family} {table} {chain} {matches} accept"),
        };
        let undo =
            format!("nft delete rule {family} {table} {chain} handle HANDLE_SHOWN_BY_THE_COMMAND_ABOVE");
        return Some(Fix { title, commands: vec![place], risk, undo: vec![undo], tune: Vec::new() });
    }
    let program = iptables(charge.backend()?, family);
    let docker = docker_user(charge);
    let chain = if docker { "DOCKER-USER".to_owned() } else { chain };
    let at = match charge.rule {
        Some(rule) if !docker => format!("{chain} {}", rule.position.max(1)),
        Some(_) => format!("{chain} 1"),
        None if docker => format!("{chain} 1"),
        None => chain.clone(),
    };
    let how = if charge.rule.is_some() || docker { "-I" } else { "-A" };
    let matches = iptables_matches(tuple);
    Some(Fix {
        title: if docker { format!("{title}, in the chain that Docker leaves to its user") } else { title },
        commands: vec![format!("{program} -t {table} {how} {at} {matches} -j ACCEPT")],
        risk,
        undo: vec![format!("{program} -t {table} -D {chain} {matches} -j ACCEPT")],
        tune: Vec::new(),
    })
}

/// True if Docker's own chain for its user is there and sees these packets.
fn docker_user(charge: &Charge<'_>) -> bool {
    let chains = charge.namespace.rules.as_ref().map(|r| r.chains.as_slice()).unwrap_or_default();
    charge.hooks.contains(&"forward")
        && charge.table() == "filter"
        && chains.iter().any(|c| c.name == "DOCKER-USER" && c.family == charge.family())
}

fn protocol(number: u8) -> Option<&'static str> {
    Some(match number {
        6 => "tcp",
        17 => "udp",
        132 => "sctp",
        33 => "dccp",
        136 => "udplite",
        _ => return None,
    })
}

/// What nft would match; `None` in families that see no IP addresses.
fn nft_matches(family: &str, tuple: Tuple) -> Option<String> {
    if family == "arp" {
        return None;
    }
    let ip = if tuple.source.is_ipv4() { "ip" } else { "ip6" };
    let upper = match protocol(tuple.protocol) {
        Some(name) if tuple.destination_port != 0 => format!("{name} dport {}", tuple.destination_port),
        _ => format!("meta l4proto {}", tuple.protocol),
    };
    Some(format!("{ip} saddr {} {ip} daddr {} {upper}", tuple.source, tuple.destination))
}

fn iptables_matches(tuple: Tuple) -> String {
    let host = |address: IpAddr| format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
    let upper = match protocol(tuple.protocol) {
        Some(name) if tuple.destination_port != 0 => format!("-p {name} --dport {}", tuple.destination_port),
        _ => format!("-p {}", tuple.protocol),
    };
    format!("-s {} -d {} {upper}", host(tuple.source), host(tuple.destination))
}

/// Takes the rule away.
pub(super) fn remove(rule: &Rule) -> Fix {
    let (family, table, chain) = (&rule.family, word(&rule.table), word(&rule.chain));
    let title = "or take the rule away".to_owned();
    let risk =
        "whatever else it keeps out comes through; what manages the firewall may put it back".to_owned();
    if rule.backend == Backend::Nft {
        // The ruleset is kept first: a rule's place, counters and sets are not in its text.
        let saved = "/root/nft-before-weir.conf";
        return Fix {
            title,
            commands: vec![
                format!("nft list ruleset > {saved}"),
                format!("nft delete rule {family} {table} {chain} handle {}", rule.handle),
            ],
            risk,
            undo: vec![format!("nft flush ruleset; nft -f {saved}")],
            tune: Vec::new(),
        };
    }
    let program = iptables(rule.backend, family);
    let saved = format!("/root/{program}-before-weir.rules");
    Fix {
        title,
        commands: vec![
            format!("{program}-save > {saved}"),
            format!("{program} -t {table} -D {chain} {}", rule.position.max(1)),
        ],
        risk,
        undo: vec![format!("{program}-restore < {saved}")],
        tune: Vec::new(),
    }
}

/// Makes the policy accept.
fn open_policy(charge: &Charge<'_>) -> Fix {
    let (family, table, chain) = (charge.family(), word(charge.table()), word(charge.chain_name()));
    let title = "or let everything pass that no rule throws away".to_owned();
    let risk = "everything that the policy kept out comes through".to_owned();
    let (commands, undo) = match charge.backend() {
        Some(Backend::Nft) | None => {
            let set =
                |policy: &str| format!("nft 'add chain {family} {table} {chain} {{ policy {policy}; }}'");
            (set("accept"), set("drop"))
        }
        Some(backend) => {
            let program = iptables(backend, family);
            let set = |policy: &str| format!("{program} -t {table} -P {chain} {policy}");
            (set("ACCEPT"), set("DROP"))
        }
    };
    Fix { title, commands: vec![commands], risk, undo: vec![undo], tune: Vec::new() }
}

/// What a rule is called in a sentence.
pub(super) fn does(rule: &Rule) -> &'static str {
    match rule.verdict {
        Verdict::Reject => "refuses",
        _ => "throws away",
    }
}
