//! `weir nat` as a user calls it: gateways of the lab against what is known of the kernel.

mod documents;
mod nat_tables;
mod nat_timers;

use nat_tables::{gateways, json, nat, settled_verdicts, timeouts, verdicts, words_of};
use serde_json::Value;
use weir_testkit::{PATIENCE, World, holds, measured};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Its words, wherever lines were broken.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn rows_are_listed_without_root() {
    let world = World::plain(WEIR);
    let rows = json(&world, "nat-rows", &["rows"]);
    let rows = rows["rows"].as_array().unwrap();
    let text = words(&nat(&world, &["rows"]).expect(0).stdout);
    for row in rows {
        assert!(text.contains(row["id"].as_str().unwrap()), "{row}");
    }
    assert!(text.contains("RFC 4787 section 4.1 REQ-1, MUST"));
}

#[test]
fn gateways_are_listed_and_a_wrong_name_is_refused() {
    let world = World::plain(WEIR);
    let text = nat(&world, &["lab", "--list"]).expect(0).stdout;
    assert!(text.lines().any(|line| line.starts_with("nft-masquerade-fully-random ")), "{text}");
    let refused = nat(&world, &["lab", "--gateway", "nft-masquerad"]).expect(2);
    assert!(refused.stderr.contains("nft-masquerade"), "{}", refused.stderr);
    let refused = nat(&world, &["lab", "--sysctl", "vm.swappiness=1"]).expect(2);
    assert!(refused.stderr.contains("net.*"), "{}", refused.stderr);
    nat(&world, &["lab", "--idle", "2h"]).expect(2);
}

/// The kernel's NAT by its source (nf_nat_core.c): it keeps the port if the tuple is free, else moves it; filters by the whole
/// tuple; and takes a packet from inside to its own address for its own.
#[test]
fn root_the_kernels_nat_does_what_its_source_says() {
    if World::lacks(&["nft", "iptables"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let names = ["nft-masquerade", "iptables-masquerade", "nft-masquerade-fully-random", "routed"];
    let seen = gateways(&world, &names, &["--idle", "0"]);
    for name in ["nft-masquerade", "iptables-masquerade"] {
        let gateway = &seen[name];
        assert_eq!(gateway["kind"]["classic"], "port restricted cone", "{name}");
        let verdicts = verdicts(gateway);
        for (row, verdict) in [
            ("udp-mapping", "partly"),
            ("udp-overloading", "partly"),
            ("udp-deterministic", "fails"),
            ("udp-filtering", "fails"),
            ("udp-hairpin", "fails"),
            ("tcp-mapping", "partly"),
            ("tcp-filtering", "fails"),
            ("tcp-hairpin", "fails"),
            ("tcp-simultaneous-open", "meets"),
            ("tcp-unsolicited-syn", "fails"),
            ("icmp-query", "meets"),
            ("icmp-query-mapping", "meets"),
            ("icmp-error-about-query", "meets"),
            ("icmp-error-keeps-query", "meets"),
            ("icmp-error-in", "meets"),
            ("icmp-error-checksum", "meets"),
            ("icmp-error-out", "meets"),
            ("udp-icmp-keeps-mapping", "meets"),
            ("tcp-icmp-keeps-mapping", "meets"),
            ("udp-too-long", "meets"),
            ("udp-fragments-in-order", "meets"),
            ("udp-fragments-reversed", "meets"),
            ("ip-ttl", "meets"),
            ("udp-port-range", "meets"),
            ("udp-parity", "meets"),
            ("udp-pooling", "not-testable"),
            ("tcp-pooling", "not-testable"),
            ("udp-idle-answered", "not-testable"),
            ("tcp-options", "described"),
            ("tcp-syn-data", "meets"),
            ("tcp-half-close", "meets"),
            ("tcp-reset", "meets"),
            ("udp-port-randomness", "meets"),
            ("tcp-port-randomness", "meets"),
            // The identification is not touched (nf_nat_proto.c).
            ("ip-identification", "fails"),
            // More ports are there than the quick preset opens mappings.
            ("udp-exhaustion-told", "not-testable"),
            ("udp-exhaustion-keeps", "not-testable"),
            ("protocol-gre", "meets"),
            ("protocol-esp", "meets"),
        ] {
            assert_eq!(verdicts[row], verdict, "{name}: {row}");
        }
        // nf_defrag_ipv4 puts fragments together, and inet_fragment.c drops all of a datagram with an overlap.
        assert_eq!(words_of(gateway, "udp-fragments-overlapping"), "dropped both ways", "{name}");
        for translation in gateway["observations"]["udp_ports"].as_array().unwrap() {
            let port = |key: &str| translation[key].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
            assert_eq!(port("inside"), port("seen"), "{name}");
        }
    }
    let random = &seen["nft-masquerade-fully-random"];
    assert_eq!(random["kind"]["classic"], "symmetric");
    assert_eq!(verdicts(random)["udp-overloading"], "meets");
    let routed = &seen["routed"];
    assert_eq!((&routed["kind"]["translates"], &routed["kind"]["classic"]), (&false.into(), &Value::Null));
    let bad: Vec<_> =
        verdicts(routed).into_iter().filter(|(_, v)| ["fails", "partly", "not-sure"].contains(v)).collect();
    assert_eq!(bad, [], "a router without translation breaks nothing");
    let passed = "passed as fragments, for the receiver to put together both ways";
    assert_eq!(words_of(routed, "udp-fragments-overlapping"), passed);
}

/// One inside host takes all ports of an address towards one destination, and the next one gets none (nf_nat_core.c). No mapping
/// ends meanwhile, however long that takes.
#[test]
fn root_all_ports_of_an_address_are_used_up() {
    if World::lacks(&["nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let timer = "net.netfilter.nf_conntrack_udp_timeout=600";
    let more = ["--idle", "0", "--mappings", "66000", "--sysctl", timer];
    let seen = gateways(&world, &["nft-masquerade"], &more);
    let gateway = &seen["nft-masquerade"];
    let end = &gateway["observations"]["exhaustion"];
    // Ports from 1024 upwards, without that of the control packets.
    let all = 65_536 - 1_024 - 1;
    let [first, second, witnesses] = [&end["opened"][0], &end["opened"][1], &end["witnesses"]];
    assert_eq!(first.as_u64().unwrap() + witnesses.as_u64().unwrap(), all, "{end}");
    // Its port is left for the next host. The kernel tries some hundred ports at random for each packet
    // (nf_nat_l4proto_unique_tuple), and may find it.
    assert!(second.as_u64().unwrap() <= 1, "{end}");
    let verdicts = verdicts(gateway);
    let rows = ["told", "dropped", "keeps"].map(|row| verdicts[&*format!("udp-exhaustion-{row}")]);
    // weir does not know the timer, and believes no result of a search that took longer than a usual one.
    if end["took_s"].as_f64().unwrap() < 25.0 {
        assert_eq!(rows, ["fails", "meets", "meets"], "{end}");
        let words =
            if *second == 0 { "one host took all of" } else { "64503 ports for the first host, 1 for" };
        assert!(words_of(gateway, "udp-host-limit").starts_with(words), "{gateway}");
    } else {
        assert_eq!(rows, ["not-sure"; 3], "{end}");
    }
}

/// An address list in front of the masquerade that lets both hosts pass changes no verdict, and several gateways are shown side
/// by side, saved and compared.
#[test]
fn root_gateways_are_shown_side_by_side_and_compared() {
    if World::lacks(&["nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let names = ["nft-masquerade", "nft-masquerade-allow", "nft-masquerade-fully-random"];
    let options: Vec<&str> = names.iter().flat_map(|name| ["--gateway", name]).collect();
    let lab =
        |more: &[&str]| nat(&world, &[&["lab", "--idle", "0"], more, &options[..]].concat()).expect(0).stdout;
    let document = lab(&["--json"]);
    let saved: Value = serde_json::from_str(&document).unwrap();
    let [plain, allow, _] = [0, 1, 2].map(|n| settled_verdicts(&saved["gateways"][n]));
    assert_eq!(plain, allow);
    let markdown = lab(&["--markdown"]);
    let mapping = markdown.lines().find(|line| line.starts_with("| `udp-mapping`")).unwrap();
    assert_eq!(mapping, "| `udp-mapping` | RFC 4787 REQ-1, MUST | **partly** | **partly** | **fails** |");
    assert!(
        markdown.contains("calls, games and peer-to-peer between two such NATs need a relay"),
        "{markdown}"
    );
    assert!(lab(&["--html"]).starts_with("<!DOCTYPE html>"));
    let [before, after] = ["before", "after"].map(|name| world.work().join(name));
    std::fs::write(&before, &document).unwrap();
    let mut changed = saved.clone();
    let rows = changed["gateways"][0]["rows"].as_array_mut().unwrap();
    let ttl = rows.iter_mut().find(|row| row["id"] == "ip-ttl").unwrap();
    ttl["verdict"] = "fails".into();
    std::fs::write(&after, changed.to_string()).unwrap();
    let [before, after] = [&before, &after].map(|path| path.to_str().unwrap());
    let same = json(&world, "nat-compare", &["compare", before, before, "--fail-on-worse"]);
    assert_eq!(same["changes"], Value::Array(Vec::new()));
    let worse = json(&world, "nat-compare", &["compare", before, after]);
    let change = &worse["changes"][0];
    let seen = ["gateway", "id", "before", "after", "direction"].map(|key| change[key].as_str().unwrap());
    assert_eq!(seen, ["nft-masquerade", "ip-ttl", "meets", "fails", "worse"]);
    assert_eq!(worse["changes"].as_array().unwrap().len(), 1);
    let text = words(&nat(&world, &["compare", before, after, "--fail-on-worse"]).expect(3).stdout);
    assert!(text.contains("worse: nft-masquerade ip-ttl: meets, now fails"), "{text}");
}

/// Published ports that BPF forwards, beside the masquerade of Docker's rules for all other ports: no state means any client, no timer
/// and no choice of ports. The masquerade does not know them, so that answers to another container's connection from such a port
/// reach the first container: only BPF ahead of connection tracking does that.
#[test]
fn root_published_ports_keep_no_state_and_their_rows_say_so() {
    if World::lacks(&["nft", "iptables"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let options =
        ["--idle", "1s", "--mappings", "0", "--gateway", "docker", "--gateway", "publish", "--json"];
    let lab = nat(&world, &[&["lab"], &options[..]].concat());
    if lab.code == 4 {
        println!("SKIP: {}", lab.stderr.trim());
        return;
    }
    let document = documents::read(&lab.expect(0).stdout, "nat-lab");
    let [docker, publish] = [0, 1].map(|n| &document["gateways"][n]);
    let (by_rules, by_bpf) = (settled_verdicts(docker), settled_verdicts(publish));
    let differ = by_rules.iter().filter(|(id, verdict)| by_bpf[*id] != **verdict);
    let differ: Vec<(&str, &str, &str)> = differ.map(|(id, verdict)| (*id, *verdict, by_bpf[id])).collect();
    assert_eq!(
        differ,
        [
            // Checksums are updated by difference, so that a wrong one stays wrong.
            ("icmp-error-bad-checksum", "meets", "partly"),
            ("tcp-filtering", "fails", "meets"),
            ("tcp-idle-established", "not-testable", "meets"),
            ("tcp-idle-half-closed", "not-testable", "meets"),
            ("tcp-idle-opening", "not-testable", "meets"),
            ("tcp-idle-reset-in", "not-testable", "meets"),
            ("tcp-idle-reset-out", "not-testable", "meets"),
            ("tcp-overloading", "partly", "fails"),
            ("udp-deterministic", "fails", "meets"),
            ("udp-filtering", "fails", "meets"),
            ("udp-first-packets", "meets", "not-testable"),
            ("udp-idle-answered", "not-testable", "meets"),
            ("udp-idle-default", "not-testable", "meets"),
            ("udp-idle-unanswered", "not-testable", "meets"),
            ("udp-mapping", "partly", "meets"),
            ("udp-overloading", "partly", "fails"),
            ("udp-parity", "meets", "not-testable"),
            ("udp-port-contiguity", "described", "not-testable"),
            ("udp-port-preservation", "described", "not-testable"),
            ("udp-port-randomness", "meets", "not-testable"),
            ("udp-port-range", "meets", "not-testable"),
        ]
    );
    assert_eq!(publish["kind"]["classic"], "full cone");
    for id in ["udp-idle-answered", "udp-parity", "udp-refresh-out", "udp-exhaustion-told", "tcp-first-syns"]
    {
        assert!(words_of(publish, id).starts_with("by design"), "{id}: {}", words_of(publish, id));
    }
    for protocol in ["udp", "tcp"] {
        let port = &publish["observations"]["published"][protocol];
        assert_eq!(port["reached"], serde_json::json!([port["from"], port["inside"]]), "{port}");
        assert_eq!(port["answered"], port["outside"], "{port}");
        assert!(port["outside"].as_str().unwrap().starts_with("198.18.0.1:8"), "{port}");
    }
    let collision = &publish["observations"]["udp_collision"];
    assert_eq!(collision["second_answer"], collision["first"]["inside"], "{collision}");
}

/// Prefixes of IPv6 by rules of nft, which change the prefix only, and by the targets that follow RFC 6296.
#[test]
fn root_prefixes_of_ipv6_are_measured() {
    if World::lacks(&["nft", "ip6tables"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let names = ["nft-prefix", "ip6tables-npt"];
    let seen = gateways(&world, &names, &["--ipv6", "--idle", "0"]);
    for (name, verdict) in names.into_iter().zip(["fails", "meets"]) {
        assert_eq!(seen[name]["kind"]["ipv6"], "nptv6", "{name}");
        assert_eq!(verdicts(&seen[name])["npt-checksum-neutral"], verdict, "{name}");
    }
    let refused = nat(&world, &["lab", "--gateway", "nft-prefix"]).expect(2);
    assert!(refused.stderr.contains("add --ipv6"), "{}", refused.stderr);
}

#[test]
fn files_of_other_kinds_are_not_compared() {
    let world = World::plain(WEIR);
    let rows = world.work().join("rows");
    std::fs::write(&rows, nat(&world, &["rows", "--json"]).expect(0).stdout).unwrap();
    let rows = rows.to_str().unwrap();
    let refused = nat(&world, &["compare", rows, rows]).expect(2);
    assert!(refused.stderr.contains("not a result of"), "{}", refused.stderr);
    nat(&world, &["lab", "--all", "--gateway", "routed"]).expect(2);
}

/// Timeouts as they were set.
#[test]
fn root_paced_idle_times_are_the_kernels_settings() {
    if World::lacks(&["nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let set = [
        ("unanswered", 3.0),
        ("answered", 6.0),
        ("icmp", 4.0),
        ("tcp_opening", 5.0),
        ("tcp_established", 7.0),
        ("tcp_half_closed", 4.0),
        ("tcp_reset_in", 5.0),
        ("tcp_reset_out", 5.0),
    ];
    let timeouts = timeouts(&[
        ("udp_timeout", 3),
        ("udp_timeout_stream", 6),
        ("icmp_timeout", 4),
        ("tcp_timeout_syn_sent", 5),
        ("tcp_timeout_established", 7),
        // A FIN that was acknowledged (nf_conntrack_proto_tcp.c).
        ("tcp_timeout_close_wait", 4),
        ("tcp_timeout_close", 5),
    ]);
    let more: Vec<&str> = ["--idle", "9s"].into_iter().chain(timeouts.iter().map(String::as_str)).collect();
    let attempt = || {
        let seen = gateways(&world, &["nft-masquerade"], &more);
        let gateway = &seen["nft-masquerade"];
        for (kind, truth) in set {
            let idle = &gateway["observations"]["idle"];
            // Four a second, however late this host was with some of them.
            assert_eq!(idle[kind].as_array().unwrap().len(), 36, "{kind}: {idle}");
            nat_timers::Tries::read(idle, kind).assert_timer(kind, truth);
        }
        let verdicts = verdicts(gateway);
        assert_eq!((verdicts["udp-idle-unanswered"], verdicts["udp-refresh-out"]), ("fails", "meets"));
        assert_eq!((verdicts["icmp-query-idle"], verdicts["icmp-refresh-error"]), ("fails", "meets"));
        for row in ["tcp-idle-established", "tcp-idle-half-closed", "tcp-idle-reset-in", "tcp-idle-reset-out"]
        {
            assert_eq!(verdicts[row], "fails", "{row}");
        }
    };
    measured(1, 1, |_| holds(attempt));
}

#[test]
fn root_ctrl_c_ends_the_wait_for_timers() {
    if World::lacks(&["nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let mut command = world.command(world.binary());
    command.args(["nat", "lab", "--verbose", "--idle", "30m"]);
    let mut measuring = world.start("nat", command);
    measuring.wait_for("nft-masquerade: idle");
    measuring.signal("INT");
    let ended = measuring.end_within(PATIENCE);
    assert!(ended.stderr.contains("stopped before the table was complete"), "{}", ended.stderr);
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""));
    assert!(world.labs().is_empty());
}

#[test]
fn root_a_failing_must_is_an_exit_code_on_request() {
    if World::lacks(&["nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let page = words(&nat(&world, &["lab", "--idle", "0", "--fail-on-must"]).expect(3).stdout);
    for words in ["port restricted cone (EIM, APDF)", "breaks: ", "RFC 4787 REQ-9, MUST"] {
        assert!(page.contains(words), "{page}");
    }
    nat(&world, &["lab", "--idle", "0", "--fail-on-must", "--gateway", "routed"]).expect(0);
}
