//! By sets of ipset, asked by iptables.

mod rules;

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_prefix::export;
use weir_sys::{ProcRoot, modules};

use crate::command;
use crate::kernel::{Counted, Held, OnTrial};
use crate::policy::{Hook, Policy};
use crate::{Error, verify};
use rules::{entrances, rules};

/// The programs that loading needs.
pub(crate) const PROGRAMS: [&str; 3] = ["ipset", "iptables-restore", "ip6tables-restore"];
/// The two generations of sets and chains: one is in effect, the other one is being filled, or on trial.
const GENERATIONS: [&str; 2] = ["weir0-", "weir1-"];
/// How the names of the sets begin that say how long a trial is.
const TRIAL: &str = "weir-trial-";
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
    let ours = |name: &&str| GENERATIONS.iter().chain([&TRIAL]).any(|g| name.starts_with(g));
    Ok(names.lines().filter(ours).map(str::to_owned).collect())
}

/// The rules of a chain as `iptables -S` prints them; `None` if there is no such chain.
fn chain(family: Family, name: &str) -> Result<Option<Vec<String>>, Error> {
    let printed = command::try_run(&family.program(""), &["-w", "10", "-S", name], "")?;
    Ok(printed.ok().map(|text| text.lines().map(str::to_owned).collect()))
}

/// A rule of another chain that leads into one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Jump {
    /// The rule as `iptables -S` prints it behind `-A `: `INPUT -i eth0 ... -j weir0-allow`.
    rule: String,
    generation: &'static str,
    way: Way,
}

/// When a jump is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Always,
    /// While the elements of the set of trials are there.
    OnTrial,
    /// While they are not.
    OffTrial,
}

impl Way {
    /// The words of a rule for it.
    fn matching(self, family: Family) -> String {
        let set = trial_set(family);
        match self {
            Way::Always => String::new(),
            Way::OnTrial => format!(" -m set --match-set {set} src"),
            Way::OffTrial => format!(" -m set ! --match-set {set} src"),
        }
    }
}

impl Jump {
    fn read(rule: &str, family: Family) -> Option<Self> {
        let rule = rule.strip_prefix("-A ")?;
        let generation =
            GENERATIONS.into_iter().find(|g| rule.ends_with(&format!(" -j {}", chain_name(g))))?;
        let way = [Way::OnTrial, Way::OffTrial].into_iter().find(|way| rule.contains(&way.matching(family)));
        Some(Jump { rule: rule.to_owned(), generation, way: way.unwrap_or(Way::Always) })
    }

    /// The same under another condition, to be inserted first.
    fn inserted(&self, way: Way, family: Family) -> String {
        let plain = self.rule.replace(&self.way.matching(family), "");
        let (hook, rest) = plain.split_once(' ').unwrap_or((&plain, ""));
        let (matching, target) = rest.split_once(" -j ").unwrap_or((rest, ""));
        format!("-I {hook} 1 {matching}{} -j {target}", way.matching(family))
    }
}

/// All of them, in their order.
fn jumps(family: Family) -> Result<Vec<Jump>, Error> {
    let mut jumps = Vec::new();
    for name in ["INPUT", "FORWARD"] {
        let rules = chain(family, name)?.unwrap_or_default();
        jumps.extend(rules.iter().filter_map(|rule| Jump::read(rule, family)));
    }
    Ok(jumps)
}

fn set_name(generation: &str, class: usize, family: Family) -> String {
    format!("{generation}{class}-{}", family.digit())
}

fn chain_name(generation: &str) -> String {
    format!("{generation}allow")
}

/// While it has elements, packets go the way of the trial. They have a timeout: the kernel ends a trial by itself.
fn trial_set(family: Family) -> String {
    format!("{TRIAL}{}", family.digit())
}

/// Every address, for that many seconds.
fn begin_trial(seconds: u64) -> Result<(), Error> {
    let mut text = String::new();
    for family in Family::all() {
        let (set, kind) = (trial_set(family), if family.v6 { "inet6" } else { "inet" });
        let _ = writeln!(text, "create -exist {set} hash:net family {kind} timeout 0");
        // There is no prefix of length 0 in such a set.
        for half in if family.v6 { ["::/1", "8000::/1"] } else { ["0.0.0.0/1", "128.0.0.0/1"] } {
            let _ = writeln!(text, "add -exist {set} {half} timeout {seconds}");
        }
    }
    command::run("ipset", &["restore"], &text).map(drop)
}

/// The generation that lasts: the one whose jumps are not those of a trial.
fn lasting(jumps: &[Jump]) -> Option<&'static str> {
    jumps.iter().find(|jump| jump.way != Way::OnTrial).map(|jump| jump.generation)
}

fn on_trial(jumps: &[Jump]) -> Option<&'static str> {
    jumps.iter().find(|jump| jump.way == Way::OnTrial).map(|jump| jump.generation)
}

pub(crate) fn load(policy: &Policy, id: &str, trial_s: Option<u64>) -> Result<(), Error> {
    let used = lasting(&jumps(Family { v6: false })?);
    let next = GENERATIONS.into_iter().find(|g| Some(*g) != used).unwrap_or(GENERATIONS[0]);
    // Remove the parts of this generation that a killed process left.
    for family in Family::all() {
        replace(family, |jump| (jump.generation != next).then_some(jump.way))?;
    }
    destroy(|name| name.starts_with(next))?;
    for (n, class) in (1..).zip(&policy.classes) {
        let text = export::ipset(&format!("{next}{n}-"), &class.v4, &class.v6);
        command::run("ipset", &["restore"], &text)?;
    }
    check(policy, next)?;
    if let Some(seconds) = trial_s {
        begin_trial(seconds)?;
    }
    for family in Family::all() {
        let script = script(policy, id, next, family, &jumps(family)?, trial_s.is_some());
        command::run(&family.program("-restore"), &["-w", "10", "--noflush"], &script)?;
    }
    if trial_s.is_some() { Ok(()) } else { destroy(|name| !name.starts_with(next)) }
}

/// Builds the script that adds the chain of a policy, and replaces the rules that lead to other policies' chains, in one commit.
fn script(
    policy: &Policy,
    id: &str,
    generation: &str,
    family: Family,
    before: &[Jump],
    trial: bool,
) -> String {
    let own = chain_name(generation);
    // Named here, the chain is emptied if it is there (--noflush leaves the others).
    let mut text = format!("*filter\n:{own} - [0:0]\n");
    for rule in rules(policy, id, generation, family) {
        let _ = writeln!(text, "-A {own} {rule}");
    }
    text.push_str(&moved(family, before, |_| trial.then_some(Way::OffTrial)));
    let hooks: &[&str] = match policy.hook {
        Hook::Input => &["INPUT"],
        Hook::Forward => &["FORWARD"],
        Hook::Both => &["INPUT", "FORWARD"],
    };
    let way = if trial { Way::OnTrial } else { Way::Always }.matching(family);
    for hook in hooks {
        for from in entrances(policy) {
            let _ = writeln!(text, "-I {hook} 1 {from}{way} -j {own}");
        }
    }
    text.push_str("COMMIT\n");
    text
}

/// Returns lines that put each jump under the condition from `way`, or remove it. They also remove chains that lost all their
/// jumps.
fn moved(family: Family, jumps: &[Jump], way: impl Fn(&Jump) -> Option<Way>) -> String {
    let mut text = String::new();
    for jump in jumps {
        let _ = writeln!(text, "-D {}", jump.rule);
    }
    // Each is inserted before the last one.
    for jump in jumps.iter().rev() {
        if let Some(way) = way(jump) {
            let _ = writeln!(text, "{}", jump.inserted(way, family));
        }
    }
    for generation in GENERATIONS {
        let mut of_it = jumps.iter().filter(|jump| jump.generation == generation).peekable();
        if of_it.peek().is_some() && of_it.all(|jump| way(jump).is_none()) {
            let _ = writeln!(text, "-F {0}\n-X {0}", chain_name(generation));
        }
    }
    text
}

/// The same in a commit of its own.
fn replace(family: Family, way: impl Fn(&Jump) -> Option<Way>) -> Result<(), Error> {
    let jumps = jumps(family)?;
    let mut text = format!("*filter\n{}", moved(family, &jumps, &way));
    // A chain that a killed process filled, or that lost its jumps.
    for generation in GENERATIONS {
        if jumps.iter().all(|jump| jump.generation != generation)
            && chain(family, &chain_name(generation))?.is_some()
        {
            let _ = writeln!(text, "-F {0}\n-X {0}", chain_name(generation));
        }
    }
    if text.lines().count() == 1 {
        return Ok(());
    }
    text.push_str("COMMIT\n");
    command::run(&family.program("-restore"), &["-w", "10", "--noflush"], &text).map(drop)
}

/// Has one generation alone in effect from now on.
fn settle(keep: Option<&str>) -> Result<(), Error> {
    for family in Family::all() {
        replace(family, |jump| (Some(jump.generation) == keep).then_some(Way::Always))?;
    }
    destroy(|name| keep.is_none_or(|keep| !name.starts_with(keep)))
}

/// The policy that lasts is out of effect for a time: another back end has one on trial.
pub(crate) fn suspend(seconds: u64) -> Result<(), Error> {
    if sets()?.is_empty() {
        return Ok(());
    }
    begin_trial(seconds)?;
    Family::all().into_iter().try_for_each(|family| replace(family, |_| Some(Way::OffTrial)))
}

/// Makes the policy on trial permanent; removes a policy that was suspended meanwhile.
pub(crate) fn keep() -> Result<(), Error> {
    if !is_on_trial()? {
        return Ok(());
    }
    settle(on_trial(&jumps(Family { v6: false })?))
}

/// Removes the policy on trial, and puts the previous policy back into effect.
pub(crate) fn end_trial() -> Result<(), Error> {
    if !is_on_trial()? {
        return Ok(());
    }
    settle(lasting(&jumps(Family { v6: false })?))
}

fn is_on_trial() -> Result<bool, Error> {
    Ok(sets()?.iter().any(|name| name.starts_with(TRIAL)))
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

/// Describes the loaded policy in words that do not change by themselves; empty if none is loaded. Reports the one on trial if
/// two policies are loaded.
pub(crate) fn state() -> Result<String, Error> {
    let sets = sets()?;
    if sets.is_empty() {
        return Ok(String::new());
    }
    let v4 = jumps(Family { v6: false })?;
    let upper = on_trial(&v4).or_else(|| lasting(&v4));
    let own = |name: &&String| upper.map_or(!name.starts_with(TRIAL), |upper| name.starts_with(upper));
    let mut text = format!("ipset {}\n", sets.iter().filter(own).cloned().collect::<Vec<_>>().join(" "));
    for family in Family::all() {
        for generation in GENERATIONS.into_iter().filter(|g| upper.is_none_or(|upper| upper == *g)) {
            let jumps = jumps(family)?.into_iter().filter(|jump| jump.generation == generation);
            let jumps = jumps.map(|jump| format!("-A {}", jump.rule.replace(&jump.way.matching(family), "")));
            for rule in chain(family, &chain_name(generation))?.unwrap_or_default().into_iter().chain(jumps) {
                let _ = writeln!(text, "{} {rule}", family.program(""));
            }
        }
    }
    // Which generation it is says nothing; if both are there, each set is named twice.
    Ok(GENERATIONS.iter().fold(text, |text, generation| text.replace(generation, "weir-")))
}

/// The policy of a generation.
fn policy_of(generation: &str) -> Result<Option<String>, Error> {
    let rules = chain(Family { v6: false }, &chain_name(generation))?.unwrap_or_default();
    Ok(rules.iter().find_map(|rule| {
        let (_, rest) = rule.split_once("weir:id:")?;
        rest.split(|c: char| !c.is_ascii_hexdigit()).next().map(str::to_owned)
    }))
}

/// Returns the loaded policies, if any.
pub(crate) fn held() -> Result<Held, Error> {
    let sets = sets()?;
    if sets.is_empty() {
        return Ok(Held::default());
    }
    let v4 = jumps(Family { v6: false })?;
    let name = |generation: Option<&str>| generation.map_or(Ok(None), policy_of);
    let set = trial_set(Family { v6: false });
    let trial = if sets.contains(&set) {
        // Elements whose time is over are not listed.
        let listing = command::run("ipset", &["list", &set], "")?;
        Some(OnTrial { policy: name(on_trial(&v4))?, runs: listing.contains("\n0.0.0.0/1 ") })
    } else {
        None
    };
    Ok(Held { lasting: name(lasting(&v4))?, trial })
}

/// Removes what has no effect: sets that no rule asks, and a trial that no journal knows.
pub(crate) fn tidy() -> Result<(), Error> {
    if sets()?.is_empty() {
        return Ok(());
    }
    end_trial()?;
    let mut used = String::new();
    for family in Family::all() {
        for generation in GENERATIONS {
            used.push_str(&chain(family, &chain_name(generation))?.unwrap_or_default().join("\n"));
        }
    }
    destroy(|name| !used.contains(&format!("--match-set {name} ")))
}

/// Takes everything of ours away, whatever there is of it.
pub(crate) fn unload() -> Result<(), Error> {
    // A chain asks at least one set: where there is none, there is no chain.
    if sets()?.is_empty() {
        return Ok(());
    }
    settle(None)
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

/// Returns the counters of a policy's rules.
pub(crate) fn counted(id: &str) -> Result<Vec<Counted>, Error> {
    let mut counted = Vec::new();
    let mut own = None;
    for generation in GENERATIONS {
        if policy_of(generation)?.as_deref() == Some(id) {
            own = Some(chain_name(generation));
        }
    }
    let Some(own) = own else { return Ok(counted) };
    for family in Family::all() {
        let text = command::run(&family.program("-save"), &["-c", "-t", "filter"], "")?;
        counted.extend(text.lines().filter_map(|line| count(line, &own)));
    }
    Ok(counted)
}

/// `[packets:bytes] -A weir0-allow ... --comment "weir:class 1" ...`.
fn count(line: &str, chain: &str) -> Option<Counted> {
    let (counts, rule) = line.strip_prefix('[')?.split_once("] ")?;
    rule.strip_prefix(&format!("-A {chain} "))?;
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
mod tests;
