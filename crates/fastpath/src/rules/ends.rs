//! The ends of the flows whose packets a rule matches, and the exclusions that leave those flows to the kernel.
//!
//! An exclusion names one end of a flow, whichever, before or behind the translation. A rule that asks for both ends is covered as soon
//! as one of them is excluded. Conditions that no exclusion can name are left out here, so that a rule covers too much, never too little.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_text::order;

use crate::shared::WEIR_EXCLUSIONS;
use crate::{Exclusion, Protocol};

/// Bits of a port.
const PORT: u32 = 16;
/// A rule that asks for more ports than this is covered only by exclusions without a port.
const MOST_PORTS: u128 = 1024;

/// A field of a packet that an exclusion can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    SourceAddress,
    SourcePort,
    DestinationAddress,
    DestinationPort,
}

impl Field {
    pub(super) const ALL: [Field; 4] =
        [Field::SourceAddress, Field::SourcePort, Field::DestinationAddress, Field::DestinationPort];

    pub(super) fn bits(self, ipv6: bool) -> u32 {
        match self {
            Field::SourcePort | Field::DestinationPort => PORT,
            _ if ipv6 => 128,
            _ => 32,
        }
    }
}

/// Largest number of so many bits.
fn largest(bits: u32) -> u128 {
    u128::MAX >> (128 - bits)
}

/// Numbers, as spans from the first to the last, in order and apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Values(Vec<(u128, u128)>);

impl Values {
    pub(super) fn of(spans: impl IntoIterator<Item = (u128, u128)>) -> Self {
        let mut spans: Vec<_> = spans.into_iter().filter(|(first, last)| first <= last).collect();
        order::by_key(&mut spans, |span| *span);
        let mut apart: Vec<(u128, u128)> = Vec::new();
        for (first, last) in spans {
            match apart.last_mut() {
                Some(before) if before.1.checked_add(1).is_none_or(|next| first <= next) => {
                    before.1 = before.1.max(last);
                }
                _ => apart.push((first, last)),
            }
        }
        Values(apart)
    }

    fn all(bits: u32) -> Self {
        Values(vec![(0, largest(bits))])
    }

    /// All numbers of so many bits but these.
    pub(super) fn not(&self, bits: u32) -> Self {
        let mut others = Vec::new();
        let mut next = Some(0);
        for (first, last) in &self.0 {
            if let Some(next) = next.filter(|next| next < first) {
                others.push((next, first - 1));
            }
            next = last.checked_add(1);
        }
        others.extend(next.filter(|next| *next <= largest(bits)).map(|next| (next, largest(bits))));
        Values(others)
    }

    fn and(&self, other: &Self) -> Self {
        let both = |(a, b): &(u128, u128)| {
            let (a, b) = (*a, *b);
            other.0.iter().map(move |(c, d)| (a.max(*c), b.min(*d)))
        };
        Values::of(self.0.iter().flat_map(both))
    }

    fn is_within(&self, other: &Self) -> bool {
        self.0.iter().all(|(first, last)| other.0.iter().any(|(a, b)| a <= first && last <= b))
    }

    /// Their share of all numbers of so many bits.
    fn share(&self, bits: u32) -> f64 {
        let count: f64 = self.0.iter().map(|(first, last)| (last - first) as f64 + 1.0).sum();
        count / (largest(bits) as f64 + 1.0)
    }

    /// The numbers one by one; `None` if there are too many.
    fn each(&self) -> Option<Vec<u16>> {
        let count: u128 = self.0.iter().map(|(first, last)| last - first + 1).sum();
        let ports = self.0.iter().flat_map(|(first, last)| *first..=*last);
        (count <= MOST_PORTS).then(|| ports.filter_map(|port| u16::try_from(port).ok()).collect())
    }

    /// As prefixes: first number, and leading bits that count. At most so many, else `None`.
    fn prefixes(&self, bits: u32, most: usize) -> Option<Vec<(u128, u8)>> {
        let mut all = Vec::new();
        for (first, last) in &self.0 {
            let mut next = Some(*first);
            while let Some(at) = next.filter(|at| at <= last) {
                if all.len() == most {
                    return None;
                }
                let fits = |free: &u32| {
                    let low = if *free == 0 { 0 } else { largest(*free) };
                    at & low == 0 && at | low <= *last
                };
                let free = (0..=bits).rev().find(fits).unwrap_or(0);
                all.push((at, (bits - free) as u8));
                next = (at | if free == 0 { 0 } else { largest(free) }).checked_add(1);
            }
        }
        Some(all)
    }
}

/// The fields that a rule asks for; `None`: any value.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ends([Option<Values>; Field::ALL.len()]);

impl Ends {
    /// The packets of these that also have these values there.
    pub(super) fn narrow(&mut self, field: Field, values: &Values) {
        let place = &mut self.0[field as usize];
        *place = Some(place.as_ref().map_or_else(|| values.clone(), |before| before.and(values)));
    }

    pub(super) fn and(&self, other: &Ends) -> Ends {
        let mut both = self.clone();
        for field in Field::ALL {
            if let Some(values) = &other.0[field as usize] {
                both.narrow(field, values);
            }
        }
        both
    }

    fn get(&self, field: Field) -> Option<&Values> {
        self.0[field as usize].as_ref()
    }

    /// No packet has such ends.
    fn are_none(&self) -> bool {
        self.0.iter().flatten().any(|values| values.0.is_empty())
    }
}

/// Packets that a rule meets: all those of one protocol and version of IP with such ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Matched {
    ipv6: bool,
    udp: bool,
    ends: Ends,
}

/// Values of an exclusion: prefix, its length, and perhaps a port.
type Offer = (u128, u8, Option<u16>);

impl Matched {
    pub(super) fn new(ipv6: bool, udp: bool, ends: Ends) -> Self {
        Matched { ipv6, udp, ends }
    }

    fn protocol(&self) -> Protocol {
        if self.udp { Protocol::Udp } else { Protocol::Tcp }
    }

    fn bits(&self) -> u32 {
        Field::SourceAddress.bits(self.ipv6)
    }

    /// Addresses and ports at both ends.
    fn both(&self) -> [(Option<&Values>, Option<&Values>); 2] {
        [(Field::SourceAddress, Field::SourcePort), (Field::DestinationAddress, Field::DestinationPort)]
            .map(|(address, port)| (self.ends.get(address), self.ends.get(port)))
    }

    /// The exclusions that leave the fewest other flows to the kernel.
    fn offers(&self) -> Vec<Offer> {
        let (bits, whole) = (self.bits(), Values::all(self.bits()));
        let mut ways = Vec::new();
        for (addresses, ports) in self.both() {
            for (addresses, ports) in [(addresses, ports), (addresses, None), (None, ports), (None, None)] {
                let addresses = addresses.unwrap_or(&whole);
                let share = addresses.share(bits) * ports.map_or(1.0, |ports| ports.share(PORT));
                ways.push((share, addresses, ports));
            }
        }
        order::by(&mut ways, |a, b| a.0.total_cmp(&b.0));
        let most = WEIR_EXCLUSIONS as usize;
        let offers = |addresses: &Values, ports: Option<&Values>| {
            let ports: Vec<_> = match ports {
                None => vec![None],
                Some(ports) => ports.each()?.into_iter().map(Some).collect(),
            };
            let prefixes = addresses.prefixes(bits, most)?;
            let each = |(at, length): &(u128, u8)| {
                let (at, length) = (*at, *length);
                ports.iter().map(move |port| (at, length, *port))
            };
            let all: Vec<Offer> = prefixes.iter().flat_map(each).collect();
            (all.len() <= most).then_some(all)
        };
        ways.into_iter().find_map(|(_, addresses, ports)| offers(addresses, ports)).unwrap_or_default()
    }

    /// Whether each of these packets has an end that is excluded, and always the same one.
    fn is_covered(&self, by: &[Exclusion]) -> bool {
        let fit = |x: &&Exclusion| {
            x.is_ipv6() == self.ipv6 && x.protocol().is_none_or(|protocol| protocol == self.protocol())
        };
        let by: Vec<&Exclusion> = by.iter().filter(fit).collect();
        let whole = Values::all(self.bits());
        let at = |addresses: &Values, port: Option<u16>| {
            let counts = |x: &&&Exclusion| x.port().is_none() || x.port() == port;
            addresses.is_within(&Values::of(by.iter().filter(counts).map(|x| x.span())))
        };
        self.ends.are_none()
            || self.both().into_iter().any(|(addresses, ports)| {
                let addresses = addresses.unwrap_or(&whole);
                match ports.and_then(Values::each) {
                    Some(ports) => ports.into_iter().all(|port| at(addresses, Some(port))),
                    None => at(addresses, None),
                }
            })
    }
}

/// The flows that a rule meets; `None` where no exclusion can name them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MatchedFlows(Option<Vec<Matched>>);

impl MatchedFlows {
    pub(super) fn of(mut all: Vec<Matched>) -> Self {
        order::by(&mut all, Matched::cmp);
        all.dedup();
        let flows = MatchedFlows(Some(all));
        // One that leaves everything to the kernel is no offer.
        if flows.exclusions().is_empty() { MatchedFlows(None) } else { flows }
    }

    /// Exclusions that cover them, none if that is impossible, or would leave nothing to carry.
    pub(super) fn exclusions(&self) -> Vec<Exclusion> {
        let Some(all) = &self.0 else { return Vec::new() };
        let mut protocols: BTreeMap<(bool, Offer), [bool; 2]> = BTreeMap::new();
        for matched in all.iter().filter(|matched| !matched.ends.are_none()) {
            for offer in matched.offers() {
                protocols.entry((matched.ipv6, offer)).or_default()[usize::from(matched.udp)] = true;
            }
        }
        let everything = |ipv6| protocols.get(&(ipv6, (0, 0, None))) == Some(&[true, true]);
        if everything(false) && everything(true) {
            return Vec::new();
        }
        let exclusion = |((ipv6, (at, length, port)), [tcp, udp]): (&(bool, Offer), &[bool; 2])| {
            let address =
                if *ipv6 { IpAddr::from(at.to_be_bytes()) } else { IpAddr::from((*at as u32).to_be_bytes()) };
            let protocol = (tcp != udp).then_some(if *udp { Protocol::Udp } else { Protocol::Tcp });
            Exclusion::new(address, *length, *port, protocol)
        };
        let all: Vec<Exclusion> = protocols.iter().map(exclusion).collect();
        let is_needed = |x: &&Exclusion| !all.iter().any(|other| other != *x && other.contains(x));
        let needed: Vec<Exclusion> = all.iter().filter(is_needed).copied().collect();
        if needed.len() > WEIR_EXCLUSIONS as usize { Vec::new() } else { needed }
    }

    /// Whether these exclusions leave all of them to the kernel.
    pub(super) fn are_covered(&self, by: &[Exclusion]) -> bool {
        self.0.as_ref().is_some_and(|all| all.iter().all(|matched| matched.is_covered(by)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exclusions(texts: &[&str]) -> Vec<Exclusion> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn v4(text: &str) -> (u128, u128) {
        text.parse::<Exclusion>().unwrap().span()
    }

    fn flows(udp: &[bool], conditions: &[(Field, Values)]) -> MatchedFlows {
        let mut ends = Ends::default();
        conditions.iter().for_each(|(field, values)| ends.narrow(*field, values));
        MatchedFlows::of(udp.iter().map(|udp| Matched::new(false, *udp, ends.clone())).collect())
    }

    fn shown(flows: &MatchedFlows) -> Vec<String> {
        flows.exclusions().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_end_that_leaves_more_flows_to_be_carried_is_offered_and_either_covers() {
        let rule = flows(
            &[true],
            &[
                (Field::SourceAddress, Values::of([v4("192.0.2.0/24")])),
                (Field::DestinationPort, Values::of([(53, 53)])),
            ],
        );
        assert_eq!(shown(&rule), ["192.0.2.0/24/udp"]);
        for covering in ["192.0.2.0/24", "192.0.0.0/16/udp", "0.0.0.0/0:53/udp", "0.0.0.0/0:53"] {
            assert!(rule.are_covered(&exclusions(&[covering])), "{covering}");
        }
        assert!(rule.are_covered(&exclusions(&["192.0.2.0/25", "192.0.2.128/25"])));
        for partly in [
            "192.0.2.0/25",
            "192.0.2.0/24/tcp",
            "192.0.2.0/24:53",
            "0.0.0.0/1:53/udp",
            "0.0.0.0/0:54",
            "[::/0]:53/udp",
        ] {
            assert!(!rule.are_covered(&exclusions(&[partly])), "{partly}");
        }
        // Half of one end and half of the other is not all of any.
        assert!(!rule.are_covered(&exclusions(&["192.0.2.0/25", "0.0.0.0/1:53"])));
    }

    #[test]
    fn address_and_port_at_one_end_need_both_protocols_and_every_port() {
        let rule = flows(
            &[false, true],
            &[
                (Field::DestinationAddress, Values::of([v4("198.51.100.7")])),
                (Field::DestinationPort, Values::of([(80, 80), (443, 443)])),
            ],
        );
        assert_eq!(shown(&rule), ["198.51.100.7:80", "198.51.100.7:443"]);
        assert!(rule.are_covered(&exclusions(&["198.51.100.0/24:80", "198.51.100.7:443"])));
        assert!(!rule.are_covered(&exclusions(&["198.51.100.7:80"])));
        assert!(!rule.are_covered(&exclusions(&["198.51.100.7:80", "198.51.100.7:443/tcp"])));
    }

    #[test]
    fn what_needs_too_many_exclusions_names_less_of_its_ends() {
        let (many, address) = (Values::of([(1000, 2000)]), Values::of([v4("192.0.2.1")]));
        let ports = flows(&[true], &[(Field::DestinationPort, many.clone())]);
        assert_eq!(shown(&ports), ["0.0.0.0/0/udp"]);
        let both = flows(&[true], &[(Field::DestinationPort, many), (Field::DestinationAddress, address)]);
        assert_eq!(shown(&both), ["192.0.2.1/udp"]);
        // Every second address of a /24.
        let odd = Values::of((0..128).map(|n| (0xc000_0201 + 2 * n, 0xc000_0201 + 2 * n)));
        assert_eq!(shown(&flows(&[true], &[(Field::SourceAddress, odd)])), ["0.0.0.0/0/udp"]);
    }

    #[test]
    fn everything_is_no_offer_and_is_never_covered() {
        let all = [(false, false), (false, true), (true, false), (true, true)];
        let matched = |(ipv6, udp)| Matched::new(ipv6, udp, Ends::default());
        let everything = MatchedFlows::of(all.into_iter().map(matched).collect());
        assert_eq!(shown(&everything), [""; 0]);
        assert!(!everything.are_covered(&exclusions(&["0.0.0.0/0", "::/0"])));
        let udp = MatchedFlows::of(vec![matched((false, true)), matched((true, true))]);
        assert_eq!(shown(&udp), ["0.0.0.0/0/udp", "::/0/udp"]);
        assert!(udp.are_covered(&exclusions(&["0.0.0.0/0", "::/0/udp"])));
        assert!(!udp.are_covered(&exclusions(&["0.0.0.0/0"])));
    }

    #[test]
    fn the_opposite_of_a_network_is_the_rest() {
        let net = Values::of([v4("192.0.2.0/24")]);
        let rest = flows(&[true], &[(Field::SourceAddress, net.not(32))]);
        let offered = rest.exclusions();
        assert_eq!(offered.len(), 24, "a prefix for each bit of the network's");
        assert!(rest.are_covered(&offered));
        assert!(!rest.are_covered(&offered[1..]));
        assert!(!offered.iter().any(|x| x.contains(&"192.0.2.7".parse().unwrap())));
    }

    proptest! {
        #[test]
        fn prefixes_hold_exactly_the_values(spans in prop::collection::vec((any::<u16>(), any::<u16>()), 0..6)) {
            let values = Values::of(spans.iter().map(|(a, b)| (u128::from(*a), u128::from(*b))));
            let prefixes = values.prefixes(16, 1000).unwrap();
            let spans = prefixes.iter().map(|(at, length)| {
                prop_assert!(*length <= 16);
                Ok((*at, at + (1_u128 << (16 - length)) - 1))
            });
            let spans = spans.collect::<Result<Vec<_>, TestCaseError>>()?;
            prop_assert_eq!(spans.iter().map(|(a, b)| b - a + 1).sum::<u128>(), values.0.iter().map(|(a, b)| b - a + 1).sum::<u128>());
            prop_assert_eq!(Values::of(spans), values.clone());
            prop_assert_eq!(values.not(16).not(16), values.clone());
            prop_assert!(values.and(&values.not(16)).0.is_empty());
        }
    }
}
