//! Every variant on real traffic: what the responder sees, whether the counter moves, and whether all is as before.

mod world;

use weir_gateway::{Error, Family, Journal, Place, Role, VariantKind};
use weir_sys::privilege::test_needs_root;
use world::{GatewayWorld, in_ns, variant};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// Applies, sends, compares with the expectation, removes, and compares the hosts with before. Returns the source ports.
fn prove(world: &GatewayWorld, variant: &VariantKind) -> Vec<u16> {
    let before = world.facts();
    let mut journals = world.apply(variant);
    let expectation = variant.expectation(&world.place);
    let mut ports = Vec::new();
    for (port, udp) in [(5001, false), (5002, true), (5003, true), (5004, false)] {
        let counted = world.counter(&world.place, variant);
        let seen =
            if udp { world.udp(expectation.target, port) } else { world.tcp(expectation.target, port) };
        if let Some(source) = expectation.seen_source {
            assert_eq!(seen.source.ip(), source, "port {port}");
        }
        let now = world.counter(&world.place, variant);
        assert!(counted.is_none() || now > counted, "the rule's counter went from {counted:?} to {now:?}");
        ports.push(seen.source.port());
    }
    for (role, journal) in journals.iter_mut().rev() {
        world.undo(*role, journal);
    }
    assert_eq!(world.facts(), before);
    ports
}

fn prove_routed(json: &str) {
    if test_needs_root() {
        return;
    }
    for family in FAMILIES {
        prove(&GatewayWorld::routed(family), &variant(json));
    }
}

#[test]
fn root_routed() {
    prove_routed(r#"{"kind": "routed"}"#);
}

#[test]
fn root_nft_masquerade() {
    prove_routed(r#"{"kind": "nft-masquerade"}"#);
}

/// The flow table is beside the rules, and ends with them.
#[test]
fn root_nft_masquerade_with_the_fast_path() {
    prove_routed(r#"{"kind": "nft-masquerade", "fastpath": true}"#);
}

/// The gateway of this test leaves checksums to interfaces.
#[test]
fn root_the_fast_path_by_xdp_is_refused_where_senders_leave_checksums_to_interfaces() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    let before = world.facts();
    let by_xdp = variant(r#"{"kind": "nft-masquerade", "fastpath": "xdp"}"#);
    let refused = world.gateway.run(|| {
        let mut journal = Journal::new();
        let why = weir_gateway::apply(&*by_xdp, Role::Gateway, &world.place, &mut journal).unwrap_err();
        assert!(journal.undo().is_empty());
        why.to_string()
    });
    let why = refused.unwrap();
    assert!(why.contains("tx-checksum-ip-generic"), "{why}");
    assert_eq!(world.facts(), before);
}

#[test]
fn root_nft_snat() {
    prove_routed(r#"{"kind": "nft-snat", "fully-random": true}"#);
}

#[test]
fn root_iptables_masquerade() {
    prove_routed(r#"{"kind": "iptables-masquerade"}"#);
}

#[test]
fn root_translation_without_state_leaves_nothing_in_the_table_of_connections() {
    if test_needs_root() {
        return;
    }
    for (kind, family) in
        ["nft-stateless", "bpf-stateless"].into_iter().flat_map(|k| FAMILIES.map(|f| (k, f)))
    {
        let world = GatewayWorld::routed(family);
        // Connection tracking is on, as on a firewall, and must not see the translated packets.
        in_ns(
            &world.gateway,
            "nft 'add table inet watch; add chain inet watch c { type filter hook forward priority 0; };
                  add rule inet watch c ct state new,established counter'",
        );
        prove(&world, &variant(&format!("{{\"kind\": \"{kind}\"}}")));
        let rules = in_ns(&world.gateway, "nft list table inet watch");
        assert!(rules.contains("counter packets 0 bytes 0"), "{kind}: {rules}");
    }
}

#[test]
fn root_bpf_stateless_translates_what_the_rules_below_then_do_not_see() {
    if test_needs_root() {
        return;
    }
    for family in FAMILIES {
        let world = GatewayWorld::routed(family);
        let v = variant(r#"{"kind": "bpf-stateless"}"#);
        let mut journals = world.apply(&v);
        let target = v.expectation(&world.place).target;
        world.tcp(target, 5001);
        let before = in_ns(&world.gateway, "nft list ruleset");
        let counted = world.counter(&world.place, &v).unwrap();
        world.tcp(target, 5001);
        // Opening, request, answer and closing, both ways.
        assert!(world.counter(&world.place, &v).unwrap() >= counted + 6);
        assert_eq!(in_ns(&world.gateway, "nft list ruleset"), before);
        journals.iter_mut().rev().for_each(|(role, journal)| world.undo(*role, journal));
    }
}

#[test]
fn root_options_reach_the_kernel() {
    if test_needs_root() {
        return;
    }
    let options = r#""ports": "3000-3009", "fully-random": true, "mss-clamp": 1111,
                     "conntrack-timeouts": {"udp": "77s", "tcp-established": "2h"}"#;
    for kind in ["nft-masquerade", "nft-snat", "iptables-masquerade", "iptables-legacy-masquerade"] {
        for family in FAMILIES {
            let world = GatewayWorld::routed(family);
            let v = variant(&format!("{{\"kind\": \"{kind}\", {options}}}"));
            if lacks_legacy(&world, &v) {
                continue;
            }
            let ports = prove(&world, &v);
            assert!(ports.iter().all(|p| (3000..=3009).contains(p)), "{kind}: {ports:?}");

            let mut journals = world.apply(&v);
            let timeouts = "sysctl -n net.netfilter.nf_conntrack_udp_timeout net.netfilter.nf_conntrack_tcp_timeout_established";
            assert_eq!(in_ns(&world.gateway, timeouts), "77\n7200\n", "{kind}");
            let mss = world.mss_at_responder(5001);
            // The MSS less the 12 bytes of the timestamps option (RFC 6691).
            assert_eq!(mss, 1111 - 12, "{kind}");
            journals.iter_mut().rev().for_each(|(role, journal)| world.undo(*role, journal));
        }
    }
}

#[test]
fn root_iptables_legacy_masquerade() {
    if test_needs_root() {
        return;
    }
    for family in FAMILIES {
        let world = GatewayWorld::routed(family);
        let v = variant(r#"{"kind": "iptables-legacy-masquerade"}"#);
        if !lacks_legacy(&world, &v) {
            prove(&world, &v);
        }
    }
}

/// On a kernel without legacy iptables, the variant must say so and leave the host as it was.
fn lacks_legacy(world: &GatewayWorld, v: &VariantKind) -> bool {
    if v.kind() != "iptables-legacy-masquerade" {
        return false;
    }
    let before = world.facts();
    match world.apply_on(Role::Gateway, &world.place, v) {
        Ok(mut journal) => {
            world.undo(Role::Gateway, &mut journal);
            false
        }
        Err(Error::Unsupported(why)) => {
            println!("SKIP: {why}");
            assert_eq!(world.facts(), before);
            true
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn root_docker_publish_by_iptables_and_by_nft() {
    if test_needs_root() {
        return;
    }
    for backend in ["iptables", "nft"] {
        for family in FAMILIES {
            let world = GatewayWorld::bridged(family);
            prove(&world, &variant(&format!(r#"{{"kind": "docker-publish", "backend": "{backend}"}}"#)));
        }
    }
}

#[test]
fn root_docker_engine_publishes_and_leaves_nothing() {
    if test_needs_root() {
        return;
    }
    if world::lacks_docker() {
        return;
    }
    let world = GatewayWorld::bridged(Family::Ipv4);
    let v = variant(r#"{"kind": "docker-publish", "engine": "docker"}"#);
    prove(&world, &v);

    // A rule of another owner, made while the engine was there, stays.
    let mut journal = world.apply_on(Role::Gateway, &world.place, &v).unwrap();
    let log = in_ns(&world.gateway, "iptables-nft-save -t nat | grep DOCKER");
    assert!(log.contains("--to-destination 198.18.1.2:5001"), "{log}");
    in_ns(&world.gateway, "iptables-nft -A FORWARD -s 10.9.9.9 -j DROP");
    world.undo(Role::Gateway, &mut journal);
    let left = world::facts(&world.gateway);
    assert!(left.contains("10.9.9.9") && !left.contains("DOCKER"), "{left}");

    let error = GatewayWorld::bridged(Family::Ipv6);
    let error = error.apply_on(Role::Gateway, &error.place, &v).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
}

#[test]
fn root_docker_publish_lets_published_ports_through_a_closed_firewall() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::bridged(Family::Ipv4);
    in_ns(&world.gateway, "iptables-nft -P FORWARD DROP");
    prove(&world, &variant(r#"{"kind": "docker-publish"}"#));
}

#[test]
fn root_bpf_publish_translates_what_the_rules_below_then_do_not_see() {
    if test_needs_root() {
        return;
    }
    // Entries of the ports; neighbours and the like may have others.
    let tracked = "for f in ipv4 ipv6; do conntrack -L -f $f 2>/dev/null; done | grep port=500 || true";
    for backend in ["iptables", "nft"] {
        for family in FAMILIES {
            let world = GatewayWorld::bridged(family);
            prove(&world, &variant(&format!(r#"{{"kind": "bpf-publish", "backend": "{backend}"}}"#)));
            assert_eq!(in_ns(&world.gateway, tracked), "", "{backend}, {family:?}");
        }
    }
    // The same traffic by the rules alone is in the table.
    let world = GatewayWorld::bridged(Family::Ipv4);
    let mut journal =
        world.apply_on(Role::Gateway, &world.place, &variant(r#"{"kind": "docker-publish"}"#)).unwrap();
    world.tcp(world.place.gateway_inside, 5001);
    assert_ne!(in_ns(&world.gateway, tracked), "");
    world.undo(Role::Gateway, &mut journal);
}

#[test]
fn root_bpf_publish_says_which_link_it_needs() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::bridged(Family::Ipv4);
    let before = world.facts();
    let attempt = |json: &str| match world.apply_on(Role::Gateway, &world.place, &variant(json)) {
        Err(Error::Unsupported(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{json} was accepted"),
    };
    let bridge = attempt(r#"{"kind": "bpf-publish", "container-interface": "br0"}"#);
    assert!(bridge.contains("veth"), "{bridge}");
    let absent = attempt(r#"{"kind": "bpf-publish", "container-interface": "none0"}"#);
    assert!(absent.contains("none0"), "{absent}");
    assert_eq!(world.facts(), before);

    in_ns(&world.gateway, "ip link add v0 type veth peer name v1 && ip link set v0 master br0");
    let before = world.facts();
    let two = attempt(r#"{"kind": "bpf-publish"}"#);
    assert!(two.contains("2 links") && two.contains("container-interface"), "{two}");
    let inner = attempt(r#"{"kind": "bpf-publish", "container-interface": "v0"}"#);
    assert!(inner.contains("other end in this network namespace"), "{inner}");
    assert_eq!(world.facts(), before);
    prove(&world, &variant(r#"{"kind": "bpf-publish", "container-interface": "out0"}"#));
}

#[test]
fn root_custom_commands_see_the_place_and_are_taken_back() {
    prove_routed(
        r#"{"kind": "custom",
            "apply": {"gateway": [
                "case $WEIR_FAMILY in ipv4) f=ip;; ipv6) f=ip6;; esac; nft add table $f mine_$WEIR_TAG; nft \"add chain $f mine_$WEIR_TAG c { type nat hook postrouting priority 100; }; add rule $f mine_$WEIR_TAG c oifname $WEIR_OUTSIDE_INTERFACE masquerade\"",
                "sysctl -q net.ipv4.conf.$WEIR_INSIDE_INTERFACE.forwarding=1 net.ipv4.conf.$WEIR_OUTSIDE_INTERFACE.forwarding=1 net.ipv6.conf.all.forwarding=1"]},
            "verify": {"gateway": ["nft list tables | grep -q mine_$WEIR_TAG"]},
            "remove": {"gateway": [
                "case $WEIR_FAMILY in ipv4) f=ip;; ipv6) f=ip6;; esac; nft delete table $f mine_$WEIR_TAG",
                "sysctl -q net.ipv6.conf.all.forwarding=0",
                "sysctl -q net.ipv4.conf.$WEIR_INSIDE_INTERFACE.forwarding=0 net.ipv4.conf.$WEIR_OUTSIDE_INTERFACE.forwarding=0"]},
            "seen-source": "outside"}"#,
    );
}

#[test]
fn root_custom_verify_that_fails_is_told() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    let v = variant(
        r#"{"kind": "custom", "apply": {"gateway": ["true"]}, "remove": {"gateway": ["true"]},
            "verify": {"gateway": ["echo not in effect >&2; exit 3"]}}"#,
    );
    let error = world.apply_on(Role::Gateway, &world.place, &v).unwrap_err();
    assert!(error.to_string().contains("not in effect"), "{error}");
}

#[test]
fn root_direct_and_path_change_nothing() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    for kind in ["direct", "path"] {
        let journals = world.apply(&variant(&format!("{{\"kind\": \"{kind}\"}}")));
        assert!(journals.iter().all(|(_, journal)| journal.is_empty()));
    }
}

#[test]
fn root_two_tags_on_one_host_do_not_collide() {
    if test_needs_root() {
        return;
    }
    for kind in ["nft-masquerade", "iptables-masquerade"] {
        for first_in_first_out in [true, false] {
            let world = GatewayWorld::routed(Family::Ipv4);
            let before = world.facts();
            let v = variant(&format!("{{\"kind\": \"{kind}\"}}"));
            let other = Place { tag: "b2".into(), ..world.place.clone() };
            let mut journals = [&world.place, &other].map(|p| world.apply_on(Role::Gateway, p, &v).unwrap());
            let seen = world.tcp(world.place.responder, 5001);
            assert_eq!(seen.source.ip(), world.place.gateway_outside);
            // One of the two translates a connection; which one is the kernel's choice.
            let counted = [&world.place, &other].map(|p| world.counter(p, &v).unwrap());
            assert_eq!(counted.iter().sum::<u64>(), 1, "{kind}");
            if !first_in_first_out {
                journals.reverse();
            }
            journals.iter_mut().for_each(|journal| world.undo(Role::Gateway, journal));
            assert_eq!(world.facts(), before, "{kind}, first in first out: {first_in_first_out}");
        }
    }
}

#[test]
fn root_one_tag_twice_is_refused_and_the_first_stays() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    for kind in ["nft-masquerade", "iptables-masquerade"] {
        let v = variant(&format!("{{\"kind\": \"{kind}\"}}"));
        let mut journal = world.apply_on(Role::Gateway, &world.place, &v).unwrap();
        let error = world.apply_on(Role::Gateway, &world.place, &v).unwrap_err();
        assert!(error.to_string().contains("exists already"), "{error}");
        assert_eq!(world.tcp(world.place.responder, 5001).source.ip(), world.place.gateway_outside);
        world.undo(Role::Gateway, &mut journal);
    }
}
