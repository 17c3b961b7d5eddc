use super::*;

/// A small scenario; every line has its place in the table of mistakes below.
const GOOD: &str = r#"name = "small"
title = "A small one"
require = ["nft.bulk >= 0.9 x direct"]
[testbed]
mtu = 1500
ports = "21100-21109"
[plan]
min-rounds = 6
max-rounds = 8
budget = "2m"
[preset.quick]
plan = { max-rounds = 7 }
variants = ["direct", "nft"]
workloads = ["bulk"]
[[variant]]
kind = "direct"
[[variant]]
kind = "routed"
[[variant]]
name = "nft"
kind = "nft-masquerade"
ports = "1024-65535"
conntrack-timeouts = { udp = "30s" }
[[workload]]
name = "bulk"
kind = "tcp-stream"
streams = 2
[[workload]]
name = "ask"
kind = "tcp-rr"
under = { kind = "udp-stream", rate-pps = 1000.0 }
[[workload]]
name = "bulk-iperf3"
kind = "external"
[[compare]]
workload = "bulk"
with = "bulk-iperf3"
[cost]
gb-in = 1000
variants = { nft = "nat-instance" }
"#;

fn good() -> Scenario {
    Scenario::load(GOOD, "small.toml").unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn the_small_one_says_what_it_says() {
    let scenario = good();
    assert_eq!(scenario.plan.baseline, "direct");
    assert_eq!(scenario.plan.budget, Duration::from_secs(120));
    assert_eq!(scenario.plan.to_record().budget_s, 120.0);
    assert_eq!(scenario.workloads[1].warmup, Duration::from_millis(300));
    assert!(scenario.workloads[1].describe().contains(", under load: UDP egress"));
    let runs: Vec<_> = scenario.runs().into_iter().map(|r| (r.name, r.baseline, r.twin_of)).collect();
    assert_eq!(
        runs,
        [
            ("direct".to_owned(), true, None),
            ("direct (A/A)".to_owned(), false, Some("direct".to_owned())),
            ("routed".to_owned(), false, None),
            ("nft".to_owned(), false, None),
        ]
    );
    // 0.3 + 1 s, and what opening and closing takes: 0.05 s, with a load of datagrams 0.4 s, iperf3 0.75 s; x 4 variants.
    assert!((scenario.seconds_of_rounds(1) - 4.0 * (1.35 + 1.7 + 2.05)).abs() < 1e-9);
    assert_eq!(scenario.trials_per_round(), 12);
    assert_eq!(scenario.expected_seconds(), (120.0, 120.0), "six rounds take the whole budget");
    let mut scenario = scenario;
    scenario.set("plan.budget=10m").unwrap();
    let (least, most) = scenario.expected_seconds();
    assert!((least - 6.0 * 20.4).abs() < 1e-9 && (most - 8.0 * 20.4).abs() < 1e-9, "{least} to {most}");
}

/// Line of [`GOOD`], its text, what stands there instead, the line of the message, a part of it, the nearest valid value.
type Mistake = (&'static str, &'static str, usize, &'static str, Option<&'static str>);

const MISTAKES: &[Mistake] = &[
    ("name = \"small\"", "name = \"Small One\"", 1, "a-z, 0-9 and -", None),
    ("name = \"small\"", "nmae = \"small\"", 1, "unknown key or section `nmae`", Some("name")),
    ("name = \"small\"", "name = \"small", 1, "not TOML", None),
    ("name = \"small\"", "", 1, "no `name`", None),
    ("title = \"A small one\"", "title = 3", 2, "title = 3: expected a text in quotes", None),
    (
        "title = \"A small one\"",
        "title = 1979-05-27",
        2,
        "title = 1979-05-27: expected a date in quotes",
        None,
    ),
    ("nft.bulk >= 0.9 x direct", "nftt.bulk >= 0.9 x direct", 3, "no variant \"nftt\"", Some("nft")),
    ("nft.bulk >= 0.9 x direct", "nft.bluk >= 0.9 x direct", 3, "no workload \"bluk\"", Some("bulk")),
    (
        "nft.bulk >= 0.9 x direct",
        "nft.bulk >= 1 Mbits",
        3,
        "no unit of goodput_bps \"Mbits\"",
        Some("Mbit/s"),
    ),
    ("[testbed]", "[testebd]", 4, "unknown key or section `testebd`", Some("testbed")),
    ("[testbed]", "[testbed]\nkind = \"labb\"", 5, "unknown kind \"labb\"", Some("lab")),
    ("mtu = 1500", "mtu = 20", 5, "mtu = 20: valid are 68 to 65535", None),
    ("mtu = 1500", "mut = 1500", 5, "unknown key `mut` in [testbed]", Some("mtu")),
    ("mtu = 1500", "host-sysctl = {}", 5, "unknown key `host-sysctl`", Some("host-sysctls")),
    ("mtu = 1500", "family = \"ipv5\"", 5, "unknown family \"ipv5\"", Some("ipv4")),
    ("mtu = 1500", "rps = { gatway = [0] }", 5, "gatway", Some("gateway")),
    ("mtu = 1500", "cpus = { gateway = [4711] }", 5, "there is no core 4711", None),
    ("mtu = 1500", "host-sysctls = { a = 1 }", 5, "expected a text in quotes", None),
    ("mtu = 1500", "initiator = { host = \"local\" }", 5, "unknown key `initiator`", None),
    ("ports = \"21100-21109\"", "ports = \"80-90\"", 6, "like \"21100-21109\"", None),
    ("[plan]", "plan = 3", 7, "unknown key `plan` in [testbed]", None),
    ("[plan]", "[[plan]]", 7, "`plan` must be a table, begun by [plan]", None),
    ("min-rounds = 6", "min-round = 6", 8, "unknown key `min-round` in [plan]", Some("min-rounds")),
    ("min-rounds = 6", "min-rounds = -6", 8, "min-rounds = -6: expected a whole number", None),
    ("budget = \"2m\"", "target = inf", 10, "target = inf: expected a finite number", None),
    ("min-rounds = 6", "min-rounds = \"6\"", 8, "min-rounds = \"6\": expected a whole number", None),
    ("min-rounds = 6", "min-rounds = 0", 8, "min-rounds = 0: valid is 1 to 1000", None),
    ("max-rounds = 8", "max-rounds = 5", 9, "max-rounds = 5: valid is min-rounds = 6 to 1000", None),
    ("budget = \"2m\"", "budget = \"2 minutes\"", 10, "not a time such as 10, 90s, 2m or 500ms", None),
    ("budget = \"2m\"", "duration = \"10ms\"", 10, "duration = 10 ms: valid is 100 ms to 1 h", None),
    ("budget = \"2m\"", "baseline = \"dierct\"", 10, "no variant has that name", Some("direct")),
    ("budget = \"2m\"", "target = 2", 10, "target = 2: valid is a share", None),
    (
        "plan = { max-rounds = 7 }",
        "plan = { max-rouns = 7 }",
        12,
        "unknown key `max-rouns`",
        Some("max-rounds"),
    ),
    (
        "plan = { max-rounds = 7 }",
        "plan = { max-rounds = 5 }",
        12,
        "max-rounds = 5: valid is min-rounds",
        None,
    ),
    ("variants = [\"direct\", \"nft\"]", "variants = [\"direct\", \"ntf\"]", 13, "no \"ntf\"", Some("nft")),
    (
        "variants = [\"direct\", \"nft\"]",
        "variants = [\"nft\"]",
        13,
        "baseline \"direct\" is not among",
        None,
    ),
    ("workloads = [\"bulk\"]", "workloads = []", 14, "empty list", None),
    ("workloads = [\"bulk\"]", "workload = [\"bulk\"]", 14, "unknown key `workload`", Some("workloads")),
    ("kind = \"routed\"", "kind = \"router\"", 18, "unknown kind \"router\" in [[variant]]", Some("routed")),
    ("kind = \"routed\"", "kind = \"direct\"", 18, "name \"direct\" is there twice", None),
    ("kind = \"routed\"", "knid = \"routed\"", 17, "[[variant]] has no `kind`", None),
    ("name = \"nft\"", "name = \"n.ft\"", 20, "expected 1 to 40", None),
    ("name = \"nft\"", "name = \"routed\"", 20, "name \"routed\" is there twice", None),
    (
        "ports = \"1024-65535\"",
        "prots = \"1024-65535\"",
        22,
        "unknown key `prots` in [[variant]]",
        Some("ports"),
    ),
    ("ports = \"1024-65535\"", "random = 1", 22, "random = 1: expected true or false", None),
    ("ports = \"1024-65535\"", "mss-clamp = 20", 22, "mss-clamp = 20: expected", None),
    ("ports = \"1024-65535\"", "lables = {}", 22, "unknown key `lables`", Some("labels")),
    ("udp = \"30s\"", "upd = \"30s\"", 23, "no timeout `upd`", None),
    ("kind = \"tcp-stream\"", "kind = \"tcp-steram\"", 26, "unknown kind \"tcp-steram\"", Some("tcp-stream")),
    ("streams = 2", "streams = 1000", 27, "streams = 1000: valid is 1..=128", None),
    ("streams = 2", "direction = \"out\"", 27, "unknown direction \"out\" in [[workload]]", Some("both")),
    ("streams = 2", "durations = \"1s\"", 27, "unknown key `durations`", Some("duration")),
    ("streams = 2", "duration = 1", 27, "duration = 1: expected a time such as", None),
    ("name = \"ask\"", "name = \"bulk\"", 29, "name \"bulk\" is there twice", None),
    ("name = \"ask\"", "", 28, "[[workload]] has no `name`", None),
    (
        "rate-pps = 1000.0",
        "rate-psp = 1000.0",
        31,
        "unknown key `rate-psp` in [[workload]] `under`",
        Some("rate-pps"),
    ),
    ("rate-pps = 1000.0", "streams = 0", 31, "under: streams = 0: valid is 1..=128", None),
    ("with = \"bulk-iperf3\"", "with = \"bulk-iperf\"", 37, "no \"bulk-iperf\"", Some("bulk-iperf3")),
    ("with = \"bulk-iperf3\"", "with = \"bulk\"", 37, "compared with itself", None),
    ("gb-in = 1000", "gbin = 1000", 39, "unknown key `gbin` in [cost]", Some("gb-in")),
    ("gb-in = 1000", "hours = -1", 39, "hours", None),
    (
        "variants = { nft = \"nat-instance\" }",
        "variants = { ntf = \"nat-instance\" }",
        40,
        "no \"ntf\"",
        Some("nft"),
    ),
    ("nft = \"nat-instance\"", "nft = \"nat-instanc\"", 40, "nat-instance", None),
];

#[test]
fn each_mistake_is_named_with_its_line_and_the_nearest_valid_value() {
    let mut wrong = Vec::new();
    for (there, instead, line, part, nearest) in MISTAKES {
        assert_eq!(GOOD.matches(there).count(), 1, "{there}");
        let text = GOOD.replacen(there, instead, 1);
        match Scenario::load(&text, "small.toml") {
            Ok(_) => wrong.push(format!("{instead}: accepted")),
            Err(error) => {
                let message = error.to_string();
                let start = format!("small.toml:{line}: ");
                let ends =
                    nearest.is_none_or(|n| message.ends_with(&format!("; nearest valid value: \"{n}\"")));
                if !message.starts_with(&start) || !message.contains(part) || !ends || message.contains('\n')
                {
                    wrong.push(format!(
                        "{instead}\n    gives  {message}\n    wanted {start}...{part}...{nearest:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn built_in_scenarios_load_and_come_back_the_same() {
    for (name, text) in built_in() {
        let scenario = Scenario::load(text, name).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(scenario.name, *name, "the name by which it is found is its own");
        let again = Scenario::load(scenario.to_toml(), name).unwrap();
        assert_eq!(again, scenario);
        for preset in scenario.presets.keys() {
            let mut chosen = scenario.clone();
            chosen.apply_preset(preset).unwrap_or_else(|e| panic!("{e}"));
            assert!(chosen.presets.is_empty());
            assert_eq!(Scenario::load(chosen.to_toml(), name).unwrap(), chosen);
        }
    }
}

#[test]
fn only_what_has_a_metric_in_common_is_compared() {
    let text = GOOD.replace("kind = \"external\"", "kind = \"tcp-connect\"");
    let error = Scenario::load(&text, "small.toml").unwrap_err();
    assert_eq!(
        error.to_string(),
        "small.toml:37: [[compare]]: \"bulk\" and \"bulk-iperf3\" have no metric in common"
    );
}

/// A scenario of hosts, with the gateway's interfaces and the responder's address to be filled in.
fn on_hosts(kinds: &[&str], gateway: &str, responder: &str) -> String {
    let variants: String = kinds.iter().map(|k| format!("[[variant]]\nkind = \"{k}\"\n")).collect();
    format!(
        "name = \"hosts\"\ntitle = \"\"\n[testbed]\nkind = \"hosts\"\nhost-sysctls = {{ \"net.core.rmem_max\" = \"1\" }}\n\
         [[testbed.initiator]]\nhost = \"ssh://root@10.0.1.5:22\"\naddress = \"10.0.1.5\"\ncpus = [0]\n\
         [[testbed.initiator]]\nhost = \"local\"\naddress = \"10.0.1.6\"\n\
         {gateway}[testbed.responder]\nhost = \"docker://web\"\naddress = \"{responder}\"\n\
         {variants}[[workload]]\nname = \"w\"\nkind = \"tcp-stream\"\n"
    )
}

const GATEWAY: &str = "[testbed.gateway]\nhost = \"netns:gw\"\ninside-interface = \"eth0\"\noutside-interface = \"eth1\"\n\
                       inside-address = \"10.0.1.1\"\noutside-address = \"10.0.2.1\"\n";

#[test]
fn hosts_are_read() {
    let text = on_hosts(&["direct", "routed"], GATEWAY, "10.0.2.5");
    let scenario = Scenario::load(&text, "h").unwrap_or_else(|e| panic!("{e}"));
    let Testbed::Hosts(hosts) = &scenario.testbed else { panic!("not hosts") };
    assert_eq!(hosts.initiators.len(), 2);
    assert_eq!(hosts.initiators[0].cpus, [0]);
    assert_eq!(hosts.responders[0].host, HostAddress::Docker("web".into()));
    assert_eq!(hosts.gateway.as_ref().unwrap().outside_interface, "eth1");
    assert_eq!(hosts.host_sysctls["net.core.rmem_max"], "1");
    // Applying and removing takes its time on hosts: (0.3 + 1 + 1.5 + 0.05) s x 3 variants.
    assert!((scenario.seconds_of_rounds(1) - 8.55).abs() < 1e-9);
}

#[test]
fn mistakes_about_hosts() {
    for (text, part) in [
        (
            on_hosts(&["routed"], "", "10.0.2.5"),
            "h:3: [testbed]: variant \"routed\" needs a [testbed.gateway]",
        ),
        (
            on_hosts(&["direct"], "", "2001:2::5"),
            "h:15: [testbed.responder]: address = \"2001:2::5\": the testbed's family is IPv4",
        ),
        (
            on_hosts(&["direct"], GATEWAY, "10.0.2"),
            "h:21: [testbed.responder]: address = \"10.0.2\": invalid",
        ),
        (
            on_hosts(&["direct"], GATEWAY, "10.0.2.5").replace("netns:gw", "netns=gw"),
            "h:14: [testbed.gateway]: host \"netns=gw\"",
        ),
        (
            on_hosts(&["direct"], GATEWAY, "10.0.2.5").replace("eth1", ""),
            "h:16: [testbed.gateway]: outside-interface = \"\"",
        ),
        (
            on_hosts(&["direct"], GATEWAY, "10.0.2.5").replace("inside-a", "innside-a"),
            "h:17: unknown key `innside-address` in [testbed.gateway]; nearest valid value: \"inside-address\"",
        ),
        (
            on_hosts(&["direct"], &format!("{GATEWAY}mtu = 9000\n"), "10.0.2.5"),
            "h:19: unknown key `mtu` in [testbed.gateway]",
        ),
        (
            on_hosts(&["path"], GATEWAY, "10.0.2.5")
                .replace("[[testbed.initiator]]", "[[testbed.initiater]]"),
            "h:6: unknown key `initiater` in [testbed]; nearest valid value: \"initiator\"",
        ),
        (
            on_hosts(&["direct"], GATEWAY, "10.0.2.5")
                .replace("kind = \"hosts\"", "kind = \"hosts\"\nmtu = 9000"),
            "h:5: unknown key `mtu` in [testbed]",
        ),
    ] {
        let message = Scenario::load(&text, "h").map(drop).unwrap_err().to_string();
        assert!(message.starts_with(part), "gives  {message}\nwanted {part}\n{text}");
    }
}

#[test]
fn a_preset_is_the_plan_and_the_choice_that_it_names() {
    let mut scenario = good();
    scenario.apply_preset("quick").unwrap();
    assert_eq!((scenario.plan.max_rounds, scenario.plan.min_rounds), (7, 6));
    let names: Vec<_> = scenario.variants.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names, ["direct", "nft"]);
    assert_eq!(scenario.workloads.len(), 1);
    assert!(scenario.compare.is_empty() && scenario.notes.is_empty());
    assert_eq!(scenario.require.len(), 1, "it can still be judged");
    let message = good().apply_preset("quik").unwrap_err().to_string();
    assert_eq!(
        message,
        "--preset quik: scenario \"small\" has no preset of that name; nearest valid value: \"quick\""
    );
}

#[test]
fn a_selection_keeps_the_baseline_and_says_what_it_drops() {
    let names = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let mut scenario = good();
    scenario.select(&names(&["routed"]), &names(&["ask"])).unwrap();
    let kept: Vec<_> = scenario.variants.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(kept, ["direct", "routed"]);
    assert_eq!(
        scenario.notes,
        [
            "variant direct is measured too: it is the baseline",
            "not required, since it is not measured: nft.bulk >= 0.9 x direct"
        ]
    );
    assert!(scenario.require.is_empty() && scenario.compare.is_empty());
    assert!(scenario.cost.as_ref().unwrap().variants.is_empty());
    let again = Scenario::load(scenario.to_toml(), "small.toml").unwrap();
    assert_eq!(Scenario { notes: scenario.notes.clone(), ..again }, scenario);
    let before = scenario.clone();
    scenario.select(&[], &[]).unwrap();
    assert_eq!(scenario, before);
    let message = good().select(&names(&["nftt"]), &[]).unwrap_err().to_string();
    assert_eq!(
        message,
        "--variant nftt: scenario \"small\" has no variant of that name; nearest valid value: \"nft\""
    );
    let message = good().select(&[], &names(&["asks"])).unwrap_err().to_string();
    assert!(message.starts_with("--workload asks: ") && message.ends_with("\"ask\""), "{message}");
}

#[test]
fn single_values_are_set() {
    let mut scenario = good();
    for assignment in [
        "plan.max-rounds=12",
        "plan.budget=90s",
        "plan.target = 0.05",
        "testbed.mtu=9000",
        "testbed.sysctls.gateway.\"net.ipv4.ip_default_ttl\"=\"32\"",
        "variant.nft.fully-random=true",
        "variant.routed.labels.zone=b",
        "workload.ask.duration=2s",
        "title=Another one",
    ] {
        scenario.set(assignment).unwrap_or_else(|e| panic!("{e}"));
    }
    assert_eq!((scenario.plan.max_rounds, scenario.plan.target), (12, 0.05));
    assert_eq!(scenario.plan.budget, Duration::from_secs(90));
    let Testbed::Lab(lab) = &scenario.testbed else { panic!("not a lab") };
    assert_eq!(lab.options.mtu, 9000);
    assert_eq!(lab.options.sysctls[&weir_lab::Role::Gateway]["net.ipv4.ip_default_ttl"], "32");
    assert!(scenario.variants[2].variant.describe().contains("fully random"));
    assert_eq!(scenario.variants[1].labels["zone"], "b");
    assert_eq!(scenario.workloads[1].duration, Duration::from_secs(2));
    assert_eq!(scenario.title, "Another one");
    assert_eq!(Scenario::load(scenario.to_toml(), "small.toml").unwrap(), scenario);
}

#[test]
fn what_cannot_be_set_changes_nothing() {
    for (assignment, part) in [
        ("plan.max-rounds", "expected KEY=VALUE"),
        ("=3", "is not a key"),
        ("plan.max-round=8", "unknown key `max-round` in [plan]; nearest valid value: \"max-rounds\""),
        ("plan.max-rounds=many", "max-rounds = \"many\": expected a whole number"),
        ("plan.max-rounds.x=1", "`max-rounds` is not a table"),
        ("variant.ntf.random=true", "there is no variant \"ntf\"; nearest valid value: \"nft\""),
        ("variant.nft.random=1", "random = 1: expected true or false"),
        ("variant=1", "`variant` must be tables"),
        ("workload.bulk.streams=0", "streams = 0: valid is 1..=128"),
        ("pln.budget=1m", "unknown key or section `pln`; nearest valid value: \"plan\""),
        ("name=Nobody", "a-z, 0-9 and -"),
    ] {
        let mut scenario = good();
        let message = scenario.set(assignment).unwrap_err().to_string();
        assert!(message.starts_with(&format!("--set {assignment}: ")) && message.contains(part), "{message}");
        assert_eq!(scenario, good());
    }
}

mod mutated {
    use proptest::prelude::*;

    use super::*;

    fn texts() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![GOOD, built_in()[0].1, built_in()[1].1, built_in()[2].1])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// A slip anywhere in the text: bytes taken out, put in or doubled. Whatever it makes, it is read or refused.
        #[test]
        fn text_never_panics(
            text in texts(),
            at in any::<prop::sample::Index>(),
            length in 0usize..40,
            instead in prop_oneof!["[ -~\n]{0,6}", Just("[[".to_owned()), Just("= \"é\"".to_owned()), Just("{}".to_owned()), Just("-1".to_owned())],
        ) {
            let mut start = at.index(text.len());
            while !text.is_char_boundary(start) {
                start -= 1;
            }
            let mut end = (start + length).min(text.len());
            while !text.is_char_boundary(end) {
                end += 1;
            }
            let changed = format!("{}{instead}{}", &text[..start], &text[end..]);
            if let Err(error) = Scenario::load(&changed, "changed.toml") {
                let message = error.to_string();
                prop_assert!(!message.contains('\n'), "{message}");
                let lines = changed.lines().count().max(1) + 1;
                prop_assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{message}");
            }
        }

        #[test]
        fn assignments_never_panic(assignment in "[a-z.\"=\\[\\]{} 0-9-]{0,30}") {
            let _ = good().set(&assignment);
        }
    }
}
