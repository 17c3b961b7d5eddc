//! `weir bench` with single frames: what the gateway's table holds afterwards, what an ending in the middle of a flood leaves, and
//! what a normal user gets.

mod measure;

use std::fs;

use measure::{Resident, turn};
use serde_json::Value;
use weir_lab::{Addresses, Lab, LabOptions, Role, SiteSpec, Topology};
use weir_testkit::{Background, NamespaceWatch, PATIENCE, Record, World, scenario, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const VARIANTS: &str = "[[variant]]\nkind = \"routed\"\n[[variant]]\nkind = \"nft-masquerade\"\n";

/// One round of short windows with these options of a workload of single frames. The round's first variant is the baseline.
fn frames(testbed: &str, variants: &str, options: &str) -> String {
    let plan = "min-rounds = 1\nmax-rounds = 1\nwarmup = \"0s\"\nduration = \"200ms\"";
    let workload = format!("[[workload]]\nname = \"frames\"\nkind = \"packets\"\n{options}\n");
    scenario::text("frames", testbed, plan, &format!("{variants}{workload}"))
}

/// The trials of a variant.
fn trials<'a>(record: &'a Record, variant: &str) -> Vec<&'a Value> {
    record.json["trials"].as_array().unwrap().iter().filter(|t| t["variant"] == variant).collect()
}

/// All lines of the proof of a variant.
fn proof(record: &Record, variant: &str) -> String {
    let variants = record.json["variants"].as_array().unwrap();
    let info = variants.iter().find(|v| v["name"] == variant).unwrap();
    info["proof"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn run(world: &World, text: &str) -> Record {
    world.write("s.toml", text);
    let _ = fs::remove_dir_all(world.work().join("out"));
    world.run(world.weir(&["bench", "s.toml", "-o", "out", "--seed", "1"])).expect(0);
    world.wait_until_idle();
    Record::read(world.work().join("out"))
}

#[test]
fn root_each_flow_of_a_nat_is_one_entry_and_the_far_end_sees_its_address() {
    let Some(world) = World::root(WEIR) else { return };
    let flows = 777;
    let record = run(&world, &frames(scenario::LAB, VARIANTS, &format!("flows = {flows}")));
    assert_eq!(record.valid_trials().len(), 2, "{:?}", record.json["trials"]);
    // The lab's addresses: the gateway's outside one after translation, the initiator's own without.
    for (variant, source) in [("nft-masquerade", "198.19.0.1"), ("routed", "198.18.0.2")] {
        let proof = proof(&record, variant);
        assert!(proof.contains(&format!("arrives from {source};")), "{variant}: {proof}");
        let metrics = &trials(&record, variant)[0]["metrics"];
        assert!(metrics["forwarding_rate_pps"].as_f64().unwrap() > 0.0, "{variant}: {metrics}");
        assert_eq!(metrics["mistranslated"], 0.0, "{variant}");
        let tracked = &metrics["tracked_connections"];
        let entries = (variant == "nft-masquerade").then_some(f64::from(flows));
        assert_eq!(tracked.as_f64(), entries, "{variant}: the kernel's own count");
    }
    // The tester's needs of the gateway are in the record.
    assert!(proof(&record, "routed").contains("GRO on at inside, GRO on at outside"), "{record:?}");
}

#[test]
fn root_flows_that_one_transfer_opened_are_answered_by_the_next() {
    let Some(world) = World::root(WEIR) else { return };
    // Slow, so that nothing is lost and the sender keeps its schedule on a busy machine, too.
    let options =
        "procedure = \"establishment-validated\"\nsearch = \"quick\"\nflows = 1000\nmax-rate = 2000";
    let record = run(&world, &frames(scenario::LAB, VARIANTS, options));
    for variant in ["routed", "nft-masquerade"] {
        assert!(proof(&record, variant).contains("and one comes back"), "{variant}");
        for trial in trials(&record, variant) {
            let faults = trial["faults"].as_array().unwrap();
            let failed = faults.iter().find(|f| f["code"] == "connection-failed");
            assert!(failed.is_none(), "{variant}: {failed:?}");
            let rate = |name: &str| trial["metrics"][name].as_f64();
            let (validated, plain) = (rate("validated_establishment_per_s"), rate("establishment_per_s"));
            // A sender that was kept from its core for too long makes the trial void, and then there is no value.
            let late = faults.iter().any(|f| f["code"] == "late-sends" && f["void"] == true);
            assert!(late || (validated > Some(0.0) && validated <= plain), "{variant}: {trial}");
        }
    }
    // The gateway's work was done on the core of the end that does not send, and that is in the record.
    let proof = proof(&record, "routed");
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(proof.contains("what inside receives is handled on core"), cores > 1, "{proof}");
}

#[test]
fn root_a_link_without_a_gateway_is_measured_too() {
    let Some(world) = World::root(WEIR) else { return };
    let record = run(&world, &frames(scenario::LAB, "[[variant]]\nkind = \"direct\"\n", "flows = 10"));
    assert_eq!(record.valid_trials().len(), 1, "{:?}", record.json["trials"]);
    assert!(proof(&record, "direct").contains("arrives from 198.18.0.2;"));
    let metrics = &trials(&record, "direct")[0]["metrics"];
    assert!(
        metrics["forwarding_rate_pps"].as_f64().unwrap() > 0.0 && metrics["tracked_connections"].is_null()
    );
}

#[test]
fn root_frames_are_handed_to_the_gateway_itself_and_ipv6_and_af_packet_work() {
    let Some(world) = World::root(WEIR) else { return };
    let ipv6 = format!("{}\nfamily = \"ipv6\"", scenario::LAB);
    for (testbed, options, words) in [
        (scenario::LAB, "flows = 10\ninject = \"gateway\"", "; gateway sends live frames"),
        (ipv6.as_str(), "flows = 10\nframe-bytes = 128", "a frame of 128 bytes arrives from 2001:2:0:1::1;"),
        (scenario::LAB, "flows = 10\nengine = \"af-packet\"", "; initiator sends by packet sockets"),
    ] {
        let record = run(&world, &frames(testbed, VARIANTS, options));
        assert_eq!(record.valid_trials().len(), 2, "{options}: {:?}", record.json["trials"]);
        let proof = proof(&record, "nft-masquerade");
        assert!(proof.contains(words), "{options}: {proof}");
        let metrics = &trials(&record, "nft-masquerade")[0]["metrics"];
        assert_eq!(metrics["tracked_connections"], 10.0, "{options}: {metrics}");
    }
}

#[test]
fn root_frames_beyond_live_ones_go_by_packet_sockets_and_the_record_says_so() {
    let Some(world) = World::root(WEIR) else { return };
    let jumbo = format!("{}\nmtu = 9000", scenario::LAB);
    let record = run(&world, &frames(&jumbo, VARIANTS, "flows = 10\nframe-bytes = 9018\nrate = 2000"));
    for variant in ["routed", "nft-masquerade"] {
        assert!(proof(&record, variant).contains("a frame of 9018 bytes arrives from"), "{variant}");
        let trial = trials(&record, variant)[0];
        let late = |f: &Value| f["code"] == "late-sends" && f["void"] == true;
        if !trial["faults"].as_array().unwrap().iter().any(late) {
            let metrics = &trial["metrics"];
            assert!(metrics["forwarding_rate_pps"].as_f64().unwrap() > 0.0, "{variant}: {metrics}");
            assert_eq!(metrics["mistranslated"], 0.0, "{variant}: {metrics}");
        }
    }
    let notes = record.json["notes"].to_string();
    let note = "initiator: those of 9018 bytes are sent by packet sockets (AF_PACKET)";
    assert!(notes.contains(note) && !notes.contains("responder: those"), "{notes}");
    // The longest live ones need no such note.
    let record = run(&world, &frames(&jumbo, VARIANTS, "flows = 10\nframe-bytes = 3400\nrate = 2000"));
    assert!(!record.json["notes"].to_string().contains("packet sockets"), "{}", record.json["notes"]);

    let text = frames(&jumbo, VARIANTS, "flows = 10\nframe-bytes = 9018\nengine = \"xdp\"");
    world.write("s.toml", text);
    let outcome = world.run(world.weir(&["scenario", "check", "s.toml"])).expect(2);
    let words = outcome.complaints();
    for word in ["s.toml:", "frame-bytes = 9018", "engine = \"xdp\"", "64 to 3400", "\"auto\""] {
        assert!(words.len() == 1 && words[0].contains(word), "no {word}: {words:?}");
    }
}

#[test]
fn root_a_path_that_carries_nothing_is_told_at_once_with_what_was_tried() {
    let Some(world) = World::root(WEIR) else { return };
    // Connections and answers pass, and frames of this port do not.
    let drops = "[[variant]]\nname = \"drops\"\nkind = \"custom\"\nseen-source = \"inside\"\n\
                 apply.gateway = [\"sysctl -qw net.ipv4.ip_forward=1\", \
                 \"nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; }; \
                 add rule ip t c udp dport 1 drop'\"]\n\
                 remove.gateway = [\"nft delete table ip t 2>/dev/null || true\", \"sysctl -qw net.ipv4.ip_forward=0\"]\n";
    let text =
        frames(scenario::LAB, drops, "flows = 10").replace("baseline = \"custom\"", "baseline = \"drops\"");
    world.write("s.toml", text);
    let outcome = world.run(world.weir(&["bench", "s.toml", "-o", "out"])).expect(1);
    let words = outcome.complaints();
    assert_eq!(words.len(), 1, "{}", outcome.stderr);
    for word in ["`drops`", "64 bytes", "got through", "198.19.0.2"] {
        assert!(words[0].contains(word), "no {word}: {}", words[0]);
    }
    world.wait_until_idle();
    assert!(!world.work().join("out").exists(), "nothing was measured");
}

#[test]
fn root_more_flows_than_the_table_has_room_for_are_told_with_what_sets_it() {
    let Some(world) = World::root(WEIR) else { return };
    let max: u64 = world.sh("cat /proc/sys/net/netfilter/nf_conntrack_max").trim().parse().unwrap();
    let most = 1 << 24;
    if max >= most {
        println!("SKIP: nf_conntrack_max is {max}, more than the flows that can be asked for");
        return;
    }
    world.write("s.toml", frames(scenario::LAB, VARIANTS, &format!("flows = {}", max + 1)));
    let outcome = world.run(world.weir(&["bench", "s.toml", "-o", "out"])).expect(2);
    let words = outcome.complaints();
    for word in ["nft-masquerade", &format!("{} flows", max + 1), "host-sysctls", "nf_conntrack_buckets"] {
        assert!(words[0].contains(word), "no {word}: {}", words[0]);
    }
    world.wait_until_idle();
    // A gateway that tracks nothing has no table that could be full.
    let routed = "[[variant]]\nkind = \"routed\"\n";
    let record = run(&world, &frames(scenario::LAB, routed, &format!("flows = {}", max + 1)));
    assert_eq!(record.valid_trials().len(), 1, "{:?}", record.json["trials"]);
}

/// Three hosts with names, of which a run knows no more than that, and a path with a gateway through them.
fn hosts(addresses: &Addresses) -> String {
    let Addresses { initiator, responder, gateway_inside, gateway_outside, .. } = addresses;
    format!(
        "kind = \"hosts\"\n\
         [testbed.initiator]\nhost = \"netns:initiator\"\naddress = \"{initiator}\"\n\
         [testbed.responder]\nhost = \"netns:responder\"\naddress = \"{responder}\"\n\
         [testbed.gateway]\nhost = \"netns:gateway\"\nflush-conntrack = true\n\
         inside-interface = \"inside\"\ninside-address = \"{gateway_inside}\"\n\
         outside-interface = \"outside\"\noutside-address = \"{gateway_outside}\"\n"
    )
}

#[test]
fn root_between_hosts_delay_is_the_round_trip_and_packet_sockets_have_none() {
    if World::lacks(&["ethtool"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let _turn = turn();
    let name = format!("test-round-trip-{}", std::process::id());
    let spec = SiteSpec { name: "s".into(), topology: Topology::Routed, return_route: true, wan: false };
    let lab = Lab::build(&name, &LabOptions::default(), &[spec]).unwrap();
    let site = lab.site("s").unwrap();
    let residents =
        [("initiator", Role::Initiator), ("gateway", Role::Gateway), ("responder", Role::Responder)]
            .map(|(name, role)| Resident::named(&world, name, site.host(role).unwrap()));
    let variant = "[[variant]]\nkind = \"nft-masquerade\"\n";
    let text = |options: &str| {
        let text = frames(&hosts(site.addresses()), variant, &format!("flows = 10\nrate = 2000\n{options}"));
        text.replace("baseline = \"routed\"", "baseline = \"nft-masquerade\"").replace("\"200ms\"", "\"1s\"")
    };
    let names = |record: &Record| -> Vec<String> {
        let metrics = record.json["workloads"][0]["metrics"].as_array().unwrap();
        metrics.iter().map(|m| m["name"].as_str().unwrap().to_owned()).collect()
    };
    for (procedure, headline) in
        [("latency", "rtt_p50_ns"), ("pdv", "pdv_ns"), ("rate", "forwarding_rate_pps")]
    {
        let record = run(&world, &text(&format!("procedure = \"{procedure}\"")));
        let proof = proof(&record, "nft-masquerade");
        assert!(proof.contains("and comes back to be timed"), "{procedure}: {proof}");
        let names = names(&record);
        assert_eq!(names[0], headline);
        assert!(names.iter().all(|name| !name.starts_with("delay")), "{names:?}");
        let trial = trials(&record, "nft-masquerade")[0];
        // A busy machine keeps a sender from its schedule, and then there may be no result.
        if trial["faults"].as_array().unwrap().iter().any(|f| f["code"] == "late-sends" && f["void"] == true)
        {
            println!("{procedure}: {}", trial["faults"]);
            continue;
        }
        assert_eq!(record.valid_trials().len(), 1, "{procedure}: {trial}");
        assert!(trial["histograms"]["delay"].is_null(), "{procedure}: {}", trial["histograms"]);
        assert_eq!(trial["metrics"]["mistranslated"], 0.0, "{procedure}");
        let cells = record.json["results"]["cells"].as_array().unwrap();
        let median = cells.iter().find(|c| c["metric"] == "rtt_p50_ns").unwrap();
        assert!(median["estimate"]["center"].as_f64().unwrap() > 0.0, "{procedure}: {median}");
        if procedure == "pdv" {
            // 2,000 frames have too few beyond their 99.9th percentile: the distribution is there, and no figure.
            let answered = trial["histograms"]["pdv"].as_array().map(|buckets| buckets.len());
            assert!(answered > Some(1), "{trial}");
        }
    }
    // Unbounded traffic is not sent, neither here nor in any other place that was not built for it.
    world.write("s.toml", text("").replace("rate = 2000", ""));
    let outcome = world.run(world.weir(&["bench", "s.toml", "-o", "none"])).expect(2);
    let words = outcome.complaints();
    assert!(words.len() == 1 && words[0].contains("no `max-rate`"), "{}", outcome.stderr);
    for procedure in ["latency", "pdv"] {
        world.write("s.toml", text(&format!("procedure = \"{procedure}\"\nengine = \"af-packet\"")));
        let outcome = world.run(world.weir(&["bench", "s.toml", "-o", "none"])).expect(2);
        let words = outcome.complaints();
        for word in [procedure, "round trips", "by XDP", "engine = \"af-packet\""] {
            assert!(words.len() == 1 && words[0].contains(word), "no {word}: {}", outcome.stderr);
        }
        assert!(!world.work().join("none").exists(), "nothing was measured");
    }
    let record = run(&world, &text("engine = \"af-packet\""));
    let trial = trials(&record, "nft-masquerade")[0];
    assert!(trial["metrics"]["forwarding_rate_pps"].as_f64().unwrap() > 0.0, "{trial}");
    assert!(trial["histograms"].as_object().is_none_or(|all| all.is_empty()), "{trial}");
    let unmeasured = "round trips of single frames are not measured";
    assert!(record.json["notes"].to_string().contains(unmeasured));

    // A hop that no agent makes ready: it takes in what the initiator's driver sends, and not what the responder's does.
    world.sh(
        "ip netns exec gateway sysctl -qw net.ipv4.ip_forward=1 && ip netns exec gateway ethtool -K inside gro on \
         && ip netns exec gateway ethtool -K outside gro off",
    );
    let path = |options: &str| {
        let text = text(options).replace("nft-masquerade", "path");
        let (before, rest) = text.split_once("[testbed.gateway]").unwrap();
        format!("{before}{}", &rest[rest.find("[plan]").unwrap()..])
    };
    world.write("s.toml", path("procedure = \"latency\""));
    let outcome = world.run(world.weir(&["bench", "s.toml", "-o", "none"])).expect(1);
    let words = outcome.complaints();
    for word in ["makes a round trip", "`path`", "GRO on"] {
        assert!(words.len() == 1 && words[0].contains(word), "no {word}: {}", outcome.stderr);
    }
    let record = run(&world, &path(""));
    let trial = trials(&record, "path")[0];
    assert!(trial["metrics"]["forwarding_rate_pps"].as_f64().unwrap() > 0.0, "{trial}");
    let notes = record.json["notes"].to_string();
    assert!(notes.contains(unmeasured) && notes.contains("GRO on"), "{notes}");
    drop(residents);
}

/// A run in the middle of a flood that lasts a minute.
fn flooding(world: &World) -> Background {
    let text = frames(scenario::LAB, VARIANTS, "flows = 100").replace("\"200ms\"", "\"9m\"");
    world.write("s.toml", text.replace("budget = \"30s\"", "budget = \"10h\""));
    let mut run = world.start("weir", world.weir(&["bench", "s.toml", "-o", "out"]));
    run.wait_for("nft-masquerade: the responder sees");
    until("a flood", PATIENCE, || floods(world).then_some(()));
    run
}

/// A process that sends without a pause for a second has used a good part of it. 100 ticks a second (proc(5): utime and stime are
/// fields 14 and 15; the second field ends with the parenthesis).
fn floods(world: &World) -> bool {
    world.processes().iter().filter(|(_, line)| line.trim_end().ends_with(" agent")).any(|(pid, _)| {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap() > 100
    })
}

/// Watches all namespaces of the one lab of a world.
fn watches(world: &World) -> Vec<NamespaceWatch> {
    let list = world.run(world.weir(&["lab", "list", "--json"])).expect(0).stdout;
    let list: Value = serde_json::from_str(&list).unwrap();
    let pid = list["labs"][0]["runner"]["pid"].as_u64().unwrap() as u32;
    let hosts = list["labs"][0]["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 6, "two gateways with their ends");
    hosts.iter().map(|h| NamespaceWatch::on(pid, h["fd"].as_i64().unwrap() as i32)).collect()
}

#[test]
fn root_ctrl_c_in_the_middle_of_a_flood_ends_it_at_once_and_leaves_nothing() {
    let Some(world) = World::root(WEIR) else { return };
    let run = flooding(&world);
    let watches = watches(&world);
    run.signal("INT");
    run.end_within(PATIENCE).expect(1);
    world.wait_until_idle();
    watches.iter().for_each(NamespaceWatch::wait_until_gone);
    assert!(world.labs().is_empty() && world.undo_lists().is_empty());
}

#[test]
fn root_kill_9_in_the_middle_of_a_flood_ends_it_at_once_and_leaves_nothing() {
    let Some(world) = World::root(WEIR) else { return };
    let run = flooding(&world);
    let watches = watches(&world);
    run.signal("KILL");
    assert_eq!(run.end_within(PATIENCE).code, -1);
    // The flood would have gone on for longer than is waited here.
    world.wait_until_idle();
    watches.iter().for_each(NamespaceWatch::wait_until_gone);
    world.run(world.weir(&["lab", "clean"])).expect(0);
    assert!(world.labs().is_empty() && world.undo_lists().is_empty());
}

#[test]
fn root_a_normal_user_sends_by_sockets_and_is_told_so_or_what_is_missing() {
    let Some(world) = World::root(WEIR) else { return };
    world.write("auto.toml", frames(scenario::LAB, VARIANTS, "flows = 10"));
    world.write("xdp.toml", frames(scenario::LAB, VARIANTS, "flows = 10\nengine = \"xdp\""));
    let as_nobody = |args: &[&str]| world.run(world.weir_as_nobody(args));
    as_nobody(&["bench", "auto.toml", "-o", "out"]).expect(0);
    let record = Record::read(world.work().join("out"));
    assert_eq!(record.valid_trials().len(), 2, "{:?}", record.json["trials"]);
    assert!(proof(&record, "nft-masquerade").contains("; initiator sends by packet sockets"));
    let notes = record.json["notes"].to_string();
    assert!(notes.contains("packet sockets") && notes.contains("BPF needs root"), "{notes}");

    let outcome = as_nobody(&["bench", "xdp.toml", "-o", "none"]).expect(4);
    let words = outcome.complaints();
    assert!(words.len() == 1 && words[0].contains("BPF") && words[0].contains("root"), "{}", outcome.stderr);
    world.wait_until_idle();
}
