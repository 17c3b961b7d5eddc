//! UDP: RFC 4787.

use super::judge::{
    does, fails, made, mapping_class, meets, not_sure, translates, udp_filtering, udp_mapping,
};
use super::verdicts::{
    Classes, Judged, Wanted, filtering, hairpin, hairpin_source, idle, mapping, overloading, pooling, refresh,
};
use super::{Group, Judgement, Level, Row};
use crate::Observations;
use crate::observed::{Idle, Refresh};

/// RFC 4787 REQ-5.
const LEAST_IDLE_S: f64 = 120.0;
/// RFC 4787 REQ-5c.
const GOOD_IDLE_S: f64 = 300.0;

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "udp-mapping",
        group: Group::Mapping,
        rfc: 4787,
        section: "4.1",
        requirement: "REQ-1",
        level: Level::Must,
        asks: "one inside port has one outside port, for every destination",
        sent: "UDP from one port to two addresses, two ports each; three times",
        breaks: "calls, games and peer-to-peer between two such NATs need a relay",
        judge: |o| mapping(o, &o.udp_mapping, &o.udp_collision).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-pooling",
        group: Group::Mapping,
        rfc: 4787,
        section: "4.1",
        requirement: "REQ-2",
        level: Level::Recommended,
        asks: "one inside host has one outside address",
        sent: "UDP from sixteen ports of two hosts to one address, and from three ports to two",
        breaks: "logins and calls that expect one address of a user see several",
        judge: |o| pooling(o, &o.udp_ports, &o.udp_mapping).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-port-preservation",
        group: Group::Mapping,
        rfc: 4787,
        section: "4.2.1",
        requirement: "",
        level: Level::Described,
        asks: "whether the outside port is the inside one",
        sent: "UDP from sixteen ports of two hosts",
        breaks: "",
        judge: |o| preservation(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-overloading",
        group: Group::Mapping,
        rfc: 4787,
        section: "4.2.1",
        requirement: "REQ-3",
        level: Level::MustNot,
        asks: "two inside hosts never share an outside port",
        sent: "UDP from the same port of two hosts, to different addresses, then to the same",
        breaks: "of two hosts with one source port, one gets a mapping that depends on its destination, or none",
        judge: |o| overloading(o, &o.udp_collision).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-port-range",
        group: Group::Mapping,
        rfc: 4787,
        section: "4.2.1",
        requirement: "REQ-3a",
        level: Level::Recommended,
        asks: "ports below 1024 stay below, others stay above",
        sent: "UDP from ports on both sides of 1024",
        breaks: "NFS, IKE and other servers that trust ports below 1024 refuse the client",
        judge: |o| range(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-parity",
        group: Group::Mapping,
        rfc: 4787,
        section: "4.2.2",
        requirement: "REQ-4",
        level: Level::Recommended,
        asks: "even ports stay even, odd ones odd",
        sent: "UDP from even and odd ports",
        breaks: "old RTP senders that expect RTCP at the next odd port lose it; RFC 7857 section 9 lets a NAT give parity up",
        judge: |o| parity(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-port-contiguity",
        group: Group::Mapping,
        rfc: 4787,
        section: "4.2.3",
        requirement: "",
        level: Level::Described,
        asks: "whether two ports that follow each other do so outside, as RTP and RTCP use them",
        sent: "UDP from four pairs of an even port and the next one, of each of two hosts",
        breaks: "",
        judge: |o| contiguity(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-deterministic",
        group: Group::Mapping,
        rfc: 4787,
        section: "8",
        requirement: "REQ-11",
        level: Level::Must,
        asks: "the kind of mapping does not change when ports collide",
        sent: "UDP from a port that another inside host uses, to two addresses, two ports each",
        breaks: "an application that tested the NAT works until a second host uses the same port",
        judge: |o| deterministic(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-filtering",
        group: Group::Filtering,
        rfc: 4787,
        section: "5",
        requirement: "REQ-8",
        level: Level::Recommended,
        asks: "packets pass from any endpoint, or from any port of a contacted address",
        sent: "UDP to a mapping from its destination's other port, and from another address",
        breaks: "servers that answer from another port, and peers that cannot be contacted first, stay unheard",
        judge: |o| filtering(&o.udp_filtering).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-hairpin",
        group: Group::Hairpin,
        rfc: 4787,
        section: "6",
        requirement: "REQ-9",
        level: Level::Must,
        asks: "inside hosts reach each other's outside ports",
        sent: "UDP between two hosts' outside ports, both ways",
        breaks: "two players or callers behind this NAT cannot connect by their public addresses",
        judge: |o| hairpin(o, &o.udp_hairpin, classes(o)).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-hairpin-source",
        group: Group::Hairpin,
        rfc: 4787,
        section: "6",
        requirement: "REQ-9a",
        level: Level::Must,
        asks: "a hairpinned packet comes from the sender's outside address and port",
        sent: "the same",
        breaks: "the receiver answers to an address that it never contacted, and drops the packet",
        judge: |o| hairpin_source(o, &o.udp_hairpin, classes(o)).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-idle-unanswered",
        group: Group::Timers,
        rfc: 4787,
        section: "4.3",
        requirement: "REQ-5",
        level: Level::MustNot,
        asks: "a mapping with one packet out lives for two minutes or more",
        sent: "one packet each from many ports, and one to each after a time of its own",
        breaks: "slow answers are lost: DNS over a bad path, SIP registration, IKE",
        judge: |o| idle(o, |idle| &idle.unanswered, LEAST_IDLE_S).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-idle-answered",
        group: Group::Timers,
        rfc: 4787,
        section: "4.3",
        requirement: "REQ-5",
        level: Level::MustNot,
        asks: "a mapping with packets both ways lives for two minutes or more",
        sent: "packets both ways over two seconds, and one to each port after a time of its own",
        breaks: "VPN, VoIP and push connections must send keep-alives more often than every two minutes",
        judge: |o| idle(o, |idle| &idle.answered, LEAST_IDLE_S).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-idle-default",
        group: Group::Timers,
        rfc: 4787,
        section: "4.3",
        requirement: "REQ-5c",
        level: Level::Recommended,
        asks: "by default a mapping lives for five minutes or more",
        sent: "the same",
        breaks: "phones wake up for keep-alives",
        judge: |o| idle(o, |idle| &idle.answered, GOOD_IDLE_S).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-refresh-out",
        group: Group::Timers,
        rfc: 4787,
        section: "4.3",
        requirement: "REQ-6",
        level: Level::Must,
        asks: "packets from inside keep a mapping alive",
        sent: "one more packet out before the idle time ends, and one in after it",
        breaks: "keep-alives do not help: sessions end after the idle time",
        judge: |o| held(o, |idle| idle.refreshed_out, Wanted::Refresh).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-refresh-in",
        group: Group::Timers,
        rfc: 4787,
        section: "4.3",
        requirement: "REQ-6a",
        level: Level::May,
        asks: "whether packets from outside keep a mapping alive",
        sent: "one packet in before the idle time ends, and one more after it",
        breaks: "",
        judge: |o| held(o, |idle| idle.refreshed_in, Wanted::Any).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-refresh-error",
        group: Group::Timers,
        rfc: 7857,
        section: "8",
        requirement: "Outbound Mapping Refresh and Error Packets",
        level: Level::Should,
        asks: "an ICMP error from inside keeps no mapping alive",
        sent: "an ICMP error from inside about a datagram of the contacted endpoint before the idle time ends, and one in after it",
        breaks: "strangers who send to closed ports of a host hold its mappings open, and the NAT's ports run out",
        judge: |o| held(o, |idle| idle.refreshed_error, Wanted::None).unwrap_or_else(|e| e),
    },
];

/// One more packet before the end of a mapping with one packet out.
fn held(o: &Observations, held: fn(&Idle) -> Option<Refresh>, wanted: Wanted) -> Judged {
    refresh(o, held, |idle| &idle.unanswered, wanted)
}

/// The classes that decide whether a hairpinned packet can be seen.
fn classes(o: &Observations) -> Classes {
    Classes { mapping: udp_mapping(o), filtering: udp_filtering(o) }
}

/// The translations of the ports experiment that arrived.
fn translations(o: &Observations) -> Result<Vec<(u16, u16)>, Judgement> {
    translates(o)?;
    let all = made(&o.udp_ports)?;
    let ports: Vec<(u16, u16)> =
        all.iter().filter_map(|t| t.seen.map(|seen| (t.inside.port(), seen.port()))).collect();
    if ports.len() < all.len() {
        return Err(not_sure(format!("{} of {} packets did not arrive", all.len() - ports.len(), all.len())));
    }
    Ok(ports)
}

fn preservation(o: &Observations) -> Judged {
    let ports = translations(o)?;
    let kept = ports.iter().filter(|(inside, outside)| inside == outside).count();
    Ok(if kept == ports.len() {
        does(format!("keeps the port (all of {kept})"))
    } else if kept == 0 {
        does(format!("chooses another port (all of {})", ports.len()))
    } else {
        does(format!("keeps {kept} of {} ports", ports.len()))
    })
}

fn range(o: &Observations) -> Judged {
    let ports = translations(o)?;
    let left = ports.iter().filter(|(inside, outside)| (*inside < 1024) != (*outside < 1024)).count();
    Ok(if left == 0 {
        meets(format!("all of {} ports stay on their side of 1024", ports.len()))
    } else {
        fails(format!("{left} of {} ports cross 1024", ports.len()))
    })
}

fn parity(o: &Observations) -> Judged {
    let ports = translations(o)?;
    let kept = ports.iter().filter(|(inside, outside)| inside % 2 == outside % 2).count();
    Ok(if kept == ports.len() {
        meets(format!("kept by all of {kept} ports"))
    } else {
        fails(format!("kept by {kept} of {} ports", ports.len()))
    })
}

fn contiguity(o: &Observations) -> Judged {
    translates(o)?;
    let pairs = made(&o.udp_pairs)?;
    let mut kept = [0, 0];
    let first = pairs.first().map(|[rtp, _]| rtp.inside.ip());
    for [rtp, rtcp] in pairs {
        let (Some(a), Some(b)) = (rtp.seen, rtcp.seen) else {
            return Ok(not_sure("packets did not arrive"));
        };
        let follows = a.ip() == b.ip() && a.port().checked_add(1) == Some(b.port());
        kept[usize::from(Some(rtp.inside.ip()) != first)] += u32::from(follows);
    }
    let [alone, after] = kept;
    let of = pairs.iter().filter(|[rtp, _]| Some(rtp.inside.ip()) == first).count();
    let others = match pairs.len() - of {
        0 => String::new(),
        others => format!(", and by {after} of {others} whose ports another host uses too"),
    };
    Ok(does(format!("kept by {alone} of {of} pairs{others}")))
}

fn deterministic(o: &Observations) -> Judged {
    translates(o)?;
    let usual = udp_mapping(o).ok_or_else(|| not_sure("the kind of mapping is unknown"))?;
    let collision = made(&o.udp_collision)?;
    let Some(collided) = mapping_class(&collision.second) else {
        return Ok(not_sure("packets of the second host did not arrive"));
    };
    Ok(if collided == usual {
        meets(format!("{} with and without a collision", usual.words()))
    } else {
        fails(format!("{} alone, {} where two hosts use one port", usual.words(), collided.words()))
    })
}
