//! Which rule refuses a packet of a table's kinds: the rules are evaluated for packets that are made up.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use weir_netlink::nftables::{Hook, Tables};
use weir_netlink::{Asking, Rtnetlink};

use super::decide::Sets;
use super::listing::Lister;
use super::packet::{Names, Packet, State, Through};
use super::walk::{Decider, Walker, Way};
use crate::evidence::{
    Backend, DropGroup, Namespace, NatHost, NatSource, NatTable, Refused, RuleVerdict, Sample,
};

/// Rules that are asked at most.
const RULES: u64 = 1_000_000;
/// Connection tracking puts fragments together here (NF_IP_PRI_CONNTRACK_DEFRAG): later chains see none.
const REASSEMBLY: i32 = -400;
/// An outside and an inside port of the made-up packets.
const PORTS: (u16, u16) = (9347, 40_000);

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Direction of a packet through the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From outside to an inside host.
    In,
    /// From inside.
    Out,
    /// From outside to the gateway itself.
    Here,
    /// From the gateway to an inside host.
    Made,
}

/// A kind of packet: its name, direction, protocol, and the first bytes of its transport header that differ.
struct Kind {
    name: &'static str,
    direction: Direction,
    state: State,
    protocol: u8,
    /// Type and code of ICMP, or flags of TCP and 0.
    what: (u8, u8),
    /// It is a later fragment.
    fragment: bool,
}

const fn kind(name: &'static str, direction: Direction, state: State, protocol: u8, what: (u8, u8)) -> Kind {
    Kind { name, direction, state, protocol, what, fragment: false }
}

const KINDS: &[Kind] = &[
    kind("error-in", Direction::In, State::Related, ICMP, (3, 3)),
    kind("time-exceeded-in", Direction::In, State::Related, ICMP, (11, 0)),
    kind("too-big-in", Direction::In, State::Related, ICMP, (3, 4)),
    kind("error-out", Direction::Out, State::Related, ICMP, (3, 3)),
    kind("too-big-made", Direction::Made, State::Related, ICMP, (3, 4)),
    kind("query-out", Direction::Out, State::New, ICMP, (8, 0)),
    kind("query-in", Direction::In, State::Established, ICMP, (0, 0)),
    // The SYN of the contacted endpoint: connection tracking knows the connection already.
    kind("crossing-syn", Direction::In, State::Established, TCP, (0x02, 0)),
    kind("syn-out", Direction::Out, State::New, TCP, (0x02, 0)),
    kind("reset-in", Direction::In, State::Established, TCP, (0x14, 0)),
    kind("unsolicited-syn", Direction::Here, State::New, TCP, (0x02, 0)),
    kind("gre-out", Direction::Out, State::New, 47, (0, 0)),
    kind("esp-out", Direction::Out, State::New, 50, (0, 0)),
    kind("dccp-out", Direction::Out, State::New, 33, (0, 0)),
    kind("sctp-out", Direction::Out, State::New, 132, (0, 0)),
    kind("udp-lite-out", Direction::Out, State::New, 136, (0, 0)),
    Kind { fragment: true, ..kind("fragment-in", Direction::In, State::Established, UDP, (0, 0)) },
    Kind { fragment: true, ..kind("fragment-out", Direction::Out, State::New, UDP, (0, 0)) },
];

/// The ends of the made-up packets.
struct Path {
    inside: Ipv4Addr,
    server: Ipv4Addr,
    outside: Ipv4Addr,
    /// Interfaces towards them.
    near: Through,
    away: Through,
}

impl Path {
    /// The ends that a table over IPv4 names.
    fn of(table: &NatTable) -> Option<Self> {
        let v4 = |end: Option<SocketAddr>| match end?.ip() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        };
        let (inside, server) = (v4(table.inside)?, v4(table.server)?);
        let outside =
            table.outside.iter().find_map(|a| if let IpAddr::V4(a) = a { Some(*a) } else { None })?;
        let (near, away) = match table.source {
            // The lab's addresses lead nowhere here.
            NatSource::Lab => (Through::Unknown, Through::Unknown),
            NatSource::Check => interfaces(inside, server),
        };
        Some(Path { inside, server, outside, near, away })
    }
}

/// By the routes of the namespace. If they lead to one interface, another router is between this host and the inside one.
fn interfaces(inside: Ipv4Addr, server: Ipv4Addr) -> (Through, Through) {
    let Ok(mut net) = Rtnetlink::open() else { return (Through::Unknown, Through::Unknown) };
    let mut towards = |to: Ipv4Addr| net.resolve(&Asking::to(to.into())).ok().map(|route| route.interface);
    match (towards(inside), towards(server)) {
        (Some(near), Some(away)) if near != away => (Through::This(near), Through::This(away)),
        _ => (Through::Unknown, Through::Unknown),
    }
}

/// Fills [`NatHost::refused`] and [`NatHost::asked`].
pub(super) fn ask(tables: &Tables, inside: &Namespace, table: &NatTable, host: &mut NatHost) {
    let Some(path) = Path::of(table) else { return };
    let names = Names::of(&inside.interfaces);
    let mut walker = Walker::new(tables, &names, RULES);
    let mut sets = Sets::open();
    for kind in KINDS {
        host.asked.push(kind.name.to_owned());
        let way = walk(&mut walker, &mut sets, kind, &path);
        let Some((decider, hook)) = first(&way, tables, kind) else { continue };
        host.refused.push(refused(tables, kind.name, decider, hook, way.ends && way.deciders.len() == 1));
    }
    add_legacy(inside, host);
}

/// The first decider; for fragments only one that sees fragments.
fn first(way: &Way, tables: &Tables, kind: &Kind) -> Option<(Decider, Hook)> {
    let sees = |(decider, hook): &&(Decider, Hook)| {
        !kind.fragment || *hook == Hook::Ingress || priority(tables, *decider) < REASSEMBLY
    };
    way.deciders.iter().find(sees).copied()
}

fn priority(tables: &Tables, decider: Decider) -> i32 {
    let at = match decider {
        Decider::Policy(place) => Some(place),
        Decider::Rule(place) => {
            let rule = &tables.rules[place];
            let same = |c: &weir_netlink::nftables::Chain| {
                c.family == rule.family && c.table == rule.table && c.name == rule.chain
            };
            tables.chains.iter().position(same)
        }
    };
    at.and_then(|at| tables.chains[at].base.as_ref()).map_or(0, |base| base.priority)
}

fn walk(walker: &mut Walker<'_>, sets: &mut Sets, kind: &Kind, path: &Path) -> Way {
    let group = DropGroup { ethertype: 0x0800, protocol: kind.protocol, ..DropGroup::default() };
    let mut way = Way::default();
    for (hook, came_in, goes_out) in stops(kind, path) {
        let came = if let Through::This(index) = came_in { index } else { 0 };
        let (source, destination) = addresses(kind, path, hook);
        let header = header(kind, source, destination);
        let sample = Sample { came_in: came, length: header.len() as u32, header, ..Sample::default() };
        let mut packet = Packet::new(&sample, &group, hook, kind.state);
        (packet.came_in, packet.goes_out) = (came_in, goes_out);
        // Whether an earlier rule marks it is unknown.
        packet.marks_change = true;
        walker.hook(&packet, sets, &mut way);
        if way.ends {
            break;
        }
    }
    way
}

fn stops(kind: &Kind, path: &Path) -> Vec<(Hook, Through, Through)> {
    let none = Through::None;
    match kind.direction {
        Direction::In => vec![
            (Hook::Ingress, path.away, none),
            (Hook::Prerouting, path.away, none),
            (Hook::Forward, path.away, path.near),
        ],
        Direction::Out => vec![
            (Hook::Ingress, path.near, none),
            (Hook::Prerouting, path.near, none),
            (Hook::Forward, path.near, path.away),
        ],
        Direction::Here => vec![
            (Hook::Ingress, path.away, none),
            (Hook::Prerouting, path.away, none),
            (Hook::Input, path.away, none),
        ],
        Direction::Made => vec![(Hook::Output, none, path.near)],
    }
}

/// Source and destination at a hook: before routing packets from outside have the outside address still.
fn addresses(kind: &Kind, path: &Path, hook: Hook) -> (Ipv4Addr, Ipv4Addr) {
    match kind.direction {
        Direction::In if hook == Hook::Forward => (path.server, path.inside),
        Direction::In | Direction::Here => (path.server, path.outside),
        Direction::Out => (path.inside, path.server),
        Direction::Made => (path.outside, path.inside),
    }
}

/// Header of IPv4 and the first bytes behind it; no rule reads the checksums.
fn header(kind: &Kind, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
    const LENGTH: u16 = 60;
    let mut bytes = vec![0x45, 0];
    bytes.extend(LENGTH.to_be_bytes());
    // A later fragment begins at byte 800.
    bytes.extend([0, 1, 0, if kind.fragment { 100 } else { 0 }, 60, kind.protocol, 0, 0]);
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    let from_outside = matches!(kind.direction, Direction::In | Direction::Here);
    let (first, second) = if from_outside { PORTS } else { (PORTS.1, PORTS.0) };
    match kind.protocol {
        ICMP => bytes.extend([kind.what.0, kind.what.1, 0, 0, 0, 0, 0, 0]),
        _ => bytes.extend([first.to_be_bytes(), second.to_be_bytes()].concat()),
    }
    if kind.protocol == TCP {
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, kind.what.0, 0xff, 0xff, 0, 0, 0, 0]);
    }
    bytes.resize(LENGTH.into(), 0);
    bytes
}

fn refused(tables: &Tables, packet: &str, decider: Decider, hook: Hook, sure: bool) -> Refused {
    let lister = Lister::new(tables);
    let (rule, family, table, chain) = match decider {
        Decider::Rule(place) => {
            let of = &tables.rules[place];
            (Some(lister.rule(place)), of.family, &of.table, &of.chain)
        }
        Decider::Policy(place) => {
            let of = &tables.chains[place];
            (None, of.family, &of.table, &of.name)
        }
    };
    Refused {
        packet: packet.to_owned(),
        hook: hook.name().to_owned(),
        sure,
        backend: lister.backend(family, table),
        chain: [family.name().to_owned(), table.clone(), chain.clone()],
        rule,
    }
}

/// Rules of the old iptables are not evaluated: the first one that drops ICMP on its way through is a suspect.
fn add_legacy(inside: &Namespace, host: &mut NatHost) {
    let rules = inside.rules.iter().flat_map(|r| &r.rules);
    let mut drops = rules.filter(|r| {
        r.backend == Backend::IptablesLegacy
            && r.family == "ip"
            && matches!(r.verdict, RuleVerdict::Drop | RuleVerdict::Reject)
            && r.hooks.iter().any(|hook| hook == "forward")
            && r.text.contains("-p icmp")
    });
    let Some(rule) = drops.next() else { return };
    for packet in ["error-in", "time-exceeded-in", "too-big-in", "error-out", "query-out", "query-in"] {
        if host.refused.iter().all(|r| r.packet != packet) {
            host.refused.push(Refused {
                packet: packet.to_owned(),
                hook: "forward".to_owned(),
                sure: false,
                rule: Some(rule.clone()),
                backend: rule.backend,
                chain: [rule.family.clone(), rule.table.clone(), rule.chain.clone()],
            });
        }
    }
}
