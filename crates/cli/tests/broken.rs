//! A hop that is broken on purpose is never named better, and is named worse.

#[path = "broken/draw.rs"]
mod draw;
#[path = "broken/hops.rs"]
mod hops;
#[path = "broken/impairment.rs"]
mod impairment;
#[path = "broken/judge.rs"]
mod judge;
#[path = "broken/starved.rs"]
mod starved;
#[path = "broken/work.rs"]
mod work;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weir_testkit::{World, measured};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn world() -> Option<World> {
    if World::lacks(&["nft", "tc", "iptables"]) {
        return None;
    }
    World::root(WEIR)
}

/// One measurement at a time: tests of one program run side by side.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number from the environment, for the soak.
fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")),
        Err(_) => default,
    }
}

/// Fails on any wrong claim. A broken hop that is named better always fails the test; one that is named worse nowhere says
/// nothing if the hypervisor took the cores meanwhile.
fn nothing_is(wrong: impl Fn() -> Vec<String>) {
    measured(1, 1, |_| {
        let wrong = wrong();
        wrong.iter().for_each(|line| println!("{line}"));
        assert!(!wrong.iter().any(|line| line.contains("named better")), "{}", wrong.join("\n"));
        wrong.is_empty()
    });
}

/// Few of all combinations, and 200 for `make soak`: `WEIR_BROKEN_COMBINATIONS` and `WEIR_BROKEN_SEED` say how many and which,
/// `WEIR_BROKEN_WORKLOAD` names the only workload.
#[test]
fn root_measured_drawn_impairments_are_never_named_better() {
    let Some(world) = world() else { return };
    let _turn = turn();
    let (seed, combinations) =
        (from_environment("WEIR_BROKEN_SEED", 1), from_environment("WEIR_BROKEN_COMBINATIONS", 2) as usize);
    let mut pairs = draw::pairs();
    if let Ok(only) = std::env::var("WEIR_BROKEN_WORKLOAD") {
        pairs.retain(|(work, _)| work.name == only);
    }
    let runs = draw::draw(pairs, seed, combinations);
    assert!(!runs.is_empty(), "nothing was drawn");
    println!("seed {seed}");
    nothing_is(|| {
        let each = runs.iter().enumerate();
        each.flat_map(|(number, drawn)| try_out(&world, drawn, &format!("{}/{}", number + 1, runs.len())))
            .collect()
    });
}

/// Runs what was drawn, and prints what was wrong.
fn try_out(world: &World, drawn: &draw::Drawn, number: &str) -> Vec<String> {
    let names: Vec<String> = drawn.impairments.iter().map(impairment::Impairment::name).collect();
    let begun = Instant::now();
    let found = hops::try_out(world, drawn);
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{number}: {} with {}: {} wrong in {seconds:.0} s",
        drawn.work.name,
        names.join(", "),
        found.len()
    );
    found.iter().for_each(|line| println!("  {line}"));
    found
}

/// Something done to every second SYN, and the workloads that suffer from it.
struct Half {
    name: &'static str,
    action: &'static str,
    workloads: &'static [(&'static str, &'static str)],
}

/// Half of the connections fail, and the others are faster for it.
const HALF: [Half; 2] = [
    Half {
        name: "refuse",
        action: "reject with tcp reset",
        workloads: &[
            ("http", "kind = \"http\"\nconnections = 50\nkeep-alive = false\ntimeout-ms = 1000\n"),
            ("crr", "kind = \"tcp-crr\"\n"),
            ("stream", "kind = \"tcp-stream\"\nstreams = 4\n"),
        ],
    },
    Half {
        name: "drop",
        action: "drop",
        workloads: &[("connect", "kind = \"tcp-connect\"\ntimeout-ms = 200\n")],
    },
];

/// `routed` against a hop that does something to every second SYN.
fn every_second(Half { name, action, workloads }: &Half) -> String {
    let rules = format!(
        "table ip broken {{ chain c {{ type filter hook forward priority 0; \
         tcp flags & (fin|syn|rst|ack) == syn numgen inc mod 2 == 1 {action}; }}; }}"
    );
    let workloads: String =
        workloads.iter().map(|(name, keys)| format!("[[workload]]\nname = \"{name}\"\n{keys}")).collect();
    format!(
        "name = \"half\"\ntitle = \"A test\"\n[plan]\nmin-rounds = 7\nmax-rounds = 7\nbudget = \"1m\"\nwarmup = \"50ms\"\n\
         duration = \"150ms\"\nmax-steal = 1.0\n[[variant]]\nkind = \"routed\"\n[[variant]]\nname = \"{name}\"\nkind = \"custom\"\n\
         apply.gateway = [\"sysctl -qw net.ipv4.ip_forward=1\", \"nft '{rules}'\"]\n\
         remove.gateway = [\"nft delete table ip broken\"]\n{workloads}"
    )
}

#[test]
fn root_measured_half_of_the_connections_is_missed_in_the_first_sentence_of_every_workload() {
    let Some(world) = world().filter(|_| !World::lacks(&["nginx"])) else { return };
    let _turn = turn();
    nothing_is(|| HALF.iter().flat_map(|half| what_is_wrong(&world, half)).collect());
}

/// On a terminal, after each round.
#[test]
fn root_a_running_measurement_names_what_fails_before_what_is_fast() {
    let Some(world) = world().filter(|_| !World::lacks(&["script"])) else { return };
    let _turn = turn();
    let crr = &[("crr", "kind = \"tcp-crr\"\n")];
    world.write("half.toml", every_second(&Half { workloads: crr, ..HALF[0] }));
    let mut command = world.command("script");
    let line = format!("{} bench ./half.toml -o live", world.binary().display());
    command.args(["-qec", &line, "/dev/null"]).env("COLUMNS", "200");
    let shown = world.run(command).expect(0).stdout;
    // Before each headline; behind the last one is the report.
    let mut before: Vec<&str> = shown.split("  crr refuse: ").collect();
    before.pop();
    let blamed = |text: &&str| text.contains("Against routed, refuse fails");
    assert!(before.len() >= 6 && before.iter().all(blamed), "{shown}");
}

fn what_is_wrong(world: &World, half: &Half) -> Vec<String> {
    world.write("half.toml", every_second(half));
    let run = hops::bench(world, "out", &["./half.toml"]).unwrap();
    let of = |(workload, _): &(&str, &str)| {
        let alone = hops::alone(world, &run, workload);
        let wrong = hops::wrong(world, "alone", &alone, half.name, (impairment::Harm::Fails, 5));
        wrong.into_iter().map(|w| format!("{workload} {}: {w}", half.name)).collect::<Vec<_>>()
    };
    half.workloads.iter().flat_map(of).collect()
}

/// In short, and as it is for `make soak`: `WEIR_BROKEN_FULL=1` says which.
#[test]
fn root_alone_a_starved_table_of_connections_is_blamed_in_the_first_sentence() {
    if World::lacks(&["nft", "nginx"]) {
        return;
    }
    let Some(world) = World::machine(WEIR) else { return };
    let _turn = turn();
    let full = from_environment("WEIR_BROKEN_FULL", 0) != 0;
    nothing_is(|| {
        starved::wrong(&world, if full { starved::FULL } else { starved::SMALL }).unwrap_or_default()
    });
}
