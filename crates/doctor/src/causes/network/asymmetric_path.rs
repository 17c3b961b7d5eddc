//! Only one direction of connections comes through this host.

use super::ways::{Loss, lookup, such_as};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft::{nft, statement};
use crate::evidence::{ConnectionGroup, Connections, DropGroup, EvidenceSource, Namespace, Sample, Tuple};
use crate::finding::{Confidence, Fact, Finding, Fix, Setting, Severity};
use crate::recipe::{Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "asymmetric-path",
    title: "only one direction of connections comes through here",
    about: "Connection tracking has to see both directions. If the answers take another path (a second router, a server \
            with a second interface, an offload that bypasses the kernel), the entry of each connection stays in its first \
            state, and everything that follows is `invalid`. Without rules the packets still pass; with the usual rule \
            that drops invalid packets, connections are set up and then hang, and with NAT they never work.",
    must: &[
        "TCP entries stay in SYN_SENT or SYN_RECV though data of the same connections comes by",
        "conntrack invalid grows",
    ],
    should: &[
        "the dropped packets belong to such entries",
        "packets of both directions are expected on the same two interfaces",
    ],
    must_not: &["the destinations do not answer at all: then nothing follows the SYN"],
    lookalikes: &[
        (
            "conntrack-invalid-dropped",
            "packets are invalid for other reasons: out of window, after a restart, with odd flags",
        ),
        (
            "reverse-path-filter",
            "this host itself refuses packets that come in by another interface than its answers would leave by",
        ),
    ],
    remedy: "Make both directions take the same path: routes on the other router or on the server, policy routing by \
             interface, or one default route. If that is not possible, leave this traffic untracked (`notrack`) and filter \
             it without state.",
    sources: &[
        "net/netfilter/nf_conntrack_proto_tcp.c: tcp_conntracks",
        "RFC 2979",
        "Documentation/networking/nf_conntrack-sysctl.rst: tcp_loose",
    ],
    recipes,
    ..Cause::of(Group::Network, |view| view.each(in_namespace))
};

/// Numbers of TCP states in ctnetlink (enum tcp_conntrack): SYN_SENT and SYN_RECV.
const OPENING: &[u8] = &[1, 2];
/// Connections of one kind from which they are more than a few that fail.
const SEVERAL: u64 = 3;

fn is_half(group: &ConnectionGroup) -> bool {
    group.protocol == 6 && OPENING.contains(&group.state) && !group.replied
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let connections = namespace.connections.as_ref()?;
    let invalid = namespace.grew("conntrack.invalid");
    // Segments after the SYN of an entry that saw no answer.
    let follows = |s: &Sample| s.tuple().is_some_and(|t| belongs_to_half(connections, t)) && !is_first(s);
    let dropped = |d: &DropGroup| d.reason == "NETFILTER_DROP" && d.protocol == 6;
    let taken = view.take(namespace, dropped).share(false, |_, s| follows(s));
    let half: Vec<&ConnectionGroup> = connections.groups.iter().filter(|g| is_half(g)).collect();
    let entries: u64 = half.iter().map(|g| g.entries).sum();
    if taken.is_empty() && (entries < SEVERAL || invalid < entries || invalid < 10) {
        return None;
    }
    let lost = taken.packets;
    let loss = Loss::seen(taken, vec!["conntrack.invalid"]);
    let mut finding = loss.finding(view, CAUSE.id, namespace).unwrap_or_else(|| {
        let mut finding = view.finding(CAUSE.id, namespace, 0);
        finding.evidence.extend(super::ways::counter_as_fact(namespace, "conntrack.invalid"));
        finding.missing = view.missing(namespace, &[EvidenceSource::Drops]);
        // Packets pass unless a rule drops them, so there may be no harm; the kernel never does NAT for them.
        finding.severity = if half.iter().any(|g| g.source_nat || g.destination_nat) {
            Severity::Warning
        } else {
            Severity::Note
        };
        finding
    });
    finding.confidence = if lost > 0 && invalid > 0 { Confidence::High } else { Confidence::Medium };
    let example = half.iter().max_by_key(|g| g.entries).and_then(|g| g.example);
    let example = loss.taken.example().or(example);
    let words = such_as(example);
    finding.object = example.map_or(String::new(), |t| t.destination.to_string());
    finding.summary = format!(
        "This host sees only one direction of connections{words}: their answers take another path, and {invalid} packets \
         were invalid to connection tracking{}.",
        if lost > 0 { format!(", {lost} of which were dropped") } else { String::new() }
    );
    let text = format!("{entries} TCP connections wait for an answer that others got: data follows on them");
    finding.seen(EvidenceSource::Connections, text);
    finding.evidence.extend(ways_told(namespace, &loss));
    finding.missing.extend(view.missing(namespace, &[EvidenceSource::Connections, EvidenceSource::Routes]));
    finding.fixes = fixes(namespace, example);
    Some(finding)
}

fn belongs_to_half(connections: &Connections, tuple: Tuple) -> bool {
    connections.joined.iter().any(|(asked, group)| *asked == tuple && is_half(group))
}

/// A SYN without an acknowledgement, which begins a connection: byte 13 of the TCP header holds the flags (RFC 9293 section 3.1).
fn is_first(sample: &Sample) -> bool {
    let tcp = match sample.header.first().map(|b| b >> 4) {
        Some(4) => weir_wire::Ipv4::read_quoted(&sample.header).ok().map(|(_, rest)| rest),
        _ => weir_wire::Ipv6::read_quoted(&sample.header).ok().map(|(_, rest)| rest),
    };
    tcp.and_then(|t| t.get(13)).is_none_or(|flags| flags & 0x12 == 0x02)
}

fn ways_told(namespace: &Namespace, loss: &Loss<'_>) -> Option<Fact> {
    let mut samples = loss.taken.samples();
    let l = samples.find_map(|s| lookup(namespace, s))?;
    let name = |index| super::ways::name_of(namespace, index);
    let text = if l.return_interface == l.came_in {
        format!(
            "this host would send answers back through {}: other hosts send them on another path",
            name(l.came_in)
        )
    } else if l.return_interface == 0 {
        format!("this host itself has no way back to {}", l.source)
    } else {
        format!(
            "they come in through {}, and this host would answer through {}",
            name(l.came_in),
            name(l.return_interface)
        )
    };
    Some(Fact::seen(EvidenceSource::Routes, text))
}

fn fixes(namespace: &Namespace, example: Option<Tuple>) -> Vec<Fix> {
    let to = example.map_or_else(|| statement!("DESTINATION"), |t| statement!("{}", t.destination));
    let family = if example.is_none_or(|t| t.destination.is_ipv4()) { "ip" } else { "ip6" };
    let mut fixes = vec![Fix::new(
        "leave this traffic untracked, and filter it without state",
        "no NAT and no `ct state` rules for it any more",
        [
            nft!("add table {} weir_raw", family),
            nft!("add chain {} weir_raw pre { type filter hook prerouting priority -300; }", family),
            nft!("add rule {} weir_raw pre {} daddr {} notrack", family, family, to),
        ],
        [nft!("delete table {} weir_raw", family)],
    )];
    let name = "net.netfilter.nf_conntrack_tcp_be_liberal";
    if let Some(now) = namespace.setting(name).filter(|now| *now == 0) {
        fixes.push(Fix::set(
            "be lenient with windows that were not seen",
            "helps only where the answers to SYN come through here; less protection against forged segments",
            vec![Setting::new(name, now, 1, "one direction of connections is not seen here")],
        ));
    }
    fixes
}

fn recipes() -> Vec<Recipe> {
    // Answers go past the gateway's IP layer, straight from the one link to the other, as through another router.
    let mac = "02:00:00:00:aa:01";
    vec![Recipe {
        setup: vec![
            Step::initiator(format!("ip link set eth0 address {mac}")),
            Step::gateway(format!(
                "ip link set outside address {mac}; ip neigh flush dev inside nud permanent; \
                     tc qdisc add dev outside handle ffff: ingress; \
                     tc filter add dev outside parent ffff: protocol ip prio 1 u32 match ip src $RESPONDER match ip dst $INITIATOR \
                     action mirred egress redirect dev inside; \
                     nft 'add table ip f; add chain ip f c {{ type filter hook forward priority 0; }}; \
                     add rule ip f c ct state invalid counter drop; add rule ip f c ct state new,established accept'"
            )),
            Step::responder("ip neigh flush dev eth0 nud permanent"),
        ],
        traffic: vec![
            Traffic::TcpServer { port: 9001, backlog: 128, mode: TcpMode::Echo },
            Traffic::Connects { to: "198.19.0.2:9001".into(), rate: 30, bytes: 200, hold: false },
        ],
        also: vec!["conntrack-invalid-dropped", "nft-rule-drop"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, count, drops, healthy, packet};
    use super::*;
    use crate::evidence::Evidence;

    /// A TCP segment with those flags.
    fn segment(flags: u8) -> Sample {
        let mut tcp = vec![0x9c, 0x41, 0x23, 0x29, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags];
        tcp.extend([0; 6]);
        packet("198.18.0.2", "198.19.0.2", INSIDE, 6, &tcp)
    }

    fn case(state: u8, replied: bool, flags: u8) -> Evidence {
        let mut evidence = healthy();
        let sample = segment(flags);
        let group = ConnectionGroup {
            protocol: 6,
            state,
            replied,
            entries: 40,
            example: sample.tuple(),
            ..ConnectionGroup::default()
        };
        evidence.namespaces[0].connections = Some(Connections {
            groups: vec![group.clone()],
            joined: vec![(sample.tuple().unwrap(), group)],
            ..Connections::default()
        });
        evidence.drops.push(drops("NETFILTER_DROP", "nft_do_chain", 120, &[sample]));
        count(&mut evidence, "conntrack.invalid", 120);
        evidence
    }

    #[test]
    fn data_on_a_connection_that_saw_no_answer_convicts() {
        let found = (CAUSE.examine)(&EvidenceView::of(&case(1, false, 0x18)));
        assert_eq!((found.len(), found[0].confidence), (1, Confidence::High));
        assert_eq!(found[0].severity, Severity::Warning, "120 of 20,000");
        assert!(found[0].summary.contains("120 of which were dropped"), "{}", found[0].summary);
    }

    #[test]
    fn established_connections_and_hosts_that_do_not_answer_are_others() {
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&case(3, true, 0x18))), [], "both directions were seen");
        let mut dead = case(1, false, 0x02);
        count(&mut dead, "conntrack.invalid", 0);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&dead)), [], "only SYNs: the destination is silent");
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&healthy())), []);
    }

    #[test]
    fn without_a_rule_against_invalid_packets_it_is_a_note() {
        let mut evidence = case(1, false, 0x18);
        evidence.drops.clear();
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence))[0].severity, Severity::Note);
    }
}
