//! The network namespaces of this machine by their addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_netlink::{Link, Rtnetlink};
use weir_sys::{ProcRoot, Result};

use super::{Found, Scope, find};

/// Names of the containers and other network namespaces of this machine by the addresses that they alone have; without the calling
/// thread's, and without those that may not be entered.
///
/// # Errors
/// If the namespaces cannot be listed.
pub fn containers(root: &ProcRoot) -> Result<BTreeMap<IpAddr, String>> {
    let others = find(root, &Scope::Machine)?.into_iter().filter(|found| !found.own);
    Ok(by_address(others.map(|found| (of(&found), found.name))))
}

/// The addresses by which others reach it; none if it is gone or shut.
fn of(found: &Found) -> Vec<IpAddr> {
    let links = found.inside(|| Rtnetlink::open()?.links()).and_then(|links| links).unwrap_or_default();
    links
        .iter()
        .filter(|link| link.up)
        .flat_map(|link: &Link| &link.addresses)
        .map(|(address, _)| *address)
        .collect()
}

/// Networks of containers repeat: an address that several have tells nothing.
fn by_address(namespaces: impl Iterator<Item = (Vec<IpAddr>, String)>) -> BTreeMap<IpAddr, String> {
    let mut names: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
    for (addresses, name) in namespaces {
        for address in addresses.into_iter().filter(|a| !is_local(a)) {
            names.entry(address).or_default().push(name.clone());
        }
    }
    let single =
        |(address, mut all): (IpAddr, Vec<String>)| (all.len() == 1).then(|| (address, all.remove(0)));
    names.into_iter().filter_map(single).collect()
}

fn is_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    use super::*;

    #[test]
    fn an_address_that_two_have_and_those_of_a_link_tell_nothing() {
        let named = |name: &str, addresses: &[&str]| {
            (addresses.iter().map(|a| a.parse().unwrap()).collect(), name.to_owned())
        };
        let all = [
            named("docker web", &["127.0.0.1", "172.17.0.2", "fe80::1"]),
            named("docker db", &["172.17.0.3", "172.18.0.2"]),
            named("netns twin", &["172.17.0.2", "2001:2::5"]),
        ];
        let found = by_address(all.into_iter());
        let found: Vec<(String, &str)> = found.iter().map(|(a, n)| (a.to_string(), n.as_str())).collect();
        let wanted = [("172.17.0.3", "docker db"), ("172.18.0.2", "docker db"), ("2001:2::5", "netns twin")];
        assert_eq!(found, wanted.map(|(address, name)| (address.to_owned(), name)));
    }

    #[test]
    fn root_a_namespace_that_a_process_holds_is_known_by_its_address() {
        if test_needs_root() {
            return;
        }
        let namespace = NetNs::create().unwrap();
        let address: IpAddr = "198.18.77.7".parse().unwrap();
        namespace
            .run(|| {
                let mut netlink = Rtnetlink::open().unwrap();
                netlink.create_end("d0", 1500).unwrap();
                netlink.set_up("d0").unwrap();
                netlink.add_address("d0", address, 32).unwrap();
            })
            .unwrap();
        let found = containers(&ProcRoot::default()).unwrap();
        let name = found.get(&address).unwrap_or_else(|| panic!("{found:?}"));
        assert!(name.starts_with("held by ") && name.contains(&std::process::id().to_string()), "{name}");
    }
}
