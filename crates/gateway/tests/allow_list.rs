//! Lists of addresses on real traffic: a listed source gets through, an unlisted one does not and is counted, by every means, at
//! both hooks, in both families; and what a list takes is measured.

mod world;

use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use weir_gateway::{Family, Journal, Place, Role, VariantKind};
use weir_record::Unit;
use weir_sys::foreign_source::udp_from;
use weir_sys::privilege::test_needs_root;
use weir_sys::process::which;
use world::{GatewayWorld, in_ns, variant};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

const FILTERS: [&str; 5] = ["nft-set", "nft-linear", "ipset-iptables", "bpf", "bpf-xdp"];

/// Nothing takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prefixes in the form of a registry's file, a part of the project.
fn sample() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/delegated-sample")
}

fn lacks_programs() -> bool {
    let missing = ["nft", "ipset", "iptables-nft"].into_iter().find(|p| which(p).is_none());
    if let Some(program) = missing {
        println!("SKIP: needs {program} (apt-get install nftables ipset iptables)");
    }
    missing.is_some()
}

/// Runs on the host that filters.
fn there<T: Send>(world: &GatewayWorld, variant: &VariantKind, work: impl FnOnce() -> T + Send) -> T {
    world.ns(variant.counts_at()).run(work).unwrap()
}

fn refused(world: &GatewayWorld, variant: &VariantKind) -> u64 {
    there(world, variant, || variant.refused(&world.place)).unwrap().unwrap()
}

/// The datagrams that arrive of some sent from each of these addresses.
fn arrive(world: &GatewayWorld, sources: &[IpAddr]) -> Vec<IpAddr> {
    let to = (world.place.responder, 5003);
    let server = world.responder.run(|| weir_testkit::bound(|| UdpSocket::bind(to))).unwrap();
    for source in sources {
        let socket = world.initiator.run(|| udp_from(*source)).unwrap().unwrap();
        socket.send_to(b"let me in", to).unwrap();
    }
    // The last one is listed in any case, and comes behind all the others.
    let own = world.initiator.run(|| udp_from(world.place.initiator)).unwrap().unwrap();
    own.send_to(b"end", to).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut seen = Vec::new();
    loop {
        let mut bytes = [0; 16];
        let (n, from) = server.recv_from(&mut bytes).unwrap();
        if &bytes[..n] == b"end" {
            return seen;
        }
        seen.push(from.ip());
    }
}

fn undo(world: &GatewayWorld, journals: &mut [(Role, Journal)]) {
    journals.iter_mut().rev().for_each(|(role, journal)| world.undo(*role, journal));
}

#[test]
fn root_a_listed_source_gets_through_and_an_unlisted_one_does_not() {
    if test_needs_root() || lacks_programs() {
        return;
    }
    for (family, hook, established) in [
        (Family::Ipv4, "forward", false),
        (Family::Ipv4, "input", true),
        (Family::Ipv6, "forward", true),
        (Family::Ipv6, "input", false),
    ] {
        let world = GatewayWorld::routed(family);
        if hook == "input" {
            // A gateway is still there, which does nothing but forward.
            in_ns(&world.gateway, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        }
        for filter in FILTERS {
            // At XDP no connection can be looked up.
            let established = established && filter != "bpf-xdp";
            let v = variant(&format!(
                r#"{{"kind": "allow-list", "filter": "{filter}", "hook": "{hook}", "prefixes": 300,
                    "established-first": {established}}}"#
            ));
            proves(&world, &v, hook == "input");
        }
    }
}

fn proves(world: &GatewayWorld, v: &VariantKind, input: bool) {
    let words = v.describe();
    let (before, xdp_before) = (world.facts(), interfaces_with_xdp(world, v));
    assert_eq!(xdp_before, [] as [String; 0]);
    let mut journals = world.apply(v);
    let xdp: &[&str] = if words.contains("at XDP") { &[if input { "r0" } else { "in0" }] } else { &[] };
    assert_eq!(interfaces_with_xdp(world, v), xdp, "{words}");
    let (counted, was_refused) = (there(world, v, || v.counter(&world.place)).unwrap(), refused(world, v));
    assert_eq!(world.udp(world.place.responder, 5001).source.ip(), world.place.initiator, "{words}");
    assert_eq!(world.tcp(world.place.responder, 5002).source.ip(), world.place.initiator, "{words}");
    let now = there(world, v, || v.counter(&world.place)).unwrap();
    assert!(now > counted, "{words}: {counted:?} to {now:?}");
    let denied = v.denied_source(&world.place).unwrap();
    assert_eq!(arrive(world, &[denied, denied, denied]), [] as [IpAddr; 0], "{words}");
    let deadline = Instant::now() + PATIENCE;
    while refused(world, v) < was_refused + 3 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    // Neighbours on the link of the initiator may have been refused too, where the program sees all that comes in.
    assert!(refused(world, v) >= was_refused + 3, "{words}: {was_refused} to {}", refused(world, v));
    undo(world, &mut journals);
    assert_eq!(world.facts(), before, "{words}");
    assert_eq!(interfaces_with_xdp(world, v), xdp_before, "{words}");
    if input {
        assert_eq!(arrive(world, &[denied]), [denied], "{words}: taken away");
    }
}

/// Interfaces of the host that filters which have a program at XDP, as ip(8) shows them.
fn interfaces_with_xdp(world: &GatewayWorld, v: &VariantKind) -> Vec<String> {
    let listing = in_ns(world.ns(v.counts_at()), "ip -o link");
    let with = listing.lines().filter(|line| line.contains(" xdp"));
    // `2: in0@if3: <...`
    with.map(|line| line.split([':', '@']).nth(1).unwrap().trim().to_owned()).collect()
}

#[test]
fn root_a_driver_without_xdp_is_named() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    in_ns(&world.gateway, "ip link add plain0 type bridge && ip link set plain0 up");
    let place = Place { inside_interface: "plain0".into(), ..world.place.clone() };
    let before = world.facts();
    let at = |filter: &str| variant(&format!(r#"{{"kind": "allow-list", "filter": "{filter}"}}"#));
    let error = world.apply_on(Role::Gateway, &place, &at("bpf-xdp")).unwrap_err().to_string();
    assert!(error.contains("the driver of plain0 has no XDP"), "{error}");
    assert_eq!(world.facts(), before);
    let mut journal = world.apply_on(Role::Gateway, &place, &at("bpf")).unwrap();
    world.undo(Role::Gateway, &mut journal);
}

#[test]
fn root_an_interface_without_an_ethernet_header_is_refused() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    in_ns(&world.gateway, "ip tuntap add tun7 mode tun && ip link set tun7 up");
    let place = Place { inside_interface: "tun7".into(), ..world.place.clone() };
    let before = world.facts();
    for filter in ["bpf", "bpf-xdp"] {
        let v = variant(&format!(r#"{{"kind": "allow-list", "filter": "{filter}"}}"#));
        let error = world.apply_on(Role::Gateway, &place, &v).unwrap_err().to_string();
        assert!(error.contains("tun7: packets come in there without an Ethernet header"), "{error}");
        assert_eq!(world.facts(), before);
    }
}

#[test]
fn root_a_real_list_decides_address_by_address() {
    if test_needs_root() || lacks_programs() {
        return;
    }
    for family in FAMILIES {
        // From the sample: edges of AA's ranges, their neighbours, and BB's, which is not chosen.
        let (listed, unlisted): (&[&str], &[&str]) = match family {
            Family::Ipv4 => (
                &["192.0.2.0", "192.0.2.95", "198.51.100.128", "198.51.100.255", "203.0.113.7"],
                &[
                    "192.0.1.255",
                    "192.0.2.96",
                    "198.51.100.127",
                    "198.51.101.0",
                    "203.0.113.6",
                    "203.0.113.8",
                ],
            ),
            Family::Ipv6 => (
                &["2001:db8::", "2001:db8:0:ffff:ffff:ffff:ffff:ffff", "2001:db8:8000::1"],
                &["2001:db7:ffff::1", "2001:db8:1::", "2001:db8:7fff:ffff:ffff:ffff:ffff:ffff", "2001:db9::"],
            ),
        };
        let parse = |all: &[&str]| all.iter().map(|a| a.parse::<IpAddr>().unwrap()).collect::<Vec<_>>();
        let (listed, unlisted) = (parse(listed), parse(unlisted));
        let world = GatewayWorld::routed(family);
        // Sources that the gateway has no way back to.
        in_ns(&world.gateway, "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.in0.rp_filter=0");
        for filter in FILTERS {
            let v = variant(&format!(
                r#"{{"kind": "allow-list", "filter": "{filter}", "files": [{:?}], "countries": ["AA"]}}"#,
                sample()
            ));
            let mut journals = world.apply(&v);
            let all: Vec<IpAddr> = listed.iter().chain(&unlisted).copied().collect();
            assert_eq!(arrive(&world, &all), listed, "{filter}");
            assert!(refused(&world, &v) >= unlisted.len() as u64, "{filter}");
            undo(&world, &mut journals);
        }
    }
}

/// More than the 65536 that a set of ipset holds by default.
const MORE_THAN_A_SET: u32 = 70_000;

#[test]
fn root_what_a_list_takes_is_measured_and_leaves_nothing_behind() {
    if test_needs_root() || lacks_programs() {
        return;
    }
    for family in FAMILIES {
        let large = if family == Family::Ipv4 { MORE_THAN_A_SET } else { 5000 };
        takes(family, &FILTERS.map(|f| (f, if f == "ipset-iptables" { large } else { 5000 })));
    }
    let none = variant(r#"{"kind": "allow-list"}"#);
    let world = GatewayWorld::routed(Family::Ipv4);
    assert!(none.facts(&world.place).unwrap().is_empty());
}

/// As many IPv6 prefixes as the shorter test has of IPv4. `make soak` runs it.
#[test]
fn root_soak_what_a_large_set_of_ipv6_takes_is_measured() {
    if test_needs_root() || lacks_programs() {
        return;
    }
    takes(Family::Ipv6, &[("ipset-iptables", MORE_THAN_A_SET)]);
}

fn takes(family: Family, filters: &[(&str, u32)]) {
    let world = GatewayWorld::routed(family);
    for &(filter, prefixes) in filters {
        let v =
            variant(&format!(r#"{{"kind": "allow-list", "filter": "{filter}", "prefixes": {prefixes}}}"#));
        let mut journal = world.apply_on(Role::Gateway, &world.place, &v).unwrap();
        let sets = "nft -t list ruleset; ipset list -n";
        let before = in_ns(&world.gateway, sets);
        let facts = world.gateway.run(|| v.facts(&world.place)).unwrap().unwrap();
        assert_eq!(in_ns(&world.gateway, sets), before, "{filter}");
        println!("{filter}: {facts:#?}");
        let value = |name: &str| facts.iter().find(|f| f.name == name).unwrap().value.unwrap();
        // And the initiator's address.
        let all = f64::from(prefixes + 1);
        assert_eq!(value("list_prefixes"), all, "{filter}");
        assert!(value("load_ns") > 1e3 && value("update_ns") > 1e3, "{filter}");
        // Each prefix has its address at least. The memory of nft is read for the whole machine, where others give back
        // meanwhile.
        let memory = facts.iter().find(|f| f.name == "memory_bytes").unwrap();
        match memory.value {
            Some(bytes) if filter.starts_with("nft") => assert!(bytes > 0.0),
            Some(bytes) => assert!(bytes > all * 4.0, "{filter}: {bytes}"),
            None => assert!(filter.starts_with("nft"), "{filter}"),
        }
        assert_eq!(memory.unit, Unit::Bytes);
        assert!(facts.iter().all(|f| !f.how.is_empty() && (f.n > 0) == f.value.is_some()));
        assert_eq!(world.tcp(world.place.responder, 5002).source.ip(), world.place.initiator, "{filter}");
        world.undo(Role::Gateway, &mut journal);
    }
}
