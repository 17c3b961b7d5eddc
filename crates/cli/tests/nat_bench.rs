//! `weir bench nat-behaviour`: the lab's NATs with a folder for what was seen.

mod documents;

use weir_testkit::{CommandOutput, World};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn bench(world: &World, args: &[&str]) -> CommandOutput {
    world.run(world.weir(&[&["bench", "nat-behaviour"], args].concat()))
}

#[test]
fn options_without_a_meaning_are_refused_before_anything_is_built() {
    let world = World::plain(WEIR);
    let all = bench(&world, &["--dry-run", "--preset", "standard"]).expect(0).stdout;
    assert!(all.contains("the timers take 5 min") && all.lines().any(|line| line == "docker"), "{all}");
    let one = bench(&world, &["--dry-run", "--variant", "routed"]).expect(0).stdout;
    assert!(one.starts_with("nat-behaviour: 1 gateway;") && !one.contains("docker"), "{one}");
    let of_ipv6 = bench(&world, &["--dry-run", "--variant", "tayga-nat64"]).expect(0).stdout;
    assert!(of_ipv6.starts_with("nat-behaviour: 1 gateway;"), "{of_ipv6}");
    for (args, reason) in [
        (["--rounds", "8"], "--rounds: nat-behaviour measures behaviour, not speed"),
        (["--workload", "udp-rr"], "--workload: nat-behaviour"),
        (["--require", "a.b >= 1 x c"], "--require: nat-behaviour"),
        (["--preset", "slow"], "has no preset `slow`; it has quick, standard, long"),
        (["--variant", "nftables"], "has no variant `nftables`; it has routed, nft-masquerade,"),
    ] {
        let refused = bench(&world, &args).expect(2);
        assert!(refused.stderr.contains(reason), "{}", refused.stderr);
    }
    world.sh("test ! -e runs");
}

#[test]
fn root_the_folder_has_result_page_and_packets() {
    if World::lacks(&["nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let ran = bench(&world, &["--variant", "nft-masquerade", "--output", "out", "--json"]).expect(0);
    let kept = world.sh("cat out/nat.json");
    assert_eq!(ran.stdout, kept);
    let result: serde_json::Value = documents::read(&kept, "nat-lab");
    let row = |id: &str| {
        let rows = result["gateways"][0]["rows"].as_array().unwrap();
        rows.iter().find(|row| row["id"] == id).unwrap().clone()
    };
    assert_eq!(row("udp-filtering")["verdict"], "fails", "{result:#}");
    // The timer of mappings with one packet out is 30 s, which the preset decides.
    assert_eq!(row("udp-idle-unanswered")["verdict"], "fails", "{result:#}");
    let file = row("udp-filtering")["packets"][0]["file"].as_str().unwrap().to_owned();
    world.sh(&format!("test -s out/packets/nft-masquerade/{file}; grep -q udp-filtering out/report.html"));
    for name in ["out/nat.json", "out/report.html", "out/packets"] {
        assert!(ran.stderr.contains(name), "{}", ran.stderr);
    }
    let same = world.run(world.weir(&["nat", "compare", "out/nat.json", "out/nat.json"])).expect(0);
    assert!(same.stdout.contains("nft-masquerade"), "{}", same.stdout);
}
