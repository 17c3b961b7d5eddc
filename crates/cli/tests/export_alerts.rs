//! The alert rules and the dashboard of `deploy/`, and a real Prometheus that scrapes `weir export`.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use serde_json::Value;
use weir_netlink::conntrack::{Conntrack, NewEntry};
use weir_sys::NetNs;
use weir_sys::process::which;
use weir_testkit::{PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn deploy(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy")).join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(deploy(name)).unwrap()
}

fn lacks_prometheus() -> bool {
    let missing = ["promtool", "prometheus"].iter().any(|program| which(program).is_none());
    if missing {
        println!("SKIP: needs prometheus and promtool (apt-get install prometheus)");
    }
    missing
}

/// Names of metrics of weir in an expression, without the endings of histograms.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names = words.filter(|w| w.starts_with("weir_"));
    names.map(|n| n.strip_suffix("_bucket").unwrap_or(n).to_owned()).collect()
}

fn known() -> BTreeSet<String> {
    weir_export::GROUPS.iter().flat_map(|g| g.metrics).map(|m| format!("weir_{}", m.name)).collect()
}

#[test]
fn rules_are_sound_and_fire_when_they_should() {
    if lacks_prometheus() {
        return;
    }
    let world = World::plain(WEIR);
    for name in ["weir.rules.yml", "weir.rules.test.yml"] {
        world.write(name, read(&format!("prometheus/{name}")));
    }
    let checked = world.sh("promtool check rules weir.rules.yml");
    assert!(checked.contains("14 rules found"), "{checked}");
    world.sh("promtool test rules weir.rules.test.yml");
    // A test that cannot fail is none.
    world.write("weir.rules.yml", read("prometheus/weir.rules.yml").replace("0.9 *", "0.99 *"));
    assert_ne!(world.run(world.shell("promtool test rules weir.rules.test.yml")).code, 0);
}

#[test]
fn rules_know_the_metrics_and_every_rule_is_tested() {
    let (rules, tests) = (read("prometheus/weir.rules.yml"), read("prometheus/weir.rules.test.yml"));
    let known = known();
    for line in rules.lines().filter(|l| !l.trim_start().starts_with('#')) {
        for name in metrics(line) {
            assert!(known.contains(&name), "{name} is no metric: {line}");
        }
    }
    for alert in rules.lines().filter_map(|l| l.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(alert), "{alert} has no test");
    }
}

/// Expressions of a dashboard.
fn expressions(value: &Value) -> Vec<String> {
    match value {
        Value::Array(all) => all.iter().flat_map(expressions).collect(),
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| match value {
                Value::String(text) if name == "expr" => vec![text.clone()],
                value => expressions(value),
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_expression_of_the_dashboard_is_sound() {
    if lacks_prometheus() {
        return;
    }
    let dashboard: Value = serde_json::from_str(&read("grafana/weir.json")).unwrap();
    let expressions = expressions(&dashboard);
    assert!(expressions.len() >= 25, "{}", expressions.len());
    let known = known();
    let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
    for (n, expression) in expressions.iter().enumerate() {
        for name in metrics(expression) {
            assert!(known.contains(&name), "{name} is no metric: {expression}");
        }
        // As Grafana fills them in.
        let text = expression.replace("$__rate_interval", "1m").replace("$instance", "a");
        assert!(!text.contains('$'), "{text}");
        let quoted = serde_json::to_string(&text).unwrap();
        rules.push_str(&format!("      - record: dashboard:expression:{n}\n        expr: {quoted}\n"));
    }
    let world = World::plain(WEIR);
    world.write("dashboard.yml", rules);
    world.sh("promtool check rules dashboard.yml");
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|p| p["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
}

/// A namespace whose connection-tracking table is full, with a socket in it whose datagrams find no room.
fn full_table() -> Option<(NetNs, UdpSocket)> {
    let ns = NetNs::create().unwrap();
    let mut command = std::process::Command::new("sh");
    command.args([
        "-euc",
        "ip link set lo up; nft 'add table ip t; add chain ip t c { type filter hook output priority 0; }; \
         add rule ip t c ct state new counter'",
    ]);
    ns.enter_on_spawn(&mut command);
    let output = weir_sys::process::run_captured(command, PATIENCE).unwrap();
    assert!(output.status.success(), "{}", output.message());
    let limit: u32 =
        fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap().trim().parse().unwrap();
    if limit > 1_000_000 {
        println!("SKIP: nf_conntrack_max is {limit}: filling that takes too much memory");
        return None;
    }
    let entries = (0..limit).map(|n| {
        let [_, a, b, c] = n.to_be_bytes();
        let source = SocketAddr::new([198, 18, a, b].into(), 1024 + u16::from(c));
        NewEntry::udp(source, SocketAddr::new([198, 19, 0, 1].into(), 53))
    });
    let socket = ns
        .run(|| {
            Conntrack::open().unwrap().insert(entries).unwrap();
            UdpSocket::bind("127.0.0.1:0").unwrap()
        })
        .unwrap();
    Some((ns, socket))
}

/// Alerts that fire, by what Prometheus says.
fn firing(world: &World) -> BTreeSet<String> {
    let answer = world.sh("curl -s http://127.0.0.1:9090/api/v1/alerts");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let alerts = answer["data"]["alerts"].as_array().unwrap();
    let named =
        alerts.iter().filter(|a| a["state"] == "firing").map(|a| a["labels"]["alertname"].as_str().unwrap());
    named.map(str::to_owned).collect()
}

#[test]
fn root_prometheus_scrapes_and_reports_a_full_table() {
    let Some(world) = World::root(WEIR) else { return };
    if World::lacks(&["curl", "nft"]) || lacks_prometheus() {
        return;
    }
    let Some((ns, socket)) = full_table() else { return };
    let path = format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
    let sources = ["flows", "snat", "doctor", "fastpath", "lists"].map(|s| ["--without", s]).concat();
    let mut export =
        world.start("export", world.weir(&[&["export", "--netns", &path][..], &sources].concat()));
    export.wait_for("http://127.0.0.1:9348/metrics");
    // The files of deploy/, only faster.
    let config = read("prometheus/prometheus.yml");
    assert_eq!(config.matches("15s").count(), 2);
    world.write("prometheus.yml", config.replace("15s", "1s"));
    let rules = read("prometheus/weir.rules.yml");
    let fast: Vec<String> =
        rules
            .lines()
            .map(|line| {
                if line.trim_start().starts_with("for: ") {
                    "        for: 1s".into()
                } else {
                    line.to_owned()
                }
            })
            .collect();
    world.write("weir.rules.yml", fast.join("\n"));
    let prometheus = world.start(
        "prometheus",
        world.shell(
            "exec prometheus --config.file prometheus.yml --storage.tsdb.path data --web.listen-address 127.0.0.1:9090",
        ),
    );
    until("Prometheus", PATIENCE, || {
        (world.run(world.shell("curl -sf http://127.0.0.1:9090/-/ready")).code == 0).then_some(())
    });
    let wanted = ["ConntrackFull", "ConntrackNearlyFull"].map(str::to_owned);
    let fired = until("both alerts", PATIENCE, || {
        for _ in 0..20 {
            // No room for it: that is the point.
            let _ = socket.send_to(b"x", ("127.0.0.1", 9));
        }
        let firing = firing(&world);
        wanted.iter().all(|alert| firing.contains(alert)).then_some(firing)
    });
    assert_eq!(fired, BTreeSet::from(wanted), "no other alert");
    let up = world.sh("curl -s 'http://127.0.0.1:9090/api/v1/query?query=up'");
    let up: Value = serde_json::from_str(&up).unwrap();
    assert_eq!(up["data"]["result"][0]["value"][1], "1", "{up:#}");
    prometheus.signal("TERM");
    prometheus.end_within(PATIENCE).expect(0);
    export.signal("TERM");
    export.end_within(PATIENCE).expect(0);
}
