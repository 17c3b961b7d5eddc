//! Translation of IPv6: prefix by prefix (NPTv6, RFC 6296), or address and port (NAT66, which no RFC specifies).

use std::net::{IpAddr, SocketAddr};

use weir_wire::Sum;

use super::judge::{
    Ipv6Kind, does, fails, ipv6_kind, is_ipv6, is_nat64, made, meets, not_sure, not_testable,
};
use super::verdicts::Judged;
use super::{Group, Judgement, Level, Row, crafted};
use crate::Observations;
use crate::observed::Inbound;

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "ipv6-path",
        group: Group::Ipv6,
        rfc: 6296,
        section: "2",
        requirement: "",
        level: Level::Described,
        asks: "whether addresses are kept, translated prefix by prefix (NPTv6), with ports (NAT66), or to IPv4 (NAT64)",
        sent: "UDP from many ports of two hosts",
        breaks: "",
        judge: |o| path(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "npt-checksum-neutral",
        group: Group::Ipv6,
        rfc: 6296,
        section: "3.4",
        requirement: "Checksum-Neutral Mapping",
        level: Level::Must,
        asks: "a translated address has the checksum of the inside one, so that no packet's checksum changes",
        sent: "UDP from each of two hosts",
        breaks: "two translators in a row, or a second link with another one, map a host to different addresses; protocols \
                 whose checksum the gateway does not know arrive broken",
        judge: |o| neutral(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "npt-unsolicited",
        group: Group::Ipv6,
        rfc: 6296,
        section: "2.5",
        requirement: "",
        level: Level::Described,
        asks: "whether packets from outside reach a host that has sent nothing",
        sent: "UDP and a SYN to a host's outside address, and a port from which it has sent nothing",
        breaks: "",
        judge: |o| unsolicited(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "npt-hairpin",
        group: Group::Ipv6,
        rfc: 6296,
        section: "4.3",
        requirement: "Hairpinning",
        level: Level::Must,
        asks: "inside hosts reach each other's outside addresses, and see the sender's outside address",
        sent: "UDP between two hosts' outside addresses, both ways",
        breaks: "inside hosts cannot reach each other by the addresses that DNS has, or answer past the gateway",
        judge: |o| hairpin(o).unwrap_or_else(|e| e),
    },
];

/// Rows about what IPv6 does not have.
pub(super) fn by_version(row: &Row, o: &Observations) -> Option<Judgement> {
    let why = match row.id {
        "ip-identification" if !is_nat64(o) => {
            "only fragments of IPv6 have an identification, and their senders set it"
        }
        "ip-dont-fragment" if !is_nat64(o) => "IPv6 has no such bit: routers never fragment it",
        "udp-too-long-fragmented" => "routers never fragment IPv6",
        id if crafted::ROWS.iter().any(|row| row.id == id) && !is_nat64(o) => {
            "this experiment is made towards IPv4 only"
        }
        _ => return None,
    };
    is_ipv6(o).then(|| not_testable(why))
}

fn kind(o: &Observations) -> Result<Ipv6Kind, Judgement> {
    made(&o.ipv6)?;
    ipv6_kind(o).ok_or_else(|| not_sure("packets of an inside host did not arrive"))
}

/// The kind, if prefixes are translated.
fn prefix(o: &Observations) -> Result<(), Judgement> {
    match kind(o)? {
        Ipv6Kind::Untranslated => Err(not_testable("addresses are not translated on this path")),
        Ipv6Kind::Nptv6 => Ok(()),
        Ipv6Kind::Nat66 => Err(not_testable("the gateway translates addresses and ports, not prefixes")),
        Ipv6Kind::Nat64 => Err(not_testable("the gateway translates to IPv4 (NAT64), not prefixes")),
    }
}

fn path(o: &Observations) -> Judged {
    let kind = kind(o)?;
    let path = made(&o.ipv6)?;
    let first = path.hosts[0];
    let as_seen = |seen| path.nat64.map_or(seen, |prefix| prefix.real(seen));
    let words =
        first.seen.map(|seen| format!("{} is seen as {}", first.inside, as_seen(seen))).unwrap_or_default();
    Ok(does(match kind {
        Ipv6Kind::Untranslated => "addresses and ports are kept".to_owned(),
        Ipv6Kind::Nptv6 => format!("prefix by prefix (NPTv6): {words}, and every port is kept"),
        Ipv6Kind::Nat66 => format!("addresses and ports (NAT66): {words}"),
        Ipv6Kind::Nat64 => {
            let prefix = path.nat64.map(|prefix| format!(", by the prefix {prefix}")).unwrap_or_default();
            format!("to IPv4 (NAT64){prefix}: {words}")
        }
    }))
}

/// The one's complement sum of an address (RFC 1071).
fn sum(address: IpAddr) -> u16 {
    Sum::new().address(address).folded()
}

/// RFC 6296 section 3.1: the sum of the whole address stays. 0xffff and 0 are the same number.
fn same_sum(a: SocketAddr, b: SocketAddr) -> bool {
    sum(a.ip()) % u16::MAX == sum(b.ip()) % u16::MAX
}

fn neutral(o: &Observations) -> Judged {
    prefix(o)?;
    let hosts = made(&o.ipv6)?.hosts;
    for host in hosts {
        let Some(seen) = host.seen else { return Ok(not_sure("packets of an inside host did not arrive")) };
        if !same_sum(host.inside, seen) {
            let (inside, outside) = (host.inside.ip(), seen.ip());
            let sums = [sum(inside), sum(outside)].map(|sum| format!("{sum:#06x}"));
            return Ok(fails(format!("{inside} sums to {}, {outside} to {}", sums[0], sums[1])));
        }
    }
    let [first, second] = hosts.map(|host| host.inside.ip());
    Ok(meets(if first == second {
        "the host's outside address has the sum of its inside one"
    } else {
        "both hosts' outside addresses have the sums of their inside ones"
    }))
}

fn unsolicited(o: &Observations) -> Judged {
    let seen = made(&o.ipv6)?;
    let (Some(udp), Some(tcp)) = (&seen.unsolicited_udp, &seen.unsolicited_tcp) else {
        return Ok(not_sure("packets of an inside host did not arrive"));
    };
    let host = seen.hosts[0].inside.ip();
    let passes = |inbound: &Inbound| inbound.reached.map(|reached| reached.ip()) == Some(host);
    Ok(match (passes(udp), passes(tcp)) {
        (true, true) => does("UDP and SYNs pass"),
        _ if !udp.sure || !tcp.sure => not_sure("neither a packet nor a control packet arrived"),
        (true, false) => does("UDP passes, SYNs do not"),
        (false, true) => does("SYNs pass, UDP does not"),
        (false, false) => does("neither UDP nor SYNs pass"),
    })
}

fn hairpin(o: &Observations) -> Judged {
    prefix(o)?;
    let hairpin = made(&o.udp_hairpin)?;
    let sender = hairpin.mappings[1];
    Ok(match hairpin.source {
        None if !hairpin.sure => not_sure("neither the packet nor a control packet arrived"),
        None => fails("a packet to the other host's outside address did not arrive"),
        source if source == sender.seen => meets("the packet arrives from the sender's outside address"),
        Some(source) if source == sender.inside => {
            fails(format!("from {source}, the sender's inside address"))
        }
        Some(source) => fails(format!("from {source}, which is no address of the sender")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6296 section 3.6.
    #[test]
    fn the_example_of_the_rfc_is_neutral() {
        let at = |text: &str| text.parse().unwrap();
        let inside = at("[fd01:203:405:1::1234]:1");
        assert!(same_sum(inside, at("[2001:db8:1:d550::1234]:1")));
        assert!(!same_sum(inside, at("[2001:db8:1:1::1234]:1")));
    }
}
