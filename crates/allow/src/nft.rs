//! By interval sets of nftables.

use std::fmt::Write;
use std::net::IpAddr;

use weir_prefix::{Address, Ranges};
use weir_sys::ProcRoot;
use weir_sys::nftables::{self, Asker, Expression, Family, Rule, Tables};

use crate::command;
use crate::policy::{Action, Hook, LINK_V4, LINK_V6, Policy};
use crate::status::{Counted, Denied};
use crate::{Error, verify};

/// The program.
pub(crate) const PROGRAM: &str = "nft";
/// The table, of family inet.
const TABLE: &str = "weir_allow";
/// An empty chain says by its name which generation of sets is asked, and which policy that is: `id_GENERATION_POLICY`.
const MARK: &str = "id_";
/// The chain in which it is decided.
const JUDGE: &str = "judge";
/// Sources that are remembered.
const MOST_DENIED: u32 = 4096;
/// Before the chains of most others, so that they see only who may come in; behind connection tracking (-200).
const PRIORITY: &str = "filter - 5";

/// The two generations of sets: one is asked by the rules, the other one is being filled.
const GENERATIONS: [&str; 2] = ["a", "b"];
/// Chains that are hooked in.
const HOOKS: [&str; 2] = ["input", "forward"];
/// Sets of sources that are remembered.
const DENIED: [(&str, &str); 2] = [("denied4", "ipv4_addr"), ("denied6", "ipv6_addr")];

fn set_name(generation: &str, class: usize, family: &str) -> String {
    format!("{generation}{class}_{family}")
}

/// Sets of this generation.
fn is_of(set: &str, generation: &str) -> bool {
    set.strip_prefix(generation).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// What fills the sets of a generation that no rule asks. In a transaction of its own: a set that is made and asked by rules in
/// one lets some look-ups fail at the moment when both come into effect (seen on Linux 6.18: 4 packets of 4733 in 50 times).
fn sets_script(policy: &Policy, generation: &str, left: &[String]) -> String {
    let mut text = format!("add table inet {TABLE}\n");
    for name in left {
        let _ = writeln!(text, "delete set inet {TABLE} {name}");
    }
    let _ = writeln!(text, "table inet {TABLE} {{");
    for (n, class) in (1..).zip(&policy.classes) {
        set(&mut text, &set_name(generation, n, "4"), "ipv4_addr", &class.v4);
        set(&mut text, &set_name(generation, n, "6"), "ipv6_addr", &class.v6);
    }
    for (name, kind) in DENIED {
        let _ = writeln!(
            text,
            "  set {name} {{ type {kind}; size {MOST_DENIED}; flags dynamic,timeout; timeout 1h; }}"
        );
    }
    text.push_str("}\n");
    text
}

/// What replaces all rules in one transaction, so that they ask the sets of that generation.
fn rules_script(policy: &Policy, id: &str, generation: &str, before: &Tables) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        let _ = writeln!(text, "{words}");
    };
    line(format!("add chain inet {TABLE} {JUDGE}"));
    line(format!("flush chain inet {TABLE} {JUDGE}"));
    for (name, _) in DENIED {
        line(format!("flush set inet {TABLE} {name}"));
    }
    for rule in rules(policy, generation) {
        line(format!("add rule inet {TABLE} {JUDGE} {rule}"));
    }
    let is_there = |name: &str| before.chains.iter().any(|c| c.name == name);
    for hook in HOOKS {
        if policy.hook == Hook::Both || (policy.hook == Hook::Input) == (hook == "input") {
            line(format!(
                "add chain inet {TABLE} {hook} {{ type filter hook {hook} priority {PRIORITY}; policy accept; }}"
            ));
            line(format!("flush chain inet {TABLE} {hook}"));
            for from in entrances(policy) {
                line(format!("add rule inet {TABLE} {hook} {from} jump {JUDGE}"));
            }
        } else if is_there(hook) {
            line(format!("flush chain inet {TABLE} {hook}"));
            line(format!("delete chain inet {TABLE} {hook}"));
        }
    }
    let own = format!("{MARK}{generation}_{id}");
    for chain in before.chains.iter().filter(|c| c.name.starts_with(MARK) && c.name != own) {
        line(format!("delete chain inet {TABLE} {}", chain.name));
    }
    line(format!("add chain inet {TABLE} {own}"));
    text
}

fn set<A: Address>(text: &mut String, name: &str, kind: &str, ranges: &Ranges<A>) {
    if ranges.is_empty() {
        return;
    }
    let _ = writeln!(text, "  set {name} {{ type {kind}; flags interval; elements = {{");
    for (first, last) in ranges.as_slice() {
        // Ranges, not prefixes: nft keeps two ends for each element, and there are fewer ranges.
        let _ = if first == last {
            writeln!(text, "    {},", first.text())
        } else {
            writeln!(text, "    {}-{},", first.text(), last.text())
        };
    }
    text.push_str("  } }\n");
}

/// Which packets are judged.
fn entrances(policy: &Policy) -> Vec<String> {
    let names: Vec<String> = policy.interfaces.iter().map(|name| format!("\"{name}\"")).collect();
    let from = format!("iifname {{ {} }}", names.join(", "));
    if policy.ports.is_empty() {
        return vec![from];
    }
    let of = |tcp: bool| {
        let numbers: Vec<String> =
            policy.ports.iter().filter(|p| p.tcp == tcp).map(|p| p.number.to_string()).collect();
        let protocol = if tcp { "tcp" } else { "udp" };
        (!numbers.is_empty()).then(|| format!("{from} {protocol} dport {{ {} }}", numbers.join(", ")))
    };
    [of(true), of(false)].into_iter().flatten().collect()
}

fn rules(policy: &Policy, generation: &str) -> Vec<String> {
    let mut rules = Vec::new();
    if policy.established_first {
        rules.push("ct state established,related counter accept comment \"established\"".to_owned());
    }
    let own = |ranges: &[String]| ranges.join(", ");
    let v4: Vec<String> = LINK_V4.iter().map(|(a, b)| format!("{}-{}", a.text(), b.text())).collect();
    let v6: Vec<String> = LINK_V6.iter().map(|(a, b)| format!("{}-{}", a.text(), b.text())).collect();
    rules.push(format!("ip saddr {{ {} }} counter accept comment \"link\"", own(&v4)));
    rules.push(format!("ip6 saddr {{ {} }} counter accept comment \"link\"", own(&v6)));
    // Neighbour discovery (RFC 4861), and what a DHCP server answers its client (RFC 2131).
    rules.push(
        "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } \
         ip6 hoplimit 255 counter accept comment \"link\""
            .to_owned(),
    );
    rules.push("meta nfproto ipv4 udp sport 67 udp dport 68 counter accept comment \"link\"".to_owned());
    for (n, class) in (1..).zip(&policy.classes) {
        for (family, ip, empty) in [("4", "ip", class.v4.is_empty()), ("6", "ip6", class.v6.is_empty())] {
            if !empty {
                let matching = format!("{ip} saddr @{} ", set_name(generation, n, family));
                decide(&mut rules, &matching, &[(ip, family)], class.action, n, &class.name);
            }
        }
    }
    decide(&mut rules, "", &[("ip", "4"), ("ip6", "6")], policy.rest, 0, "rest");
    rules
}

/// The rules of one class. What notes the source is a rule of its own: a full set must not keep the next from being read.
fn decide(
    rules: &mut Vec<String>,
    matching: &str,
    families: &[(&str, &str)],
    action: Action,
    class: usize,
    name: &str,
) {
    if matches!(action, Action::Drop | Action::Log) {
        for (ip, family) in families {
            rules.push(format!("{matching}update @denied{family} {{ {ip} saddr counter }}"));
        }
    }
    if action == Action::Log {
        rules.push(format!("{matching}limit rate 10/second log prefix \"weir {name} \""));
    }
    let verdict = match action {
        Action::Allow | Action::Log => "accept".to_owned(),
        Action::Drop => "drop".to_owned(),
        Action::Mark(mark) => format!("meta mark set {mark} accept"),
    };
    rules.push(format!("{matching}counter {verdict} comment \"class {class}\""));
}

pub(crate) fn load(policy: &Policy, id: &str) -> Result<(), Error> {
    let before = read()?.unwrap_or_default();
    let used = mark(&before).map(|(generation, _)| generation);
    let next = GENERATIONS.into_iter().find(|g| Some(*g) != used).unwrap_or(GENERATIONS[0]);
    let left: Vec<String> =
        before.sets.iter().map(|s| s.name.clone()).filter(|name| is_of(name, next)).collect();
    run(&sets_script(policy, next, &left))?;
    check(policy, next)?;
    run(&rules_script(policy, id, next, &before))?;
    let old: Vec<String> = before.sets.iter().map(|s| s.name.clone()).filter(|n| is_old(n, next)).collect();
    if old.is_empty() {
        return Ok(());
    }
    run(&old.iter().map(|name| format!("delete set inet {TABLE} {name}\n")).collect::<String>())
}

/// Neither of the generation in use nor of sources.
fn is_old(set: &str, generation: &str) -> bool {
    !is_of(set, generation) && DENIED.iter().all(|(name, _)| *name != set)
}

fn run(script: &str) -> Result<(), Error> {
    command::run(PROGRAM, &["-f", "-"], script).map(drop)
}

/// Asks the sets of the kernel about addresses in and beside the lists.
fn check(policy: &Policy, generation: &str) -> Result<(), Error> {
    let mut asker = Asker::open()?;
    for (n, class) in (1..).zip(&policy.classes) {
        for address in verify::samples(policy, verify::MANY) {
            let (family, key, empty) = match address {
                IpAddr::V4(a) => ("4", a.octets().to_vec(), class.v4.is_empty()),
                IpAddr::V6(a) => ("6", a.octets().to_vec(), class.v6.is_empty()),
            };
            if empty {
                continue;
            }
            let set = set_name(generation, n, family);
            let found = asker.find(Family::Inet, TABLE, &set, &key)?.is_some();
            verify::same(&format!("the nft set {set}"), address, class.has(address), found)?;
        }
    }
    Ok(())
}

/// What there is of ours; `None` where nftables is not in the kernel or has no table of ours.
fn read() -> Result<Option<Tables>, Error> {
    let Some(mut tables) = nftables::read(&ProcRoot::default())? else { return Ok(None) };
    tables.chains.retain(|c| c.family == Family::Inet && c.table == TABLE);
    tables.rules.retain(|r| r.family == Family::Inet && r.table == TABLE);
    tables.sets.retain(|s| s.family == Family::Inet && s.table == TABLE && !s.anonymous);
    let nothing = tables.chains.is_empty() && tables.sets.is_empty();
    Ok((!nothing).then_some(tables))
}

/// What is loaded, in words that do not change by themselves; empty if nothing is.
pub(crate) fn state() -> Result<String, Error> {
    let Some(tables) = read()? else { return Ok(String::new()) };
    let chains = tables.chains.iter().filter(|c| c.base.is_some()).count();
    let id = mark(&tables).map_or("", |(_, id)| id);
    Ok(format!("nft {id}: {chains} hooks, {} rules, {} sets\n", tables.rules.len(), tables.sets.len()))
}

/// Which generation of sets is asked, and by which policy.
fn mark(tables: &Tables) -> Option<(&str, &str)> {
    tables.chains.iter().find_map(|c| c.name.strip_prefix(MARK)?.split_once('_'))
}

/// The policy that is loaded, if one is.
pub(crate) fn loaded_id() -> Result<Option<String>, Error> {
    Ok(read()?.as_ref().and_then(mark).map(|(_, id)| id.to_owned()))
}

/// Removes what has no effect: sets that no rule asks.
pub(crate) fn tidy() -> Result<(), Error> {
    let Some(tables) = read()? else { return Ok(()) };
    let hooked = tables.chains.iter().any(|c| c.base.is_some());
    match mark(&tables) {
        // What a killed process filled before any rule asked it.
        None if !hooked => unload(),
        None => Ok(()),
        Some((used, _)) => {
            let left = tables.sets.iter().map(|s| s.name.as_str()).filter(|name| is_old(name, used));
            let script: String = left.map(|name| format!("delete set inet {TABLE} {name}\n")).collect();
            if script.is_empty() { Ok(()) } else { run(&script) }
        }
    }
}

/// Takes everything of ours away.
pub(crate) fn unload() -> Result<(), Error> {
    if read()?.is_none() {
        return Ok(());
    }
    // Making it first is no harm, and deleting it no error then if somebody else was faster.
    run(&format!("add table inet {TABLE}\ndelete table inet {TABLE}\n"))
}

/// What the rules have counted.
pub(crate) fn counted() -> Result<Vec<Counted>, Error> {
    let Some(tables) = read()? else { return Ok(Vec::new()) };
    Ok(tables.rules.iter().filter_map(count).collect())
}

fn count(rule: &Rule) -> Option<Counted> {
    let label = rule.comment.clone()?;
    rule.expressions.iter().find_map(|e| match e {
        Expression::Counter { packets, bytes } => {
            Some(Counted { label: label.clone(), packets: *packets, bytes: *bytes })
        }
        _ => None,
    })
}

/// Sources of what was refused or logged in the last hour.
pub(crate) fn denied() -> Result<Vec<Denied>, Error> {
    let mut denied = Vec::new();
    if read()?.is_none() {
        return Ok(denied);
    }
    for set in ["denied4", "denied6"] {
        let listing = command::run(PROGRAM, &["-j", "list", "set", "inet", TABLE, set], "")?;
        let listing: serde_json::Value = serde_json::from_str(&listing).map_err(|e| Error::Command {
            command: format!("nft -j list set inet {TABLE} {set}"),
            output: e.to_string(),
        })?;
        let elements = listing["nftables"].as_array().into_iter().flatten();
        let elements = elements.filter_map(|o| o["set"]["elem"].as_array()).flatten();
        denied.extend(elements.filter_map(|element| {
            let element = &element["elem"];
            let source = element["val"].as_str()?.parse().ok()?;
            Some(Denied { source, packets: element["counter"]["packets"].as_u64()?, class: None })
        }));
    }
    Ok(denied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Port;

    #[test]
    fn ports_are_asked_for_before_the_list() {
        let policy = Policy {
            interfaces: vec!["a".into(), "b".into()],
            ports: vec![Port { tcp: true, number: 22 }, Port { tcp: false, number: 53 }],
            ..crate::verify::tests::policy()
        };
        assert_eq!(
            entrances(&policy),
            ["iifname { \"a\", \"b\" } tcp dport { 22 }", "iifname { \"a\", \"b\" } udp dport { 53 }"]
        );
    }
}
