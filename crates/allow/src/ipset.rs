//! By sets of ipset, asked by iptables.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_prefix::{Ranges, export};
use weir_sys::{ProcRoot, modules};

use crate::command;
use crate::policy::{Action, Hook, LINK_V4, Policy};
use crate::status::Counted;
use crate::{Error, verify};

/// The programs that loading needs.
pub(crate) const PROGRAMS: [&str; 3] = ["ipset", "iptables-restore", "ip6tables-restore"];
const CHAIN: &str = "weir-allow";
/// The two generations of sets.
const GENERATIONS: [&str; 2] = ["weir0-", "weir1-"];
/// How long the kernel may take to let go of sets whose rules are gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// One IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Family {
    v6: bool,
}

impl Family {
    /// Those that this kernel has.
    fn all() -> Vec<Family> {
        let v6 = Path::new("/proc/net/if_inet6").exists();
        [Family { v6: false }].into_iter().chain(v6.then_some(Family { v6: true })).collect()
    }

    fn program(self, suffix: &str) -> String {
        format!("{}{suffix}", if self.v6 { "ip6tables" } else { "iptables" })
    }

    fn digit(self) -> &'static str {
        if self.v6 { "6" } else { "4" }
    }
}

/// Names of our sets; none where ipset is not in the kernel, which asking would load.
fn sets() -> Result<Vec<String>, Error> {
    if !modules::is_loaded(&ProcRoot::default(), "ip_set") || command::require("ipset").is_err() {
        return Ok(Vec::new());
    }
    // A kernel without modules and without ipset refuses.
    let Ok(names) = command::try_run("ipset", &["list", "-n"], "")? else { return Ok(Vec::new()) };
    let ours = |name: &&str| GENERATIONS.iter().any(|g| name.starts_with(g));
    Ok(names.lines().filter(ours).map(str::to_owned).collect())
}

/// The rules of a chain as `iptables -S` prints them; `None` if there is no such chain.
fn chain(family: Family, name: &str) -> Result<Option<Vec<String>>, Error> {
    let printed = command::try_run(&family.program(""), &["-w", "10", "-S", name], "")?;
    Ok(printed.ok().map(|text| text.lines().map(str::to_owned).collect()))
}

/// Rules of others' chains that lead into ours, as they were added.
fn jumps(family: Family) -> Result<Vec<String>, Error> {
    let mut jumps = Vec::new();
    for name in ["INPUT", "FORWARD"] {
        let rules = chain(family, name)?.unwrap_or_default();
        jumps.extend(rules.into_iter().filter(|rule| rule.ends_with(&format!("-j {CHAIN}"))));
    }
    Ok(jumps)
}

fn set_name(generation: &str, class: usize, family: Family) -> String {
    format!("{generation}{class}-{}", family.digit())
}

pub(crate) fn load(policy: &Policy, id: &str) -> Result<(), Error> {
    let families = Family::all();
    let mut used = String::new();
    for family in &families {
        used.push_str(&chain(*family, CHAIN)?.unwrap_or_default().join("\n"));
    }
    // Whichever no rule asks.
    let next = if used.contains(GENERATIONS[0]) { GENERATIONS[1] } else { GENERATIONS[0] };
    // What a killed process left of it.
    destroy(|name| name.starts_with(next))?;
    for (n, class) in (1..).zip(&policy.classes) {
        let text = export::ipset(&format!("{next}{n}-"), &class.v4, &class.v6);
        command::run("ipset", &["restore"], &text)?;
    }
    check(policy, next)?;
    for family in &families {
        let script = script(policy, id, next, *family, &jumps(*family)?);
        command::run(&family.program("-restore"), &["-w", "10", "--noflush"], &script)?;
    }
    destroy(|name| !name.starts_with(next))
}

/// What replaces the whole chain, and the rules that lead to it, in one commit.
fn script(policy: &Policy, id: &str, generation: &str, family: Family, jumps: &[String]) -> String {
    // Named here, the chain is emptied if it is there (--noflush leaves the others).
    let mut text = format!("*filter\n:{CHAIN} - [0:0]\n");
    for rule in rules(policy, id, generation, family) {
        let _ = writeln!(text, "-A {CHAIN} {rule}");
    }
    for jump in jumps {
        let _ = writeln!(text, "-D {}", jump.trim_start_matches("-A "));
    }
    let hooks: &[&str] = match policy.hook {
        Hook::Input => &["INPUT"],
        Hook::Forward => &["FORWARD"],
        Hook::Both => &["INPUT", "FORWARD"],
    };
    for hook in hooks {
        for from in entrances(policy) {
            let _ = writeln!(text, "-I {hook} 1 {from} -j {CHAIN}");
        }
    }
    text.push_str("COMMIT\n");
    text
}

/// Which packets are judged.
fn entrances(policy: &Policy) -> Vec<String> {
    let mut all = Vec::new();
    for name in &policy.interfaces {
        if policy.ports.is_empty() {
            all.push(format!("-i {name}"));
        }
        for port in &policy.ports {
            let protocol = if port.tcp { "tcp" } else { "udp" };
            all.push(format!("-i {name} -p {protocol} --dport {}", port.number));
        }
    }
    all
}

fn rules(policy: &Policy, id: &str, generation: &str, family: Family) -> Vec<String> {
    let comment = |text: &str| format!("-m comment --comment \"weir:{text}\"");
    let mut rules = vec![comment(&format!("id:{id}"))];
    if policy.established_first {
        let states = "-m conntrack --ctstate ESTABLISHED,RELATED";
        rules.push(format!("{states} {} -j RETURN", comment("established")));
    }
    let link = comment("link");
    if family.v6 {
        rules.push(format!("-s ::/128 {link} -j RETURN"));
        rules.push(format!("-s fe80::/10 {link} -j RETURN"));
        // Neighbour discovery (RFC 4861).
        rules.extend((133..=137).map(|kind| {
            format!("-p ipv6-icmp -m icmp6 --icmpv6-type {kind} -m hl --hl-eq 255 {link} -j RETURN")
        }));
    } else {
        let prefixes: Vec<String> = Ranges::new(LINK_V4).prefixes().map(|p| p.to_string()).collect();
        rules.extend(prefixes.iter().map(|prefix| format!("-s {prefix} {link} -j RETURN")));
        // What a DHCP server answers its client (RFC 2131).
        rules.push(format!("-p udp --sport 67 --dport 68 {link} -j RETURN"));
    }
    for (n, class) in (1..).zip(&policy.classes) {
        let empty = if family.v6 { class.v6.is_empty() } else { class.v4.is_empty() };
        if !empty {
            let matching = format!("-m set --match-set {} src ", set_name(generation, n, family));
            decide(&mut rules, &matching, class.action, &comment(&format!("class {n}")), &class.name);
        }
    }
    decide(&mut rules, "", policy.rest, &comment("class 0"), "rest");
    rules
}

fn decide(rules: &mut Vec<String>, matching: &str, action: Action, comment: &str, name: &str) {
    match action {
        Action::Allow => rules.push(format!("{matching}{comment} -j RETURN")),
        Action::Drop => rules.push(format!("{matching}{comment} -j DROP")),
        Action::Log => {
            rules.push(format!("{matching}-m limit --limit 10/second -j LOG --log-prefix \"weir {name} \""));
            rules.push(format!("{matching}{comment} -j RETURN"));
        }
        Action::Mark(mark) => {
            rules.push(format!("{matching}-j MARK --set-mark {mark}"));
            rules.push(format!("{matching}{comment} -j RETURN"));
        }
    }
}

/// Asks the sets of the kernel about addresses in and beside the lists.
fn check(policy: &Policy, generation: &str) -> Result<(), Error> {
    for (n, class) in (1..).zip(&policy.classes) {
        // A process for each question: few, and those of this class alone.
        let alone = Policy { classes: vec![class.clone()], ..policy.clone() };
        for address in verify::samples(&alone, verify::FEW) {
            let (family, empty) = match address {
                IpAddr::V4(_) => (Family { v6: false }, class.v4.is_empty()),
                IpAddr::V6(_) => (Family { v6: true }, class.v6.is_empty()),
            };
            if !empty {
                let set = set_name(generation, n, family);
                let found = command::try_run("ipset", &["test", &set, &address.to_string()], "")?.is_ok();
                verify::same(&format!("the set {set}"), address, class.has(address), found)?;
            }
        }
    }
    Ok(())
}

/// What is loaded, in words that do not change by themselves; empty if nothing is.
pub(crate) fn state() -> Result<String, Error> {
    let sets = sets()?;
    if sets.is_empty() {
        return Ok(String::new());
    }
    let mut text = format!("ipset {}\n", sets.join(" "));
    for family in Family::all() {
        for rule in chain(family, CHAIN)?.unwrap_or_default().into_iter().chain(jumps(family)?) {
            let _ = writeln!(text, "{} {rule}", family.program(""));
        }
    }
    // Which generation it is says nothing; if both are there, each set is named twice.
    Ok(GENERATIONS.iter().fold(text, |text, generation| text.replace(generation, "weir-")))
}

/// The policy that is loaded, if one is.
pub(crate) fn loaded_id() -> Result<Option<String>, Error> {
    if sets()?.is_empty() {
        return Ok(None);
    }
    let rules = chain(Family { v6: false }, CHAIN)?.unwrap_or_default();
    Ok(rules.iter().find_map(|rule| {
        let (_, rest) = rule.split_once("weir:id:")?;
        rest.split(|c: char| !c.is_ascii_hexdigit()).next().map(str::to_owned)
    }))
}

/// Removes what has no effect: sets that no rule asks.
pub(crate) fn tidy() -> Result<(), Error> {
    if sets()?.is_empty() {
        return Ok(());
    }
    let mut used = String::new();
    for family in Family::all() {
        used.push_str(&chain(family, CHAIN)?.unwrap_or_default().join("\n"));
    }
    destroy(|name| !used.contains(&format!("--match-set {name} ")))
}

/// Takes everything of ours away, whatever there is of it.
pub(crate) fn unload() -> Result<(), Error> {
    // The chain asks at least one set: where there is none, there is no chain.
    if sets()?.is_empty() {
        return Ok(());
    }
    for family in Family::all() {
        let (ours, jumps) = (chain(family, CHAIN)?, jumps(family)?);
        if ours.is_none() {
            continue;
        }
        let mut script = "*filter\n".to_owned();
        for jump in jumps {
            let _ = writeln!(script, "-D {}", jump.trim_start_matches("-A "));
        }
        let _ = write!(script, "-F {CHAIN}\n-X {CHAIN}\nCOMMIT\n");
        command::run(&family.program("-restore"), &["-w", "10", "--noflush"], &script)?;
    }
    destroy(|_| true)
}

/// Destroys our sets of these names. The kernel lets go of them a moment after the rules are gone.
fn destroy(which: impl Fn(&str) -> bool) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    for name in sets()?.iter().filter(|name| which(name)) {
        while let Err(output) = command::try_run("ipset", &["destroy", name], "")? {
            if Instant::now() >= deadline {
                return Err(Error::Command { command: format!("ipset destroy {name}"), output });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// What the rules have counted.
pub(crate) fn counted() -> Result<Vec<Counted>, Error> {
    let mut counted = Vec::new();
    if sets()?.is_empty() {
        return Ok(counted);
    }
    for family in Family::all() {
        let text = command::run(&family.program("-save"), &["-c", "-t", "filter"], "")?;
        counted.extend(text.lines().filter_map(count));
    }
    Ok(counted)
}

/// `[packets:bytes] -A weir-allow ... --comment "weir:class 1" ...`.
fn count(line: &str) -> Option<Counted> {
    let (counts, rule) = line.strip_prefix('[')?.split_once("] ")?;
    rule.strip_prefix(&format!("-A {CHAIN} "))?;
    let (packets, bytes) = counts.split_once(':')?;
    let (_, rest) = rule.split_once("\"weir:").or_else(|| rule.split_once("weir:"))?;
    let label = rest.split([' ', '"']).next()?;
    // A class has its number behind a blank, which is why it is quoted.
    let label = if label == "class" { rest.split('"').next()? } else { label };
    Some(Counted { label: label.to_owned(), packets: packets.parse().ok()?, bytes: bytes.parse().ok()? })
}

/// Memory that the sets take as the kernel counts it, bytes.
pub(crate) fn memory_bytes() -> Result<Option<u64>, Error> {
    let mut bytes = 0;
    let sets = sets()?;
    for name in &sets {
        let text = command::run("ipset", &["list", "-t", name], "")?;
        let line = text.lines().find_map(|l| l.strip_prefix("Size in memory:"));
        let Some(size) = line.and_then(|l| l.trim().parse::<u64>().ok()) else { return Ok(None) };
        bytes += size;
    }
    Ok((!sets.is_empty()).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_iptables_prints_them() {
        let of = |line| count(line).map(|c| (c.label, c.packets, c.bytes));
        assert_eq!(
            of(
                r#"[3:180] -A weir-allow -m set --match-set weir0-1-4 src -m comment --comment "weir:class 1" -j RETURN"#
            ),
            Some(("class 1".into(), 3, 180))
        );
        assert_eq!(
            of("[1:60] -A weir-allow -s 169.254.0.0/16 -m comment --comment \"weir:link\" -j RETURN"),
            Some(("link".into(), 1, 60))
        );
        assert_eq!(
            of("[1:60] -A weir-allow -s 169.254.0.0/16 -m comment --comment weir:link -j RETURN"),
            Some(("link".into(), 1, 60))
        );
        assert_eq!(of("[1:60] -A INPUT -i eth0 -j weir-allow"), None);
        assert_eq!(of(":INPUT ACCEPT [0:0]"), None);
    }

    #[test]
    fn the_chain_is_replaced_as_a_whole_and_old_ways_to_it_go() {
        let policy = verify::tests::policy();
        let v4 = Family { v6: false };
        let text = script(&policy, "abc", GENERATIONS[1], v4, &["-A INPUT -i old0 -j weir-allow".into()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["*filter", ":weir-allow - [0:0]"]);
        assert!(lines.contains(&"-D INPUT -i old0 -j weir-allow"), "{text}");
        assert!(lines.contains(&"-I FORWARD 1 -i eth0 -j weir-allow"), "{text}");
        let class =
            "-A weir-allow -m set --match-set weir1-1-4 src -m comment --comment \"weir:class 1\" -j RETURN";
        assert!(lines.contains(&class), "{text}");
        assert_eq!(lines.last(), Some(&"COMMIT"));
    }
}
