//! Evidence made by hand, for the tests of this group.

use std::net::{IpAddr, SocketAddr};

use crate::evidence::{
    Backend, Blame, Chain, Delta, DropGroup, Evidence, EvidenceSource, Interface, Missed, Namespace, Rule,
    RuleVerdict, Ruleset, Sample, SetState, Sight,
};

/// Number of the namespace.
const HERE: u64 = 7;

/// A gateway with one chain, through which 10,000 packets came in 10 s.
#[derive(Debug, Clone)]
pub(super) struct Firewall {
    evidence: Evidence,
}

impl Firewall {
    pub(super) fn new() -> Self {
        let interface = |index, name: &str, passed| Interface {
            index,
            name: name.into(),
            counters: [("rx_packets".into(), Delta { before: 0, after: passed })].into(),
            ..Interface::default()
        };
        let chain = Chain {
            backend: Backend::Nft,
            family: "inet".into(),
            table: "filter".into(),
            name: "forward".into(),
            hook: Some("forward".into()),
            priority: Some(0),
            policy: Some(RuleVerdict::Accept),
            policy_packets: None,
        };
        let here = Namespace {
            id: HERE,
            name: "gateway".into(),
            interfaces: vec![interface(2, "inside", 10_000), interface(3, "outside", 0)],
            rules: Some(Ruleset { chains: vec![chain], ..Ruleset::default() }),
            ..Namespace::default()
        };
        let mut evidence = Evidence { window_s: 10.0, namespaces: vec![here], ..Evidence::default() };
        evidence.machine.kernel = "6.18.44".into();
        for source in [EvidenceSource::Drops, EvidenceSource::Rules, EvidenceSource::Interfaces] {
            evidence.evidence_sources.insert(source, Sight::Seen);
        }
        Firewall { evidence }
    }

    pub(super) fn here(&mut self) -> &mut Namespace {
        &mut self.evidence.namespaces[0]
    }

    fn rules(&mut self) -> &mut Ruleset {
        self.here().rules.get_or_insert_default()
    }

    pub(super) fn chain(&mut self) -> &mut Chain {
        &mut self.rules().chains[0]
    }

    /// The last rule.
    pub(super) fn last(&mut self) -> &mut Rule {
        self.rules().rules.last_mut().unwrap()
    }

    /// The chain, at that hook, drops what no rule decides about.
    pub(super) fn policy(mut self, hook: &str) -> Self {
        self.chain().name = hook.into();
        self.chain().hook = Some(hook.into());
        self.chain().policy = Some(RuleVerdict::Drop);
        self
    }

    /// A rule without a counter; its text says what it does.
    pub(super) fn rule(mut self, text: &str) -> Self {
        let (hook, name) = (self.chain().hook.clone(), self.chain().name.clone());
        let position = self.rules().rules.len() as u64 + 1;
        let verdict = match text {
            t if t.ends_with("drop") => RuleVerdict::Drop,
            t if t.contains("reject") => RuleVerdict::Reject,
            t if t.ends_with("accept") => RuleVerdict::Accept,
            _ => RuleVerdict::Other,
        };
        self.rules().rules.push(Rule {
            backend: Backend::Nft,
            family: "inet".into(),
            table: "filter".into(),
            chain: name,
            handle: 10 + position,
            position,
            hooks: hook.into_iter().collect(),
            text: text.into(),
            comment: None,
            verdict,
            packets: None,
            invalid: false,
            limit: text.contains("limit"),
            set: text.split('@').nth(1).map(|t| t.split(' ').next().unwrap().to_owned()),
            random: text.contains("numgen"),
            logs: text.contains("log"),
            decided: (0, 0),
        });
        self
    }

    /// The last rule counts, and counted that many in the window.
    pub(super) fn counted(mut self, packets: u64) -> Self {
        self.last().packets = Some(Delta { before: 3, after: 3 + packets });
        self
    }

    pub(super) fn set(mut self, name: &str, size: u64, count: u64, timeout: bool) -> Self {
        let set = SetState {
            family: "inet".into(),
            table: "filter".into(),
            name: name.into(),
            size: Some(size),
            count: Some(count),
            timeout,
            dynamic: false,
        };
        self.rules().sets.push(set);
        self
    }

    /// Packets that rules threw away.
    pub(super) fn dropped(mut self, packets: u64, samples: Vec<Sample>) -> Self {
        self.evidence.drops.push(DropGroup {
            namespace: HERE,
            reason: "NETFILTER_DROP".into(),
            location: "nft_do_chain".into(),
            interface: 2,
            ethertype: 0x0800,
            packets,
            samples,
            ..DropGroup::default()
        });
        self
    }

    /// Sets the location of the last drops.
    pub(super) fn at(mut self, location: &str) -> Self {
        self.evidence.drops.last_mut().unwrap().location = location.into();
        self
    }

    /// Blames that rule, or the policy, for this number of samples of the last group.
    pub(super) fn blame(mut self, rule: Option<usize>, samples: usize) -> Self {
        let group = self.evidence.drops.len() - 1;
        let asked = self.evidence.drops[group].samples.len() as u64;
        let hook = self.chain().hook.clone().unwrap();
        self.rules().blame.push(Blame {
            group,
            rule,
            chain: 0,
            hook,
            sure: samples as u64,
            share: samples as f64,
            asked,
            samples: (0..samples).collect(),
            missed: Vec::new(),
        });
        self
    }

    /// An accepting rule lacked one thing.
    pub(super) fn missed(mut self, rule: usize, why: Missed) -> Self {
        self.rules().blame.last_mut().unwrap().missed.push((rule, why));
        self
    }

    /// Drops are out of sight.
    pub(super) fn blind(mut self) -> Self {
        self.evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Blind("no BTF".into()));
        self.evidence.drops.clear();
        self
    }

    pub(super) fn evidence(self) -> Evidence {
        self.evidence
    }
}

/// A UDP datagram that came in through `inside`.
pub(super) fn udp(from: &str, to: &str) -> Sample {
    packet(from, to, 17, 0)
}

/// A TCP segment with those flags.
pub(super) fn segment(from: &str, to: &str, flags: u8) -> Sample {
    packet(from, to, 6, flags)
}

fn packet(from: &str, to: &str, protocol: u8, flags: u8) -> Sample {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else { panic!("IPv4 only") };
    // RFC 791 header without options, then ports as RFC 768 and RFC 9293 have them, and the flags in the 14th byte of TCP.
    let mut header = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    header.extend(source.octets());
    header.extend(destination.octets());
    header.extend(from.port().to_be_bytes());
    header.extend(to.port().to_be_bytes());
    header.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xfa, 0xf0, 0, 0, 0, 0]);
    Sample { came_in: 2, length: 40, header, ..Sample::default() }
}
