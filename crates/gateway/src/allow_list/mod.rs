//! A gateway that lets only listed addresses in, by the means that the kernel has, and by our own.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_filter::{Action, Class, Compiled, Direction, Filter};
use weir_prefix::{List, Ranges, Selection, export, read};
use weir_sys::netlink::Rtnetlink;

use crate::iptables::{self, Backend};
use crate::journal::Change;
use crate::nft::{self, Table};
use crate::{Error, Expectation, Family, Hop, Journal, Place, Role, Topology, command, routed};

/// The gateway forwards what comes in on the inside from a listed address, and nothing else that comes in there. The
/// initiator is listed in any case.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AllowList {
    /// Who looks the address up.
    pub filter: Lookup,
    /// Files with the list, on the gateway: what the regional registries publish, prefixes, or ranges.
    pub files: Vec<PathBuf>,
    /// Countries to take from registries' files, e.g. `["JP", "DE"]`; without any, everything.
    pub countries: Vec<String>,
    /// Made-up prefixes besides, 0 to 1000000: no two next to each other, nine in ten of them /24, the others longer.
    pub prefixes: u32,
    /// Packets of connections that are there already pass before they are looked up (connection tracking does that), so that
    /// the list costs once per connection and not once per packet. Not with `bpf`, which tracks nothing.
    pub established_first: bool,
}

/// Who looks an address up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lookup {
    /// Nobody: everything passes.
    #[default]
    None,
    /// An interval set of nftables.
    NftSet,
    /// A rule of nftables for each prefix: 10000 at most.
    NftLinear,
    /// A set of ipset (`hash:net`), asked by iptables.
    IpsetIptables,
    /// Weir's own BPF program at the inside interface.
    Bpf,
}

const MOST_PREFIXES: u32 = 1_000_000;
const MOST_RULES: usize = 10_000;
const CHAIN: &str = "allow";
const SET: &str = "listed";
const HOOK: &str = "filter hook forward priority filter";

/// Filters in effect, by the tag of their place: they live as long as this process holds them.
static FILTERS: Mutex<Vec<(String, Filter)>> = Mutex::new(Vec::new());

fn filters() -> std::sync::MutexGuard<'static, Vec<(String, Filter)>> {
    FILTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AllowList {
    /// The listed addresses, the initiator's among them.
    fn list(&self, place: &Place) -> Result<Class, Error> {
        let countries = self.countries.iter().map(String::as_str);
        let selection = Selection::of(countries).map_err(Error::Unsupported)?;
        let mut list = List::default();
        for path in &self.files {
            let name = path.display().to_string();
            let bytes = std::fs::read(path).map_err(|source| Error::File { path: name.clone(), source })?;
            read::read(&mut list, &name, &bytes, &selection)
                .map_err(|e| Error::Unsupported(e.to_string()))?;
        }
        let mut class = Class { v4: list.ranges_v4(), v6: list.ranges_v6() };
        match place.initiator {
            IpAddr::V4(a) => {
                let own = Ranges::new([(u32::from(a), u32::from(a))]);
                class.v4 = class.v4.union(&made_up(self.prefixes, 8)).union(&own);
            }
            IpAddr::V6(a) => {
                let own = Ranges::new([(u128::from(a), u128::from(a))]);
                class.v6 = class.v6.union(&made_up(self.prefixes, 80)).union(&own);
            }
        }
        Ok(class)
    }

    fn prefixes(&self, place: &Place) -> Result<Vec<String>, Error> {
        let class = self.list(place)?;
        Ok(match place.family {
            Family::Ipv4 => class.v4.prefixes().map(|p| p.to_string()).collect(),
            Family::Ipv6 => class.v6.prefixes().map(|p| p.to_string()).collect(),
        })
    }

    fn table(&self, place: &Place) -> Result<Table, Error> {
        let (ip, inside) = (nft::family(place), &place.inside_interface);
        let mut rules = vec![format!("iifname != \"{inside}\" accept")];
        if self.established_first {
            rules.push("ct state established,related accept".to_owned());
        }
        let prefixes = self.prefixes(place)?;
        let table = Table::new(place);
        let table = if self.filter == Lookup::NftSet {
            rules.push(format!("{ip} saddr @{SET} counter accept"));
            table.interval_set(SET, prefixes)
        } else {
            if prefixes.len() > MOST_RULES {
                return Err(Error::Unsupported(format!(
                    "filter = \"nft-linear\": {} prefixes; a rule for each is not loaded above {MOST_RULES}",
                    prefixes.len()
                )));
            }
            rules.extend(prefixes.iter().map(|p| format!("{ip} saddr {p} counter accept")));
            table
        };
        rules.push("counter drop".to_owned());
        Ok(table.base(CHAIN, HOOK, rules))
    }

    fn apply_ipset(&self, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        let class = self.list(place)?;
        let name = set_name(place);
        for end in ["4", "6"] {
            if command::succeeds("ipset", &["list", "-n", &format!("{name}{end}")])? {
                return Err(Error::Unsupported(format!("a set {name}{end} of ipset exists already")));
            }
            journal.record(Change::Ipset { set: format!("{name}{end}") })?;
        }
        command::run_long("ipset", &["restore"], &export::ipset(&name, &class.v4, &class.v6))?;
        Backend::NfTables.probe(place.family)?;
        let end = if place.family == Family::Ipv4 { "4" } else { "6" };
        let inside = &place.inside_interface;
        let mut matches = Vec::new();
        if self.established_first {
            matches.push((format!("-i {inside} -m conntrack --ctstate ESTABLISHED,RELATED"), "ACCEPT"));
        }
        matches.push((format!("-i {inside} -m set --match-set {name}{end} src"), "ACCEPT"));
        matches.push((format!("-i {inside}"), "DROP"));
        let rule = |(matching, target): &(String, &str)| -> Vec<String> {
            let head = iptables::words(matching);
            head.chain(iptables::comment(place)).chain(iptables::words(&format!("-j {target}"))).collect()
        };
        let rules: Vec<Vec<String>> = matches.iter().map(rule).collect();
        let program = Backend::NfTables.program(place.family);
        iptables::insert(journal, program, "filter", "FORWARD", &rules)
    }

    fn apply_bpf(&self, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        let class = self.list(place)?;
        let refused = |e: weir_filter::BpfError| Error::Unsupported(format!("the BPF filter: {e}"));
        let tables = Compiled::of(std::slice::from_ref(&class)).map_err(Error::Unsupported)?;
        let interface = Rtnetlink::open()?.interface(&place.inside_interface)?.index;
        let mut filter = Filter::load(&tables, &[Action::Drop, Action::Allow], 0).map_err(refused)?;
        // Nobody else knows of it before it is in the journal; its end takes it away.
        journal.record(Change::Filter { tag: place.tag.clone() })?;
        filter.attach(interface, Direction::Ingress).map_err(refused)?;
        filters().push((place.tag.clone(), filter));
        Ok(())
    }
}

/// Takes the filter of that place away, if it is there.
pub(crate) fn remove_filter(tag: &str) {
    filters().retain(|(held, _)| held != tag);
}

/// Takes a set of ipset away, if it is there.
pub(crate) fn remove_ipset(set: &str) -> Result<(), Error> {
    if command::succeeds("ipset", &["list", "-n", set])? {
        command::run("ipset", &["destroy", set])?;
    }
    Ok(())
}

fn set_name(place: &Place) -> String {
    format!("weir_{}_", place.tag)
}

/// Prefixes that lie apart: number `n` begins `n * 15` blocks behind 1.0.0.0 or 2400::, where a block is a /24 or a /48 (the low
/// `host_bits` of an address). In every tenth only the second half of the block is listed, so that tables must look closer.
fn made_up<A: weir_prefix::Address + TryFrom<u128>>(count: u32, host_bits: u8) -> Ranges<A> {
    let begin: u128 = if A::BITS == 32 { 1 << 24 } else { 0x2400 << 112 };
    let one = |n: u32| {
        let first = begin + ((u128::from(n) * 15) << host_bits);
        let half = if n % 10 == 9 { 1 << (host_bits - 1) } else { 0 };
        let last = first + (1 << host_bits) - 1;
        Some((A::try_from(first + half).ok()?, A::try_from(last).ok()?))
    };
    Ranges::new((0..count).filter_map(one))
}

impl Hop for AllowList {
    fn kind(&self) -> &'static str {
        "allow-list"
    }

    fn describe(&self) -> String {
        let by = match self.filter {
            Lookup::None => return "forwarding without a filter".into(),
            Lookup::NftSet => "an interval set of nft",
            Lookup::NftLinear => "a rule of nft for each prefix",
            Lookup::IpsetIptables => "ipset and iptables",
            Lookup::Bpf => "weir's BPF filter",
        };
        let mut words = format!("only listed addresses pass, by {by}");
        if !self.files.is_empty() {
            let names: Vec<_> = self.files.iter().map(|f| file_name(f)).collect();
            words.push_str(&format!(", list {}", names.join(" + ")));
        }
        if self.prefixes > 0 {
            words.push_str(&format!(", {} made-up prefixes", self.prefixes));
        }
        if self.established_first {
            words.push_str(", established connections first");
        }
        words
    }

    fn validate(&self) -> Result<(), String> {
        if self.prefixes > MOST_PREFIXES {
            return Err(format!("prefixes = {}: valid is 0 to {MOST_PREFIXES}", self.prefixes));
        }
        if self.filter == Lookup::NftLinear && self.prefixes as usize > MOST_RULES {
            return Err(format!(
                "prefixes = {}: with \"nft-linear\" valid is 0 to {MOST_RULES}",
                self.prefixes
            ));
        }
        if self.established_first && matches!(self.filter, Lookup::Bpf | Lookup::None) {
            return Err(
                "established-first: only with \"nft-set\", \"nft-linear\" and \"ipset-iptables\"".into()
            );
        }
        Selection::of(self.countries.iter().map(String::as_str)).map(drop)
    }

    fn topology(&self) -> Topology {
        Topology::Routed
    }

    fn programs(&self, role: Role) -> Vec<String> {
        let programs: &[&str] = match self.filter {
            _ if role != Role::Gateway => &[],
            Lookup::None | Lookup::Bpf => &[],
            Lookup::NftSet | Lookup::NftLinear => &[nft::PROGRAM],
            Lookup::IpsetIptables => &["ipset", "iptables-nft"],
        };
        programs.iter().map(|p| (*p).to_owned()).collect()
    }

    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        if role != Role::Gateway {
            return Ok(());
        }
        match self.filter {
            Lookup::None => {}
            Lookup::NftSet | Lookup::NftLinear => self.table(place)?.apply(journal)?,
            Lookup::IpsetIptables => self.apply_ipset(place, journal)?,
            Lookup::Bpf => self.apply_bpf(place, journal)?,
        }
        routed::forward(place, journal)
    }

    fn expectation(&self, place: &Place) -> Expectation {
        Expectation {
            target: place.responder,
            seen_source: Some(place.initiator),
            hops: Some(1),
            ports: None,
        }
    }

    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        match self.filter {
            Lookup::None => Ok(None),
            Lookup::NftSet | Lookup::NftLinear => nft::accepted(place, CHAIN).map(Some),
            Lookup::IpsetIptables => {
                iptables::counter_in(Backend::NfTables, place, "filter", "ACCEPT").map(Some)
            }
            Lookup::Bpf => {
                let held = filters();
                let Some((_, filter)) = held.iter().find(|(tag, _)| *tag == place.tag) else {
                    return Ok(None);
                };
                let status = filter.status().map_err(|e| Error::Unsupported(e.to_string()))?;
                Ok(Some(status.classes.iter().filter(|c| c.2 == "allow").map(|c| c.3.packets).sum()))
            }
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_prefixes_lie_apart_and_are_as_many_as_asked_for() {
        for count in [0, 1, 10, 1000] {
            let v4: Ranges<u32> = made_up(count, 8);
            let v6: Ranges<u128> = made_up(count, 80);
            assert_eq!((v4.as_slice().len(), v6.as_slice().len()), (count as usize, count as usize));
        }
        let many: Ranges<u32> = made_up(MOST_PREFIXES, 8);
        assert_eq!(many.as_slice().len(), MOST_PREFIXES as usize);
        // Nine of ten are a whole /24, the tenth is half of one.
        let v4: Ranges<u32> = made_up(20, 8);
        let lengths: Vec<u8> = v4.prefixes().map(|p| p.length).collect();
        assert_eq!(lengths.iter().filter(|l| **l == 24).count(), 18);
        assert_eq!(lengths.iter().filter(|l| **l == 25).count(), 2);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let linear = AllowList { filter: Lookup::NftLinear, prefixes: 10_001, ..AllowList::default() };
        assert!(linear.validate().unwrap_err().contains("0 to 10000"));
        let bpf = AllowList { filter: Lookup::Bpf, established_first: true, ..AllowList::default() };
        assert!(bpf.validate().unwrap_err().contains("established-first"));
        let unknown = AllowList { countries: vec!["Japan".into()], ..AllowList::default() };
        assert!(unknown.validate().is_err());
    }
}
