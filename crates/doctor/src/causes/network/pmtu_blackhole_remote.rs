//! Long packets disappear on the path, without an error message.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::causes::{Cause, EvidenceView, Group, is_noise};
use crate::command::{Words, sh};
use crate::evidence::{EvidenceSource, FlowEvent, FlowEventKind, Namespace, TcpFlow, Tuple};
use crate::finding::{Confidence, Finding, Fix, Setting, Severity};
use crate::recipe::{LabHost, Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "pmtu-blackhole-remote",
    title: "path MTU black hole beyond this host",
    about: "A link on the path carries less than this host sends, and the ICMP error that should report it does not \
            arrive: a firewall drops it, or a tunnel or a load balancer misdirects it. Connections are set up, because \
            those packets are short; the first full segment is lost, and so is each time it is sent again. Nothing is lost \
            on this host, and no counter but that of retransmissions moves.",
    must: &[
        "established connections send only long segments again, at least twice",
        "the other side acknowledges none of them",
        "small packets to the same host get through",
    ],
    should: &["several connections to the same host do so"],
    must_not: &[
        "the segments are dropped on this host",
        "connections to that host cannot be set up",
        "short segments are sent again, too",
    ],
    lookalikes: &[
        ("pmtu-blackhole-own", "this host's firewall drops the errors"),
        ("not-on-this-host", "loss on the way hits segments of any length, and some get through"),
        ("paws-behind-nat", "connections are not set up at all"),
    ],
    yields_to: &["pmtu-blackhole-own"],
    remedy: "Send shorter segments: clamp the segment size on a router in between, set a smaller MTU for that destination, \
             or let TCP find out by itself (`net.ipv4.tcp_mtu_probing=1`). The operator of the path has to let ICMP errors \
             through.",
    sources: &["RFC 2923 section 2.1", "RFC 4821", "RFC 8899"],
    recipes,
    ..Cause::of(Group::Network, examine)
};

/// Payload from which a segment is a long one: what every IPv4 host takes without asking (RFC 9293 section 3.7.1), and some
/// more, so that paths that carry nothing longer are not meant.
const LONG: u32 = 800;
/// States in which data is sent (include/net/tcp_states.h): ESTABLISHED, FIN_WAIT1, CLOSE_WAIT, LAST_ACK, CLOSING.
const SENDING: &[u8] = &[1, 4, 8, 9, 11];
/// SYN_SENT.
const CONNECTING: u8 = 2;

/// Observations of the connections to one host.
#[derive(Debug, Default)]
struct Peer<'a> {
    /// Long segments of these are sent again, and never acknowledged.
    stuck: Vec<(&'a FlowEvent, Option<&'a TcpFlow>)>,
    /// Others that send something again.
    others: u64,
    /// Connections that cannot be set up.
    unset: u64,
}

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    view.namespaces().flat_map(|n| in_namespace(view, n)).collect()
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Vec<Finding> {
    let mut peers: BTreeMap<IpAddr, Peer<'_>> = BTreeMap::new();
    let sent_again = view
        .evidence
        .flows
        .iter()
        .filter(|f| f.namespace == namespace.id && f.kind == FlowEventKind::Retransmit);
    for event in sent_again {
        let Some(tuple) = event.tuple else { continue };
        let peer = peers.entry(tuple.destination).or_default();
        let flow = connection(namespace, tuple);
        if event.state == CONNECTING {
            peer.unset += 1;
        } else if is_stuck(event, flow) {
            peer.stuck.push((event, flow));
        } else if SENDING.contains(&event.state) {
            peer.others += 1;
        }
    }
    let findings = peers.iter().filter_map(|(host, peer)| to_host(view, namespace, *host, peer));
    findings.collect()
}

fn connection(namespace: &Namespace, tuple: Tuple) -> Option<&TcpFlow> {
    let connections = &namespace.sockets.as_ref()?.tcp;
    connections.iter().find(|c| {
        (c.local.port(), c.remote.port()) == (tuple.source_port, tuple.destination_port)
            && c.remote.ip().to_canonical() == tuple.destination
            && c.local.ip().to_canonical() == tuple.source
    })
}

/// Only long segments are sent again, more than once, and none is acknowledged.
fn is_stuck(event: &FlowEvent, flow: Option<&TcpFlow>) -> bool {
    let long = event.smallest_bytes >= LONG && event.times >= 2 && SENDING.contains(&event.state);
    // A connection that is gone by the window's end cannot be asked: a handful of repetitions without a short one is then all.
    let unanswered = flow.is_none_or(|f| f.bytes_acked.change() < u64::from(LONG));
    long && unanswered
}

fn to_host(view: &EvidenceView<'_>, namespace: &Namespace, host: IpAddr, peer: &Peer<'_>) -> Option<Finding> {
    let asked = peer.stuck.iter().filter_map(|(_, flow)| *flow);
    // Without the connections' own word there must be several that agree.
    let sure = asked.clone().count();
    if peer.stuck.is_empty() || peer.unset > 0 || (sure == 0 && peer.stuck.len() < 3) {
        return None;
    }
    if peer.others as usize > peer.stuck.len() || is_dropped_here(view, &peer.stuck) {
        return None;
    }
    let stuck = peer.stuck.len() as u64;
    let times: u64 = peer.stuck.iter().map(|(e, _)| e.times).sum();
    let (shortest, longest) = (
        peer.stuck.iter().map(|(e, _)| e.smallest_bytes).min()?,
        peer.stuck.iter().map(|(e, _)| e.largest_bytes).max()?,
    );
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = if stuck >= 3 { Severity::Critical } else { Severity::Warning };
    finding.confidence = match (stuck, sure) {
        (2.., 1..) => Confidence::High,
        (_, 1..) => Confidence::Medium,
        _ => Confidence::Low,
    };
    finding.object = host.to_string();
    finding.impact = harm(namespace, stuck);
    finding.summary = format!(
        "Connections to {host} are set up and then hang: only segments of {shortest} bytes and more are sent again \
         ({times} times), and none of them arrives. A link on the path carries less, and the error that reports it is \
         lost."
    );
    let text = format!(
        "{stuck} connections sent {shortest} to {longest} bytes again, {times} times, and no shorter segment"
    );
    finding.seen(EvidenceSource::Flows, text);
    if let Some(flow) = asked.clone().next() {
        let text = format!(
            "{} to {}: path MTU {}, segments of {}, {} bytes acknowledged in the window",
            flow.local,
            flow.remote,
            flow.pmtu,
            flow.mss,
            flow.bytes_acked.change()
        );
        finding.seen(EvidenceSource::Sockets, text);
    }
    finding.not.push("not on this host: none of these packets is among those dropped here".into());
    finding.missing =
        view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Flows, EvidenceSource::Sockets]);
    finding.fixes = fixes(namespace, host);
    Some(finding)
}

/// True if packets of one of these connections are dropped on this machine.
fn is_dropped_here(view: &EvidenceView<'_>, stuck: &[(&FlowEvent, Option<&TcpFlow>)]) -> bool {
    let groups = view.evidence.drops.iter().filter(|d| !is_noise(d) && d.protocol == 6);
    let mut dropped = groups.flat_map(|d| &d.samples).filter_map(crate::evidence::Sample::tuple);
    dropped.any(|t| stuck.iter().any(|(e, _)| e.tuple.is_some_and(|own| own.destination == t.destination)))
}

fn harm(namespace: &Namespace, stuck: u64) -> f64 {
    let all = namespace.sockets.as_ref().map_or(0, |s| s.established).max(stuck);
    stuck as f64 / all.max(1) as f64
}

fn fixes(namespace: &Namespace, host: IpAddr) -> Vec<Fix> {
    let now = namespace.settings.get("net.ipv4.tcp_mtu_probing").cloned();
    let probing = now.map(|now| {
        Fix::set(
            "let TCP find the path MTU by itself when it detects a black hole",
            "time-outs for another reason may make segments shorter than needed",
            vec![Setting::new("net.ipv4.tcp_mtu_probing", now, 1, "long segments disappear on the way")],
        )
    });
    let (ip, network) = (super::ways::ip(host), super::ways::host_network(host));
    let route = Fix::new(
        "send no more than a common tunnel carries to that host",
        "a little more overhead to that host",
        [sh!("{} route add {} via NEXT_HOP dev INTERFACE mtu lock 1280", Words::of(ip), network)],
        [sh!("{} route del {} via NEXT_HOP dev INTERFACE", Words::of(ip), network)],
    );
    let already = namespace.setting("net.ipv4.tcp_mtu_probing").is_some_and(|v| v > 0);
    probing.filter(|_| !already).into_iter().chain([route]).collect()
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        at: LabHost::Initiator,
        setup: vec![
            // A router that is not ours stands before the responder, on the same link, and is silent about what it drops.
            Step::Host { name: "far-router", to: LabHost::Gateway, there: "far0", here: "eth0" },
            Step::RunOn(
                "far-router",
                "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1; ip addr add 198.19.1.2/24 dev eth0; ip addr add 198.19.0.1/24 dev eth0; ip route add default via 198.19.1.1; \
                 sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.eth0.send_redirects=0; \
                 nft 'add table ip f; add chain ip f c { type filter hook forward priority 0; }; \
                 add rule ip f c meta length > 1000 drop'"
                    .into(),
            ),
            Step::gateway("ip addr flush dev outside; ip link add br0 type bridge; ip link set br0 up; \
                 ip link set outside master br0; ip link set far0 master br0; \
                 ip addr add 198.19.1.1/24 dev br0; ip route add 198.19.0.0/24 via 198.19.1.2"),
            Step::responder("ip neigh flush dev eth0 nud permanent"),
        ],
        traffic: vec![
            Traffic::TcpServer { port: 9001, backlog: 64, mode: TcpMode::Sink },
            Traffic::TcpServer { port: 9002, backlog: 64, mode: TcpMode::Echo },
            Traffic::Bulk { to: "198.19.0.2:9001".into(), streams: 6, rate_bps: None },
            Traffic::Exchange { to: "198.19.0.2:9002".into(), rate: 100, bytes: 200 },
        ],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{HERE, connection, drops, healthy, packet};
    use super::*;
    use crate::evidence::{Evidence, Sockets};

    fn flow(port: u16, acked: u64) -> TcpFlow {
        connection(&format!("198.18.0.2:{port}"), "198.19.0.2:9001", acked)
    }

    fn again(port: u16, state: u8, smallest: u32) -> FlowEvent {
        FlowEvent {
            namespace: HERE,
            kind: FlowEventKind::Retransmit,
            tuple: Some(Tuple {
                source: [198, 18, 0, 2].into(),
                destination: [198, 19, 0, 2].into(),
                protocol: 6,
                source_port: port,
                destination_port: 9001,
            }),
            state,
            times: 3,
            largest_bytes: 1448,
            smallest_bytes: smallest,
        }
    }

    fn host(tcp: Vec<TcpFlow>, flows: Vec<FlowEvent>) -> Evidence {
        let mut evidence = healthy();
        evidence.namespaces[0].sockets =
            Some(Sockets { established: tcp.len() as u64, tcp, ..Sockets::default() });
        evidence.namespaces[0].settings.insert("net.ipv4.tcp_mtu_probing".into(), "0".into());
        evidence.flows = flows;
        evidence
    }

    #[test]
    fn connections_that_hang_on_long_segments_convict() {
        let ports = [40_001, 40_002, 40_003];
        let evidence = host(ports.map(|p| flow(p, 0)).to_vec(), ports.map(|p| again(p, 1, 1448)).to_vec());
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!((found[0].severity, found[0].confidence), (Severity::Critical, Confidence::High));
        assert!((found[0].impact - 1.0).abs() < 1e-9);
        assert_eq!(found[0].fixes[0].tune[0].proposed, "1");
    }

    #[test]
    fn loss_of_some_segments_an_outage_and_a_local_drop_are_others() {
        let lossy = host(vec![flow(40_001, 5_000_000)], vec![again(40_001, 1, 1448)]);
        assert_eq!(examine(&EvidenceView::of(&lossy)), [], "data gets through");
        let short = host(vec![flow(40_001, 0)], vec![again(40_001, 1, 100)]);
        assert_eq!(examine(&EvidenceView::of(&short)), [], "short segments are lost, too");
        let outage = host(vec![flow(40_001, 0)], vec![again(40_001, 1, 1448), again(40_002, 2, 0)]);
        assert_eq!(examine(&EvidenceView::of(&outage)), [], "nothing at all gets through");
        let mut local = host(vec![flow(40_001, 0)], vec![again(40_001, 1, 1448)]);
        let segment = packet("198.18.0.2", "198.19.0.2", 0, 6, &[0x9c, 0x41, 0x23, 0x29]);
        local.drops.push(drops("NETFILTER_DROP", "nft_do_chain", 3, &[segment]));
        assert_eq!(examine(&EvidenceView::of(&local)), []);
        let unseen = host(Vec::new(), vec![again(40_001, 1, 1448)]);
        assert_eq!(examine(&EvidenceView::of(&unseen)), [], "one connection that is gone proves nothing");
    }
}
