//! `weir allow`: what it writes is loaded by the real programs, and they agree on every boundary.

mod documents;

use std::fmt::Write;
use std::net::Ipv4Addr;

use weir_testkit::World;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A registry's file in small: four records of one country, one of another, one of no country.
const REGISTRY: &str = "\
2|apnic|20250904|6|19830613|20250903|+1000
apnic|*|ipv4|*|5|summary
apnic|*|ipv6|*|1|summary
apnic|JP|ipv4|1.0.16.0|4096|20110412|allocated|A
apnic|JP|ipv4|1.0.32.0|768|20110412|allocated|A
apnic|JP|ipv4|203.0.113.7|1|20110412|assigned|A
apnic|CN|ipv4|1.1.0.0|256|20110412|allocated|B
apnic||ipv4|1.2.0.0|256||available|
apnic|JP|ipv6|2001:200::|32|19990813|allocated|A
";

/// The country's ranges by hand: 4096 addresses from 1.0.16.0 and 768 from 1.0.32.0 touch.
const RANGES: [(&str, &str); 2] = [("1.0.16.0", "1.0.34.255"), ("203.0.113.7", "203.0.113.7")];

/// Every boundary, what lies beside it, and whether it is inside.
fn boundaries() -> Vec<(Ipv4Addr, bool)> {
    let number = |text: &str| u32::from(text.parse::<Ipv4Addr>().unwrap());
    let mut all = vec![(Ipv4Addr::UNSPECIFIED, false), (Ipv4Addr::BROADCAST, false)];
    for (first, last) in RANGES {
        let (first, last) = (number(first), number(last));
        let addresses = [(first - 1, false), (first, true), (last, true), (last + 1, false)];
        all.extend(addresses.map(|(a, inside)| (a.into(), inside)));
    }
    all
}

#[test]
fn root_nft_ipset_and_check_agree_on_every_boundary() {
    let Some(world) = World::root(WEIR) else { return };
    world.write("apnic", REGISTRY);
    let build = |format: &str, file: &str| {
        let args =
            ["allow", "build", "apnic", "--country", "jp", "--format", format, "--name", "jp", "-o", file];
        world.run(world.weir(&args)).expect(0)
    };
    build("nft", "jp.nft");
    build("ipset", "jp.ipset");
    // Twice: the second time they replace what is there.
    for _ in 0..2 {
        world.sh("nft -f jp.nft && ipset restore -f jp.ipset");
    }
    for (address, inside) in boundaries() {
        let code = |script: String| world.run(world.shell(&script)).code;
        let expected = i32::from(!inside);
        assert_eq!(code(format!("nft get element inet jp v4 {{ {address} }}")), expected, "nft: {address}");
        assert_eq!(code(format!("ipset test jp4 {address}")), expected, "ipset: {address}");
        let checked =
            world.run(world.weir(&["allow", "check", &address.to_string(), "apnic", "--country", "JP"]));
        assert_eq!(checked.code, if inside { 0 } else { 3 }, "{address}: {}", checked.stdout);
    }
    world.sh("nft get element inet jp v6 { 2001:200:ffff:ffff::1 } && ipset test jp6 2001:200::");
    assert_eq!(world.run(world.shell("nft get element inet jp v6 { 2001:201:: }")).code, 1);
    // The old sets that were swapped out are gone.
    assert_eq!(world.sh("ipset list -n | sort").lines().collect::<Vec<_>>(), ["jp4", "jp6"]);
}

#[test]
fn root_a_long_list_is_loaded_whole() {
    let Some(world) = World::root(WEIR) else { return };
    // More than a set holds by default (65,536), with gaps so that nothing merges.
    let mut text = String::new();
    for number in 0..70_000u32 {
        let _ = writeln!(text, "{}/31", Ipv4Addr::from(0x0a00_0000 + number * 8));
    }
    world.write("long", text);
    for format in ["nft", "ipset"] {
        let args = ["allow", "build", "long", "--format", format, "-o", format];
        world.run(world.weir(&args)).expect(0);
    }
    world.sh("nft -f nft && ipset restore -f ipset");
    assert_eq!(world.sh("ipset list -t weir4 | grep entries").trim(), "Number of entries: 70000");
    let listed = world.sh("nft list set inet weir v4 | grep -o '/31' | wc -l");
    assert_eq!(listed.trim(), "70000");
}

/// Wherever a load ends halfway, the next one loads all of its own list and nothing of the other one's.
#[test]
fn root_an_interrupted_load_does_not_hinder_the_next_one() {
    let Some(world) = World::root(WEIR) else { return };
    let build = |name: &str, prefixes: &str| {
        world.write("list", prefixes);
        let args = ["allow", "build", "list", "--format", "ipset", "--name", "jp", "-o", name];
        world.run(world.weir(&args)).expect(0);
    };
    build("first", "192.0.2.0/25\n2001:db8::/48\n203.0.113.8/29\n");
    // Longer, so that it asks for more buckets.
    let many: String = (0..200).map(|n| format!("10.0.{n}.0/25\n")).collect();
    build("second", &format!("{many}2001:db8:1::/48\n"));
    let lines = world.sh("cat first").lines().count();
    for cut in 1..lines {
        world.sh("ipset destroy");
        // The work that a killed program has done so far. The first time there is no set before, then one.
        for _ in 0..2 {
            world.sh(&format!("head -n {cut} first | ipset restore && ipset restore -f second"));
            assert_eq!(world.sh("ipset list -n | sort").lines().collect::<Vec<_>>(), ["jp4", "jp6"], "{cut}");
            let entries = world.sh("ipset list jp4; ipset list jp6");
            assert!(!entries.contains("192.0.2.0") && !entries.contains("2001:db8::/48"), "{cut}: {entries}");
            assert!(
                entries.contains("entries: 200\n") && entries.contains("entries: 1\n"),
                "{cut}: {entries}"
            );
        }
    }
}

#[test]
fn a_bad_line_stops_and_names_itself() {
    let world = World::plain(WEIR);
    world.write("list", "192.0.2.0/24\n192.0.2.1/24\n");
    let outcome = world.run(world.weir(&["allow", "build", "list", "-o", "out"])).expect(2);
    assert!(
        outcome.stderr.contains("list:2: ") && outcome.stderr.contains("192.0.2.0/24"),
        "{}",
        outcome.stderr
    );
    assert_eq!(world.left_behind(&["list"]), [""; 0]);
    let outcome =
        world.run(world.weir(&["allow", "build", "list", "--skip-bad-lines", "--format", "cidr"])).expect(0);
    assert_eq!(outcome.stdout, "192.0.2.0/24\n");
    assert!(outcome.stderr.contains("left out: list:2"), "{}", outcome.stderr);
}

#[test]
fn a_list_that_would_shut_somebody_out_is_not_written() {
    let world = World::plain(WEIR);
    world.write("list", "192.0.2.0/24\n198.51.100.0/24\n");
    world.write("less", "192.0.2.0/25\n");
    let build = |more: &[&str]| {
        let mut args = vec!["allow", "build", "list", "--format", "cidr", "-o", "out"];
        args.extend(more);
        world.run(world.weir(&args))
    };
    let refused = build(&["--must-have", "192.0.2.1", "--subtract", "less"]).expect(3);
    assert!(refused.stderr.contains("192.0.2.1 is not in the list"), "{}", refused.stderr);
    assert_eq!(world.left_behind(&["list", "less"]), [""; 0]);

    build(&["--must-have", "192.0.2.1"]).expect(0);
    // 192.0.2.0/24 of 512 addresses is gone: half of them.
    world.write("list", "198.51.100.0/24\n");
    let refused = build(&[]).expect(3);
    assert!(refused.stderr.contains("50 % fewer"), "{}", refused.stderr);
    let kept = std::fs::read_to_string(world.work().join("out")).unwrap();
    assert_eq!(kept, "192.0.2.0/24\n198.51.100.0/24\n");
    build(&["--force"]).expect(0);
    let replaced = std::fs::read_to_string(world.work().join("out")).unwrap();
    assert_eq!(replaced, "198.51.100.0/24\n");
}

#[test]
fn wrong_use_is_told_in_one_message() {
    let world = World::plain(WEIR);
    world.write("empty", "# nothing\n");
    world.write("list", "192.0.2.0/24\n");
    world.write("apnic", REGISTRY);
    for (args, words) in [
        (&["build", "no-such-file"][..], "cannot read no-such-file"),
        (&["build", "empty"], "there is no address in empty"),
        (&["build", "apnic", "--country", "DE"], "there is no address for DE in apnic"),
        (&["build", "list", "--country", "Japan"], "two letters"),
        (&["build", "list", "--name", "a b"], "name `a b`"),
        (&["build", "list", "-6"], "nothing is left"),
        (&["check", "192.0.2.300", "list"], "192.0.2.300"),
    ] {
        let outcome = world.run(world.weir(&[&["allow"], args].concat())).expect(2);
        assert!(outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
        assert_eq!(outcome.complaints().len(), 1, "{args:?}: {}", outcome.stderr);
        assert!(outcome.stdout.is_empty());
    }
}

#[test]
fn a_difference_of_two_lists() {
    let world = World::plain(WEIR);
    world.write("old", "192.0.2.0/24\n2001:db8::/32\n");
    world.write("new", "192.0.2.0/25\n203.0.113.0/24\n2001:db8::/32\n");
    let outcome = world.run(world.weir(&["allow", "diff", "old", "new"])).expect(0);
    assert_eq!(outcome.stdout, "-192.0.2.128/25\n+203.0.113.0/24\n");
    let outcome = world.run(world.weir(&["allow", "diff", "old", "new", "--json"])).expect(0);
    let json = documents::read(&outcome.stdout, "allow-diff");
    assert_eq!(
        (&json["added"], &json["removed"]),
        (&["203.0.113.0/24"].as_slice().into(), &["192.0.2.128/25"].as_slice().into())
    );
}
