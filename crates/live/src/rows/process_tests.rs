//! The table of processes.

use weir_flows::{Container, ELSEWHERE};

use super::*;
use crate::fixture::{flow, reading};

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
    let container = |ip: &str, name: &str| Container { address: ip.parse().unwrap(), name: name.to_owned() };
    reading.containers = vec![container("172.17.0.2", "docker web"), container("172.17.0.3", "docker db")];
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
