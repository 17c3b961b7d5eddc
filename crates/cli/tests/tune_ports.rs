//! `weir tune --profile published-ports` on a host with a container: planned, applied, confirmed, rolled back and proved, with traffic,
//! and beside `weir publish`.

mod documents;
mod publish_world;

use publish_world::{CONTAINERS, Host, PUBLISHED};
use serde_json::{Value, json};
use weir_testkit::{PATIENCE, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const PROFILE: [&str; 2] = ["--profile", "published-ports"];
const HOUR: [&str; 6] = ["apply", "--profile", "published-ports", "--no-watch", "--confirm-within", "1h"];

fn plan(host: &Host, more: &[&str]) -> Value {
    host.tune_json(&[&["plan"], more].concat())
}

/// A diagnosis of this network namespace, or of the machine as a whole.
fn findings(host: &Host, cause: &str) {
    let found =
        json!({ "findings": [{ "cause": cause, "namespace": 0, "confidence": "high", "fixes": [] }] });
    host.world.write("found.json", found.to_string());
}

#[test]
fn root_a_plan_shows_the_ports_with_price_risk_and_the_way_back() {
    let Some(host) = Host::new(WEIR) else { return };
    let plan_ = plan(&host, &PROFILE);
    let action = &plan_["actions"][0];
    assert_eq!(action["held"], Value::Null, "{plan_:#}");
    let items = action["items"].as_array().unwrap();
    assert_eq!(items.len(), 4, "{plan_:#}");
    assert!(items.contains(&"198.18.0.1:80/tcp -> 198.19.0.2:8080 by veth1".into()), "{plan_:#}");
    // Counts of each core that there may be, WEIR_ASKED and all before it: 33 of 16 bytes; ways out: 256 of 64 bytes.
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let cores = 1 + possible.trim().rsplit(['-', ',']).next().unwrap().parse::<i64>().unwrap();
    let least = cores * (33 * 16 + 256 * 64);
    let memory = action["memory_bytes"].as_i64().unwrap();
    assert!((least..least + (1 << 20)).contains(&memory), "{memory} bytes, and the arrays alone are {least}");
    assert_eq!(plan_["memory_bytes"], memory);
    assert_eq!(plan_["rows"], json!([]));

    let mut narrow = host.any(&["tune", "plan", "--profile", "published-ports"]);
    narrow.env("COLUMNS", "80");
    let page = host.world.run(narrow).expect(0).stdout;
    for line in page.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for words in [
        "published ports  by the rules",
        "-> 4 of 4 by BPF",
        "    risk  ",
        "    undo  weir publish remove",
        "cost  +",
    ] {
        assert!(page.contains(words), "{words}:\n{page}");
    }
    assert_eq!(host.pins(), "", "a plan changes nothing");
    assert!(!host.world.folder().join("state").exists(), "a plan writes nothing");
}

#[test]
fn root_a_finding_offers_it_and_apply_leaves_it_out_unless_it_is_asked_for() {
    let Some(host) = Host::new(WEIR) else { return };
    for cause in ["conntrack-full", "conntrack-early-drop", "conntrack-hash-small"] {
        findings(&host, cause);
        let offer = &plan(&host, &["--from", "found.json"])["actions"][0];
        assert!(offer["held"].as_str().unwrap().contains("--profile published-ports"), "{offer:#}");
        assert!(offer["why"][0].as_str().unwrap().contains(cause), "{offer:#}");
    }
    let nothing = host.tune(&["apply", "--from", "found.json", "--no-watch"]).expect(0);
    assert!(nothing.stderr.contains("there is nothing to apply"), "{}", nothing.stderr);
    assert_eq!((host.pins().as_str(), host.guards()), ("", Vec::new()));
    let both = plan(&host, &[&["--from", "found.json"][..], &PROFILE].concat());
    assert_eq!(
        (&both["actions"][0]["held"], both["actions"][0]["why"].as_array().unwrap().len()),
        (&Value::Null, 2)
    );
    findings(&host, "accept-queue-full");
    assert_eq!(plan(&host, &["--from", "found.json"])["actions"], json!([]));
}

#[test]
fn root_what_is_applied_works_is_confirmed_and_rolled_back() {
    let Some(host) = Host::new(WEIR) else { return };
    let client = host.keep_asking("client", PUBLISHED[0]);
    let applied = host.tune(&HOUR).expect(0);
    assert!(applied.stdout.contains("published ports: made"), "{}", applied.stdout);
    let rules = host.by_the_rules();
    host.works();
    assert_eq!(host.by_the_rules(), rules, "no new connection came to the rules");
    assert!(host.translated("in") >= 2 * 3 + 2);
    let status = host.run(&["status"]).expect(0).stdout;
    assert!(status.contains("on trial in weir tune's set"), "{status}");
    let refused = host.run(&["confirm"]).expect(1);
    assert!(refused.stderr.contains("weir tune confirm"), "{}", refused.stderr);
    let busy = host.run(&["apply", "198.18.0.1:53=198.19.0.2:5353/udp", "--no-guard"]).expect(1);
    assert!(busy.stderr.contains("waits to be confirmed"), "{}", busy.stderr);
    host.tune(&["confirm"]).expect(0);
    until("the guard goes", PATIENCE, || host.guards().is_empty().then_some(()));
    let again = plan(&host, &PROFILE);
    assert!(again["notes"][0].as_str().unwrap().contains("by BPF already"), "{again:#}");
    let same = host.run(&["apply", "--all", "--no-guard"]).expect(0);
    assert!(same.stderr.contains("in effect already"), "{}", same.stderr);
    let page = host.tune(&["status"]).expect(0).stdout;
    assert!(page.contains("published ports: as weir made it"), "{page}");
    assert!(host.enough(client) > 3, "a connection of before goes on");
    host.tune(&["rollback"]).expect(0);
    assert_eq!(host.pins(), "");
    host.works();
    assert_eq!(host.by_the_rules(), rules + 4);
    assert!(host.run(&["status"]).expect(0).stdout.contains("nothing is published by BPF"));
}

#[test]
fn root_what_nobody_confirms_is_taken_back_with_the_settings_beside_it() {
    let Some(host) = Host::new(WEIR) else { return };
    let before = host.world.sh("sysctl -n net.core.somaxconn");
    let set = ["--set", "net.core.somaxconn=9000", "--confirm-within", "1s"];
    let applied = host.tune(&[&["apply"][..], &PROFILE, &set].concat()).expect(0).stdout;
    for watched in
        ["refused and entries evicted", "TCP segments sent again", "connections that found a full queue"]
    {
        assert!(applied.contains(watched), "{watched}: {applied}");
    }
    until("it is rolled back", PATIENCE, || {
        (host.pins().is_empty() && host.guards().is_empty()).then_some(())
    });
    assert_eq!(host.world.sh("sysctl -n net.core.somaxconn"), before);
    let states = host.tune_json(&["status"])["set"]["steps"].clone();
    for step in states.as_array().unwrap() {
        assert_eq!(step["progress"]["outcome"], "restored", "{states:#}");
    }
    host.works();
}

#[test]
fn root_with_the_settings_of_a_gateway_it_is_one_set() {
    let Some(host) = Host::new(WEIR) else { return };
    let name = "net.netfilter.nf_conntrack_tcp_timeout_established";
    let value = || host.world.sh(&format!("sysctl -n {name}")).trim().to_owned();
    // The kernel's default, five days; another namespace's own, which everybody may set.
    host.world.sh(&format!("sysctl -qw {name}=432000"));
    host.tune(&[&HOUR[..], &["--profile", "nat-gateway", "--for", "1s"]].concat()).expect(0);
    assert_eq!((value().as_str(), host.kernel().is_empty()), ("86400", false));
    host.works();
    assert!(host.translated("in") > 0);
    host.tune(&["rollback"]).expect(0);
    assert_eq!((value().as_str(), host.pins().as_str()), ("432000", ""));
}

#[test]
fn root_what_weir_publish_does_behind_its_back_is_told_and_left_alone() {
    let Some(host) = Host::new(WEIR) else { return };
    host.tune(&HOUR).expect(0);
    host.tune(&["confirm"]).expect(0);
    let removed = host.run(&["remove"]).expect(0);
    assert!(removed.stderr.contains("weir tune had applied it"), "{}", removed.stderr);
    assert!(host.tune(&["status"]).expect(0).stdout.contains("published ports: as before"));
    host.tune(&["rollback"]).expect(0);
    assert_eq!(host.pins(), "");

    // Another choice in its place: that is the one who chose's.
    host.tune(&HOUR).expect(0);
    host.tune(&["confirm"]).expect(0);
    let one = format!("{}:80={}:8080/tcp", PUBLISHED[0], CONTAINERS[0]);
    host.run(&["apply", &one, "--no-guard"]).expect(0);
    let theirs = host.kernel();
    let page = host.tune(&["status"]).expect(0).stdout;
    assert!(page.contains("published ports: another program changed it"), "{page}");
    let left = host.tune(&["rollback"]).expect(1);
    assert!(left.stdout.contains("left alone: another program changed it"), "{left:?}");
    assert_eq!(host.kernel(), theirs);
    host.works();

    // On top of what weir publish did, the way back leads to that.
    host.tune(&HOUR).expect(0);
    assert_ne!(host.kernel(), theirs);
    host.tune(&["rollback"]).expect(0);
    assert_eq!(host.kernel(), theirs);
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
}

#[test]
fn root_it_is_rolled_back_when_the_container_is_gone() {
    let Some(mut host) = Host::new(WEIR) else { return };
    host.tune(&HOUR).expect(0);
    host.tune(&["confirm"]).expect(0);
    host.stop_container("ctr", "veth1");
    assert!(host.tune(&["status"]).expect(0).stdout.contains("published ports: as weir made it"));
    host.tune(&["rollback"]).expect(0);
    assert_eq!(host.pins(), "");
}

#[test]
fn root_what_cannot_be_is_one_line() {
    let Some(host) = Host::new(WEIR) else { return };
    let refused = host.tune(&["plan", "--profile", "published-ports", "--netns", "client"]).expect(2);
    assert!(refused.stderr.contains("not with --netns"), "{}", refused.stderr);
    findings(&host, "conntrack-full");
    let noted = plan(&host, &["--from", "found.json", "--netns", "client"]);
    assert!(noted["notes"].to_string().contains("not with --netns"), "{noted:#}");
    host.world.sh("iptables-nft -I DOCKER-USER -i out0 -s 198.18.0.66 -j DROP");
    let held = &plan(&host, &PROFILE)["actions"][0]["held"];
    assert!(held.as_str().unwrap().contains("chain DOCKER-USER"), "{held}");
    host.world.sh("iptables-nft -F DOCKER-USER; ip route del default; ip -6 route del default");
    let refused = host.tune(&[&["plan"][..], &PROFILE].concat()).expect(2);
    assert!(refused.stderr.contains("say with --interface"), "{}", refused.stderr);
    let named = plan(&host, &[&PROFILE[..], &["--interface", "out0"]].concat());
    let names: Vec<_> = named["actions"].as_array().unwrap().iter().map(|action| &action["name"]).collect();
    assert_eq!(names, ["published ports", "fast path"], "{named:#}");
    host.world.sh("iptables-nft -t nat -F DOCKER; ip6tables-nft -t nat -F DOCKER");
    let none = host.tune(&[&["apply", "--no-watch", "--interface", "out0"][..], &PROFILE].concat()).expect(0);
    assert!(none.stdout.contains("no rule of this network namespace publishes a port"), "{none:?}");
    assert!(none.stderr.contains("there is nothing to apply"), "{none:?}");
    let nothing = ["prove", "--interface", "out0", "--command", "echo 1"];
    host.tune(&[&nothing[..], &PROFILE].concat()).expect(1);

    let plain = host.world.weir_as_nobody(&["tune", "plan", "--profile", "published-ports"]);
    let page = host.world.run(plain).expect(0).stdout;
    assert!(page.contains("only root can see what is published here"), "{page}");
    assert_eq!(host.pins(), "");
}

/// Each window counts what the programs translated in it, and what came to the rules.
#[test]
fn root_prove_measures_without_and_with_it() {
    let Some(host) = Host::new(WEIR) else { return };
    let count = "import json, sys
status = json.load(sys.stdin)
counts = [c for one in status['containers'] for c in one['counts'] if c['reason'] == 'translated']
print('translated:', sum(c['packets'] for c in counts))
";
    host.world.write("count.py", count);
    let load = format!(
        "cd {} && for i in 1 2 3; do ip netns exec client python3 client.py {} > /dev/null || exit 1; done; \
         {} publish status --json | python3 count.py",
        host.world.work().display(),
        PUBLISHED[0],
        host.world.binary().display()
    );
    let rules = host.by_the_rules();
    let args = ["prove", "--command", &load, "--number-after", "translated:", "--rounds", "2"];
    let proof = host.tune_json(&[&args[..], &PROFILE].concat());
    let rounds = proof["proof"]["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for round in rounds {
        // Three times a connection with at least SYN, request and FIN in each direction, and a datagram in each.
        let (before, after) = (round["before"].as_f64().unwrap(), round["after"].as_f64().unwrap());
        assert!(before == 0.0 && after >= 3.0 * (2.0 * 3.0 + 2.0), "{proof:#}");
    }
    // Three connections and three datagrams in each of the two windows without it.
    assert_eq!(host.by_the_rules(), rules + 2 * 2 * 3);
    assert_eq!((host.pins().as_str(), host.guards()), ("", Vec::new()));
    let actions = proof["plan"]["actions"].as_array().unwrap().iter();
    assert_eq!(actions.filter(|action| action["held"].is_null()).count(), 1, "{proof:#}");
    assert_eq!(host.tune_json(&["status"])["set"]["progress"]["phase"], "reverted");
    host.works();
}
