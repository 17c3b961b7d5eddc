//! Judges if dropped packets do harm. A firewall exists to drop packets: a port scan, or unsolicited traffic from the internet to
//! any address, is no fault.

use std::collections::HashSet;
use std::net::IpAddr;

use super::attribution::DropAttribution;
use crate::causes::EvidenceView;
use crate::evidence::{Sample, Tuple};
use crate::finding::{Severity, severity_of_loss};

/// The pattern of the samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Pattern {
    /// Samples with addresses.
    pub(super) seen: usize,
    /// Share of them that belong to TCP connections that were open.
    pub(super) established: f64,
    /// Share of them that go to groups of hosts (multicast, broadcast).
    pub(super) to_groups: f64,
    /// They go to one service after another, each touched once or twice.
    pub(super) scan: bool,
    /// Hosts that they come from.
    pub(super) sources: usize,
}

/// Fewer samples than this cannot tell a scan.
const FEW: usize = 5;

impl Pattern {
    pub(super) fn of(samples: &[&Sample]) -> Self {
        let tuples: Vec<(Tuple, &Sample)> = samples.iter().filter_map(|s| Some((s.tuple()?, *s))).collect();
        let seen = tuples.len();
        if seen == 0 {
            return Pattern::default();
        }
        let share = |n: usize| n as f64 / seen as f64;
        let sources: HashSet<IpAddr> = tuples.iter().map(|(t, _)| t.source).collect();
        let ports: HashSet<(u8, u16)> =
            tuples.iter().map(|(t, _)| (t.protocol, t.destination_port)).collect();
        let hosts: HashSet<IpAddr> = tuples.iter().map(|(t, _)| t.destination).collect();
        // Many ports, or many hosts, asked for by few.
        let spread = ports.len().max(hosts.len());
        let scan = seen >= FEW && 2 * spread > seen && 4 * sources.len() <= seen.max(4);
        Pattern {
            seen,
            established: share(tuples.iter().filter(|(_, s)| is_established(s)).count()),
            to_groups: share(tuples.iter().filter(|(t, _)| is_group(t.destination)).count()),
            scan,
            sources: sources.len(),
        }
    }
}

/// A TCP segment that neither opens nor resets a connection.
fn is_established(sample: &Sample) -> bool {
    let flags = match sample.header.first().map(|b| b >> 4) {
        Some(4) => weir_wire::Ipv4::read_quoted(&sample.header)
            .ok()
            .and_then(|(ip, rest)| if ip.protocol == 6 { rest.get(13).copied() } else { None }),
        Some(6) => weir_wire::Ipv6::read_quoted(&sample.header)
            .ok()
            .and_then(|(ip, rest)| if ip.next_header == 6 { rest.get(13).copied() } else { None }),
        _ => None,
    };
    flags.is_some_and(|f| f & 0x10 != 0 && f & 0x06 == 0)
}

fn is_group(address: IpAddr) -> bool {
    match address {
        // 255 at the end is a network's broadcast address in nearly all networks there are.
        IpAddr::V4(a) => a.is_multicast() || a.is_broadcast() || a.octets()[3] == 255,
        IpAddr::V6(a) => a.is_multicast(),
    }
}

/// Rates the drops of a rule, which may be intended. At most a warning, unless the rule cuts open connections: no one intends
/// that.
pub(super) fn severity(view: &EvidenceView<'_>, attribution: &DropAttribution<'_>) -> Severity {
    let passed = view.passed(attribution.namespace);
    let per_second = attribution.packets as f64 / view.evidence.window_s.max(0.1);
    let ratio = attribution.packets as f64 / passed.max(attribution.packets).max(1) as f64;
    let loss = severity_of_loss(
        attribution.packets,
        passed.saturating_sub(attribution.packets),
        view.evidence.window_s,
    );
    let pattern = Pattern::of(&attribution.samples);
    if pattern.scan || pattern.to_groups > 0.5 {
        return Severity::Note;
    }
    if pattern.seen >= 3 && pattern.established > 0.5 && ratio >= 0.001 {
        return loss;
    }
    let capped = loss.min(Severity::Warning);
    let incoming = attribution.hooks.iter().all(|h| matches!(*h, "input" | "ingress" | "prerouting"));
    let much = if incoming {
        // Unsolicited traffic from the internet comes from many hosts; a blocked peer keeps sending.
        let persistent = pattern.seen == 0 || 2 * pattern.sources <= pattern.seen;
        ratio >= 0.05 && per_second >= 5.0 && persistent
    } else {
        ratio >= 0.01 && per_second >= 1.0 || ratio >= 0.001 && per_second >= 10.0
    };
    if much { capped } else { Severity::Note }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causes::firewall::fixture::{segment, udp};

    #[test]
    fn a_scan_is_told_from_a_service_that_is_blocked() {
        let scan: Vec<Sample> =
            (1..=12).map(|p| segment("198.18.0.2:40000", &format!("198.19.0.2:{p}"), 0x02)).collect();
        assert!(Pattern::of(&scan.iter().collect::<Vec<_>>()).scan);
        let sweep: Vec<Sample> =
            (1..=12).map(|h| udp("198.18.0.2:40000", &format!("198.19.0.{h}:53"))).collect();
        assert!(Pattern::of(&sweep.iter().collect::<Vec<_>>()).scan);
        let blocked: Vec<Sample> =
            (1..=12).map(|p| segment(&format!("198.18.0.2:{p}"), "198.19.0.2:80", 0x02)).collect();
        assert!(!Pattern::of(&blocked.iter().collect::<Vec<_>>()).scan);
        // Many users of many services, all cut off, are no scan.
        let users: Vec<Sample> = (1..=12)
            .map(|n| segment(&format!("198.18.0.{n}:5000"), &format!("198.19.{n}.2:443"), 0x02))
            .collect();
        assert!(!Pattern::of(&users.iter().collect::<Vec<_>>()).scan);
        let few: Vec<Sample> =
            (1..=3).map(|p| segment("198.18.0.2:40000", &format!("198.19.0.2:{p}"), 0x02)).collect();
        assert!(!Pattern::of(&few.iter().collect::<Vec<_>>()).scan);
    }

    #[test]
    fn open_connections_and_groups_are_seen() {
        let samples = [
            segment("198.18.0.2:1", "198.19.0.2:80", 0x10),
            segment("198.18.0.2:1", "198.19.0.2:80", 0x18),
            segment("198.18.0.2:1", "198.19.0.2:80", 0x12),
            segment("198.18.0.2:1", "198.19.0.2:80", 0x04),
        ];
        assert_eq!(Pattern::of(&samples.iter().collect::<Vec<_>>()).established, 0.5);
        let samples = [udp("198.18.0.2:1", "224.0.0.251:5353"), udp("198.18.0.2:1", "198.18.0.255:137")];
        assert_eq!(Pattern::of(&samples.iter().collect::<Vec<_>>()).to_groups, 1.0);
    }
}
