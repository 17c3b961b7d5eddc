//! `weir fastpath` as a user runs it: on trial, confirmed, paused, explained, and with its processes killed.

mod documents;
mod fastpath_world;

use std::time::Duration;

use fastpath_world::Gateway;
use serde_json::Value;
use weir_testkit::{PATIENCE, until};

#[test]
fn root_it_is_planned_tried_explained_kept_and_removed() {
    let Some(gateway) = Gateway::new() else { return };
    let plan = gateway.json("plan", &[]);
    assert_eq!(plan["interfaces"], serde_json::json!(["in0", "out0", "in2"]), "{plan:#}");
    assert!(gateway.run(&["status"]).expect(0).stdout.contains("no fast path"));
    assert_eq!(gateway.exchange(20), 0);
    let applied = gateway.json("apply", &["--confirm-within", "1h"]);
    let status = gateway.json("status", &[]);
    assert_eq!((&status["now"]["id"], &status["set"]["guards"]), (&applied["id"], &2.into()), "{status:#}");
    gateway.carries(100, 150);
    // A change of a neighbour in between makes an entry stale, until its next packet.
    until("both directions are carried", PATIENCE, || {
        gateway.exchange(20);
        let explained = gateway.json("explain", &["udp", "198.18.0.2:4000", "198.18.1.2:5353"]);
        let directions = explained["directions"].as_array().unwrap();
        (directions.len() == 2 && directions.iter().all(|d| d["reason"] == "carried")).then_some(())
    });
    let page = gateway.run(&["explain", "udp", "198.18.0.2:4000", "198.18.1.2:5353"]).expect(0).stdout;
    assert!(page.contains("leaves as 198.18.1.1:4000 -> 198.18.1.2:5353"), "{page}");
    let listed = gateway.json("status", &["--flows"]);
    let sources: Vec<&Value> = listed["flows"].as_array().unwrap().iter().map(|f| &f["source"]).collect();
    assert!(sources.contains(&&"198.18.0.2:4000".into()), "{listed:#}");
    let client = gateway.begin("inside", "client", &[]);
    until("the busiest flow is the one that has traffic", PATIENCE, || {
        let top = gateway.json("status", &["--top", "1"])["top"].clone();
        let flow = top["flows"][0].clone();
        let ends = [&flow["source"], &flow["destination"]].map(|end| end.as_str().unwrap_or("").to_owned());
        (ends.contains(&"198.18.1.2:8080".to_owned()) && flow["packets"].as_u64() > Some(1)).then_some(())
    });
    assert!(
        gateway.run(&["status", "--top"]).expect(0).stdout.contains("flows with most bytes"),
        "a page, too"
    );
    gateway.world.write("enough", "");
    client.end_within(PATIENCE).expect(0);
    std::fs::remove_file(gateway.world.work().join("enough")).unwrap();
    // The client's flow has ended, and each link-local address that the kernel adds in its own time makes entries be learnt anew.
    let part = until("a flow of which conntrack's table says that it is carried", PATIENCE, || {
        gateway.exchange(20);
        let table = gateway.world.run(gateway.world.weir(&["conntrack", "--json"])).expect(0).stdout;
        let part = documents::read(&table, "conntrack")["fastpath"].clone();
        (part["directions"].as_u64() >= Some(2)).then_some(part)
    });
    assert!(part["packets"].as_u64() >= Some(150), "{part:#}");
    let page = gateway.world.run(gateway.world.weir(&["conntrack"])).expect(0).stdout;
    assert!(page.contains("fast path: carries "), "{page}");
    gateway.run(&["pause"]).expect(0);
    assert_eq!(gateway.exchange(20), 0);
    gateway.run(&["resume"]).expect(0);
    gateway.run(&["exclude", "198.18.1.0/24:5353/udp"]).expect(0);
    assert_eq!(gateway.exchange(20), 0);
    assert_eq!(gateway.run(&["exclude"]).expect(0).stdout, "198.18.1.0/24:5353/udp\n");
    gateway.run(&["exclude", "--clear"]).expect(0);
    gateway.carries(20, 20);
    let kept = gateway.run(&["confirm"]).expect(0).stdout;
    assert!(kept.contains("stays"), "{kept}");
    assert!(gateway.processes("guard fastpath").is_empty());
    gateway.carries(20, 20);
    let again = gateway.run(&["apply"]).expect(0).stderr;
    assert!(again.contains("nothing to do"), "{again}");
    gateway.run(&["remove"]).expect(0);
    gateway.until_none();
    gateway.finish();
}

#[test]
fn root_whatever_is_killed_the_kernel_has_the_packets() {
    let Some(gateway) = Gateway::new() else { return };
    for words in [&["fastpath hold"][..], &["fastpath hold", "guard fastpath"]] {
        let client = gateway.begin("inside", "client", &[]);
        gateway.run(&["apply", "--confirm-within", "1h"]).expect(0);
        gateway.carries(100, 100);
        gateway.kill(words);
        gateway.until_none();
        // A connection that was carried goes on.
        gateway.world.write("enough", "");
        let outcome = client.end_within(PATIENCE);
        assert!(outcome.expect(0).stdout.trim().parse::<u64>().unwrap() >= 50, "{words:?}");
        std::fs::remove_file(gateway.world.work().join("enough")).unwrap();
        gateway.run(&["remove"]).expect(0);
    }
    // Without guards, the process that keeps it ends by itself, and the next command rolls back.
    gateway.run(&["apply", "--confirm-within", "5s"]).expect(0);
    gateway.kill_if_any(&["guard fastpath"]);
    gateway.until_none();
    until("it is rolled back", PATIENCE, || {
        (gateway.json("status", &[])["set"]["progress"]["phase"] == "reverted").then_some(())
    });
    gateway.run(&["apply"]).expect(0);
    gateway.run(&["confirm"]).expect(0);
    gateway.kill(&["fastpath hold"]);
    let gone = gateway.run(&["status"]).expect(3).stdout;
    assert!(gone.contains("weir fastpath apply starts it"), "{gone}");
    assert!(gateway.run(&["state"]).expect(0).stdout.is_empty());
    gateway.world.sh("ip netns exec inside python3 datagrams 20");
    gateway.finish();
}

#[test]
fn root_exclusions_outlive_apply_rollback_and_the_process_until_they_are_removed() {
    let Some(gateway) = Gateway::new() else { return };
    let one = "198.18.1.2:5353/udp";
    // Before there is any, too.
    let said = gateway.run(&["exclude", one]).expect(0).stderr;
    assert!(said.contains("from the next apply on"), "{said}");
    assert_eq!(gateway.json("plan", &[])["kept"], serde_json::json!([one]));
    assert!(gateway.run(&["plan"]).expect(0).stdout.contains(&format!("exclude --remove: {one}")));
    assert_eq!(gateway.json("status", &[])["kept"], serde_json::json!([one]));
    let in_effect = |what: &str| {
        assert_eq!(gateway.exchange(40), 0, "{what}");
        let status = gateway.json("status", &[]);
        let kept = serde_json::json!([one]);
        assert_eq!((&status["now"]["kept"], &status["kept"]), (&kept, &kept), "{what}");
        assert!(gateway.run(&["status"]).expect(0).stdout.contains(&format!("exclude --remove: {one}")));
    };
    let first = gateway.json("apply", &[])["id"].clone();
    gateway.run(&["confirm"]).expect(0);
    in_effect("apply");
    gateway.run(&["apply", "--packets", "4", "--confirm-within", "1h"]).expect(0);
    in_effect("another apply");
    gateway.run(&["rollback"]).expect(0);
    assert_eq!(gateway.json("status", &[])["now"]["id"], first);
    in_effect("rollback");
    gateway.kill(&["fastpath hold"]);
    gateway.until_none();
    gateway.run(&["apply"]).expect(0);
    gateway.run(&["confirm"]).expect(0);
    in_effect("a killed process");
    let said = gateway.run(&["remove"]).expect(0).stderr;
    assert!(said.contains("are kept for the next apply"), "{said}");
    gateway.run(&["apply", "--exclude", "203.0.113.0/24"]).expect(0);
    gateway.run(&["confirm"]).expect(0);
    in_effect("remove and apply");
    let listed = gateway.run(&["exclude"]).expect(0).stdout;
    assert_eq!(listed, format!("{one}\n203.0.113.0/24 (until the next apply)\n"));
    // One that is not there, and one that another command made: nothing is changed.
    for (text, words) in [("198.18.1.2", "is not excluded"), ("203.0.113.0/24", "belongs to the last apply")]
    {
        let refused = gateway.run(&["exclude", "--remove", text, one]).expect(3).stderr;
        assert!(refused.contains(words), "{refused}");
    }
    in_effect("a refused removal");
    let many: Vec<String> = (0..64).map(|n| format!("203.0.113.{n}")).collect();
    let many: Vec<&str> = std::iter::once("exclude").chain(many.iter().map(String::as_str)).collect();
    assert!(gateway.run(&many).expect(2).stderr.contains("64 are possible"), "65 with the one before");
    in_effect("too many");
    gateway.run(&["exclude", "--remove", one]).expect(0);
    gateway.carries(40, 40);
    assert_eq!(gateway.json("status", &[])["kept"], serde_json::json!([]));
    gateway.run(&["exclude", "--remove", one]).expect(3);
    gateway.finish();
}

#[test]
fn root_without_readable_exclusions_nothing_is_carried() {
    let Some(gateway) = Gateway::new() else { return };
    gateway.run(&["exclude", "198.18.1.2"]).expect(0);
    let folder = gateway.world.folder().join("state/fastpath");
    let file = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|path| path.extension().is_some_and(|e| e == "json")).unwrap();
    std::fs::write(&file, "{}").unwrap();
    for verb in ["plan", "apply", "run", "exclude"] {
        let refused = gateway.run(&[verb]).expect(1).stderr;
        assert!(refused.contains("remove the file"), "{verb}: {refused}");
    }
    assert!(gateway.run(&["status"]).expect(3).stdout.contains("remove the file"), "status says so, too");
    gateway.run(&["remove"]).expect(0);
    assert!(gateway.processes("fastpath hold").is_empty());
    std::fs::remove_file(&file).unwrap();
    gateway.run(&["apply"]).expect(0);
    gateway.carries(40, 40);
    gateway.finish();
}

#[test]
fn root_a_rollback_leads_to_the_one_before() {
    let Some(gateway) = Gateway::new() else { return };
    let first = gateway.json("apply", &[])["id"].clone();
    gateway.run(&["confirm"]).expect(0);
    let second =
        gateway.json("apply", &["--exclude", "198.18.1.2:5353/udp", "--confirm-within", "1h"])["id"].clone();
    assert_ne!(first, second);
    assert_eq!(gateway.exchange(40), 0);
    gateway.run(&["rollback"]).expect(0);
    assert_eq!(gateway.json("status", &[])["now"]["id"], first);
    gateway.carries(40, 40);
    // One that is never confirmed, too.
    gateway.run(&["apply", "--exclude", "198.18.1.2", "--confirm-within", "1s"]).expect(0);
    until("the one before is back", Duration::from_secs(30), || {
        (gateway.json("status", &[])["now"]["id"] == first).then_some(())
    });
    gateway.finish();
}

#[test]
fn root_a_filter_that_comes_later_decides_about_carried_flows() {
    let Some(gateway) = Gateway::new() else { return };
    gateway.run(&["apply"]).expect(0);
    gateway.run(&["confirm"]).expect(0);
    gateway.carries(100, 150);
    gateway.world.write("list", "203.0.113.0/24\n");
    gateway.world.sh("mount -t bpf bpf /sys/fs/bpf");
    let allow = |args: &[&str]| {
        let mut command = gateway.world.weir(&[&["allow"], args].concat());
        command.env("WEIR_STATE_DIR", gateway.world.folder().join("state"));
        gateway.world.run(command).expect(0);
    };
    allow(&["apply", "list", "-i", "in0", "--backend", "bpf", "--force", "--confirm-within", "1h"]);
    let passes =
        || gateway.world.run(gateway.world.shell("ip netns exec inside python3 datagrams 1")).code == 0;
    until("the filter refuses what was carried", PATIENCE, || (!passes()).then_some(()));
    allow(&["remove"]);
    until("packets pass and are carried again", PATIENCE, || {
        (passes() && gateway.exchange(100) >= 100).then_some(())
    });
    gateway.finish();
}

#[test]
fn root_in_the_foreground_it_carries_until_it_is_asked_to_end() {
    let Some(gateway) = Gateway::new() else { return };
    let mut running = gateway.world.start("running", gateway.weir(&["run"]));
    running.wait_for("carrying");
    gateway.carries(100, 100);
    let second = gateway.run(&["run"]).expect(1).stderr;
    assert!(second.contains("in effect here already"), "{second}");
    running.signal("TERM");
    running.end_within(PATIENCE).expect(0);
    gateway.until_none();
    gateway.finish();
}

#[test]
fn root_tune_offers_it_where_this_host_may_use_it_and_does_not_apply_it() {
    let Some(gateway) = Gateway::new() else { return };
    let tune = |args: &[&str]| {
        let mut command = gateway.world.weir(&[&["tune"], args].concat());
        command.env("WEIR_STATE_DIR", gateway.world.folder().join("state"));
        gateway.world.run(command).expect(0).stdout
    };
    let plan = |args: &[&str]| documents::read(&tune(&[&["plan", "--json"], args].concat()), "tune-plan");
    let offers = |plan: &Value| -> Vec<Value> {
        let all = plan["actions"].as_array().unwrap().iter();
        all.filter(|action| action["name"] == "fast path").cloned().collect()
    };
    let docker = ["--profile", "published-ports", "--interface", "out0"];
    for profile in [&["--profile", "nat-gateway"][..], &docker] {
        let [offer] = &offers(&plan(profile))[..] else { panic!("one offer for {profile:?}") };
        let held = offer["held"].as_str().unwrap();
        assert!(held.contains("weir fastpath apply does it"), "{held}");
        assert!(offer["proposed"].as_str().unwrap().contains("between in0, out0, in2"), "{offer:#}");
        assert_eq!(offer["memory_bytes"], gateway.json("plan", &[])["memory_bytes"]);
        assert_eq!(offer["undo"], "weir fastpath remove");
    }
    assert!(tune(&["plan"]).contains("fast path"), "the usual profile is nat-gateway");
    assert!(offers(&plan(&["--profile", "rfc"])).is_empty(), "timeouts are another subject");
    assert!(offers(&plan(&["--netns", "inside"])).is_empty(), "that host forwards nothing");
    gateway.world.sh("ip netns exec inside sysctl -q net.ipv4.ip_forward=1");
    let held = offers(&plan(&["--netns", "inside"]))[0]["held"].to_string();
    assert!(held.contains("weir fastpath apply --netns inside does it"), "{held}");
    tune(&["apply", "--no-watch", "--set", "net.core.somaxconn=9000", "--profile", "nat-gateway"]);
    assert!(gateway.processes("fastpath hold").is_empty(), "an offer is not applied");
    tune(&["rollback"]);
    gateway.world.sh("nft 'add table ip own; add chain ip own f { type filter hook forward priority 0; }; \
         add rule ip own f udp dport 53 limit rate over 10/second drop'");
    let held = offers(&plan(&[]))[0]["held"].to_string();
    assert!(held.contains("table ip own, chain f"), "{held}");
    gateway.world.sh("nft delete table ip own");
    gateway.run(&["apply"]).expect(0);
    gateway.run(&["confirm"]).expect(0);
    let there = plan(&[]);
    assert!(
        offers(&there).is_empty() && there["notes"].to_string().contains("in effect already"),
        "{there:#}"
    );
    gateway.finish();
}

#[test]
fn root_on_an_older_kernel_it_says_so_and_what_a_killed_process_leaves_is_found() {
    let Some(gateway) = Gateway::new() else { return };
    let run = |args: &[&str], code| {
        let mut command = gateway.weir(args);
        command.env("WEIR_TEST_WITHOUT_TCX", "1").env("WEIR_TEST_WITHOUT_CONNTRACK_FUNCTIONS", "1");
        gateway.world.run(command).expect(code)
    };
    let filters = || {
        let script =
            "for i in in0 out0 in2; do tc filter show dev $i ingress; tc filter show dev $i egress; done";
        gateway.world.sh(script)
    };
    assert!(run(&["plan"], 0).stdout.contains("lacks conntrack's functions for BPF"));
    run(&["apply"], 0);
    run(&["confirm"], 0);
    gateway.carries(100, 100);
    let now = gateway.json("status", &[]);
    assert_eq!(now["now"]["attached_by"], "clsact", "{now:#}");
    assert_eq!(now["now"]["learns"], "by-netlink", "{now:#}");
    let page = run(&["status"], 0).stdout;
    assert!(page.contains("attached by clsact") && page.contains("learns by ctnetlink"), "{page}");
    gateway.kill(&["fastpath hold"]);
    until("the process is gone", PATIENCE, || gateway.processes("fastpath hold").is_empty().then_some(()));
    gateway.world.sh("ip netns exec inside python3 datagrams 20");
    let gone = run(&["status"], 3).stdout;
    assert!(gone.contains("in0: filters of an ended fast path are left"), "{gone}");
    let removed = run(&["remove"], 0).stdout;
    assert!(removed.contains("removed"), "{removed}");
    assert_eq!(filters(), "");
    run(&["status"], 0);
    // A new one takes the place of what was left, and ends without a trace.
    run(&["apply"], 0);
    run(&["confirm"], 0);
    gateway.kill(&["fastpath hold"]);
    until("the process is gone", PATIENCE, || gateway.processes("fastpath hold").is_empty().then_some(()));
    assert!(filters().contains("fastpath_in+clsact"), "they outlive the process");
    run(&["apply"], 0);
    gateway.carries(100, 100);
    run(&["rollback"], 0);
    assert_eq!(filters(), "");
    gateway.run(&["apply"]).expect(0);
    assert_eq!(gateway.json("status", &[])["now"]["attached_by"], "tcx");
    gateway.finish();
}

#[test]
fn root_the_exclusions_that_a_refusal_prints_lift_it_and_no_less_does() {
    let Some(gateway) = Gateway::new() else { return };
    let nft = |rule: &str| {
        gateway.world.sh(&format!(
            "nft 'add table ip own; flush table ip own; add chain ip own f {{ type filter hook forward priority 0; }}; \
             add rule ip own f {rule}'"
        ));
    };
    nft("udp dport { 53, 5353 } limit rate over 100000/second drop");
    let refused = gateway.run(&["apply"]).expect(3).stderr;
    let printed = refused.split("stay with the kernel by: ").nth(1).expect(&refused).lines().next().unwrap();
    let options: Vec<&str> = printed.split(' ').collect();
    assert_eq!(options, ["--exclude", "0.0.0.0/0:53/udp", "--exclude", "0.0.0.0/0:5353/udp"], "{refused}");
    let apply = |options: &[&str], code| gateway.run(&[&["apply"], options].concat()).expect(code).stderr;
    for less in
        [&options[..2], &options[2..], &["--exclude", "0.0.0.0/0:53", "--exclude", "0.0.0.0/0:5353/tcp"]]
    {
        assert!(apply(less, 3).contains("nothing was changed"), "{less:?}");
    }
    // One that is kept may end at any time.
    gateway.run(&["exclude", "0.0.0.0/0/udp"]).expect(0);
    apply(&[], 3);
    gateway.run(&["exclude", "--clear"]).expect(0);
    assert!(gateway.processes("fastpath hold").is_empty());
    let plan = gateway.json("plan", &options);
    assert_eq!(plan["bypassed"][0]["excluded"], true, "{plan:#}");
    assert_eq!(plan["bypassed"][0]["exclusions"], plan["excluded"], "{plan:#}");
    let said = apply(&options, 0);
    assert!(!said.contains("bypass"), "{said}");
    gateway.run(&["confirm"]).expect(0);
    assert_eq!(gateway.exchange(50), 0, "the flows of the rule meet it");
    let explained = gateway.json("explain", &["udp", "198.18.0.2:4000", "198.18.1.2:5353"]);
    assert!(explained["directions"][0]["why"].to_string().contains("excluded"), "{explained:#}");
    gateway.run(&["remove"]).expect(0);
    // A rule that no exclusion names stays refused.
    nft("limit rate over 10/second udp dport 53 drop");
    let refused = apply(&["--exclude", "0.0.0.0/0", "--exclude", "::/0"], 3);
    assert!(refused.contains("no exclusion names its flows"), "{refused}");
    gateway.finish();
}

#[test]
fn root_what_cannot_be_is_said_and_nothing_is_changed() {
    let Some(gateway) = Gateway::new() else { return };
    gateway.world.sh("ip tuntap add tun9 mode tun && ip link set tun9 up && ip link add br9 type bridge && \
         ip link add p9 type veth peer name q9 && ip link set p9 master br9");
    let refused = |args: &[&str], code, words: &str| {
        let outcome = gateway.run(args).expect(code);
        assert!(outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
    };
    refused(&["apply", "-i", "none0"], 2, "there is no interface none0 here");
    refused(&["apply", "-i", "tun9"], 2, "no Ethernet header");
    refused(&["apply", "-i", "p9"], 2, "part of br9");
    refused(&["apply", "--packets", "0"], 2, "1..=1000");
    refused(&["apply", "--connections", "63"], 2, "64..=16777216");
    assert_eq!(gateway.json("plan", &["--connections", "1000"])["connections"], 1000);
    refused(&["apply", "--exclude", "host"], 2, "expected ADDRESS");
    refused(&["explain", "udp", "198.18.0.2:1", "198.18.0.2:2"], 3, "no fast path");
    refused(&["pause"], 3, "no fast path");
    refused(&["confirm"], 1, "nothing was applied here");
    let nobody = gateway.world.run(gateway.world.weir_as_nobody(&["fastpath", "plan"])).expect(4).stderr;
    assert!(nobody.contains("needs root"), "{nobody}");
    gateway.world.sh("nft 'add table ip own; add chain ip own f { type filter hook forward priority 0; }; \
         add rule ip own f udp dport 53 limit rate over 10/second drop; add rule ip own f log'");
    refused(&["apply"], 3, "table ip own, chain f");
    refused(&["apply"], 3, "nothing was changed");
    assert!(gateway.processes("fastpath hold").is_empty());
    let plan = gateway.json("plan", &[]);
    let effects: Vec<&Value> =
        plan["bypassed"].as_array().unwrap().iter().map(|rule| &rule["effect"]).collect();
    assert_eq!(effects, ["changes", "records"], "{plan:#}");
    let forced = gateway.run(&["apply", "--force"]).expect(0).stderr;
    assert!(forced.contains("warning: carried packets bypass"), "{forced}");
    gateway.run(&["remove"]).expect(0);
    gateway.world.sh("nft delete table ip own; echo 0 > /proc/sys/net/ipv4/ip_forward");
    refused(&["apply"], 3, "no interface here forwards");
    assert!(gateway.processes("fastpath hold").is_empty());
    gateway.finish();
}
