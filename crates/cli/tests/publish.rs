//! `weir publish` on a host with a container: what is found, put into effect, told and taken away, with traffic before, while and
//! after.

mod documents;
mod publish_world;

use publish_world::{CONTAINERS, Host, PUBLISHED};
use weir_testkit::{PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const HOUR: [&str; 4] = ["apply", "--all", "--confirm-within", "1h"];

#[test]
fn root_a_published_port_goes_the_shorter_way_and_back_without_a_connection_that_breaks() {
    let Some(host) = Host::new(WEIR) else { return };
    let plan = host.json(&["plan"], 0);
    assert_eq!(plan["outer"], "out0");
    let found = plan["found"].as_array().unwrap();
    assert_eq!(found.len(), 4, "{plan:#}");
    for one in found {
        assert_eq!((&one["link"], one["why_not"].is_null()), (&"veth1".into(), true), "{plan:#}");
    }
    assert_eq!(plan["passed_by"].as_array().unwrap().len(), 0, "{plan:#}");
    let page = host.run(&["plan"]).expect(0).stdout;
    assert!(page.contains("4 of 4 can be done: weir publish apply --all"), "{page}");
    assert_eq!(host.pins(), "", "a plan changes nothing");

    host.works();
    let clients = PUBLISHED.map(|address| host.keep_asking(&address.replace(':', "-"), address));
    host.run(&HOUR).expect(0);
    let rules = host.by_the_rules();
    host.works();
    assert_eq!(host.by_the_rules(), rules, "no new connection came to the rules");
    for direction in ["in", "out"] {
        // Two connections with at least SYN, request and FIN, and two datagrams.
        assert!(host.translated(direction) >= 2 * 3 + 2, "{direction}");
    }
    assert!(!host.guards().is_empty());
    let confirmed = host.run(&["confirm"]).expect(0).stdout;
    assert!(confirmed.contains("4 ports from out0 to veth1 stay"), "{confirmed}");
    host.world.run(host.weir(&["confirm"])).expect(0);
    until("the guard goes", PATIENCE, || host.guards().is_empty().then_some(()));
    let before = host.translated("in");
    until("connections of before are translated, too", PATIENCE, || {
        (host.translated("in") > before).then_some(())
    });
    for client in clients {
        assert!(host.enough(client) > 3);
    }
    let status = host.run(&["status"]).expect(0).stdout;
    for words in ["veth1: in effect", "198.18.0.1:80/tcp -> 198.19.0.2:8080", "translated"] {
        assert!(status.contains(words), "{words}: {status}");
    }

    let removed = host.run(&["remove"]).expect(0).stdout;
    assert!(removed.contains("the kernel's rules publish as before"), "{removed}");
    assert_eq!((host.kernel().as_str(), host.pins().as_str()), ("", ""));
    let rules = host.by_the_rules();
    host.works();
    assert_eq!(host.by_the_rules(), rules + 4, "two connections and two datagrams by the rules");
    assert!(host.run(&["remove"]).expect(0).stdout.contains("nothing was published"));
    assert!(host.run(&["status"]).expect(0).stdout.contains("nothing is published by BPF"));
}

#[test]
fn root_what_is_not_confirmed_is_taken_back() {
    let Some(host) = Host::new(WEIR) else { return };
    let outcome = host.run(&["apply", "--all", "--confirm-within", "1s"]).expect(0);
    assert!(
        outcome.stderr.contains("rolls back in 1 s; keep it with: weir publish confirm"),
        "{}",
        outcome.stderr
    );
    until("it is rolled back", PATIENCE, || host.kernel().is_empty().then_some(()));
    until("the guard goes", PATIENCE, || host.guards().is_empty().then_some(()));
    assert_eq!(host.pins(), "");
    let status = host.run(&["status"]).expect(0).stdout;
    assert!(status.contains("was rolled back: not confirmed within 1 s"), "{status}");
    host.works();
    let late = host.run(&["confirm"]).expect(1);
    assert!(late.stderr.contains("rolled back"), "{}", late.stderr);
}

#[test]
fn root_ports_of_another_namespace_are_published_and_given_back() {
    let Some(host) = Host::new(WEIR) else { return };
    host.world.sh(
        "touch /run/netns/host && mount --bind /proc/self/ns/net /run/netns/host && ip netns add elsewhere",
    );
    let publish = |words: &[&str]| {
        let mut command = host.world.command("nsenter");
        command
            .arg("--net=/run/netns/elsewhere")
            .arg(WEIR)
            .arg("publish")
            .args(words)
            .args(["--netns", "host"]);
        command.env("WEIR_STATE_DIR", host.world.folder().join("state"));
        host.world.run(command).expect(0)
    };
    publish(&["apply", "--all", "--confirm-within", "1h"]);
    assert_eq!(host.guards().len(), 2);
    let rules = host.by_the_rules();
    host.works();
    assert_eq!(host.by_the_rules(), rules, "no new connection came to the rules");
    publish(&["confirm"]);
    until("the guards go", PATIENCE, || host.guards().is_empty().then_some(()));
    let status = publish(&["status"]).stdout;
    assert!(status.contains("veth1: in effect"), "{status}");
    publish(&["remove"]);
    host.works();
    assert_eq!(host.by_the_rules(), rules + 4, "two connections and two datagrams by the rules");

    publish(&["apply", "--all", "--confirm-within", "1s"]);
    until("it is rolled back", PATIENCE, || {
        publish(&["status"]).stdout.contains("was rolled back: not confirmed within 1 s").then_some(())
    });
    host.works();
    assert_eq!(host.by_the_rules(), rules + 8, "by the rules again");
}

#[test]
fn root_applied_twice_it_is_one_and_another_choice_takes_its_place() {
    let Some(host) = Host::new(WEIR) else { return };
    host.run(&["apply", "--all", "--no-guard"]).expect(0);
    assert!(host.guards().is_empty());
    let first = host.kernel();
    let again = host.run(&["apply", "--all"]).expect(0);
    assert!(again.stderr.contains("in effect already"), "{}", again.stderr);
    assert_eq!(host.kernel(), first);

    // One port only: the others are the kernel's again, on a connection that goes on.
    let client = host.keep_asking("client", PUBLISHED[0]);
    let one = format!("{}:80={}:8080/tcp", PUBLISHED[0], CONTAINERS[0]);
    let applied = host.json(&["apply", &one, "--confirm-within", "1h"], 0);
    assert_eq!(applied["wanted"]["containers"][0]["mappings"].as_array().unwrap().len(), 1, "{applied:#}");
    let rules = host.by_the_rules();
    host.works();
    assert_eq!(host.by_the_rules(), rules + 3, "all but one kind of connections by the rules");
    let waits = host.run(&HOUR).expect(1);
    assert!(waits.stderr.contains("waits to be confirmed"), "{}", waits.stderr);
    // A change that is not confirmed gives way to the state before.
    let guard = host.guards()[0];
    host.world.sh(&format!("kill -TERM {guard}"));
    until("the first one is back", PATIENCE, || (host.kernel() == first).then_some(()));
    assert!(host.enough(client) > 3);
    host.works();
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
}

/// As after an upgrade: the programs in the kernel are of another version.
#[test]
fn root_programs_of_another_version_are_replaced_without_a_gap() {
    let Some(host) = Host::new(WEIR) else { return };
    host.run(&["apply", "--all", "--no-guard"]).expect(0);
    host.world.sh(
        "cd /sys/fs/bpf/weir/publish && for own in *-*-*; do mv $own ${own%%-*}-00000000-${own##*-}; done",
    );
    let client = host.keep_asking("client", PUBLISHED[0]);
    let status = host.json(&["status"], 0);
    assert!(status["containers"][0]["counts"].is_null(), "{status:#}");
    let page = host.run(&["status"]).expect(0).stdout;
    assert!(page.contains("by another version of weir"), "{page}");
    let (first, rules) = (host.kernel(), host.by_the_rules());
    let again = host.run(&["apply", "--all", "--no-guard"]).expect(0);
    assert!(again.stderr.contains("in effect already"), "{}", again.stderr);
    assert_eq!(host.kernel(), first, "the same mappings");
    assert!(host.enough(client) > 3);
    host.works();
    assert_eq!(host.by_the_rules(), rules, "no new connection came to the rules");
    let status = host.json(&["status"], 0);
    assert!(status["containers"][0]["counts"].is_array(), "{status:#}");
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
}

#[test]
fn root_a_container_that_was_started_again_is_told_and_mended() {
    let Some(mut host) = Host::new(WEIR) else { return };
    host.run(&["apply", "--all", "--no-guard"]).expect(0);
    host.stop_container("ctr", "veth1");
    let status = host.run(&["status"]).expect(3).stdout;
    for words in ["veth1: NOT in effect as a whole", "was it started again?", "weir publish apply mends it"] {
        assert!(status.contains(words), "{words}: {status}");
    }
    // A name of a link is anybody's choice.
    let link = "v\u{1b}[31m";
    host.start_container("ctr2", link);
    let status = host.json(&["status"], 3);
    assert_eq!((&status["in_effect"], &status["containers"][0]["attached"]), (&false.into(), &false.into()));
    until("the new container answers by the rules", PATIENCE, || {
        PUBLISHED.iter().all(|address| host.ask(address).code == 0).then_some(())
    });
    until("it is mended", PATIENCE, || (host.run(&["apply", "--all", "--no-guard"]).code == 0).then_some(()));
    let status = host.run(&["status"]).expect(0).stdout;
    assert!(status.contains("in effect") && !status.contains('\u{1b}'), "{status}");
    let page = host.run(&["plan"]).expect(0).stdout;
    assert!(page.contains("can be done") && !page.contains('\u{1b}'), "{page}");
    let rules = host.by_the_rules();
    host.works();
    assert_eq!(host.by_the_rules(), rules);
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
}

#[test]
fn root_what_cannot_be_done_is_told_with_the_reason_and_nothing_is_changed() {
    let Some(host) = Host::new(WEIR) else { return };
    let rules = "iptables-nft -t nat -A DOCKER -p tcp --dport 81 -j DNAT --to-destination 198.19.0.2-198.19.0.9:81
        iptables-nft -t nat -A DOCKER -p tcp --dport 82:84 -j DNAT --to-destination 198.19.0.2
        iptables-nft -t nat -A DOCKER -p tcp --dport 85 -m statistic --mode random --probability 0.5 -j DNAT --to-destination 198.19.0.2:85
        iptables-nft -t nat -A DOCKER -p tcp --dport 86 -j DNAT --to-destination 192.0.2.9:86
        iptables-nft -t nat -A DOCKER -d 127.0.0.1 -p tcp --dport 87 -j DNAT --to-destination 198.19.0.2:87
        iptables-nft -t nat -A DOCKER -p tcp --dport 88 -j DNAT --to-destination 198.19.0.77:88
        iptables-nft -t nat -A DOCKER -p tcp --dport 89 -j DNAT --to-destination 198.19.0.2:8080
        iptables-nft -t nat -A DOCKER -d 198.18.0.99 -p tcp --dport 90 -j DNAT --to-destination 198.19.0.2:90";
    host.world.sh(rules);
    let plan = host.json(&["plan"], 0);
    let why = |published: &str| {
        let of_it = plan["found"].as_array().unwrap().iter().find(|f| f["published"] == published);
        let found = of_it.unwrap_or_else(|| panic!("{published}: {plan:#}"));
        found["why_not"].as_str().unwrap_or("can be done").to_owned()
    };
    for (published, words) in [
        ("*:81", "several containers are behind it"),
        ("*:82-84", "a range of ports"),
        ("*:85", "asks for more than address and port (statistic)"),
        ("198.18.0.1:86", "behind the router 198.18.0.2"),
        ("127.0.0.1:87", "for this host itself only"),
        ("198.18.0.1:88", "no host answers for 198.19.0.77 at the bridge `docker0`"),
        ("*:89", "also published as *:80"),
        ("*:80", "also published as *:89"),
        ("198.18.0.99:90", "no address of out0"),
        ("198.18.0.1:53", "can be done"),
        ("[2001:2::1]:80", "can be done"),
    ] {
        assert!(why(published).contains(words), "{published}: {}", why(published));
    }
    proxied(&host);
    let one = |published: &str, container: &str| {
        host.run(&["apply", &format!("{published}={container}/tcp"), "--confirm-within", "1h"])
    };
    let refused = one("198.18.0.1:88", "198.19.0.77:88").expect(3);
    assert!(refused.stderr.contains("no host answers"), "{}", refused.stderr);
    let refused = one("198.18.0.1:99", "198.19.0.2:99").expect(3);
    assert!(refused.stderr.contains("no rule publishes it"), "{}", refused.stderr);
    let refused = host.run(&["plan", "--interface", "none\u{1b}0"]).expect(2);
    assert!(
        refused.stderr.contains("no interface `none") && !refused.stderr.contains('\u{1b}'),
        "{refused:?}"
    );
    let refused = host.run(&["apply", "198.18.0.1:53=198.19.0.2:5353/udp", "--link", "docker0"]).expect(2);
    assert!(refused.stderr.contains("no veth pair"), "{}", refused.stderr);

    // Published on all addresses, and there are two: the container's answers could come from one only.
    host.world.sh("ip addr add 198.18.0.7/24 dev out0");
    let page = host.run(&["plan"]).expect(0).stdout;
    assert!(page.contains("has several (198.18.0.1, 198.18.0.7)"), "{page}");
    host.world.sh("ip addr del 198.18.0.7/24 dev out0; sysctl -q net.ipv4.conf.docker0.forwarding=0");
    let page = host.run(&["plan"]).expect(0).stdout;
    assert!(page.contains("net.ipv4.conf.docker0.forwarding is not 1"), "{page}");
    host.world.sh("ip route del default; ip -6 route del default");
    let refused = host.run(&["plan"]).expect(2);
    assert!(refused.stderr.contains("say with --interface"), "{}", refused.stderr);
    assert_eq!(host.pins(), "");
}

/// A port that only a process publishes, as Docker's userland proxy does; its command line tells it apart.
fn proxied(host: &Host) {
    // No process ever writes into the pipe.
    host.world.write("wait.sh", "mkfifo never; echo ready >&2; read line < never\n");
    let words = "docker-proxy wait.sh -proto tcp -host-ip 0.0.0.0 -host-port 70 -container-ip 198.19.0.2 -container-port 7070";
    let mut command = host.world.command("python3");
    command.args(["-c", &format!("import os; os.execv('/bin/sh', '{words}'.split())")]);
    let mut proxy = host.world.start("proxy", command);
    proxy.wait_for("ready");
    let plan = host.json(&["plan"], 0);
    let found = plan["found"].as_array().unwrap().iter().find(|f| f["by"] == "docker-proxy").unwrap();
    assert_eq!((&found["published"], &found["container"]), (&"0.0.0.0:70".into(), &"198.19.0.2:7070".into()));
    assert!(found["why_not"].as_str().unwrap().contains("only the userland proxy"), "{found}");
    proxy.signal("KILL");
    proxy.end_within(PATIENCE);
}

#[test]
fn root_a_filter_that_is_attached_later_is_named() {
    let Some(host) = Host::new(WEIR) else { return };
    host.world.write("list", "198.18.0.2\n2001:2::2\n");
    let filter = |args: &[&str]| {
        let mut command = host.world.weir(&[&["allow"], args].concat());
        command.env("WEIR_STATE_DIR", host.world.folder().join("state")).env("WEIR_BPF_DIR", "/sys/fs/bpf");
        host.world.run(command).expect(0)
    };
    let load = ["apply", "list", "-i", "out0", "--confirm-within", "1h", "--force"];
    filter(&load);
    filter(&["confirm"]);
    host.run(&["apply", "--all", "--no-guard"]).expect(0);
    host.works();
    let status = host.json(&["status"], 0);
    assert_eq!(status["behind"], serde_json::json!([]), "it was there before");
    filter(&["remove"]);
    filter(&load);
    filter(&["confirm"]);
    let status = host.run(&["status"]).expect(0).stdout;
    assert!(status.contains("not asked about these packets: the program allow_ingress"), "{status}");
    filter(&["remove"]);
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
}

#[test]
fn root_rules_that_would_be_passed_by_must_be_meant() {
    let Some(host) = Host::new(WEIR) else { return };
    host.world.sh("iptables-nft -I DOCKER-USER -i out0 -s 198.18.0.66 -j DROP");
    let page = host.run(&["plan"]).expect(0).stdout;
    assert!(page.contains("would be passed by: nftables table ip filter, chain DOCKER-USER"), "{page}");
    let refused = host.run(&HOUR).expect(3);
    assert!(refused.stderr.contains("DOCKER-USER; nothing was changed (--force"), "{}", refused.stderr);
    assert_eq!((host.pins().as_str(), host.guards()), ("", Vec::new()));
    host.run(&[&HOUR[..], &["--force"]].concat()).expect(0);
    host.works();
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
}

/// The kernel chooses ports for connections without knowing the mappings.
#[test]
fn root_published_ports_of_the_hosts_own_connections_are_named() {
    let Some(host) = Host::new(WEIR) else { return };
    assert_eq!(host.json(&["plan"], 0)["local_ports"], serde_json::json!([]));
    // Ports below 1024 are in no such range; of the rules, those of TCP get another one.
    host.world.sh("iptables-nft-save | sed 's/--dport 80 /--dport 40000 /' | iptables-nft-restore");
    let plan = host.json(&["plan"], 0);
    assert_eq!(plan["local_ports"].as_array().unwrap().len(), 1, "{plan:#}");
    assert_eq!(plan["local_ports"][0]["published"], "198.18.0.1:40000");
    let words = "net.ipv4.ip_local_reserved_ports: 198.18.0.1:40000/tcp";
    let page = host.run(&["plan"]).expect(0).stdout;
    assert!(page.contains(words), "{page}");
    let applied = host.run(&HOUR).expect(0);
    assert!(applied.stderr.contains(words), "{}", applied.stderr);
    host.run(&["remove"]).expect(0);
    host.world.sh("echo 40000 >/proc/sys/net/ipv4/ip_local_reserved_ports");
    assert_eq!(host.json(&["plan"], 0)["local_ports"], serde_json::json!([]));
}

#[test]
fn root_what_is_missing_is_named() {
    let Some(world) = World::root(WEIR) else { return };
    for command in ["plan", "apply", "status", "confirm", "remove"] {
        let all: &[&str] = if command == "apply" { &["--all"] } else { &[] };
        let args = [&["publish", command][..], all].concat();
        let outcome = world.run(world.weir_as_nobody(&args)).expect(4);
        let words = format!("weir publish {command} needs root: sudo weir publish {command}");
        assert!(outcome.stderr.contains(&words), "{}", outcome.stderr);
    }
    let outcome = world.run(world.weir(&["publish", "apply"])).expect(2);
    assert!(outcome.stderr.contains("PUBLISHED=CONTAINER/PROTOCOL"), "{}", outcome.stderr);
    let outcome = world.run(world.weir(&["publish", "apply", "80:8080"])).expect(2);
    assert!(outcome.stderr.contains("198.18.0.1:80=172.17.0.2:8080/tcp"), "{}", outcome.stderr);
}
