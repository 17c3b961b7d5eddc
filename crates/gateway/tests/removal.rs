//! The state before is the state after, in every ending.

mod world;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use weir_gateway::{Error, Family, Journal, Role};
use weir_sys::privilege::test_needs_root;
use world::{GatewayWorld, in_ns, variant};

#[test]
fn root_rules_of_others_stay() {
    if test_needs_root() {
        return;
    }
    for kind in [
        "nft-masquerade",
        "iptables-masquerade",
        "iptables-legacy-masquerade",
        "docker-publish",
        "bpf-publish",
    ] {
        let world = if kind.ends_with("publish") {
            GatewayWorld::bridged(Family::Ipv4)
        } else {
            GatewayWorld::routed(Family::Ipv4)
        };
        in_ns(
            &world.gateway,
            "iptables-nft -t nat -A POSTROUTING -s 10.1.2.3 -j MASQUERADE
             nft 'add table ip theirs; add chain ip theirs before'",
        );
        let v = variant(&format!(
            "{{\"kind\": \"{kind}\", {}}}",
            if kind.ends_with("publish") { "\"engine\": \"rules\"" } else { "\"mss-clamp\": true" }
        ));
        let mut journal = match world.apply_on(Role::Gateway, &world.place, &v) {
            Err(Error::Unsupported(why)) if kind.contains("legacy") => {
                println!("SKIP: {why}");
                continue;
            }
            other => other.unwrap(),
        };
        // In tables that existed before, in tables that only we made, and in tables of their own.
        in_ns(
            &world.gateway,
            "iptables-nft -t nat -A POSTROUTING -s 10.9.9.9 -j ACCEPT
             iptables-nft -t nat -A OUTPUT -d 10.9.9.8 -j ACCEPT
             iptables-nft -t mangle -A FORWARD -s 10.9.9.7 -j ACCEPT
             iptables-nft -t filter -A INPUT -s 10.9.9.6 -j ACCEPT
             nft 'add table inet later; add rule ip theirs before counter; add chain inet later c'
             nft add rule inet later c tcp dport 22 accept",
        );
        world.undo(Role::Gateway, &mut journal);
        let left = world::facts(&world.gateway);
        for theirs in [
            "10.1.2.3",
            "10.9.9.9",
            "10.9.9.8",
            "10.9.9.7",
            "10.9.9.6",
            "tcp dport 22 accept",
            "table ip theirs",
        ] {
            assert!(left.contains(theirs), "{kind}: {theirs} is gone:\n{left}");
        }
        assert!(!left.contains("weir"), "{kind}:\n{left}");
        assert!(!left.contains("198.18.0.2 "), "{kind}:\n{left}");
    }
}

#[test]
fn root_a_setting_that_somebody_changed_since_is_left() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    let v = variant(r#"{"kind": "nft-masquerade", "conntrack-timeouts": {"udp": "77s", "icmp": "9s"}}"#);
    let mut journal = world.apply_on(Role::Gateway, &world.place, &v).unwrap();
    in_ns(&world.gateway, "sysctl -q net.netfilter.nf_conntrack_udp_timeout=55");
    world.undo(Role::Gateway, &mut journal);
    let values = in_ns(
        &world.gateway,
        "sysctl -n net.netfilter.nf_conntrack_udp_timeout net.netfilter.nf_conntrack_icmp_timeout",
    );
    // 30 s is the kernel's default for ICMP (nf_conntrack-sysctl.rst).
    assert_eq!(values, "55\n30\n");
}

#[test]
fn root_rules_that_somebody_removed_since_do_no_harm() {
    if test_needs_root() {
        return;
    }
    for kind in ["nft-masquerade", "iptables-masquerade"] {
        let world = GatewayWorld::routed(Family::Ipv6);
        let before = world.facts();
        let v = variant(&format!("{{\"kind\": \"{kind}\", \"mss-clamp\": 1200}}"));
        let mut journal = world.apply_on(Role::Gateway, &world.place, &v).unwrap();
        in_ns(&world.gateway, "nft flush ruleset");
        world.undo(Role::Gateway, &mut journal);
        assert_eq!(world.facts(), before, "{kind}");
    }
}

#[test]
fn root_a_variant_that_fails_half_way_leaves_the_host_as_before() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    let before = world.facts();
    let custom = variant(
        r#"{"kind": "custom",
            "apply": {"gateway": ["nft add table ip half", "sysctl -q net.ipv4.conf.in0.forwarding=1", "no-such-command"]},
            "remove": {"gateway": ["nft delete table ip half", "sysctl -q net.ipv4.conf.in0.forwarding=0"]}}"#,
    );
    let error = world.apply_on(Role::Gateway, &world.place, &custom).unwrap_err();
    assert!(matches!(&error, Error::Command { command, .. } if command == "no-such-command"), "{error}");
    assert_eq!(world.facts(), before);

    // The rules are loaded when the kernel refuses a later setting: a namespace has no interface of that name.
    for kind in ["nft-masquerade", "iptables-masquerade", "docker-publish"] {
        let mut place = world.place.clone();
        place.outside_interface = "nowhere".into();
        let v = variant(&format!("{{\"kind\": \"{kind}\"}}"));
        let error = world.apply_on(Role::Gateway, &place, &v).unwrap_err();
        assert!(error.to_string().contains("nowhere"), "{kind}: {error}");
        assert_eq!(world.facts(), before, "{kind}");
    }
}

#[test]
fn root_what_cannot_be_taken_back_is_told_and_stays_in_the_journal() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    let v = variant(
        r#"{"kind": "custom", "apply": {"gateway": ["nft add table ip stays"]},
            "remove": {"gateway": ["test -e /proc/self/no-such-file", "true"]}}"#,
    );
    let mut journal = world.apply_on(Role::Gateway, &world.place, &v).unwrap();
    let errors = world.gateway.run(|| journal.undo()).unwrap();
    assert!(
        matches!(&errors[..], [Error::Command { command, .. }] if command.contains("no-such-file")),
        "{errors:?}"
    );
    assert!(!journal.is_empty());

    // And commands that say that they took it back, but did not.
    let v = variant(
        r#"{"kind": "custom", "apply": {"gateway": ["nft add table ip lied"]}, "remove": {"gateway": ["true"]}}"#,
    );
    let mut journal = world.apply_on(Role::Gateway, &world.place, &v).unwrap();
    let errors = world.gateway.run(|| journal.undo()).unwrap();
    assert!(
        matches!(&errors[..], [Error::NotRestored { difference, .. }] if difference.contains("table ip lied")),
        "{errors:?}"
    );
}

#[test]
fn root_a_dropped_journal_takes_everything_back() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    let before = world.facts();
    let journal =
        world.apply_on(Role::Gateway, &world.place, &variant(r#"{"kind": "iptables-masquerade"}"#)).unwrap();
    assert_ne!(world.facts(), before);
    world.gateway.run(move || drop(journal)).unwrap();
    assert_eq!(world.facts(), before);
}

#[test]
fn root_changes_are_not_taken_back_in_another_namespace() {
    if test_needs_root() {
        return;
    }
    let world = GatewayWorld::routed(Family::Ipv4);
    let mut journal = world.apply_on(Role::Gateway, &world.place, &variant(r#"{"kind": "routed"}"#)).unwrap();
    let errors = world.responder.run(|| journal.undo()).unwrap();
    assert!(errors[0].to_string().contains("namespace"), "{errors:?}");
    world.undo(Role::Gateway, &mut journal);
}

/// A directory that is gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }
    fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Not a test of its own but the process that [`killed`] starts and kills: it applies what its environment says, and
/// without that has nothing to do.
#[test]
fn root_victim() {
    let Ok(place) = std::env::var("WEIR_TEST_PLACE") else { return };
    let var = |name| std::env::var(name).unwrap();
    let place = serde_json::from_str(&place).unwrap();
    let mut journal = Journal::stored_at(var("WEIR_TEST_JOURNAL")).unwrap();
    weir_gateway::apply(&*variant(&var("WEIR_TEST_VARIANT")), Role::Gateway, &place, &mut journal).unwrap();
    println!("in effect");
    loop {
        std::thread::park();
    }
}

/// Applies the variant in a process of its own, kills that with SIGKILL when `ready` is in the facts, recovers.
fn killed(world: &GatewayWorld, json: &str, ready: &str) {
    let before = world.facts();
    let scratch = Scratch::new(&format!("killed-{}", ready.len()));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "root_victim", "--nocapture"])
        .env("WEIR_TEST_PLACE", serde_json::to_string(&world.place).unwrap())
        .env("WEIR_TEST_VARIANT", json)
        .env("WEIR_TEST_JOURNAL", scratch.journal())
        .stdout(Stdio::null());
    let mut victim = world.gateway.run(|| command.spawn()).unwrap().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !world::facts(&world.gateway).contains(ready) {
        let ended = victim.try_wait().unwrap();
        assert!(ended.is_none() && Instant::now() < deadline, "never saw {ready}; {ended:?}");
    }
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_ne!(world.facts(), before);

    let again = world.gateway.run(|| Journal::stored_at(scratch.journal()).map(drop)).unwrap();
    assert!(matches!(again, Err(Error::Journal { .. })), "{again:?}");
    let elsewhere = world.responder.run(|| Journal::recover(scratch.journal()).map(drop)).unwrap();
    assert!(elsewhere.is_err());
    let mut journal = world.gateway.run(|| Journal::recover(scratch.journal())).unwrap().unwrap();
    world.undo(Role::Gateway, &mut journal);
    assert_eq!(world.facts(), before);
    assert!(!scratch.journal().exists());
}

#[test]
fn root_killed_in_effect() {
    if test_needs_root() {
        return;
    }
    killed(
        &GatewayWorld::routed(Family::Ipv4),
        r#"{"kind": "iptables-masquerade", "mss-clamp": true, "ports": "2000-3000", "conntrack-timeouts": {"udp": "99s"}}"#,
        "net.ipv4.conf.out0.forwarding = 1",
    );
}

#[test]
fn root_killed_while_routes_are_loaded() {
    if test_needs_root() {
        return;
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        killed(
            &GatewayWorld::routed(family),
            r#"{"kind": "routed", "extra": {"rules": 100, "prefixes": 100, "routes": 20000}}"#,
            "proto 119",
        );
    }
}

#[test]
fn root_killed_half_way() {
    if test_needs_root() {
        return;
    }
    // The shell becomes the program: what a scenario's own command starts and leaves is not weir's to end after a SIGKILL.
    killed(
        &GatewayWorld::routed(Family::Ipv4),
        r#"{"kind": "custom", "time-limit-s": 60,
            "apply": {"gateway": ["nft add table ip half", "exec sleep 60", "nft add table ip never"]},
            "remove": {"gateway": ["nft delete table ip half", "nft delete table ip never 2>/dev/null || true"]}}"#,
        "table ip half",
    );
}

#[test]
fn root_killed_with_programs_at_its_interfaces() {
    if test_needs_root() {
        return;
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        let world = GatewayWorld::bridged(family);
        killed(&world, r#"{"kind": "bpf-publish"}"#, "in0 Ingress publish_in");
        assert_eq!(world::programs(&world.gateway), "");
        let world = GatewayWorld::routed(family);
        killed(&world, r#"{"kind": "bpf-stateless"}"#, "in0 Ingress stateless_out");
        assert_eq!(world::programs(&world.gateway), "");
    }
}

#[test]
fn root_killed_with_a_container_engine() {
    if test_needs_root() {
        return;
    }
    if world::lacks_docker() {
        return;
    }
    let world = GatewayWorld::bridged(Family::Ipv4);
    killed(&world, r#"{"kind": "docker-publish", "engine": "docker"}"#, "--to-destination 198.18.1.2:5004");
}

#[test]
fn root_a_route_that_was_there_stays() {
    if test_needs_root() {
        return;
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        let world = GatewayWorld::routed(family);
        let (spare, gateway) = (world.place.spare_outside.unwrap(), world.place.gateway_outside);
        let length = if family == Family::Ipv4 { 32 } else { 128 };
        in_ns(&world.responder, &format!("ip route add {spare}/{length} via {gateway}"));
        let before = world.facts();
        let v = variant(r#"{"kind": "nft-stateless"}"#);
        let mut journal = world.apply_on(Role::Responder, &world.place, &v).unwrap();
        assert!(journal.is_empty());
        world.undo(Role::Responder, &mut journal);
        assert_eq!(world.facts(), before);
    }
}
