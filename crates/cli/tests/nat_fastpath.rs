//! `weir nat lab` of gateways whose established connections are carried by BPF, and of Docker's rules.

mod documents;
mod nat_tables;

use nat_tables::{gateways, nat, settled_verdicts, timeouts, verdicts, words_of};
use serde_json::Value;
use weir_testkit::{World, holds, measured};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Rows whose words may differ where packets are carried: segments outside of the window (docs/explanation/fastpath.md), and a speed.
const CARRIED_OTHERWISE: [&str; 3] = ["tcp-sequence-check", "tcp-reset-window", "udp-new-mappings"];

/// The row whose words have a time that was measured, in whole seconds.
const TIMED: &str = "udp-port-reuse";

/// Words without their numbers, and these.
fn apart(words: &str) -> (String, Vec<i64>) {
    let is_number = |word: &&str| word.parse::<i64>().is_ok();
    let (numbers, rest): (Vec<&str>, Vec<&str>) = words.split(' ').partition(is_number);
    (rest.join(" "), numbers.iter().map(|n| n.parse().unwrap()).collect())
}

/// The same words, with times that round to neighbours at most.
fn assert_close(plain: &str, carrying: &str) {
    let ((words, times), (same, others)) = (apart(plain), apart(carrying));
    assert_eq!(words, same);
    assert_eq!(times.len(), others.len(), "{plain}; {carrying}");
    assert!(times.iter().zip(&others).all(|(a, b)| a.abs_diff(*b) <= 1), "{plain}; {carrying}");
}

/// Both gateways show the same, and the second one carried packets.
fn the_same_but_carried(plain: &Value, carrying: &Value) {
    assert!(plain["carried"].is_null());
    assert!(carrying["carried"].as_u64() > Some(100), "{}", carrying["carried"]);
    assert_eq!(settled_verdicts(plain), settled_verdicts(carrying));
    assert_eq!(plain["kind"], carrying["kind"]);
    // Times are never the same to the last digit.
    let is_timer = |row: &str| row.contains("-idle-") || row.contains("-refresh-");
    for row in
        settled_verdicts(plain).into_keys().filter(|row| !is_timer(row) && !CARRIED_OTHERWISE.contains(row))
    {
        let (plain, carrying) = (words_of(plain, row), words_of(carrying, row));
        if row == TIMED {
            assert_close(plain, carrying);
        } else {
            assert_eq!(plain, carrying, "{row}");
        }
    }
}

/// The fast path beside the same rules: only flows that it carries could differ, and their NAT is the kernel's.
#[test]
fn root_paced_the_fast_path_changes_no_verdict() {
    if World::lacks(&["nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let probe = nat(&world, &["lab", "--idle", "0", "--gateway", "nft-masquerade-fastpath", "--json"]);
    if probe.code == 4 {
        println!("SKIP: {}", probe.stderr.trim());
        return;
    }
    probe.expect(0);
    let names = ["nft-masquerade", "nft-masquerade-fastpath"];
    let timeouts = timeouts(&[
        ("udp_timeout", 3),
        ("udp_timeout_stream", 6),
        ("tcp_timeout_established", 7),
        ("tcp_timeout_close_wait", 4),
    ]);
    let more: Vec<&str> = ["--idle", "9s"].into_iter().chain(timeouts.iter().map(String::as_str)).collect();
    let attempt = || {
        let seen = gateways(&world, &names, &more);
        for name in names {
            let verdicts = verdicts(&seen[name]);
            let timers = ["tcp-idle-established", "tcp-idle-half-closed"].map(|row| verdicts[row]);
            assert_eq!(timers, ["fails"; 2], "{name}: timers that are too short show as such");
        }
        the_same_but_carried(&seen[names[0]], &seen[names[1]]);
    };
    measured(1, 1, |_| holds(attempt));
}

/// A container behind Docker's rules has the kernel's masquerade in front of it, with the fast path too: the table is that of
/// nft-masquerade.
#[test]
fn root_containers_are_behind_the_kernels_masquerade() {
    if World::lacks(&["nft", "iptables"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let probe = nat(&world, &["lab", "--idle", "0", "--gateway", "docker-fastpath", "--json"]);
    let names = match probe.code {
        4 => vec!["nft-masquerade", "docker"],
        _ => vec!["nft-masquerade", "docker", "docker-fastpath"],
    };
    let seen = gateways(&world, &names, &["--idle", "0"]);
    let plain = &seen["nft-masquerade"];
    if names.len() > 2 {
        the_same_but_carried(&seen["docker"], &seen["docker-fastpath"]);
    }
    for name in &names[1..] {
        assert_eq!(settled_verdicts(plain), settled_verdicts(&seen[*name]), "{name}");
        assert_eq!(plain["kind"], seen[*name]["kind"], "{name}");
        // The inside is the container's network, and the address is the host's.
        let first = &seen[*name]["observations"]["udp_mapping"][0]["seen"][0];
        assert!(first["inside"].as_str().unwrap().starts_with("198.19.0.10:"), "{first}");
        assert!(first["seen"].as_str().unwrap().starts_with("198.18.0.1:"), "{first}");
    }
}
