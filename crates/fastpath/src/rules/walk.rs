//! The way of carried packets through base chains: which rules decide differently about packets of one flow.
//!
//! A drop that all packets of a flow meet was met by its first ones, which took the kernel's way. So a drop matters only where
//! some packets of a flow reach it and others do not. The walk carries along the rules that this depends on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use super::ends::{Ends, Matched, MatchedFlows};
use super::judged::{Act, Judged, RuleVerdict, When};
use super::traffic::{Conditions, Traffic};
use super::{Bypassed, Effect};

/// Chains lead to chains at most this deep (NFT_JUMP_STACK_SIZE, include/net/netfilter/nf_tables.h).
const DEEPEST: usize = 16;
/// Different ends with which packets of one kind come to a rule; beyond, they are not told apart.
const MOST_ENDS: usize = 64;
/// Rules looked at in one base chain, since chains may lead to each other in many ways.
const MOST: usize = 1 << 20;

/// A chain by its table and name.
pub(super) type Key = (String, String);

/// A chain that packets meet at a hook.
#[derive(Debug, Clone)]
pub(super) struct BaseChain {
    pub(super) key: Key,
    pub(super) ipv4: bool,
    pub(super) ipv6: bool,
    /// Connection tracking has seen the packet before.
    pub(super) tracked: bool,
    /// The policy is to drop.
    pub(super) drops: bool,
}

/// Rules of one origin.
pub(super) trait Rules {
    /// Chains that forwarded packets meet and that the fast path bypasses.
    fn base_chains(&self) -> Vec<BaseChain>;
    /// The rules of a chain, by number.
    fn chain(&self, key: &Key) -> Vec<usize>;
    fn judge(&mut self, rule: usize, conditions: Conditions) -> Judged;
    /// Place and words of a rule.
    fn describe(&self, rule: usize) -> (String, String);
    /// Any rule, wherever it is, sets marks of packets.
    fn sets_marks(&self) -> bool;
    /// Any rule writes addresses or ports without connection tracking.
    fn rewrites_ends(&self) -> bool;
}

/// Rules whose matches decide whether a packet comes to some place. Empty: it is the same for all packets of a flow.
type Reach = BTreeSet<usize>;

/// Something about a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Finding {
    /// A noun for what the outcome depends on.
    Depends(String),
    /// A noun for what UDP without replies alone depends on.
    DependsUnanswered(String),
    /// A sentence why the outcome changes otherwise.
    Changes(String),
    /// A noun for what records packets.
    Records(String),
}

/// The effect of a rule on all kinds of packets, and one sentence about it.
fn sentence(findings: &BTreeSet<Finding>) -> (Effect, String) {
    let all = |wanted: fn(&Finding) -> Option<&String>| -> Vec<&str> {
        findings.iter().filter_map(wanted).map(String::as_str).collect()
    };
    let depends = all(|f| if let Finding::Depends(what) = f { Some(what) } else { None });
    let unanswered = all(|f| if let Finding::DependsUnanswered(what) = f { Some(what) } else { None });
    let changes = all(|f| if let Finding::Changes(why) = f { Some(why) } else { None });
    let on = |what: &[&str]| {
        format!("the outcome depends on {}, and carried packets bypass it", what.join(" or "))
    };
    if !changes.is_empty() {
        (Effect::Changes, changes.join("; "))
    } else if !depends.is_empty() {
        (Effect::Changes, on(&depends))
    } else if !unanswered.is_empty() {
        (Effect::Changes, format!("{} (UDP without replies, which stays new)", on(&unanswered)))
    } else {
        let what = all(|f| if let Finding::Records(what) = f { Some(what) } else { None });
        (Effect::Records, format!("carried packets do not reach {}", what.join(" and ")))
    }
}

/// Finds what is bypassed; whether a mark differs within a flow.
///
/// No exclusion covers a rule if `rewrites`: other rules write addresses, and a rule does not see the ends of the flow.
pub(super) fn find(rules: &mut dyn Rules, mark_varies: bool, rewrites: bool) -> (Vec<Bypassed>, bool) {
    let mut walk = Walk {
        rules,
        conditions: Conditions { traffic: Traffic::default(), tracked: true, mark_varies },
        judged: HashMap::new(),
        budget: 0,
        pending: Vec::new(),
        let_pass: BTreeSet::new(),
        accepts: 0,
        found: BTreeMap::new(),
        met: HashMap::new(),
        shared: BTreeSet::new(),
        mark_varies,
    };
    let mut unfinished = Vec::new();
    for base in walk.rules.base_chains() {
        walk.base_chain(&base, &mut unfinished);
    }
    let mut all = Vec::new();
    for (rule, found) in &walk.found {
        let flows = match walk.met_flows(*rule, &found.kinds) {
            Some(matched) if !rewrites => MatchedFlows::of(matched),
            _ => MatchedFlows::default(),
        };
        let (place, rule) = walk.rules.describe(*rule);
        let (effect, why) = sentence(&found.findings);
        all.push(Bypassed::new(place, rule, (effect, why), flows));
    }
    all.extend(unfinished);
    (all, walk.mark_varies)
}

struct Walk<'r> {
    rules: &'r mut dyn Rules,
    conditions: Conditions,
    judged: HashMap<(usize, Conditions), Rc<Judged>>,
    budget: usize,
    /// Findings that hold only if packets leave the base chain behind them: those that are all dropped are never carried.
    pending: Vec<(usize, Finding)>,
    /// Rules that let some packets of a flow leave the base chain.
    let_pass: BTreeSet<usize>,
    /// How many times packets may have left the base chain.
    accepts: usize,
    found: BTreeMap<usize, Found>,
    /// The ends with which packets of a kind came to a rule.
    met: HashMap<(usize, Traffic), BTreeSet<Ends>>,
    /// Rules whose outcome depends on packets that they do not match, too.
    shared: BTreeSet<usize>,
    mark_varies: bool,
}

/// Everything about one rule.
#[derive(Default)]
struct Found {
    findings: BTreeSet<Finding>,
    /// Packets whose outcome changes.
    kinds: BTreeSet<Traffic>,
}

/// A rule on the way.
struct Step<'s> {
    rule: usize,
    when: &'s When,
    /// The rules that decide whether a packet comes to this rule, and whether it matches.
    reach: &'s Reach,
    own: &'s Reach,
    key: &'s Key,
    /// The ends of all packets that match.
    ends: &'s Ends,
    depth: usize,
}

impl Walk<'_> {
    fn base_chain(&mut self, base: &BaseChain, unfinished: &mut Vec<Bypassed>) {
        for traffic in Traffic::all() {
            if !(if traffic.ipv6 { base.ipv6 } else { base.ipv4 }) {
                continue;
            }
            self.conditions =
                Conditions { traffic, tracked: base.tracked, mark_varies: self.conditions.mark_varies };
            self.budget = MOST;
            self.pending.clear();
            self.let_pass.clear();
            match self.chain(&base.key, &Reach::new(), &Ends::default(), 0) {
                Some(reach) if base.drops => self.dropped(&reach),
                Some(reach) => self.accepted(&reach),
                None => {}
            }
            if self.budget == 0 {
                let (table, chain) = &base.key;
                let why = "its chains lead to each other in too many ways to be read".to_owned();
                let place = format!("{table}, chain {chain}");
                let nothing = MatchedFlows::default();
                unfinished.push(Bypassed::new(place, String::new(), (Effect::Changes, why), nothing));
                return;
            }
        }
    }

    /// Walks a chain; which packets come to its end or return from it.
    fn chain(&mut self, key: &Key, reach: &Reach, ends: &Ends, depth: usize) -> Option<Reach> {
        if depth > DEEPEST {
            return Some(reach.clone());
        }
        let mut reach = reach.clone();
        let mut returned: Option<Reach> = None;
        for rule in self.rules.chain(key) {
            if self.budget == 0 {
                return Some(reach);
            }
            self.budget -= 1;
            let judged = self.judge(rule);
            // One that counts packets before it rules them out decides by other flows, too.
            if judged.is_shared || judged.counts && judged.when == When::Never {
                self.shared.insert(rule);
            }
            if judged.when == When::Never {
                continue;
            }
            let matched = ends.and(&judged.ends);
            self.meet(rule, &matched);
            let mut own = reach.clone();
            if matches!(judged.when, When::Varies(_)) {
                own.insert(rule);
            }
            // Packets that a rule drops are not carried, so nothing of theirs is missed.
            let drops = judged.verdicts == [RuleVerdict::Drop] && !judged.perhaps;
            for act in judged.acts.iter().filter(|_| !drops) {
                self.act(rule, act, &own);
            }
            let when =
                if judged.perhaps { judged.when.clone().and(When::Constant) } else { judged.when.clone() };
            let mut after = if judged.verdicts.is_empty() { Some(reach.clone()) } else { None };
            for verdict in &judged.verdicts {
                let step = Step { rule, when: &when, reach: &reach, own: &own, key, ends: &matched, depth };
                let next = self.verdict(verdict, &step, &mut returned);
                after = merged(after, next);
            }
            match after {
                Some(next) => reach = next,
                None => return returned,
            }
        }
        merged(Some(reach), returned)
    }

    /// Which packets come to the next rule.
    fn verdict(
        &mut self,
        verdict: &RuleVerdict,
        step: &Step<'_>,
        returned: &mut Option<Reach>,
    ) -> Option<Reach> {
        let Step { rule, when, reach, own, key, ends, depth } = *step;
        // If the packets that match are gone.
        let others = match when {
            When::Always => None,
            When::Varies(_) => Some(own.clone()),
            _ => Some(reach.clone()),
        };
        let chain = |name: &String| (key.0.clone(), name.clone());
        match verdict {
            RuleVerdict::Drop => {
                self.dropped(own);
                others.map(|_| reach.clone())
            }
            RuleVerdict::Accept => {
                self.accepted(own);
                others
            }
            RuleVerdict::Queue => {
                let why = "a program decides about each packet, and does not see carried ones";
                self.pending.push((rule, Finding::Changes(why.to_owned())));
                self.accepted(own);
                others
            }
            RuleVerdict::Unreadable(what) => {
                self.pending.push((rule, Finding::Changes(format!("weir cannot read {what}"))));
                self.accepted(own);
                Some(reach.clone())
            }
            RuleVerdict::Return => {
                *returned = merged(returned.take(), Some(own.clone()));
                others
            }
            RuleVerdict::Jump(name) => {
                let before = self.accepts;
                let end = self.chain(&chain(name), own, ends, depth + 1);
                if self.accepts == before {
                    // All that were not dropped come back.
                    let back = end.is_some() || others.is_some();
                    return back.then(|| reach.clone());
                }
                merged(others, end)
            }
            RuleVerdict::Goto(name) => {
                let before = self.accepts;
                let end = self.chain(&chain(name), own, ends, depth + 1);
                let end = if self.accepts == before { end.map(|_| own.clone()) } else { end };
                *returned = merged(returned.take(), end);
                others
            }
        }
    }

    fn judge(&mut self, rule: usize) -> Rc<Judged> {
        if let Some(judged) = self.judged.get(&(rule, self.conditions)) {
            return Rc::clone(judged);
        }
        let judged = Rc::new(self.rules.judge(rule, self.conditions));
        self.judged.insert((rule, self.conditions), Rc::clone(&judged));
        judged
    }

    /// Packets with these ends come to a rule.
    fn meet(&mut self, rule: usize, ends: &Ends) {
        let met = self.met.entry((rule, self.conditions.traffic)).or_default();
        if met.len() < MOST_ENDS {
            met.insert(ends.clone());
        } else {
            *met = BTreeSet::from([Ends::default()]);
        }
    }

    /// Packets of these kinds that came to a rule; `None` if its outcome depends on others, too.
    fn met_flows(&self, rule: usize, kinds: &BTreeSet<Traffic>) -> Option<Vec<Matched>> {
        if self.shared.contains(&rule) {
            return None;
        }
        let mut all = Vec::new();
        for kind in kinds {
            let ends = self.met.get(&(rule, *kind)).into_iter().flatten();
            all.extend(ends.map(|ends| Matched::new(kind.ipv6, kind.udp, ends.clone())));
        }
        Some(all)
    }

    fn act(&mut self, rule: usize, act: &Act, own: &Reach) {
        match act {
            Act::Records(what) => self.pending.push((rule, Finding::Records(what.clone()))),
            Act::Rewrites(why) => self.pending.push((rule, Finding::Changes(why.clone()))),
            Act::Alters | Act::Marks => {
                self.mark_varies |= *act == Act::Marks && !own.is_empty();
                for source in own {
                    let why = self.depends(*source);
                    self.pending.extend(why.into_iter().map(|why| (*source, why)));
                }
            }
        }
    }

    /// Packets leave the base chain: findings so far hold.
    fn accepted(&mut self, own: &Reach) {
        self.accepts += 1;
        self.let_pass.extend(own);
        for (rule, finding) in std::mem::take(&mut self.pending) {
            self.find(rule, [finding]);
        }
    }

    fn find(&mut self, rule: usize, findings: impl IntoIterator<Item = Finding>) {
        let found = self.found.entry(rule).or_default();
        for finding in findings {
            if !matches!(finding, Finding::Records(_)) {
                found.kinds.insert(self.conditions.traffic);
            }
            found.findings.insert(finding);
        }
    }

    /// Packets are dropped, and others of their flow perhaps not.
    fn dropped(&mut self, own: &Reach) {
        for source in own {
            let why = self.depends(*source);
            if self.let_pass.contains(source) {
                self.find(*source, why);
            } else {
                self.pending.extend(why.into_iter().map(|why| (*source, why)));
            }
        }
    }

    /// Nouns for the things that a rule depends on.
    fn depends(&mut self, rule: usize) -> Vec<Finding> {
        let judged = self.judge(rule);
        let When::Varies(what) = &judged.when else { return Vec::new() };
        let finding =
            if self.conditions.traffic.answered { Finding::Depends } else { Finding::DependsUnanswered };
        what.iter().cloned().map(finding).collect()
    }
}

/// Packets that come from both ways.
fn merged(one: Option<Reach>, other: Option<Reach>) -> Option<Reach> {
    match (one, other) {
        (Some(mut one), Some(other)) => {
            one.extend(other);
            Some(one)
        }
        (one, other) => one.or(other),
    }
}
