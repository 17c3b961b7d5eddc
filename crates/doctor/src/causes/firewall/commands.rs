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

/// A name as nft reads it. It takes plain words only, and reads anything else as a command of its own: for such a name, which
/// only a program can have given, there is none.
pub(super) fn nft_name(name: &str) -> &str {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_./-".contains(&b);
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if begins && name.bytes().all(plain) { name } else { "NAME_THAT_NFT_CANNOT_READ" }
}

/// A rule's text as nft would read it again; `None` if that is not sure.
pub(super) fn nft_text(text: &str) -> Option<&str> {
    let unsure = |c: char| c.is_control() || matches!(c, ';' | '{' | '}' | '\\' | '#');
    let quotes = text.matches('"').count();
    (!text.contains(unsure) && !text.contains("...") && quotes.is_multiple_of(2)).then_some(text)
}

/// Names of table and chain as their program takes them.
fn names(charge: &Charge<'_>) -> (String, String) {
    match charge.backend() {
        Some(Backend::Nft) | None => (nft_name(charge.table()).into(), nft_name(charge.chain_name()).into()),
        Some(_) => (word(charge.table()), word(charge.chain_name())),
    }
}

/// The command that shows the chain with what it counts.
pub(super) fn show(charge: &Charge<'_>) -> String {
    let (table, chain) = names(charge);
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
    let (table, chain) = names(charge);
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
    let family = &rule.family;
    let title = "or take the rule away".to_owned();
    let risk =
        "whatever else it keeps out comes through; what manages the firewall may put it back".to_owned();
    if rule.backend == Backend::Nft {
        // The ruleset is kept first: a rule's place, counters and sets are not in its text.
        let saved = "/root/nft-before-weir.conf";
        let (table, chain) = (nft_name(&rule.table), nft_name(&rule.chain));
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
    let (table, chain) = (word(&rule.table), word(&rule.chain));
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
    let family = charge.family();
    let (table, chain) = names(charge);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_cannot_bring_commands_of_their_own() {
        assert_eq!(nft_name("docker-user_1.x"), "docker-user_1.x");
        for name in ["a; flush ruleset", "a b", "", "-f", "a\nb", "\"a\"", "{"] {
            assert_eq!(nft_name(name), "NAME_THAT_NFT_CANNOT_READ", "{name}");
        }
        assert_eq!(
            nft_text("tcp dport 80 log prefix \"x: \" drop"),
            Some("tcp dport 80 log prefix \"x: \" drop")
        );
        for text in
            ["ip saddr @a; flush ruleset drop", "tcp dport { ... } drop", "log prefix \"x drop", "a\nb"]
        {
            assert_eq!(nft_text(text), None, "{text}");
        }
    }
}
