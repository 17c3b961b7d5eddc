//! Rows that two real ends cannot show, and why.

use crate::rows::judge::Dependence;
use crate::rows::{Confidence, Group, Judgement};
use crate::table::Line;
use crate::{Compliance, Observations, Row, Table};

/// Rows that need two inside hosts: only a lab has both.
const TWO_HOSTS: [&str; 12] = [
    "tcp-pooling",
    "udp-overloading",
    "tcp-overloading",
    "udp-deterministic",
    "udp-port-reuse",
    "udp-port-randomness",
    "tcp-port-randomness",
    "ip-identification",
    "icmp-error-hairpin",
    "tcp-hairpin",
    "tcp-hairpin-source",
    "udp-first-packets",
];
/// Rows of raw packets in other groups than those of ICMP, IP, carriage and other protocols.
const RAW: [&str; 13] = [
    "tcp-simultaneous-open",
    "tcp-idle-opening",
    "tcp-idle-established",
    "tcp-idle-half-closed",
    "tcp-refresh-out",
    "tcp-refresh-in",
    "tcp-after-idle",
    "tcp-idle-reset-in",
    "tcp-idle-reset-out",
    "tcp-refresh-reset",
    "udp-refresh-error",
    "icmp-query-idle",
    "icmp-refresh-error",
];
/// The row that neither kind of packets shows here.
const NEVER: &str = "npt-unsolicited";
/// A row of messages that change routes.
const REDIRECT: &str = "icmp-other-types";
/// A row that the server's kernel spoils.
const REPLY: &str = "icmp-error-out-about-query";

/// Beginning of the reason of rows that need raw packets, where there are none.
pub const NEEDS_RAW_PACKETS: &str = "needs raw packets at both ends";

/// The means of two real ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Means {
    /// The server has a second address.
    pub two_addresses: bool,
    /// This host may send from ports below 1024.
    pub low_ports: bool,
    /// Raw packets went both ways; if not, the reason.
    pub raw_packets: Result<(), String>,
}
/// Rows of the class of mapping or filter: with one outside address, two classes look the same.
const CLASSES: [&str; 4] = ["udp-mapping", "tcp-mapping", "udp-filtering", "tcp-filtering"];

/// Why a row cannot be tested from this host, where its experiment was not made.
fn reason(row: &Row, means: &Means) -> String {
    if let Some(reason) = fixed_reason(row) {
        return reason.to_owned();
    }
    match &means.raw_packets {
        Err(why) if is_raw(row) => format!("{NEEDS_RAW_PACKETS}: {why}"),
        _ if row.group == Group::Timers => "the timers were skipped (--idle)".to_owned(),
        _ => "two real ends do not send its packets; `weir nat lab` does".to_owned(),
    }
}

/// Whether its experiment needs raw packets.
fn is_raw(row: &Row) -> bool {
    RAW.contains(&row.id) || matches!(row.group, Group::Icmp | Group::Ip | Group::Others | Group::Carriage)
}

/// A reason that no privilege and no second address changes, or that of a second address.
fn fixed_reason(row: &Row) -> Option<&'static str> {
    Some(match row.id {
        id if TWO_HOSTS.contains(&id) => "needs a second inside host; `weir nat lab` has one",
        REPLY => "the server's kernel answers pings too; in `weir nat lab` none does",
        "tcp-unsolicited-syn" | NEVER => "the server sends only to mappings that this host opened",
        id if CLASSES.contains(&id) => "needs a second address of the server (weir serve --nat-address)",
        REDIRECT => "its redirect would change the routes of this host; `weir nat lab` sends one",
        "udp-too-long" | "udp-too-long-fragmented" => {
            "needs the MTU of the NAT's outside link; `weir mtu` measures the path"
        }
        _ if row.group == Group::Exhaustion => {
            "takes ports that other hosts may need; see `weir nat ports` and `weir nat lab`"
        }
        _ => return None,
    })
}

/// Rows of experiments that were made, but for packets that these ends do not carry.
fn is_unfilled(id: &str, means: &Means) -> bool {
    TWO_HOSTS.contains(&id)
        || [NEVER, REPLY, REDIRECT].contains(&id)
        || (means.raw_packets.is_err() && RAW.contains(&id))
}

/// Its experiment was not made.
fn was_not_made(line: &Line) -> bool {
    line.judgement == (line.row.judge)(&Observations::default())
}

/// Replaces what these ends cannot know by the reason.
pub fn restrict(table: &mut Table, means: &Means) {
    let Means { two_addresses, low_ports, .. } = *means;
    let verdict = |table: &Table, id| table.line(id).map(|line| line.judgement.verdict);
    let moves = verdict(table, "tcp-mapping") == Some(Compliance::Fails);
    let untranslated = table.kind.translates == Some(false);
    for line in &mut table.rows {
        let id = line.row.id;
        if was_not_made(line) || is_unfilled(id, means) {
            *line = not_testable(line.row, &reason(line.row, means));
        } else if id == "udp-port-range" && !low_ports && !untranslated {
            *line = not_testable(line.row, "ports below 1024 need root here");
        } else if id == "tcp-filtering" && moves && line.judgement.verdict == Compliance::Fails {
            let seen = "a stranger's connection did not come about; the answer to its SYN may have left by another mapping";
            line.judgement = not_sure(seen.to_owned());
        } else {
            beyond_the_nat(line, id);
            if !two_addresses {
                one_address(line, id);
            }
        }
    }
    if !two_addresses {
        table.kind = without_second_address(table);
    }
}

/// A packet that vanished between two real ends may have met a firewall, and the server's kernel answers pings before `weir serve`.
fn beyond_the_nat(line: &mut Line, id: &str) {
    let Judgement { verdict, seen, vanished, .. } = &line.judgement;
    if *vanished {
        let seen = format!("{seen}; the NAT or a firewall on the way drops it");
        match verdict {
            Compliance::Fails | Compliance::Partly => line.judgement = not_sure(seen),
            _ => line.judgement.seen = seen,
        }
    } else if id == "icmp-error-keeps-query" && *verdict == Compliance::Fails {
        let seen = format!("{seen}; the server's own reply to the ping may have ended the mapping before");
        line.judgement = not_sure(seen);
    }
}

/// With one outside address, only a dependence on the port shows.
fn one_address(line: &mut Line, id: &str) {
    if id.ends_with("-mapping") && matches!(line.judgement.verdict, Compliance::Meets | Compliance::Partly) {
        let seen = "the same for two ports of one address: endpoint-independent or address-dependent; \
                    needs a second address of the server";
        *line = not_testable(line.row, seen);
    }
    if id.starts_with("udp-hairpin") && line.judgement.verdict == Compliance::Fails {
        let seen =
            format!("{}; the filter may have dropped it, whose kind is unknown here", line.judgement.seen);
        line.judgement = not_sure(seen);
    }
}

fn without_second_address(table: &Table) -> crate::table::NatKind {
    let mut kind = table.kind.clone();
    // By port is by address and port; the others look the same.
    kind.mapping = kind
        .mapping
        .filter(|class| *class != Dependence::EndpointIndependent)
        .map(|_| Dependence::AddressAndPort);
    kind.filtering = None;
    kind.classic = kind.mapping.and(kind.classic);
    kind
}

fn not_sure(seen: String) -> Judgement {
    Judgement { verdict: Compliance::NotSure, confidence: Confidence::Low, seen, vanished: false }
}

fn not_testable(row: &'static Row, why: &str) -> Line {
    let (verdict, confidence) = (Compliance::NotTestable, Confidence::High);
    let judgement = Judgement { verdict, confidence, seen: why.to_owned(), vanished: false };
    Line { row, judgement, packets: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::{Mapping, Translation};
    use crate::rows::all;

    fn means(two_addresses: bool) -> Means {
        Means { two_addresses, low_ports: false, raw_packets: Err("the server needs root".to_owned()) }
    }

    #[test]
    fn every_row_that_was_not_judged_has_its_reason() {
        let mut table = Table::of(&Observations::default());
        restrict(&mut table, &means(true));
        for line in &table.rows {
            assert_eq!(line.judgement.verdict, Compliance::NotTestable);
            assert_eq!(line.judgement.seen, reason(line.row, &means(true)), "{}", line.row.id);
        }
        let gre = table.line("protocol-gre").unwrap();
        assert_eq!(gre.judgement.seen, "needs raw packets at both ends: the server needs root");
        let named = TWO_HOSTS.iter().chain(&RAW).chain([&NEVER]).chain(&CLASSES);
        for id in named {
            assert!(all().any(|row| row.id == *id), "{id} is no row");
        }
    }

    /// Fragments that did not arrive inwards, and none that arrived.
    #[test]
    fn a_packet_that_vanished_is_not_blamed_on_the_nat() {
        let trip = |out, whole| crate::observed::FragmentTrip {
            out,
            reversed: false,
            whole,
            leaked: false,
            sure: true,
        };
        for (whole, expected) in [(true, Compliance::Meets), (false, Compliance::NotSure)] {
            let fragments = Some(vec![trip(true, true), trip(false, whole)]);
            let mut table = Table::of(&Observations { fragments, ..Observations::default() });
            restrict(&mut table, &means(true));
            let judgement = &table.line("udp-fragments-in-order").unwrap().judgement;
            assert_eq!(judgement.verdict, expected);
            assert_eq!(judgement.seen.ends_with("a firewall on the way drops it"), !whole, "{judgement:?}");
        }
    }

    /// One inside port to two ports of one address, twice.
    fn observations(seen: [&str; 2]) -> Observations {
        let inside = "198.18.0.2:20000".parse().unwrap();
        let to = ["198.19.0.2:1000", "198.19.0.2:1001"].map(|text| text.parse().unwrap());
        let seen = seen.map(|text| Some(text.parse().unwrap()));
        let at = |n: usize| Translation { inside, to: to[n], seen: seen[n], sure: true };
        Observations {
            udp_mapping: Some(vec![Mapping { seen: [at(0), at(1), at(0), at(1)] }]),
            ..Observations::default()
        }
    }

    #[test]
    fn one_address_shows_a_dependence_on_the_port_only() {
        let judged = |seen| {
            let mut table = Table::of(&observations(seen));
            restrict(&mut table, &Means { low_ports: true, ..means(false) });
            let verdict = table.line("udp-mapping").unwrap().judgement.verdict;
            (verdict, table.kind)
        };
        let (verdict, kind) = judged(["198.19.0.1:20000"; 2]);
        assert_eq!((verdict, kind.mapping, kind.classic), (Compliance::NotTestable, None, None));
        assert_eq!(kind.translates, Some(true));
        let (verdict, kind) = judged(["198.19.0.1:20000", "198.19.0.1:20001"]);
        assert_eq!((verdict, kind.mapping), (Compliance::Fails, Some(Dependence::AddressAndPort)));
        assert_eq!(kind.classic, Some("symmetric"));
    }
}
