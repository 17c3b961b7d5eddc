//! Containers, and other network namespaces of this machine, as ends of flows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::Serialize;

use crate::reading::Reading;

/// The container, or other network namespace of this machine, that has an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Container {
    /// Its address.
    pub address: IpAddr,
    /// Its name; text from outside.
    pub name: String,
}

/// Those that are ends of the flows of a reading, by address.
pub(crate) fn among(names: &BTreeMap<IpAddr, String>, reading: &Reading) -> Vec<Container> {
    if names.is_empty() {
        return Vec::new();
    }
    let ends = |[client, server, inside]: [Option<SocketAddr>; 3]| [client, server, inside];
    let tcp = reading.flows.iter().map(|f| ends([Some(f.client), Some(f.server), f.server_inside]));
    let udp = reading.udp_flows.iter().map(|f| ends([Some(f.client), Some(f.server), f.server_inside]));
    let found: BTreeSet<IpAddr> = tcp.chain(udp).flatten().flatten().map(|end| end.ip()).collect();
    let named = |address: IpAddr| Some(Container { address, name: names.get(&address)?.clone() });
    found.into_iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flow, UdpFlow};

    #[test]
    fn ends_of_flows_alone_are_named_behind_nat_too() {
        let end = |text: &str| text.parse().unwrap();
        let published = Flow {
            client: end("198.51.100.7:4000"),
            server: end("203.0.113.1:80"),
            server_inside: Some(end("172.17.0.3:8080")),
            ..Flow::empty()
        };
        let dns =
            UdpFlow { client: end("172.17.0.2:5000"), server: end("192.0.2.53:53"), ..UdpFlow::empty() };
        let reading = Reading { flows: vec![published], udp_flows: vec![dns], ..Reading::empty() };
        let names = ["172.17.0.2", "172.17.0.3", "172.17.0.4"]
            .map(|ip| (ip.parse().unwrap(), format!("docker {ip}")));
        let found = among(&names.into(), &reading);
        let found: Vec<_> = found.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(found, ["docker 172.17.0.2", "docker 172.17.0.3"]);
        assert_eq!(among(&BTreeMap::new(), &reading), []);
    }
}
