//! Rules of the old tables of iptables, and the matches that iptables over nftables has in common with them.

use std::ops::RangeInclusive;

use weir_netlink::iptables::{Rule, Table, Target};

use super::{Asks, Begins, Chain, Does};

/// 1 << RTN_LOCAL, as the match addrtype has it.
const LOCAL: u16 = 1 << 2;

pub(super) fn chains(tables: &[Table]) -> Vec<Chain> {
    let mut chains = Vec::new();
    for table in tables {
        let program = match table.family {
            weir_netlink::iptables::Family::Ip => "iptables-legacy",
            weir_netlink::iptables::Family::Ip6 => "ip6tables-legacy",
        };
        for chain in &table.chains {
            chains.push(Chain {
                table: format!("{program} table {}", table.name),
                name: chain.name.clone(),
                begins: chain.policy.as_ref().and(begins(&table.name, &chain.name)),
                rules: chain.rules.iter().map(|rule| (asks(rule), does(rule))).collect(),
            });
        }
    }
    chains
}

fn begins(table: &str, chain: &str) -> Option<Begins> {
    match (table, chain) {
        ("nat", "PREROUTING") => Some(Begins::Translates),
        (_, "PREROUTING") => Some(Begins::Before),
        (_, "FORWARD") => Some(Begins::After),
        _ => None,
    }
}

fn does(rule: &Rule) -> Does {
    match (&rule.target, &rule.destination) {
        (_, Some(to)) => Does::Lead(to.clone()),
        (Target::Jump(chain), None) => Does::Jump(chain.clone()),
        (Target::Goto(chain), None) => Does::Goto(chain.clone()),
        (Target::Drop, None) => Does::Stop,
        (Target::Accept, None) => Does::Ends,
        (Target::Return, None) => Does::Return,
        (Target::Named(name), None) => target(name).unwrap_or(Does::Else),
        (Target::Continue, None) => Does::Else,
    }
}

/// Returns the action of an xtables target that does not lead anywhere.
pub(super) fn target(name: &str) -> Option<Does> {
    match name {
        "REJECT" | "NFQUEUE" => Some(Does::Stop),
        // To a port of this host; to networks of the same size.
        "REDIRECT" | "TPROXY" | "NETMAP" => Some(Does::Ends),
        _ => None,
    }
}

fn asks(rule: &Rule) -> Asks {
    let mut asks = Asks::default();
    let mut words = rule.asks.split_whitespace();
    let mut not = false;
    while let Some(word) = words.next() {
        if word == "!" {
            not = true;
            continue;
        }
        let value = words.next().unwrap_or_default();
        let interface = value.replace('+', "*");
        match (word, not) {
            ("-p", false) => asks.protocol = protocol(value),
            ("-d", false) => match network(value) {
                Some((address, prefix)) => asks.destination(address, prefix),
                None => asks.more.push("-d".into()),
            },
            ("-i", false) => asks.from = Some(interface),
            ("-i", true) => asks.not_from.push(interface),
            (other, _) => asks.more.push(other.to_owned()),
        }
        not = false;
    }
    for (name, info) in &rule.matches {
        matched(&mut asks, name, info);
    }
    asks
}

fn protocol(name: &str) -> Option<u8> {
    match name {
        "tcp" => Some(6),
        "udp" => Some(17),
        other => other.parse().ok().or(Some(u8::MAX)),
    }
}

fn network(text: &str) -> Option<(std::net::IpAddr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    Some((address.parse().ok()?, prefix.parse().ok()?))
}

/// Adds the conditions of an xtables match, in the layout of its header file (include/uapi/linux/netfilter/xt_*.h).
pub(super) fn matched(asks: &mut Asks, name: &str, info: &[u8]) {
    let understood = match name {
        "comment" => Some(()),
        "tcp" => tcp(info).map(|ports| narrow(asks, 6, ports)),
        "udp" => udp(info).map(|ports| narrow(asks, 17, ports)),
        "addrtype" => local(info),
        "multiport" => multiport(asks, info),
        _ => None,
    };
    if understood.is_none() {
        asks.more.push(name.to_owned());
    }
}

fn narrow(asks: &mut Asks, protocol: u8, ports: RangeInclusive<u16>) {
    asks.protocol = Some(protocol);
    if ports != (0..=u16::MAX) {
        asks.ports = Some(ports);
    }
}

/// Numbers of the kernel's, in its own order.
fn short(info: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?))
}

/// Destination ports, if no source port is asked for.
fn ports(info: &[u8]) -> Option<RangeInclusive<u16>> {
    let any = short(info, 0)? == 0 && short(info, 2)? == u16::MAX;
    let destination = short(info, 4)?..=short(info, 6)?;
    any.then_some(destination)
}

/// struct xt_tcp: ports, option, mask and value of the flags, what is inverted.
fn tcp(info: &[u8]) -> Option<RangeInclusive<u16>> {
    let rest = info.get(8..12)?;
    let plain = rest[0] == 0 && rest[1] == 0 && rest[3] == 0;
    ports(info).filter(|_| plain)
}

/// struct xt_udp: ports, what is inverted.
fn udp(info: &[u8]) -> Option<RangeInclusive<u16>> {
    let plain = *info.get(8)? == 0;
    ports(info).filter(|_| plain)
}

/// struct xt_addrtype_info_v1 (source, destination, flags), and the older one, which has a number for each of two flags.
fn local(info: &[u8]) -> Option<()> {
    let asked = short(info, 0)? == 0 && short(info, 2)? == LOCAL;
    let plain = info.get(4..)?.iter().all(|b| *b == 0);
    (asked && plain).then_some(())
}

/// struct xt_multiport_v1: which ports, how many, fifteen ports, fifteen bytes that say which begin a range, what is inverted.
/// Engines put it before a chain in which each rule names its own port: the list says no more than they do.
fn multiport(asks: &mut Asks, info: &[u8]) -> Option<()> {
    let (kind, count) = (*info.first()?, usize::from(*info.get(1)?));
    let ranges = info.get(32..32 + count.min(15))?.iter().any(|b| *b != 0);
    // XT_MULTIPORT_DESTINATION.
    if kind != 1 || ranges || *info.get(47)? != 0 || count == 0 || count > 15 {
        return None;
    }
    let listed: Option<Vec<u16>> = (0..count).map(|n| short(info, 2 + 2 * n)).collect();
    let listed = listed?;
    asks.ports = Some(*listed.iter().min()?..=*listed.iter().max()?);
    Some(())
}
