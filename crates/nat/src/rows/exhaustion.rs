//! The end of a NAT's ports: RFC 5508 section 6, RFC 6888 section 3.

use super::judge::{does, fails, is, made, meets, not_sure, not_testable, translates};
use super::verdicts::Judged;
use super::{Compliance, Confidence, Group, Judgement, Level, Row};
use crate::Observations;
use crate::experiments::bracket;
use crate::observed::{Exhaustion, Idle, IdleTry};

/// How long a mapping is known to live where no idle time was measured, s: five less than the shortest usual timer.
const USUAL_LIFE_S: f64 = 25.0;

/// Administratively prohibited and host unreachable, in ICMP and in ICMPv6 (RFC 4443 section 3.1).
const REASONS: [(u8, u8); 4] = [(3, 13), (3, 1), (1, 1), (1, 3)];

/// The packets of all rows.
const SENT: &str = "UDP from ever more ports of both hosts to one endpoint, until none gets through";
const SENT_BY_TCP: &str = "SYNs from ever more ports of both hosts to one endpoint, until none gets through";

/// The search by one protocol.
struct Search {
    seen: fn(&Observations) -> &Option<Exhaustion>,
    /// Idle times of the mappings that it opens.
    idle: fn(&Idle) -> &Vec<IdleTry>,
}

const UDP: Search = Search { seen: |o| &o.exhaustion, idle: |idle| &idle.unanswered };
const TCP: Search = Search { seen: |o| &o.tcp_exhaustion, idle: |idle| &idle.tcp_opening };

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "udp-exhaustion-told",
        group: Group::Exhaustion,
        rfc: 5508,
        section: "6",
        requirement: "REQ-8",
        level: Level::Should,
        asks: "a host whose packet finds no free port gets ICMP 3/13, or 3/1 as RFC 6888 has it",
        sent: SENT,
        breaks: "logins and DNS hang until they time out when ports run out, and no log says why",
        judge: |o| told(o, &UDP).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-exhaustion-dropped",
        group: Group::Exhaustion,
        rfc: 6888,
        section: "3",
        requirement: "REQ-11A",
        level: Level::Must,
        asks: "a packet that finds no free port is dropped, and leaves by no other way",
        sent: SENT,
        breaks: "inside addresses leak, or two hosts get each other's answers",
        judge: |o| dropped(o, &UDP).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-exhaustion-keeps",
        group: Group::Exhaustion,
        rfc: 6888,
        section: "3",
        requirement: "REQ-11D",
        level: Level::MustNot,
        asks: "no mapping is ended to make room for another one",
        sent: "a packet from outside to each of eight earlier mappings after that",
        breaks: "one host that scans or shares files cuts the calls and sessions of all others",
        judge: |o| keeps(o, &UDP).unwrap_or_else(|e| e),
    },
    Row {
        id: "udp-host-limit",
        group: Group::Exhaustion,
        rfc: 6888,
        section: "3",
        requirement: "",
        level: Level::Described,
        asks: "whether one inside host can take all ports (REQ-4: the limit is for operators to set)",
        sent: SENT,
        breaks: "",
        judge: |o| host_limit(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-exhaustion-told",
        group: Group::Exhaustion,
        rfc: 5508,
        section: "6",
        requirement: "REQ-8",
        level: Level::Should,
        asks: "a host whose SYN finds no free port gets ICMP 3/13, or 3/1 as RFC 6888 has it",
        sent: SENT_BY_TCP,
        breaks: "browsers and clients wait minutes for servers, or call them down, when the NAT's ports run out",
        judge: |o| told(o, &TCP).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-exhaustion-dropped",
        group: Group::Exhaustion,
        rfc: 6888,
        section: "3",
        requirement: "REQ-11A",
        level: Level::Must,
        asks: "a SYN that finds no free port is dropped, and leaves by no other way",
        sent: SENT_BY_TCP,
        breaks: "inside addresses leak, or segments of two connections are mixed and both are reset",
        judge: |o| dropped(o, &TCP).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-exhaustion-keeps",
        group: Group::Exhaustion,
        rfc: 6888,
        section: "3",
        requirement: "REQ-11D",
        level: Level::MustNot,
        asks: "no open connection is ended to make room for another one",
        sent: "data from outside on each of eight open connections after that",
        breaks: "one host that scans or downloads from many peers cuts the SSH sessions of all others",
        judge: |o| keeps(o, &TCP).unwrap_or_else(|e| e),
    },
];

/// The search, if no mapping can have ended by itself in its course.
fn exhaustion<'a>(o: &'a Observations, search: &Search) -> Result<&'a Exhaustion, Judgement> {
    translates(o)?;
    let seen = made((search.seen)(o))?;
    if !seen.sure {
        return Err(not_sure("the path lost control packets"));
    }
    if seen.witnesses == 0 {
        return Err(not_sure("no mapping could be opened first"));
    }
    let life = o.idle.as_ref().map_or(USUAL_LIFE_S, |idle| {
        let tries = (search.idle)(idle);
        let longest = tries.iter().filter(|t| t.alive).map(|t| t.idle_s).fold(0.0, f64::max);
        bracket(tries).map_or(longest, |(alive, _)| alive)
    });
    if seen.took_s >= life {
        let took = seen.took_s;
        return Err(not_sure(format!("took {took:.1} s: mappings may have ended in that time")));
    }
    Ok(seen)
}

/// The same, if it came to the end of ports.
fn ended<'a>(o: &'a Observations, search: &Search) -> Result<&'a Exhaustion, Judgement> {
    let seen = exhaustion(o, search)?;
    if seen.ended == [false; 2] {
        let opened: u32 = seen.opened.iter().sum();
        // Ports of older mappings may have become free after the end was reached.
        return Err(match seen.refused {
            0 => not_testable(format!("{opened} mappings were opened, and ports were left")),
            n => not_sure(format!("{n} packets did not leave, and later ones did")),
        });
    }
    Ok(seen)
}

fn told(o: &Observations, search: &Search) -> Judged {
    let seen = ended(o, search)?;
    if seen.refused == 0 {
        return Ok(not_testable("no packet was dropped"));
    }
    Ok(match seen.error {
        None if seen.resets > 0 => is(
            Compliance::Partly,
            Confidence::High,
            format!(
                "{} of {} SYNs answered by a reset, as by a server that refuses",
                seen.resets, seen.refused
            ),
        ),
        None => fails(format!("none of {} packets was answered by ICMP", seen.refused)),
        Some((kind, code)) if REASONS.contains(&(kind, code)) && seen.told == seen.refused => {
            meets(format!("ICMP {kind}/{code}"))
        }
        // Errors may be limited in rate (RFC 1812 section 4.3.2.8).
        Some((kind, code)) if REASONS.contains(&(kind, code)) => is(
            Compliance::Meets,
            Confidence::Medium,
            format!("ICMP {kind}/{code} about {} of {} packets", seen.told, seen.refused),
        ),
        Some((kind, code)) => is(
            Compliance::Partly,
            Confidence::High,
            format!("ICMP {kind}/{code}, which names another reason than a NAT without ports"),
        ),
    })
}

fn dropped(o: &Observations, search: &Search) -> Judged {
    let seen = ended(o, search)?;
    Ok(match (seen.leaked, seen.reused) {
        (0, 0) => meets(format!("{} packets did not leave", seen.refused)),
        (0, n) => fails(format!("{n} packets left by a port that another inside port had")),
        (n, _) => fails(format!("{n} packets left with their inside address")),
    })
}

/// A mapping that ended is one too many, whether the ports came to their end or not.
fn keeps(o: &Observations, search: &Search) -> Judged {
    let seen = exhaustion(o, search)?;
    let (alive, all) = (seen.witnesses_alive, seen.witnesses);
    if alive < all {
        let opened: u32 = seen.opened.iter().sum();
        return Ok(fails(format!(
            "{} of {all} mappings ended while {opened} others were opened",
            all - alive
        )));
    }
    ended(o, search)?;
    Ok(meets(format!("all of {all} mappings carry packets afterwards")))
}

fn host_limit(o: &Observations) -> Judged {
    let seen = ended(o, &UDP)?;
    let [first, second] = seen.opened;
    Ok(if !seen.one_address {
        does(format!("each host has an outside address of its own: {first} and {second} ports"))
    } else if second == 0 {
        does(format!("one host took all of {first} ports"))
    } else if seen.ended[0] {
        does(format!("one host got {first} ports, and others were left for the next host"))
    } else {
        does(format!("{first} ports for the first host, {second} for the next one"))
    })
}
