//! By interval sets of nftables.

mod rules;

use std::fmt::Write;
use std::net::IpAddr;

use weir_netlink::nftables::{self, Asker, Expression, Family, Rule, Tables};
use weir_prefix::{Address, Ranges};
use weir_sys::ProcRoot;

use crate::command;
use crate::kernel::{Counted, Denied, Held, OnTrial};
use crate::policy::{Hook, Policy};
use crate::{Error, verify};
use rules::{entrances, rules};

/// The program.
pub(crate) const PROGRAM: &str = "nft";
/// The table, of family inet.
const TABLE: &str = "weir_allow";
/// An empty chain names the generation of sets that is asked, and the policy: `id_GENERATION_POLICY`.
const LASTING: &str = "id_";
/// The same of a policy on trial.
const ON_TRIAL: &str = "trial_";
/// The chains in which it is decided, of both generations.
const JUDGE: &str = "judge";
/// While it has elements, packets go the way of the trial. They have a timeout: the kernel ends a trial by itself.
const TRIAL: &str = "trial";
/// Matches while that set has elements.
const WHILE_ON_TRIAL: &str = "meta nfproto @trial";
/// Sources that are remembered.
const MOST_DENIED: u32 = 4096;
/// Before the chains of most others, so that they see only who may come in; behind connection tracking (-200).
const PRIORITY: &str = "filter - 5";

/// The two generations of chains and sets: one is in effect, the other one is being filled, or on trial.
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

/// Builds the script that fills the sets of a generation not yet used by any rule. It is a transaction of its own. If one
/// transaction creates a set and the rules that use it, some look-ups fail at the moment when both come into effect (seen on
/// Linux 6.18: 4 packets of 4733 in 50 times).
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
    let _ = writeln!(text, "  set {TRIAL} {{ type nf_proto; flags timeout; }}");
    text.push_str("}\n");
    text
}

/// The chains of a generation: what is judged, and by what.
fn chain_name(what: &str, generation: &str) -> String {
    format!("{what}_{generation}")
}

/// A script that grows line by line.
struct Script<'a> {
    text: String,
    before: &'a Tables,
}

impl<'a> Script<'a> {
    fn new(before: &'a Tables) -> Self {
        Script { text: String::new(), before }
    }

    fn line(&mut self, words: impl std::fmt::Display) {
        let _ = writeln!(self.text, "{words}");
    }

    fn has(&self, chain: &str) -> bool {
        self.before.chains.iter().any(|c| c.name == chain)
    }

    /// The chains of a generation, which nothing reaches yet.
    fn chains(&mut self, policy: &Policy, generation: &str) {
        let judge = chain_name(JUDGE, generation);
        self.fresh(&judge);
        for (name, _) in DENIED {
            self.line(format!("flush set inet {TABLE} {name}"));
        }
        for rule in rules(policy, generation) {
            self.line(format!("add rule inet {TABLE} {judge} {rule}"));
        }
        for hook in HOOKS.into_iter().filter(|hook| judges_at(policy, hook)) {
            let own = chain_name(hook, generation);
            self.fresh(&own);
            for from in entrances(policy) {
                self.line(format!("add rule inet {TABLE} {own} {from} jump {judge}"));
            }
        }
    }

    fn fresh(&mut self, chain: &str) {
        self.line(format!("add chain inet {TABLE} {chain}"));
        self.line(format!("flush chain inet {TABLE} {chain}"));
    }

    /// Sets the rules of a hook's chain; removes the chain if `rules` is empty.
    fn hook(&mut self, hook: &str, rules: &[String]) {
        if rules.is_empty() {
            self.drop_chain(hook);
            return;
        }
        self.line(format!(
            "add chain inet {TABLE} {hook} {{ type filter hook {hook} priority {PRIORITY}; policy accept; }}"
        ));
        self.line(format!("flush chain inet {TABLE} {hook}"));
        for rule in rules {
            self.line(format!("add rule inet {TABLE} {hook} {rule}"));
        }
    }

    fn drop_chain(&mut self, chain: &str) {
        if self.has(chain) {
            self.line(format!("flush chain inet {TABLE} {chain}"));
            self.line(format!("delete chain inet {TABLE} {chain}"));
        }
    }

    /// Every chain of a generation, when no hook leads there any more.
    fn drop_generation(&mut self, generation: &str) {
        for what in HOOKS.into_iter().chain([JUDGE]) {
            self.drop_chain(&chain_name(what, generation));
        }
        for prefix in [LASTING, ON_TRIAL] {
            for chain in
                self.before.chains.iter().filter(|c| c.name.starts_with(&format!("{prefix}{generation}_")))
            {
                self.drop_chain(&chain.name.clone());
            }
        }
    }

    fn drop_trial_set(&mut self) {
        if self.before.sets.iter().any(|s| s.name == TRIAL) {
            self.line(format!("delete set inet {TABLE} {TRIAL}"));
        }
    }

    /// Begins the time in which packets go the way of the trial.
    fn begin_trial(&mut self, seconds: u64) {
        self.line(format!("add set inet {TABLE} {TRIAL} {{ type nf_proto; flags timeout; }}"));
        self.line(format!("flush set inet {TABLE} {TRIAL}"));
        self.line(format!(
            "add element inet {TABLE} {TRIAL} {{ ipv4 timeout {seconds}s, ipv6 timeout {seconds}s }}"
        ));
    }

    /// The rule of a hook that leads to a generation; `None` where that has none there.
    fn way(&self, hook: &str, generation: Option<&str>) -> Option<String> {
        let chain = chain_name(hook, generation?);
        self.has(&chain).then(|| format!("goto {chain}"))
    }

    fn run(self) -> Result<(), Error> {
        if self.text.is_empty() { Ok(()) } else { run(&self.text) }
    }
}

fn judges_at(policy: &Policy, hook: &str) -> bool {
    policy.hook == Hook::Both || (policy.hook == Hook::Input) == (hook == "input")
}

fn set<A: Address>(text: &mut String, name: &str, kind: &str, ranges: &Ranges<A>) {
    if ranges.is_empty() {
        return;
    }
    let _ = writeln!(text, "  set {name} {{ type {kind}; flags interval; elements = {{");
    for element in ranges.elements() {
        let _ = writeln!(text, "    {element},");
    }
    text.push_str("  } }\n");
}

/// Loads new sets, and then puts all rules into effect in one transaction: for good, or before those that are there for a time.
pub(crate) fn load(policy: &Policy, id: &str, trial_s: Option<u64>) -> Result<(), Error> {
    let before = read()?.unwrap_or_default();
    let used = lasting(&before).map(|(generation, _)| generation);
    let next = GENERATIONS.into_iter().find(|g| Some(*g) != used).unwrap_or(GENERATIONS[0]);
    let left: Vec<String> =
        before.sets.iter().map(|s| s.name.clone()).filter(|name| is_of(name, next)).collect();
    run(&sets_script(policy, next, &left))?;
    check(policy, next)?;
    let mut script = Script::new(&before);
    script.chains(policy, next);
    if let Some(seconds) = trial_s {
        script.begin_trial(seconds);
    }
    for hook in HOOKS {
        let mut rules = Vec::new();
        let way = judges_at(policy, hook).then(|| format!("goto {}", chain_name(hook, next)));
        let before = script.way(hook, used);
        match trial_s {
            None => rules.extend(way),
            Some(_) if way.is_none() && before.is_none() => {}
            Some(_) => {
                let way = way.unwrap_or_else(|| "accept".into());
                rules.push(format!("{WHILE_ON_TRIAL} {way}"));
                rules.extend(before);
            }
        }
        script.hook(hook, &rules);
    }
    if trial_s.is_none() {
        used.into_iter().for_each(|used| script.drop_generation(used));
    }
    let mark = if trial_s.is_some() { ON_TRIAL } else { LASTING };
    script.line(format!("add chain inet {TABLE} {mark}{next}_{id}"));
    script.run()?;
    if trial_s.is_some() { Ok(()) } else { drop_sets(&before, next) }
}

/// The policy that lasts is out of effect for a time: another back end has one on trial.
pub(crate) fn suspend(seconds: u64) -> Result<(), Error> {
    let Some(before) = read()? else { return Ok(()) };
    let Some((used, _)) = lasting(&before) else { return Ok(()) };
    run(&format!("add set inet {TABLE} {TRIAL} {{ type nf_proto; flags timeout; }}\n"))?;
    let mut script = Script::new(&before);
    script.begin_trial(seconds);
    for hook in HOOKS {
        let rules = script.way(hook, Some(used)).map(|way| vec![format!("{WHILE_ON_TRIAL} accept"), way]);
        script.hook(hook, &rules.unwrap_or_default());
    }
    script.run()
}

/// Has one generation alone in effect from now on, and removes the other one and the trial.
fn settle(before: &Tables, keep: &str) -> Result<(), Error> {
    let id =
        [ON_TRIAL, LASTING].into_iter().find_map(|mark| marked(before, mark).filter(|(g, _)| *g == keep));
    let Some((_, id)) = id else { return unload() };
    let mut script = Script::new(before);
    for hook in HOOKS {
        let way: Vec<String> = script.way(hook, Some(keep)).into_iter().collect();
        script.hook(hook, &way);
    }
    GENERATIONS.into_iter().filter(|g| *g != keep).for_each(|other| script.drop_generation(other));
    script.drop_chain(&format!("{ON_TRIAL}{keep}_{id}"));
    script.drop_trial_set();
    script.line(format!("add chain inet {TABLE} {LASTING}{keep}_{id}"));
    script.run()?;
    drop_sets(before, keep)
}

/// Makes the policy on trial permanent; removes a policy that was suspended meanwhile.
pub(crate) fn keep() -> Result<(), Error> {
    let Some(before) = read()? else { return Ok(()) };
    match marked(&before, ON_TRIAL) {
        Some((generation, _)) => settle(&before, generation),
        None if is_on_trial(&before) => unload(),
        None => Ok(()),
    }
}

/// Removes the policy on trial, and puts the previous policy back into effect.
pub(crate) fn end_trial() -> Result<(), Error> {
    let Some(before) = read()? else { return Ok(()) };
    if !is_on_trial(&before) {
        return Ok(());
    }
    match lasting(&before) {
        Some((generation, _)) => settle(&before, generation),
        None => unload(),
    }
}

/// Removes the sets but for those of that generation.
fn drop_sets(before: &Tables, keep: &str) -> Result<(), Error> {
    let old = before.sets.iter().map(|s| s.name.as_str()).filter(|name| is_old(name, keep) && *name != TRIAL);
    let script: String = old.map(|name| format!("delete set inet {TABLE} {name}\n")).collect();
    if script.is_empty() { Ok(()) } else { run(&script) }
}

/// Neither of the generation in use nor of sources.
fn is_old(set: &str, generation: &str) -> bool {
    !is_of(set, generation) && set != TRIAL && DENIED.iter().all(|(name, _)| *name != set)
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

/// Reads weir's own table; `None` if the kernel has no nftables or no table of weir.
fn read() -> Result<Option<Tables>, Error> {
    let Some(mut tables) = nftables::read(&ProcRoot::default())? else { return Ok(None) };
    tables.chains.retain(|c| c.family == Family::Inet && c.table == TABLE);
    tables.rules.retain(|r| r.family == Family::Inet && r.table == TABLE);
    tables.sets.retain(|s| s.family == Family::Inet && s.table == TABLE && !s.anonymous);
    let nothing = tables.chains.is_empty() && tables.sets.is_empty();
    Ok((!nothing).then_some(tables))
}

/// Describes the loaded policy in words that do not change by themselves; empty if none is loaded. Reports the one on trial if
/// two policies are loaded.
pub(crate) fn state() -> Result<String, Error> {
    let Some(tables) = read()? else { return Ok(String::new()) };
    let Some((generation, id)) = upper(&tables) else {
        return Ok(format!("nft: {} chains, {} sets of no policy\n", tables.chains.len(), tables.sets.len()));
    };
    let own = |chain: &str| chain.ends_with(&format!("_{generation}"));
    let hooks = tables.chains.iter().filter(|c| c.base.is_some()).count();
    let rules = tables.rules.iter().filter(|r| own(&r.chain)).count();
    let sets = tables.sets.iter().filter(|s| is_of(&s.name, generation)).count();
    Ok(format!("nft {id}: {hooks} hooks, {rules} rules, {sets} sets\n"))
}

/// Generation and policy that a mark names.
fn marked<'a>(tables: &'a Tables, mark: &str) -> Option<(&'a str, &'a str)> {
    tables.chains.iter().find_map(|c| c.name.strip_prefix(mark)?.split_once('_'))
}

fn lasting(tables: &Tables) -> Option<(&str, &str)> {
    marked(tables, LASTING)
}

/// The one on trial, else the one that lasts.
fn upper(tables: &Tables) -> Option<(&str, &str)> {
    marked(tables, ON_TRIAL).or_else(|| lasting(tables))
}

fn is_on_trial(tables: &Tables) -> bool {
    marked(tables, ON_TRIAL).is_some() || tables.sets.iter().any(|s| s.name == TRIAL)
}

/// Returns the loaded policies, if any.
pub(crate) fn held() -> Result<Held, Error> {
    let Some(tables) = read()? else { return Ok(Held::default()) };
    let name = |found: Option<(&str, &str)>| found.map(|(_, id)| id.to_owned());
    let trial = if is_on_trial(&tables) {
        let listing = command::run(PROGRAM, &["-j", "list", "set", "inet", TABLE, TRIAL], "");
        // Without the set there is no way to the policy on trial either.
        let runs = listing.is_ok_and(|listing| listing.contains("\"elem\""));
        Some(OnTrial { policy: name(marked(&tables, ON_TRIAL)), runs })
    } else {
        None
    };
    Ok(Held { lasting: name(lasting(&tables)), trial })
}

/// Removes what has no effect: sets that no rule asks, and a trial that no journal knows.
pub(crate) fn tidy() -> Result<(), Error> {
    end_trial()?;
    let Some(tables) = read()? else { return Ok(()) };
    let hooked = tables.chains.iter().any(|c| c.base.is_some());
    match lasting(&tables) {
        // Sets that a killed process filled before any rule used them.
        None if !hooked => unload(),
        None => Ok(()),
        Some((used, _)) => drop_sets(&tables, used),
    }
}

/// Takes everything of ours away.
pub(crate) fn unload() -> Result<(), Error> {
    if read()?.is_none() {
        return Ok(());
    }
    // Adding the table first does no harm, and prevents an error if another process has already deleted it.
    run(&format!("add table inet {TABLE}\ndelete table inet {TABLE}\n"))
}

/// Returns the counters of a policy's rules.
pub(crate) fn counted(id: &str) -> Result<Vec<Counted>, Error> {
    let Some(tables) = read()? else { return Ok(Vec::new()) };
    let of = [LASTING, ON_TRIAL].into_iter().find_map(|mark| marked(&tables, mark).filter(|m| m.1 == id));
    let Some((generation, _)) = of else { return Ok(Vec::new()) };
    let judge = chain_name(JUDGE, generation);
    Ok(tables.rules.iter().filter(|rule| rule.chain == judge).filter_map(count).collect())
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
        let listing = match command::run(PROGRAM, &["-j", "list", "set", "inet", TABLE, set], "") {
            Ok(listing) => listing,
            // A trial may end, and take the table with it, between two looks.
            Err(_) if read()?.is_none() => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
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
