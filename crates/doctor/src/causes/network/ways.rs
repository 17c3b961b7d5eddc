//! Evidence queries of the causes in this group: the kernel's answers about the path of a packet, and how a cause claims a loss.

use std::net::IpAddr;

use weir_text::order;

use crate::causes::{EvidenceView, Taken};
use crate::command::{Words, sh};
use crate::evidence::{EvidenceSource, Lookup, Namespace, RouteOutcome, Sample, Tuple};
use crate::finding::{Claim, Confidence, Fact, Finding, Fix};

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
            return Loss::seen(taken, counters);
        }
        if view.sees_drops() {
            return Loss::default();
        }
        let claims = counters.iter().map(|c| view.counted(namespace, c, namespace.grew(c))).collect();
        let packets = counters.iter().map(|c| namespace.grew(c)).sum();
        Loss { taken, packets, claims, counters }
    }

    /// By drops alone.
    pub(super) fn seen(taken: Taken<'a>, counters: Vec<&'static str>) -> Self {
        Loss { packets: taken.packets, claims: taken.claims.clone(), taken, counters }
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
        finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Counters]);
        Some(finding)
    }
}

/// One fact for each way in which packets were dropped, the most frequent first.
pub(super) fn groups_as_facts(taken: &Taken<'_>) -> Vec<Fact> {
    let mut ways: Vec<(&str, &str, u64)> = Vec::new();
    for (group, claim) in taken.groups.iter().zip(&taken.claims) {
        match ways.iter_mut().find(|w| (w.0, w.1) == (&group.reason, &group.location)) {
            Some(way) => way.2 += claim.packets(),
            None => ways.push((&group.reason, &group.location, claim.packets())),
        }
    }
    order::by_key(&mut ways, |w| std::cmp::Reverse(w.2));
    let fact = |(reason, location, packets): &(&str, &str, u64)| {
        Fact::seen(EvidenceSource::Drops, format!("{packets} packets dropped as {reason} in {location}()"))
    };
    ways.iter().take(4).map(fact).collect()
}

/// `, such as from 198.18.0.2 to 198.19.0.2`, if there is an example.
pub(super) fn such_as(example: Option<Tuple>) -> String {
    example.map_or(String::new(), |t| format!(", such as from {} to {}", t.source, t.destination))
}

/// A counter that moved.
pub(super) fn counter_as_fact(namespace: &Namespace, counter: &str) -> Option<Fact> {
    let delta = *namespace.counters.get(counter)?;
    (delta.change() > 0).then(|| {
        Fact::counter(
            EvidenceSource::Counters,
            counter,
            delta,
            format!("{counter} grew by {}", delta.change()),
        )
    })
}

/// True if part of the loss matters. Hosts announce themselves to all others on a link (ARP, neighbour discovery, group
/// membership). Such messages are lost whenever an interface comes up or goes, and hosts repeat them.
pub(super) fn is_missed(taken: &Taken<'_>) -> bool {
    let mut tuples = taken.samples().filter_map(Sample::tuple);
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

/// `ip` or `ip -6`, for an address of that family.
pub(super) fn ip(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ip" } else { "ip -6" }
}

/// Adds a route to a network by a next hop that the reader knows.
pub(super) fn add_route(title: &str, risk: &str, ip: &'static str, network: &str) -> Fix {
    let route =
        |verb: &'static str| sh!("{} route {} {} via NEXT_HOP dev INTERFACE", Words::of(ip), verb, network);
    Fix::new(title, risk, [route("add")], [route("del")])
}

/// The address as a network of one host.
pub(super) fn host_network(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}
