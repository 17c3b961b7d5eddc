//! Packets come for a port on which no program listens.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use weir_text::order;

use crate::causes::{Cause, EvidenceView, Group, Taken};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, Sample, Tuple};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "no-listener",
    title: "no program listens on the port",
    about: "If no socket has the port, the kernel answers a datagram with an ICMP error, and a TCP SYN with a reset: \
            `connection refused`. Every host with a public address gets some of these from scanners, on many ports, and \
            that is no fault. It is a fault when the same peers keep sending to the same port: a service that has died or \
            moved, a program that listens on another address (127.0.0.1), a log or metrics sender with an old \
            configuration. Segments of TCP without a SYN belong to connections that this host has forgotten.",
    must: &["packets dropped as NO_SOCKET, or Udp NoPorts grows"],
    should: &["the same source sends to the same port again and again"],
    must_not: &[
        "many ports, each a few times: this is a scan, or answers to a program that did not wait for them",
    ],
    lookalikes: &[
        ("conntrack-entry-lost", "a gateway answers for a connection that it has forgotten"),
        ("accept-queue-full", "a program listens and does not accept: the client waits, and is not refused"),
        ("rule-reject", "a rule refuses: NETFILTER_DROP, and the rule counts"),
    ],
    yields_to: &["conntrack-entry-lost", "conntrack-invalid-reset"],
    remedy: "Start the service, make it listen on the address that the peers use, or tell the peers to stop.",
    sources: &[
        "net/ipv4/udp.c: __udp4_lib_rcv; net/ipv4/tcp_ipv4.c: tcp_v4_rcv, tcp_v4_send_reset",
        "RFC 1122 section 4.1.3.1, RFC 9293 section 3.10.7.1",
    ],
    recipes,
    ..Cause::of(Group::Sockets, examine)
};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Packets per second from one side to one port from which on they count as intended.
const PERSISTENT_PER_S: f64 = 5.0;
/// Samples of one port that show it.
const ENOUGH_SAMPLES: usize = 3;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    view.namespaces().flat_map(|n| [TCP, UDP].into_iter().filter_map(move |p| of(view, n, p))).collect()
}

fn of(view: &EvidenceView<'_>, namespace: &Namespace, protocol: u8) -> Option<Finding> {
    let taken = view.take(namespace, |d| d.reason == "NO_SOCKET" && d.protocol == protocol);
    let counted = match protocol {
        UDP => namespace.grew("udp.NoPorts") + namespace.grew("udp6.NoPorts"),
        _ => 0,
    };
    let lost = taken.packets.max(counted);
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.severity = Severity::Note;
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Sockets]);
    finding.claims = if taken.is_empty() && !view.sees_drops() {
        vec![view.counted(namespace, "udp.NoPorts", counted)]
    } else {
        taken.claims.clone()
    };
    let kind = if protocol == TCP { "segments" } else { "datagrams" };
    finding.summary =
        format!("{lost} {kind} came for ports that no program listens on, spread like a port scan.");
    if let Some(counter) = namespace.counters.get("udp.NoPorts").filter(|c| protocol == UDP && c.change() > 0)
    {
        finding.counter(
            EvidenceSource::Counters,
            "udp.NoPorts",
            *counter,
            format!("{counted} datagrams for no port"),
        );
    }
    if !taken.is_empty() {
        finding.seen(EvidenceSource::Drops, format!("{} packets dropped as NO_SOCKET", taken.packets));
    }
    if let Some(wanted) = wanted(&taken) {
        convict(view, namespace, &wanted, &mut finding);
    }
    Some(finding)
}

/// A port that packets come for again and again.
struct Wanted {
    to: SocketAddr,
    protocol: u8,
    sources: Vec<IpAddr>,
    samples: usize,
    /// Packets for this port, as far as the samples show.
    packets: u64,
}

/// The port that most of the samples are for, if it is most of them.
fn wanted(taken: &Taken<'_>) -> Option<Wanted> {
    let samples: Vec<Tuple> =
        taken.groups.iter().flat_map(|g| &g.samples).filter(|s| opens(s)).filter_map(Sample::tuple).collect();
    let mut ports: BTreeMap<(IpAddr, u16, u8), Vec<IpAddr>> = BTreeMap::new();
    for t in &samples {
        ports.entry((t.destination, t.destination_port, t.protocol)).or_default().push(t.source);
    }
    let ((ip, port, protocol), mut sources) = ports.into_iter().max_by_key(|(_, sources)| sources.len())?;
    let count = sources.len();
    order::by_key(&mut sources, |source| *source);
    // One packet from each of many is how a whole network of scanners looks.
    let again = sources.chunk_by(|a, b| a == b).any(|same| same.len() >= 2);
    sources.dedup();
    let share = count as f64 / samples.len() as f64;
    let packets = (taken.packets as f64 * share) as u64;
    (again && count >= ENOUGH_SAMPLES && share >= 0.5).then(|| Wanted {
        to: SocketAddr::new(ip, port),
        protocol,
        sources,
        samples: count,
        packets,
    })
}

/// True of a datagram, and of a segment that begins a connection.
fn opens(sample: &Sample) -> bool {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    match sample.tuple() {
        Some(t) if t.protocol == TCP => sample.tcp_flags().is_some_and(|flags| flags & (SYN | ACK) == SYN),
        Some(_) => true,
        None => false,
    }
}

fn convict(view: &EvidenceView<'_>, namespace: &Namespace, wanted: &Wanted, finding: &mut Finding) {
    let per_s = wanted.packets as f64 / view.evidence.window_s.max(0.1);
    let protocol = if wanted.protocol == TCP { "TCP" } else { "UDP" };
    finding.object = format!("{protocol} {}", wanted.to);
    let from = wanted.sources.iter().take(3).map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    finding.seen(
        EvidenceSource::Drops,
        format!("{} samples are for {}, from {from}", wanted.samples, finding.object),
    );
    if per_s >= PERSISTENT_PER_S {
        finding.severity = Severity::Warning;
        finding.confidence = Confidence::High;
        finding.summary = format!(
            "No program listens on {}, and {from} keeps sending there: {per_s:.0} a second.",
            finding.object
        );
        finding.not.push("not a scan: it is one port, again and again".into());
    }
    let port = wanted.to.port();
    let elsewhere = listening(namespace, wanted);
    if !elsewhere.is_empty() {
        let list = elsewhere.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
        finding.summary = format!(
            "Packets come for {}, where no program listens: one listens on {list} only.",
            finding.object
        );
        finding.seen(EvidenceSource::Sockets, format!("listening on {list}"));
    }
    let flag = if wanted.protocol == TCP { "t" } else { "u" };
    finding.fixes.push(Fix::look(
        "see who listens on that port, and on which address",
        [sh!("ss -ln{}p 'sport = :{}'", flag, port)],
    ));
}

/// Finds sockets that have that port on another address.
fn listening(namespace: &Namespace, wanted: &Wanted) -> Vec<SocketAddr> {
    let Some(sockets) = &namespace.sockets else { return Vec::new() };
    let all: Vec<SocketAddr> = match wanted.protocol {
        TCP => sockets.listeners.iter().map(|l| l.local).collect(),
        _ => sockets.udp_bound.clone(),
    };
    all.into_iter().filter(|a| a.port() == wanted.to.port() && a.ip() != wanted.to.ip()).collect()
}

fn recipes() -> Vec<Recipe> {
    vec![
        Recipe {
            name: "udp",
            at: LabHost::Responder,
            traffic: vec![Traffic::udp("198.19.0.2:7515", 200, 200, 2)],
            ..Recipe::default()
        },
        Recipe {
            name: "tcp",
            at: LabHost::Responder,
            traffic: vec![Traffic::Connects {
                to: "198.19.0.2:7516".into(),
                rate: 100,
                bytes: 64,
                hold: false,
            }],
            ..Recipe::default()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{blind_to_drops, dropped, host, packet, seen};
    use super::*;
    use crate::evidence::DropGroup;

    fn group(protocol: u8, packets: u64, samples: Vec<Sample>) -> DropGroup {
        DropGroup { samples, ..dropped("NO_SOCKET", "__udp4_lib_rcv", protocol, packets) }
    }

    #[test]
    fn one_port_again_and_again_is_a_warning() {
        let samples = (0..8).map(|_| packet(UDP, "198.18.0.2:5000", "198.19.0.2:514", 0)).collect();
        let found = &examine(&EvidenceView::of(&seen(
            host(&[("udp.NoPorts", 2000)]),
            vec![group(UDP, 2000, samples)],
        )))[0];
        assert_eq!((found.severity, found.object.as_str()), (Severity::Warning, "UDP 198.19.0.2:514"));
        assert_eq!(found.explains_packets, 0, "set by the diagnosis");
    }

    #[test]
    fn a_service_on_another_address_is_named() {
        let samples = (0..8).map(|_| packet(TCP, "198.18.0.2:5000", "198.19.0.2:80", 2)).collect();
        let mut host = host(&[]);
        let local = "127.0.0.1:80".parse().unwrap();
        host.sockets.as_mut().unwrap().listeners =
            vec![crate::evidence::Listener { local, ..super::super::fixtures::listener(80) }];
        let found = &examine(&EvidenceView::of(&seen(host, vec![group(TCP, 900, samples)])))[0];
        assert!(found.summary.contains("127.0.0.1:80 only"), "{}", found.summary);
    }

    #[test]
    fn a_scan_is_a_note_also_when_it_comes_from_many_sides() {
        let scan = (1..9).map(|p| packet(TCP, "198.18.0.2:5000", &format!("198.19.0.2:{p}"), 2)).collect();
        let found = &examine(&EvidenceView::of(&seen(host(&[]), vec![group(TCP, 2000, scan)])))[0];
        assert_eq!((found.severity, found.object.as_str()), (Severity::Note, ""));
        let many = (1..9).map(|n| packet(TCP, &format!("198.18.0.{n}:5000"), "198.19.0.2:23", 2)).collect();
        assert_eq!(
            examine(&EvidenceView::of(&seen(host(&[]), vec![group(TCP, 2000, many)])))[0].severity,
            Severity::Note
        );
    }

    #[test]
    fn segments_of_forgotten_connections_are_a_note() {
        let late = (0..8).map(|_| packet(TCP, "198.18.0.2:5000", "198.19.0.2:80", 16)).collect();
        assert_eq!(
            examine(&EvidenceView::of(&seen(host(&[]), vec![group(TCP, 2000, late)])))[0].severity,
            Severity::Note
        );
    }

    #[test]
    fn without_a_view_of_drops_the_ports_are_not_known() {
        let found = &examine(&EvidenceView::of(&blind_to_drops(host(&[("udp.NoPorts", 2000)]))))[0];
        assert_eq!(
            (found.severity, found.missing.as_slice()),
            (Severity::Note, &[EvidenceSource::Drops][..])
        );
    }
}
