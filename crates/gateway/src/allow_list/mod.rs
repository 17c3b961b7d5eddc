//! A host that lets only listed addresses in, by the means that the kernel has, and by our own.

mod costs;
mod held;
mod list;
mod rules;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_prefix::Selection;
use weir_record::VariantFact;

use crate::iptables::{self, Backend};
use crate::{Error, Expectation, Journal, Place, Role, Topology, Variant, nft, routed};

pub(crate) use held::{HELD, remove_ipset};

/// Packets from listed addresses pass, and all others are thrown away: at a gateway what comes in on the inside, at a server
/// what comes in at all. The initiator is listed in any case.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AllowList {
    /// Who looks the address up.
    pub filter: Lookup,
    /// The hook of the lookup.
    pub hook: Hook,
    /// Files with the list, on the host that filters: what the regional registries publish, prefixes, or ranges.
    pub files: Vec<PathBuf>,
    /// Countries to take from registries' files, e.g. `["JP", "DE"]`; without any, everything.
    pub countries: Vec<String>,
    /// As many prefixes as this, 0 to 1000000: drawn evenly from the files' list where that has more, and made up where it has
    /// fewer (then all of them: no two next to each other, nine in ten of them /24, the others longer). Without it, the files' list as
    /// it is.
    pub prefixes: Option<u32>,
    /// Packets of connections that are there already pass before they are looked up (connection tracking does that), so that
    /// the list costs once per connection and not once per packet.
    pub established_first: bool,
    /// An address of the initiator's that is not listed, whatever the list says: what it sends must not arrive, which is a part
    /// of the proof. In the lab there is always one.
    pub denied_source: Option<IpAddr>,
}

/// Who looks an address up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lookup {
    /// No lookup: everything passes.
    #[default]
    None,
    /// An interval set of nftables.
    NftSet,
    /// A rule of nftables for each prefix: 10000 at most.
    NftLinear,
    /// A set of ipset (`hash:net`), asked by iptables.
    IpsetIptables,
    /// Weir's own BPF program at the interface (tc ingress: TCX).
    Bpf,
    /// The same in the interface's driver (XDP), before the kernel makes a packet of what came in. The driver must have it. A veth
    /// with it costs its other end the offloading of segments, so that this is for single frames.
    BpfXdp,
}

/// The hook of an address lookup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Hook {
    /// At the gateway, for what it forwards from the inside.
    #[default]
    Forward,
    /// At the responder, for what it receives itself: there is no gateway then.
    Input,
}

/// More prefixes than there are blocks to make them up in.
const MOST_PREFIXES: u32 = 1_000_000;
/// More rules than anybody would load.
const MOST_RULES: usize = 10_000;

impl AllowList {
    /// The host that filters.
    fn role(&self) -> Role {
        match self.hook {
            Hook::Forward => Role::Gateway,
            Hook::Input => Role::Responder,
        }
    }
}

impl Variant for AllowList {
    fn kind(&self) -> &'static str {
        "allow-list"
    }

    fn describe(&self) -> String {
        let at = match self.hook {
            Hook::Forward => "",
            Hook::Input => ", at the server itself",
        };
        let by = match (self.filter, self.hook) {
            (Lookup::None, Hook::Forward) => return "forwarding without a filter".into(),
            (Lookup::None, Hook::Input) => return "a server without a filter".into(),
            (Lookup::NftSet, _) => "an interval set of nft",
            (Lookup::NftLinear, _) => "a rule of nft for each prefix",
            (Lookup::IpsetIptables, _) => "ipset and iptables",
            (Lookup::Bpf, _) => "weir's BPF filter",
            (Lookup::BpfXdp, _) => "weir's BPF filter at XDP",
        };
        let mut words = format!("only listed addresses pass, by {by}{at}");
        if !self.files.is_empty() {
            let names: Vec<_> = self.files.iter().map(|f| file_name(f)).collect();
            words.push_str(&format!(", list {}", names.join(" + ")));
        }
        match self.prefixes {
            Some(n) if self.files.is_empty() => words.push_str(&format!(", {n} made-up prefixes")),
            Some(n) => words.push_str(&format!(", {n} prefixes")),
            None => {}
        }
        if self.established_first {
            words.push_str(", established connections first");
        }
        words
    }

    fn validate(&self) -> Result<(), String> {
        let prefixes = self.prefixes.unwrap_or(0);
        if prefixes > MOST_PREFIXES {
            return Err(format!("prefixes = {prefixes}: valid is 0 to {MOST_PREFIXES}"));
        }
        if self.filter == Lookup::NftLinear && prefixes as usize > MOST_RULES {
            return Err(format!("prefixes = {prefixes}: with \"nft-linear\" valid is 0 to {MOST_RULES}"));
        }
        if self.established_first && self.filter == Lookup::None {
            return Err("established-first: there is nothing to come before with filter = \"none\"".into());
        }
        if self.established_first && self.filter == Lookup::BpfXdp {
            return Err(
                "established-first: at XDP no connection can be looked up, take filter = \"bpf\"".into()
            );
        }
        Selection::of(self.countries.iter().map(String::as_str)).map(drop)
    }

    fn topology(&self) -> Topology {
        match self.hook {
            Hook::Forward => Topology::Routed,
            Hook::Input => Topology::Direct,
        }
    }

    fn programs(&self, role: Role) -> Vec<String> {
        let programs: &[&str] = match self.filter {
            _ if role != self.role() => &[],
            Lookup::None => &[],
            // It asks connection tracking, which a rule of nft turns on.
            Lookup::Bpf if self.established_first => &[nft::PROGRAM],
            Lookup::Bpf | Lookup::BpfXdp => &[],
            Lookup::NftSet | Lookup::NftLinear => &[nft::PROGRAM],
            Lookup::IpsetIptables => &["ipset", "iptables-nft"],
        };
        programs.iter().map(|p| (*p).to_owned()).collect()
    }

    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        if role != self.role() {
            return Ok(());
        }
        match self.filter {
            Lookup::None => {}
            Lookup::NftSet | Lookup::NftLinear => self.table(place)?.apply(journal)?,
            Lookup::IpsetIptables => self.apply_ipset(place, journal)?,
            Lookup::Bpf | Lookup::BpfXdp => self.apply_bpf(place, journal)?,
        }
        match self.hook {
            Hook::Forward => routed::forward(place, journal),
            Hook::Input => Ok(()),
        }
    }

    fn expectation(&self, place: &Place) -> Expectation {
        Expectation::untranslated(place, if self.hook == Hook::Forward { 1 } else { 0 })
    }

    fn counts_at(&self) -> Role {
        self.role()
    }

    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        match self.filter {
            Lookup::None => Ok(None),
            Lookup::NftSet | Lookup::NftLinear => Ok(Some(nft::verdicts(place, rules::CHAIN)?.0)),
            Lookup::IpsetIptables => {
                iptables::counter_in(Backend::NfTables, place, "filter", "ACCEPT").map(Some)
            }
            Lookup::Bpf | Lookup::BpfXdp => held::counted(place, "allow"),
        }
    }

    fn denied_source(&self, place: &Place) -> Option<IpAddr> {
        (self.filter != Lookup::None).then(|| self.denied_source.unwrap_or_else(|| list::unlisted(place)))
    }

    fn refused(&self, place: &Place) -> Result<Option<u64>, Error> {
        match self.filter {
            Lookup::None => Ok(None),
            Lookup::NftSet | Lookup::NftLinear => Ok(Some(nft::verdicts(place, rules::CHAIN)?.1)),
            Lookup::IpsetIptables => {
                iptables::counter_in(Backend::NfTables, place, "filter", "DROP").map(Some)
            }
            Lookup::Bpf | Lookup::BpfXdp => held::counted(place, "drop"),
        }
    }

    fn facts(&self, place: &Place) -> Result<Vec<VariantFact>, Error> {
        costs::measure(self, place)
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused() {
        let linear = AllowList { filter: Lookup::NftLinear, prefixes: Some(10_001), ..AllowList::default() };
        assert!(linear.validate().unwrap_err().contains("0 to 10000"));
        let many = AllowList { filter: Lookup::Bpf, prefixes: Some(1_000_001), ..AllowList::default() };
        assert!(many.validate().unwrap_err().contains("0 to 1000000"));
        let none = AllowList { established_first: true, ..AllowList::default() };
        assert!(none.validate().unwrap_err().contains("established-first"));
        let xdp = AllowList { filter: Lookup::BpfXdp, established_first: true, ..AllowList::default() };
        assert!(xdp.validate().unwrap_err().contains("at XDP no connection"));
        let unknown = AllowList { countries: vec!["Japan".into()], ..AllowList::default() };
        assert!(unknown.validate().is_err());
    }

    #[test]
    fn a_server_that_filters_for_itself_needs_no_gateway() {
        let place = crate::place::tests::place_v4();
        let input = AllowList { filter: Lookup::NftSet, hook: Hook::Input, ..AllowList::default() };
        assert_eq!(input.topology(), Topology::Direct);
        assert_eq!(input.expectation(&place).hops, Some(0));
        assert_eq!(input.counts_at(), Role::Responder);
        assert_eq!(input.programs(Role::Responder), ["nft"]);
        assert!(input.programs(Role::Gateway).is_empty());
    }
}
