//! The extra load of a gateway beside its work: counted by nft, iptables and ip, passed by every packet, matched by none,
//! and gone in the end.

mod world;

use weir_gateway::{Family, Role};
use weir_sys::privilege::test_needs_root;
use world::{GatewayWorld, in_ns, variant};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// The first number in what a command of the gateway prints.
fn count(world: &GatewayWorld, command: &str) -> u64 {
    in_ns(&world.gateway, command).trim().parse().unwrap()
}

/// The name of the chain, table or set of what is there in addition.
fn extra(world: &GatewayWorld) -> String {
    format!("weir_{}_extra", world.place.tag)
}

fn words(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::Ipv4 => ("ip", "-4"),
        Family::Ipv6 => ("ip6", "-6"),
    }
}

#[test]
fn root_rules_and_prefixes_of_nft_are_passed_and_match_nothing() {
    if test_needs_root() {
        return;
    }
    for family in FAMILIES {
        for kind in ["routed", "nft-masquerade", "nft-snat", "nft-stateless"] {
            let world = GatewayWorld::routed(family);
            let before = world.facts();
            let json = format!(r#"{{"kind": "{kind}", "extra": {{"rules": 25, "prefixes": 3000}}}}"#);
            let v = variant(&json);
            assert!(v.describe().ends_with(", with 25 rules + 3000 prefixes in addition"));
            let mut journals = world.apply(&v);
            let (ip, _) = words(family);
            let table = format!("{ip} {}", extra(&world));
            let listing = format!("nft list chain {table} forward");
            assert_eq!(count(&world, &format!("{listing} | grep -c '{ip} saddr [^@].*counter'")), 25);
            assert_eq!(
                count(&world, &format!("nft list set {table} prefixes | grep -o '/[24]' | wc -l")),
                3000
            );
            // A packet at the end of the chain has passed all of it.
            in_ns(&world.gateway, &format!("nft add rule {table} forward counter comment end"));
            let expectation = v.expectation(&world.place);
            assert_eq!(Some(world.tcp(expectation.target, 5001).source.ip()), expectation.seen_source);
            assert_eq!(Some(world.udp(expectation.target, 5002).source.ip()), expectation.seen_source);
            let end = in_ns(&world.gateway, &format!("{listing} | grep 'comment \"end\"'"));
            assert!(!end.contains("packets 0 "), "{kind}: {end}");
            let matched =
                in_ns(&world.gateway, &format!("{listing} | grep 'saddr' | grep -v 'packets 0 ' || true"));
            assert_eq!(matched, "", "{kind}");
            in_ns(
                &world.gateway,
                &format!(
                    "nft delete rule {table} forward handle \
                     $(nft -a list chain {table} forward | sed -n 's/.*comment \"end\" # handle //p')"
                ),
            );
            journals.iter_mut().rev().for_each(|(role, journal)| world.undo(*role, journal));
            assert_eq!(world.facts(), before, "{kind}");
        }
    }
}

#[test]
fn root_rules_of_iptables_are_passed_and_match_nothing() {
    if test_needs_root() {
        return;
    }
    for family in FAMILIES {
        let world = GatewayWorld::routed(family);
        let before = world.facts();
        let v = variant(r#"{"kind": "iptables-masquerade", "extra": {"rules": 1000}}"#);
        let mut journals = world.apply(&v);
        let extra = extra(&world);
        let save = match family {
            Family::Ipv4 => "iptables-nft-save",
            Family::Ipv6 => "ip6tables-nft-save",
        };
        assert_eq!(count(&world, &format!("{save} -t filter | grep -c -e '^-A {extra} '")), 1000);
        let seen = world.tcp(world.place.responder, 5001);
        assert_eq!(seen.source.ip(), world.place.gateway_outside);
        let counters = in_ns(&world.gateway, &format!("{save} -c -t filter | grep -e '-j {extra}'"));
        assert!(!counters.starts_with("[0:"), "every packet goes there: {counters}");
        assert_eq!(
            count(&world, &format!("{save} -c -t filter | grep -e '-A {extra}' | grep -c '^.0:0.'")),
            1000,
            "and matches nothing"
        );
        journals.iter_mut().rev().for_each(|(role, journal)| world.undo(*role, journal));
        assert_eq!(world.facts(), before);
    }
}

#[test]
fn root_routes_lie_beside_the_traffic() {
    if test_needs_root() {
        return;
    }
    for family in FAMILIES {
        let world = GatewayWorld::routed(family);
        let (_, version) = words(family);
        // A foreign network in the block, and the way to the responder: neither may change.
        let (other, inside) = match family {
            Family::Ipv4 => ("198.18.128.0/17", "198.18.200.7"),
            Family::Ipv6 => ("2001:2:0:8000::/49", "2001:2:0:8123::7"),
        };
        in_ns(&world.gateway, &format!("ip {version} route add {other} dev out0"));
        let before = world.facts();
        let ways = |world: &GatewayWorld| {
            [inside.to_owned(), world.place.responder.to_string(), world.place.initiator.to_string()]
                .map(|to| in_ns(&world.gateway, &format!("ip {version} -o route get {to}")))
        };
        let known = ways(&world);
        let v = variant(r#"{"kind": "routed", "extra": {"routes": 50000}}"#);
        let mut journal = world.apply_on(Role::Gateway, &world.place, &v).unwrap();
        assert_eq!(count(&world, &format!("ip {version} route show proto 119 | wc -l")), 50_000);
        let block = match family {
            Family::Ipv4 => "198.18.0.0/15",
            Family::Ipv6 => "2001:2::/48",
        };
        assert_eq!(count(&world, &format!("ip {version} route show root {block} proto 119 | wc -l")), 50_000);
        assert_eq!(count(&world, &format!("ip {version} route show root {other} proto 119 | wc -l")), 0);
        assert_eq!(ways(&world), known);
        assert_eq!(world.tcp(world.place.responder, 5001).source.ip(), world.place.initiator);
        let error = world.apply_on(Role::Gateway, &world.place, &v).unwrap_err();
        assert!(error.to_string().contains("route flush table main proto 119"), "{error}");
        world.undo(Role::Gateway, &mut journal);
        assert_eq!(world.facts(), before);
    }
}

/// Nothing that is called while a large set is there may list it: that alone takes nft and the kernel a minute at a million.
#[test]
fn root_many_prefixes_come_and_go() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv6);
    let before = world.facts();
    let v = variant(r#"{"kind": "nft-masquerade", "extra": {"prefixes": 100000}}"#);
    let mut journal = world.apply_on(Role::Gateway, &world.place, &v).unwrap();
    let listed = format!("nft list set ip6 {} prefixes | grep -o '/48' | wc -l", extra(&world));
    assert_eq!(count(&world, &listed), 100_000);
    assert_eq!(world.tcp(world.place.responder, 5001).source.ip(), world.place.gateway_outside);
    world.undo(Role::Gateway, &mut journal);
    assert_eq!(world.facts(), before);
}

#[test]
fn root_what_is_missing_is_told() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    let v = variant(r#"{"kind": "routed", "extra": {"rules": 10, "prefixes": 10, "routes": 10}}"#);
    let journal = world.apply_on(Role::Gateway, &world.place, &v).unwrap();
    let extra = extra(&world);
    let told = |command: &str| {
        in_ns(&world.gateway, command);
        let verified = world.gateway.run(|| v.verify(Role::Gateway, &world.place)).unwrap();
        verified.unwrap_err().to_string()
    };
    let one =
        "ip route del unreachable $(ip route show proto 119 | sed -n '1s/unreachable \\([^ ]*\\) .*/\\1/p')";
    assert!(told(one).contains("9 routes of its extra, and should have 10"));
    assert!(told(&format!("nft delete element ip {extra} prefixes {{ 1.0.0.0/24 }}")).contains("9 prefixes"));
    assert!(told(&format!("nft flush chain ip {extra} forward")).contains("0 rules"));
    drop(world.gateway.run(move || drop(journal)));
}
