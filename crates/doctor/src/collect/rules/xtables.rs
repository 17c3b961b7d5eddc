//! Whether a match of iptables matches a packet. Layouts are those of include/uapi/linux/netfilter/xt_*.h; iptables over nftables
//! and the old tables have them in common.

use weir_netlink::nftables::Base;

use super::packet::{Bytes, Names, Packet, State};

/// Ends of port numbers in the headers of TCP, UDP, UDP-Lite, SCTP and DCCP.
const SOURCE: u32 = 0;
const DESTINATION: u32 = 2;
/// XT_CONNTRACK_STATE, XT_CONNTRACK_PROTO, and the states SNAT and DNAT, which made-up packets do not settle.
const STATE: u16 = 1;
const PROTOCOL: u16 = 1 << 1;
const TRANSLATED: u16 = 1 << 6 | 1 << 7;
/// XT_CONNTRACK_STATE_ALIAS: the rule was written with `-m state`.
const ALIAS: u16 = 1 << 13;
/// XT_CONNTRACK_STATE_UNTRACKED: nftables has another bit for it.
const UNTRACKED: u16 = 1 << 8;

/// Whether a rule, or one of its conditions, matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    No,
    Perhaps,
    Yes,
}

/// `Perhaps` of a match that cannot be read, or whose facts are unknown.
pub(super) fn matches(
    name: &str,
    info: &[u8],
    packet: &Packet<'_>,
    names: &Names<'_>,
    state: State,
) -> Match {
    let found = match name {
        "comment" => Some(Match::Yes),
        // XT_STATE_UNTRACKED has the bit that nftables uses, unlike that of `conntrack`.
        "state" => number(info, 0).map(|mask| sure(mask & state as u32 != 0)),
        "conntrack" => conntrack(info, packet, names, bit(state)),
        "tcp" => tcp(info, packet),
        "udp" => two_ports(info, info.get(8).copied(), packet),
        "icmp" => icmp(info, packet, true),
        "icmp6" => icmp(info, packet, false),
        "multiport" => many_ports(info, packet),
        "iprange" => ranges(info, packet),
        _ => None,
    };
    found.unwrap_or(Match::Perhaps)
}

fn sure(matches: bool) -> Match {
    if matches { Match::Yes } else { Match::No }
}

fn not(inverted: bool, found: Match) -> Match {
    match found {
        Match::Perhaps => Match::Perhaps,
        found => sure((found == Match::Yes) != inverted),
    }
}

fn number(info: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?))
}

fn short(info: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?))
}

/// The packet's state as the match `conntrack` numbers it.
fn bit(state: State) -> u16 {
    match state {
        State::Untracked => UNTRACKED,
        state => state as u16,
    }
}

/// Asks the transport header: it matches by `holds`, may match if it is not in sight, and does not if there is none.
fn upper(packet: &Packet<'_>, offset: u32, length: u32, holds: impl Fn(&[u8]) -> bool) -> Match {
    match packet.payload(Base::Transport, offset, length) {
        Bytes::Known(bytes) => sure(holds(&bytes)),
        Bytes::Unknown => Match::Perhaps,
        Bytes::Absent => Match::No,
    }
}

fn port(packet: &Packet<'_>, at: u32, (first, last): (u16, u16), inverted: bool) -> Match {
    if (first, last) == (0, u16::MAX) && !inverted {
        return Match::Yes;
    }
    let within = |bytes: &[u8]| (first..=last).contains(&u16::from_be_bytes([bytes[0], bytes[1]]));
    upper(packet, at, 2, |bytes| within(bytes) != inverted)
}

/// `struct xt_tcp` and `struct xt_udp`: first and last source port, then those of the destination; bits 0 and 1 invert them.
fn two_ports(info: &[u8], inverted: Option<u8>, packet: &Packet<'_>) -> Option<Match> {
    let (span, inverted) = (|at: usize| Some((short(info, at)?, short(info, at + 2)?)), inverted?);
    let source = port(packet, SOURCE, span(0)?, inverted & 1 != 0);
    Some(source.min(port(packet, DESTINATION, span(4)?, inverted & 2 != 0)))
}

/// Behind the ports: an option, a mask of flags, flags, and what is inverted (bit 2: the flags).
fn tcp(info: &[u8], packet: &Packet<'_>) -> Option<Match> {
    let [option, mask, flags, inverted] = *info.get(8..12)? else { return None };
    let ports = two_ports(info, Some(inverted), packet)?;
    let by_flags = if mask == 0 {
        Match::Yes
    } else {
        upper(packet, 13, 1, |b| (b[0] & mask == flags) != (inverted & 4 != 0))
    };
    let by_option = if option == 0 { Match::Yes } else { Match::Perhaps };
    Some(ports.min(by_flags).min(by_option))
}

/// `struct ipt_icmp` and `struct ip6t_icmp`: type, first and last code, whether it is inverted. Type 255 of IPv4 is any.
fn icmp(info: &[u8], packet: &Packet<'_>, any: bool) -> Option<Match> {
    let [kind, first, last, inverted] = *info.get(..4)? else { return None };
    let holds = |b: &[u8]| any && kind == 0xff || b[0] == kind && (first..=last).contains(&b[1]);
    Some(upper(packet, 0, 2, |bytes| holds(bytes) != (inverted & 1 != 0)))
}

/// `struct xt_multiport_v1`: whose ports, how many, 15 of them, 15 flags of those that begin a range, whether it is inverted.
fn many_ports(info: &[u8], packet: &Packet<'_>) -> Option<Match> {
    let (whose, count, inverted) = (*info.first()?, usize::from(*info.get(1)?).min(15), *info.get(47)? != 0);
    let mut spans = Vec::new();
    let mut at = 0;
    while at < count {
        let first = short(info, 2 + 2 * at)?;
        let begins = *info.get(32 + at)? != 0;
        at += usize::from(begins);
        spans.push((first, if begins { short(info, 2 + 2 * at)? } else { first }));
        at += 1;
    }
    let any = |end: u32| spans.iter().map(|span| port(packet, end, *span, false)).max().unwrap_or(Match::No);
    // XT_MULTIPORT_SOURCE, DESTINATION, EITHER.
    let found = match whose {
        0 => any(SOURCE),
        1 => any(DESTINATION),
        _ => any(SOURCE).max(any(DESTINATION)),
    };
    // A later fragment has no ports, and does not match whatever is asked for.
    let there = upper(packet, SOURCE, 4, |_| true);
    Some(not(inverted, found).min(there))
}

/// `struct xt_iprange_mtinfo`: first and last source, first and last destination, what is asked (1, 2) and inverted (16, 32).
fn ranges(info: &[u8], packet: &Packet<'_>) -> Option<Match> {
    let flags = *info.get(64)?;
    let (length, ends) = if packet.version() == 4 { (4, [12, 16]) } else { (16, [8, 24]) };
    let mut all = Match::Yes;
    for (nth, offset) in ends.into_iter().enumerate() {
        if flags & 1 << nth == 0 {
            continue;
        }
        let bound = |at: usize| info.get(32 * nth + at..32 * nth + at + length as usize);
        let (first, last) = (bound(0)?, bound(16)?);
        let inverted = flags & 0x10 << nth != 0;
        all = all.min(match packet.payload(Base::Network, offset, length) {
            Bytes::Known(address) => sure((first <= &address[..] && &address[..] <= last) != inverted),
            _ => Match::Perhaps,
        });
    }
    Some(all)
}

/// `struct xt_conntrack_mtinfo2` and `3`: four addresses with masks, two numbers, the protocol, four ports, then what is asked,
/// what is inverted, and the states. In the first revision the states have one byte.
fn conntrack(info: &[u8], packet: &Packet<'_>, names: &Names<'_>, bit: u16) -> Option<Match> {
    let (asked, inverted) = (short(info, 146)?, short(info, 148)?);
    let mut all = Match::Yes;
    if asked & STATE != 0 {
        let states = if info.len() > 152 { short(info, 150)? } else { u16::from(*info.get(150)?) };
        let found = match states & bit != 0 {
            true => Match::Yes,
            false if states & TRANSLATED != 0 => Match::Perhaps,
            false => Match::No,
        };
        all = all.min(not(inverted & STATE != 0, found));
    }
    if asked & PROTOCOL != 0 {
        // NFT_META_L4PROTO.
        let found = match packet.meta(16, names) {
            Bytes::Known(protocol) => sure(u16::from(protocol[0]) == short(info, 136)?),
            _ => Match::Perhaps,
        };
        all = all.min(not(inverted & PROTOCOL != 0, found));
    }
    if asked & !(STATE | PROTOCOL | ALIAS) != 0 {
        all = all.min(Match::Perhaps);
    }
    Some(all)
}
