//! `weir bench` with HTTP requests: a real server behind a gateway, and what is left of it however the run ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use weir_testkit::{Background, PATIENCE, Record, World, scenario, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// One at a time: each test looks for its servers among all processes.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const VARIANTS: &str = "[[variant]]\nkind = \"direct\"\n[[variant]]\nkind = \"nft-masquerade\"\n";

fn world() -> Option<World> {
    if World::lacks(&["nginx"]) {
        return None;
    }
    World::root(WEIR)
}

/// nginx's processes with the folder that each has.
fn servers() -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        // A worker has its master's title until it sets its own; only the master leads its process group.
        if let Some((_, rest)) =
            line.split_once(" -p ").filter(|_| line.contains("nginx") && group(pid) == Some(pid))
        {
            found.push((pid, PathBuf::from(rest.split_whitespace().next().unwrap())));
        }
    }
    found
}

/// A field of `/proc/PID/stat`, counted from 1 as in proc(5); `None` once the process is gone.
fn stat_field(pid: u32, field: usize) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field ends with the last parenthesis.
    Some(stat.rsplit(')').next()?.split_whitespace().nth(field - 3)?.parse().unwrap())
}

fn parent(pid: u32) -> u32 {
    stat_field(pid, 4).unwrap()
}

fn group(pid: u32) -> Option<u32> {
    stat_field(pid, 5)
}

/// Processes whose working title or arguments hold this text.
fn alive(text: &str) -> usize {
    let pids = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let line = |e: &fs::DirEntry| fs::read(e.path().join("cmdline")).unwrap_or_default();
    pids.filter(|e| String::from_utf8_lossy(&line(e)).replace('\0', " ").contains(text)).count()
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
fn root_every_request_to_a_real_server_behind_a_gateway_is_counted() {
    let Some(world) = world() else { return };
    let _turn = turn();
    let plan = "min-rounds = 1\nmax-rounds = 1\nwarmup = \"0s\"\nduration = \"20s\"";
    let mut workloads = String::new();
    for (name, options) in [
        ("kept", "kind = \"http\"\nconnections = 10\nrequests = 3000\nbody-bytes = 1000"),
        ("new", "kind = \"http\"\nconnections = 10\nrequests = 500\nkeep-alive = false\nbody-bytes = 1000"),
        (
            "many",
            "kind = \"http\"\nconnections = 1000\nrequests = 2000\ntimeout-ms = 20000\nbody-bytes = 1000",
        ),
        ("tls", "kind = \"http\"\nconnections = 4\nrequests = 400\ntls = true\nbody-bytes = 1000"),
        (
            "scheduled",
            "kind = \"http\"\nconnections = 5\nrate-per-second = 200\nbody-bytes = 1000\nduration = \"1s\"",
        ),
    ] {
        workloads += &format!("[[workload]]\nname = \"{name}\"\n{options}\n");
    }
    for family in ["ipv4", "ipv6"] {
        let testbed = format!("{}\nfamily = \"{family}\"", scenario::LAB);
        let record = run(&world, &scenario::text("http", &testbed, plan, &format!("{VARIANTS}{workloads}")));
        let trials = record.json["trials"].as_array().unwrap();
        assert_eq!(trials.len(), 10);
        for trial in trials {
            let metrics = &trial["metrics"];
            let value = |name: &str| metrics[name].as_f64().unwrap_or_else(|| panic!("no {name}: {trial}"));
            let n = match trial["workload"].as_str().unwrap() {
                "kept" => 3000.0,
                "new" => 500.0,
                "many" => 2000.0,
                "tls" => 400.0,
                _ => 200.0,
            };
            // A busy machine does not start all that are scheduled.
            let n = n - metrics["unsent"].as_f64().unwrap_or(0.0);
            assert_eq!(value("status_2xx"), n, "{trial}");
            assert_eq!(value("body_bytes"), 1000.0 * n, "{trial}");
            assert_eq!(value("failed_ratio"), 0.0, "{trial}");
            assert!(
                value("requests_per_second") > 0.0 && value("client_cpu_ns_per_request") > 0.0,
                "{trial}"
            );
            assert!(value("server_cpu_ns_per_request") > 0.0, "{trial}");
            let late = |f: &Value| f["code"] == "late-sends";
            assert!(trial["faults"].as_array().unwrap().iter().all(late), "{trial}");
        }
    }
    assert_eq!(servers(), []);
}

#[test]
fn root_a_server_that_somebody_else_runs_is_asked_where_it_is() {
    let Some(world) = world() else { return };
    let _turn = turn();
    if World::lacks(&["ab"]) {
        return;
    }
    // `ab`'s server is weir's; the port that `none` asks has no server, and every request of it fails.
    let plan = "min-rounds = 1\nmax-rounds = 1\nwarmup = \"0s\"\nduration = \"1s\"";
    let workloads = "[[workload]]\nname = \"ab\"\nkind = \"external\"\nprogram = \"ab\"\nrequests = 500\n\
        [[workload]]\nname = \"nobody\"\nkind = \"http\"\nserver = \"none\"\nport = 9\nconnections = 2\n";
    let record = run(&world, &scenario::text("http", scenario::LAB, plan, &format!("{VARIANTS}{workloads}")));
    for trial in record.json["trials"].as_array().unwrap() {
        let metrics = &trial["metrics"];
        match trial["workload"].as_str().unwrap() {
            "ab" => assert_eq!(metrics["ok"], 500.0, "{trial}"),
            _ => {
                assert!(metrics["connect_refused"].as_f64().unwrap() > 0.0, "{trial}");
                // The path's doing, and so a result.
                assert_eq!(metrics["failed_ratio"], 1.0, "{trial}");
                assert!(trial["faults"].as_array().unwrap().is_empty(), "{trial}");
            }
        }
    }
}

/// A run in the middle of a trial that takes longer than any wait here, with its server and the server's folder.
fn in_the_middle(world: &World) -> (Background, u32, PathBuf) {
    let (run, pid, folder) = at_the_start(world);
    // It serves when its workers are there.
    until("its workers", PATIENCE, || (alive("nginx: worker") > 0).then_some(()));
    assert!(folder.join("server.conf").exists(), "{}", folder.display());
    (run, pid, folder)
}

/// A run whose server's first process was just started.
fn at_the_start(world: &World) -> (Background, u32, PathBuf) {
    let plan = "min-rounds = 1\nmax-rounds = 1\nwarmup = \"0s\"\nduration = \"9m\"";
    let workload = "[[workload]]\nname = \"long\"\nkind = \"http\"\nconnections = 2\nrate-per-second = 100\n";
    let text =
        scenario::text("http", scenario::LAB, plan, &format!("[[variant]]\nkind = \"routed\"\n{workload}"));
    world.write("s.toml", text.replace("30s", "10m"));
    let mut run = world.start("weir", world.weir(&["bench", "s.toml", "-o", "out"]));
    run.wait_for("routed: the responder sees");
    let (pid, folder) = until("a server", PATIENCE, || servers().pop());
    (run, pid, folder)
}

fn assert_gone(world: &World, folder: &Path) {
    until("no server", PATIENCE, || (alive("nginx: ") == 0).then_some(()));
    until("no folder", PATIENCE, || (!folder.exists()).then_some(()));
    world.wait_until_idle();
}

#[test]
fn root_the_server_goes_with_whoever_started_it() {
    for (victim, state) in [
        ("runner", in_the_middle as fn(&World) -> _),
        ("agent", in_the_middle),
        ("agent", at_the_start),
        ("interrupted", in_the_middle),
    ] {
        let Some(world) = world() else { return };
        let _turn = turn();
        let (run, pid, folder) = state(&world);
        match victim {
            "runner" => run.signal("KILL"),
            "interrupted" => run.signal("INT"),
            _ => {
                let agent = parent(pid).to_string();
                assert!(Command::new("kill").args(["-s", "KILL", &agent]).status().unwrap().success());
            }
        }
        assert_gone(&world, &folder);
        drop(run);
    }
}
