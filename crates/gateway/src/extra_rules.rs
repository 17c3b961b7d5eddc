//! Extra load of a gateway: rules that do not match, a set of prefixes that the traffic is not in, and routes that it does not
//! take. A curve is drawn over their number.
//!
//! The rules come before everything else at the forward hook, so that every packet passes all of them. This follows the 25
//! filters of RFC 2544 section 11.4, of which only the last lets the traffic through, and the rule sets of RFC 3511 section 4.7.
//! Rules and prefixes only count: other forwarded traffic of the host is not lost if it matches. Routes refuse, and lie where
//! nothing real can be: in the blocks for benchmarking (198.18.0.0/15, 2001:2::/48), outside of every network that the host knows
//! there.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_text::order;

use crate::iptables::{self, Backend};
use crate::nft::{self, Table};
use crate::{Error, Family, Journal, Place, command};

/// Extra load on the gateway, e.g. `{ rules = 1000, prefixes = 100000 }`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExtraRules {
    /// Rules, 0 to 10000, that every forwarded packet passes one after the other and that match none.
    pub rules: u32,
    /// Prefixes, 0 to 1000000, of an interval set in which every forwarded packet's source is looked up and not found.
    /// Loading a million takes nft some seconds and 0.8 GB of memory.
    pub prefixes: u32,
    /// Routes to single addresses, 0 to 100000, that the traffic does not take.
    pub routes: u32,
}

/// The back end that holds the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    /// In a table of nft.
    Nft,
    /// In a chain of iptables, which has no sets.
    Iptables(Backend),
}

const MOST_RULES: u32 = 10_000;
const MOST_PREFIXES: u32 = 1_000_000;
const MOST_ROUTES: u32 = 100_000;

const CHAIN: &str = "forward";
const SET: &str = "prefixes";
/// Before every priority that has a name (NF_IP_PRI_RAW_BEFORE_DEFRAG in linux/netfilter_ipv4.h).
const HOOK: &str = "filter hook forward priority -450";

/// The routing protocol of weir's routes, which tells them from all others; no other program has that number (linux/rtnetlink.h,
/// /etc/iproute2/rt_protos).
const PROTOCOL: u8 = 119;

impl ExtraRules {
    pub(crate) fn validate(&self, filter: Filter) -> Result<(), String> {
        for (key, value, most) in [
            ("rules", self.rules, MOST_RULES),
            ("prefixes", self.prefixes, MOST_PREFIXES),
            ("routes", self.routes, MOST_ROUTES),
        ] {
            if value > most {
                return Err(format!("{key} = {value}: valid is 0 to {most}"));
            }
        }
        if self.prefixes > 0 && filter != Filter::Nft {
            return Err("prefixes: iptables has no sets of its own; take a variant of nft".into());
        }
        Ok(())
    }

    /// Describes a variant with the extra for people.
    pub(crate) fn describe_beside(&self, variant: &str) -> String {
        [variant.to_owned()].into_iter().chain(self.describe()).collect::<Vec<_>>().join(", ")
    }

    /// Describes the extra for people; `None` if it is empty.
    pub(crate) fn describe(&self) -> Option<String> {
        let part = |n: u32, one: &str, more: &str| match n {
            0 => None,
            1 => Some(format!("1 {one}")),
            _ => Some(format!("{n} {more}")),
        };
        let parts = [
            part(self.rules, "rule", "rules"),
            part(self.prefixes, "prefix", "prefixes"),
            part(self.routes, "route", "routes"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!("with {} in addition", parts.join(" + ")))
    }

    /// Returns the programs that it needs on the gateway in addition to those of its variant.
    pub(crate) fn programs(&self, filter: Filter) -> Vec<String> {
        let nft = filter == Filter::Nft && self.rules + self.prefixes > 0;
        let needed = [(nft, nft::PROGRAM), (self.routes > 0, "ip")];
        needed.into_iter().filter(|(is, _)| *is).map(|(_, program)| program.to_owned()).collect()
    }

    /// Returns those with the programs of a variant, each once.
    pub(crate) fn programs_beside(&self, mut variant: Vec<String>, filter: Filter) -> Vec<String> {
        let more = self.programs(filter).into_iter().filter(|program| program != nft::PROGRAM);
        variant.extend(more);
        variant
    }

    /// Puts it onto the gateway. Rules and prefixes come in one transaction.
    pub(crate) fn apply(&self, filter: Filter, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        if self.rules + self.prefixes > 0 {
            match filter {
                Filter::Nft => self.table(place).apply(journal)?,
                Filter::Iptables(backend) => self.apply_iptables(backend, place, journal)?,
            }
        }
        if self.routes == 0 {
            return Ok(());
        }
        let hosts = Blocks::of(place, &networks(place.family)?).hosts(self.routes)?;
        let length = if place.family == Family::Ipv4 { 32 } else { 128 };
        let line = |host| format!("route add unreachable {host}/{length} proto {PROTOCOL}\n");
        journal.routes(place.family, PROTOCOL, &hosts.map(line).collect::<String>())
    }

    /// Counts what the kernel has of it.
    pub(crate) fn verify(&self, filter: Filter, place: &Place) -> Result<(), Error> {
        let found = match filter {
            _ if self.rules == 0 => 0,
            Filter::Nft => nft_rules(place)?.saturating_sub(u32::from(self.prefixes > 0)),
            Filter::Iptables(backend) => iptables::rules_of(backend, place.family, &chain(place))?,
        };
        same("rules", self.rules, found.into())?;
        let found = if self.prefixes == 0 { 0 } else { elements(place)? };
        same("prefixes", self.prefixes, found)?;
        let found = if self.routes == 0 { 0 } else { crate::journal::routes_of(place.family, PROTOCOL)? };
        same("routes", self.routes, found)
    }

    fn table(&self, place: &Place) -> Table {
        let ip = nft::family(place);
        let mut rules: Vec<String> =
            self.sources(place).map(|source| format!("{ip} saddr {source} counter")).collect();
        let mut table = Table::named(place, &table_name(place));
        if self.prefixes > 0 {
            table = table.interval_set(SET, prefixes(place, self.prefixes));
            rules.push(format!("{ip} saddr @{SET} counter"));
        }
        table.base(CHAIN, HOOK, rules)
    }

    fn apply_iptables(&self, backend: Backend, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        backend.probe(place.family)?;
        let program = backend.program(place.family);
        let rules = self.sources(place).map(|source| format!("-s {source}")).collect();
        let chain = chain(place);
        journal.iptables_chains(program, "filter", &[(chain.clone(), rules)])?;
        let jump = iptables::comment(place).into_iter().chain(["-j".to_owned(), chain]).collect();
        iptables::insert(journal, program, "filter", "FORWARD", &[jump])
    }

    /// Addresses that the rules ask for, each rule for one of its own.
    fn sources(&self, place: &Place) -> impl Iterator<Item = IpAddr> + use<> {
        let blocks = Blocks::of(place, &[]);
        // There is always room for so few.
        blocks.hosts(self.rules).into_iter().flatten()
    }
}

fn same(what: &str, wanted: u32, found: u64) -> Result<(), Error> {
    if u64::from(wanted) == found {
        return Ok(());
    }
    Err(Error::NotInEffect(format!("the gateway has {found} {what} of its extra, and should have {wanted}")))
}

fn table_name(place: &Place) -> String {
    format!("{}_extra", nft::name(place))
}

/// Name of the chain of iptables: at most 25 characters, of 28 that it may have (XT_EXTENSION_MAXNAMELEN).
fn chain(place: &Place) -> String {
    format!("weir_{}_extra", place.tag)
}

/// Rules in our chain. Terse listings of the whole rule set are the only ones for which nft does not read the elements of
/// sets, wherever they are.
fn nft_rules(place: &Place) -> Result<u32, Error> {
    let listing = command::run(nft::PROGRAM, &["-t", "-j", "list", "ruleset", nft::family(place)])?;
    let table = table_name(place);
    let ours = |o: &serde_json::Value| o["rule"]["table"] == *table && o["rule"]["chain"] == CHAIN;
    Ok(nft::objects(&listing)?.iter().filter(|o| ours(o)).count() as u32)
}

/// Prefixes in our set: as the kernel counts them, or where it does not, as many as nft lists.
fn elements(place: &Place) -> Result<u64, Error> {
    let table = table_name(place);
    if let Some(count) = weir_netlink::nft_set::count(place.family == Family::Ipv4, &table, SET)? {
        return Ok(count);
    }
    let words = ["list", "set", nft::family(place), &table, SET];
    // Only elements have slashes.
    Ok(command::run_long(nft::PROGRAM, &words, "")?.matches('/').count() as u64)
}

/// `count` prefixes of one length, spread evenly over what is routed on the internet, without the addresses of the run and the
/// blocks for benchmarking. No two of them touch, so that the kernel keeps as many intervals.
fn prefixes(place: &Place, count: u32) -> Vec<String> {
    let used: Vec<u128> = place.addresses().map(bits).collect();
    // As numbers of prefixes: first, one behind the last, and length.
    let (first, end, length, width) = match place.family {
        // 1.0.0.0 to 223.255.255.255 by /24.
        Family::Ipv4 => (1 << 16, 224 << 16, 24, 32),
        // 2000::/3 by /48.
        Family::Ipv6 => (0x2000 << 32, 0x4000 << 32, 48, 128),
    };
    let shift = width - length;
    let step: u128 = (end - first) / u128::from(count.max(1));
    let free = |prefix: u128| {
        let benchmarking = match place.family {
            Family::Ipv4 => prefix >> 9 == 198 << 7 | 18 >> 1,
            Family::Ipv6 => prefix == 0x2001_0002_0000,
        };
        !benchmarking && used.iter().all(|address| address >> shift != prefix)
    };
    // Forward out of what is taken; even a million leave thirteen of fourteen free, and the block of 512 is left at once.
    let mut taken_until = 0;
    let mut chosen = Vec::with_capacity(count as usize);
    for i in 0..u128::from(count) {
        let mut prefix = (first + i * step).max(taken_until);
        while !free(prefix) {
            prefix += 1;
        }
        // Not the next one: two that touch are one interval for some kernels.
        taken_until = prefix + 2;
        chosen.push(format!("{}/{length}", address(place.family, prefix << shift)));
    }
    chosen
}

/// Networks of 256 addresses (IPv6: the first 256 of each /64) in the block for benchmarking in which there is nothing.
struct Blocks {
    family: Family,
    free: Vec<u16>,
}

/// Addresses taken of each network, not the first and the last.
const PER_BLOCK: u32 = 254;

impl Blocks {
    /// All of the family but those with an address of the run or in one of these networks.
    fn of(place: &Place, networks: &[Network]) -> Blocks {
        let count: u32 = if place.family == Family::Ipv4 { 512 } else { 65_536 };
        let own: Vec<Network> = place.addresses().map(|a| Network::of(a, width(place.family))).collect();
        let family = place.family;
        let taken: BTreeSet<u32> =
            order::set(own.iter().chain(networks).filter_map(|n| n.blocks(family)).flatten());
        // 65535 is the greatest.
        let free = (0..count).filter(|block| !taken.contains(block)).map(|block| block as u16).collect();
        Blocks { family, free }
    }

    /// So many addresses, spread evenly.
    fn hosts(self, count: u32) -> Result<impl Iterator<Item = IpAddr>, Error> {
        let room = self.free.len() as u64 * u64::from(PER_BLOCK);
        if room < u64::from(count) {
            let block = if self.family == Family::Ipv4 { "198.18.0.0/15" } else { "2001:2::/48" };
            return Err(Error::Unsupported(format!(
                "extra: the host's own routes leave room for {room} addresses in {block}, and {count} are asked for"
            )));
        }
        Ok((0..u64::from(count)).map(move |i| {
            let index = i * room / u64::from(count);
            let block = self.free[(index / u64::from(PER_BLOCK)) as usize];
            let host = 1 + index % u64::from(PER_BLOCK);
            address(self.family, block_start(self.family, block.into()) + u128::from(host))
        }))
    }
}

/// The first address of a block.
fn block_start(family: Family, block: u32) -> u128 {
    match family {
        Family::Ipv4 => bits(Ipv4Addr::new(198, 18, 0, 0).into()) + (u128::from(block) << 8),
        Family::Ipv6 => bits(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0).into()) + (u128::from(block) << 64),
    }
}

/// A network as first and last address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    first: u128,
    last: u128,
}

impl Network {
    fn of(address: IpAddr, length: u32) -> Network {
        let host_bits = if address.is_ipv4() { 32 } else { 128 } - length;
        let mask = 1u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
        Network { first: bits(address) & !mask, last: bits(address) | mask }
    }

    /// The blocks that it has addresses of.
    fn blocks(&self, family: Family) -> Option<std::ops::RangeInclusive<u32>> {
        let (shift, blocks) = if family == Family::Ipv4 { (8, 512u128) } else { (64, 65_536) };
        let start = block_start(family, 0);
        let end = start + (blocks << shift) - 1;
        let (first, last) = (self.first.max(start), self.last.min(end));
        (first <= last).then(|| ((first - start) >> shift) as u32..=((last - start) >> shift) as u32)
    }
}

/// The host's routes inside the block for benchmarking; of what covers all of it, like a default route, nothing follows.
fn networks(family: Family) -> Result<Vec<Network>, Error> {
    let (version, block) = match family {
        Family::Ipv4 => ("-4", "198.18.0.0/15"),
        Family::Ipv6 => ("-6", "2001:2::/48"),
    };
    let listing = command::run("ip", &[version, "route", "show", "table", "all", "root", block])?;
    // The destination comes first, or behind a type: `local 198.18.0.1 dev ...`.
    let destination = |line: &str| line.split_whitespace().take(2).find_map(network);
    // The extra rules of another run is refused by its number.
    let ours = format!(" proto {PROTOCOL} ");
    Ok(listing.lines().filter(|line| !line.contains(&ours)).filter_map(destination).collect())
}

/// `198.18.0.0/24`, or a single address.
fn network(word: &str) -> Option<Network> {
    let (address, length) = match word.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
        None => (word, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    Some(Network::of(address, length.unwrap_or(width).min(width)))
}

fn width(family: Family) -> u32 {
    if family == Family::Ipv4 { 32 } else { 128 }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => address.into(),
    }
}

fn address(family: Family, bits: u128) -> IpAddr {
    match family {
        // Addresses of IPv4 are made of 32 bits above.
        Family::Ipv4 => Ipv4Addr::from(bits as u32).into(),
        Family::Ipv6 => Ipv6Addr::from(bits).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::{place_v4, place_v6};

    const NFT: Filter = Filter::Nft;

    fn contains(prefix: &str, address: IpAddr) -> bool {
        let network = network(prefix).unwrap();
        (network.first..=network.last).contains(&bits(address))
    }

    #[test]
    fn sizes_have_bounds() {
        let all = ExtraRules { rules: 10_000, prefixes: 1_000_000, routes: 100_000 };
        assert_eq!(all.validate(NFT), Ok(()));
        for (more, key) in [
            (ExtraRules { rules: 10_001, ..all }, "rules = 10001: valid is 0 to 10000"),
            (ExtraRules { prefixes: 1_000_001, ..all }, "prefixes = 1000001"),
            (ExtraRules { routes: 100_001, ..all }, "routes = 100001"),
        ] {
            assert!(more.validate(NFT).unwrap_err().starts_with(key));
        }
        let iptables = Filter::Iptables(Backend::NfTables);
        assert!(all.validate(iptables).unwrap_err().starts_with("prefixes"));
        assert_eq!(ExtraRules { prefixes: 0, ..all }.validate(iptables), Ok(()));
    }

    #[test]
    fn it_says_what_it_is() {
        assert_eq!(ExtraRules::default().describe(), None);
        let extra = ExtraRules { rules: 1000, prefixes: 1, routes: 0 };
        assert_eq!(extra.describe().unwrap(), "with 1000 rules + 1 prefix in addition");
        assert_eq!(extra.programs(NFT), ["nft"]);
        assert_eq!(ExtraRules { routes: 5, ..ExtraRules::default() }.programs(NFT), ["ip"]);
    }

    /// Every prefix is there once, touches no other, and has no address of the run.
    #[test]
    fn prefixes_are_apart_and_hold_no_address_of_the_run() {
        // An initiator whose own network would be among them: the first of all.
        let near = Place { initiator: "1.0.0.9".parse().unwrap(), ..place_v4() };
        for (place, count) in [
            (place_v4(), 1),
            (near.clone(), 1),
            (near, 1_000_000),
            (place_v4(), 1_000_000),
            (place_v6(), 1_000_000),
        ] {
            let chosen = prefixes(&place, count);
            assert_eq!(chosen.len(), count as usize);
            let networks: Vec<Network> = chosen.iter().map(|p| network(p).unwrap()).collect();
            assert!(networks.windows(2).all(|w| w[0].last + 1 < w[1].first), "{:?}", place.family);
            let block = if place.family == Family::Ipv4 { "198.18.0.0/15" } else { "2001:2::/48" };
            let block = network(block).unwrap();
            assert!(networks.iter().all(|n| n.last < block.first || n.first > block.last));
            for address in place.addresses() {
                assert!(!networks.iter().any(|n| (n.first..=n.last).contains(&bits(address))), "{address}");
            }
        }
        assert_eq!(prefixes(&place_v4(), 2), ["1.0.0.0/24", "112.128.0.0/24"]);
    }

    #[test]
    fn hosts_are_in_the_benchmarking_block_and_outside_of_known_networks() {
        let known = ["198.18.0.0/24", "198.19.128.0/17", "198.18.77.3"].map(|n| network(n).unwrap());
        let hosts: Vec<IpAddr> = Blocks::of(&place_v4(), &known).hosts(90_000).unwrap().collect();
        let distinct: BTreeSet<&IpAddr> = hosts.iter().collect();
        assert_eq!(distinct.len(), 90_000);
        assert!(hosts.iter().all(|h| contains("198.18.0.0/15", *h)));
        // The run's own networks are 198.18.0, 198.18.1 and 198.18.2.
        for taken in ["198.18.0.0/24", "198.18.1.0/24", "198.18.2.0/24", "198.18.77.0/24", "198.19.128.0/17"]
        {
            assert!(!hosts.iter().any(|h| contains(taken, *h)), "{taken}");
        }
        // 512 networks without 128 + 4, of 254 addresses each.
        let room = Blocks::of(&place_v4(), &known).hosts(380 * 254).unwrap().count();
        assert_eq!(room, 380 * 254);
        let error = Blocks::of(&place_v4(), &known).hosts(380 * 254 + 1).err().unwrap();
        assert!(error.to_string().contains("room for 96520 addresses"), "{error}");
        let hosts: Vec<IpAddr> = Blocks::of(&place_v6(), &[]).hosts(100_000).unwrap().collect();
        assert!(hosts.iter().all(|h| contains("2001:2::/48", *h) && !contains("2001:2::/64", *h)));
        assert_eq!(hosts.iter().collect::<BTreeSet<_>>().len(), 100_000);
    }

    #[test]
    fn the_table() {
        let extra = ExtraRules { rules: 2, prefixes: 1, routes: 0 };
        assert_eq!(
            extra.table(&place_v4()).script(),
            "create table ip weir_t1_extra\n\
             table ip weir_t1_extra {\n\
             \tset prefixes {\n\
             \t\ttype ipv4_addr\n\
             \t\tflags interval\n\
             \t\telements = { 1.0.0.0/24 }\n\
             \t}\n\
             \tchain forward {\n\
             \t\ttype filter hook forward priority -450; policy accept;\n\
             \t\tip saddr 198.18.3.1 counter\n\
             \t\tip saddr 198.19.1.128 counter\n\
             \t\tip saddr @prefixes counter\n\
             \t}\n\
             }\n"
        );
    }
}
