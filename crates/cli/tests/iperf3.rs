//! weir and stock iperf3 against each other: every option, both ways round, and both ends' counts.
//!
//! Another iperf3 than the installed one is tried too if WEIR_TEST_IPERF3 names it.

mod documents;
mod iperf3_cases;
mod iperf3_nat;
mod iperf3_sockets;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use iperf3_cases::{CASES, Case, Counted, Known, check, number, of_iperf3, of_weir, tcp, udp};
use serde_json::Value;
use weir_testkit::{Background, CommandOutput, PATIENCE, World, holds, measured, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Tests that run at the same time: they are slow by their seconds, not by their rates.
const AT_ONCE: usize = 6;

/// Stock iperf3: the installed one, and the one that is named.
fn stock() -> Vec<PathBuf> {
    if World::lacks(&["iperf3"]) {
        return Vec::new();
    }
    let named = std::env::var_os("WEIR_TEST_IPERF3").map(PathBuf::from);
    [PathBuf::from("iperf3")].into_iter().chain(named).collect()
}

/// A port that is free just now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// `weir serve` for this machine, and its port.
fn serve(world: &World, name: &str) -> (Background, u16) {
    serve_with(world, name, &["--json"])
}

fn serve_with(world: &World, name: &str, options: &[&str]) -> (Background, u16) {
    let usual = ["serve", "--bind", "127.0.0.1", "--port", "0", "--max-per-client", "100"];
    let mut server = world.start(name, world.weir(&[&usual, options].concat()));
    server.wait_for("serving this machine");
    let said = server.said();
    let address = said.split_whitespace().find_map(|w| w.trim_end_matches(',').strip_prefix("127.0.0.1:"));
    let port = address.and_then(|p| p.parse().ok()).unwrap_or_else(|| panic!("{said}"));
    (server, port)
}

/// How often an attempt must hold. A busy machine spoils one now and then: a stock receiver that does not get to run for a fifth
/// of a second loses what its buffer does not hold, and one that is behind at the end does not count the rest.
const NEEDED: usize = 2;
const ATTEMPTS: usize = 4;

/// Fails unless `run` holds in 2 of 4 attempts. `run` gets the factor by which the test is longer, which doubles with each attempt
/// that fails: less is under way at the end of a longer one.
#[track_caller]
fn measured_longer(run: impl Fn(u32)) {
    let mut failed = 0;
    measured(NEEDED, ATTEMPTS, |_| {
        let right = holds(|| run(1 << failed));
        failed += u32::from(!right);
        right
    });
}

/// How long each case runs, in times its own second: what is under way at the end, some milliseconds' worth on a busy machine, must be
/// less than 0.5 % of what was sent.
const LONGER: u32 = 2;

/// Runs each case, several at a time. At most one in ten may fail; these are then run alone, and must hold in 2 of 4 attempts.
fn each(cases: &[Case], run: impl Fn(usize, &Case) + Sync) {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((nth, case)) = {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    cases.get(nth).map(|c| (nth, c))
                } {
                    if !holds(|| run(nth, &case.stretched(LONGER))) {
                        failed.lock().unwrap().push((nth, case));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.len() <= cases.len() / 10, "{} of {} failed", failed.len(), cases.len());
    for (nth, case) in failed {
        println!("alone: udp {}: {}", case.udp, case.options);
        measured_longer(|times| run(nth, &case.stretched(LONGER * times)));
    }
}

fn json(outcome: &CommandOutput) -> Value {
    serde_json::from_str(&outcome.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", outcome.stdout, outcome.stderr))
}

#[test]
fn paced_weir_measures_towards_stock_servers() {
    let stock = stock();
    let world = World::plain(WEIR);
    for (which, iperf3) in stock.iter().enumerate() {
        each(CASES, |nth, case| {
            let (server, report) = towards_stock(&world, iperf3, &format!("{which}-{nth}"), case);
            let ours = of_weir(&report);
            check(case, &ours, 0.0);
            // The server's own report has the same figures as it told.
            let theirs = &server["end"];
            let (received, sent) =
                (number(&theirs["sum_received"]["bytes"]), number(&theirs["sum_sent"]["bytes"]));
            let reverse = case.options.contains("-R");
            if reverse {
                assert_eq!(ours[0].sent, sent, "{}", case.options);
            } else {
                assert_eq!(ours[0].received, received, "{}", case.options);
            }
            if case.options.contains("--bidir") {
                assert_eq!(
                    ours[1].sent,
                    number(&theirs["sum_sent_bidir_reverse"]["bytes"]),
                    "{}",
                    case.options
                );
            }
            if case.options.contains("--get-server-output") {
                assert!(report["server_output"]["json"]["end"].is_object(), "{}", case.options);
            }
            if !case.udp && case.options.contains("-C reno") {
                assert_eq!(report[if reverse { "server_congestion" } else { "congestion" }], "reno");
            }
        });
    }
}

/// One test of weir towards a stock server of its own, and both reports.
fn towards_stock(world: &World, iperf3: &PathBuf, name: &str, case: &Case) -> (Value, Value) {
    let port = free_port();
    let mut command = world.command(iperf3);
    command.args(["-s", "-1", "-J", "-B", "127.0.0.1", "-p", &port.to_string()]);
    let server = world.start(&format!("server-{name}"), command);
    let target = format!("127.0.0.1:{port}");
    let mut args = vec!["probe", "--iperf3", &target, if case.udp { "udp" } else { "tcp" }, "--json"];
    args.extend(case.options.split_whitespace());
    let report = until("a server that listens", PATIENCE, || {
        let outcome = world.run(world.weir(&args));
        // The server is not there yet.
        let again = outcome.code == 1 && outcome.stderr.contains("nothing listens there");
        (!again).then(|| documents::read(&outcome.expect(0).stdout, "probe-iperf3"))
    });
    let server = json(&server.end_within(PATIENCE).expect(0));
    assert!(server.get("error").is_none(), "{}: {}", case.options, server["error"]);
    (server, report)
}

#[test]
fn paced_stock_clients_measure_towards_weir() {
    let stock = stock();
    let world = World::plain(WEIR);
    let (server, port) = serve(&world, "serve");
    let runs = AtomicUsize::new(0);
    for iperf3 in &stock {
        each(CASES, |_, case| {
            runs.fetch_add(1, Ordering::Relaxed);
            let report = towards_weir(&world, iperf3, port, case);
            check(case, &of_iperf3(&report), 0.0);
            if case.options.contains("--get-server-output") {
                // As from `iperf3 -s -J`: the server says JSON, and so does its output.
                let output = &report["server_output_json"];
                assert_eq!(output["start"]["accepted_connection"]["host"], "127.0.0.1", "{report:#}");
                let side = if case.options.contains("-R") { "sum_sent" } else { "sum_received" };
                assert_eq!(output["end"][side]["bytes"], report["end"][side]["bytes"], "{output:#}");
            }
        });
    }
    // One line for each of them, and none of a failure.
    let runs = runs.load(Ordering::Relaxed);
    until("a note of each", PATIENCE, || (notes(&server).len() == runs).then_some(()));
    let notes = notes(&server);
    assert!(notes.iter().all(|n| n["end"] == "done" && n["program"] == "iperf3"), "{notes:#?}");
}

#[test]
fn the_server_s_output_is_text_unless_it_says_json() {
    let stock = stock();
    let world = World::plain(WEIR);
    let (_server, port) = serve_with(&world, "serve", &[]);
    for iperf3 in &stock {
        for options in ["-t 1 -b 5M --get-server-output", "-t 1 -b 5M -R --get-server-output"] {
            let report = towards_weir(&world, iperf3, port, &tcp(options));
            let text = report["server_output_text"].as_str().unwrap_or_default();
            assert!(text.contains("Accepted connection from 127.0.0.1"), "{report:#}");
            let side = if options.contains("-R") { "sender" } else { "receiver" };
            assert!(text.lines().last().unwrap_or_default().ends_with(side), "{text}");
        }
    }
}

/// The server's log.
fn notes(server: &Background) -> Vec<Value> {
    server.printed().lines().map(|l| documents::read(l, "serve")).collect()
}

/// One test of a stock client: its `-J`, which tells of no error.
fn towards_weir(world: &World, iperf3: &PathBuf, port: u16, case: &Case) -> Value {
    let outcome = world.run(stock_client(world, iperf3, port, case));
    let report = json(&outcome);
    assert!(report.get("error").is_none() && outcome.code == 0, "{}: {report:#}", case.options);
    report
}

fn stock_client(world: &World, iperf3: &PathBuf, port: u16, case: &Case) -> Command {
    let mut command = world.command(iperf3);
    command.args(["-J", "-c", "127.0.0.1", "-p", &port.to_string()]);
    if case.udp {
        command.arg("-u");
    }
    command.args(case.options.split_whitespace());
    command
}

#[test]
fn measured_as_fast_as_it_goes_both_ends_count_the_same() {
    let world = World::plain(WEIR);
    let (_server, port) = serve(&world, "serve");
    for (nth, iperf3) in stock().iter().enumerate() {
        for options in ["-t 1", "-t 1 -R", "-t 1 -P 2 --bidir"] {
            // The bytes that the kernels hold between the ends at the end, which iperf3's receiver does not read any more: tcp_wmem and
            // tcp_rmem allow 4 and 6 MiB for a stream. With -R also what the server sends until it hears of the end: less of a
            // longer test.
            let streams = if options.contains("-P 2") { 2.0 } else { 1.0 };
            let between = streams * f64::from(10 << 20);
            measured_longer(|times| {
                let case = tcp(options).stretched(times);
                check(&case, &of_iperf3(&towards_weir(&world, iperf3, port, &case)), between);
            });
            measured_longer(|times| {
                let case = tcp(options).stretched(times);
                let name = format!("fast-{nth}-{times}-{}", options.len());
                check(&case, &of_weir(&towards_stock(&world, iperf3, &name, &case).1), between);
            });
        }
    }
}

#[test]
fn paced_several_stock_clients_run_at_once_on_one_server() {
    let stock = stock();
    let Some(iperf3) = stock.first() else { return };
    let world = World::plain(WEIR);
    let (server, port) = serve(&world, "serve");
    let cases: Vec<Case> =
        ["-t 2 -b 1M -l 200", "-t 2 -b 2M -l 300 -P 2", "-t 2 -b 3M -l 400 -R", "-t 2 -b 1M -l 500 --bidir"]
            .iter()
            .flat_map(|options| [tcp(options), udp(options)])
            .collect();
    let runs = AtomicUsize::new(0);
    measured_longer(|times| {
        let cases: Vec<Case> = cases.iter().map(|case| case.stretched(times)).collect();
        runs.fetch_add(cases.len(), Ordering::Relaxed);
        let start =
            |(nth, case)| world.start(&format!("client-{nth}"), stock_client(&world, iperf3, port, case));
        let clients: Vec<_> = cases.iter().enumerate().map(start).collect();
        let reports: Vec<Value> =
            clients.into_iter().map(|c| json(&c.end_within(PATIENCE).expect(0))).collect();
        for (case, report) in cases.iter().zip(&reports) {
            check(case, &of_iperf3(report), 0.0);
        }
        // They did run at once: the last began before the first ended.
        let began = |r: &Value| number(&r["start"]["timestamp"]["timesecs"]);
        let (first, last) =
            reports.iter().map(began).fold((f64::MAX, 0.0f64), |(a, b), t| (t.min(a), t.max(b)));
        assert!(last - first < 2.0, "{first} to {last}");
    });
    let runs = runs.load(Ordering::Relaxed);
    until("a note of each", PATIENCE, || (notes(&server).len() == runs).then_some(()));
}

#[test]
fn what_goes_wrong_is_told_in_words() {
    let stock = stock();
    let Some(iperf3) = stock.first() else { return };
    let world = World::plain(WEIR);
    // No server there.
    let outcome =
        world.run(world.weir(&["probe", "--iperf3", &format!("127.0.0.1:{}", free_port())])).expect(1);
    assert!(
        outcome.stderr.contains("nothing listens there") && outcome.stderr.contains("iperf3 -s"),
        "{}",
        outcome.stderr
    );
    // Another server there.
    let (server, port) = serve(&world, "serve");
    let target = format!("127.0.0.1:{port}");
    for (args, words) in [
        (&["--parallel", "129"][..], "--parallel 129"),
        (&["udp", "--zerocopy"], "--zerocopy is for TCP only"),
        (&["latency"], "tcp and udp only"),
        (&["--omit", "500ms"], "whole seconds"),
        (&["--rate", "5"], "--rate means nothing"),
        (&["-C", "nonesuch"], "nonesuch"),
    ] {
        let outcome = world.run(world.weir(&[&["probe", "--iperf3", &target][..], args].concat()));
        assert!(outcome.code > 0 && outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
    }
    drop(server);
    // A stock server that is busy with another client.
    let port = free_port();
    let mut command = world.command(iperf3);
    command.args(["-s", "-B", "127.0.0.1", "-p", &port.to_string()]);
    let _server = world.start("busy", command);
    let target = format!("127.0.0.1:{port}");
    let probe = |seconds: &str| world.weir(&["probe", "--iperf3", &target, "-b", "1M", "-t", seconds]);
    until("a server that listens", PATIENCE, || {
        let outcome = world.run(probe("100ms"));
        (outcome.code == 0).then_some(())
    });
    let first = world.start("first", probe("30"));
    until("the first test", PATIENCE, || first.printed().contains("connected to").then_some(()));
    let outcome = world.run(probe("1")).expect(1);
    assert!(outcome.stderr.contains("busy with another one"), "{}", outcome.stderr);
    // Ctrl-C ends the first, and the server is free again.
    first.signal("INT");
    let ended = first.end_within(PATIENCE).expect(1);
    assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    until("a server that is free again", PATIENCE, || (world.run(probe("100ms")).code == 0).then_some(()));
}

/// A public key that stock clients encrypt a user and a password with; its other half was thrown away.
const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAnngFKTVNSxK3OGh0A90Y
TFJpFL84L0UaCCR24OqBXuvyb2fgDLeb2gQh22jouqGKJZgd15mpRjKbgL+1WYVT
vfYQwDLx54loYjrU702Emd08XkcH50ydsaz2RnFKN/OLyGI8VcofrDFiDN99ObXw
PVe1G8BSEGZCHiqUuYbfUIybsS23PC7dD3FMYE+0pIqLGl42UZMiNdhqelA9y7Nk
JwFDw0TgZG1d76Ik9np0zc5K/Pa1ty9YIIdPZuWpyruFDBtP2ttzk1NVLmUJB+za
NS7/J/pf2tAmfrssBY2ZBFT7EtRkIyoUBgxSdZfudw1wjo3oYzPZ9InzqOFtErjS
yQIDAQAB
-----END PUBLIC KEY-----
";

#[test]
fn a_stock_client_with_a_user_and_a_server_with_limits_are_told_so() {
    let stock = stock();
    let Some(iperf3) = stock.first() else { return };
    let world = World::plain(WEIR);
    let mut server = world.start(
        "serve",
        world.weir(&[
            "serve",
            "--bind",
            "127.0.0.1",
            "--port",
            "0",
            "--max-time",
            "5s",
            "--max-streams",
            "2",
            "--max-rate",
            "10M",
        ]),
    );
    server.wait_for("serving this machine");
    let said = server.said();
    let port: u16 = said
        .split("127.0.0.1:")
        .nth(1)
        .and_then(|r| r.split(',').next())
        .and_then(|p| p.parse().ok())
        .unwrap();
    for (options, words) in
        [("-t 6", "test duration"), ("-t 1 -P 3", "parallel streams"), ("-t 1 -b 20M", "bandwidth")]
    {
        let report = json(&world.run(stock_client(&world, iperf3, port, &tcp(options))));
        let error = report["error"].as_str().unwrap_or_default().to_owned();
        assert!(error.contains(words), "{options}: {error}");
    }
    let key = world.write("public.pem", PUBLIC_KEY);
    let user = format!("-t 1 --username someone --rsa-public-key-path {}", key.display());
    let case = Case { udp: false, options: user.leak(), known: Known::Alike };
    let mut command = stock_client(&world, iperf3, port, &case);
    command.env("IPERF3_PASSWORD", "secret");
    let report = json(&world.run(command));
    assert_eq!(report["error"], "test authorization failed");
    until("notes of the four", PATIENCE, || {
        (server.printed().lines().filter(|l| l.contains("refused")).count() == 4).then_some(())
    });
    assert!(server.printed().contains("a user and a password") && !server.printed().contains("someone"));
}

/// One datagram of a hundred is dropped on its way, or one segment.
const LOSSY: &str = "nft 'table inet lossy { chain c { type filter hook input priority 0; \
                     udp length 1008 numgen inc mod 100 == 7 drop; \
                     tcp dport 5201 meta length > 1000 numgen inc mod 100 == 7 drop; }; }'";

#[test]
fn root_measured_a_lossy_path_is_seen_alike_by_both_ends() {
    if World::lacks(&["nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(&format!("{LOSSY} && ip link set lo mtu 1500"));
    let lossy = |c: &Counted| {
        println!("{c:?}");
        let (lost, of) = c.lost.unwrap();
        assert!((lost / of - 0.01).abs() <= 0.002, "{c:?}");
        // Lost and received make up the sent ones, up to the last that came.
        assert!((c.received / 1000.0 + lost - of).abs() < 0.5, "{c:?}");
        assert!((c.sent / 1000.0 - of).abs() <= 0.005 * of + 15.0, "{c:?}");
    };
    for (nth, iperf3) in stock().iter().enumerate() {
        let (_server, port) = serve(&world, &format!("serve-{nth}"));
        for options in ["-t 1 -b 20M -l 1000", "-t 1 -b 20M -l 1000 -R"] {
            let case = udp(options);
            measured_longer(|_| {
                of_iperf3(&towards_weir(&world, iperf3, port, &case)).iter().for_each(lossy);
            });
            measured_longer(|_| {
                let (server, report) =
                    towards_stock(&world, iperf3, &format!("{nth}{}", options.len()), &case);
                of_weir(&report).iter().for_each(lossy);
                if !options.contains("-R") {
                    let theirs = &server["end"]["sum"]["lost_packets"];
                    assert_eq!(&report["egress"]["receiver"]["lost"], theirs);
                }
            });
        }
    }
    // Segments that are lost are sent again, and counted by their sender.
    let Some(iperf3) = stock().into_iter().next() else { return };
    let mut command = world.command(&iperf3);
    command.args(["-s", "-1", "-J", "-B", "127.0.0.1", "-p", "5201"]);
    let server = world.start("tcp", command);
    let report = until("a server that listens", PATIENCE, || {
        let outcome = world.run(world.weir(&["probe", "--iperf3", "127.0.0.1", "-n", "4M", "--json"]));
        (outcome.code == 0).then(|| json(&outcome))
    });
    let counted = of_weir(&report)[0];
    assert_eq!(counted.sent, counted.received);
    assert!(number(&report["egress"]["sender"]["retransmits"]) > 0.0, "{report:#}");
    server.end_within(PATIENCE).expect(0);
}
