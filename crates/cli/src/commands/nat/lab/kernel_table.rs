//! Every gateway whose NAT is the kernel's: the outside ports that the experiments saw are those of `conntrack -L`, and it has no
//! others for their inside ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use serde_json::Value;
use weir_nat::{Limits, measure};
use weir_sys::NetNs;
use weir_testkit::World;

use super::*;

/// Longer than the run, so that no entry ends before it is compared, s.
const LIFE_S: &str = "600";
const TIMERS: [&str; 4] =
    ["udp_timeout", "udp_timeout_stream", "tcp_timeout_syn_sent", "tcp_timeout_syn_recv"];

/// An inside endpoint and where it sent to.
pub(super) type Sent = (SocketAddr, SocketAddr);

/// Gateways whose ports connection tracking chooses. `routed` has no NAT, and ports that `publish` forwards have no entry.
fn of_the_kernel() -> Vec<LabGateway> {
    let all = LabGateway::value_variants().iter().copied();
    all.filter(|which| which.is_of(false) && ![LabGateway::Routed, LabGateway::Publish].contains(which))
        .collect()
}

/// The translations below experiments of a protocol, by inside endpoint and destination.
pub(super) fn translations(seen: &Value, protocol: &str) -> BTreeMap<Sent, SocketAddr> {
    let mut found = BTreeMap::new();
    let own = |name: &str| name.split_once('_').is_some_and(|(first, _)| first == protocol);
    let fields = seen.as_object().unwrap().iter().filter(|(name, _)| own(name));
    fields.for_each(|(_, field)| collect(field, &mut found));
    found
}

fn collect(value: &Value, found: &mut BTreeMap<Sent, SocketAddr>) {
    let end = |key: &str| value.get(key).and_then(Value::as_str).and_then(|text| text.parse().ok());
    if let (Some(inside), Some(to), Some(seen)) = (end("inside"), end("to"), end("seen")) {
        let before = found.insert((inside, to), seen);
        assert!(before.is_none_or(|before| before == seen), "{inside} to {to}: {before:?} and {seen}");
    }
    match value {
        Value::Array(all) => all.iter().for_each(|value| collect(value, found)),
        Value::Object(all) => all.values().for_each(|value| collect(value, found)),
        _ => {}
    }
}

/// The entries of a protocol in the gateway: what was sent, and the endpoint that answers are for.
pub(super) fn entries(gateway: &NetNs, protocol: &str) -> Vec<(Sent, SocketAddr)> {
    let mut command = Command::new("conntrack");
    command.args(["-L", "-p", protocol]).stdin(Stdio::null()).stderr(Stdio::piped());
    gateway.enter_on_spawn(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(entry).collect()
}

/// `src= dst= sport= dport=` of both directions, in this order.
fn entry(line: &str) -> (Sent, SocketAddr) {
    let all = |key: &str| -> Vec<&str> {
        line.split(' ').filter_map(|word| word.strip_prefix(key)?.strip_prefix('=')).collect()
    };
    let end = |address: &str, port: &str, n: usize| -> SocketAddr {
        let (address, port): (IpAddr, u16) =
            (all(address)[n].parse().unwrap(), all(port)[n].parse().unwrap());
        SocketAddr::new(address, port)
    };
    ((end("src", "sport", 0), end("dst", "dport", 0)), end("dst", "dport", 1))
}

/// Compares both; returns how many translations there were.
fn compare(site: &Site, which: LabGateway) -> usize {
    let mut ends = LabEnds::attach(site, Limits::default(), &Stop::default()).unwrap();
    let seen = serde_json::to_value(measure(&mut ends, &mut |_| true).unwrap()).unwrap();
    let outside = addresses(site).1;
    let mut count = 0;
    for protocol in ["udp", "tcp"] {
        let reported = translations(&seen, protocol);
        let ports: BTreeSet<SocketAddr> = order::set(reported.keys().map(|(inside, _)| *inside));
        let mut kernel: BTreeMap<Sent, SocketAddr> = BTreeMap::new();
        for ((inside, to), mapped) in entries(site.host(LabRole::Gateway).unwrap(), protocol) {
            if ports.contains(&inside) && outside.contains(&to.ip()) {
                assert_eq!(kernel.insert((inside, to), mapped), None, "{}: {inside} {to}", which.name());
            }
        }
        assert_eq!(reported, kernel, "{}: {protocol}", which.name());
        count += reported.len();
    }
    count
}

/// A lab whose gateway forgets no connection of a run.
pub(super) fn lasting(family: Family) -> LabOptions {
    let timers = TIMERS.map(|name| (format!("net.netfilter.nf_conntrack_{name}"), LIFE_S.to_owned()));
    let sysctls = order::map([(LabRole::Gateway, order::map(timers))]);
    LabOptions { family, sysctls, ..LabOptions::default() }
}

#[test]
fn root_ports_are_those_of_the_kernels_table_for_every_gateway() {
    if World::lacks_root() || World::lacks(&["nft", "conntrack"]) {
        return;
    }
    let all = of_the_kernel();
    let specs: Vec<SiteSpec> = all.iter().map(|which| site_of(*which)).collect();
    let options = lasting(Family::Ipv4);
    let name = format!("test-nat-kernel-table-{}", std::process::id());
    let lab = Lab::build(&name, &options, &specs).unwrap();
    let mut compared = Vec::new();
    for (site, which) in lab.sites().iter().zip(&all) {
        match with_gateway(site, *which, || compare(site, *which)) {
            Ok((count, _)) => {
                // Three inside ports to four destinations are but the first of the experiments.
                assert!(count > 100, "{}: {count}", which.name());
                compared.push(which.name());
            }
            Err(Failure::Told { code: MISSING, message }) => println!("SKIP: {message}"),
            Err(Failure::Told { message, .. }) => panic!("{message}"),
            Err(Failure::Silent(code)) => panic!("{}: {code}", which.name()),
        }
    }
    println!("compared: {}", compared.join(", "));
    assert!(compared.len() > 3, "{compared:?}");
}
