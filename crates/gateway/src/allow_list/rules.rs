//! The list put into effect, by each of the means.

use weir_filter::{Action, BpfError, Class, Compiled, Direction, Filter, Options, XdpMode};
use weir_netlink::Rtnetlink;
use weir_prefix::export;

use super::held::{self, refused};
use super::{AllowList, Hook, Lookup, MOST_RULES, list};
use crate::iptables::{self, Backend};
use crate::journal::Change;
use crate::nft::{self, Table};
use crate::{Error, Family, Journal, Place, command};

/// Chain of nft with the rules.
pub(super) const CHAIN: &str = "allow";
/// Set of nft with the list.
pub(super) const SET: &str = "listed";

/// The action on a packet of no list, and on one of the first list.
pub(super) const ACTIONS: [Action; 2] = [Action::Drop, Action::Allow];

/// Messages without which neighbours on an IPv6 link do not find each other (RFC 4861 section 4): a host that receives packets
/// for itself must accept them from every source. Numbers of nft and of ip6tables.
const NEIGHBOURS: [(&str, u8); 2] = [("nd-neighbor-solicit", 135), ("nd-neighbor-advert", 136)];

impl Hook {
    fn of_nft(self) -> &'static str {
        match self {
            Hook::Forward => "filter hook forward priority filter",
            Hook::Input => "filter hook input priority filter",
        }
    }

    fn chain_of_iptables(self) -> &'static str {
        match self {
            Hook::Forward => "FORWARD",
            Hook::Input => "INPUT",
        }
    }
}

impl AllowList {
    /// The interface where the initiator's packets come in.
    fn interface(&self, place: &Place) -> Result<String, Error> {
        if self.hook == Hook::Forward {
            return Ok(place.inside_interface.clone());
        }
        let interfaces = Rtnetlink::open()?.interfaces()?;
        let own = interfaces.into_iter().find(|i| i.addresses.iter().any(|(a, _)| *a == place.responder));
        own.map(|i| i.name).ok_or_else(|| {
            Error::Unsupported(format!("no interface of this host has the address {}", place.responder))
        })
    }

    /// The table of nft with set and rules.
    pub(super) fn table(&self, place: &Place) -> Result<Table, Error> {
        let (ip, interface) = (nft::family(place), self.interface(place)?);
        let class = self.list(place)?;
        let mut rules = vec![format!("iifname != \"{interface}\" accept")];
        if self.hook == Hook::Input && place.family == Family::Ipv6 {
            let names = NEIGHBOURS.map(|n| n.0).join(", ");
            rules.push(format!("ip6 hoplimit 255 icmpv6 type {{ {names} }} accept"));
        }
        if self.established_first {
            rules.push("ct state established,related accept".to_owned());
        }
        let table = Table::new(place);
        let table = if self.filter == Lookup::NftSet {
            rules.push(format!("{ip} saddr @{SET} counter accept"));
            table.interval_set(SET, elements(&class, place.family))
        } else {
            rules.extend(linear(&class, place)?);
            table
        };
        rules.push("counter drop".to_owned());
        Ok(table.base(CHAIN, self.hook.of_nft(), rules))
    }

    pub(super) fn apply_ipset(&self, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        let class = self.list(place)?;
        let interface = self.interface(place)?;
        let name = set_name(place);
        record_ipset(&name, journal)?;
        command::run_long("ipset", &["restore"], &export::ipset(&name, &class.v4, &class.v6))?;
        Backend::NfTables.probe(place.family)?;
        let end = if place.family == Family::Ipv4 { "4" } else { "6" };
        let mut matches = Vec::new();
        if self.hook == Hook::Input && place.family == Family::Ipv6 {
            matches.extend(NEIGHBOURS.map(|(_, number)| {
                let matching = format!("-p icmpv6 -m icmp6 --icmpv6-type {number} -m hl --hl-eq 255");
                (format!("-i {interface} {matching}"), "ACCEPT")
            }));
        }
        if self.established_first {
            let state = "-m conntrack --ctstate ESTABLISHED,RELATED";
            matches.push((format!("-i {interface} {state}"), "ACCEPT"));
        }
        matches.push((format!("-i {interface} -m set --match-set {name}{end} src"), "ACCEPT"));
        matches.push((format!("-i {interface}"), "DROP"));
        let rule = |(matching, target): &(String, &str)| -> Vec<String> {
            let head = iptables::words(matching);
            head.chain(iptables::comment(place)).chain(iptables::words(&format!("-j {target}"))).collect()
        };
        let rules: Vec<Vec<String>> = matches.iter().map(rule).collect();
        let program = Backend::NfTables.program(place.family);
        iptables::insert(journal, program, "filter", self.hook.chain_of_iptables(), &rules)
    }

    /// Programs and tables, attached to nothing yet.
    pub(super) fn load_bpf(&self, tables: &Compiled) -> Result<Filter, Error> {
        let options = Options { sample: 0, established_first: self.established_first };
        Filter::load_with(tables, &ACTIONS, options).map_err(refused)
    }

    pub(super) fn apply_bpf(&self, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        let class = self.list(place)?;
        let tables = Compiled::of(std::slice::from_ref(&class)).map_err(Error::Unsupported)?;
        let name = self.interface(place)?;
        let interface = Rtnetlink::open()?.interface(&name)?;
        if !interface.has_ethernet_header() {
            return Err(no_ethernet(&name));
        }
        let interface = interface.index;
        if self.established_first {
            // The kernel tracks connections of a namespace only where a rule asks for it.
            let rules = vec!["ct state established accept".to_owned()];
            Table::new(place).base(CHAIN, self.hook.of_nft(), rules).apply(journal)?;
        }
        let mut filter = self.load_bpf(&tables)?;
        // Only this function knows of the filter before it is in the journal; dropping the filter removes it.
        journal.record(Change::Filter { tag: place.tag.clone() })?;
        if self.filter == Lookup::BpfXdp {
            filter.attach_xdp(interface, XdpMode::Native).map_err(|e| refused_at_xdp(&name, e))?;
        } else {
            filter.attach(interface, Direction::Ingress).map_err(refused)?;
        }
        held::HELD.add(place, filter);
        Ok(())
    }
}

/// Why it is not on an interface such as a tunnel's: the programs find addresses behind an Ethernet header.
fn no_ethernet(interface: &str) -> Error {
    Error::Unsupported(format!(
        "interface {interface}: packets come in there without an Ethernet header (as by WireGuard, tun, PPP and most tunnels), and the \
         BPF filter finds addresses only behind one; filter = \"nft-set\" or \"ipset-iptables\" runs there"
    ))
}

/// Why it is not at XDP.
fn refused_at_xdp(interface: &str, error: BpfError) -> Error {
    let number = error.raw_os_error().map(std::io::Error::from_raw_os_error);
    if number.is_some_and(|e| e.kind() == std::io::ErrorKind::Unsupported) {
        return Error::Unsupported(format!(
            "filter = \"bpf-xdp\": the driver of {interface} has no XDP (`ethtool -i {interface}` names it); filter = \"bpf\" runs on \
             any interface"
        ));
    }
    refused(error)
}

/// Writes both sets of that name down, which must not be there.
fn record_ipset(name: &str, journal: &mut Journal) -> Result<(), Error> {
    for end in ["4", "6"] {
        if command::succeeds("ipset", &["list", "-n", &format!("{name}{end}")])? {
            return Err(Error::Unsupported(format!("a set {name}{end} of ipset exists already")));
        }
        journal.record(Change::Ipset { set: format!("{name}{end}") })?;
    }
    Ok(())
}

/// Elements of the interval set.
pub(super) fn elements(class: &Class, family: Family) -> Vec<String> {
    match family {
        Family::Ipv4 => class.v4.elements().map(|e| e.to_string()).collect(),
        Family::Ipv6 => class.v6.elements().map(|e| e.to_string()).collect(),
    }
}

/// A rule for each prefix.
pub(super) fn linear(class: &Class, place: &Place) -> Result<Vec<String>, Error> {
    let (ip, prefixes) = (nft::family(place), list::prefixes(class, place.family));
    if prefixes.len() > MOST_RULES {
        return Err(Error::Unsupported(format!(
            "filter = \"nft-linear\": {} prefixes; a rule for each is not loaded above {MOST_RULES}",
            prefixes.len()
        )));
    }
    Ok(prefixes.iter().map(|p| format!("{ip} saddr {p} counter accept")).collect())
}

/// The beginning of the names of the sets of ipset.
fn set_name(place: &Place) -> String {
    format!("weir_{}_", place.tag)
}
