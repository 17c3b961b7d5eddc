//! Containers, and other network namespaces of this machine, as ends of flows.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::Serialize;
use weir_text::order;

/// The container, or other network namespace of this machine, that has an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Container {
    /// Its address.
    pub address: IpAddr,
    /// Its name; text from outside.
    pub name: String,
}

/// Those that have one of these addresses, by address.
pub(crate) fn among(
    names: &BTreeMap<IpAddr, String>,
    ends: impl Iterator<Item = SocketAddr>,
) -> Vec<Container> {
    let found = order::set(ends.map(|end| end.ip()).filter(|end| names.contains_key(end)));
    let named = |address: IpAddr| Some(Container { address, name: names.get(&address)?.clone() });
    found.into_iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_flows_alone_are_named_and_each_once() {
        let ends = ["198.51.100.7:4000", "172.17.0.3:8080", "172.17.0.2:5000", "172.17.0.3:1"];
        let names = ["172.17.0.2", "172.17.0.3", "172.17.0.4"];
        let names = names.map(|ip| (ip.parse().unwrap(), format!("docker {ip}")));
        let found = among(&names.into(), ends.into_iter().map(|end| end.parse().unwrap()));
        let found: Vec<_> = found.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(found, ["docker 172.17.0.2", "docker 172.17.0.3"]);
    }
}
