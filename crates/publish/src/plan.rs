//! Lists the ports published on this host, and finds those that can be a fixed mapping.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::Serialize;
use weir_netlink::Link;
use weir_sys::ProcRoot;

use crate::local_ports::LocalPorts;
use crate::place::{HostLinks, global};
use crate::proxy::Proxy;
use crate::rules::{Asks, Published, Rules, Stop};
use crate::wanted::{Container, Wanted};
use crate::{Error, Links, Mapping, Protocol, Result, proxy, rules};

/// The requested interfaces.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The interface that clients come in by; `None`: where the default routes lead.
    pub outer: Option<String>,
    /// The host's end of the container's link; `None`: it is found by the container's address.
    pub link: Option<String>,
}

/// A port that something publishes.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Found {
    /// Its protocol; `None` for something without ports, or without one of its own.
    pub protocol: Option<Protocol>,
    /// Destination that clients use: address and port in text, `*` for all of a kind.
    pub published: String,
    /// Destination after translation, likewise.
    pub container: String,
    /// The rule or program that publishes it; names in it are text from outside.
    pub by: String,
    /// The mapping that it would be.
    pub mapping: Option<Mapping>,
    /// The host's end of the container's link; text from outside.
    pub link: Option<String>,
    /// Why it cannot be a mapping; `None` if it can.
    pub why_not: Option<String>,
    /// Number of the link.
    #[serde(skip)]
    links: Option<Links>,
}

impl Found {
    /// One that cannot be a mapping.
    fn unfit(
        protocol: Option<Protocol>,
        (published, container): (String, String),
        by: &str,
        why: &str,
    ) -> Self {
        let (mapping, link, links) = (None, None, None);
        let (by, why_not) = (by.to_owned(), Some(why.to_owned()));
        Found { protocol, published, container, by, mapping, link, why_not, links }
    }
}

/// The planned mappings.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PublishPlan {
    /// The interface that clients come in by; text from outside.
    pub outer: String,
    /// All that is published, in the order of the rules.
    pub found: Vec<Found>,
    /// Chains with rules that throw some of those packets away now, and would see none of them any more; text from outside.
    pub passed_by: Vec<String>,
    /// Mappings from whose published port this host may open connections: their answers would go to the container.
    pub local_ports: Vec<Mapping>,
    #[serde(skip)]
    outer_index: u32,
    #[serde(skip)]
    stops: Vec<Stop>,
}

/// Why a rule is no fixed mapping that others stand before.
const KEPT: &str = "a rule before it keeps some of its packets, or all, from being translated";

/// Result of planning one rule: mapping and link, or why not.
type Planned = std::result::Result<(Mapping, Links, String), String>;

impl PublishPlan {
    /// Looks at the rules, links and addresses of the calling thread's network namespace, and at whether this kernel can do it.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the kernel lacks what everything here needs; [`Error::Link`] if there is no outer interface; what the
    /// kernel does not tell without privilege.
    pub fn make(request: &Request) -> Result<Self> {
        let ipv6 = crate::kernel_knows_ipv6()?;
        let Rules { published, stops } = rules::read(&ProcRoot::default())?;
        let proxies = proxy::running(&ProcRoot::default())?;
        let mut planner = Planner::new(request, ipv6)?;
        let mut found = Vec::new();
        for rule in &published {
            planner.add(rule, &published, &mut found);
        }
        for proxy in proxies
            .iter()
            .filter(|proxy| !published.iter().any(|rule| leads_to(rule, proxy.protocol, proxy.to)))
        {
            found.push(proxied(proxy));
        }
        refuse_twice(&mut found);
        let outer = planner.outer;
        let passed_by = passed_by(&stops, &outer.name, found.iter().filter_map(|f| f.mapping.as_ref()));
        let local = LocalPorts::read(&ProcRoot::default())?;
        let mut local_ports: Vec<Mapping> = found.iter().filter_map(|f| f.mapping).collect();
        local_ports.retain(|mapping| local.contains(mapping.published.port()));
        Ok(PublishPlan { outer: outer.name, found, passed_by, local_ports, outer_index: outer.index, stops })
    }

    /// Everything that can be done.
    ///
    /// # Errors
    /// [`Error::Nothing`] if nothing can.
    pub fn all(&self) -> Result<Wanted> {
        let can: Vec<&Found> = self.found.iter().filter(|f| f.mapping.is_some()).collect();
        if can.is_empty() {
            let why = match self.found.first() {
                None => "no rule of this network namespace publishes a port".to_owned(),
                Some(_) => format!("none of {} published ports can be a fixed mapping", self.found.len()),
            };
            return Err(Error::Nothing(why));
        }
        Ok(self.wanted(&can))
    }

    /// Those mappings, each of which must be published by a rule that can be one.
    ///
    /// # Errors
    /// [`Error::Nothing`], with the reason, for one that is not.
    pub fn only(&self, mappings: &[Mapping]) -> Result<Wanted> {
        let mut can = Vec::new();
        for mapping in mappings {
            let same = |f: &&Found| f.mapping.as_ref() == Some(mapping);
            match self.found.iter().find(same) {
                Some(found) => can.push(found),
                None => return Err(Error::Nothing(format!("{mapping}: {}", self.why_not(mapping)))),
            }
        }
        Ok(self.wanted(&can))
    }

    fn why_not(&self, mapping: &Mapping) -> String {
        let container = mapping.container.to_string();
        let similar = |f: &&Found| {
            let any = [format!("*:{}", mapping.published.port()), mapping.published.to_string()];
            f.protocol == Some(mapping.protocol) && f.container == container && any.contains(&f.published)
        };
        match self.found.iter().filter(similar).find_map(|f| f.why_not.clone()) {
            Some(why) => why,
            None => "no rule publishes it, so packets left to the kernel would not arrive (weir publish plan lists published ports)"
                .to_owned(),
        }
    }

    /// As [`PublishPlan::passed_by`], of a part of it.
    pub fn passed_by(&self, wanted: &Wanted) -> Vec<String> {
        passed_by(&self.stops, &self.outer, wanted.mappings())
    }

    /// Whether a mapping that is in the kernel is still what the rules publish, and its container still behind that link; in words
    /// why not.
    ///
    /// # Errors
    /// The words.
    pub fn still(&self, mapping: &Mapping, link: u32) -> std::result::Result<(), String> {
        match self.found.iter().find(|f| f.mapping.as_ref() == Some(mapping)) {
            Some(found) if found.links.is_some_and(|links| links.container == link) => Ok(()),
            Some(found) => {
                let name = found.link.as_deref().unwrap_or_default();
                Err(format!("its container is behind another link now: {name}"))
            }
            None => Err(self.why_not(mapping)),
        }
    }

    fn wanted(&self, found: &[&Found]) -> Wanted {
        let mut containers: BTreeMap<u32, Container> = BTreeMap::new();
        for one in found {
            let (Some(mapping), Some(links), Some(name)) = (&one.mapping, one.links, &one.link) else {
                continue;
            };
            let new = || Container { link: name.clone(), index: links.container, mappings: Vec::new() };
            let container = containers.entry(links.container).or_insert_with(new);
            if !container.mappings.contains(mapping) {
                container.mappings.push(*mapping);
            }
        }
        Wanted {
            outer: self.outer.clone(),
            outer_index: self.outer_index,
            containers: containers.into_values().collect(),
        }
    }
}

struct Planner<'a> {
    request: &'a Request,
    place: HostLinks,
    outer: Link,
    ipv6: bool,
}

impl<'a> Planner<'a> {
    fn new(request: &'a Request, ipv6: bool) -> Result<Self> {
        let mut place = HostLinks::look()?;
        let outer = place.outer(request.outer.as_deref())?;
        if let Some(link) = &request.link {
            // Said at once, instead of as the reason of each rule.
            Links::find(&outer.name, link)?;
        }
        Ok(Planner { request, place, outer, ipv6 })
    }

    fn add(&mut self, rule: &Published, all: &[Published], found: &mut Vec<Found>) {
        let unfit = |why: String, address: Option<IpAddr>| {
            let ends = (shown_published(rule, address), shown_container(rule));
            Found::unfit(rule.protocol(), ends, &rule.place, &why)
        };
        let (addresses, port, container) = match self.fixed(rule, all) {
            Ok(fixed) => fixed,
            Err(why) => return found.push(unfit(why, None)),
        };
        for address in addresses {
            let Some(protocol) = rule.protocol() else { continue };
            let mapping = Mapping { protocol, published: SocketAddr::new(address, port), container };
            // Earlier rules apply only on the kernel's own path, which the mapping would bypass.
            let kept =
                rule.unless.iter().any(|asks| may_meet(asks, mapping.published, protocol, &self.outer.name));
            let planned = if kept { Err(KEPT.to_owned()) } else { self.placed(mapping) };
            found.push(match planned {
                Ok((mapping, links, link)) => Found {
                    mapping: Some(mapping),
                    link: Some(link),
                    why_not: None,
                    links: Some(links),
                    ..unfit(String::new(), Some(address))
                },
                Err(why) => unfit(why, Some(address)),
            });
        }
    }

    /// Addresses, port and container of a rule that always does the same with the same address and port.
    fn fixed(
        &self,
        rule: &Published,
        all: &[Published],
    ) -> std::result::Result<(Vec<IpAddr>, u16, SocketAddr), String> {
        let asks = &rule.asks;
        let protocol = rule.protocol().ok_or("it is of no protocol of its own that has ports (tcp, udp)")?;
        let port = single(asks.ports.clone()).ok_or("it publishes a range of ports, not one")?;
        let address = match rule.to.addresses {
            None => Err("it takes the container's address out of a map"),
            Some((first, last)) if first != last => {
                Err("several containers are behind it: which one is chosen anew for each connection")
            }
            Some((first, _)) => Ok(first.ip()),
        }?;
        let to = single(rule.container_ports())
            .ok_or("the container's port is chosen anew for each connection")?;
        if !asks.more.is_empty() {
            return Err(format!("its rule asks for more than address and port ({})", asks.more.join(", ")));
        }
        let outer = &self.outer.name;
        let is_outer = |name: &String| named(name, outer);
        if let Some(from) = asks.from.as_ref().filter(|name| !is_outer(name)) {
            return Err(format!("its rule is for what comes in by {from} only (--interface)"));
        }
        if asks.not_from.iter().any(is_outer) {
            return Err(format!("its rule is not for what comes in by {outer} (--interface)"));
        }
        let container = SocketAddr::new(address, to);
        if let Some(other) = rival(rule, protocol, port, container, all) {
            return Err(other);
        }
        Ok((self.addresses(rule)?, port, container))
    }

    /// The addresses of the outer interface at which a rule publishes.
    fn addresses(&self, rule: &Published) -> std::result::Result<Vec<IpAddr>, String> {
        let own = global(&self.outer, rule.ipv6);
        let outer = &self.outer.name;
        match rule.asks.destination {
            Some((address, _)) if address.is_loopback() => {
                Err("it is published for this host itself only (loopback)".into())
            }
            Some((address, prefix)) if prefix < if address.is_ipv4() { 32 } else { 128 } => {
                Err("its rule is for a network, not for an address".into())
            }
            Some((address, _)) if !own.contains(&address) => {
                Err(format!("{address} is no address of {outer} that clients can send to (--interface)"))
            }
            Some((address, _)) => Ok(vec![address]),
            None if own.is_empty() => {
                let version = if rule.ipv6 { "IPv6" } else { "IPv4" };
                Err(format!("{outer} has no {version} address that clients can send to (--interface)"))
            }
            None if own.len() > 1 => {
                let list: Vec<String> = own.iter().map(ToString::to_string).collect();
                let list = list.join(", ");
                Err(format!(
                    "it is published on all addresses, and {outer} has several ({list}): the container's answers could \
                     come from one only; publish it on one address"
                ))
            }
            None => Ok(own),
        }
    }

    /// With the container's link.
    fn placed(&mut self, mapping: Mapping) -> Planned {
        let ipv6 = mapping.published.is_ipv6();
        if ipv6 && !self.ipv6 {
            return Err(
                "this kernel lacks BPF_F_IPV6 (Linux 6.16, or a stable series with the correction)".into()
            );
        }
        crate::mapping::check(&mapping).map_err(|e| e.to_string())?;
        let name = match &self.request.link {
            Some(name) => name.clone(),
            None => self.place.container(mapping.container.ip())?.name,
        };
        let links = Links::find(&self.outer.name, &name).map_err(|e| e.to_string())?;
        match self.place.forwards(links, ipv6) {
            Some(why) => Err(why),
            None => Ok((mapping, links, name)),
        }
    }
}

/// The chains of rules that may stop packets of these mappings.
fn passed_by<'a>(stops: &[Stop], outer: &str, mappings: impl Iterator<Item = &'a Mapping>) -> Vec<String> {
    let meets = |stop: &Stop, mapping: &Mapping| {
        let end = if stop.translated { mapping.container } else { mapping.published };
        may_meet(&stop.asks, end, mapping.protocol, outer)
    };
    let mappings: Vec<&Mapping> = mappings.collect();
    let mut places: Vec<String> = Vec::new();
    for stop in stops.iter().filter(|stop| mappings.iter().any(|mapping| meets(stop, mapping))) {
        if !places.contains(&stop.place) {
            places.push(stop.place.clone());
        }
    }
    places
}

/// Whether a rule that asks for that may be asked about packets that come in by `outer` for that end.
fn may_meet(asks: &Asks, end: SocketAddr, protocol: Protocol, outer: &str) -> bool {
    let Asks { destination, ports, from, not_from, .. } = asks;
    destination.is_none_or(|network| within(end.ip(), network))
        && asks.protocol.is_none_or(|number| number == protocol.number())
        && ports.as_ref().is_none_or(|ports| ports.contains(&end.port()))
        && from.as_ref().is_none_or(|name| named(name, outer))
        && !not_from.iter().any(|name| named(name, outer))
}

/// Whether an address is in a network.
pub(crate) fn within(address: IpAddr, (network, prefix): (IpAddr, u8)) -> bool {
    let (address, network, bits) = match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) => (u128::from(a.to_bits()), u128::from(n.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(n)) => (a.to_bits(), n.to_bits(), 128),
        _ => return false,
    };
    let shift = 128_u32.min(bits - u32::from(prefix).min(bits));
    address.checked_shr(shift) == network.checked_shr(shift)
}

/// Another rule that contradicts this one: what the rules do depends on more than address and port then.
fn rival(
    rule: &Published,
    protocol: Protocol,
    port: u16,
    container: SocketAddr,
    all: &[Published],
) -> Option<String> {
    let others = || all.iter().filter(|other| other.asks != rule.asks || other.to != rule.to);
    let of_protocol = |other: &&Published| {
        other.ipv6 == rule.ipv6 && (other.asks.protocol.is_none() || other.protocol() == Some(protocol))
    };
    let overlaps = |other: &&Published| match (other.asks.destination, rule.asks.destination) {
        (Some((a, _)), Some((b, _))) => a == b,
        _ => true,
    };
    let same_port = |other: &&Published| other.asks.ports.as_ref().is_none_or(|ports| ports.contains(&port));
    // The same rule at another place says the same.
    let agrees = |other: &Published| {
        other.container() == Some(container.ip()) && single(other.container_ports()) == Some(container.port())
    };
    if others().filter(of_protocol).filter(overlaps).filter(same_port).any(|other| !agrees(other)) {
        return Some("another rule leads the same address and port elsewhere".into());
    }
    let second = |other: &&Published| {
        may_lead_to(other, container)
            && (other.asks.ports != rule.asks.ports || other.asks.destination != rule.asks.destination)
    };
    let other = others().filter(of_protocol).find(second)?;
    let shown = shown_published(other, None);
    Some(format!(
        "the same port of the container is also published as {shown}: its answers could come from one only"
    ))
}

/// Whether answers of that end of a container may be of a connection by that rule.
fn may_lead_to(rule: &Published, end: SocketAddr) -> bool {
    rule.container() == Some(end.ip())
        && rule.container_ports().is_none_or(|ports| ports.contains(&end.port()))
}

fn leads_to(rule: &Published, protocol: Protocol, end: SocketAddr) -> bool {
    rule.protocol() == Some(protocol)
        && rule.container() == Some(end.ip())
        && rule.container_ports().is_some_and(|ports| ports.contains(&end.port()))
}

/// Two that are the same, of rules at two places, are one; of what contradicts itself nothing is left.
fn refuse_twice(found: &mut Vec<Found>) {
    let mut seen: Vec<Mapping> = Vec::new();
    found.retain(|one| match one.mapping {
        Some(mapping) if seen.contains(&mapping) => false,
        Some(mapping) => {
            seen.push(mapping);
            true
        }
        None => true,
    });
}

fn proxied(proxy: &Proxy) -> Found {
    let why =
        "only the userland proxy publishes it: without a rule, what is left to the kernel would not arrive";
    let ends = (proxy.published.to_string(), proxy.to.to_string());
    Found::unfit(Some(proxy.protocol), ends, "docker-proxy", why)
}

fn single(range: Option<std::ops::RangeInclusive<u16>>) -> Option<u16> {
    range.filter(|range| range.start() == range.end()).map(|range| *range.start())
}

/// Whether a name, which may end with a star, is that of an interface.
fn named(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(begins) => name.starts_with(begins),
        None => pattern == name,
    }
}

fn shown_published(rule: &Published, address: Option<IpAddr>) -> String {
    let ports = rule.asks.ports.clone();
    match address.or(rule.asks.destination.map(|(address, _)| address)) {
        Some(address) => shown(&bracketed(address), ports),
        None => shown(if rule.ipv6 { "[*]" } else { "*" }, ports),
    }
}

fn shown_container(rule: &Published) -> String {
    let address = match rule.to.addresses {
        None => "*".to_owned(),
        Some((first, last)) if first == last => bracketed(first.ip()),
        Some((first, last)) => format!("{}-{}", bracketed(first.ip()), bracketed(last.ip())),
    };
    shown(&address, rule.container_ports())
}

fn bracketed(address: IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}

fn shown(address: &str, ports: Option<std::ops::RangeInclusive<u16>>) -> String {
    match ports {
        None => format!("{address}:*"),
        Some(range) if range.start() == range.end() => format!("{address}:{}", range.start()),
        Some(range) => format!("{address}:{}-{}", range.start(), range.end()),
    }
}
