//! Matches and targets of iptables, in the layout of their header files (include/uapi/linux/netfilter/xt_*.h). iptables-nft and
//! iptables-legacy have them in common.

use std::collections::HashMap;

use super::ends::{Field, Values};
use super::judged::{Act, Judged, RuleVerdict, When};
use super::traffic::{Conditions, ECN, FLAGS, FLAGS_KNOWN};

/// XT_CONNTRACK_STATE and XT_CONNTRACK_EXPIRES.
const STATE: u16 = 1;
const EXPIRES: u16 = 1 << 7;
/// XT_CONNTRACK_STATE_SNAT and DNAT.
const TRANSLATED: u32 = 1 << 6 | 1 << 7;
/// Options that only packets with SYN have: maximum segment size, window scale, selective acknowledgements permitted.
const OPTIONS_OF_SYN: [u8; 3] = [2, 3, 4];

/// True of a TCP option that no carried packet has.
pub(super) fn only_with_syn(option: u8) -> bool {
    OPTIONS_OF_SYN.contains(&option)
}

fn number(info: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?))
}

fn short(info: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?))
}

/// State that rules have in common with others.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// How many rules use the table of hashlimit of that name.
    hashlimits: HashMap<Vec<u8>, usize>,
    /// A rule adds to ipsets or removes from them.
    fill_ipsets: bool,
}

impl Neighbours {
    pub(super) fn add_match(&mut self, name: &str, info: &[u8]) {
        if name == "hashlimit" {
            *self.hashlimits.entry(text(info)).or_default() += 1;
        }
    }

    pub(super) fn add_target(&mut self, name: &str) {
        self.fill_ipsets |= name == "SET";
    }

    /// Whether what a match finds depends on packets that other rules meet.
    fn share(&self, name: &str, info: &[u8]) -> bool {
        match name {
            "hashlimit" => self.hashlimits.get(&text(info)).is_none_or(|rules| *rules > 1),
            "set" => self.fill_ipsets,
            "recent" | "rateest" | "quota2" => true,
            _ => false,
        }
    }
}

/// Every layout of hashlimit begins with its name, which ends with zero.
fn text(info: &[u8]) -> Vec<u8> {
    info.iter().copied().take_while(|byte| *byte != 0).collect()
}

/// A match that keeps nothing from one packet to the next, as far as weir can read it.
fn is_stateless(name: &str) -> bool {
    !matches!(
        name,
        "limit" | "hashlimit" | "rateest" | "quota" | "quota2" | "recent" | "set" | "statistic" | "connlimit"
    )
}

/// True of a target that writes addresses or ports without connection tracking.
pub(super) fn rewrites_ends(target: &str) -> bool {
    matches!(target, "DNPT" | "SNPT")
}

/// Adds a match to a rule.
pub(super) fn matched(
    judged: &mut Judged,
    name: &str,
    info: &[u8],
    conditions: Conditions,
    neighbours: &Neighbours,
) {
    match name {
        "quota" | "quota2" => judged.records("its quota"),
        "recent" => judged.records("its list of addresses"),
        "nfacct" => judged.records("its accounting object"),
        _ => {}
    }
    let when = read(name, info, conditions);
    judged.counts |= when.is_none() || !is_stateless(name);
    judged.is_shared |= neighbours.share(name, info);
    narrow(judged, name, info, conditions);
    let when = when.unwrap_or_else(|| When::varies(format!("the match {name}, which weir cannot read")));
    judged.when = std::mem::replace(&mut judged.when, When::Never).and(when);
}

/// Takes in the addresses and ports that a match asks for.
fn narrow(judged: &mut Judged, name: &str, info: &[u8], conditions: Conditions) {
    let found = match name {
        "tcp" => info.get(11).and_then(|inverted| two_ports(info, *inverted)),
        "udp" => info.get(8).and_then(|inverted| two_ports(info, *inverted)),
        "multiport" => many_ports(info),
        "iprange" => ranges(info, conditions.traffic.ipv6),
        _ => None,
    };
    for (field, values) in found.unwrap_or_default() {
        judged.narrow(field, &values);
    }
}

fn or_not(values: Values, field: Field, ipv6: bool, not: bool) -> (Field, Values) {
    (field, if not { values.not(field.bits(ipv6)) } else { values })
}

/// First and last source port, then those of the destination; XT_TCP_INV_SRCPT and DSTPT are bits 0 and 1.
fn two_ports(info: &[u8], inverted: u8) -> Option<Vec<(Field, Values)>> {
    let span = |at: usize| Some(Values::of([(short(info, at)?.into(), short(info, at + 2)?.into())]));
    Some(vec![
        or_not(span(0)?, Field::SourcePort, false, inverted & 1 != 0),
        or_not(span(4)?, Field::DestinationPort, false, inverted & 2 != 0),
    ])
}

/// struct xt_multiport_v1: whose ports, how many, 15 of them, 15 flags of those that begin a range, what is inverted.
fn many_ports(info: &[u8]) -> Option<Vec<(Field, Values)>> {
    // XT_MULTIPORT_SOURCE and DESTINATION; either of them is no condition on one end.
    let field = match info.first()? {
        0 => Field::SourcePort,
        1 => Field::DestinationPort,
        _ => return None,
    };
    let (count, inverted) = (usize::from(*info.get(1)?), *info.get(47)? != 0);
    let mut spans = Vec::new();
    let mut at = 0;
    while at < count.min(15) {
        let first = short(info, 2 + 2 * at)?;
        let begins = *info.get(32 + at)? != 0;
        at += usize::from(begins);
        spans.push((first.into(), if begins { short(info, 2 + 2 * at)? } else { first }.into()));
        at += 1;
    }
    Some(vec![or_not(Values::of(spans), field, false, inverted)])
}

/// struct xt_iprange_mtinfo: first and last source, first and last destination, and what is asked (1, 2) or inverted (0x10, 0x20).
fn ranges(info: &[u8], ipv6: bool) -> Option<Vec<(Field, Values)>> {
    let flags = *info.get(64)?;
    let address = |at: usize| {
        let bytes = info.get(at..at + if ipv6 { 16 } else { 4 })?;
        Some(bytes.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte)))
    };
    let mut found = Vec::new();
    for (asked, inverted, at, field) in
        [(1, 0x10, 0, Field::SourceAddress), (2, 0x20, 32, Field::DestinationAddress)]
    {
        if flags & asked != 0 {
            let span = Values::of([(address(at)?, address(at + 16)?)]);
            found.push(or_not(span, field, ipv6, flags & inverted != 0));
        }
    }
    Some(found)
}

/// `None` if it cannot be read.
fn read(name: &str, info: &[u8], conditions: Conditions) -> Option<When> {
    let udp = conditions.traffic.udp;
    Some(match name {
        "comment" | "nfacct" => When::Always,
        "tcp" if !udp => tcp(info)?,
        "udp" if udp => ports(info, *info.get(8)?)?,
        // Other protocols, fragments and extension headers are not carried.
        "tcp" | "udp" | "icmp" | "icmp6" | "sctp" | "dccp" | "esp" | "ah" | "ipcomp" | "frag" => When::Never,
        "conntrack" => conntrack(info, conditions)?,
        "state" => When::of(number(info, 0)? & conditions.state() != 0),
        // PACKET_HOST is 0: others are not carried.
        "pkttype" => When::of((number(info, 0)? == 0) != (number(info, 4)? != 0)),
        // Without the option it is the value of "invert".
        "tcpmss" => When::of(*info.get(4)? != 0),
        "mark" if conditions.mark_varies => When::varies("the packet's mark"),
        // struct xt_tos_match_info begins with the mask.
        "tos" if info.first()? & ECN != 0 => When::varies("the ECN bits"),
        "mark" | "tos" | "dscp" | "multiport" | "iprange" | "addrtype" | "connmark" | "connlabel" | "mac"
        | "physdev" | "policy" | "realm" | "devgroup" | "helper" | "rpfilter" | "socket" | "cluster"
        | "ipvs" | "osf" | "hbh" | "dst" | "rt" | "mh" | "ipv6header" | "eui64" | "srh" => When::Constant,
        "limit" | "hashlimit" | "rateest" => When::varies("a rate limit"),
        "quota" | "quota2" => When::varies("a quota"),
        "connlimit" => When::varies("the number of connections"),
        "connbytes" => When::varies("the packets or bytes of a connection"),
        "length" => When::varies("the packet's length"),
        "ttl" => When::varies("the TTL"),
        "hl" => When::varies("the hop limit"),
        "ecn" => When::varies("the ECN bits"),
        "statistic" => When::varies("chance or a count"),
        "time" => When::varies("the time"),
        "recent" => When::varies("a list that packets fill"),
        "set" => When::varies("an ipset, whose changes weir is not notified of"),
        "string" | "u32" | "bpf" => When::varies("data of the packet"),
        "owner" | "cgroup" => When::varies("the owner of a socket"),
        "cpu" => When::varies("the CPU"),
        _ => return None,
    })
}

/// struct xt_tcp: ports, option, mask and value of the flags, what is inverted.
fn tcp(info: &[u8]) -> Option<When> {
    const NOT_FLAGS: u8 = 4;
    let [option, mask, value, inverted] = *info.get(8..12)? else { return None };
    let flags = if FLAGS_KNOWN & mask & (FLAGS ^ value) != 0 || value & !mask != 0 {
        When::Never
    } else if mask & !FLAGS_KNOWN == 0 {
        When::Always
    } else {
        When::varies("TCP flags")
    };
    let flags = if inverted & NOT_FLAGS != 0 { flags.not() } else { flags };
    let options = match option {
        0 => When::Always,
        // XT_TCP_INV_OPTION.
        option if only_with_syn(option) => When::of(inverted & 8 != 0),
        _ => When::varies("TCP options"),
    };
    Some(ports(info, inverted)?.and(flags).and(options))
}

/// Ports at the beginning, and the flags XT_TCP_INV_SRCPT and DSTPT, which are those of UDP, too.
fn ports(info: &[u8], inverted: u8) -> Option<When> {
    let any = |at: usize| Some(short(info, at)? == 0 && short(info, at + 2)? == u16::MAX);
    let all = any(0)? && any(4)? && inverted & 3 == 0;
    Some(if all { When::Always } else { When::Constant })
}

/// struct xt_conntrack_mtinfo1 to 3: at 146 what it asks for, what is inverted, and the mask of states (one byte of the first).
fn conntrack(info: &[u8], conditions: Conditions) -> Option<When> {
    let (asked, inverted) = (short(info, 146)?, short(info, 148)?);
    let states = if info.len() <= 152 { u32::from(*info.get(150)?) } else { short(info, 150)?.into() };
    let mut when = When::Always;
    if asked & STATE != 0 {
        let state = if states & conditions.state() != 0 {
            When::Always
        } else if conditions.tracked && states & TRANSLATED != 0 {
            When::Constant
        } else {
            When::Never
        };
        when = if inverted & STATE != 0 { state.not() } else { state };
    }
    if asked & EXPIRES != 0 {
        when = when.and(When::varies("the time a connection has left"));
    }
    if asked & !(STATE | EXPIRES) != 0 {
        // Without a connection nothing but its state is asked (conntrack_mt).
        when = when.and(if conditions.tracked { When::Constant } else { When::Never });
    }
    Some(when)
}

/// True of a target that sets the mark of packets.
pub(super) fn sets_mark(name: &str, revision: u32, info: &[u8]) -> bool {
    let mut judged = Judged::default();
    target(&mut judged, name, revision, info);
    judged.acts.contains(&Act::Marks)
}

/// Adds a target to a rule.
pub(super) fn target(judged: &mut Judged, name: &str, revision: u32, info: &[u8]) {
    match name {
        "REJECT" => judged.verdicts.push(RuleVerdict::Drop),
        "NFQUEUE" | "QUEUE" => judged.verdicts.push(RuleVerdict::Queue),
        "LOG" | "NFLOG" | "ULOG" | "AUDIT" | "TRACE" => judged.records("its log"),
        "ACCOUNT" | "RATEEST" | "IDLETIMER" | "LED" => judged.records(format!("its target {name}")),
        "SET" => judged.records("its ipset"),
        "TEE" => {
            judged.records("its copy");
            judged.acts.push(Act::Alters);
        }
        "MARK" | "HMARK" => judged.acts.push(Act::Marks),
        // struct xt_connmark_tginfo1 has its mode behind three numbers, the later one also behind two bytes for a shift.
        "CONNMARK" => match info.get(if revision < 2 { 12 } else { 14 }) {
            // XT_CONNMARK_SET, SAVE, RESTORE.
            Some(0) => judged.acts.push(Act::Alters),
            Some(1) => judged.records("its connection mark"),
            Some(2) => judged.acts.push(Act::Marks),
            _ => unreadable(judged, name),
        },
        "TCPOPTSTRIP" if strips_only_with_syn(info) => {}
        "TCPOPTSTRIP" => judged.acts.push(Act::Rewrites("it removes TCP options from each packet".into())),
        "ECN" => judged.acts.push(Act::Rewrites("it clears the ECN bits of each packet".into())),
        "CLASSIFY" | "TOS" | "DSCP" | "TTL" | "HL" | "SECMARK" | "CONNSECMARK" | "CT" | "NOTRACK"
        | "DNPT" | "SNPT" => judged.acts.push(Act::Alters),
        // They concern segments with SYN, checksums that hardware fills in, and the kernel's own flow table.
        "TCPMSS" | "CHECKSUM" | "FLOWOFFLOAD" => {}
        "SNAT" | "DNAT" | "MASQUERADE" | "REDIRECT" | "NETMAP" | "TPROXY" | "SYNPROXY" => {
            judged.acts.push(Act::Alters);
            judged.verdicts.push(RuleVerdict::Accept);
        }
        _ => unreadable(judged, name),
    }
}

fn unreadable(judged: &mut Judged, name: &str) {
    judged.verdicts.push(RuleVerdict::Unreadable(format!("the target {name}")));
}

/// struct xt_tcpoptstrip_target_info: a bit for each option.
fn strips_only_with_syn(info: &[u8]) -> bool {
    let words = info.chunks_exact(4).filter_map(|word| number(word, 0));
    let mut options = words
        .enumerate()
        .flat_map(|(at, word)| (0..32).filter(move |b| word >> b & 1 != 0).map(move |b| at * 32 + b));
    info.len() >= 32 && options.all(|option| u8::try_from(option).is_ok_and(only_with_syn))
}
