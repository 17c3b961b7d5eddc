//! UDP: RFC 4787.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::judge::{
    Dependence, does, fails, filtering_class, is, made, mapping_class, meets, not_sure, not_testable,
    translates, udp_filtering, udp_mapping,
};
use super::{Confidence, Group, Judgement, Level, Row, Verdict};
use crate::Observations;
use crate::experiments::bracket;
use crate::observed::{Answered, IdleTry, Refresh, Translation};

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
        judge: |o| mapping(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-pooling",
        group: Group::Mapping,
        rfc: 4787,
        section: "4.1",
        requirement: "REQ-2",
        level: Level::Recommended,
        asks: "one inside host has one outside address",
        sent: "UDP from sixteen ports of two hosts",
        breaks: "logins and calls that expect one address of a user see several",
        judge: |o| pooling(o).unwrap_or_else(|e| e),
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
        judge: |o| overloading(o).unwrap_or_else(|e| e),
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
        breaks: "old RTP senders that expect RTCP at the next odd port lose it",
        judge: |o| parity(o).unwrap_or_else(|e| e),
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
        judge: |o| filtering(o).unwrap_or_else(|e| e),
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
        judge: |o| hairpin(o).unwrap_or_else(|e| e),
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
        judge: |o| hairpin_source(o).unwrap_or_else(|e| e),
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
        judge: |o| refresh(o, |idle| idle.refreshed_out, true).unwrap_or_else(|e| e),
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
        judge: |o| refresh(o, |idle| idle.refreshed_in, false).unwrap_or_else(|e| e),
    },
];

type Judged = Result<Judgement, Judgement>;

fn mapping(o: &Observations) -> Judged {
    translates(o)?;
    let mappings = made(&o.udp_mapping)?;
    let Some(class) = udp_mapping(o) else {
        let classes: Vec<&str> =
            mappings.iter().map(|m| mapping_class(m).map_or("lost packets", Dependence::mapping)).collect();
        return Ok(not_sure(format!("{} of {} ports disagree", classes.join(", "), mappings.len())));
    };
    let seen = format!("{} ({})", class.words(), class.mapping());
    if class != Dependence::EndpointIndependent {
        return Ok(fails(seen));
    }
    let collided = o.udp_collision.as_ref().and_then(|c| mapping_class(&c.second));
    match collided {
        Some(class) if class != Dependence::EndpointIndependent => Ok(is(
            Verdict::Partly,
            Confidence::High,
            format!("{seen}, but {} where two hosts use one port", class.words()),
        )),
        _ => Ok(meets(seen)),
    }
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

fn pooling(o: &Observations) -> Judged {
    translates(o)?;
    let all = made(&o.udp_ports)?;
    let of_host = |host: Ipv4Addr| -> BTreeSet<Ipv4Addr> {
        all.iter().filter(|t| *t.inside.ip() == host).filter_map(|t| t.seen.map(|seen| *seen.ip())).collect()
    };
    let hosts: BTreeSet<Ipv4Addr> = all.iter().map(|t| *t.inside.ip()).collect();
    let pools: Vec<BTreeSet<Ipv4Addr>> = hosts.iter().map(|host| of_host(*host)).collect();
    let addresses: BTreeSet<Ipv4Addr> = pools.iter().flatten().copied().collect();
    let widest = pools.iter().map(BTreeSet::len).max().unwrap_or_default();
    Ok(match (addresses.len(), widest) {
        (0, _) => not_sure("no packet arrived"),
        (1, _) => not_testable("the NAT showed one outside address only"),
        (_, 1) => meets(format!("paired: {} outside addresses, one for each host", addresses.len())),
        (n, _) => fails(format!("arbitrary: one host had {widest} of {n} outside addresses")),
    })
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

fn overloading(o: &Observations) -> Judged {
    translates(o)?;
    let c = made(&o.udp_collision)?;
    let all = [&c.first].into_iter().chain(&c.second.seen);
    if all.clone().any(|t| t.seen.is_none()) {
        let lost: Vec<&Translation> = all.filter(|t| t.seen.is_none()).collect();
        return Ok(if lost.iter().all(|t| t.sure) {
            fails("a packet of the second host with that port did not arrive")
        } else {
            not_sure("packets of the second host did not arrive, nor did control packets")
        });
    }
    let right = c.first_answer == Some(c.first.inside) && c.second_answer == Some(c.second.seen[2].inside);
    if !right {
        return Ok(if c.sure {
            fails("answers to two hosts with one source port did not reach both")
        } else {
            not_sure("answers did not arrive, nor did control packets")
        });
    }
    Ok(if c.second.seen.iter().any(|t| t.seen == c.first.seen) {
        let seen = "shared while destinations differ: RFC 7857 section 3 allows that, RFC 4787 does not";
        is(Verdict::Partly, Confidence::High, seen)
    } else {
        meets("the second host gets another port")
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

fn filtering(o: &Observations) -> Judged {
    let tries = made(&o.udp_filtering)?;
    if tries.is_empty() {
        return Ok(not_sure("no packet from inside arrived outside"));
    }
    let Some(class) = udp_filtering(o) else {
        let lost = tries.iter().any(|t| t.answer.reached.is_none());
        let by_port = |t: &crate::observed::Filtering| {
            t.same_address.reached.is_none() && t.other_address.reached.is_some()
        };
        return Ok(if lost {
            not_sure("answers of the contacted endpoint did not arrive")
        } else if tries.iter().all(by_port) {
            fails("by port alone: the contacted port of any address passes")
        } else {
            let classes: Vec<&str> =
                tries.iter().map(|t| filtering_class(t).map_or("unknown", Dependence::filtering)).collect();
            not_sure(format!("mappings disagree: {}", classes.join(", ")))
        });
    };
    let seen = format!("{} ({})", class.words(), class.filtering());
    Ok(if class == Dependence::AddressAndPort { fails(seen) } else { meets(seen) })
}

fn hairpin(o: &Observations) -> Judged {
    translates(o)?;
    let hairpin = made(&o.udp_hairpin)?;
    if hairpin.source.is_some() {
        return Ok(meets("a packet to the other host's outside port arrived"));
    }
    if !hairpin.sure {
        return Ok(not_sure("neither the packet nor a control packet arrived"));
    }
    let independent = |class: Option<Dependence>| class == Some(Dependence::EndpointIndependent);
    if let Some(Answered::Icmp { kind, code }) = hairpin.answered {
        return Ok(fails(format!("the NAT itself answers with ICMP {kind}/{code}")));
    }
    if !independent(udp_mapping(o)) && !independent(udp_filtering(o)) {
        return Ok(not_testable(
            "both mapping and filter depend on the destination: the filter may have dropped the packet",
        ));
    }
    Ok(fails("a packet to the other host's outside port did not arrive"))
}

fn hairpin_source(o: &Observations) -> Judged {
    translates(o)?;
    let hairpin = made(&o.udp_hairpin)?;
    let Some(source) = hairpin.source else {
        return Ok(not_testable("no hairpinned packet arrived"));
    };
    let [_, sender] = hairpin.mappings;
    // If mappings depend on the destination, the port towards the other host is another one than that seen outside.
    let outside = sender.seen.is_some_and(|seen| seen.ip() == source.ip());
    Ok(
        if sender.seen == Some(source) || (outside && udp_mapping(o) != Some(Dependence::EndpointIndependent))
        {
            meets(format!("from {source}, the sender's outside endpoint"))
        } else if source == sender.inside {
            fails(format!("from {source}, the sender's inside endpoint"))
        } else {
            fails(format!("from {source}, which is no endpoint of the sender"))
        },
    )
}

fn idle(o: &Observations, tries: fn(&crate::observed::Idle) -> &Vec<IdleTry>, least: f64) -> Judged {
    translates(o)?;
    let idle = made(&o.udp_idle)?;
    let tries = tries(idle);
    let longest = tries.iter().filter(|t| t.alive).map(|t| t.idle_s).fold(0.0, f64::max);
    if tries.is_empty() {
        return Ok(not_sure("no mapping could be opened"));
    }
    if let Some((alive, dead)) = bracket(tries) {
        if alive == 0.0 {
            return Ok(not_sure("no answer arrived, however soon"));
        }
        if tries.iter().any(|t| !t.alive && !t.sure) {
            return Ok(not_sure("the path lost control packets"));
        }
        let seen = format!("expires between {alive:.2} and {dead:.2} s");
        return Ok(if dead <= least {
            fails(seen)
        } else if alive >= least {
            meets(seen)
        } else {
            // Around the limit itself, as a timer that was set to it.
            is(Verdict::Meets, Confidence::Medium, seen)
        });
    }
    if tries.iter().any(|t| !t.alive) {
        return Ok(not_sure("some mappings ended before others that were left alone for longer"));
    }
    Ok(if longest >= least {
        meets(format!("alive after {longest:.0} s"))
    } else {
        not_testable(format!("alive after {longest:.1} s, the longest time tried"))
    })
}

fn refresh(
    o: &Observations,
    refresh: fn(&crate::observed::Idle) -> Option<Refresh>,
    required: bool,
) -> Judged {
    translates(o)?;
    let idle = made(&o.udp_idle)?;
    let Some(refresh) = refresh(idle) else {
        return Ok(not_testable("no mapping ended within the longest time tried"));
    };
    if !refresh.alive && !refresh.sure {
        return Ok(not_sure("the path lost control packets"));
    }
    let (at, end) = (refresh.packet_at_s, refresh.asked_at_s);
    let seen = match refresh.alive {
        true => format!("alive after {end:.1} s with a packet at {at:.1} s"),
        false => format!("gone after {end:.1} s in spite of a packet at {at:.1} s"),
    };
    Ok(match (required, refresh.alive) {
        (false, _) => does(seen),
        (true, true) => meets(seen),
        (true, false) => fails(seen),
    })
}
