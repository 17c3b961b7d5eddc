//! Finds the rule, or the chain's policy, behind the drops of netfilter: it evaluates the rules for the samples. Unknown facts
//! about a packet (the connection tracking state, a limit, chance) leave more than one answer; counters that did not move then
//! rule some of them out.

use std::collections::HashMap;
use std::net::IpAddr;

use weir_netlink::nftables::{Asker, Element, Family, Hook, Tables};
use weir_text::order;

use super::listing::Lister;
use super::matching::AskSet;
use super::packet::{Names, Packet, State, Through};
use super::walk::{Decider, Walker, Way};
use crate::evidence::{Blame, DropGroup, Interface, Missed, Namespace, Rule, Ruleset, Sample, told_by_place};

/// Samples that are asked about, of one group and of a namespace.
const SAMPLES: usize = 32;
const ALL_SAMPLES: usize = 512;
/// Rules that are asked, and keys that sets are asked for, at most: a ruleset of 100,000 rules is walked a few dozen times.
const RULES: u64 = 3_000_000;
const KEYS: usize = 20_000;

/// A stop on a packet's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stop {
    hook: Hook,
    came_in: Through,
    goes_out: Through,
}

/// Fills [`Ruleset::blame`] and [`crate::evidence::Rule::decided`]. `groups` are those of this namespace with their place in
/// [`crate::evidence::Evidence::drops`]. `before` is what the namespace counted before the window.
pub(super) fn decide(
    tables: &Tables,
    inside: &mut Namespace,
    groups: &[(usize, &DropGroup)],
    invalid: Option<u64>,
) {
    let Some(mut rules) = inside.rules.take() else { return };
    let names = Names::of(&inside.interfaces);
    let mut walker = Walker::new(tables, &names, RULES);
    let mut sets = Sets::open();
    let mut left = ALL_SAMPLES;
    for (group, drops) in groups {
        let mut tally = GroupAnswers::default();
        for (at, sample) in drops.samples.iter().take(SAMPLES.min(left)).enumerate() {
            left -= 1;
            let way = whole_way(&mut walker, inside, drops, sample, invalid, &mut sets);
            tally.add(at, way, |decider| may_have(tables, &rules, decider));
        }
        tally.into_blame(*group, tables, &mut rules);
    }
    inside.rules = Some(rules);
}

/// True of drops that a rule can be behind.
pub(super) fn is_of_rules(drops: &DropGroup, kernel: &str) -> bool {
    // If the place does not tell rules from connection tracking, the rules are evaluated for all of these drops.
    let place = drops.location.starts_with("nft_");
    drops.reason == "NETFILTER_DROP" && (place || !told_by_place(kernel))
        || drops.location.starts_with("nft_do_chain")
        || drops.reason == "NETFILTER_INGRESS"
}

/// All ways that a packet may have gone, for each state that connection tracking may have seen.
pub(super) fn whole_way(
    walker: &mut Walker<'_>,
    inside: &Namespace,
    group: &DropGroup,
    sample: &Sample,
    invalid: Option<u64>,
    sets: &mut dyn AskSet,
) -> Way {
    let mut whole = Way { ends: true, ..Way::default() };
    let stops = stops(inside, group, sample);
    for state in states(sample, group, invalid, walker.untracks()) {
        let mut way = Way::default();
        for stop in &stops {
            let mut packet = Packet::new(sample, group, stop.hook, state);
            packet.came_in = stop.came_in;
            packet.goes_out = stop.goes_out;
            packet.marks_change = walker.marks_change();
            walker.hook(&packet, sets, &mut way);
            if way.ends {
                break;
            }
        }
        whole.ends &= way.ends;
        for decider in way.deciders {
            if !whole.deciders.contains(&decider) {
                whole.deciders.push(decider);
            }
        }
        for missed in way.missed {
            if !whole.missed.contains(&missed) {
                whole.missed.push(missed);
            }
        }
    }
    whole
}

/// States that connection tracking may have seen, by what the packet is (nf_conntrack_proto_tcp.c, nf_conntrack_core.c).
fn states(sample: &Sample, group: &DropGroup, invalid: Option<u64>, untracks: bool) -> Vec<State> {
    let packet = Packet::new(sample, group, Hook::Forward, State::New);
    let mut states = match packet.tcp_flags() {
        // SYN alone opens; RST alone never does; anything else may be taken up in the middle (nf_conntrack_tcp_loose).
        Some(flags) if flags & 0x12 == 0x02 => vec![State::New],
        Some(flags) if flags & 0x04 != 0 => vec![State::Established],
        Some(_) => vec![State::Established, State::New],
        None if packet.icmp_error() => vec![State::Related],
        None => vec![State::New, State::Established],
    };
    // Without the statistics, or if they moved, a packet may have been invalid.
    if invalid != Some(0) {
        states.push(State::Invalid);
    }
    if untracks {
        states.push(State::Untracked);
    }
    states
}

/// Returns the hooks that a packet passes. Its interface shows which of them it had passed already: before routing it has the one
/// it came in through, after routing the one it leaves by (ip_output). A packet made here has none before that.
fn stops(inside: &Namespace, group: &DropGroup, sample: &Sample) -> Vec<Stop> {
    let stop = |hook, came_in, goes_out| Stop { hook, came_in, goes_out };
    let by = |index: u32| if index == 0 { Through::Unknown } else { Through::This(index) };
    let route = route(inside, sample);
    if sample.came_in == 0 {
        let out = if group.interface != 0 { by(group.interface) } else { route.map_or(Through::Unknown, by) };
        let output = stop(Hook::Output, Through::None, out);
        let after = stop(Hook::Postrouting, Through::None, out);
        return if group.interface == 0 {
            vec![output]
        } else {
            vec![output, after, stop(Hook::Egress, Through::None, out)]
        };
    }
    let port = Through::This(sample.came_in);
    let master = inside.interface(sample.came_in).and_then(|i| i.master);
    let bridge = master.filter(|m| inside.interface(*m).is_some_and(|i| i.kind == "bridge"));
    if let Some(bridge) = bridge {
        // Rules of the bridge see its ports; rules of IP, called from there, see the bridge on both sides.
        let whole = Through::This(bridge);
        return vec![
            stop(Hook::Ingress, port, Through::None),
            stop(Hook::Prerouting, whole, Through::None),
            stop(Hook::Forward, whole, whole),
            stop(Hook::Postrouting, Through::None, whole),
        ];
    }
    if group.interface != 0 && group.interface != sample.came_in {
        // The interface that a forwarded packet came in through is known here, too (ip_output, Linux 5.7).
        return vec![stop(Hook::Postrouting, port, by(group.interface))];
    }
    let mut stops =
        vec![stop(Hook::Ingress, port, Through::None), stop(Hook::Prerouting, port, Through::None)];
    match is_local(inside, sample) {
        Some(true) => stops.push(stop(Hook::Input, port, Through::None)),
        Some(false) => stops.push(stop(Hook::Forward, port, route.map_or(Through::Unknown, by))),
        None => {
            stops.push(stop(Hook::Input, port, Through::None));
            stops.push(stop(Hook::Forward, port, Through::Unknown));
        }
    }
    stops
}

/// Interface that the kernel said a packet would leave by.
fn route(inside: &Namespace, sample: &Sample) -> Option<u32> {
    let tuple = sample.tuple()?;
    let lookups = &inside.routes.as_ref()?.lookups;
    let same = lookups.iter().find(|l| l.destination == tuple.destination && l.came_in == sample.came_in);
    same.map(|l| l.interface).filter(|i| *i != 0)
}

/// True if the packet is for this host; `None` if unknown.
fn is_local(inside: &Namespace, sample: &Sample) -> Option<bool> {
    let destination = sample.tuple()?.destination;
    if inside.interfaces.is_empty() {
        return None;
    }
    let own = |i: &Interface| i.addresses.iter().any(|(a, prefix)| is_own(destination, *a, *prefix));
    let group = match destination {
        IpAddr::V4(a) => a.is_multicast() || a.is_broadcast(),
        IpAddr::V6(a) => a.is_multicast(),
    };
    Some(group || destination.is_loopback() || inside.interfaces.iter().any(own))
}

/// True of the address itself and of its network's broadcast address.
fn is_own(destination: IpAddr, address: IpAddr, prefix: u8) -> bool {
    match (destination, address) {
        (IpAddr::V4(d), IpAddr::V4(a)) if prefix < 31 => {
            let host = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
            d == a || u32::from(d) == u32::from(a) | host
        }
        _ => destination == address,
    }
}

/// False of a rule or policy whose counter did not move.
fn may_have(tables: &Tables, rules: &Ruleset, decider: Decider) -> bool {
    let packets = match decider {
        Decider::Rule(place) => listed(tables, rules, place).and_then(|at| rules.rules[at].packets),
        Decider::Policy(place) => chain(tables, rules, place).and_then(|at| rules.chains[at].policy_packets),
    };
    packets.is_none_or(|p| p.change() > 0)
}

/// The rule's place among those listed.
fn listed(tables: &Tables, rules: &Ruleset, place: usize) -> Option<usize> {
    let rule = &tables.rules[place];
    rules.rules.iter().position(|r| {
        r.handle == rule.handle
            && r.chain == rule.chain
            && r.table == rule.table
            && r.family == rule.family.name()
    })
}

/// The chain's place among those listed.
fn chain(tables: &Tables, rules: &Ruleset, place: usize) -> Option<usize> {
    let chain = &tables.chains[place];
    let same = |c: &crate::evidence::Chain| {
        c.name == chain.name && c.table == chain.table && c.family == chain.family.name()
    };
    rules.chains.iter().position(same)
}

/// Answers about one group.
#[derive(Debug, Default)]
struct GroupAnswers {
    by: HashMap<(Decider, Hook), Part>,
    asked: u64,
}

/// One decider's possible part in the drops.
#[derive(Debug, Default)]
struct Part {
    sure: u64,
    share: f64,
    samples: Vec<usize>,
    missed: Vec<(usize, Missed)>,
}

impl GroupAnswers {
    fn add(&mut self, sample: usize, way: Way, may_have: impl Fn(Decider) -> bool) {
        self.asked += 1;
        let mut deciders = way.deciders;
        if deciders.iter().any(|(d, _)| may_have(*d)) {
            deciders.retain(|(d, _)| may_have(*d));
        }
        let several = deciders.len();
        for decider in deciders {
            let part = self.by.entry(decider).or_default();
            part.sure += u64::from(several == 1);
            part.share += 1.0 / several as f64;
            part.samples.push(sample);
            for one in &way.missed {
                if !part.missed.contains(one) {
                    part.missed.push(*one);
                }
            }
        }
    }

    fn into_blame(self, group: usize, tables: &Tables, rules: &mut Ruleset) {
        let mut blame = Vec::new();
        for ((decider, hook), part) in self.by {
            let (rule, place) = match decider {
                Decider::Rule(place) => {
                    let at = listed(tables, rules, place).unwrap_or_else(|| {
                        // The rule was not among those kept. Its count before the window is unknown.
                        rules.rules.push(Rule { packets: None, ..Lister::new(tables).rule(place) });
                        rules.rules.len() - 1
                    });
                    let rule = &tables.rules[place];
                    let same = |c: &weir_netlink::nftables::Chain| {
                        c.family == rule.family && c.table == rule.table && c.name == rule.chain
                    };
                    (Some(at), tables.chains.iter().position(same))
                }
                Decider::Policy(place) => (None, Some(place)),
            };
            let Some(at) = place.and_then(|place| chain(tables, rules, place)) else { continue };
            let missed = part.missed.into_iter();
            blame.push(Blame {
                group,
                rule,
                chain: at,
                hook: hook.name().to_owned(),
                sure: part.sure,
                share: part.share,
                asked: self.asked,
                samples: part.samples,
                missed: missed
                    .filter_map(|(place, why)| Some((listed(tables, rules, place)?, why)))
                    .collect(),
            });
        }
        order::by(&mut blame, |a, b| {
            b.share.total_cmp(&a.share).then(a.rule.cmp(&b.rule)).then(a.chain.cmp(&b.chain))
        });
        for one in &blame {
            if let Some(at) = one.rule {
                let (decided, asked) = &mut rules.rules[at].decided;
                *decided += one.share.ceil() as u64;
                *asked += one.asked;
            }
        }
        rules.blame.extend(blame);
    }
}

/// A key of a set.
type Key = (Family, String, String, Vec<u8>);

/// Asks the kernel, each key once.
pub(super) struct Sets {
    asker: Option<Asker>,
    answers: HashMap<Key, Option<Option<Element>>>,
}

impl Sets {
    /// Those of the calling thread's namespace.
    pub(super) fn open() -> Self {
        Sets { asker: Asker::open().ok(), answers: HashMap::new() }
    }
}

impl AskSet for Sets {
    fn ask(&mut self, family: Family, table: &str, set: &str, key: &[u8]) -> Option<Option<Element>> {
        let asked = (family, table.to_owned(), set.to_owned(), key.to_vec());
        if let Some(answer) = self.answers.get(&asked) {
            return answer.clone();
        }
        if self.answers.len() >= KEYS {
            return None;
        }
        let answer = self.asker.as_mut()?.find(family, table, set, key).ok();
        self.answers.insert(asked, answer.clone());
        answer
    }
}
