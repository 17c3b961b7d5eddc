//! Evidence queries of the causes in this group: the kernel's answers about the path of a packet, and how a cause claims a loss.

use std::net::IpAddr;

use weir_text::order;

use crate::causes::{EvidenceView, Taken};
use crate::evidence::{DropGroup, Interface, Lookup, Namespace, Plane, RouteOutcome, Sample};
use crate::finding::{Claim, Confidence, Fact, Finding};

/// A loss and what shows it.
#[derive(Debug, Clone, Default)]
pub(super) struct Loss<'a> {
    /// Packets that were seen as they were dropped.
    pub(super) taken: Taken<'a>,
    /// How many were lost.
    pub(super) packets: u64,
    /// The claims to them.
    pub(super) claims: Vec<Claim>,
    /// Counters that moved with it.
    pub(super) counters: Vec<&'static str>,
}

impl<'a> Loss<'a> {
    /// By drops where they are in sight, else by counters.
    pub(super) fn of(
        view: &EvidenceView<'a>,
        namespace: &Namespace,
        taken: Taken<'a>,
        counters: &[&'static str],
    ) -> Self {
        let counters: Vec<_> = counters.iter().copied().filter(|c| namespace.grew(c) > 0).collect();
        if !taken.is_empty() {
            return Loss { packets: taken.packets, claims: taken.claims.clone(), taken, counters };
        }
        if view.sees_drops() {
            return Loss::default();
        }
        let claims = counters.iter().map(|c| view.counted(namespace, c, namespace.grew(c))).collect();
        let packets = counters.iter().map(|c| namespace.grew(c)).sum();
        Loss { taken, packets, claims, counters }
    }

    /// A finding about it, with what was seen. `None` if nothing was lost.
    pub(super) fn finding(
        &self,
        view: &EvidenceView<'_>,
        cause: &str,
        namespace: &Namespace,
    ) -> Option<Finding> {
        if self.packets == 0 {
            return None;
        }
        let mut finding = view.finding(cause, namespace, self.packets);
        finding.claims.clone_from(&self.claims);
        finding.confidence = match (self.taken.is_empty(), self.counters.is_empty()) {
            (false, false) => Confidence::High,
            _ => Confidence::Medium,
        };
        finding.evidence = groups_as_facts(&self.taken);
        finding.evidence.extend(self.counters.iter().filter_map(|c| counter_as_fact(namespace, c)));
        finding.missing = view.missing(namespace, &[Plane::Drops, Plane::Counters]);
        Some(finding)
    }
}

/// One fact for each way in which packets were dropped, the most frequent first.
pub(super) fn groups_as_facts(taken: &Taken<'_>) -> Vec<Fact> {
    let mut ways: Vec<(&str, &str, u64)> = Vec::new();
    for (group, claim) in taken.groups.iter().zip(&taken.claims) {
        let (Claim::Drops { packets, .. } | Claim::Counter { packets, .. }) = claim;
        match ways.iter_mut().find(|w| (w.0, w.1) == (&group.reason, &group.location)) {
            Some(way) => way.2 += packets,
            None => ways.push((&group.reason, &group.location, *packets)),
        }
    }
    order::by_key(&mut ways, |w| std::cmp::Reverse(w.2));
    let fact = |(reason, location, packets): &(&str, &str, u64)| {
        Fact::seen(Plane::Drops, format!("{packets} packets dropped as {reason} in {location}()"))
    };
    ways.iter().take(4).map(fact).collect()
}

/// A counter that moved.
pub(super) fn counter_as_fact(namespace: &Namespace, counter: &str) -> Option<Fact> {
    let delta = *namespace.counters.get(counter)?;
    (delta.change() > 0).then(|| {
        Fact::counter(Plane::Counters, counter, delta, format!("{counter} grew by {}", delta.change()))
    })
}

/// The part of what was taken of which the samples say yes: each group keeps the share that its samples have. A group without
/// samples is kept whole if `without` says so.
pub(super) fn share<'a>(
    taken: Taken<'a>,
    without: bool,
    is_mine: impl Fn(&DropGroup, &Sample) -> bool,
) -> Taken<'a> {
    let mut kept = Taken::default();
    for (group, claim) in taken.groups.into_iter().zip(taken.claims) {
        let Claim::Drops { group: number, packets } = claim else { continue };
        let asked = group.samples.len() as u64;
        let mine = group.samples.iter().filter(|s| is_mine(group, s)).count() as u64;
        let packets = match asked {
            0 if without => packets,
            0 => 0,
            _ => (packets * mine).div_ceil(asked),
        };
        if packets > 0 {
            kept.packets += packets;
            kept.claims.push(Claim::Drops { group: number, packets });
            kept.groups.push(group);
        }
    }
    kept
}

/// True if part of the loss matters. Hosts announce themselves to all others on a link (ARP, neighbour discovery, group
/// membership). Such messages are lost whenever an interface comes up or goes, and hosts repeat them.
pub(super) fn is_missed(taken: &Taken<'_>) -> bool {
    let mut tuples = taken.groups.iter().flat_map(|g| &g.samples).filter_map(Sample::tuple);
    taken.groups.iter().any(|g| g.samples.is_empty()) || tuples.any(|t| !t.destination.is_multicast())
}

/// Finds the kernel's answer about a dropped packet.
pub(super) fn lookup<'a>(namespace: &'a Namespace, sample: &Sample) -> Option<&'a Lookup> {
    let tuple = sample.tuple()?;
    namespace.routes.as_ref()?.lookups.iter().find(|l| {
        (l.source, l.destination, l.came_in, l.mark)
            == (tuple.source, tuple.destination, sample.came_in, sample.mark)
    })
}

/// True if a rule of policy routing is why the packet does not get where packets to the same destination do.
pub(super) fn is_policy(namespace: &Namespace, lookup: &Lookup) -> bool {
    let has_policy = namespace.routes.as_ref().is_some_and(|r| !r.policies.is_empty());
    let refused = !matches!(lookup.outcome, RouteOutcome::Forwarded | RouteOutcome::Local);
    has_policy && refused && lookup.plain == Some(RouteOutcome::Forwarded)
}

/// Name of an interface, or its number where it has none any more.
pub(super) fn name_of(namespace: &Namespace, index: u32) -> String {
    namespace.interface(index).map_or_else(|| format!("interface number {index}"), |i| i.name.clone())
}

/// Name of an interface as a part of a sysctl's name: a dot in it is written as a slash (sysctl(8)).
pub(super) fn in_sysctl(interface: &str) -> String {
    interface.replace('.', "/")
}

/// Growth of a counter of an interface.
pub(super) fn grew(interface: &Interface, counter: &str) -> u64 {
    interface.counters.get(counter).map_or(0, |d| d.change())
}

/// True if an interface's own network holds the address.
pub(super) fn is_on_link(interface: &Interface, address: IpAddr) -> bool {
    interface.addresses.iter().any(|(own, prefix)| is_within(address, *own, *prefix))
}

/// True if a network holds the address.
pub(super) fn is_within(address: IpAddr, network: IpAddr, prefix: u8) -> bool {
    let bits = |a: IpAddr| match a {
        IpAddr::V4(a) => u128::from(a.to_bits()) << 96,
        IpAddr::V6(a) => a.to_bits(),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
    address.is_ipv4() == network.is_ipv4() && (bits(address) ^ bits(network)) & mask == 0
}

/// `ip` or `ip -6`, for an address of that family.
pub(super) fn ip(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ip" } else { "ip -6" }
}

/// The address as a network of one host.
pub(super) fn host_network(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_what_their_prefix_says() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(is_within(ip("198.18.0.77"), ip("198.18.0.1"), 24));
        assert!(!is_within(ip("198.18.1.77"), ip("198.18.0.1"), 24));
        assert!(is_within(ip("1.2.3.4"), ip("0.0.0.0"), 0));
        assert!(!is_within(ip("1.2.3.4"), ip("::"), 0));
        assert!(is_within(ip("2001:2::9"), ip("2001:2::1"), 64));
        assert!(!is_within(ip("2001:2::9"), ip("2001:2::1"), 128));
    }
}
