//! ICMP errors that are damaged, cut short, or about no mapping: RFC 5508.

use super::judge::{fails, is, made, meets, not_sure, translates, vanished};
use super::verdicts::Judged;
use super::{Compliance, Confidence, Group, Level, Row};
use crate::Observations;
use crate::observed::{Craft, CraftedError};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "icmp-error-bad-checksum",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.1",
        requirement: "REQ-3",
        level: Level::Should,
        asks: "an error with a wrong checksum is dropped",
        sent: "port unreachable about a datagram from inside, with a wrong ICMP checksum",
        breaks: "damaged errors come in with a right checksum, and hosts act on them",
        judge: |o| dropped(o, Craft::Checksum).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-bad-quote",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.1",
        requirement: "REQ-3a",
        level: Level::Should,
        asks: "an error is dropped if the IP header in it has a wrong checksum",
        sent: "port unreachable that quotes a damaged IP header",
        breaks: "damaged errors reach hosts that did not send the packet",
        judge: |o| dropped(o, Craft::QuotedHeader).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-quote-options",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.1",
        requirement: "REQ-3b",
        level: Level::Must,
        asks: "the ports of the quoted packet are found behind its IP options",
        sent: "port unreachable that quotes an IP header with options",
        breaks: "errors about packets with options vanish, or reach the wrong port",
        judge: |o| reverted(o, Craft::QuotedOptions).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-quote-unchecked",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.1",
        requirement: "REQ-3c",
        level: Level::Should,
        asks: "the transport checksum of the quoted packet is not checked",
        sent: "port unreachable that quotes a datagram with a wrong UDP checksum",
        breaks: "errors from tunnels and cut quotes vanish: path MTU black holes",
        judge: |o| reverted(o, Craft::QuotedTransport).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-short-quote",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.2.1",
        requirement: "REQ-4",
        level: Level::Must,
        asks: "an error that quotes 8 bytes behind the IP header arrives, about the packet as it was sent",
        sent: "port unreachable with the shortest quote that RFC 792 allows",
        breaks: "errors of simple routers vanish: no traceroute, no path MTU discovery",
        judge: |o| reverted(o, Craft::Short).unwrap_or_else(|e| e),
    },
    Row {
        id: "icmp-error-unmapped",
        group: Group::Icmp,
        rfc: 5508,
        section: "4.2.1",
        requirement: "REQ-4",
        level: Level::Should,
        asks: "an error about a packet that the NAT never sent is dropped without an answer",
        sent: "port unreachable about a datagram from a port without a mapping",
        breaks: "anyone outside sends errors to inside hosts",
        judge: |o| unmapped(o).unwrap_or_else(|e| e),
    },
];

/// The error of this kind, if it tells something.
fn seen(o: &Observations, craft: Craft) -> Result<CraftedError, super::Judgement> {
    let errors = made(&o.crafted_errors)?;
    translates(o)?;
    match errors.iter().find(|error| error.craft == craft) {
        None => Err(not_sure("a mapping could not be opened")),
        Some(error) if !error.sure => Err(not_sure("neither the error nor a control packet arrived")),
        Some(error) => Ok(*error),
    }
}

fn dropped(o: &Observations, craft: Craft) -> Judged {
    Ok(match seen(o, craft)? {
        CraftedError { arrived: false, .. } => meets("dropped"),
        CraftedError { sound: false, .. } => {
            is(Compliance::Partly, Confidence::High, "arrives inside with its wrong checksum: hosts drop it")
        }
        CraftedError { inner: true, .. } => fails("arrives inside, reverted as if it were sound"),
        _ => fails("arrives inside"),
    })
}

fn reverted(o: &Observations, craft: Craft) -> Judged {
    Ok(match seen(o, craft)? {
        CraftedError { arrived: false, .. } => vanished(fails("did not arrive")),
        CraftedError { sound: false, .. } => fails("arrives with a wrong checksum: hosts drop it"),
        CraftedError { inner: false, .. } => fails("quotes endpoints that the receiver does not know"),
        _ => meets("arrives, about the packet as it was sent"),
    })
}

fn unmapped(o: &Observations) -> Judged {
    Ok(match seen(o, Craft::Unmapped)? {
        CraftedError { arrived: true, .. } => fails("arrives inside"),
        CraftedError { answered: true, .. } => fails("dropped, and answered by an ICMP message"),
        _ => meets("dropped without an answer"),
    })
}
