//! The table by `weir serve`: sockets on both sides see what packets of the lab's own ends see.

mod raw;
#[path = "../reference/mod.rs"]
mod reference;
mod spoofed;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use reference::memory::Memory;
use reference::wire::Wire;
use reference::wire64::{self, known_as};
use reference::{Behaviour, Defect};
use weir_lab::{Family, Lab, LabOptions, Offloads, Preset, Role, Site, SiteSpec, Topology};
use weir_nat::rows::judge::Dependence::{Address, AddressAndPort, EndpointIndependent};
use weir_nat::rows::judge::Ipv6Kind;
use weir_nat::served::{EndOfPorts, Means, PortChoice, PortSurvey, ServerEnds, restrict, survey};
use weir_nat::table::NatKind;
use weir_nat::{Compliance, Ends, Limits, Observations, Packet, Side, Table, measure};
use weir_netlink::{Route, Rtnetlink};
use weir_probe::client::{NatCheck, Visit};
use weir_probe::{Config, Key, Limits as Bounds, NatPorts, Server};
use weir_sys::process::which;
use weir_sys::{NetNs, ProcRoot, Stop, privilege, sysctl};

/// The server's port, and those of its checks.
const PORT: u16 = 9347;
const CHECKS: std::ops::RangeInclusive<u16> = 9348..=9355;

/// The versions of IP inside and outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Ipv4,
    Ipv6,
    /// IPv6 inside, IPv4 outside.
    Nat64,
}

impl Version {
    /// An address of the outside as a client knows it.
    fn known(self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(address) if self == Version::Nat64 => known_as(address).into(),
            other => other,
        }
    }
}

fn lab(name: &str, sites: usize, version: Version) -> Lab {
    // Whole packets with whole checksums, which the reference NAT reads from the wire.
    let features = ["tx-checksum-ip-generic", "tx-generic-segmentation"].map(|name| (name.to_owned(), false));
    let offloads = Offloads { preset: Preset::Off, features: features.into_iter().collect() };
    let family = if version == Version::Ipv4 { Family::Ipv4 } else { Family::Ipv6 };
    let options = LabOptions { offloads, family, ..LabOptions::default() };
    let spec =
        |n| SiteSpec { name: format!("s{n}"), topology: Topology::Routed, return_route: false, wan: false };
    let specs: Vec<SiteSpec> = (0..sites).map(spec).collect();
    Lab::build(&format!("test-nat-served-{name}-{}", std::process::id()), &options, &specs).unwrap()
}

/// The addresses of the responder: a second one beside the lab's, or two of the other version.
fn server_addresses(site: &Site, version: Version) -> [IpAddr; 2] {
    let first = site.addresses().responder;
    let (second, length) = match first {
        _ if version == Version::Nat64 => return wire64::OUTSIDE,
        IpAddr::V4(first) => (Ipv4Addr::from(u32::from(first) + 20).into(), 24),
        IpAddr::V6(first) => (Ipv6Addr::from(u128::from(first) + 20).into(), 64),
    };
    let mut responder = Rtnetlink::open_in(site.host(Role::Responder).unwrap()).unwrap();
    let added = responder.add_address(&site.interfaces(Role::Responder).remove(0), second, length);
    assert!(added.is_ok() || added.is_err_and(|e| e.to_string().contains("assigned")));
    responder.wait_until_local(second, Duration::from_secs(5)).unwrap();
    [first, second]
}

/// The responder as a server with that many addresses, for as long as `f` takes.
fn with_server<T: Send>(
    site: &Site,
    version: Version,
    addresses: usize,
    f: impl FnOnce(SocketAddr) -> T + Send,
) -> T {
    with_keyed_server(site, version, addresses, None, Bounds::default(), f)
}

fn with_keyed_server<T: Send>(
    site: &Site,
    version: Version,
    addresses: usize,
    key: Option<Key>,
    limits: Bounds,
    f: impl FnOnce(SocketAddr) -> T + Send,
) -> T {
    let host = site.host(Role::Responder).unwrap();
    let all = server_addresses(site, version);
    let ports = NatPorts { addresses: all[..addresses].to_vec(), ports: Some(CHECKS) };
    let config = Config { key, iperf3: false, iperf3_json: false, log: Arc::new(|_| {}) };
    let stop = Stop::default();
    let address = SocketAddr::new(all[0], PORT);
    let known = SocketAddr::new(version.known(all[0]), PORT);
    let server = host.run(|| Server::open(address, limits, config)).unwrap().unwrap();
    let server = server.with_nat(ports);
    std::thread::scope(|scope| {
        let over = stop.clone();
        // Threads of a server are in the namespace of the one that runs it.
        let running = scope.spawn(move || host.run(|| server.run(&over).unwrap()).unwrap());
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(known)));
        stop.raise();
        running.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether the check has two addresses, and what it saw.
fn observe(site: &Site, server: SocketAddr, idle: Duration) -> (bool, Observations) {
    in_client(site, server, idle, |ends| (ends.has_two_addresses(), measure(ends, &mut |_| true).unwrap()))
}

fn in_client<T: Send>(
    site: &Site,
    server: SocketAddr,
    idle: Duration,
    f: impl FnOnce(&mut ServerEnds) -> T + Send,
) -> T {
    in_keyed_client(site, server, idle, None, f)
}

fn in_keyed_client<T: Send>(
    site: &Site,
    server: SocketAddr,
    idle: Duration,
    key: Option<&Key>,
    f: impl FnOnce(&mut ServerEnds) -> T + Send,
) -> T {
    let host = site.host(Role::Initiator).unwrap();
    let limits = Limits { idle, connections: idle, mappings: 0 };
    let client = || {
        let stop = Stop::default();
        let far = NatCheck::open(Visit::begin(server, key, &stop).unwrap()).unwrap();
        let mut ends = ServerEnds::new(far, limits, &stop).unwrap();
        let result = f(&mut ends);
        let bytes = ends.finish().unwrap();
        assert!(bytes.sent == 0 || bytes.sent < bytes.received, "{bytes:?}");
        result
    };
    host.run(client).unwrap()
}

fn table(site: &Site, addresses: usize, idle: Duration) -> (Table, Observations) {
    table_of(site, Version::Ipv4, addresses, idle)
}

fn table_of(site: &Site, version: Version, addresses: usize, idle: Duration) -> (Table, Observations) {
    with_server(site, version, addresses, |server| {
        let (two, seen) = observe(site, server, idle);
        assert_eq!(two, addresses == 2);
        let mut table = Table::of(&seen);
        let raw_packets = Err("the server has no key".to_owned());
        restrict(&mut table, &Means { two_addresses: two, low_ports: true, raw_packets });
        (table, seen)
    })
}

fn verdicts(table: &Table) -> BTreeMap<&'static str, Compliance> {
    table.rows.iter().map(|line| (line.row.id, line.judgement.verdict)).collect()
}

/// The table of the same NAT by packets in memory.
fn truth(behaviour: &Behaviour) -> Table {
    Table::of(&measure(&mut Memory::new(behaviour.clone(), Duration::ZERO), &mut |_| true).unwrap())
}

/// Rows that one host with sockets sees, timers left out.
const SEEN: [&str; 8] = [
    "udp-mapping",
    "udp-port-preservation",
    "udp-port-range",
    "udp-parity",
    "udp-filtering",
    "udp-hairpin",
    "tcp-mapping",
    "tcp-filtering",
];

fn each<T: Sync>(name: &str, cases: &[T], check: impl Fn(&Site, &T) + Sync) {
    each_of(name, Version::Ipv4, cases, check);
}

fn each_of<T: Sync>(name: &str, version: Version, cases: &[T], check: impl Fn(&Site, &T) + Sync) {
    let lab = lab(name, cases.len(), version);
    std::thread::scope(|scope| {
        for (site, case) in lab.sites().iter().zip(cases) {
            let check = &check;
            scope.spawn(move || check(site, case));
        }
    });
}

/// Every class, as the lab's own ends see it.
fn all_nine_classes(name: &str, version: Version) {
    let nat = if version == Version::Ipv6 { Behaviour::v6() } else { Behaviour::default() };
    let classes = [EndpointIndependent, Address, AddressAndPort];
    let all = classes.iter().flat_map(|mapping| classes.iter().map(|filtering| (*mapping, *filtering)));
    let cases: Vec<Behaviour> =
        all.map(|(mapping, filtering)| Behaviour { mapping, filtering, ..nat.clone() }).collect();
    each_of(name, version, &cases, |site, behaviour| {
        if version == Version::Nat64 {
            wire64::prepare(site);
        }
        let _nat = Wire::start(site, behaviour.clone());
        let (table, seen) = table_of(site, version, 2, Duration::ZERO);
        let truth = truth(behaviour);
        let ipv6 = match version {
            Version::Ipv4 => None,
            Version::Ipv6 => Some(Ipv6Kind::Nat66),
            Version::Nat64 => Some(Ipv6Kind::Nat64),
        };
        assert_eq!(table.kind, NatKind { ipv6, ..truth.kind.clone() }, "{behaviour:?}: {seen:#?}");
        let (found, expected) = (verdicts(&table), verdicts(&truth));
        for row in SEEN {
            // If a mapping depends on the destination, the answer to a stranger's SYN takes another one here.
            let lost = row == "tcp-filtering" && behaviour.mapping != EndpointIndependent;
            let unsure = lost && found[row] == Compliance::NotSure;
            assert!(unsure || found[row] == expected[row], "{row}: {behaviour:?}: {seen:#?}");
        }
    });
}

#[test]
fn root_all_nine_classes_by_a_server_of_two_addresses() {
    if privilege::test_needs_root() {
        return;
    }
    all_nine_classes("classes", Version::Ipv4);
}

#[test]
fn root_all_nine_classes_over_ipv6() {
    if privilege::test_needs_root() {
        return;
    }
    all_nine_classes("classes6", Version::Ipv6);
}

/// RFC 6146 sections 3.5.1.1 and 3.5.2.1: what its mapping and filtering depend on shows as behind a NAT of IPv4.
#[test]
fn root_all_nine_classes_through_nat64() {
    if privilege::test_needs_root() {
        return;
    }
    all_nine_classes("classes64", Version::Nat64);
}

/// The translator of prefixes, and none at all.
#[test]
fn root_prefixes_and_plain_routing_over_ipv6_by_a_server() {
    if privilege::test_needs_root() {
        return;
    }
    let not_neutral = Behaviour { defects: vec![Defect::PrefixNotNeutral], ..Behaviour::nptv6() };
    let cases = [None, Some(Behaviour::nptv6()), Some(not_neutral)];
    each_of("prefixes", Version::Ipv6, &cases, |site, behaviour| {
        let _nat = behaviour.clone().map(|behaviour| Wire::start(site, behaviour));
        if behaviour.is_none() {
            let forward = || sysctl::set(&ProcRoot::new("/"), "net.ipv6.conf.all.forwarding", "1");
            site.host(Role::Gateway).unwrap().run(forward).unwrap().unwrap();
            let plan = site.addresses();
            let interface = site.interfaces(Role::Responder).remove(0);
            let (destination, via) = (Some((plan.initiator, 128)), Some(plan.gateway_outside));
            let route = Route { destination, via, interface: &interface, onlink: false };
            Rtnetlink::open_in(site.host(Role::Responder).unwrap()).unwrap().add_route(route).unwrap();
        }
        let (table, seen) = table_of(site, Version::Ipv6, 2, Duration::ZERO);
        let verdict = verdicts(&table)["npt-checksum-neutral"];
        let expected = match behaviour {
            None => (Ipv6Kind::Untranslated, Compliance::NotTestable),
            Some(nat) if nat.defects.is_empty() => (Ipv6Kind::Nptv6, Compliance::Meets),
            Some(_) => (Ipv6Kind::Nptv6, Compliance::Fails),
        };
        assert_eq!((table.kind.ipv6, verdict), (Some(expected.0), expected.1), "{seen:#?}");
        for row in ["udp-filtering", "tcp-filtering"] {
            assert_eq!(verdicts(&table)[row], Compliance::Meets, "{row}: {seen:#?}");
        }
        let unsolicited = table.line("npt-unsolicited").unwrap();
        assert!(unsolicited.judgement.seen.contains("only to mappings"), "{unsolicited:?}");
    });
}

#[test]
fn root_one_address_shows_only_a_dependence_on_the_port() {
    if privilege::test_needs_root() {
        return;
    }
    each("one", &[EndpointIndependent, Address, AddressAndPort], |site, mapping| {
        let behaviour = Behaviour { mapping: *mapping, ..Behaviour::default() };
        let _nat = Wire::start(site, behaviour);
        let (table, seen) = table(site, 1, Duration::ZERO);
        let verdict = if *mapping == AddressAndPort { Compliance::Fails } else { Compliance::NotTestable };
        for row in ["udp-mapping", "tcp-mapping"] {
            assert_eq!(verdicts(&table)[row], verdict, "{row} {mapping:?}: {seen:#?}");
        }
        for row in ["udp-filtering", "tcp-filtering"] {
            let line = table.line(row).unwrap();
            assert!(line.judgement.seen.contains("second address"), "{line:?}");
        }
    });
}

fn nft(gateway: &NetNs, rules: &str) {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped());
    gateway.enter_on_spawn(&mut command);
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), rules.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{rules}");
}

/// A site whose gateway translates by the kernel.
fn translated(site: &Site, rule: &str) {
    let gateway = site.host(Role::Gateway).unwrap();
    let proc = ProcRoot::new("/");
    let sysctls = [
        ("net.ipv4.ip_forward", "1"),
        ("net.netfilter.nf_conntrack_udp_timeout", "4"),
        ("net.netfilter.nf_conntrack_udp_timeout_stream", "7"),
        ("net.netfilter.nf_conntrack_icmp_timeout", "5"),
    ];
    nft(
        gateway,
        &format!(
            "table ip nat {{ chain post {{ type nat hook postrouting priority srcnat; \
             oifname \"{}\" {rule}; }}; }}\n",
            site.addresses().outside_interface
        ),
    );
    for (name, value) in sysctls {
        gateway.run(|| sysctl::set(&proc, name, value)).unwrap().unwrap();
    }
}

fn lacks_nft() -> bool {
    let lacks = which("nft").is_none();
    if lacks {
        println!("SKIP: nft is not installed");
    }
    lacks
}

#[test]
fn root_the_kernels_nat_by_a_server() {
    if privilege::test_needs_root() || lacks_nft() {
        return;
    }
    each("kernel", &["masquerade", "masquerade fully-random"], |site, rule| {
        translated(site, rule);
        let (table, seen) = table(site, 2, Duration::ZERO);
        let random = rule.ends_with("random");
        assert_eq!(
            table.kind.classic,
            Some(if random { "symmetric" } else { "port restricted cone" }),
            "{seen:#?}"
        );
        let verdicts = verdicts(&table);
        assert_eq!(verdicts["udp-mapping"], if random { Compliance::Fails } else { Compliance::Meets });
        assert_eq!(verdicts["udp-filtering"], Compliance::Fails, "{rule}: {seen:#?}");
        let tcp = if random { Compliance::NotSure } else { Compliance::Fails };
        assert_eq!(verdicts["tcp-filtering"], tcp, "{rule}: {seen:#?}");
        // The kernel draws from few privileged ports (600 to 1023), so one may be the old one by chance.
        for port in seen.udp_ports.unwrap().iter().filter(|p| !random || p.inside.port() >= 1024) {
            assert_eq!(Some(port.inside.port()) == port.seen.map(|seen| seen.port()), !random, "{port:?}");
        }
    });
}

/// The kernel counts the time of mappings in ticks, of which a machine has at least a hundred a second: it rounds at both ends.
const TICK: f64 = 0.02;

#[test]
fn root_paced_idle_times_by_a_server() {
    if privilege::test_needs_root() || lacks_nft() {
        return;
    }
    // With the key raw packets show the timer of pings too.
    let check = |site: &Site, keyed: &bool| {
        translated(site, "masquerade");
        let limit = Duration::from_secs(10);
        let (_, seen) =
            if *keyed { raw::keyed_table(site, Version::Ipv4, limit) } else { table(site, 2, limit) };
        let idle = seen.idle.unwrap();
        // The kernel's timers as they were set (nf_conntrack_proto_udp.c, nf_conntrack_proto_icmp.c).
        let all = [(&idle.unanswered, 4.0), (&idle.answered, 7.0), (&idle.icmp, 5.0)];
        for (tries, truth) in all.into_iter().take(if *keyed { 3 } else { 2 }) {
            // Four a second for ten seconds, however late this host was with some of them.
            assert_eq!(tries.len(), 40);
            for one in tries {
                let holds =
                    if one.alive { one.idle_s <= truth } else { one.idle_s + one.late_s >= truth - TICK };
                assert!(holds, "{truth} s: {one:?}");
            }
            assert!(weir_nat::experiments::bracket(tries).is_some(), "{tries:?}");
        }
        assert!(idle.refreshed_out.unwrap().alive);
        if !keyed {
            assert_eq!((idle.icmp, idle.tcp_opening), (Vec::new(), Vec::new()));
        }
    };
    weir_testkit::measured(1, 1, |_| weir_testkit::holds(|| each("idle", &[false, true], check)));
}

#[test]
fn root_closed_endpoints_are_named() {
    if privilege::test_needs_root() || lacks_nft() {
        return;
    }
    each("closed", &[0, 1, 4], |site, closed| {
        translated(site, "masquerade");
        let rule = match closed {
            0 => "accept",
            1 => "ip daddr 198.19.0.22 udp dport 9349 drop",
            _ => "udp dport 9348-9349 drop",
        };
        let rule =
            format!("table ip filter {{ chain f {{ type filter hook forward priority 0; {rule}; }}; }}\n");
        nft(site.host(Role::Gateway).unwrap(), &rule);
        let unreachable = with_server(site, Version::Ipv4, 2, |server| {
            in_client(site, server, Duration::ZERO, |ends| ends.unreachable().unwrap())
        });
        assert_eq!(unreachable.len(), *closed, "{unreachable:?}");
        if *closed == 1 {
            assert_eq!(unreachable, ["198.19.0.22:9349".parse().unwrap()]);
        }
    });
}

fn ports(site: &Site, limit: usize) -> PortSurvey {
    with_server(site, Version::Ipv4, 1, |server| {
        in_client(site, server, Duration::ZERO, |ends| survey(ends, limit, &mut |_| true).unwrap())
    })
}

#[test]
fn root_ports_of_the_kernels_nat_and_their_end() {
    if privilege::test_needs_root() || lacks_nft() {
        return;
    }
    let rules =
        ["masquerade", "masquerade fully-random", "meta l4proto udp masquerade to :40000-40099; masquerade"];
    each("ports", &rules, |site, rule| {
        translated(site, rule);
        // No mapping ends before the last one is opened, however slow the machine.
        let gateway = site.host(Role::Gateway).unwrap();
        let timeout = "net.netfilter.nf_conntrack_udp_timeout";
        gateway.run(|| sysctl::set(&ProcRoot::new("/"), timeout, "600")).unwrap().unwrap();
        let seen = ports(site, 300);
        let told = (seen.choice, seen.end, seen.arrived, seen.distinct);
        match *rule {
            "masquerade" => assert_eq!(told, (PortChoice::Preserved, EndOfPorts::NotReached, 300, 300)),
            "masquerade fully-random" => {
                assert_eq!(told, (PortChoice::Spread, EndOfPorts::NotReached, 300, 300));
            }
            _ => {
                let within = seen.ranges.values().all(|(low, high)| *low >= 40_000 && *high <= 40_099);
                assert!(within, "{:?}", seen.ranges);
                assert_eq!((seen.choice, seen.distinct), (PortChoice::Block, seen.arrived), "{seen:?}");
                assert!((60..=100).contains(&seen.arrived), "{seen:?}");
                assert!(matches!(seen.end, EndOfPorts::Silence | EndOfPorts::SomeLost), "{seen:?}");
            }
        }
        assert_eq!((seen.witnesses, seen.witnesses_alive), (8, 8), "{rule}: {seen:?}");
    });
}

/// Sockets cannot send what is no datagram and opens no connection.
#[test]
fn root_what_sockets_cannot_send_is_an_error() {
    if privilege::test_needs_root() {
        return;
    }
    each("wrong", &[()], |site, ()| {
        let _nat = Wire::start(site, Behaviour::default());
        with_server(site, Version::Ipv4, 2, |server| {
            in_client(site, server, Duration::ZERO, |ends| {
                let [near, far] = [ends.conditions().inside[0], ends.conditions().outside[0]];
                let packet = weir_nat::Packet::new(near, far, 47, vec![0; 8]);
                for side in [Side::Inside, Side::Outside] {
                    assert!(ends.send(side, &packet).is_err());
                }
            });
        });
    });
}
