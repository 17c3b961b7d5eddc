//! The parts of a host that a table of `weir nat` depends on: rules that translate sources, idle times by rule, and packets that rules refuse.

use std::collections::BTreeMap;

use weir_netlink::iptables;
use weir_netlink::nftables::nat::{self, Choice, Nat, Ports, Translation};
use weir_netlink::nftables::{self, CtTimeout, Expression, Tables};
use weir_sys::{ProcRoot, Result};

use super::listing::Lister;
use super::{legacy, refused};
use crate::evidence::{Namespace, NatHost, NatRule, NatTable, Rule, TimeoutRule};

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

/// Reads the calling thread's namespace, whose other evidence is `inside`.
pub(crate) fn read(root: &ProcRoot, inside: &Namespace, table: &NatTable) -> Result<NatHost> {
    let mut host = NatHost::default();
    let tables = nftables::read(root)?.unwrap_or_default();
    let objects = nftables::ct_timeouts(root)?;
    let lister = Lister::new(&tables);
    for place in 0..tables.rules.len() {
        host.rules.extend(translation(&tables, &lister, place));
        host.timeouts.extend(timeouts(&tables, &lister, place, &objects));
    }
    for old in iptables::read(root)? {
        add_legacy(&old, &mut host);
    }
    host.rules.truncate(RULES);
    host.timeouts.truncate(RULES);
    if !host.rules.is_empty() {
        refused::ask(&tables, inside, table, &mut host);
    }
    Ok(host)
}

/// The rule at that place, if it translates sources.
fn translation(tables: &Tables, lister: &Lister<'_>, place: usize) -> Option<NatRule> {
    let expressions = &tables.rules[place].expressions;
    let Some(Nat::Source(to)) = nat::of(expressions) else { return None };
    let choice = Choice::of(expressions)?;
    let mut rule = lister.rule(place);
    rule.text = told(&rule.text, &to, choice);
    Some(of_rule(rule, &to, choice))
}

fn of_rule(rule: Rule, to: &Translation, choice: Choice) -> NatRule {
    let ports = match &to.ports {
        Ports::Range(range) => Some((*range.start(), *range.end())),
        Ports::Kernel | Ports::Mapped => None,
    };
    NatRule {
        rule,
        addresses: to.addresses.map(|(first, last)| (first.ip(), last.ip())),
        ports,
        random: choice.random || choice.fully_random,
        persistent: choice.persistent,
    }
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

/// The rule at that place, if it gives connections idle times of their own.
fn timeouts(
    tables: &Tables,
    lister: &Lister<'_>,
    place: usize,
    objects: &[CtTimeout],
) -> Option<TimeoutRule> {
    let of = &tables.rules[place];
    let found = of.expressions.iter().find_map(|expression| match expression {
        Expression::CtTimeout(name) => Some(name.clone()),
        Expression::Target { name, info, .. } if name == "CT" => policy(info),
        _ => None,
    });
    let object = found?;
    let same = |o: &&CtTimeout| o.family == of.family && o.table == of.table && o.name == object;
    let known = objects.iter().find(same);
    Some(TimeoutRule {
        rule: lister.rule(place),
        protocol: known.map_or(0, |o| o.protocol),
        seconds: known.map(times).unwrap_or_default(),
        object,
    })
}

/// The name of the policy in the parameters of the target CT.
fn policy(info: &[u8]) -> Option<String> {
    let name: Vec<u8> = info.get(POLICY)?.iter().copied().take_while(|b| *b != 0).collect();
    (!name.is_empty()).then(|| String::from_utf8_lossy(&name).into_owned())
}

fn times(object: &CtTimeout) -> BTreeMap<String, u64> {
    let names: &[&str] = match object.protocol {
        1 => &ICMP_TIMES,
        6 => &TCP_TIMES,
        17 => &UDP_TIMES,
        _ => &[],
    };
    let name = |kind: u16| names.get(usize::from(kind).checked_sub(1)?).filter(|name| !name.is_empty());
    let named = object.seconds.iter().filter_map(|(kind, s)| Some((name(*kind)?.to_string(), u64::from(*s))));
    named.collect()
}

/// Adds the rules of a table of the old iptables.
fn add_legacy(table: &iptables::Table, host: &mut NatHost) {
    let family = match table.family {
        iptables::Family::Ip => "ip",
        iptables::Family::Ip6 => "ip6",
    };
    for chain in &table.chains {
        for (at, old) in chain.rules.iter().enumerate() {
            let iptables::Target::Named(name) = &old.target else { continue };
            let rule = || legacy::evidence(family, &table.name, &chain.name, at as u64 + 1, old);
            if name == "CT"
                && let Some(object) = policy(&old.parameters)
            {
                host.timeouts.push(TimeoutRule {
                    rule: rule(),
                    object,
                    protocol: 0,
                    seconds: BTreeMap::new(),
                });
            }
            let to = nat::of_target(name, old.revision, &old.parameters);
            let choice = Choice::of_target(name, old.revision, &old.parameters);
            if let (Some(Nat::Source(to)), Some(choice)) = (to, choice) {
                host.rules.push(of_rule(rule(), &to, choice));
            }
        }
    }
}
