//! Rows of processes: sums of the flows that end at them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_flows::{ELSEWHERE, Flow, LocalEnd, Reading, UdpFlow};
use weir_text::escape::line;

use crate::history::History;
use crate::rows::{Of, Row, sum_row};

/// A process, or one of unknown process, with its container; none for flows without an end on this machine.
pub(crate) type Owner = Option<(LocalEnd, Option<String>)>;

/// The flows of an owner, and its addresses.
#[derive(Default)]
struct Share<'a> {
    flows: Vec<&'a Flow>,
    udp: Vec<&'a UdpFlow>,
    addresses: Vec<IpAddr>,
}

/// The owners of a flow, with their addresses: of the client's end and of the server's, as their own packets have them.
fn owners(
    [client, server]: [&Option<LocalEnd>; 2],
    addresses: [IpAddr; 2],
    reading: &Reading,
) -> BTreeMap<Owner, Vec<IpAddr>> {
    // A process that talks to itself has one flow, not two.
    let mut owners: BTreeMap<Owner, Vec<IpAddr>> = BTreeMap::new();
    for (end, address) in [client, server].into_iter().zip(addresses) {
        if let Some(end) = end {
            let container = reading.container(address).map(str::to_owned);
            owners.entry(Some((end.clone(), container))).or_default().push(address);
        }
    }
    if owners.is_empty() {
        owners.insert(None, Vec::new());
    }
    owners
}

/// Names of the processes at both ends of a flow, by which a filter finds it, and their numbers.
pub(crate) fn searched(ends: [&Option<LocalEnd>; 2]) -> (String, Vec<u32>) {
    let ends = || ends.into_iter().flatten();
    let names: Vec<String> = ends().map(|end| line(&end.words()).to_lowercase()).collect();
    (names.join(" "), ends().filter_map(|end| end.pid).collect())
}

/// Rows by process, and one each for the flows whose process is unknown, and for those without an end on this machine.
pub(crate) fn rows(reading: &Reading, history: &History) -> Vec<Row> {
    let mut shares: BTreeMap<Owner, Share<'_>> = BTreeMap::new();
    for flow in &reading.flows {
        let addresses = [flow.client.ip(), flow.server_inside.unwrap_or(flow.server).ip()];
        for (owner, addresses) in owners([&flow.client_here, &flow.server_here], addresses, reading) {
            let share = shares.entry(owner).or_default();
            share.flows.push(flow);
            share.addresses.extend(addresses);
        }
    }
    for flow in &reading.udp_flows {
        let addresses = [flow.client.ip(), flow.server_inside.unwrap_or(flow.server).ip()];
        for (owner, addresses) in owners([&flow.client_here, &flow.server_here], addresses, reading) {
            let share = shares.entry(owner).or_default();
            share.udp.push(flow);
            share.addresses.extend(addresses);
        }
    }
    shares.into_iter().map(|(owner, share)| row(owner, share, history)).collect()
}

fn row(owner: Owner, mut share: Share<'_>, history: &History) -> Row {
    let name = match &owner {
        None => ELSEWHERE.to_owned(),
        Some((end, None)) => line(&end.words()),
        Some((end, Some(container))) => line(&format!("{}  {container}", end.words())),
    };
    let pids = owner.iter().filter_map(|(end, _)| end.pid).collect();
    share.addresses.sort_unstable();
    share.addresses.dedup();
    Row {
        searched: name.to_lowercase(),
        addresses: share.addresses,
        pids,
        ..sum_row(Of::Process(owner), name, &share.flows, &share.udp, history)
    }
    .found_by_limit()
}

#[cfg(test)]
mod tests {
    use weir_flows::Container;

    use super::*;
    use crate::fixture::{flow, reading};
    use crate::rows::{Filter, Tab, rows};

    fn end(pid: u32, name: &str) -> Option<LocalEnd> {
        Some(LocalEnd { pid: Some(pid), process: Some(name.to_owned()) })
    }

    fn names(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.name.as_str()).collect()
    }

    /// Flows of a container's process, of one of this host, of one that has ended, and of nothing here.
    fn mixed() -> Reading {
        let mut flows = [
            flow("172.17.0.2:1", "198.51.100.7:443"),
            flow("172.17.0.2:2", "198.51.100.7:443"),
            flow("198.51.100.9:5", "203.0.113.1:80"),
            flow("172.17.0.2:3", "198.51.100.7:443"),
            flow("10.0.0.2:1", "198.51.100.7:443"),
        ];
        for (n, flow) in flows.iter_mut().enumerate() {
            flow.client_side.bytes = 1 << n;
        }
        flows[0].client_here = end(7, "c\u{1b}[31murl");
        flows[1].client_here = flows[0].client_here.clone();
        flows[2].server_here = end(70, "nginx");
        flows[2].server_inside = Some("172.17.0.3:8080".parse().unwrap());
        flows[3].client_here = Some(LocalEnd { pid: None, process: None });
        let mut udp = UdpFlow::empty();
        udp.client = "172.17.0.2:9".parse().unwrap();
        udp.client_here = flows[0].client_here.clone();
        udp.server_side.bytes = 1 << 10;
        let mut reading = reading(flows.to_vec());
        reading.udp_flows = vec![udp];
        let container =
            |ip: &str, name: &str| Container { address: ip.parse().unwrap(), name: name.to_owned() };
        reading.containers =
            vec![container("172.17.0.2", "docker web"), container("172.17.0.3", "docker db")];
        reading
    }

    #[test]
    fn flows_are_summed_up_by_process_and_the_rest_is_named() {
        let rows = rows(Tab::Processes, &mixed(), &History::default());
        let figures: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.flows, row.bytes)).collect();
        assert_eq!(
            figures,
            [
                (ELSEWHERE, 1, 16),
                ("(unknown process)  docker web", 1, 8),
                ("curl (pid 7)  docker web", 3, 1027),
                ("nginx (pid 70)  docker db", 1, 4),
            ]
        );
    }

    #[test]
    fn filters_find_processes_by_name_number_and_container() {
        let mixed = mixed();
        let found = |tab, text: &str| {
            let mut rows = rows(tab, &mixed, &History::default());
            rows.retain(|row| Filter { text: text.to_owned() }.leaves(row));
            rows.len()
        };
        for (text, processes, flows) in [
            ("curl", 1, 2),
            ("pid=7", 1, 2),
            ("pid=70", 1, 1),
            ("pid=x", 0, 0),
            ("172.17.0.3/32", 1, 1),
            ("docker", 3, 4),
        ] {
            assert_eq!((found(Tab::Processes, text), found(Tab::Flows, text)), (processes, flows), "{text}");
        }
        assert_eq!(found(Tab::Udp, "pid=7"), 1);
    }

    #[test]
    fn a_flow_between_two_processes_counts_with_both_and_with_itself_once() {
        let mut one = flow("172.17.0.2:1", "172.17.0.3:80");
        one.client_here = end(7, "curl");
        one.server_here = end(8, "nginx");
        let mut own = flow("172.17.0.2:2", "172.17.0.3:80");
        own.client_here = end(9, "proxy");
        own.server_here = own.client_here.clone();
        let rows = rows(Tab::Processes, &reading(vec![one, own]), &History::default());
        assert_eq!(names(&rows), ["curl (pid 7)", "nginx (pid 8)", "proxy (pid 9)"]);
        assert!(rows.iter().all(|row| row.flows == 1));
    }
}
