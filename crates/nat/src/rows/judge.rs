//! Questions that several rows ask of the observations.

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::Serialize;

use super::{Compliance, Confidence, Judgement};
use crate::Observations;
use crate::observed::{Filtering, Mapping, Translation};

/// Last bits of an address that translation of prefixes keeps.
const SUFFIX: u32 = 48;

/// The part of the outside endpoint that a mapping or a filter depends on (RFC 4787 sections 4.1 and 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dependence {
    /// On nothing outside.
    EndpointIndependent,
    /// On the outside address.
    Address,
    /// On the outside address and port.
    AddressAndPort,
}

impl Dependence {
    /// The RFC's words, without `mapping` or `filtering`.
    pub fn words(self) -> &'static str {
        match self {
            Dependence::EndpointIndependent => "endpoint-independent",
            Dependence::Address => "address-dependent",
            Dependence::AddressAndPort => "address- and port-dependent",
        }
    }

    /// EIM, ADM, APDM.
    pub fn mapping(self) -> &'static str {
        match self {
            Dependence::EndpointIndependent => "EIM",
            Dependence::Address => "ADM",
            Dependence::AddressAndPort => "APDM",
        }
    }

    /// EIF, ADF, APDF.
    pub fn filtering(self) -> &'static str {
        match self {
            Dependence::EndpointIndependent => "EIF",
            Dependence::Address => "ADF",
            Dependence::AddressAndPort => "APDF",
        }
    }
}

pub(super) fn is(verdict: Compliance, confidence: Confidence, seen: impl Into<String>) -> Judgement {
    Judgement { verdict, confidence, seen: seen.into(), vanished: false }
}

/// The same, of packets that vanished.
pub(super) fn vanished(judgement: Judgement) -> Judgement {
    Judgement { vanished: true, ..judgement }
}

pub(super) fn meets(seen: impl Into<String>) -> Judgement {
    is(Compliance::Meets, Confidence::High, seen)
}

pub(super) fn fails(seen: impl Into<String>) -> Judgement {
    is(Compliance::Fails, Confidence::High, seen)
}

pub(super) fn does(seen: impl Into<String>) -> Judgement {
    is(Compliance::Described, Confidence::High, seen)
}

pub(super) fn not_sure(seen: impl Into<String>) -> Judgement {
    is(Compliance::NotSure, Confidence::Low, seen)
}

pub(super) fn not_testable(why: impl Into<String>) -> Judgement {
    is(Compliance::NotTestable, Confidence::High, why)
}

/// The experiment's observation, or the verdict that it was not made.
pub(super) fn made<T>(observation: &Option<T>) -> Result<&T, Judgement> {
    observation.as_ref().ok_or_else(|| not_testable("this experiment was not made"))
}

/// Whether the hop changes addresses; a reason why a row cannot be tested if it does not.
pub(super) fn translates(observations: &Observations) -> Result<(), Judgement> {
    let mappings = made(&observations.udp_mapping)?;
    let mut seen = mappings.iter().flat_map(|mapping| mapping.seen).filter(|t| t.seen.is_some()).peekable();
    if seen.peek().is_none() {
        return Err(not_sure("no packet from inside arrived outside"));
    }
    if seen.all(|t| t.seen == Some(t.inside)) {
        return Err(not_testable("addresses are not translated on this path"));
    }
    Ok(())
}

/// The kinds of path over IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ipv6Kind {
    /// Addresses and ports stay.
    Untranslated,
    /// Each inside address has one outside, and ports stay (RFC 6296).
    Nptv6,
    /// Hosts share an address, or ports are changed.
    Nat66,
    /// The far side is of IPv4 (RFC 6146).
    Nat64,
}

/// Whether the hosts are of IPv6.
pub fn is_ipv6(o: &Observations) -> bool {
    let mapping = o.udp_mapping.iter().flatten().flat_map(|mapping| mapping.seen);
    mapping.chain(o.ipv6.iter().flat_map(|path| path.hosts)).any(|t| t.inside.is_ipv6())
}

/// Whether the far side is of IPv4 although the hosts are of IPv6.
pub(super) fn is_nat64(o: &Observations) -> bool {
    o.ipv6.as_ref().is_some_and(|path| path.nat64.is_some())
}

/// The kind of a path over IPv6; `None` of one over IPv4, or if a host's packets did not arrive.
pub fn ipv6_kind(o: &Observations) -> Option<Ipv6Kind> {
    let path = o.ipv6.as_ref()?;
    let hosts = path.hosts;
    let mapping = o.udp_mapping.iter().flatten().flat_map(|mapping| mapping.seen);
    let ports = o.udp_ports.iter().flatten().copied();
    let all = || hosts.into_iter().chain(mapping.clone()).chain(ports.clone());
    if hosts.iter().any(|host| host.seen.is_none()) {
        return None;
    }
    if path.nat64.is_some() {
        return Some(Ipv6Kind::Nat64);
    }
    // Behind prefixes longer than 48 bits, the first word that is not 0xffff holds the adjustment (RFC 6296 section 3.5).
    let suffix = |address: IpAddr| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(u128::from(address) & ((1 << SUFFIX) - 1)),
    };
    let seen = || all().filter_map(|t| t.seen.map(|seen| (t.inside, seen)));
    let one_to_one = |(inside, seen): (SocketAddr, SocketAddr)| {
        inside.port() == seen.port() && suffix(inside.ip()) == suffix(seen.ip())
    };
    Some(if seen().all(|(inside, seen)| inside == seen) {
        Ipv6Kind::Untranslated
    } else if seen().all(one_to_one) {
        Ipv6Kind::Nptv6
    } else {
        Ipv6Kind::Nat66
    })
}

/// The class of one mapping; `None` if a packet did not arrive.
pub fn mapping_class(mapping: &Mapping) -> Option<Dependence> {
    let seen = mapping.seen;
    if seen.iter().any(|t| t.seen.is_none()) {
        return None;
    }
    let agree = |a: &Translation, b: &Translation| a.seen == b.seen;
    if seen.iter().all(|t| agree(t, &seen[0])) {
        return Some(Dependence::EndpointIndependent);
    }
    let same_address = |a: &&Translation, b: &&Translation| a.to.ip() == b.to.ip();
    let per_address = seen.iter().all(|a| seen.iter().filter(|b| same_address(&a, b)).all(|b| agree(a, b)));
    Some(if per_address { Dependence::Address } else { Dependence::AddressAndPort })
}

/// The class of one filter; `None` if the control or a control packet did not arrive.
pub fn filtering_class(seen: &Filtering) -> Option<Dependence> {
    let sure = seen.same_address.sure && seen.other_address.sure && seen.answer.reached.is_some();
    let passed = (seen.same_address.reached.is_some(), seen.other_address.reached.is_some());
    match passed {
        _ if !sure => None,
        (true, true) => Some(Dependence::EndpointIndependent),
        (true, false) => Some(Dependence::Address),
        (false, false) => Some(Dependence::AddressAndPort),
        // The filter is by ports alone, for which the RFCs have no word.
        (false, true) => None,
    }
}

/// The class of a filter by all tries; `None` if one is unknown, or they disagree. One of three may be more open than the two
/// others: an earlier check opened that mapping to more than this one contacted.
pub(super) fn strictest(tries: &[Filtering]) -> Option<Dependence> {
    let classes: Vec<Dependence> = tries.iter().map(filtering_class).collect::<Option<_>>()?;
    let strictest = classes.iter().copied().max()?;
    let open = classes.iter().filter(|class| **class != strictest).count();
    (open == 0 || (open == 1 && classes.len() > 2)).then_some(strictest)
}

/// The class on which all agree; `None` if there are none, one is unknown, or two differ.
pub(super) fn common(classes: impl Iterator<Item = Option<Dependence>>) -> Option<Dependence> {
    let mut classes = classes;
    let first = classes.next()??;
    classes.all(|class| class == Some(first)).then_some(first)
}

/// The class of UDP mappings, where no port is in use twice.
pub fn udp_mapping(observations: &Observations) -> Option<Dependence> {
    common(observations.udp_mapping.as_ref()?.iter().map(mapping_class))
}

/// The class of the UDP filter.
pub fn udp_filtering(observations: &Observations) -> Option<Dependence> {
    strictest(observations.udp_filtering.as_ref()?)
}

/// The class of TCP mappings, by their SYNs.
pub fn tcp_mapping(observations: &Observations) -> Option<Dependence> {
    common(observations.tcp_mapping.as_ref()?.iter().map(mapping_class))
}

/// The class of the TCP filter, by SYNs.
pub fn tcp_filtering(observations: &Observations) -> Option<Dependence> {
    strictest(observations.tcp_filtering.as_ref()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Inbound;

    /// A mapping to which these packets came in: from another port, and from another address.
    fn tried([port, address]: [bool; 2]) -> Filtering {
        let own = SocketAddr::from(([198, 18, 0, 2], 20_000));
        let inbound = |reached: bool| Inbound { reached: reached.then_some(own), sure: true, answered: None };
        let mapping = Translation { inside: own, to: own, seen: Some(own), sure: true };
        Filtering {
            mapping,
            same_address: inbound(port),
            other_address: inbound(address),
            answer: inbound(true),
        }
    }

    #[test]
    fn a_mapping_that_an_earlier_check_left_open_is_outvoted() {
        let (all, address, strict) = ([true, true], [true, false], [false, false]);
        for (tries, class) in [
            (&[strict, strict][..], Some(Dependence::AddressAndPort)),
            (&[all, all], Some(Dependence::EndpointIndependent)),
            (&[all, strict, strict], Some(Dependence::AddressAndPort)),
            (&[strict, address, strict], Some(Dependence::AddressAndPort)),
            (&[all, address, address], Some(Dependence::Address)),
            // No rule of a NAT: no class.
            (&[strict, all], None),
            (&[strict, all, all], None),
            (&[strict, address, all], None),
            (&[], None),
        ] {
            let tries: Vec<Filtering> = tries.iter().copied().map(tried).collect();
            assert_eq!(strictest(&tries), class, "{tries:?}");
        }
        // One whose control did not arrive counts for nothing.
        let mut lost = tried(strict);
        lost.answer.reached = None;
        assert_eq!(strictest(&[lost, tried(strict), tried(strict)]), None);
    }
}
