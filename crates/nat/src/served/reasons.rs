//! Rows that sockets at two real ends cannot show, and why.

use crate::rows::judge::Dependence;
use crate::rows::{Confidence, Group, Judgement};
use crate::table::Line;
use crate::{Compliance, Observations, Row, Table};

/// Rows that need two inside hosts: only a lab has both.
const TWO_HOSTS: [&str; 5] =
    ["tcp-pooling", "udp-overloading", "tcp-overloading", "udp-deterministic", "udp-port-reuse"];
/// Rows of TCP whose packets a socket sends only as a part of a whole connection.
const HALF_OPEN: [&str; 4] =
    ["tcp-hairpin", "tcp-hairpin-source", "tcp-simultaneous-open", "tcp-idle-opening"];
/// Rows of the class of mapping or filter: with one outside address, two classes look the same.
const CLASSES: [&str; 4] = ["udp-mapping", "tcp-mapping", "udp-filtering", "tcp-filtering"];

/// Why a row cannot be tested from this host, where its experiment was not made.
fn reason(row: &Row) -> &'static str {
    match row.id {
        id if TWO_HOSTS.contains(&id) => "needs a second inside host; `weir nat lab` has one",
        id if HALF_OPEN.contains(&id) => "needs half-open connections, which sockets cannot make",
        "tcp-unsolicited-syn" | "npt-unsolicited" => {
            "the server sends only to mappings that this host opened"
        }
        id if CLASSES.contains(&id) => "needs a second address of the server (weir serve --nat-address)",
        "tcp-idle-established" | "tcp-idle-half-closed" | "tcp-refresh-out" | "tcp-refresh-in" => {
            "needs connections that both ends leave alone; `weir nat lab` has them"
        }
        "tcp-idle-reset-in" | "tcp-idle-reset-out" | "tcp-refresh-reset" | "udp-refresh-error" => {
            "needs raw packets at both ends; `weir nat lab` has them"
        }
        "icmp-query-idle" | "icmp-refresh-error" => "needs raw packets at both ends; `weir nat lab` has them",
        _ if matches!(row.group, Group::Icmp | Group::Ip) => {
            "needs raw packets at both ends; `weir nat lab` has them"
        }
        _ if row.group == Group::Exhaustion => {
            "takes ports that other hosts may need; see `weir nat ports` and `weir nat lab`"
        }
        _ if row.group == Group::Timers => "the timers were skipped (--idle)",
        _ => "sockets at two real ends do not send its packets; `weir nat lab` does",
    }
}

/// Rows of experiments that were made, but for packets that these ends do not carry.
const UNFILLED: [&str; 13] = [
    "npt-unsolicited",
    "icmp-refresh-error",
    "udp-refresh-error",
    "tcp-refresh-out",
    "tcp-refresh-in",
    "tcp-refresh-reset",
    "udp-port-reuse",
    "icmp-query-idle",
    "tcp-idle-opening",
    "tcp-idle-established",
    "tcp-idle-half-closed",
    "tcp-idle-reset-in",
    "tcp-idle-reset-out",
];

/// Its experiment was not made.
fn was_not_made(line: &Line) -> bool {
    line.judgement == (line.row.judge)(&Observations::default())
}

/// Replaces what these ends cannot know by the reason. `low_ports`: this host may send from ports below 1024.
pub fn restrict(table: &mut Table, two_addresses: bool, low_ports: bool) {
    let verdict = |table: &Table, id| table.line(id).map(|line| line.judgement.verdict);
    let moves = verdict(table, "tcp-mapping") == Some(Compliance::Fails);
    let untranslated = table.kind.translates == Some(false);
    for line in &mut table.rows {
        let id = line.row.id;
        if was_not_made(line) || UNFILLED.contains(&id) {
            *line = not_testable(line.row, reason(line.row));
        } else if id == "udp-port-range" && !low_ports && !untranslated {
            *line = not_testable(line.row, "ports below 1024 need root here");
        } else if id == "tcp-filtering" && moves && line.judgement.verdict == Compliance::Fails {
            let seen = "a stranger's connection did not come about; the answer to its SYN may have left by another mapping";
            line.judgement = not_sure(seen.to_owned());
        } else if !two_addresses {
            one_address(line, id);
        }
    }
    if !two_addresses {
        table.kind = without_second_address(table);
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
    Judgement { verdict: Compliance::NotSure, confidence: Confidence::Low, seen }
}

fn not_testable(row: &'static Row, why: &str) -> Line {
    let judgement =
        Judgement { verdict: Compliance::NotTestable, confidence: Confidence::High, seen: why.to_owned() };
    Line { row, judgement, packets: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::{Mapping, Translation};
    use crate::rows::all;

    #[test]
    fn every_row_that_was_not_judged_has_its_reason() {
        let mut table = Table::of(&Observations::default());
        restrict(&mut table, true, false);
        for line in &table.rows {
            assert_eq!(line.judgement.verdict, Compliance::NotTestable);
            assert_eq!(line.judgement.seen, reason(line.row), "{}", line.row.id);
        }
        for id in TWO_HOSTS.iter().chain(&HALF_OPEN).chain(&CLASSES).chain(&UNFILLED) {
            assert!(all().any(|row| row.id == *id), "{id} is no row");
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
            restrict(&mut table, false, true);
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
