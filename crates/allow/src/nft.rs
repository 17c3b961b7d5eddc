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
/// The chain in which it is decided.
const JUDGE: &str = "judge";
/// Sources that are remembered.
const MOST_DENIED: u32 = 4096;
/// Before the chains of most others, so that they see only who may come in; behind connection tracking (-200).
const PRIORITY: &str = "filter - 5";

/// The script that replaces everything in one transaction. The table is made anew, with new sets: elements that are added to a
/// tree in use make look-ups in it miss others for a moment (fixed in Linux 7.0 by commit 7e43e0a1141d).
pub(crate) fn script(policy: &Policy, id: &str) -> String {
    let mut text = format!("add table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n");
    for (n, class) in (1..).zip(&policy.classes) {
        set(&mut text, &format!("c{n}_4"), "ipv4_addr", &class.v4);
        set(&mut text, &format!("c{n}_6"), "ipv6_addr", &class.v6);
    }
    for (family, kind) in [("4", "ipv4_addr"), ("6", "ipv6_addr")] {
        let _ = writeln!(
            text,
            "  set denied{family} {{ type {kind}; size {MOST_DENIED}; flags dynamic,timeout; timeout 1h; }}"
        );
    }
    let _ = writeln!(text, "  chain id_{id} {{ }}");
    let _ = writeln!(text, "  chain {JUDGE} {{");
    for rule in rules(policy) {
        let _ = writeln!(text, "    {rule}");
    }
    text.push_str("  }\n");
    let hooks: &[&str] = match policy.hook {
        Hook::Input => &["input"],
        Hook::Forward => &["forward"],
        Hook::Both => &["input", "forward"],
    };
    for hook in hooks {
        let _ = writeln!(
            text,
            "  chain {hook} {{\n    type filter hook {hook} priority {PRIORITY}; policy accept;"
        );
        for from in entrances(policy) {
            let _ = writeln!(text, "    {from} jump {JUDGE}");
        }
        text.push_str("  }\n");
    }
    text.push_str("}\n");
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

fn rules(policy: &Policy) -> Vec<String> {
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
                let matching = format!("{ip} saddr @c{n}_{family} ");
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
    command::run(PROGRAM, &["-f", "-"], &script(policy, id))?;
    check(policy)
}

/// Asks the sets of the kernel about addresses in and beside the lists.
fn check(policy: &Policy) -> Result<(), Error> {
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
            let set = format!("c{n}_{family}");
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
    let id = id(&tables).unwrap_or_default();
    Ok(format!("nft {id}: {chains} hooks, {} rules, {} sets\n", tables.rules.len(), tables.sets.len()))
}

fn id(tables: &Tables) -> Option<String> {
    tables.chains.iter().find_map(|c| c.name.strip_prefix("id_")).map(str::to_owned)
}

/// The policy that is loaded, if one is.
pub(crate) fn loaded_id() -> Result<Option<String>, Error> {
    Ok(read()?.as_ref().and_then(id))
}

/// Takes everything of ours away.
pub(crate) fn unload() -> Result<(), Error> {
    if nftables::read(&ProcRoot::default())?.is_none() {
        return Ok(());
    }
    // Where there is no program, the table was not made by it here; where there is no table, making one first is no harm.
    if read()?.is_some() {
        command::run(PROGRAM, &["-f", "-"], &format!("add table inet {TABLE}\ndelete table inet {TABLE}\n"))?;
    }
    Ok(())
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
