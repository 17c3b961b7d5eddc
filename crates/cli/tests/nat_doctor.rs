//! `weir doctor --nat`: faults planted in a gateway, the table of `weir nat check` through it, and what the doctor says at the
//! gateway.

mod documents;

use serde_json::Value;
use weir_testkit::{Background, CommandOutput, PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A client, its gateway, a router that may translate as well, and a server with two addresses. Each timer of the gateway is what
/// the RFCs ask for.
const PATH: &str = "set -e
for n in client gateway carrier server; do
  ip netns add $n
  ip -n $n link set lo up
done
ip -n client link add eth0 type veth peer name in0 netns gateway
ip -n gateway link add out0 type veth peer name in0 netns carrier
ip -n carrier link add out0 type veth peer name eth0 netns server
ip -n client addr add 198.18.0.2/24 dev eth0
ip -n gateway addr add 198.18.0.1/24 dev in0
ip -n gateway addr add 198.18.1.2/24 dev out0
for i in 10 11 12 13; do ip -n gateway addr add 198.18.1.$i/24 dev out0; done
ip -n carrier addr add 198.18.1.1/24 dev in0
ip -n carrier addr add 198.19.0.1/24 dev out0
ip -n server addr add 198.19.0.2/24 dev eth0
ip -n server addr add 198.19.0.3/24 dev eth0
for l in client/eth0 gateway/in0 gateway/out0 carrier/in0 carrier/out0 server/eth0; do
  ip -n ${l%/*} link set ${l#*/} up
done
ip -n client route add default via 198.18.0.1
ip -n gateway route add default via 198.18.1.1
ip -n server route add 198.18.0.0/15 via 198.19.0.1
six() { ip -n $1 addr add $2/64 dev $3 nodad; }
six client fd00:1::2 eth0; six gateway fd00:1::1 in0; six gateway fd00:2::2 out0; six carrier fd00:2::1 in0
six carrier fd00:3::1 out0; six server fd00:3::2 eth0; six server fd00:3::3 eth0
ip -n client -6 route add default via fd00:1::1
ip -n gateway -6 route add default via fd00:2::1
ip -n server -6 route add default via fd00:3::1
for n in gateway carrier; do
  ip netns exec $n sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
done
(umask 077; echo 0123456789abcdef > key)
";

/// Idle times that no check of a few seconds outlives.
const LONG: &str = "udp_timeout=300 udp_timeout_stream=300 icmp_timeout=60 tcp_timeout_syn_sent=240 \
                    tcp_timeout_close_wait=7440 tcp_timeout_fin_wait=7440 tcp_timeout_close=240";

/// A world with a path, and a server that answers.
struct Planted {
    world: World,
    _server: Background,
}

impl Planted {
    fn new() -> Option<Self> {
        if World::lacks(&["ip", "nft"]) {
            return None;
        }
        let world = World::root(WEIR)?;
        world.sh(PATH);
        let mut server = world.command("ip");
        server.args(["netns", "exec", "server", WEIR, "serve", "--key-file", "key"]);
        for address in ["198.19.0.2", "198.19.0.3", "fd00:3::2", "fd00:3::3"] {
            server.args(["--nat-address", address]);
        }
        let planted = Planted { _server: world.start("serve", server), world };
        planted.nat("gateway", "masquerade");
        planted.timers("gateway", LONG);
        let ports = ["ports", "198.19.0.2", "--key-file", "key", "--limit", "16"];
        until("the server answers", PATIENCE, || (planted.client(&ports).code == 0).then_some(()));
        Some(planted)
    }

    fn client(&self, args: &[&str]) -> CommandOutput {
        let mut command = self.world.command("ip");
        command.args(["netns", "exec", "client", WEIR, "nat"]).args(args);
        self.world.run(command)
    }

    /// Replaces the rules of a host by source NAT of that kind.
    fn nat(&self, host: &str, how: &str) {
        self.rules(host, &format!("table ip nat {{ chain post {{ type nat hook postrouting priority srcnat; oifname out0 {how}; }}; }}"));
    }

    fn rules(&self, host: &str, rules: &str) {
        self.world.write("rules", format!("flush ruleset\n{rules}\n"));
        self.world.sh(&format!("ip netns exec {host} nft -f rules"));
    }

    fn timers(&self, host: &str, timers: &str) {
        for timer in timers.split_whitespace() {
            self.world.sh(&format!("ip netns exec {host} sysctl -qw net.netfilter.nf_conntrack_{timer}"));
        }
    }

    /// The table from the client, in `nat.json`.
    fn table(&self, idle: &str) -> Value {
        self.table_of("198.19.0.2", idle)
    }

    fn table_of(&self, server: &str, idle: &str) -> Value {
        let args = ["check", server, "--key-file", "key", "--idle", idle, "--json"];
        let output = self.client(&args).expect(0);
        self.world.write("nat.json", &output.stdout);
        documents::read(&output.stdout, "nat-check-server")
    }

    /// The doctor with that table at a host.
    fn doctor(&self, host: &str, more: &[&str]) -> CommandOutput {
        let args = ["doctor", "--netns", host, "--for", "200ms", "--nat", "nat.json"];
        self.world.run(self.world.weir(&[&args[..], more].concat()))
    }

    fn findings(&self, host: &str) -> Vec<Value> {
        let report = documents::read(&self.doctor(host, &["--json"]).expect(0).stdout, "doctor");
        let all = report["findings"].as_array().unwrap().iter();
        all.filter(|f| f["cause"].as_str().unwrap().starts_with("nat-")).cloned().collect()
    }
}

fn of<'a>(findings: &'a [Value], cause: &str) -> &'a Value {
    findings.iter().find(|f| f["cause"] == cause).unwrap_or_else(|| panic!("no {cause}: {findings:#?}"))
}

fn has(findings: &[Value], cause: &str) -> bool {
    findings.iter().any(|f| f["cause"] == cause)
}

#[track_caller]
fn assert_rows(finding: &Value, rows: &[&str]) {
    let summary = finding["summary"].as_str().unwrap();
    for row in rows {
        assert!(summary.contains(row), "{row}: {finding:#}");
    }
}

fn verdict<'a>(table: &'a Value, id: &str) -> &'a str {
    let rows = table["rows"].as_array().unwrap();
    rows.iter().find(|row| row["id"] == id).unwrap()["verdict"].as_str().unwrap()
}

#[test]
fn root_short_timers_are_named_with_their_settings() {
    let Some(planted) = Planted::new() else { return };
    planted.timers("gateway", "udp_timeout=2 tcp_timeout_close=3");
    planted.table("6s");
    let findings = planted.findings("gateway");
    let timers = of(&findings, "nat-timers-short");
    assert_rows(timers, &["udp-idle-unanswered", "tcp-idle-reset-in"]);
    assert_eq!(
        (&timers["confidence"], &timers["severity"]),
        (&"high".into(), &"warning".into()),
        "{timers:#}"
    );
    let tune = timers["fixes"][0]["tune"].as_array().unwrap();
    let proposed = |name: &str| {
        let name = format!("net.netfilter.nf_conntrack_{name}");
        let found = tune.iter().find(|s| s["name"] == name).unwrap_or_else(|| panic!("{name}: {tune:?}"));
        (found["now"].as_str().unwrap().to_owned(), found["proposed"].as_str().unwrap().to_owned())
    };
    assert_eq!(proposed("udp_timeout"), ("2".into(), "300".into()));
    assert_eq!(proposed("tcp_timeout_close"), ("3".into(), "240".into()));
    // The kernel has its own limits; nothing is blamed on others.
    assert_rows(of(&findings, "nat-kernel-limit"), &["udp-filtering"]);
    assert!(!has(&findings, "nat-elsewhere"), "{findings:#?}");

    let page = planted.doctor("gateway", &[]).expect(0).stdout;
    assert!(page.contains("nf_conntrack_udp_timeout = 2 s"), "{page}");

    // The same times by a rule: the settings are not to blame.
    planted.timers("gateway", LONG);
    planted.rules(
        "gateway",
        "table ip nat {
           ct timeout hasty { protocol udp; policy = { unreplied : 2, replied : 300 }; }
           chain pre { type filter hook prerouting priority 0; meta l4proto udp ct timeout set \"hasty\"; }
           chain post { type nat hook postrouting priority srcnat; oifname out0 masquerade; }
         }",
    );
    planted.table("6s");
    let findings = planted.findings("gateway");
    let timers = of(&findings, "nat-timers-short");
    assert!(timers["evidence"].to_string().contains("object hasty of 2 s"), "{timers:#}");
    assert!(!has(&findings, "nat-elsewhere"), "{findings:#?}");
}

/// A table of the lab, whose gateway has this kernel: the rows that it fails by itself.
#[test]
fn root_a_table_of_the_lab_names_what_the_kernel_does_by_itself() {
    let Some(planted) = Planted::new() else { return };
    let lab = |gateway: &str| {
        let world = &planted.world;
        let lab =
            world.weir(&["nat", "lab", "--gateway", gateway, "--idle", "0", "--mappings", "0", "--json"]);
        world.write("nat.json", &world.run(lab).expect(0).stdout);
        planted.findings("gateway")
    };
    let findings = lab("nft-masquerade");
    let answered = of(&findings, "nat-syn-answered");
    assert!(answered["summary"].as_str().unwrap().contains("own TCP answers"), "{answered:#}");
    assert_rows(of(&findings, "nat-kernel-limit"), &["udp-hairpin", "udp-filtering", "udp-deterministic"]);
    assert!(!has(&findings, "nat-elsewhere"), "{findings:#?}");
    // Another gateway of the lab draws ports; this host does not.
    let findings = lab("nft-masquerade-random");
    let elsewhere = of(&findings, "nat-elsewhere");
    assert!(elsewhere["summary"].as_str().unwrap().contains("the lab's gateway has others"), "{elsewhere:#}");
    assert_rows(elsewhere, &["udp-mapping"]);

    // Rules that reject the SYN, and that drop it in silence.
    for (verdict, named) in [("reject with tcp reset", true), ("drop", false)] {
        planted.rules("gateway", &format!(
            "table ip nat {{ chain post {{ type nat hook postrouting priority srcnat; oifname out0 masquerade; }}; }}
             table inet filter {{ chain input {{ type filter hook input priority 0; meta l4proto tcp {verdict}; }}; }}"
        ));
        let findings = lab("nft-masquerade");
        assert_eq!(has(&findings, "nat-syn-answered"), named, "{findings:#?}");
        let object =
            findings.iter().find(|f| f["cause"] == "nat-syn-answered").map(|f| f["object"].to_string());
        assert!(object.is_none_or(|object| object.contains("reject with tcp reset")));
    }
}

#[test]
fn root_rules_that_draw_ports_or_addresses_are_named() {
    let Some(planted) = Planted::new() else { return };
    planted.nat("gateway", "masquerade fully-random");
    let table = planted.table("0");
    assert_eq!(verdict(&table, "udp-mapping"), "fails");
    let findings = planted.findings("gateway");
    let ports = of(&findings, "nat-ports-drawn");
    assert_rows(ports, &["udp-mapping", "tcp-mapping"]);
    assert!(ports["object"].as_str().unwrap().contains("masquerade fully-random"), "{ports:#}");
    assert!(!has(&findings, "nat-elsewhere") && !has(&findings, "nat-address-pool"), "{findings:#?}");

    planted.nat("gateway", "snat to 198.18.1.10-198.18.1.13");
    let table = planted.table("0");
    let findings = planted.findings("gateway");
    if verdict(&table, "udp-mapping") == "fails" {
        let pool = of(&findings, "nat-address-pool");
        assert!(pool["object"].as_str().unwrap().contains("snat to 198.18.1.10-198.18.1.13"), "{pool:#}");
        assert!(!has(&findings, "nat-ports-drawn"), "{findings:#?}");
    }
    planted.nat("gateway", "snat to 198.18.1.10-198.18.1.13 persistent");
    let table = planted.table("0");
    assert_eq!(verdict(&table, "udp-mapping"), "meets");
    assert!(!has(&planted.findings("gateway"), "nat-address-pool"));
}

#[test]
fn root_a_rule_that_drops_errors_is_named_and_its_fix_fixes() {
    let Some(planted) = Planted::new() else { return };
    planted.rules(
        "gateway",
        "table ip nat { chain post { type nat hook postrouting priority srcnat; oifname out0 masquerade; }; }
         table inet filter {
           chain forward {
             type filter hook forward priority filter;
             iifname out0 icmp type { destination-unreachable, time-exceeded } drop
             ct state established,related accept
           }
         }",
    );
    // Between two real ends a firewall may have dropped it: the doctor tells.
    assert_eq!(verdict(&planted.table("0"), "icmp-error-in"), "not-sure");
    let findings = planted.findings("gateway");
    let dropped = of(&findings, "nat-packets-dropped");
    assert_rows(dropped, &["icmp-error-in", "icmp-error-about-query"]);
    assert_eq!(dropped["confidence"], "high", "{dropped:#}");
    let object = dropped["object"].as_str().unwrap();
    assert!(object.contains("inet filter forward handle") && object.contains("drop"), "{dropped:#}");
    assert!(!has(&findings, "nat-elsewhere"), "{findings:#?}");
    let command = dropped["fixes"][0]["commands"][0].as_str().unwrap();
    assert!(command.starts_with("ip netns exec gateway nft"), "{command}");
    planted.world.sh(command);
    assert_eq!(verdict(&planted.table("0"), "icmp-error-in"), "meets");
    assert!(!has(&planted.findings("gateway"), "nat-packets-dropped"));
}

/// Both kinds of iptables: the rule that draws ports is named, and the fix for the rule that drops errors fixes it.
#[test]
fn root_rules_of_iptables_are_named() {
    if World::lacks(&["iptables-legacy", "iptables-nft"]) {
        return;
    }
    let Some(planted) = Planted::new() else { return };
    for (program, place) in [("iptables-nft", "handle"), ("iptables-legacy", "number 1")] {
        let run = |args: &str| planted.world.sh(&format!("ip netns exec gateway {program} {args}"));
        planted.rules("gateway", "");
        run("-t nat -A POSTROUTING -o out0 -p udp -j MASQUERADE --random-fully");
        run("-t nat -A POSTROUTING -o out0 -j MASQUERADE");
        run("-A FORWARD -i out0 -p icmp -m icmp --icmp-type 3 -j DROP");
        assert_eq!(verdict(&planted.table("0"), "icmp-error-in"), "not-sure");
        let findings = planted.findings("gateway");
        let ports = of(&findings, "nat-ports-drawn");
        assert_rows(ports, &["udp-mapping"]);
        assert!(!ports["summary"].as_str().unwrap().contains("tcp-mapping"), "{ports:#}");
        let object = ports["object"].as_str().unwrap();
        assert!(
            object.starts_with("rule ip nat POSTROUTING") && object.contains("--random-fully"),
            "{object}"
        );
        let dropped = of(&findings, "nat-packets-dropped");
        let object = dropped["object"].as_str().unwrap();
        assert_eq!((&dropped["confidence"], object.contains(place)), (&"high".into(), true), "{dropped:#}");
        planted.world.sh(dropped["fixes"][0]["commands"][0].as_str().unwrap());
        assert_eq!(verdict(&planted.table("0"), "icmp-error-in"), "meets");
        assert!(!has(&planted.findings("gateway"), "nat-packets-dropped"));
    }
}

#[test]
fn root_rules_and_settings_of_ipv6_are_named() {
    if World::lacks(&["ip6tables-legacy"]) {
        return;
    }
    let Some(planted) = Planted::new() else { return };
    planted.rules(
        "gateway",
        "table ip6 nat { chain post { type nat hook postrouting priority srcnat; oifname out0 masquerade random; }; }",
    );
    planted.timers("gateway", "icmpv6_timeout=2");
    planted
        .world
        .sh("ip netns exec gateway ip6tables-legacy -A FORWARD -i out0 -p ipv6-icmp --icmpv6-type 1 -j DROP");
    let table = planted.table_of("fd00:3::2", "6s");
    assert_eq!((verdict(&table, "icmp-error-in"), verdict(&table, "udp-mapping")), ("not-sure", "fails"));
    let findings = planted.findings("gateway");
    assert_rows(of(&findings, "nat-ports-drawn"), &["udp-mapping"]);
    let dropped = of(&findings, "nat-packets-dropped");
    assert_eq!(dropped["confidence"], "high", "{dropped:#}");
    assert!(dropped["object"].as_str().unwrap().contains("ip6 filter FORWARD number 1"), "{dropped:#}");
    let timers = of(&findings, "nat-timers-short");
    assert_rows(timers, &["icmp-query-idle"]);
    assert!(timers["fixes"][0].to_string().contains("nf_conntrack_icmpv6_timeout"), "{timers:#}");
    planted.world.sh(dropped["fixes"][0]["commands"][0].as_str().unwrap());
    assert_eq!(verdict(&planted.table_of("fd00:3::2", "0"), "icmp-error-in"), "meets");
    assert!(!has(&planted.findings("gateway"), "nat-packets-dropped"));
}

#[test]
fn root_little_memory_for_fragments_is_named() {
    let Some(planted) = Planted::new() else { return };
    let set = |low: u32, high: u32| {
        planted.world.sh(&format!(
            "ip netns exec gateway sysctl -qw net.ipv4.ipfrag_low_thresh={low} net.ipv4.ipfrag_high_thresh={high}"
        ));
    };
    set(0, 1);
    assert_eq!(verdict(&planted.table("0"), "udp-fragments-in-order"), "not-sure");
    let findings = planted.findings("gateway");
    assert_rows(
        of(&findings, "nat-fragments-dropped"),
        &["udp-fragments-in-order", "udp-fragments-reversed"],
    );
}

#[test]
fn root_faults_of_another_nat_are_not_blamed_on_this_host() {
    let Some(planted) = Planted::new() else { return };
    // The carrier translates again, forgets sooner, draws ports and drops errors.
    planted.rules(
        "carrier",
        "table ip nat { chain post { type nat hook postrouting priority srcnat; oifname out0 masquerade random; }; }
         table ip filter { chain f { type filter hook forward priority filter; icmp type time-exceeded drop; }; }",
    );
    planted.timers("carrier", "udp_timeout=2");
    planted.table("6s");
    let findings = planted.findings("gateway");
    let elsewhere = of(&findings, "nat-elsewhere");
    assert_rows(elsewhere, &["udp-mapping", "udp-idle-unanswered", "icmp-error-about-query"]);
    let evidence = elsewhere["evidence"].to_string();
    for expected in ["198.19.0.1 is no address of this host", "udp_timeout = 300 s", "time-exceeded-in"] {
        assert!(evidence.contains(expected), "{expected}: {elsewhere:#}");
    }
    for cause in ["nat-timers-short", "nat-ports-drawn", "nat-packets-dropped"] {
        assert!(!has(&findings, cause), "{findings:#?}");
    }
    // The same table at the carrier.
    let findings = planted.findings("carrier");
    for cause in ["nat-timers-short", "nat-ports-drawn", "nat-packets-dropped"] {
        of(&findings, cause);
    }
    // A host that translates nothing.
    let findings = planted.findings("client");
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert!(of(&findings, "nat-elsewhere")["evidence"].to_string().contains("translates sources"));
}

#[test]
fn bad_tables_are_one_message() {
    let Some(world) = World::root(WEIR) else { return };
    let refused = |file: &str, text: &str, expected: &str| {
        world.write(file, text);
        let output = world.run(world.weir(&["doctor", "--own", "--for", "100ms", "--nat", file])).expect(2);
        assert!(output.stderr.contains(expected), "{expected}: {}", output.stderr);
        assert_eq!(output.stderr.trim_end().lines().count(), 1, "{}", output.stderr);
    };
    refused("garbage", "\u{1}{{{", "cannot explain garbage: not JSON");
    refused("doctor.json", r#"{"schema": "weir.doctor/1"}"#, "not a table of `weir nat check --json`");
    refused("newer.json", r#"{"schema": "weir.nat-check-server/2", "rows": []}"#, "of version \"2\"");
    refused("older.json", r#"{"schema": "weir.nat-lab/0", "gateways": []}"#, "of version \"0\"");
    refused("cut.json", r#"{"schema": "weir.nat-lab/1"}"#, "damaged");
    world.sh("truncate -s 40M huge.json");
    let output =
        world.run(world.weir(&["doctor", "--own", "--for", "100ms", "--nat", "huge.json"])).expect(2);
    assert!(output.stderr.contains("has more than 33554432 bytes"), "{}", output.stderr);
    let output = world.run(world.weir(&["doctor", "--own", "--nat", "none.json"])).expect(2);
    assert!(output.stderr.contains("cannot read none.json"), "{}", output.stderr);

    world.write(
        "fine.json",
        r#"{"schema": "weir.nat-check/1", "server": {"address": "192.0.2.7:3478"}, "rows": []}"#,
    );
    let output = world
        .run(world.weir(&["doctor", "--own", "--for", "100ms", "--nat", "fine.json", "--json"]))
        .expect(0);
    assert!(output.stderr.contains("no row with a requirement fails"), "{}", output.stderr);
    let report = documents::read(&output.stdout, "doctor");
    assert!(
        report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .all(|f| !f["cause"].as_str().unwrap().starts_with("nat-"))
    );
}

/// Profile `rfc` with its rules: rows before, after, and after the rollback; other rules stay as they are.
#[test]
fn root_profile_rfc_makes_rows_met_and_reverts_them() {
    let Some(planted) = Planted::new() else { return };
    let world = &planted.world;
    planted.nat("gateway", "snat to 198.18.1.10-198.18.1.13");
    planted.timers("gateway", "udp_timeout=2 tcp_timeout_close=3");
    world.sh("ip netns exec gateway sysctl -qw net.ipv4.ipfrag_low_thresh=0 net.ipv4.ipfrag_high_thresh=1");
    let before = world.sh("ip netns exec gateway nft list ruleset");
    let tune = |args: &[&str]| {
        let mut command = world.command("ip");
        command.args(["netns", "exec", "gateway", WEIR, "tune"]).args(args);
        command.env("WEIR_STATE_DIR", world.folder().join("state"));
        world.run(command)
    };
    let profile = ["--profile", "rfc", "--silent-syn", "out0"];
    let plan = documents::read(
        &tune(&[&["plan"], &profile[..], &["--json"]].concat()).expect(0).stdout,
        "tune-plan",
    );
    let action = &plan["actions"][0];
    assert!(action["held"].is_null() && action["risk"].as_str().unwrap().contains("time-out"), "{plan:#}");
    let advice = plan["advice"][0]["command"].as_str().unwrap().to_owned();
    assert!(advice.contains("handle") && advice.contains("persistent"), "{plan:#}");
    assert!(plan["beyond"].to_string().contains("udp-hairpin"), "{plan:#}");
    let page = tune(&[&["plan"], &profile[..]].concat()).expect(0).stdout;
    assert!(page.contains("out of reach: udp-hairpin") && page.contains(&advice), "{page}");
    let refused = tune(&["plan", "--silent-syn", "out0"]).expect(2);
    assert!(refused.stderr.contains("add --profile rfc"), "{}", refused.stderr);

    // A SYN from outside to a free port, and to one with a listener.
    world.sh("ip netns exec server ip route add 198.18.1.0/24 via 198.19.0.1 || true");
    let listener = {
        let mut command = world.command("ip");
        command.args(["netns", "exec", "gateway", WEIR, "serve", "--key-file", "key", "--port", "9500"]);
        world.start("listener", command)
    };
    let connects = |port: u16| {
        let script = format!("timeout 2 bash -c '</dev/tcp/198.18.1.2/{port}' 2>/dev/null; echo $?");
        world.write("connect", &script);
        world.sh("ip netns exec server bash connect").trim().to_owned()
    };
    until("the listener", PATIENCE, || (connects(9500) == "0").then_some(()));
    assert_eq!(connects(9501), "1", "refused at once");
    let rows = |expected: [&str; 3]| {
        let table = planted.table("6s");
        let seen = ["udp-idle-unanswered", "tcp-idle-reset-in", "udp-fragments-in-order"]
            .map(|row| verdict(&table, row));
        assert_eq!(seen, expected, "{table:#}");
    };
    rows(["fails", "fails", "not-sure"]);
    tune(&[&["apply"], &profile[..], &["--confirm-within", "10m"]].concat()).expect(0);
    // The times are longer than a check of a few seconds can tell.
    rows(["not-testable", "not-testable", "meets"]);
    assert_eq!((connects(9500).as_str(), connects(9501).as_str()), ("0", "124"), "an answer, and silence");
    tune(&["rollback"]).expect(0);
    assert_eq!(connects(9501), "1");
    assert_eq!(world.sh("ip netns exec gateway nft list ruleset"), before);
    let value = world.sh("ip netns exec gateway sysctl -n net.ipv4.ipfrag_high_thresh");
    assert_eq!(value.trim(), "1");
    // The advice, done by hand.
    world.sh(&format!("ip netns exec gateway {advice}"));
    assert_eq!(verdict(&planted.table("0"), "udp-mapping"), "meets");
    drop(listener);
}
