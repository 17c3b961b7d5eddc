//! The evidence as a cause asks for it.

use std::collections::BTreeMap;

use weir_text::order;

use crate::evidence::{DropGroup, Evidence, EvidenceSource, FastPath, Interface, Namespace, Sample, Tuple};
use crate::finding::{Claim, Confidence, Fact, Finding, Severity};

/// Evidence with the questions that most causes have.
#[derive(Debug, Clone, Copy)]
pub struct EvidenceView<'a> {
    /// All of it.
    pub evidence: &'a Evidence,
}

/// Drops that a cause takes for its own.
#[derive(Debug, Clone, Default)]
pub struct Taken<'a> {
    /// The groups.
    pub groups: Vec<&'a DropGroup>,
    /// The claims to them.
    pub claims: Vec<Claim>,
    /// Packets in all.
    pub packets: u64,
}

impl<'a> EvidenceView<'a> {
    /// Around that evidence.
    pub fn of(evidence: &'a Evidence) -> Self {
        EvidenceView { evidence }
    }

    /// The namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = &'a Namespace> + use<'a> {
        self.evidence.namespaces.iter()
    }

    /// Asks each namespace.
    pub(crate) fn each(&self, of: fn(&Self, &Namespace) -> Option<Finding>) -> Vec<Finding> {
        self.namespaces().filter_map(|namespace| of(self, namespace)).collect()
    }

    /// Asks each interface of each namespace.
    pub(crate) fn each_interface(
        &self,
        of: fn(&Self, &Namespace, &Interface) -> Option<Finding>,
    ) -> Vec<Finding> {
        let all = self.namespaces().flat_map(|n| n.interfaces.iter().map(move |i| (n, i)));
        all.filter_map(|(namespace, interface)| of(self, namespace, interface)).collect()
    }

    /// Asks the fast path of each namespace that has or had one.
    pub(crate) fn each_fastpath(
        &self,
        of: fn(&Self, &Namespace, &FastPath) -> Option<Finding>,
    ) -> Vec<Finding> {
        let all = self.namespaces().filter_map(|n| Some((n, n.fastpath.as_ref()?)));
        all.filter_map(|(namespace, fastpath)| of(self, namespace, fastpath)).collect()
    }

    /// True if drops were in sight.
    pub fn sees_drops(&self) -> bool {
        self.evidence.sees(EvidenceSource::Drops)
    }

    /// Takes the drops of a namespace that `is_mine` selects. It never takes drops that every host has ([`is_noise`]).
    pub fn take(&self, namespace: &Namespace, is_mine: impl Fn(&DropGroup) -> bool) -> Taken<'a> {
        let mut taken = Taken::default();
        for (group, drops) in self.evidence.drops.iter().enumerate() {
            if drops.namespace == namespace.id && !is_noise(drops) && is_mine(drops) {
                taken.packets += drops.packets;
                taken.claims.push(Claim::Drops { group, packets: drops.packets });
                taken.groups.push(drops);
            }
        }
        taken
    }

    /// A claim to packets that a counter tells of and no event.
    pub fn counted(&self, namespace: &Namespace, counter: &str, packets: u64) -> Claim {
        Claim::Counter { namespace: namespace.id, counter: counter.to_owned(), packets }
    }

    /// The claims to what was taken; to the packets of a counter if no drop was seen.
    pub(crate) fn claims(
        &self,
        namespace: &Namespace,
        taken: &Taken<'_>,
        counter: &str,
        packets: u64,
    ) -> Vec<Claim> {
        if taken.is_empty() { vec![self.counted(namespace, counter, packets)] } else { taken.claims.clone() }
    }

    /// Evidence sources among `wanted` that were not in sight, for [`Finding::missing`].
    pub fn missing(&self, namespace: &Namespace, wanted: &[EvidenceSource]) -> Vec<EvidenceSource> {
        let blind = |p: &EvidenceSource| !self.evidence.sees(*p) || namespace.blind.contains_key(p);
        wanted.iter().copied().filter(blind).collect()
    }

    /// Packets that came into a namespace in the window through its interfaces, loopback left out, or went out, whichever is
    /// more.
    pub fn passed(&self, namespace: &Namespace) -> u64 {
        let others = || namespace.interfaces.iter().filter(|i| i.name != "lo");
        let sum = |name: &str| others().map(|i| i.grew(name)).sum::<u64>();
        sum("rx_packets").max(sum("tx_packets"))
    }

    /// A finding to be filled: cause and place, severity by the loss it explains.
    pub fn finding(&self, cause: &str, namespace: &Namespace, lost: u64) -> Finding {
        let passed = self.passed(namespace);
        Finding {
            cause: cause.to_owned(),
            namespace: namespace.id,
            place: namespace.name.clone(),
            severity: crate::finding::severity_of_loss(lost, passed, self.evidence.window_s),
            confidence: Confidence::Medium,
            object: String::new(),
            summary: String::new(),
            evidence: Vec::new(),
            not: Vec::new(),
            missing: Vec::new(),
            claims: Vec::new(),
            impact: 0.0,
            fixes: Vec::new(),
            explains_packets: 0,
            explains_ratio: 0.0,
        }
    }

    /// How bad the loss of so many packets is for the machine as a whole.
    pub(crate) fn severity_for_all(&self, lost: u64) -> Severity {
        let passed: u64 = self.namespaces().map(|n| self.passed(n)).sum();
        crate::finding::severity_of_loss(lost, passed, self.evidence.window_s)
    }

    /// A finding about the machine as a whole.
    pub fn machine_finding(&self, cause: &str, severity: Severity) -> Finding {
        let machine = Namespace { name: "machine".into(), ..Namespace::default() };
        Finding { severity, ..self.finding(cause, &machine, 0) }
    }
}

impl Taken<'_> {
    /// The tuple seen most often among the samples.
    pub fn example(&self) -> Option<Tuple> {
        let mut tuples: Vec<Tuple> = self.samples().filter_map(Sample::tuple).collect();
        order::by_key(&mut tuples, |tuple| *tuple);
        tuples.chunk_by(|a, b| a == b).max_by_key(|same| same.len()).map(|same| same[0])
    }

    /// [`Taken::example`] as a fact, if there is one.
    pub(crate) fn example_as_fact(&self) -> Option<Fact> {
        let Tuple { source, destination, destination_port, .. } = self.example()?;
        let text = format!("for example from {source} to {destination} port {destination_port}");
        Some(Fact::seen(EvidenceSource::Drops, text))
    }

    /// The part of which the samples say yes: each group keeps the share that its samples have. A group without samples is kept
    /// whole if `without` says so.
    pub(crate) fn share(self, without: bool, is_mine: impl Fn(&DropGroup, &Sample) -> bool) -> Self {
        let mut kept = Taken::default();
        for (group, claim) in self.groups.into_iter().zip(self.claims) {
            let Claim::Drops { group: number, packets } = claim else { continue };
            let packets = match group.samples.is_empty() {
                true if without => packets,
                _ => group.share(|sample| is_mine(group, sample)),
            };
            if packets > 0 {
                kept.packets += packets;
                kept.claims.push(Claim::Drops { group: number, packets });
                kept.groups.push(group);
            }
        }
        kept
    }

    /// These and others.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.packets += other.packets;
        self.groups.extend(other.groups);
        self.claims.extend(other.claims);
        self
    }

    /// All samples of the groups.
    pub(crate) fn samples(&self) -> impl Iterator<Item = &Sample> + Clone {
        self.groups.iter().flat_map(|g| &g.samples)
    }

    /// The groups by interface.
    pub(crate) fn by_interface(self) -> BTreeMap<u32, Self> {
        let mut all: BTreeMap<u32, Self> = BTreeMap::new();
        for (group, claim) in self.groups.into_iter().zip(self.claims) {
            let of = all.entry(group.interface).or_default();
            of.packets += group.packets;
            of.groups.push(group);
            of.claims.push(claim);
        }
        all
    }

    /// True if there is nothing.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }
}

/// Drops that a host without any fault has: they are no loss that anybody would miss.
///
/// Multicast and broadcast without a listener, unsupported protocols, packets for other hosts, data that waits at a socket when
/// it is closed, segments that came twice or too late.
pub fn is_noise(drops: &DropGroup) -> bool {
    const REASONS: &[&str] = &[
        "UNHANDLED_PROTO",
        "OTHERHOST",
        "QUEUE_PURGE",
        "TCP_ABORT_ON_DATA",
        "TCP_ABORT_ON_CLOSE",
        "TCP_ABORT_ON_LINGER",
        "TCP_OLD_DATA",
        "TCP_OLD_SEQUENCE",
        "TCP_OLD_ACK",
        "TCP_TOO_OLD_ACK",
        "TCP_CLOSE",
        // A SYN-ACK that comes again to a connection that is open (RFC 5961 section 4.2).
        "TCP_INVALID_SYN",
        "SOCKET_CLOSE",
        "CONSUMED",
    ];
    REASONS.contains(&drops.reason.as_str())
        // A made-up packet of a program that was run once (net/bpf/test_run.c): the fast path does that for each connection that ends.
        || drops.location == "bpf_prog_test_run_skb"
        || drops.reason == "NOT_SPECIFIED" && drops.location == "ip6_mc_input"
        // Groups without a member on this host.
        || drops.reason == "NOT_SPECIFIED" && drops.location == "ip_rcv_finish_core" && is_group(drops)
        // IPv6 of hosts that speak it, heard by one on which it is switched off.
        || matches!(drops.reason.as_str(), "IP_INVALID_DEST" | "IPV6DISABLED") && is_group(drops)
        || drops.reason == "NOT_SPECIFIED" && is_done_with(drops)
        || drops.reason == "TCP_FLAGS" && acknowledges_an_ended_connection(drops)
}

const TCP_RECEIVE: [&str; 2] = ["tcp_v4_rcv", "tcp_v6_rcv"];

/// True of segments without data that TCP drops as a matter of course: repeated SYNs of a connection in the making, and FINs, resets
/// and late acknowledgements of one in TIME_WAIT (net/ipv4/tcp_ipv4.c, `tcp_v4_rcv`: `discard_it`). Acknowledgements alone are something
/// else: kernels before 6.14 drop the last one of a handshake here if the accept queue is full.
fn is_done_with(drops: &DropGroup) -> bool {
    const ENDS: u8 = weir_wire::Tcp::SYN | weir_wire::Tcp::FIN | weir_wire::Tcp::RST;
    let acknowledgements =
        drops.samples.iter().filter(|s| s.tcp_flags().is_none_or(|flags| flags & ENDS == 0));
    TCP_RECEIVE.contains(&drops.location.as_str())
        && !drops.samples.is_empty()
        && acknowledgements.clone().all(is_bare_acknowledgement)
        && acknowledgements.count() * 4 <= drops.samples.len()
}

/// True of acknowledgements that a listening socket gets, because the server's end of the connection is already gone. The kernel
/// answers with a reset (net/ipv4/tcp_input.c, `tcp_rcv_state_process`: `TCP_LISTEN`).
fn acknowledges_an_ended_connection(drops: &DropGroup) -> bool {
    ["tcp_v4_do_rcv", "tcp_v6_do_rcv"].contains(&drops.location.as_str())
        && !drops.samples.is_empty()
        && drops.samples.iter().all(is_bare_acknowledgement)
}

/// True if the segment carries no data and no flag but ACK.
fn is_bare_acknowledgement(sample: &Sample) -> bool {
    sample.tcp_flags() == Some(weir_wire::Tcp::ACK) && sample.tcp_payload() == Some(0)
}

/// True if every sample goes to a group of hosts.
fn is_group(drops: &DropGroup) -> bool {
    let mut tuples = drops.samples.iter().filter_map(Sample::tuple).peekable();
    tuples.peek().is_some() && tuples.all(|t| t.destination.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IPv4 and TCP headers with these control bits, and so many bytes of data.
    fn segment_with(flags: u8, data: u32) -> Sample {
        let mut header = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 2, 198, 19, 0, 2];
        header.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        Sample { header, length: 40 + data, ..Sample::default() }
    }

    fn segment(flags: u8) -> Sample {
        segment_with(flags, 0)
    }

    fn group(location: &str, samples: Vec<Sample>) -> DropGroup {
        DropGroup {
            reason: "NOT_SPECIFIED".into(),
            location: location.into(),
            samples,
            ..DropGroup::default()
        }
    }

    #[test]
    fn what_tcp_has_done_with_is_noise_and_what_carries_data_is_not() {
        let (syn, fin, rst, ack) = (segment(2), segment(0x11), segment(4), segment(0x10));
        assert_eq!((syn.tcp_flags(), ack.tcp_flags()), (Some(2), Some(16)));
        assert!(is_noise(&group("tcp_v4_rcv", vec![syn.clone(), fin.clone(), rst.clone()])));
        assert!(is_noise(&group("tcp_v4_rcv", vec![syn.clone(), fin.clone(), rst.clone(), ack.clone()])));
        let data = segment_with(0x10, 1);
        assert!(!is_noise(&group("tcp_v4_rcv", vec![syn.clone(), fin, rst, data])));
        assert!(!is_noise(&group("tcp_v4_rcv", vec![syn.clone(), ack.clone()])), "of a full accept queue");
        assert!(!is_noise(&group("tcp_v4_rcv", vec![ack])));
        assert!(!is_noise(&group("tcp_v4_rcv", Vec::new())), "nobody knows what it was");
        assert!(!is_noise(&group("ip_rcv_core", vec![syn])));
    }

    #[test]
    fn an_acknowledgement_of_an_ended_connection_is_noise_and_data_for_it_is_not() {
        let flags = |samples| DropGroup { reason: "TCP_FLAGS".into(), ..group("tcp_v4_do_rcv", samples) };
        assert!(is_noise(&flags(vec![segment(0x10); 2])));
        assert!(!is_noise(&flags(vec![segment(0x10), segment_with(0x18, 60)])));
        assert!(!is_noise(&flags(vec![segment(0x10), segment(0x12)])));
        assert!(!is_noise(&flags(Vec::new())));
    }

    #[test]
    fn flags_are_those_of_whole_tcp_headers_only() {
        let mut sample = segment(2);
        sample.header[9] = 17;
        assert_eq!(sample.tcp_flags(), None);
        sample = segment(2);
        sample.header.truncate(33);
        assert_eq!(sample.tcp_flags(), None);
    }

    #[test]
    fn a_share_is_that_of_the_samples() {
        let mut drops = DropGroup { packets: 10, ..group("nf_hook_slow", Vec::new()) };
        drops.samples = [1, 2, 2, 2].map(|came_in| Sample { came_in, ..Sample::default() }).to_vec();
        assert_eq!(drops.share(|s| s.came_in == 2), 8);
        assert_eq!(drops.share(|s| s.came_in == 9), 0);
        drops.samples.clear();
        assert_eq!(drops.share(|_| true), 0);
    }
}
