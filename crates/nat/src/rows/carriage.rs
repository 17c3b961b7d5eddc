//! TCP as it is carried, the choice of other ports, and other protocols: RFC 5382, 6056, 6864, 7857, 1918.

use super::judge::{does, fails, is, is_nat64, made, meets, not_sure, not_testable, translates, vanished};
use super::verdicts::Judged;
use super::{Compliance, Confidence, Group, Level, Row};
use crate::Observations;
use crate::observed::{Other, SegmentTrip, TcpCarriage, TcpOptions, Translation};

/// Distance of two ports below which one may be counted from the other.
const NEAR: u16 = 64;

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "tcp-options",
        group: Group::Carriage,
        rfc: 7323,
        section: "2",
        requirement: "",
        level: Level::Described,
        asks: "whether window scale, timestamps and SACK permitted are kept",
        sent: "a SYN from inside with these options",
        breaks: "",
        judge: |o| options(o, |c| c.options, "SYN").unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-options-in",
        group: Group::Carriage,
        rfc: 7323,
        section: "2",
        requirement: "",
        level: Level::Described,
        asks: "whether the same options of the answer, and its maximum segment size, are kept",
        sent: "a SYN and ACK from outside with these options",
        breaks: "",
        judge: |o| options_in(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-mss",
        group: Group::Carriage,
        rfc: 9293,
        section: "3.7.1",
        requirement: "",
        level: Level::Described,
        asks: "whether the maximum segment size is lowered",
        sent: "the same",
        breaks: "",
        judge: |o| mss(o, |c| c.options, "SYN").unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-syn-data",
        group: Group::Carriage,
        rfc: 5382,
        section: "4.2",
        requirement: "REQ-2",
        level: Level::Must,
        asks: "a SYN with data gets through",
        sent: "a SYN from inside with eight bytes",
        breaks: "TCP Fast Open: its connections wait for a second SYN, or hang",
        judge: |o| segment(o, |c| c.syn_data, "the SYN with data").unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-syn-data-in",
        group: Group::Carriage,
        rfc: 5382,
        section: "4.2",
        requirement: "REQ-2",
        level: Level::Must,
        asks: "a SYN with data gets through from outside, to an open or a published port",
        sent: "a SYN from the contacted endpoint with eight bytes",
        breaks: "clients with TCP Fast Open wait for their second SYN at servers behind this NAT, or hang",
        judge: |o| syn_data_in(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-syn-ack-data",
        group: Group::Carriage,
        rfc: 5382,
        section: "4.2",
        requirement: "REQ-2",
        level: Level::Must,
        asks: "a SYN and ACK with data gets through",
        sent: "a SYN and ACK from outside with eight bytes",
        breaks: "servers with TCP Fast Open that answer at once: the client waits for their data to be sent again",
        judge: |o| segment(o, |c| c.syn_ack_data, "the SYN and ACK with data").unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-half-close",
        group: Group::Carriage,
        rfc: 5382,
        section: "4.2",
        requirement: "REQ-2",
        level: Level::Must,
        asks: "data arrive after the other end has sent its FIN",
        sent: "a FIN from inside, then data from outside",
        breaks: "rsh, HTTP clients and mail that shut down one direction lose the answer",
        judge: |o| {
            after(o, |c| (c.fin, c.data_after_fin), ["the FIN", "the data after it"]).unwrap_or_else(|e| e)
        },
    },
    Row {
        id: "tcp-half-close-in",
        group: Group::Carriage,
        rfc: 5382,
        section: "4.2",
        requirement: "REQ-2",
        level: Level::Must,
        asks: "data leave after the outside end has sent its FIN",
        sent: "a FIN from outside, then data from inside",
        breaks: "uploads end early where the server has closed its direction first",
        judge: |o| {
            after(o, |c| (c.fin_in, c.data_after_fin_in), ["the FIN", "the data after it"])
                .unwrap_or_else(|e| e)
        },
    },
    Row {
        id: "tcp-reset",
        group: Group::Carriage,
        rfc: 7857,
        section: "2.2",
        requirement: "TCP RST",
        level: Level::Must,
        asks: "a reset from outside is translated",
        sent: "a reset from outside on an open connection",
        breaks: "clients wait for servers that have refused or restarted",
        judge: |o| segment(o, |c| c.reset, "the reset").unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-data-after-reset",
        group: Group::Carriage,
        rfc: 7857,
        section: "2.2",
        requirement: "TCP RST",
        level: Level::Should,
        asks: "a reset does not end a mapping at once; the four minutes of the RFC are not waited for",
        sent: "data from inside after that reset",
        breaks: "a forged reset that the host ignores (RFC 5961) cuts the connection",
        judge: |o| {
            after(o, |c| (c.reset, c.data_after_reset), ["the reset", "the data after it"])
                .unwrap_or_else(|e| e)
        },
    },
    Row {
        id: "udp-port-randomness",
        group: Group::Mapping,
        rfc: 7857,
        section: "10",
        requirement: "Port Randomization",
        level: Level::Should,
        asks: "a port that must be changed is chosen at random",
        sent: "UDP from sixteen ports that both inside hosts use, to one destination",
        breaks: "forged DNS answers and resets: an attacker can guess the next port",
        judge: |o| randomness(o, &o.udp_moved).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-port-randomness",
        group: Group::Mapping,
        rfc: 7857,
        section: "10",
        requirement: "Port Randomization",
        level: Level::Should,
        asks: "a port of TCP that must be changed is chosen at random",
        sent: "SYNs from sixteen ports that both inside hosts use, to one destination",
        breaks: "forged resets and data: an attacker can guess the next port",
        judge: |o| randomness(o, &o.tcp_moved).unwrap_or_else(|e| e),
    },
    Row {
        id: "ip-identification",
        group: Group::Ip,
        rfc: 7857,
        section: "11",
        requirement: "IP Identification",
        level: Level::Should,
        asks: "packets of two inside hosts to one destination have different identifications",
        sent: "a datagram without DF from each of two hosts, with one identification; of IPv6 in two fragments",
        breaks: "fragments of two hosts are put together into one wrong datagram",
        judge: |o| identification(o).unwrap_or_else(|e| e),
    },
    other("protocol-gre", "GRE leaves with an outside address, or not at all", "PPTP and GRE tunnels", |o| {
        leak(o, Other::Gre).unwrap_or_else(|e| e)
    }),
    other("protocol-esp", "ESP leaves with an outside address, or not at all", "IPsec without UDP", |o| {
        leak(o, Other::Esp).unwrap_or_else(|e| e)
    }),
    other("protocol-dccp", "DCCP leaves with an outside address, or not at all", "media over DCCP", |o| {
        leak(o, Other::Dccp).unwrap_or_else(|e| e)
    }),
    other(
        "protocol-sctp",
        "SCTP leaves with an outside address, or not at all",
        "telephony over SCTP",
        |o| leak(o, Other::Sctp).unwrap_or_else(|e| e),
    ),
    other("protocol-udp-lite", "UDP-Lite leaves with an outside address, or not at all", "UDP-Lite", |o| {
        leak(o, Other::UdpLite).unwrap_or_else(|e| e)
    }),
];

/// The row of a protocol.
const fn other(
    id: &'static str,
    asks: &'static str,
    breaks: &'static str,
    judge: fn(&Observations) -> super::Judgement,
) -> Row {
    Row {
        id,
        group: Group::Others,
        rfc: 1918,
        section: "3",
        requirement: "private addresses",
        level: Level::Should,
        asks,
        sent: "a first packet of the protocol from inside, and an answer to its source",
        breaks,
        judge,
    }
}

fn carriage(o: &Observations) -> Result<&TcpCarriage, super::Judgement> {
    made(&o.tcp_carriage)
}

fn lost(what: &str, sure: bool) -> super::Judgement {
    if sure {
        vanished(fails(format!("{what} did not arrive")))
    } else {
        not_sure(format!("neither {what} nor a control packet arrived"))
    }
}

/// Both rows of the answer in one.
fn options_in(o: &Observations) -> Judged {
    let (mut options, mss) = (options(o, |c| c.options_in, "answer")?, mss(o, |c| c.options_in, "answer")?);
    if options.verdict == Compliance::Described {
        options.seen = format!("{}; segment size: {}", options.seen, mss.seen);
    }
    Ok(options)
}

fn options(o: &Observations, which: fn(&TcpCarriage) -> TcpOptions, segment: &str) -> Judged {
    let options = which(carriage(o)?);
    if !options.arrived {
        return Ok(not_sure(format!("the {segment} did not arrive")));
    }
    let named = [
        (options.window_scale, "window scale"),
        (options.timestamps, "timestamps"),
        (options.sack_permitted, "SACK permitted"),
    ];
    let gone: Vec<&str> = named.iter().filter(|(kept, _)| !kept).map(|(_, name)| *name).collect();
    Ok(does(if gone.is_empty() {
        "keeps window scale, timestamps and SACK permitted".to_owned()
    } else {
        format!("changes or removes {}", gone.join(", "))
    }))
}

fn mss(o: &Observations, which: fn(&TcpCarriage) -> TcpOptions, segment: &str) -> Judged {
    let options = which(carriage(o)?);
    let sent = options.sent_mss;
    Ok(match options.mss {
        _ if !options.arrived => not_sure(format!("the {segment} did not arrive")),
        None => does(format!("removes it (sent: {sent})")),
        Some(mss) if mss == sent => does(format!("keeps {sent}")),
        Some(mss) => does(format!("changes {sent} to {mss}")),
    })
}

fn segment(o: &Observations, which: fn(&TcpCarriage) -> SegmentTrip, what: &str) -> Judged {
    let trip = which(carriage(o)?);
    Ok(if trip.arrived { meets(format!("{what} arrived")) } else { lost(what, trip.sure) })
}

/// Data are not at fault if no SYN gets in.
fn syn_data_in(o: &Observations) -> Judged {
    let trip = carriage(o)?.syn_data_in;
    let plain = made(&o.tcp_simultaneous)?;
    if !trip.arrived && trip.sure && plain.syn_out && !plain.syn_in {
        return Ok(if plain.sure {
            not_testable("no SYN of the contacted endpoint arrived, with data or without")
        } else {
            not_sure("SYNs and control packets were lost")
        });
    }
    segment(o, |c| c.syn_data_in, "the SYN with data")
}

/// A segment that ends something, and data after it.
fn after(
    o: &Observations,
    which: fn(&TcpCarriage) -> (SegmentTrip, SegmentTrip),
    words: [&str; 2],
) -> Judged {
    let (ending, data) = which(carriage(o)?);
    Ok(match (ending.arrived, data.arrived) {
        (_, true) => meets(format!("{} arrived", words[1])),
        (false, false) if ending.sure => vanished(not_testable(format!("{} did not arrive", words[0]))),
        (false, false) => not_sure(format!("neither {} nor a control packet arrived", words[0])),
        (true, false) => lost(words[1], data.sure),
    })
}

/// The outside ports of those that were changed, by one outside address.
fn randomness(o: &Observations, moved: &Option<Vec<Translation>>) -> Judged {
    translates(o)?;
    let all = made(moved)?;
    if all.iter().any(|t| t.seen.is_none()) {
        return Ok(not_sure("packets of the second host did not arrive"));
    }
    let changed: Vec<(u16, u16)> = all
        .iter()
        .filter_map(|t| t.seen.map(|seen| (t.inside.port(), seen.port())))
        .filter(|(inside, outside)| inside != outside)
        .collect();
    if changed.is_empty() {
        return Ok(not_testable("no port had to be changed"));
    }
    if changed.len() < all.len() / 2 {
        return Ok(not_sure(format!("only {} of {} ports were changed", changed.len(), all.len())));
    }
    let near = |a: u16, b: u16| a.abs_diff(b) <= NEAR;
    let from_inside = changed.iter().filter(|(inside, outside)| near(*inside, *outside)).count();
    let counted = changed.windows(2).filter(|pair| near(pair[0].1, pair[1].1)).count();
    // A port drawn from 64,512 is that near to another one with a probability of 0.2 %: half of sixteen never are.
    Ok(if from_inside * 2 > changed.len() {
        fails(format!("{from_inside} of {} changed ports are next to the inside port", changed.len()))
    } else if counted * 2 > changed.len() {
        fails(format!("{counted} of {} changed ports are next to the one before", changed.len()))
    } else {
        is(Compliance::Meets, Confidence::Medium, format!("{} changed ports are scattered", changed.len()))
    })
}

fn identification(o: &Observations) -> Judged {
    translates(o)?;
    let seen = made(&o.identification)?;
    let [Some(first), Some(second)] = seen.seen else {
        return Ok(match is_nat64(o) && seen.sure {
            true => not_testable(
                "no datagram in fragments gets through, and other packets of IPv6 have no identification",
            ),
            false => not_sure("a datagram did not arrive"),
        });
    };
    Ok(if first == second {
        fails("two hosts' datagrams have one source, destination and identification")
    } else if first.0 != second.0 {
        is(Compliance::Meets, Confidence::Medium, "the hosts have different outside addresses")
    } else {
        meets("the identifications differ")
    })
}

fn leak(o: &Observations, other: Other) -> Judged {
    translates(o)?;
    let all = made(&o.others)?;
    let Some(trip) = all.iter().find(|trip| trip.other == other) else {
        return Ok(not_testable("this protocol was not tried"));
    };
    Ok(match trip.seen {
        Some(seen) if seen == trip.inside => fails("leaks: leaves with the inside address"),
        Some(_) if trip.answer => meets("passes: leaves with the outside address, and the answer arrives"),
        Some(seen) if trip.sure => {
            // Between the versions the inside address cannot leak, but one that stands for it there can.
            let mut hosts = o.ipv6.iter().filter(|path| path.nat64.is_some()).flat_map(|path| path.hosts);
            let known = hosts.clone().any(|host| host.seen.is_some_and(|known| known.ip() == seen));
            let words = match hosts.next().is_none() || known {
                true => "leaves with the outside address, but the answer does not arrive",
                false => "leaves with another address than UDP, and the answer to it does not arrive",
            };
            vanished(is(Compliance::Partly, Confidence::High, words))
        }
        None if trip.sure => vanished(meets("dropped")),
        _ => not_sure("packets and control packets were lost"),
    })
}
