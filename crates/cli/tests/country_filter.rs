//! `weir bench` with lists of allowed addresses: each filter is proved by a source that it must refuse, and one that refuses no source
//! is found out before anything is measured.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use weir_testkit::{World, scenario};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const PROGRAMS: [&str; 3] = ["nft", "ipset", "iptables-nft"];

/// A debug build makes tables of megabytes slowly.
const LIMIT: Duration = Duration::from_secs(100);

fn world() -> Option<World> {
    if World::lacks(&PROGRAMS) { None } else { World::root(WEIR) }
}

fn scenario(family: &str, hook: &str, variants: &[(&str, &str)]) -> String {
    let entry = |(name, more): &(&str, &str)| {
        format!("[[variant]]\nname = \"{name}\"\nkind = \"allow-list\"\nhook = \"{hook}\"\n{more}\n")
    };
    let entries: String = variants.iter().map(entry).collect();
    let testbed = format!("kind = \"lab\"\nfamily = \"{family}\"");
    let entries = format!("{entries}[[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n");
    // The first variant is the baseline, by its name.
    scenario::text("filters", &testbed, scenario::ONE_ROUND, &entries)
        .replace("baseline = \"allow-list\"", &format!("baseline = \"{}\"", variants[0].0))
}

/// Runs it with these folders before all others in `PATH`; returns exit code and output.
fn bench(world: &World, text: &str, path: Option<&str>) -> (i32, String) {
    world.write("s.toml", text);
    let mut command: Command = world.weir(&["bench", "s.toml", "-o", "out", "--seed", "1"]);
    if let Some(folder) = path {
        command.env("PATH", format!("{folder}:{}", std::env::var("PATH").unwrap()));
    }
    let output = weir_sys::process::run_captured(command, LIMIT).unwrap();
    let said = format!("{}{}", output.stdout_text(), String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap_or(-1), said)
}

#[test]
fn root_every_filter_is_proved_at_both_hooks_and_tells_what_it_takes() {
    let Some(world) = world() else { return };
    let filters = ["nft-set", "nft-linear", "ipset-iptables", "bpf", "bpf-xdp"];
    for (family, hook) in [("ipv4", "forward"), ("ipv6", "input")] {
        let named = filters.map(|f| (f, format!("filter = \"{f}\"\nprefixes = 200")));
        let mut variants = vec![("none", "filter = \"none\"")];
        variants.extend(named.iter().map(|(name, more)| (*name, more.as_str())));
        let _ = std::fs::remove_dir_all(world.work().join("out"));
        let (code, said) = bench(&world, &scenario(family, hook, &variants), None);
        assert_eq!(code, 0, "{said}");
        let text = std::fs::read_to_string(world.work().join("out/run.json")).unwrap();
        let run: Value = serde_json::from_str(&text).unwrap();
        for variant in run["variants"].as_array().unwrap() {
            let proof = variant["proof"].to_string();
            let refuses = variant["name"] != "none";
            assert_eq!(proof.contains("the filter refused all and none arrived"), refuses, "{proof}");
            let facts: Vec<&str> = variant["facts"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|fact| fact["name"].as_str().unwrap())
                .collect();
            let expected: &[&str] =
                if refuses { &["list_prefixes", "load_ns", "update_ns", "memory_bytes"] } else { &[] };
            assert_eq!(facts, expected, "{}", variant["name"]);
        }
        assert!(said.contains("Setup cost of the variants"), "{said}");
    }
    assert_eq!(world.left_behind(&["out", "s.toml"]), [] as [String; 0]);
}

/// A program in front of the real one makes rules that count what they must refuse, and let it through.
#[test]
fn root_a_filter_that_lets_everything_through_is_not_proved() {
    let Some(world) = world() else { return };
    let real = |program: &str| weir_sys::process::which(program).unwrap().display().to_string();
    let folder = world.work().join("broken");
    std::fs::create_dir(&folder).unwrap();
    let broken = |program: &str, script: String| {
        let path = folder.join(program);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    // The input of nft comes by its standard input, that of iptables as arguments.
    broken(
        "nft",
        format!(
            "if [ \"$1\" = -f ]; then sed 's/counter drop/counter accept/' | {0} \"$@\"; else exec {0} \"$@\"; fi",
            real("nft")
        ),
    );
    broken(
        "iptables-nft",
        format!(
            "for word; do shift; [ \"$word\" = DROP ] && word=ACCEPT; set -- \"$@\" \"$word\"; done; exec {} \"$@\"",
            real("iptables-nft")
        ),
    );
    let none = ("none", "filter = \"none\"");
    for filter in ["nft-set", "nft-linear", "ipset-iptables"] {
        let more = format!("filter = \"{filter}\"\nprefixes = 20");
        for hook in ["forward", "input"] {
            let text = scenario("ipv4", hook, &[none, ("broken", &more)]);
            let (code, said) = bench(&world, &text, Some(folder.to_str().unwrap()));
            assert_eq!(code, 1, "{filter} at {hook}: {said}");
            for words in ["broken", "198.18.0.66, which is not listed, reached the responder"] {
                assert!(said.contains(words), "{filter} at {hook}: {said}");
            }
            assert!(!world.work().join("out").exists(), "nothing was measured");
            let (code, said) = bench(&world, &text, None);
            assert_eq!(code, 0, "{filter} at {hook}, not broken: {said}");
            std::fs::remove_dir_all(world.work().join("out")).unwrap();
        }
    }
}

/// The responder takes single frames from its link before its own filter could.
#[test]
fn root_single_frames_do_not_meet_the_filter_of_a_server() {
    let Some(world) = world() else { return };
    let variants = [("none", "filter = \"none\""), ("bpf", "filter = \"bpf\"")];
    let text = format!(
        "{}[[workload]]\nname = \"frames\"\nkind = \"packets\"\n",
        scenario("ipv4", "input", &variants)
    );
    let (code, said) = bench(&world, &text, None);
    assert_ne!(code, 0, "{said}");
    assert!(said.contains("takes single frames from its link before any filter"), "{said}");
}
