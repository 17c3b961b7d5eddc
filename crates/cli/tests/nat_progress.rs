//! `weir nat lab --progress`: a run that is broken off, and files that are not its own.

mod documents;
mod nat_timers;

use nat_timers::Tries;
use serde_json::Value;
use weir_testkit::{Background, CommandOutput, PATIENCE, World, holds, measured, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const GATEWAY: &str = "nft-masquerade";

fn lab(world: &World, args: &[&str]) -> CommandOutput {
    world.run(world.weir(&[&["nat", "lab"], args].concat()))
}

fn start(world: &World, args: &[&str]) -> Background {
    world.start("nat", world.weir(&[&["nat", "lab", "--verbose"], args].concat()))
}

/// The content of a progress file, as the processes of this world see it; `None` while there is none.
fn content(world: &World, file: &str) -> Option<Value> {
    let output = world.run(world.shell(&format!("cat {file}")));
    (output.code == 0).then(|| serde_json::from_str(&output.stdout).unwrap())
}

fn part(world: &World, file: &str) -> Value {
    content(world, file).map_or(Value::Null, |content| content["gateways"][GATEWAY].clone())
}

fn complete(part: &Value) -> Vec<&str> {
    part["complete"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()).collect()
}

/// Timeouts of the kernel, s, and where their idle times are.
const TIMERS: [(&str, &str, u32); 8] = [
    ("unanswered", "udp_timeout", 3),
    ("answered", "udp_timeout_stream", 6),
    ("icmp", "icmp_timeout", 4),
    ("tcp_opening", "tcp_timeout_syn_sent", 5),
    ("tcp_established", "tcp_timeout_established", 12),
    ("tcp_half_closed", "tcp_timeout_close_wait", 4),
    ("tcp_reset_in", "tcp_timeout_close", 5),
    ("tcp_reset_out", "tcp_timeout_close", 5),
];

/// The times that a killed process had decided stay decided, and the others are found after all.
#[test]
fn root_paced_a_killed_run_goes_on() {
    if World::lacks(&["nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let settings = TIMERS.map(|(_, name, s)| format!("net.netfilter.nf_conntrack_{name}={s}"));
    let sysctls: Vec<&str> = settings.iter().flat_map(|setting| ["--sysctl", setting]).collect();
    let attempt = |number: usize| {
        let file = format!("run-{number}");
        let args = [&["--idle", "15s", "--progress", &file][..], &sysctls].concat();
        let killed = start(&world, &args);
        // The short timers have ended, the long one has not.
        let known = until("eight seconds of progress", PATIENCE, || {
            let part = part(&world, &file);
            let (alive, _) = part["seen"]["idle"]["tcp_established"]
                .is_array()
                .then(|| Tries::read(&part["seen"]["idle"], "tcp_established").bounds())?;
            (alive > 8.0).then_some(part)
        });
        killed.signal("KILL");
        assert_eq!(killed.end_within(PATIENCE).code, -1);
        assert!(!complete(&known).contains(&"idle") && complete(&known).contains(&"udp-mapping"));
        assert_eq!(Tries::read(&known["seen"]["idle"], "tcp_established").bounds().1, f64::INFINITY);

        let output = lab(&world, &[&["--verbose", "--json"], &args[..]].concat()).expect(0);
        assert!(output.stderr.contains("nft-masquerade: idle"), "{}", output.stderr);
        assert!(!output.stderr.contains("nft-masquerade: udp-mapping"), "{}", output.stderr);
        let document = documents::read(&output.stdout, "nat-lab");
        assert_eq!(document["started"].as_array().unwrap().len(), 2);
        let gateway = &document["gateways"][0];
        assert_eq!(gateway["kind"]["classic"], "port restricted cone");
        let idle = &gateway["observations"]["idle"];
        for (kind, _, truth) in TIMERS {
            Tries::read(idle, kind).assert_timer(kind, f64::from(truth));
        }
        // The times up to the end of the first part are its own: none of them was tried again.
        let short = |idle: &Value| {
            let tries = idle["tcp_established"].as_array().unwrap().iter();
            tries.filter(|t| t["idle_s"].as_f64().unwrap() < 8.0).count()
        };
        assert_eq!(short(idle), short(&known["seen"]["idle"]));

        // A complete file is the result.
        let again = lab(&world, &[&["--json"], &args[..]].concat()).expect(0);
        assert!(!again.stderr.contains("measures"), "{}", again.stderr);
        assert_eq!(documents::read(&again.stdout, "nat-lab")["gateways"], document["gateways"]);
    };
    measured(1, 1, |number| holds(|| attempt(number)));
}

#[test]
fn root_progress_is_of_one_run_and_one_process() {
    if World::lacks(&["nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let args = ["--idle", "30m", "--progress", "run"];
    let mut stopped = start(&world, &args);
    stopped.wait_for("nft-masquerade: idle");
    let busy = lab(&world, &args).expect(1);
    assert!(busy.stderr.contains("run: another weir keeps its progress there now"), "{}", busy.stderr);
    stopped.signal("INT");
    let stopped = stopped.end_within(PATIENCE);
    assert!(stopped.stderr.contains("the same command goes on from run"), "{}", stopped.stderr);
    assert_eq!((stopped.code, &*stopped.stdout), (1, ""));
    assert!(world.labs().is_empty());
    assert_eq!(world.sh("ls"), "run\n", "no lock and no draft stays");
    let kept = world.sh("cat run");
    assert!(complete(&part(&world, "run")).contains(&"other-protocols"), "{kept}");

    let refused = |args: &[&str], words: &str| {
        let before = world.sh("cat run");
        let refused = lab(&world, args).expect(2);
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
        assert_eq!(world.sh("cat run"), before, "a file that is refused stays as it is");
    };
    refused(&["--idle", "31m", "--progress", "run"], "--idle, s: `1800` there, `1860` now");
    refused(&["--idle", "30m", "--progress", "run", "--sysctl", "net.ipv4.ip_forward=1"], "--sysctl");
    refused(&["--progress", "run", "--pcap", "packets"], "cannot be used with");
    let half = &kept[..kept.len() / 2];
    let foreign = world.run(world.weir(&["nat", "rows", "--json"])).expect(0).stdout;
    for wrong in ["", half, &foreign, "{\"format\": \"weir.nat-progress/1\"}"] {
        world.write("run", wrong);
        refused(&args, "run: not the progress of a `weir nat` command, or a damaged one");
    }
    let nowhere = lab(&world, &["--idle", "0", "--progress", "missing/run"]).expect(1);
    assert!(nowhere.stderr.contains("missing/run"), "{}", nowhere.stderr);
}

/// The result is worth more than the file: a disk that is full meanwhile costs progress only, and what was kept before stays.
#[test]
fn root_a_full_disk_costs_progress_only() {
    if World::lacks(&["nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh("mkdir disk && mount -t tmpfs -o size=16k tmpfs disk");
    let args = ["--idle", "0", "--json", "--progress", "disk/run"];
    let full = lab(&world, &args).expect(0);
    let warnings = full.stderr.matches("warning: disk/run stays behind: No space left").count();
    assert_eq!(warnings, 1, "{}", full.stderr);
    let whole = documents::read(&full.stdout, "nat-lab");
    assert_eq!(whole["gateways"][0]["kind"]["classic"], "port restricted cone");
    let kept = part(&world, "disk/run");
    let names = complete(&kept);
    assert!(names.contains(&"udp-mapping") && !names.contains(&"udp-exhaustion"), "{names:?}");
    assert_eq!(world.sh("ls disk"), "run\n", "no draft stays");
    // On a larger disk it goes on from there.
    world.sh("mount -o remount,size=1m disk");
    let output = lab(&world, &[&args[..], &["--verbose"]].concat()).expect(0);
    assert!(!output.stderr.contains("warning"), "{}", output.stderr);
    assert!(!output.stderr.contains("nft-masquerade: udp-mapping"), "{}", output.stderr);
    let resumed = documents::read(&output.stdout, "nat-lab");
    let verdicts = |document: &Value| -> Vec<(Value, Value)> {
        let rows = document["gateways"][0]["rows"].as_array().unwrap();
        // A race decides that one, by chance.
        let settled = rows.iter().filter(|row| row["id"] != "tcp-first-syns");
        settled.map(|row| (row["id"].clone(), row["verdict"].clone())).collect()
    };
    assert_eq!(verdicts(&resumed), verdicts(&whole));
    // Full from the beginning: nothing is measured in vain.
    world.sh("head -c 2m /dev/zero >disk/fill || true");
    let refused = lab(&world, &["--verbose", "--idle", "0", "--progress", "disk/other"]).expect(1);
    assert!(refused.stderr.contains("cannot write disk/other: No space left"), "{}", refused.stderr);
    assert!(!refused.stderr.contains("udp-mapping"), "{}", refused.stderr);
    assert_eq!(world.sh("ls disk"), "fill\nrun\n");
}
