//! Commands that show, take away or go around a rule, as they would be typed.

use std::net::IpAddr;

use super::attribution::DropAttribution;
use crate::command::iptables::{self, Name};
use crate::command::nft::{self, Statement, nft, statement};
use crate::command::{Line, Unwritable, Words, kept, sh};
use crate::evidence::{Backend, Rule, RuleVerdict, Tuple};
use crate::finding::Fix;

/// The chain that an attribution is about, as nft writes it.
fn nft_chain(attribution: &DropAttribution<'_>) -> Result<Statement, Unwritable> {
    nft::chain(attribution.family(), attribution.table(), attribution.chain_name())
}

/// The command that shows the chain with what it counts.
pub(super) fn show(attribution: &DropAttribution<'_>) -> Line {
    match attribution.backend() {
        Some(Backend::Nft) | None => nft!("-a list chain {}", nft_chain(attribution)),
        Some(backend) => {
            let program = iptables::program(backend, attribution.family());
            let (table, chain) = (Name(attribution.table()), Name(attribution.chain_name()));
            sh!("{} -t {} -L {} -n -v --line-numbers", program, table, chain)
        }
    }
}

/// Fixes for a rule or policy that throws away what it should not: look, let the packets pass, take the rule away.
pub(super) fn fixes(attribution: &DropAttribution<'_>, example: Option<Tuple>) -> Vec<Fix> {
    let look = Fix::look("look at it first; if it is intended, nothing is wrong", [show(attribution)]);
    let mut fixes = vec![look];
    fixes.extend(example.and_then(|tuple| accept(attribution, tuple)));
    match attribution.rule {
        Some(rule) => fixes.push(remove(rule)),
        None => fixes.push(open_policy(attribution)),
    }
    fixes
}

/// Lets packets like that one pass, by a rule before the one at fault.
pub(super) fn accept(attribution: &DropAttribution<'_>, tuple: Tuple) -> Option<Fix> {
    const RISK: &str = "packets that match it pass every later rule of this hook's chain unchecked";
    let title = "let packets like these pass";
    if attribution.backend() == Some(Backend::Nft) {
        let (chain, matches) = (nft_chain(attribution), nft_matches(attribution.family(), tuple)?);
        let rule = match attribution.rule {
            Some(rule) => nft!("-e -a insert rule {} handle {} {} accept", chain, rule.handle, matches),
            None => nft!("-e -a add rule {} {} accept", chain, matches),
        };
        let undo = nft!("delete rule {} handle HANDLE_SHOWN_BY_THE_COMMAND_ABOVE", chain);
        return Some(Fix::new(title, RISK, [rule], [undo]));
    }
    let program = iptables::program(attribution.backend()?, attribution.family());
    let docker = docker_user(attribution);
    let table = Name(attribution.table());
    let chain = Name(if docker { "DOCKER-USER" } else { attribution.chain_name() });
    let position = match attribution.rule {
        Some(rule) if !docker => Some(rule.position.max(1)),
        _ if docker => Some(1),
        _ => None,
    };
    let matches = iptables_matches(tuple);
    let matches = || Words::of(&matches);
    let rule = match position {
        Some(at) => sh!("{} -t {} -I {} {} {} -j ACCEPT", program, table, chain, at, matches()),
        None => sh!("{} -t {} -A {} {} -j ACCEPT", program, table, chain, matches()),
    };
    let undo = sh!("{} -t {} -D {} {} -j ACCEPT", program, table, chain, matches());
    let whose = if docker { ", in the chain that Docker leaves to its user" } else { "" };
    Some(Fix::new(format!("{title}{whose}"), RISK, [rule], [undo]))
}

/// True if Docker's own chain for its user is there and sees these packets.
fn docker_user(attribution: &DropAttribution<'_>) -> bool {
    let chains = attribution.namespace.rules.as_ref().map(|r| r.chains.as_slice()).unwrap_or_default();
    attribution.hooks.contains(&"forward")
        && attribution.table() == "filter"
        && chains.iter().any(|c| c.name == "DOCKER-USER" && c.family == attribution.family())
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

/// Builds an nft match for the tuple; `None` in families that see no IP addresses.
fn nft_matches(family: &str, tuple: Tuple) -> Option<Result<Statement, Unwritable>> {
    if family == "arp" {
        return None;
    }
    let ip = if tuple.source.is_ipv4() { "ip" } else { "ip6" };
    let upper = match protocol(tuple.protocol) {
        Some(name) if tuple.destination_port != 0 => statement!("{} dport {}", name, tuple.destination_port),
        _ => statement!("meta l4proto {}", tuple.protocol),
    };
    Some(statement!("{} saddr {} {} daddr {} {}", ip, tuple.source, ip, tuple.destination, upper))
}

fn iptables_matches(tuple: Tuple) -> String {
    let host = |address: IpAddr| format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
    let upper = match protocol(tuple.protocol) {
        Some(name) if tuple.destination_port != 0 => format!("-p {name} --dport {}", tuple.destination_port),
        _ => format!("-p {}", tuple.protocol),
    };
    format!("-s {} -d {} {upper}", host(tuple.source), host(tuple.destination))
}

/// Deletes the rule.
pub(in crate::causes) fn remove(rule: &Rule) -> Fix {
    let title = "or delete the rule";
    let risk =
        "everything else that it blocks comes through; the program that manages the firewall may restore it";
    if rule.backend == Backend::Nft {
        let (commands, undo) = nft::delete(rule);
        return Fix::new(title, risk, commands, undo);
    }
    let program = iptables::program(rule.backend, &rule.family);
    let (table, chain) = (Name(&rule.table), Name(&rule.chain));
    // One file for each rule: a second deletion keeps what the undo of the first one needs.
    let saved = kept(&[program, &rule.table, &rule.chain, &rule.handle.to_string()], "rules");
    // -c keeps the counters. iptables-save writes some comments that iptables-restore does not read: then nothing is deleted.
    let delete = sh!(
        "{}-save -c -t {} > {} && {}-restore --test < {} && {} -t {} -D {} {}",
        program,
        table,
        saved,
        program,
        saved,
        program,
        table,
        chain,
        rule.position.max(1)
    );
    Fix::new(title, risk, [delete], [sh!("{}-restore -c < {}", program, saved)])
}

/// Makes the policy accept.
fn open_policy(attribution: &DropAttribution<'_>) -> Fix {
    let title = "or let everything pass that no rule drops";
    let risk = "everything that the policy blocked comes through";
    let (open, undo) = match attribution.backend() {
        Some(Backend::Nft) | None => {
            let chain = nft_chain(attribution);
            let set = |policy: &'static str| nft!("add chain {} { policy {}; }", chain, policy);
            (set("accept"), set("drop"))
        }
        Some(backend) => {
            let program = iptables::program(backend, attribution.family());
            let (table, chain) = (Name(attribution.table()), Name(attribution.chain_name()));
            let set = |policy: &str| sh!("{} -t {} -P {} {}", program, table, chain, policy);
            (set("ACCEPT"), set("DROP"))
        }
    };
    Fix::new(title, risk, [open], [undo])
}

/// Returns the verb for a rule in a sentence.
pub(super) fn does(rule: &Rule) -> &'static str {
    match rule.verdict {
        RuleVerdict::Reject => "refuses",
        _ => "drops",
    }
}
