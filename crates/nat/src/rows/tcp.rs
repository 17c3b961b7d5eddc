//! TCP: RFC 5382.

use super::judge::{fails, made, meets, not_sure, tcp_filtering, tcp_mapping, translates, vanished};
use super::verdicts::{
    Classes, Judged, Wanted, filtering, hairpin, hairpin_source, idle, mapping, overloading, pooling, refresh,
};
use super::{Group, Level, Row};
use crate::Observations;
use crate::observed::{Answered, Idle, IdleTry, Refresh};

/// RFC 5382 REQ-4.
const SILENCE_S: f64 = 6.0;
/// RFC 5382 REQ-5: partly open connections, which RFC 7857 section 2.2 treats those with a reset like, and established ones.
const TRANSITORY_S: f64 = 240.0;
const ESTABLISHED_S: f64 = 7_440.0;

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "tcp-mapping",
        group: Group::Mapping,
        rfc: 5382,
        section: "4.1",
        requirement: "REQ-1",
        level: Level::Must,
        asks: "one inside port of TCP has one outside port, for every destination",
        sent: "SYNs from one port to two addresses, two ports each; three times",
        breaks: "peers cannot connect by TCP through two such NATs",
        judge: |o| mapping(o, &o.tcp_mapping, &o.tcp_collision).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-pooling",
        group: Group::Mapping,
        rfc: 6888,
        section: "3",
        requirement: "REQ-2",
        level: Level::Must,
        asks: "one inside host has one outside address, for TCP too: a carrier's NAT must, RFC 5382 is silent",
        sent: "SYNs from the same sixteen ports of two hosts to one address, and from three ports to two",
        breaks: "web logins that hold a session to one address end, and FTP servers refuse the data connection",
        judge: |o| pooling(o, &o.tcp_moved, &o.tcp_mapping).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-overloading",
        group: Group::Mapping,
        rfc: 5382,
        section: "7.1",
        requirement: "REQ-7",
        level: Level::MustNot,
        asks: "two inside hosts never share an outside port of TCP",
        sent: "SYNs from the same port of two hosts, to different addresses, then to the same",
        breaks: "of two hosts with one source port, one gets a mapping that depends on its destination, or none",
        judge: |o| overloading(o, &o.tcp_collision).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-filtering",
        group: Group::Filtering,
        rfc: 5382,
        section: "4.3",
        requirement: "REQ-3",
        level: Level::Recommended,
        asks: "SYNs pass from any endpoint, or from any port of a contacted address",
        sent: "SYNs to a mapping from its destination's other port, and from another address",
        breaks: "peers that cannot be contacted first cannot connect",
        judge: |o| filtering(&o.tcp_filtering).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-hairpin",
        group: Group::Hairpin,
        rfc: 5382,
        section: "7.2",
        requirement: "REQ-8",
        level: Level::Must,
        asks: "inside hosts reach each other's outside ports by TCP",
        sent: "SYNs between two hosts' outside ports, both ways",
        breaks: "inside users cannot reach an inside server by its public address",
        judge: |o| hairpin(o, &o.tcp_hairpin, classes(o)).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-hairpin-source",
        group: Group::Hairpin,
        rfc: 5382,
        section: "7.2",
        requirement: "REQ-8a",
        level: Level::Must,
        asks: "a hairpinned SYN comes from the sender's outside address and port",
        sent: "the same",
        breaks: "the server answers past the NAT, and the client resets the connection",
        judge: |o| hairpin_source(o, &o.tcp_hairpin, classes(o)).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-simultaneous-open",
        group: Group::Openings,
        rfc: 5382,
        section: "4.2",
        requirement: "REQ-2a",
        level: Level::Must,
        asks: "two SYNs that cross open a connection",
        sent: "a SYN each way, then a SYN and ACK each way",
        breaks: "hole punching by TCP: peers behind two NATs cannot connect without a relay",
        judge: |o| simultaneous(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-unsolicited-syn",
        group: Group::Openings,
        rfc: 5382,
        section: "4.3",
        requirement: "REQ-4",
        level: Level::MustNot,
        asks: "a SYN from outside without a mapping is not answered for six seconds",
        sent: "a SYN to a free port of the NAT's address",
        breaks: "hole punching by TCP: the first peer's SYN is reset before the second peer has sent",
        judge: |o| unsolicited(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-idle-opening",
        group: Group::Timers,
        rfc: 5382,
        section: "5",
        requirement: "REQ-5",
        level: Level::MustNot,
        asks: "a connection that is being opened lives for four minutes or more",
        sent: "SYNs from many ports, and a SYN and ACK to each after a time of its own",
        breaks: "connections to very slow or overloaded servers; RFC 7857 section 2.1 lets operators shorten it",
        judge: |o| idle(o, |idle| &idle.tcp_opening, TRANSITORY_S).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-idle-established",
        group: Group::Timers,
        rfc: 5382,
        section: "5",
        requirement: "REQ-5",
        level: Level::MustNot,
        asks: "an established connection lives for two hours and four minutes or more",
        sent: "connections opened by three segments, and data from outside to each after a time of its own",
        breaks: "idle SSH sessions, databases and push channels hang: keep-alives come after two hours by default",
        judge: |o| idle(o, |idle| &idle.tcp_established, ESTABLISHED_S).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-idle-half-closed",
        group: Group::Timers,
        rfc: 5382,
        section: "5",
        requirement: "REQ-5",
        level: Level::MustNot,
        asks: "a connection with one FIN lives as long as one without: it closes with the second FIN",
        sent: "connections with a FIN from inside and its ACK, and data from outside after a time of its own",
        breaks: "long answers to clients that shut down their direction: rsync, rsh, batch queries",
        judge: |o| idle(o, |idle| &idle.tcp_half_closed, ESTABLISHED_S).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-idle-reset-in",
        group: Group::Timers,
        rfc: 7857,
        section: "2.2",
        requirement: "TCP RST",
        level: Level::Should,
        asks: "a connection with a reset from outside lives for four minutes or more",
        sent: "connections with a reset from outside, and data from outside to each after a time of its own",
        breaks: "a forged reset that the host ignores (RFC 5961) cuts the connection once it pauses",
        judge: |o| after_reset(o, |idle| &idle.tcp_reset_in).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-idle-reset-out",
        group: Group::Timers,
        rfc: 7857,
        section: "2.2",
        requirement: "TCP RST",
        level: Level::Should,
        asks: "a connection with a reset from inside lives for four minutes or more",
        sent: "connections with a reset from inside, and data from outside to each after a time of its own",
        breaks: "a forged reset of a host inside cuts the connection once it pauses",
        judge: |o| after_reset(o, |idle| &idle.tcp_reset_out).unwrap_or_else(|e| e),
    },
    // RFC 5382 has no sentence on directions. An idle time is one without packets, by its name; its definition in section 5 is
    // from memory.
    Row {
        id: "tcp-refresh-out",
        group: Group::Timers,
        rfc: 5382,
        section: "5",
        requirement: "REQ-5",
        level: Level::MustNot,
        asks: "the time of an established connection does not end while segments from inside keep it from being idle",
        sent: "a segment without data from inside before the idle time ends, and data from outside after it",
        breaks: "TCP keep-alives of clients do not help: sessions end after the idle time",
        judge: |o| held(o, |idle| idle.tcp_refreshed_out, Wanted::Refresh).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-refresh-in",
        group: Group::Timers,
        rfc: 5382,
        section: "5",
        requirement: "",
        level: Level::Described,
        asks: "whether segments from outside keep an established connection alive",
        sent: "a segment without data from outside before the idle time ends, and data from outside after it",
        breaks: "",
        judge: |o| held(o, |idle| idle.tcp_refreshed_in, Wanted::Any).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-refresh-reset",
        group: Group::Timers,
        rfc: 7857,
        section: "8",
        requirement: "Outbound Mapping Refresh and Error Packets",
        level: Level::Should,
        asks: "a reset from inside keeps no mapping alive: after the first one its time runs on",
        sent: "two resets from inside, the second before the idle time ends, and data from outside after it",
        breaks: "strangers who send to a closed connection hold its mapping open, and the NAT's ports run out",
        judge: |o| {
            let tries: fn(&Idle) -> &Vec<IdleTry> = |idle| &idle.tcp_reset_out;
            refresh(o, |idle| idle.tcp_refreshed_reset, tries, Wanted::None).unwrap_or_else(|e| e)
        },
    },
];

/// One more segment before the end of an established connection.
fn held(o: &Observations, held: fn(&Idle) -> Option<Refresh>, wanted: Wanted) -> Judged {
    refresh(o, held, |idle| &idle.tcp_established, wanted)
}

/// The classes that decide whether a hairpinned SYN can be seen.
fn classes(o: &Observations) -> Classes {
    Classes { mapping: tcp_mapping(o), filtering: tcp_filtering(o) }
}

/// The reset arrived, so the connection was there: if no later packet arrives, the reset has ended it.
fn after_reset(o: &Observations, tries: fn(&Idle) -> &Vec<IdleTry>) -> Judged {
    let judgement = idle(o, tries, TRANSITORY_S)?;
    let none = o.idle.as_ref().map(tries).filter(|tries| tries.iter().all(|t| !t.alive && t.sure));
    let soonest = none.and_then(|tries| tries.iter().map(|t| t.idle_s).min_by(f64::total_cmp));
    Ok(soonest.map_or(judgement, |soonest| fails(format!("gone {soonest:.2} s after the reset, or sooner"))))
}

fn simultaneous(o: &Observations) -> Judged {
    let seen = made(&o.tcp_simultaneous)?;
    let steps = [
        (seen.syn_out, "the SYN from inside"),
        (seen.syn_in, "the SYN from the contacted endpoint"),
        (seen.answer_out, "the SYN and ACK from inside"),
        (seen.answer_in, "the SYN and ACK from outside"),
    ];
    let Some((_, lost)) = steps.into_iter().find(|(arrived, _)| !arrived) else {
        return Ok(meets("both SYNs and both answers arrived"));
    };
    Ok(if seen.sure {
        vanished(fails(format!("{lost} did not arrive")))
    } else {
        not_sure(format!("neither {lost} nor a control packet arrived"))
    })
}

fn unsolicited(o: &Observations) -> Judged {
    translates(o)?;
    let seen = made(&o.tcp_unsolicited)?;
    let after = seen.after_s;
    Ok(match seen.answered {
        None if after >= SILENCE_S => meets(format!("no answer within {after:.1} s")),
        None => not_sure(format!("an unknown answer after {after:.1} s")),
        Some(_) if after >= SILENCE_S => meets(format!("answered after {after:.1} s")),
        Some(Answered::Reset) => fails(format!("reset after {after:.3} s")),
        Some(Answered::Icmp { kind, code }) => fails(format!("ICMP {kind}/{code} after {after:.3} s")),
    })
}
