//! Tables of nft: rendered as text, loaded in one transaction, read back as JSON.

use std::fmt::Write;
use std::net::IpAddr;

use serde_json::Value;
use weir_netlink::nftables;

use crate::options::{Allocation, MssClamp};
use crate::{Error, Family, Journal, Place, command};

/// The program.
pub(crate) const PROGRAM: &str = "nft";

/// The chain with the rules that translate the source.
pub(crate) const SOURCE_CHAIN: &str = "srcnat";

/// A table of one family with our own chains.
pub(crate) struct Table {
    family: &'static str,
    name: String,
    sets: Vec<Set>,
    chains: Vec<Chain>,
}

/// A set of prefixes.
struct Set {
    name: &'static str,
    elements: Vec<String>,
}

struct Chain {
    name: &'static str,
    /// `nat hook postrouting priority srcnat`; none for a chain that others jump to.
    hook: Option<&'static str>,
    rules: Vec<String>,
}

impl Table {
    pub(crate) fn new(place: &Place) -> Self {
        Table::named(place, &name(place))
    }

    /// A table beside that one.
    pub(crate) fn named(place: &Place, name: &str) -> Self {
        Table { family: family(place), name: name.to_owned(), sets: Vec::new(), chains: Vec::new() }
    }

    /// Adds a set of prefixes, at least one.
    pub(crate) fn interval_set(mut self, name: &'static str, elements: Vec<String>) -> Self {
        self.sets.push(Set { name, elements });
        self
    }

    /// Adds a chain at a hook, written as nft does: `nat hook postrouting priority srcnat`.
    pub(crate) fn base(mut self, name: &'static str, hook: &'static str, rules: Vec<String>) -> Self {
        self.chains.push(Chain { name, hook: Some(hook), rules });
        self
    }

    /// Adds a chain to jump to; before those that do.
    pub(crate) fn chain(mut self, name: &'static str, rules: Vec<String>) -> Self {
        self.chains.push(Chain { name, hook: None, rules });
        self
    }

    /// The rules of a source translation and what goes with them.
    pub(crate) fn source_nat(
        place: &Place,
        source: Source,
        allocation: &Allocation,
        clamp: MssClamp,
    ) -> Self {
        let rules = source_rules(&outgoing(place), source, allocation);
        Table::new(place).base(SOURCE_CHAIN, "nat hook postrouting priority srcnat", rules).mss(clamp, place)
    }

    /// Adds the clamp of the maximum segment size, for both ways.
    pub(crate) fn mss(self, clamp: MssClamp, place: &Place) -> Self {
        if !clamp.is_on() {
            return self;
        }
        let size = match clamp {
            MssClamp::Size(size) => size.to_string(),
            MssClamp::ToPathMtu(_) => "rt mtu".to_owned(),
        };
        let (inside, outside) = (&place.inside_interface, &place.outside_interface);
        let rule = |from: &str, to: &str| {
            format!(
                "iifname \"{from}\" oifname \"{to}\" tcp flags syn / syn,rst tcp option maxseg size set {size}"
            )
        };
        self.base(
            "mss",
            "filter hook forward priority mangle",
            vec![rule(inside, outside), rule(outside, inside)],
        )
    }

    /// The script. `create` fails where the table exists.
    pub(crate) fn script(&self) -> String {
        let (family, name) = (self.family, &self.name);
        let mut text = format!("create table {family} {name}\ntable {family} {name} {{\n");
        let addresses = if family == "ip" { "ipv4_addr" } else { "ipv6_addr" };
        for set in &self.sets {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "\tset {} {{\n\t\ttype {addresses}\n\t\tflags interval", set.name);
            let _ = writeln!(text, "\t\telements = {{ {} }}\n\t}}", set.elements.join(", "));
        }
        for chain in &self.chains {
            let _ = writeln!(text, "\tchain {} {{", chain.name);
            if let Some(hook) = chain.hook {
                let _ = writeln!(text, "\t\ttype {hook}; policy accept;");
            }
            for rule in &chain.rules {
                let _ = writeln!(text, "\t\t{rule}");
            }
            text.push_str("\t}\n");
        }
        text.push_str("}\n");
        text
    }

    pub(crate) fn apply(&self, journal: &mut Journal) -> Result<(), Error> {
        journal.nft_table(self.family, &self.name, &self.script())
    }
}

/// `ip` or `ip6`, the name of the family for tables and for matches.
pub(crate) fn family(place: &Place) -> &'static str {
    match place.family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}

/// Name of the table of a variant.
pub(crate) fn name(place: &Place) -> String {
    format!("weir_{}", place.tag)
}

/// The match of what is translated: the initiator's packets that leave on the outside.
pub(crate) fn outgoing(place: &Place) -> String {
    format!("oifname \"{}\" {} saddr {}", place.outside_interface, family(place), place.initiator)
}

/// The visible source of translated packets.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// The address of the interface that they leave by.
    Masquerade,
    /// A fixed address.
    Address(IpAddr),
}

/// Rules that translate the source of what `matching` says. A port range needs a protocol that has ports, so there the
/// other protocols get a rule of their own.
pub(crate) fn source_rules(matching: &str, source: Source, allocation: &Allocation) -> Vec<String> {
    let flags: Vec<&str> = [
        (allocation.random, "random"),
        (allocation.fully_random, "fully-random"),
        (allocation.persistent, "persistent"),
    ]
    .iter()
    .filter_map(|(on, flag)| on.then_some(*flag))
    .collect();
    let flags = if flags.is_empty() { String::new() } else { format!(" {}", flags.join(",")) };
    let plain = match source {
        Source::Masquerade => "masquerade".to_owned(),
        Source::Address(address) => format!("snat to {address}"),
    };
    let mut rules = Vec::new();
    if let Some(ports) = allocation.ports {
        let to = match source {
            Source::Masquerade => format!("masquerade to :{ports}"),
            Source::Address(IpAddr::V4(address)) => format!("snat to {address}:{ports}"),
            Source::Address(IpAddr::V6(address)) => format!("snat to [{address}]:{ports}"),
        };
        rules.push(format!("{matching} meta l4proto {{ tcp, udp }} counter {to}{flags}"));
    }
    rules.push(format!("{matching} counter {plain}{flags}"));
    rules
}

/// Packets counted by the rules of a chain of ours.
pub(crate) fn counter(place: &Place, chain: &str) -> Result<u64, Error> {
    let listing = command::run(PROGRAM, &["-j", "list", "chain", family(place), &name(place), chain])?;
    let objects = objects(&listing)?;
    let expressions = objects.iter().filter_map(|o| o["rule"]["expr"].as_array()).flatten();
    Ok(expressions.filter_map(|e| e["counter"]["packets"].as_u64()).sum())
}

/// Packets counted by the rules of a chain of ours: by all but the last one, which let pass, and by the last one, which throws
/// away. Asked of the kernel itself: nft would read all sets first.
pub(crate) fn verdicts(place: &Place, chain: &str) -> Result<(u64, u64), Error> {
    let (family, table) = (family(place), name(place));
    let Some(tables) = nftables::read(&command::kernel())? else { return Ok((0, 0)) };
    let ours = |r: &&nftables::Rule| r.family.name() == family && r.table == table && r.chain == chain;
    let counts: Vec<u64> = tables.rules.iter().filter(ours).filter_map(counted).collect();
    let (last, others) = counts.split_last().map_or((0, &[][..]), |(last, others)| (*last, others));
    Ok((others.iter().sum(), last))
}

/// Packets that a rule has counted, if it counts.
fn counted(rule: &nftables::Rule) -> Option<u64> {
    rule.expressions.iter().find_map(|e| match e {
        nftables::Expression::Counter { packets, .. } => Some(*packets),
        _ => None,
    })
}

/// The objects of a listing by `nft -j`.
pub(crate) fn objects(listing: &str) -> Result<Vec<Value>, Error> {
    let unreadable = |why: String| Error::Command { command: "nft -j list".into(), output: why };
    let mut root: Value = serde_json::from_str(listing).map_err(|e| unreadable(e.to_string()))?;
    match root["nftables"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Err(unreadable("no list of objects".into())),
    }
}
