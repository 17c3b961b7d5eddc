//! Who is charged with the packets that netfilter dropped: each rule and policy with the packets it can have thrown away,
//! by its counter, by the samples that the rules were asked about, or by both.

use weir_text::order;

use crate::causes::EvidenceView;
use crate::evidence::{
    Backend, Blame, Chain, Delta, DropGroup, Missed, Namespace, Rule, RuleVerdict, Ruleset, Sample, SetState,
    told_by_place,
};
use crate::finding::Claim;

/// Share of a group of drops that may have no attribution because the counts are inexact.
const ROUGH: f64 = 0.1;

/// A rule or policy, and what it is charged with.
#[derive(Debug, Clone)]
pub(super) struct DropAttribution<'a> {
    pub(super) namespace: &'a Namespace,
    /// The rule; `None`: the policy of the chain.
    pub(super) rule: Option<&'a Rule>,
    pub(super) chain: Option<&'a Chain>,
    /// Packets that it threw away, as counted or else as estimated from samples.
    pub(super) packets: u64,
    /// Its counter.
    pub(super) counter: Option<Delta>,
    pub(super) claims: Vec<Claim>,
    /// Packets that it, or perhaps it, threw away.
    pub(super) samples: Vec<&'a Sample>,
    /// Samples that nothing else can have thrown away, of those asked about.
    pub(super) sure: u64,
    pub(super) asked: u64,
    /// Hooks in which it happened.
    pub(super) hooks: Vec<&'a str>,
    /// Accepting rules that lacked one thing.
    pub(super) missed: Vec<(&'a Rule, Missed)>,
    /// Groups of drops that it takes part in.
    pub(super) groups: Vec<&'a DropGroup>,
}

/// The kind of an attribution: one cause for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matter {
    Rule,
    Legacy,
    Policy,
    Bridge,
    Set,
    Limit,
    Reject,
    Random,
}

/// Drops that rules of nftables can be behind.
pub(super) fn is_of_nft(drops: &DropGroup, kernel: &str) -> bool {
    drops.location.starts_with("nft_do_chain")
        || drops.reason == "NETFILTER_DROP" && (drops.location.starts_with("nft_") || !told_by_place(kernel))
}

/// Drops that the old iptables can be behind.
fn is_of_legacy(drops: &DropGroup) -> bool {
    drops.reason == "NETFILTER_DROP" && !drops.location.starts_with("nft_")
}

/// All attributions of a namespace, the largest first.
pub(super) fn attributions<'a>(
    view: &EvidenceView<'a>,
    namespace: &'a Namespace,
) -> Vec<DropAttribution<'a>> {
    let Some(rules) = &namespace.rules else { return Vec::new() };
    let mut court = Court { view, namespace, rules, claimed: vec![0; view.evidence.drops.len()] };
    let mut attributions = court.by_counter();
    attributions.extend(court.by_samples());
    attributions.retain(|c| c.packets > 0);
    court.round_up(&mut attributions);
    order::by_key(&mut attributions, |c| std::cmp::Reverse(c.packets));
    attributions
}

struct Court<'s, 'a> {
    view: &'s EvidenceView<'a>,
    namespace: &'a Namespace,
    rules: &'a Ruleset,
    /// Packets of each group of drops that already have an attribution.
    claimed: Vec<u64>,
}

impl<'a> Court<'_, 'a> {
    /// Those that count what they throw away.
    fn by_counter(&mut self) -> Vec<DropAttribution<'a>> {
        let mut attributions = Vec::new();
        for (at, rule) in self.rules.rules.iter().enumerate() {
            let throws = matches!(rule.verdict, RuleVerdict::Drop | RuleVerdict::Reject);
            if let (true, Some(counter)) = (throws, rule.packets) {
                let chain = self.rules.chains.iter().find(|c| is_of(rule, c));
                attributions.push((Some(rule), chain, counter, self.blamed(|b| b.rule == Some(at))));
            }
        }
        for (at, chain) in self.rules.chains.iter().enumerate() {
            if let (Some(RuleVerdict::Drop), Some(counter)) = (chain.policy, chain.policy_packets) {
                attributions.push((
                    None,
                    Some(chain),
                    counter,
                    self.blamed(|b| b.rule.is_none() && b.chain == at),
                ));
            }
        }
        attributions.retain(|(_, _, counter, _)| counter.change() > 0);
        // Those with samples first: which groups are theirs is known.
        order::by_key(&mut attributions, |(_, _, _, blame)| blame.is_empty());
        let attribution = |(rule, chain, counter, blame): (_, _, Delta, Vec<&'a Blame>)| {
            let mut attribution = self.attribution(rule, chain, &blame);
            attribution.packets = counter.change();
            attribution.counter = Some(counter);
            attribution.claims = self.claims(&attribution, &blame);
            attribution
        };
        attributions.into_iter().map(attribution).collect()
    }

    /// Attributes drops to rules and policies without a counter, by their share of the samples of each group. It excludes packets
    /// that belong to those with a counter.
    fn by_samples(&mut self) -> Vec<DropAttribution<'a>> {
        let counts = |b: &&Blame| match b.rule {
            Some(at) => self.rules.rules[at].packets.is_some(),
            None => self.rules.chains[b.chain].policy_packets.is_some(),
        };
        let deciders = self.rules.blame.iter().filter(|b| !counts(b)).map(|b| (b.rule, b.chain));
        let deciders: Vec<(Option<usize>, usize)> = order::set(deciders).into_iter().collect();
        // The share of those that do not count, for each group.
        let mut shares = vec![0.0; self.view.evidence.drops.len()];
        for blame in self.rules.blame.iter().filter(|b| !counts(b)) {
            if let Some(share) = shares.get_mut(blame.group) {
                *share += blame.share;
            }
        }
        let left: Vec<u64> = self
            .view
            .evidence
            .drops
            .iter()
            .zip(&self.claimed)
            .map(|(d, c)| d.packets.saturating_sub(*c))
            .collect();
        let mut attributions = Vec::new();
        for (rule, chain) in deciders {
            let blame = self.blamed(|b| b.rule == rule && b.chain == chain);
            let of = rule.map(|at| &self.rules.rules[at]);
            let mut attribution = self.attribution(of, self.rules.chains.get(chain), &blame);
            for b in &blame {
                let Some(drops) = self.view.evidence.drops.get(b.group) else { continue };
                let by_share = (drops.packets as f64 * b.share / b.asked.max(1) as f64).round() as u64;
                let of_rest =
                    (left[b.group] as f64 * b.share / shares[b.group].max(f64::MIN_POSITIVE)).round() as u64;
                let packets = by_share.min(of_rest);
                attribution.packets += packets;
                attribution.claims.push(Claim::Drops { group: b.group, packets });
            }
            attributions.push(attribution);
        }
        attributions
    }

    /// Gives the small rest of a group to its largest claimant. The rest exists because counters and drops are not read at the
    /// same moment, and shares of samples are rough.
    fn round_up(&self, attributions: &mut [DropAttribution<'a>]) {
        for (group, drops) in self.view.evidence.drops.iter().enumerate() {
            let of_group = |claim: &&mut Claim| matches!(claim, Claim::Drops { group: g, .. } if *g == group);
            let mut claims: Vec<&mut Claim> =
                attributions.iter_mut().flat_map(|c| &mut c.claims).filter(of_group).collect();
            let left = drops.packets.saturating_sub(claims.iter().map(|c| c.packets()).sum());
            if left as f64 > ROUGH * drops.packets as f64 {
                continue;
            }
            if let Some(Claim::Drops { packets, .. }) = claims.iter_mut().max_by_key(|c| c.packets()) {
                *packets += left;
            }
        }
    }

    fn blamed(&self, is_mine: impl Fn(&Blame) -> bool) -> Vec<&'a Blame> {
        self.rules.blame.iter().filter(|b| is_mine(b)).collect()
    }

    /// An attribution without its packets.
    fn attribution(
        &self,
        rule: Option<&'a Rule>,
        chain: Option<&'a Chain>,
        blame: &[&'a Blame],
    ) -> DropAttribution<'a> {
        let mut attribution = DropAttribution {
            namespace: self.namespace,
            rule,
            chain,
            packets: 0,
            counter: None,
            claims: Vec::new(),
            samples: Vec::new(),
            sure: 0,
            asked: 0,
            hooks: Vec::new(),
            missed: Vec::new(),
            groups: Vec::new(),
        };
        for b in blame {
            let Some(drops) = self.view.evidence.drops.get(b.group) else { continue };
            attribution.samples.extend(b.samples.iter().filter_map(|at| drops.samples.get(*at)));
            attribution.groups.push(drops);
            attribution.sure += b.sure;
            attribution.asked += b.asked;
            if !attribution.hooks.contains(&b.hook.as_str()) {
                attribution.hooks.push(&b.hook);
            }
            for (at, why) in &b.missed {
                if let Some(rule) = self.rules.rules.get(*at) {
                    attribution.missed.push((rule, *why));
                }
            }
        }
        if attribution.hooks.is_empty() {
            let of_rule = rule.into_iter().flat_map(|r| r.hooks.iter().map(String::as_str));
            attribution.hooks = of_rule.chain(chain.and_then(|c| c.hook.as_deref())).collect();
            attribution.hooks.dedup();
        }
        attribution
    }

    /// Splits a counted number of packets over the groups of drops: first over those that the samples name, in their proportion,
    /// then over any that the backend can have caused. If drops are not visible, the counter itself is the loss.
    fn claims(&mut self, attribution: &DropAttribution<'a>, blame: &[&'a Blame]) -> Vec<Claim> {
        let evidence = self.view.evidence;
        let legacy = attribution.backend() == Some(Backend::IptablesLegacy);
        let mut left = attribution.packets;
        let mut claims: Vec<(usize, u64)> = Vec::new();
        let estimate = |b: &Blame| {
            let all = evidence.drops.get(b.group).map_or(0, |d| d.packets);
            all as f64 * b.share / b.asked.max(1) as f64
        };
        let all: f64 = blame.iter().map(|b| estimate(b)).sum();
        for b in blame {
            let part = (attribution.packets as f64 * estimate(b) / all.max(f64::MIN_POSITIVE)).round() as u64;
            left -= self.claim(b.group, part.min(left), &mut claims);
        }
        for (group, drops) in evidence.drops.iter().enumerate() {
            let kind = if legacy { is_of_legacy(drops) } else { is_of_nft(drops, &evidence.machine.kernel) };
            if kind && drops.namespace == self.namespace.id {
                left -= self.claim(group, left, &mut claims);
            }
        }
        if claims.is_empty() {
            return vec![self.view.counted(self.namespace, &attribution.name(), attribution.packets)];
        }
        claims.into_iter().map(|(group, packets)| Claim::Drops { group, packets }).collect()
    }

    /// Takes up to that many packets of a group; how many there were.
    fn claim(&mut self, group: usize, packets: u64, claims: &mut Vec<(usize, u64)>) -> u64 {
        let all = self.view.evidence.drops.get(group).map_or(0, |d| d.packets);
        let Some(claimed) = self.claimed.get_mut(group) else { return 0 };
        let packets = packets.min(all.saturating_sub(*claimed));
        *claimed += packets;
        if packets > 0 {
            match claims.iter_mut().find(|(g, _)| *g == group) {
                Some((_, already)) => *already += packets,
                None => claims.push((group, packets)),
            }
        }
        packets
    }
}

fn is_of(rule: &Rule, chain: &Chain) -> bool {
    chain.backend == rule.backend
        && chain.name == rule.chain
        && chain.table == rule.table
        && chain.family == rule.family
}

impl<'a> DropAttribution<'a> {
    pub(super) fn backend(&self) -> Option<Backend> {
        self.rule.map(|r| r.backend).or(self.chain.map(|c| c.backend))
    }

    pub(super) fn family(&self) -> &'a str {
        self.rule.map(|r| r.family.as_str()).or(self.chain.map(|c| c.family.as_str())).unwrap_or_default()
    }

    pub(super) fn table(&self) -> &'a str {
        self.rule.map(|r| r.table.as_str()).or(self.chain.map(|c| c.table.as_str())).unwrap_or_default()
    }

    pub(super) fn chain_name(&self) -> &'a str {
        self.rule.map(|r| r.chain.as_str()).or(self.chain.map(|c| c.name.as_str())).unwrap_or_default()
    }

    /// `rule inet filter forward handle 12`, or `policy of inet filter forward`.
    pub(super) fn name(&self) -> String {
        let chain = format!("{} {} {}", self.family(), self.table(), self.chain_name());
        match self.rule {
            Some(rule) if rule.backend == Backend::IptablesLegacy => {
                format!("rule {} of {chain}", rule.handle)
            }
            Some(rule) => format!("rule {chain} handle {}", rule.handle),
            None => format!("policy of {chain}"),
        }
    }

    /// Which cause it is a matter of.
    pub(super) fn matter(&self) -> Matter {
        if self.is_bridged() {
            return Matter::Bridge;
        }
        let lacked = |why: Missed| self.missed.iter().any(|(_, w)| *w == why);
        let set = self.set_at_fault().is_some();
        match self.rule {
            Some(rule) if rule.random => Matter::Random,
            Some(rule) if rule.limit => Matter::Limit,
            _ if set => Matter::Set,
            _ if lacked(Missed::Limit) => Matter::Limit,
            Some(rule) if rule.backend == Backend::IptablesLegacy => Matter::Legacy,
            Some(rule) if rule.verdict == RuleVerdict::Reject => Matter::Reject,
            Some(_) => Matter::Rule,
            None if self.backend() == Some(Backend::IptablesLegacy) => Matter::Legacy,
            None => Matter::Policy,
        }
    }

    /// A set that is full, or whose elements end by themselves, and that lacks what would have let the packets pass.
    pub(super) fn set_at_fault(&self) -> Option<&'a SetState> {
        let sets = &self.namespace.rules.as_ref()?.sets;
        let find = |rule: &Rule| {
            let name = rule.set.as_deref()?;
            sets.iter().find(|s| {
                s.name == name && (s.table.is_empty() || s.table == rule.table && s.family == rule.family)
            })
        };
        let weak = |set: &&SetState| set.is_full() || set.timeout;
        let missed =
            self.missed.iter().filter(|(_, why)| *why == Missed::Set).filter_map(|(rule, _)| find(rule));
        // A rule that throws away what is not in the set.
        let negated = self.rule.filter(|r| {
            r.set.as_ref().is_some_and(|set| {
                r.text.contains(&format!("!= @{set}")) || r.text.contains(&format!("! --match-set {set}"))
            })
        });
        missed.chain(negated.and_then(find)).find(weak)
    }

    /// Frames that a bridge passes on, and that rules for IP packets threw away.
    fn is_bridged(&self) -> bool {
        if !matches!(self.family(), "ip" | "ip6" | "inet") || self.samples.is_empty() {
            return false;
        }
        let bridged = self.samples.iter().filter(|s| bridge_of(self.namespace, s.came_in).is_some()).count();
        2 * bridged > self.samples.len()
    }
}

/// The bridge that an interface is a port of.
pub(super) fn bridge_of(namespace: &Namespace, port: u32) -> Option<&str> {
    let master = namespace.interface(port)?.master?;
    let bridge = namespace.interface(master)?;
    (bridge.kind == "bridge").then_some(bridge.name.as_str())
}
