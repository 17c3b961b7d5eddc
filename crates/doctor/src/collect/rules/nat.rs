//! The parts of a host that a table of `weir nat` depends on: rules that translate sources, idle times by rule, and packets that rules refuse.

use std::collections::BTreeMap;

use weir_netlink::conntrack::{Conntrack, TimeoutPolicy};
use weir_netlink::iptables;
use weir_netlink::nftables::nat::{self, Choice, Nat, Ports, Translation};
use weir_netlink::nftables::{self, Base, Comparison, CtTimeout, Expression, Family};
use weir_sys::{ProcRoot, Result};
use weir_text::order;

use super::listing::Lister;
use super::old::AllTables;
use super::refused;
use crate::evidence::{Backend, Namespace, NatHost, NatRule, NatTable, Rule, TimeoutRule};

/// Rules of each kind that are kept.
const RULES: usize = 100;
/// `struct xt_ct_target_info_v1`: the name of the policy of idle times, 32 bytes.
const POLICY: std::ops::Range<usize> = 28..60;

/// Names of CTA_TIMEOUT_* attributes from 1 on (include/uapi/linux/netfilter/nfnetlink_cttimeout.h), as settings call them. Those
/// without a setting of their own are empty.
const TCP_TIMES: [&str; 11] = [
    "tcp_timeout_syn_sent",
    "tcp_timeout_syn_recv",
    "tcp_timeout_established",
    "tcp_timeout_fin_wait",
    "tcp_timeout_close_wait",
    "tcp_timeout_last_ack",
    "tcp_timeout_time_wait",
    "tcp_timeout_close",
    "",
    "tcp_timeout_max_retrans",
    "tcp_timeout_unacknowledged",
];
const UDP_TIMES: [&str; 2] = ["udp_timeout", "udp_timeout_stream"];
const ICMP_TIMES: [&str; 1] = ["icmp_timeout"];
const ICMP6_TIMES: [&str; 1] = ["icmpv6_timeout"];

/// Reads the calling thread's namespace, whose other evidence is `inside`.
pub(crate) fn read(root: &ProcRoot, inside: &Namespace, table: &NatTable) -> Result<NatHost> {
    let mut host = NatHost::default();
    let all = AllTables::new(nftables::read(root)?.unwrap_or_default(), iptables::read(root)?);
    let objects = nftables::ct_timeouts(root)?;
    // Without a rule that names one, asking would load a module.
    let named = all.tables.rules.iter().any(|rule| policy_of(rule).is_some());
    let policies = if named { Conntrack::open()?.timeout_policies()? } else { Vec::new() };
    let lister = Lister::new(&all.tables);
    let mut places = Vec::new();
    for place in 0..all.tables.rules.len() {
        if let Some(rule) = translation(&all, &lister, place).filter(|_| places.len() < RULES) {
            host.rules.push(rule);
            places.push(place);
        }
        host.timeouts.extend(timeouts(&all, &lister, place, &objects, &policies));
    }
    host.timeouts.truncate(RULES);
    if !host.rules.is_empty() || table.is_untranslated() {
        refused::ask(&all, &lister, inside, table, &places, &mut host);
    }
    Ok(host)
}

/// The rule at that place, if it translates sources.
fn translation(all: &AllTables, lister: &Lister<'_>, place: usize) -> Option<NatRule> {
    let expressions = &all.tables.rules[place].expressions;
    let Some(Nat::Source(to)) = nat::of(expressions) else { return None };
    let choice = Choice::of(expressions)?;
    let mut rule = all.rule(lister, place);
    rule.text = match rule.backend {
        Backend::Nft => told(&rule.text, &to, choice),
        _ => told_by_iptables(&rule.text, &to, choice),
    };
    let ports = match &to.ports {
        Ports::Range(range) => Some((*range.start(), *range.end())),
        Ports::Kernel | Ports::Mapped => None,
    };
    Some(NatRule {
        rule,
        addresses: to.addresses.map(|(first, last)| (first.ip(), last.ip())),
        ports,
        random: choice.random || choice.fully_random,
        persistent: choice.persistent,
        protocols: NatRule::every_protocol(),
    })
}

/// The rule's text: its conditions, and the translation in the words of nft.
fn told(text: &str, to: &Translation, choice: Choice) -> String {
    let conditions = text.trim_end_matches("nat").trim_end_matches("masq").trim_end();
    let target = match to.addresses {
        None => " masquerade".to_owned(),
        Some((first, last)) => {
            let (first, last) = (first.ip(), last.ip());
            if first == last { format!(" snat to {first}") } else { format!(" snat to {first}-{last}") }
        }
    };
    let ports = match &to.ports {
        Ports::Range(range) => format!(" to :{}-{}", range.start(), range.end()),
        Ports::Kernel | Ports::Mapped => String::new(),
    };
    let flags = [
        (choice.random, " random"),
        (choice.fully_random, " fully-random"),
        (choice.persistent, " persistent"),
    ];
    let flags: String = flags.iter().filter(|(has, _)| *has).map(|(_, word)| *word).collect();
    format!("{conditions}{target}{ports}{flags}").trim_start().to_owned()
}

/// The rule's text with the options of its target, as `iptables -S` writes them.
fn told_by_iptables(text: &str, to: &Translation, choice: Choice) -> String {
    let ports = match &to.ports {
        Ports::Range(range) => format!("{}-{}", range.start(), range.end()),
        Ports::Kernel | Ports::Mapped => String::new(),
    };
    let target = match to.addresses {
        None if ports.is_empty() => String::new(),
        None => format!(" --to-ports {ports}"),
        Some((first, last)) => {
            let (first, last) = (first.ip(), last.ip());
            let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
            let range = if first.is_ipv6() && !ports.is_empty() { format!("[{range}]") } else { range };
            let colon = if ports.is_empty() { "" } else { ":" };
            format!(" --to-source {range}{colon}{ports}")
        }
    };
    let flags = [
        (choice.random, " --random"),
        (choice.fully_random, " --random-fully"),
        (choice.persistent, " --persistent"),
    ];
    let flags: String = flags.iter().filter(|(has, _)| *has).map(|(_, word)| *word).collect();
    format!("{text}{target}{flags}")
}

/// The rule at that place, if it gives connections idle times of their own.
fn timeouts(
    all: &AllTables,
    lister: &Lister<'_>,
    place: usize,
    objects: &[CtTimeout],
    policies: &[TimeoutPolicy],
) -> Option<TimeoutRule> {
    let of = &all.tables.rules[place];
    let object = of.expressions.iter().find_map(|expression| match expression {
        Expression::CtTimeout(name) => Some(name),
        _ => None,
    });
    let Some(object) = object else {
        return policy_of(of).map(|shown| by_policy(all.rule(lister, place), of, &shown, policies));
    };
    let same = |o: &&CtTimeout| o.family == of.family && o.table == of.table && o.name == *object;
    let known = objects.iter().find(same);
    Some(TimeoutRule {
        rule: lister.rule(place),
        protocol: known.map_or(0, |o| o.protocol),
        seconds: known.map(|o| times(o.protocol, &o.seconds)).unwrap_or_default(),
        object: object.clone(),
    })
}

/// The policy of a rule with the target CT, by the part of its name that the kernel shows.
fn policy_of(rule: &nftables::Rule) -> Option<String> {
    rule.expressions.iter().find_map(|expression| match expression {
        Expression::Target { name, info, .. } if name == "CT" => policy(info),
        _ => None,
    })
}

/// Several policies may begin with the part of the name that is shown: then only times that they agree in are known.
fn by_policy(shown_as: Rule, rule: &nftables::Rule, shown: &str, policies: &[TimeoutPolicy]) -> TimeoutRule {
    let protocol = protocol(&rule.expressions);
    let fits = |policy: &&TimeoutPolicy| {
        (policy.ipv6 == (rule.family == Family::Ip6))
            && policy.is_shown_as(shown)
            // A rule may use a policy of its own protocol only (net/netfilter/xt_CT.c, xt_ct_set_timeout).
            && protocol.is_none_or(|protocol| protocol == policy.protocol)
    };
    let candidates: Vec<&TimeoutPolicy> = policies.iter().filter(fits).collect();
    let names: Vec<&str> = candidates.iter().map(|policy| policy.name.as_str()).collect();
    let mut seconds = candidates.first().map(|p| times(p.protocol, &p.seconds)).unwrap_or_default();
    for policy in candidates.iter().skip(1) {
        let others = times(policy.protocol, &policy.seconds);
        seconds.retain(|name, value| others.get(name) == Some(value));
    }
    TimeoutRule {
        rule: shown_as,
        protocol: protocol.or(candidates.first().map(|p| p.protocol)).unwrap_or(0),
        object: if names.is_empty() { shown.to_owned() } else { names.join(" or ") },
        seconds,
    }
}

/// The protocol that a rule asks for.
fn protocol(expressions: &[Expression]) -> Option<u8> {
    expressions.windows(2).find_map(|pair| match pair {
        // NFT_META_L4PROTO, or the field of IPv4.
        [
            Expression::Meta { key: 16, .. }
            | Expression::Payload { base: Base::Network, offset: 9, length: 1, .. },
            Expression::Compare { with: Comparison::Equal, value, .. },
        ] => value.first().copied(),
        _ => None,
    })
}

/// The name of the policy in the parameters of the target CT.
fn policy(info: &[u8]) -> Option<String> {
    let name: Vec<u8> = info.get(POLICY)?.iter().copied().take_while(|b| *b != 0).collect();
    (!name.is_empty()).then(|| String::from_utf8_lossy(&name).into_owned())
}

fn times(protocol: u8, seconds: &[(u16, u32)]) -> BTreeMap<String, u64> {
    let names: &[&str] = match protocol {
        1 => &ICMP_TIMES,
        6 => &TCP_TIMES,
        17 => &UDP_TIMES,
        58 => &ICMP6_TIMES,
        _ => &[],
    };
    let name = |kind: u16| names.get(usize::from(kind).checked_sub(1)?).filter(|name| !name.is_empty());
    order::map(seconds.iter().filter_map(|(kind, s)| Some((name(*kind)?.to_string(), u64::from(*s)))))
}
