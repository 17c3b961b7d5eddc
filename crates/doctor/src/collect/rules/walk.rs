//! The way of a packet through base chains and the chains they jump to.

use std::collections::HashMap;

use weir_netlink::nftables::nat::{self, Nat};
use weir_netlink::nftables::{Chain, Expression, Family, Hook, Tables};
use weir_text::order;

use super::matching::{Answer, AskSet, Asking, Says, ask};
use super::packet::{Names, Packet, Through};
use super::xtables::Match;
use crate::evidence::Missed;

/// NFT_JUMP_STACK_SIZE: the kernel refuses deeper jumps.
const JUMPS: usize = 16;

/// Who throws a packet away: places in [`Tables::rules`] and [`Tables::chains`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Decider {
    Rule(usize),
    Policy(usize),
}

/// Whether a place is reached by a packet that was not thrown away before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    Perhaps,
    Surely,
}

/// The rules and policies that may have dropped a packet, in the order of its path, up to the first certain one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) deciders: Vec<(Decider, Hook)>,
    /// Rules that would have let it pass but for one thing.
    pub(super) missed: Vec<(usize, Missed)>,
    /// One of the deciders, or of the translators, surely did it.
    pub(super) ends: bool,
    /// Rules of chains of type nat that may have translated the source, up to the first certain one.
    pub(super) translators: Vec<usize>,
}

/// Tables, ready to be walked.
pub(super) struct Walker<'a> {
    tables: &'a Tables,
    names: &'a Names<'a>,
    /// Rules of each chain.
    rules: HashMap<(Family, &'a str, &'a str), Vec<usize>>,
    sets: HashMap<(Family, &'a str, &'a str), (u32, bool)>,
    /// Rules that may still be asked: a bound on what hostile jumps can cost.
    pub(super) budget: u64,
}

impl<'a> Walker<'a> {
    pub(super) fn new(tables: &'a Tables, names: &'a Names<'a>, budget: u64) -> Self {
        let mut rules: HashMap<_, Vec<usize>> = HashMap::new();
        for (place, rule) in tables.rules.iter().enumerate() {
            rules.entry((rule.family, rule.table.as_str(), rule.chain.as_str())).or_default().push(place);
        }
        let sets = tables.sets.iter().map(|s| {
            let full = s.count.zip(s.size).is_some_and(|(count, size)| count >= size);
            ((s.family, s.table.as_str(), s.name.as_str()), (s.key_length, full))
        });
        Walker { tables, names, rules, sets: sets.collect(), budget }
    }

    /// Goes on from `way` with the base chains of the packet's hook.
    pub(super) fn hook(&mut self, packet: &Packet<'_>, sets: &mut dyn AskSet, way: &mut Way) {
        self.chains(packet, sets, way, false);
    }

    /// Goes through the chains of type nat instead, which the first packet of a connection meets.
    pub(super) fn translate(&mut self, packet: &Packet<'_>, sets: &mut dyn AskSet, way: &mut Way) {
        self.chains(packet, sets, way, true);
    }

    fn chains(&mut self, packet: &Packet<'_>, sets: &mut dyn AskSet, way: &mut Way, translates: bool) {
        for place in self.base_chains(packet, translates) {
            if way.ends {
                return;
            }
            let chain = &self.tables.chains[place];
            let Some(base) = &chain.base else { continue };
            let priority = base.priority;
            let mut visit = Visit { walker: self, packet, priority, sets, way, escapes: 0, translates };
            let end = visit.chain(chain.family, &chain.table, &chain.name, Reach::Surely, 0);
            if let (true, Some(reach)) = (base.drops, end) {
                visit.thrown(Decider::Policy(place), reach);
            }
        }
    }

    /// Base chains that see the packet, in the kernel's order.
    fn base_chains(&self, packet: &Packet<'_>, translates: bool) -> Vec<usize> {
        let family = |family: Family| match (family, packet.version()) {
            (Family::Inet | Family::Ip, 4) | (Family::Inet | Family::Ip6, 6) => true,
            (Family::Netdev | Family::Bridge, _) => true,
            (Family::Arp, _) => packet.ethertype == 0x0806,
            _ => false,
        };
        let on_device = |chain: &Chain, devices: &[String]| {
            let through = if packet.hook == Hook::Egress { packet.goes_out } else { packet.came_in };
            match (devices.is_empty(), through) {
                (true, _) => chain.family != Family::Netdev,
                (false, Through::This(index)) => {
                    self.names.get(index).is_some_and(|name| devices.iter().any(|d| d == name))
                }
                (false, _) => false,
            }
        };
        let mut places: Vec<(i32, usize)> = Vec::new();
        for (place, chain) in self.tables.chains.iter().enumerate() {
            let Some(base) = &chain.base else { continue };
            // Chains of type nat see only the first packet of a connection and translate it.
            let sees = base.hook == packet.hook
                && family(chain.family)
                && (base.kind == "nat") == translates
                && on_device(chain, &base.devices);
            if sees {
                places.push((base.priority, place));
            }
        }
        order::by_key(&mut places, |place| *place);
        places.into_iter().map(|(_, place)| place).collect()
    }

    /// True if any rule changes the mark of packets.
    pub(super) fn marks_change(&self) -> bool {
        let sets = |e: &Expression| match e {
            Expression::MetaSet { key, .. } => *key == 3,
            Expression::Target { name, .. } => name == "MARK" || name == "CONNMARK",
            _ => false,
        };
        self.tables.rules.iter().any(|r| r.expressions.iter().any(sets))
    }

    /// True if any rule leaves packets untracked.
    pub(super) fn untracks(&self) -> bool {
        let untracks = |e: &Expression| match e {
            Expression::Statement(name) => name == "notrack",
            Expression::Target { name, .. } => name == "CT" || name == "NOTRACK",
            _ => false,
        };
        self.tables.rules.iter().any(|r| r.expressions.iter().any(untracks))
    }
}

/// One base chain being walked.
struct Visit<'w, 'a, 'p, 't> {
    walker: &'w mut Walker<'a>,
    packet: &'w Packet<'p>,
    priority: i32,
    sets: &'w mut dyn AskSet,
    way: &'t mut Way,
    /// How often the packet may have got out of the base chain unharmed.
    escapes: u64,
    /// The chain is of type nat.
    translates: bool,
}

impl Visit<'_, '_, '_, '_> {
    /// Walks a chain that is reached; whether its end is.
    fn chain(
        &mut self,
        family: Family,
        table: &str,
        name: &str,
        mut reach: Reach,
        depth: usize,
    ) -> Option<Reach> {
        let rules = self.walker.rules.get(&(family, table, name)).cloned().unwrap_or_default();
        // Ways out of the chain before its end that go on in the chain that jumped here.
        let mut returns = None;
        for place in rules {
            if self.way.ends {
                return None;
            }
            if depth > JUMPS || self.walker.budget == 0 {
                return Some(Reach::Perhaps);
            }
            self.walker.budget -= 1;
            let answer = self.ask(place);
            self.note_missed(place, &answer);
            if answer.matches == Match::No {
                continue;
            }
            let certain = answer.matches == Match::Yes;
            let taken = if certain { reach } else { Reach::Perhaps };
            let escapes = self.escapes;
            // Whether it lets the packet out of the base chain, or out of this one.
            self.escapes += u64::from(!matches!(answer.says, Says::Nothing | Says::Drop | Says::Jump(_)));
            let goes_on = match answer.says {
                Says::Nothing => continue,
                Says::Jump(to) => self.chain(family, table, &to, taken, depth + 1),
                Says::Goto(to) => {
                    returns = self.chain(family, table, &to, taken, depth + 1).or(returns);
                    None
                }
                Says::Return => {
                    returns = Some(taken);
                    None
                }
                Says::Accept => {
                    self.translated(place, taken);
                    None
                }
                Says::Drop => {
                    self.thrown(Decider::Rule(place), taken);
                    None
                }
                Says::Anything => {
                    self.thrown(Decider::Rule(place), Reach::Perhaps);
                    Some(Reach::Perhaps)
                }
            };
            match (certain, goes_on) {
                (true, None) => return returns,
                (true, Some(next)) => reach = next,
                // The rule can only have dropped the packet: if it did not, the packet reaches the next rule.
                (false, _) if self.escapes == escapes => {}
                (false, _) => reach = Reach::Perhaps,
            }
        }
        Some(reach)
    }

    fn ask(&mut self, place: usize) -> Answer {
        let walker = &*self.walker;
        let set = |family: Family, table: &str, set: &str| walker.sets.get(&(family, table, set)).copied();
        let asking = Asking { packet: self.packet, names: walker.names, priority: self.priority, set: &set };
        ask(&walker.tables.rules[place], &asking, self.sets)
    }

    fn note_missed(&mut self, place: usize, answer: &Answer) {
        if let (Says::Accept, Some(missed)) = (&answer.says, answer.missed)
            && !self.way.missed.contains(&(place, missed))
        {
            self.way.missed.push((place, missed));
        }
    }

    /// A rule accepts the packet. In a chain of type nat it may have translated its source first, and no other rule does then.
    fn translated(&mut self, place: usize, reach: Reach) {
        let rule = &self.walker.tables.rules[place];
        if !self.translates || !matches!(nat::of(&rule.expressions), Some(Nat::Source(_))) {
            return;
        }
        if !self.way.translators.contains(&place) {
            self.way.translators.push(place);
        }
        self.way.ends |= reach == Reach::Surely;
    }

    fn thrown(&mut self, decider: Decider, reach: Reach) {
        let entry = (decider, self.packet.hook);
        if !self.way.deciders.contains(&entry) {
            self.way.deciders.push(entry);
        }
        self.way.ends |= reach == Reach::Surely;
    }
}
