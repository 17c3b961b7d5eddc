//! Short connections over loopback: every connection that is begun ends in exactly one count, and each way to fail has
//! its own.

mod ends;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ends::{LOOPBACK, assert_all_metrics, at_least, both_ends, cookie, setting};
use rustix::net::sockopt::set_socket_linger;
use weir_load::tcp_connect::TcpConnect;
use weir_load::tcp_crr::{Close, TcpCrr};
use weir_load::{Engine, Part, TrialSettings};
use weir_netlink::Rtnetlink;
use weir_record::FaultCode;
use weir_stats::Censored;
use weir_sys::NetNs;
use weir_testkit::{PATIENCE, measured};

const FAILURES: [&str; 7] =
    ["refused", "reset", "timed_out", "unreachable", "cut_short", "foreign", "other_failures"];

fn failures(part: &Part) -> f64 {
    FAILURES.iter().map(|name| part.values[*name]).sum()
}

fn assert_conserved(part: &Part) {
    assert_eq!(
        part.value("attempted"),
        part.value("ok") + failures(part) + part.value("cut"),
        "{:?}",
        part.values
    );
}

/// Sockets of this network namespace in TIME-WAIT (06) whose local or remote port is this one
/// (Documentation/networking/proc_net_tcp.rst).
fn time_wait(port: u16) -> (usize, usize) {
    in_state("06", port)
}

/// Connections to that port whose SYN (SYN-SENT, 02) is not answered.
fn half_open(port: u16) -> usize {
    in_state("02", port).1
}

/// Sockets in that state whose local, and whose remote port is this one.
fn in_state(state: &str, port: u16) -> (usize, usize) {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let is = |field: &str| u16::from_str_radix(field.rsplit(':').next().unwrap(), 16).unwrap() == port;
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found: Vec<_> = rows.filter(|f| f[3] == state).map(|f| (is(f[1]), is(f[2]))).collect();
    (found.iter().filter(|w| w.0).count(), found.iter().filter(|w| w.1).count())
}

#[test]
fn connect_counts_each_connection_of_the_schedule_once() {
    for bind in [LOOPBACK, "[::1]:0"] {
        let engine = TcpConnect { rate_per_second: 500, ..TcpConnect::default() };
        let (initiator, responder, trial, port) = both_ends(&engine, &setting(100, 600), bind);
        assert_conserved(&initiator);
        assert_all_metrics(&engine, &trial);
        // One per interval of 2 ms.
        assert_eq!(initiator.value("scheduled"), 300.0);
        assert_eq!(initiator.value("attempted") + initiator.value("unsent"), 300.0);
        assert_eq!(initiator.histograms["connect"].len() as f64, initiator.value("ok"));
        assert_eq!(failures(&initiator), 0.0, "{:?}", initiator.values);
        assert_eq!(trial.value("connect_failed_ratio"), 0.0);
        assert!((trial.value("achieved_per_second") - initiator.value("ok") / 0.6).abs() < 1e-6);
        // The proof, the warm-up's and the window's; a reset one may vanish from the queue before it is accepted.
        assert!(
            responder.value("accepted") <= 351.0 && responder.value("served") == 1.0,
            "{:?}",
            responder.values
        );
        assert!(!trial.faults.iter().any(|f| f.code == FaultCode::ConnectionFailed), "{:?}", trial.faults);
        // The kernel's time is a part of ours, but in whole microseconds.
        let (handshake, connect) = (&trial.histograms["handshake"], &trial.histograms["connect"]);
        assert!(handshake.answered().min() <= connect.answered().max() + 1000);
        assert_eq!(time_wait(port), (0, 0));
    }
}

#[test]
fn a_closed_port_is_refused_every_time_and_that_is_a_result() {
    let free = TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let connect = TcpConnect { rate_per_second: 200, ..TcpConnect::default() };
    let crr = TcpCrr { rate_per_second: Some(200), ..TcpCrr::default() };
    for (engine, ratio) in [(&connect as &dyn Engine, "connect_failed_ratio"), (&crr, "failed_ratio")] {
        let part = engine.drive(&setting(0, 500), free).unwrap();
        assert_conserved(&part);
        assert_eq!(part.value("attempted") + part.value("unsent"), 100.0);
        assert_eq!(part.value("refused"), part.value("attempted"));
        let trial = engine.combine(&[part], &[]);
        assert_eq!(trial.value(ratio), 1.0);
        assert!(!trial.faults.iter().any(|f| f.void), "{:?}", trial.faults);
        let stem = if ratio == "failed_ratio" { "crr" } else { "connect" };
        assert_eq!(trial.histograms[stem].quantile(0.01), Some(Censored::FAILED));
        assert_eq!(trial.histograms[stem].len() as f64, trial.value("attempted"));
        assert!(!trial.values.contains_key("connect_mean_ns") && !trial.values.contains_key("crr_mean_ns"));
    }
}

/// A full accept queue: Linux drops further SYNs (tcp_conn_request, sk_acceptq_is_full).
fn full_listener() -> TcpListener {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    listener
}

#[test]
fn a_swallowed_syn_times_out() {
    let listener = full_listener();
    let engine = TcpConnect { rate_per_second: 100, timeout_ms: 200, any_responder: true };
    let part = engine.drive(&setting(0, 500), listener.local_addr().unwrap()).unwrap();
    assert_conserved(&part);
    // With a backlog of 0 the queue takes one connection.
    assert!(part.value("ok") <= 1.0, "{:?}", part.values);
    assert_eq!(part.value("timed_out"), part.value("attempted") - part.value("ok"));
    assert_eq!(part.value("attempted") + part.value("unsent"), 50.0);
    // Given up after 200 ms, so longer than that, and no number below.
    let median = part.histograms["connect"].quantile(0.5).unwrap();
    assert!(!median.known && median.value >= 2e8, "{median:?}");
}

#[test]
fn a_syn_that_was_sent_again_shows_as_a_second_and_is_counted() {
    // 50 a second for 400 ms.
    const BEGUN: usize = 20;
    let listener = full_listener();
    let target = listener.local_addr().unwrap();
    let done = AtomicBool::new(false);
    let part = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Full until all have lost their SYN but the one that found room, or as many as a busy machine has begun by the time
            // that the first one is sent again; then emptied as fast as it fills.
            let deadline = Instant::now() + Duration::from_millis(900);
            while half_open(target.port()) < BEGUN - 1 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            rustix::net::listen(&listener, 1000).unwrap();
            listener.set_nonblocking(true).unwrap();
            while !done.load(Ordering::Relaxed) {
                if listener.accept().is_err() {
                    // Until the next look.
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let engine = TcpConnect { rate_per_second: 50, timeout_ms: 5000, any_responder: true };
        let part = engine.drive(&setting(0, 400), target);
        // Before anything can fail: the other thread would never end.
        done.store(true, Ordering::Relaxed);
        part.unwrap()
    });
    assert_conserved(&part);
    assert_eq!(part.value("ok"), part.value("attempted"));
    // All but the one that found room waited for the first retransmission, 1 s after the SYN (RFC 6298 section 2.1). The
    // kernel's timer may be early by a tick.
    let late = at_least(&part.histograms["connect"], 950_000_000) as f64;
    assert!(late >= part.value("attempted") - 1.0, "{late} of {:?}", part.values);
    assert!(part.value("syn_retransmits") >= late);
}

/// Both loops: four connections at a time, and a schedule of 500 a second.
const LOOPS: [(Option<u32>, Option<u32>); 2] = [(None, Some(4)), (Some(500), None)];

/// Short connections that ask for 70 kB each, for 400 ms.
fn crr(close: Close, (rate_per_second, connections): (Option<u32>, Option<u32>)) -> TcpCrr {
    TcpCrr { close, rate_per_second, connections, response_bytes: 70_000, ..TcpCrr::default() }
}

#[test]
fn crr_conserves_counts_in_both_loops_and_both_ways_to_close() {
    for close in [Close::Fin, Close::Reset] {
        for arrival in LOOPS {
            let engine = crr(close, arrival);
            let (initiator, responder, trial, port) = both_ends(&engine, &setting(100, 400), LOOPBACK);
            assert_conserved(&initiator);
            assert_all_metrics(&engine, &trial);
            assert!(initiator.value("ok") >= 1.0, "{:?}", initiator.values);
            assert_eq!(failures(&initiator) + initiator.value("unclosed"), 0.0, "{:?}", initiator.values);
            assert_eq!(initiator.histograms["crr"].len() as f64, initiator.value("ok"));
            assert!(initiator.histograms["connect"].len() as f64 == initiator.value("ok"));
            assert!(responder.value("served") >= initiator.value("ok"), "the warm-up's too");
            assert_eq!(responder.value("foreign_connections"), 0.0);
            if arrival.0.is_some() {
                assert_eq!(initiator.value("scheduled"), 200.0);
                assert_eq!(initiator.value("attempted") + initiator.value("unsent"), 200.0);
            }
            assert!(
                !trial.faults.iter().any(|f| f.code == FaultCode::ConnectionFailed),
                "{:?}",
                trial.faults
            );
            let (at_responder, at_initiator) = time_wait(port);
            assert_eq!(at_initiator, 0, "{close:?}: a port that the initiator cannot use again");
            assert_eq!(at_responder > 0, close == Close::Fin);
        }
    }
}

/// The whole schedule, and as many in a closed loop: how much a machine with other work has time for is no matter of counts.
#[test]
fn measured_crr_begins_all_of_its_schedule() {
    measured(2, 3, |_| {
        let pairs = [Close::Fin, Close::Reset].into_iter().flat_map(|close| LOOPS.map(|l| crr(close, l)));
        pairs.into_iter().all(|engine| {
            let (initiator, ..) = both_ends(&engine, &setting(100, 400), LOOPBACK);
            eprintln!("{:?}", initiator.values);
            let least = if engine.rate_per_second.is_some() { 200.0 } else { 100.0 };
            initiator.value("ok") >= least
        })
    });
}

/// A responder of std only that does this with each connection.
fn peer(each: impl Fn(TcpStream) + Send + 'static) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 64];
            // A connection without a request ends the server.
            if stream.read_exact(&mut request).is_err() {
                return;
            }
            assert_eq!(request[8..16], cookie().to_be_bytes());
            each(stream);
        }
    });
    (address, server)
}

#[test]
fn every_way_to_fail_has_its_own_count() {
    type Each = fn(TcpStream);
    let cases: [(&str, Each); 5] = [
        ("cut_short", |mut s| s.write_all(&[0; 0]).unwrap()),
        ("foreign", |mut s| s.write_all(&[7; 64]).unwrap()),
        ("reset", |s| set_socket_linger(s.as_fd(), Some(Duration::ZERO)).unwrap()),
        ("timed_out", |s| std::mem::forget(s)),
        ("ok", |mut s| {
            let mut response = [1; 64];
            response[..8].copy_from_slice(b"weir-lt1");
            response[8..16].copy_from_slice(&cookie().to_be_bytes());
            // In two pieces that part the cookie.
            s.set_nodelay(true).unwrap();
            s.write_all(&response[..11]).unwrap();
            // Time in which the first is likely to be read by itself; were both read at once, that would be right as well.
            std::thread::sleep(Duration::from_millis(2));
            s.write_all(&response[11..]).unwrap();
        }),
    ];
    for (name, each) in cases {
        let (target, server) = peer(each);
        let engine = TcpCrr { rate_per_second: Some(50), timeout_ms: 400, ..TcpCrr::default() };
        let part = engine.drive(&setting(0, 200), target).unwrap();
        drop(TcpStream::connect(target).unwrap());
        server.join().unwrap();
        assert_conserved(&part);
        assert_eq!(part.value("attempted") + part.value("unsent"), 10.0);
        assert_eq!(part.value(name), part.value("attempted"), "{name}: {:?}", part.values);
    }
}

#[test]
fn a_stall_shows_in_every_transaction_that_was_due_meanwhile() {
    // The responder's one thread stands still for 200 ms with the 50th connection.
    let n = std::sync::atomic::AtomicU32::new(0);
    let (target, server) = peer(move |mut s| {
        if n.fetch_add(1, Ordering::Relaxed) == 50 {
            std::thread::sleep(Duration::from_millis(200));
        }
        let mut response = [1; 64];
        response[..8].copy_from_slice(b"weir-lt1");
        response[8..16].copy_from_slice(&cookie().to_be_bytes());
        s.write_all(&response).unwrap();
    });
    let engine = TcpCrr { rate_per_second: Some(500), ..TcpCrr::default() };
    let part = engine.drive(&setting(0, 800), target).unwrap();
    drop(TcpStream::connect(target).unwrap());
    server.join().unwrap();
    assert_eq!(part.value("ok"), part.value("attempted"), "{:?}", part.values);
    // One per 2 ms of the first half of the stall.
    assert!(at_least(&part.histograms["crr"], 100_000_000) >= 49);
}

#[test]
fn a_raised_stop_ends_it_and_counts_what_was_open() {
    let swallowing = full_listener();
    let connect = TcpConnect { rate_per_second: 100, timeout_ms: 600_000, any_responder: true };
    let unproven = TcpConnect { any_responder: false, ..connect.clone() };
    let crr = TcpCrr { timeout_ms: 600_000, ..TcpCrr::default() };
    let engines: [&(dyn Engine + Sync); 3] = [&connect, &unproven, &crr];
    for engine in engines {
        let setting = setting(0, 600_000);
        let target = swallowing.local_addr().unwrap();
        let (took, part) = std::thread::scope(|scope| {
            let driven = scope.spawn(|| (engine.drive(&setting, target).unwrap(), Instant::now()));
            // Somewhere in the middle of it.
            std::thread::sleep(Duration::from_millis(300));
            let raised = Instant::now();
            setting.stop.raise();
            let (part, ended) = driven.join().unwrap();
            (ended - raised, part)
        });
        assert_conserved(&part);
        assert_eq!(part.value("timed_out"), 0.0);
        // No time limit was waited for.
        assert!(took < PATIENCE, "{took:?}");
    }
}

#[test]
fn measured_a_silent_stranger_is_not_waited_for() {
    let connect = TcpConnect { any_responder: true, ..TcpConnect::default() };
    let unproven = TcpConnect { any_responder: false, ..TcpConnect::default() };
    let crr = TcpCrr::default();
    measured(2, 3, |_| {
        let engines: [&dyn Engine; 3] = [&connect, &unproven, &crr];
        engines.into_iter().all(|engine| {
            let responder = engine.open(&setting(0, 1000), LOOPBACK.parse().unwrap()).unwrap();
            let _silent = TcpStream::connect(("127.0.0.1", responder.port())).unwrap();
            let finishing = Instant::now();
            responder.finish().unwrap();
            finishing.elapsed() < Duration::from_secs(1)
        })
    });
}

#[test]
fn strangers_are_not_served() {
    let engine = TcpCrr::default();
    let setting = setting(0, 200);
    let responder = engine.open(&setting, LOOPBACK.parse().unwrap()).unwrap();
    let target = SocketAddr::new("127.0.0.1".parse().unwrap(), responder.port());
    let other = TrialSettings { cookie: cookie() + 1, ..setting.clone() };
    let part = engine.drive(&other, target).unwrap();
    assert_eq!(part.value("ok"), 0.0);
    assert_eq!(engine.combine(&[part], &[]).value("failed_ratio"), 1.0);
    let connect = TcpConnect::default();
    let part = connect.drive(&other, target).unwrap();
    assert!(part.faults.iter().any(|f| f.void && f.code == FaultCode::ConnectionFailed), "{:?}", part.faults);
    let part = responder.finish().unwrap();
    assert!(part.value("foreign_connections") > 0.0);
    assert_eq!(part.value("served"), 0.0);
}

#[test]
fn options_out_of_range_name_the_key() {
    for (engine, key) in [
        (TcpCrr { request_bytes: 15, ..TcpCrr::default() }, "request-bytes"),
        (TcpCrr { response_bytes: 0, ..TcpCrr::default() }, "response-bytes"),
        (TcpCrr { connections: Some(0), ..TcpCrr::default() }, "connections"),
        (TcpCrr { rate_per_second: Some(0), ..TcpCrr::default() }, "rate-per-second"),
        (
            TcpCrr { rate_per_second: Some(9), connections: Some(9), ..TcpCrr::default() },
            "connections and rate",
        ),
        (TcpCrr { timeout_ms: 9, ..TcpCrr::default() }, "timeout-ms"),
    ] {
        assert!(engine.validate().unwrap_err().starts_with(key));
    }
    assert!(TcpConnect { rate_per_second: 0, ..TcpConnect::default() }.validate().is_err());
    assert!(TcpConnect::default().validate().is_ok() && TcpCrr::default().validate().is_ok());
}

/// Ports are the namespace's own (net.ipv4.ip_local_port_range), so few of them show in a second what 28,000 would in many.
#[test]
fn root_a_trial_does_not_run_out_of_ports() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let namespace = NetNs::create().unwrap();
    Rtnetlink::open_in(&namespace).unwrap().set_up("lo").unwrap();
    namespace
        .run(|| {
            // /proc/sys/net shows the namespace of the thread that opens it.
            std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40199").unwrap();
            for close in [Close::Fin, Close::Reset] {
                let engine = TcpCrr { close, ..TcpCrr::default() };
                let (initiator, _, trial, _) = both_ends(&engine, &setting(0, 1500), "127.0.0.1:5000");
                assert!(initiator.value("ok") > 1000.0, "several times the ports: {:?}", initiator.values);
                assert_eq!(
                    failures(&initiator) + initiator.value("not_begun"),
                    0.0,
                    "{:?}",
                    initiator.values
                );
                assert!(trial.faults.is_empty(), "{:?}", trial.faults);
            }
            let engine = TcpConnect { rate_per_second: 1000, ..TcpConnect::default() };
            let (initiator, ..) = both_ends(&engine, &setting(0, 1000), "127.0.0.1:5001");
            assert!(initiator.value("ok") > 500.0, "several times the ports: {:?}", initiator.values);
            assert_eq!(failures(&initiator) + initiator.value("not_begun"), 0.0, "{:?}", initiator.values);
        })
        .unwrap();
}

#[test]
fn root_without_a_route_connections_are_unreachable() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let namespace = NetNs::create().unwrap();
    namespace
        .run(|| {
            let engine = TcpCrr { rate_per_second: Some(100), ..TcpCrr::default() };
            let part = engine.drive(&setting(0, 200), "198.18.0.1:5000".parse().unwrap()).unwrap();
            assert_conserved(&part);
            assert_eq!(part.value("unreachable"), part.value("attempted"));
            assert_eq!(part.value("attempted") + part.value("unsent"), 20.0);
        })
        .unwrap();
}

/// All connections hang from the warm-up on: none begins in the window, and all of them failed in it.
#[test]
fn what_hangs_through_the_whole_window_counts() {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let engine = TcpCrr { connections: Some(4), timeout_ms: 1200, ..TcpCrr::default() };
    let part = engine.drive(&setting(100, 300), listener.local_addr().unwrap()).unwrap();
    assert_conserved(&part);
    assert_eq!((part.value("attempted"), part.value("timed_out")), (4.0, 4.0), "{:?}", part.values);
    let trial = engine.combine(&[part], &[]);
    assert!(!trial.faults.iter().any(|f| f.void), "{:?}", trial.faults);
    assert_eq!(trial.value("failed_ratio"), 1.0);
    assert_eq!(trial.histograms["crr"].quantile(0.5).unwrap().seen(), None);
}
