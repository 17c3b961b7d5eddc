//! A hop without translation.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_sys::sysctl;

use crate::command::{self, kernel};
use crate::error::at;
use crate::extra_rules::{ExtraRules, Filter};
use crate::{Error, Expectation, Family, Journal, Place, Role, Topology, Variant};

/// The gateway forwards and changes nothing. The responder must have a route back to the initiator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Routed {
    /// Extra rules, prefixes and routes on the gateway: `{ rules = 1000, prefixes = 100000, routes = 10000 }`.
    pub extra: ExtraRules,
}

impl Variant for Routed {
    fn kind(&self) -> &'static str {
        "routed"
    }
    fn describe(&self) -> String {
        self.extra.describe_beside("forwarding without translation")
    }
    fn validate(&self) -> Result<(), String> {
        self.extra.validate(Filter::Nft)
    }
    fn topology(&self) -> Topology {
        Topology::Routed
    }
    fn programs(&self, role: Role) -> Vec<String> {
        if role == Role::Gateway { self.extra.programs(Filter::Nft) } else { Vec::new() }
    }
    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        if role != Role::Gateway {
            return Ok(());
        }
        self.extra.apply(Filter::Nft, place, journal)?;
        forward(place, journal)
    }
    fn verify(&self, role: Role, place: &Place) -> Result<(), Error> {
        if role == Role::Gateway { self.extra.verify(Filter::Nft, place) } else { Ok(()) }
    }
    fn expectation(&self, place: &Place) -> Expectation {
        Expectation::untranslated(place, 1)
    }
}

/// Lets the gateway forward between its two interfaces, and no others where the kernel can tell them apart.
pub(crate) fn forward(place: &Place, journal: &mut Journal) -> Result<(), Error> {
    let interfaces = [&place.inside_interface, &place.outside_interface];
    match place.family {
        // The kernel checks the setting of the interface where the packet came in (IN_DEV_FORWARD, net/ipv4/route.c). The global
        // ip_forward would change every interface, and could not be reverted one by one.
        Family::Ipv4 => {
            interfaces.iter().try_for_each(|i| journal.sysctl(&setting("ipv4", i, "forwarding"), "1"))
        }
        Family::Ipv6 if sysctl::get(&kernel(), ALL_IPV6)? == "1" => Ok(()),
        Family::Ipv6 => {
            let one = setting("ipv6", interfaces[0], "force_forwarding");
            if sysctl::get_optional(&kernel(), &one)?.is_none() {
                return forward_ipv6_everywhere(journal);
            }
            interfaces.iter().try_for_each(|i| journal.sysctl(&setting("ipv6", i, "force_forwarding"), "1"))
        }
    }
}

/// Lets programs of BPF forward, too, what comes in by these interfaces: bpf_fib_lookup asks for this setting of IPv6, and does not know
/// `force_forwarding`.
pub(crate) fn forward_by_bpf(place: &Place, from: &[&String], journal: &mut Journal) -> Result<(), Error> {
    if place.family == Family::Ipv4 {
        return Ok(());
    }
    from.iter().try_for_each(|interface| journal.sysctl(&setting("ipv6", interface, "forwarding"), "1"))
}

const ALL_IPV6: &str = "net.ipv6.conf.all.forwarding";

/// Before Linux 6.17 (which brought `force_forwarding`) IPv6 is forwarded everywhere or nowhere.
fn forward_ipv6_everywhere(journal: &mut Journal) -> Result<(), Error> {
    // An interface that becomes a router's drops the default route that it learned (accept_ra in ip-sysctl.rst).
    let learned = command::run("ip", &["-6", "route", "show", "default", "proto", "ra"])?;
    for line in learned.lines() {
        let mut words = line.split_whitespace();
        let interface = words.by_ref().find(|w| *w == "dev").and_then(|_| words.next()).unwrap_or_default();
        let accept = setting("ipv6", interface, "accept_ra");
        if sysctl::get_optional(&kernel(), &accept)?.is_some_and(|v| v != "2") {
            return Err(Error::Unsupported(format!(
                "forwarding IPv6 would drop the default route that this host learned on {interface}; \
                 `sysctl {accept}=2` lets it keep that"
            )));
        }
    }
    // Writing `all` writes every interface, on the way back too: those that forwarded before must do so again.
    for interface in interfaces()? {
        let name = setting("ipv6", &interface, "forwarding");
        if sysctl::get_optional(&kernel(), &name)?.as_deref() == Some("1") {
            journal.record(crate::journal::Change::Sysctl { name, old: "1".into(), new: "0".into() })?;
        }
    }
    journal.sysctl(ALL_IPV6, "1")
}

/// Everything that has IPv6 settings, `default` among them.
fn interfaces() -> Result<Vec<String>, Error> {
    let path = Path::new("/proc/sys/net/ipv6/conf");
    let entries = std::fs::read_dir(path).map_err(at(path))?;
    let names = entries.map(|e| Ok(e.map_err(at(path))?.file_name().to_string_lossy().into_owned()));
    Ok(names.collect::<Result<Vec<_>, Error>>()?.into_iter().filter(|n| n != "all").collect())
}

/// The name of an interface's setting; a dot in the interface's name is written as a slash.
pub(crate) fn setting(protocol: &str, interface: &str, name: &str) -> String {
    format!("net.{protocol}.conf.{}.{name}", interface.replace('.', "/"))
}

#[cfg(test)]
mod tests {
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    use super::*;

    #[test]
    fn vlan_interfaces_keep_their_dot() {
        assert_eq!(setting("ipv4", "eth0.100", "forwarding"), "net.ipv4.conf.eth0/100.forwarding");
    }

    #[test]
    fn root_forwarding_everywhere_is_taken_back_for_each_interface() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        ns.run(|| {
            command::run("ip", &["link", "add", "va0", "type", "veth", "peer", "name", "vb0"]).unwrap();
            let get = |i| sysctl::get(&kernel(), &setting("ipv6", i, "forwarding")).unwrap();
            sysctl::set(&kernel(), &setting("ipv6", "va0", "forwarding"), "1").unwrap();
            let mut journal = Journal::new();
            forward_ipv6_everywhere(&mut journal).unwrap();
            assert_eq!(["all", "va0", "vb0"].map(get), ["1", "1", "1"]);
            assert!(journal.undo().is_empty());
            assert_eq!(["all", "va0", "vb0"].map(get), ["0", "1", "0"]);
        })
        .unwrap();
    }
}
