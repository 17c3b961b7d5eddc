//! Request/response over loopback: counts are conserved, delays that were made are measured, and the two loops differ
//! where they should.

mod ends;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ends::{LOOPBACK, assert_all_metrics, at_least, both_ends, cookie, setting};
use weir_load::rr::{TcpRr, UdpRr};
use weir_load::{Engine, Error, Part, TrialSettings};
use weir_record::FaultCode;
use weir_stats::Censored;
use weir_testkit::{holds, measured};

fn assert_sound(engine: &dyn Engine, initiator: &Part, responder: &Part, trial: &Part) {
    assert!(initiator.value("answered") > 100.0, "{initiator:?}");
    assert_eq!(initiator.value("attempted"), initiator.value("answered") + initiator.value("unanswered"));
    assert_eq!(initiator.histograms["rtt"].len() as f64, initiator.value("answered"));
    assert_eq!(responder.value("requests"), initiator.value("attempted"), "only the measuring window counts");
    assert!(trial.cpu_s > 0.0 && (trial.cpu_s - initiator.cpu_s - responder.cpu_s).abs() < 1e-12);
    let per_transaction = trial.cpu_s * 1e9 / initiator.value("answered");
    assert!((trial.value("tester_cpu_ns_per_transaction") - per_transaction).abs() < 1e-6);
    assert_all_metrics(engine, trial);
}

#[test]
fn tcp_closed_loop_conserves_counts_and_shows_windows() {
    for (connections, request_bytes, response_bytes) in [(1, 1, 1), (3, 100, 40_000)] {
        let engine = TcpRr { connections, request_bytes, response_bytes, window: 100, ..TcpRr::default() };
        // Long enough for a full window of each connection on a machine that is busy, too.
        let setting = setting(100, 2000);
        let (initiator, responder, trial, _) = both_ends(&engine, &setting, LOOPBACK);
        assert_sound(&engine, &initiator, &responder, &trial);
        assert_eq!(initiator.value("unanswered"), 0.0);
        assert!(trial.faults.is_empty(), "{:?}", trial.faults);
        let rate = initiator.value("answered") / 2.0;
        assert!((trial.value("transactions_per_second") - rate).abs() < 1e-6 * rate);
        let p50 = trial.series.iter().find(|s| s.name == "window_p50_ns").unwrap();
        assert!(p50.points.len() as f64 <= initiator.value("windows") && !p50.points.is_empty());
        assert!(p50.points.iter().all(|&(t, v)| (0.0..2.0).contains(&t) && v > 0.0));
        assert!(p50.points.is_sorted_by(|a, b| a.0 <= b.0));
    }
}

#[test]
fn udp_closed_loop_conserves_counts() {
    for bind in [LOOPBACK, "[::1]:0"] {
        let engine = UdpRr { connections: 2, response_bytes: 1400, ..UdpRr::default() };
        let (initiator, responder, trial, _) = both_ends(&engine, &setting(100, 400), bind);
        assert_sound(&engine, &initiator, &responder, &trial);
        assert_eq!(trial.value("loss_ratio"), 0.0);
        assert!(trial.faults.is_empty(), "{:?}", trial.faults);
    }
}

#[test]
fn open_loops_offer_the_rate_that_was_asked_for() {
    let tcp = TcpRr { connections: 2, rate_per_second: Some(2000), ..TcpRr::default() };
    let udp = UdpRr { connections: 2, rate_per_second: Some(2000), ..UdpRr::default() };
    for engine in [&tcp as &dyn Engine, &udp] {
        let (initiator, responder, trial, _) = both_ends(engine, &setting(100, 500), LOOPBACK);
        assert_sound(engine, &initiator, &responder, &trial);
        // One in every interval of 1 ms of each of the two connections; none is left out whatever the machine does.
        assert_eq!(initiator.value("scheduled"), 1000.0);
        assert_eq!(initiator.value("attempted") + initiator.value("unsent"), 1000.0);
        assert_eq!(trial.histograms["lateness"].len() as f64, initiator.value("attempted"));
    }
}

/// A responder of `tcp-rr` made of std only, which waits before its nth answer that counts as `delay` says; those before the window
/// are number 0.
fn slow_responder(delay: impl Fn(u64) -> Duration + Send + 'static) -> (SocketAddr, JoinHandle<()>) {
    std_responder(move |nth| {
        std::thread::sleep(delay(nth));
        FILL
    })
}

/// The parts of an answer.
const FILL: u8 = 0x5a;

/// The same, with the byte that it answers.
fn std_responder(answer: impl Fn(u64) -> u8 + Send + 'static) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut preamble = [0; 16];
        stream.read_exact(&mut preamble).unwrap();
        assert_eq!(preamble[8..], cookie().to_be_bytes());
        stream.write_all(&preamble).unwrap();
        let mut measured = 0;
        let mut request = [0];
        while stream.read_exact(&mut request).is_ok() {
            measured += u64::from(request[0] == 1);
            if stream.write_all(&[answer(measured)]).is_err() {
                return;
            }
        }
    });
    (address, server)
}

#[test]
fn a_delay_of_one_in_a_hundred_shows_in_the_tail_only() {
    let ms5 = |n: u64| if n > 0 && n.is_multiple_of(100) { Duration::from_millis(5) } else { Duration::ZERO };
    let (target, server) = slow_responder(ms5);
    let part = TcpRr::default().drive(&setting(50, 1000), target).unwrap();
    server.join().unwrap();
    let rtt = part.histograms["rtt"].answered();
    assert!(rtt.len() >= 1000, "{}", rtt.len());
    assert!(rtt.quantile(0.995).unwrap() >= 5_000_000);
    assert!(rtt.quantile(0.5).unwrap() < 2_500_000, "half of the delay: {}", rtt.quantile(0.5).unwrap());
}

#[test]
fn an_answer_that_was_changed_on_the_way_is_none() {
    for rate_per_second in [None, Some(1000)] {
        let (target, server) = std_responder(|nth| if nth.is_multiple_of(2) { FILL } else { !FILL });
        let engine = TcpRr { rate_per_second, ..TcpRr::default() };
        let part = engine.drive(&setting(50, 300), target).unwrap();
        server.join().unwrap();
        let trial = engine.combine(&[part], &[]);
        let failed = trial.value("unanswered_ratio");
        assert!(
            trial.value("attempted") >= 100.0 && (failed - 0.5).abs() < 0.02,
            "{rate_per_second:?}: {failed}"
        );
    }
}

#[test]
fn a_transaction_that_outlasts_the_window_is_all_that_it_saw() {
    let (target, server) = slow_responder(|_| Duration::from_millis(400));
    let engine = TcpRr::default();
    let part = engine.drive(&setting(50, 100), target).unwrap();
    server.join().unwrap();
    assert_eq!((part.value("attempted"), part.value("answered")), (1.0, 1.0), "{part:?}");
    assert!(part.histograms["rtt"].answered().min() >= 400_000_000);
    let trial = engine.combine(&[part], &[]);
    assert!(!trial.faults.iter().any(|fault| fault.void), "{:?}", trial.faults);
}

/// The demonstration of coordinated omission: the responder stands still once for 200 ms.
#[test]
fn the_open_loop_sees_a_stall_in_every_transaction_it_delays_and_the_closed_loop_in_one() {
    let stall = || slow_responder(|n| if n == 300 { Duration::from_millis(200) } else { Duration::ZERO });

    let (target, server) = stall();
    let open =
        TcpRr { rate_per_second: Some(1000), ..TcpRr::default() }.drive(&setting(50, 1000), target).unwrap();
    server.join().unwrap();
    // Meant to leave in the first half of the stall, one per millisecond, hence answered 100 to 200 ms later.
    let late = at_least(&open.histograms["rtt"], 100_000_000);
    assert!(late >= 98, "{late}");
    assert_eq!(open.value("attempted") + open.value("unsent"), 1000.0);
    assert_eq!(open.value("unanswered"), 0.0);

    let (target, server) = stall();
    let closed = TcpRr::default().drive(&setting(50, 1000), target).unwrap();
    server.join().unwrap();
    let late = at_least(&closed.histograms["rtt"], 100_000_000);
    assert!((1..10).contains(&late), "one, and what else may have stopped this machine: {late}");
}

/// A responder of `udp-rr` that leaves out every tenth answer, sends every tenth twice, and answers some too late.
fn lossy_responder() -> (SocketAddr, Arc<AtomicBool>, Arc<AtomicU64>, JoinHandle<()>) {
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let address = socket.local_addr().unwrap();
    let (done, dropped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let server = {
        let (done, dropped) = (done.clone(), dropped.clone());
        std::thread::spawn(move || {
            let mut datagram = [0; 64];
            while !done.load(Ordering::Relaxed) {
                let Ok((n, peer)) = socket.recv_from(&mut datagram) else { continue };
                let number = u64::from_be_bytes(datagram[8..16].try_into().unwrap());
                let answers = match (number >> 63, number % 10) {
                    (1, 3) => 0,
                    (1, 7) => 2,
                    _ => 1,
                };
                dropped.fetch_add(u64::from(answers == 0), Ordering::Relaxed);
                for _ in 0..answers {
                    socket.send_to(&datagram[..n], peer).unwrap();
                }
                // The cookie of another trial.
                datagram[0] ^= 0xff;
                socket.send_to(&datagram[..n], peer).unwrap();
            }
        })
    };
    (address, done, dropped, server)
}

#[test]
fn udp_loss_is_counted_exactly_and_duplicates_and_strangers_are_not_answers() {
    let closed = UdpRr { timeout_ms: 100, ..UdpRr::default() };
    let open = UdpRr { rate_per_second: Some(1000), ..closed.clone() };
    for engine in [closed, open] {
        let (target, done, dropped, server) = lossy_responder();
        let part = engine.drive(&setting(20, 1000), target).unwrap();
        done.store(true, Ordering::Relaxed);
        server.join().unwrap();
        let lost = part.value("unanswered");
        assert!(lost >= 3.0, "{part:?}");
        assert_eq!(lost, dropped.load(Ordering::Relaxed) as f64, "{part:?}");
        assert_eq!(part.value("attempted"), part.value("answered") + lost);
        assert!(part.value("stray_replies") >= 1.0, "{part:?}");
        let trial = engine.combine(std::slice::from_ref(&part), &[]);
        assert!((trial.value("loss_ratio") - lost / part.value("attempted")).abs() < 1e-12);
    }
}

#[test]
fn strangers_are_neither_served_nor_counted() {
    let engine = TcpRr::default();
    let setting = setting(0, 200);
    let responder = engine.open(&setting, LOOPBACK.parse().unwrap()).unwrap();
    let target = SocketAddr::new("127.0.0.1".parse().unwrap(), responder.port());
    let mut stranger = TcpStream::connect(target).unwrap();
    stranger.write_all(&[0; 16]).unwrap();
    assert_eq!(stranger.read(&mut [0; 16]).unwrap_or(0), 0, "closed without an answer");
    let other = TrialSettings { cookie: cookie() + 1, ..setting.clone() };
    assert!(matches!(engine.drive(&other, target), Err(Error::Connect { .. })));
    // One that never says anything does not hold up the end.
    let _silent = TcpStream::connect(target).unwrap();
    let initiator = engine.drive(&setting, target).unwrap();
    let part = responder.finish().unwrap();
    assert_eq!(part.value("requests"), initiator.value("attempted"));
    assert_eq!(part.value("foreign_connections"), 3.0);

    let udp = UdpRr::default();
    let responder = udp.open(&setting, LOOPBACK.parse().unwrap()).unwrap();
    let stranger = UdpSocket::bind(LOOPBACK).unwrap();
    for bytes in [&[][..], &[1; 5], &[1; 16], &[1; 1000]] {
        stranger.send_to(bytes, ("127.0.0.1", responder.port())).unwrap();
    }
    let initiator =
        udp.drive(&setting, SocketAddr::new("127.0.0.1".parse().unwrap(), responder.port())).unwrap();
    let part = responder.finish().unwrap();
    assert_eq!(part.value("foreign_datagrams"), 4.0);
    assert_eq!(part.value("requests"), initiator.value("attempted"));
}

#[test]
fn connections_that_are_refused_are_results_with_the_reason() {
    let free = TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let (tcp, udp) =
        (TcpRr { connections: 3, ..TcpRr::default() }, UdpRr { connections: 3, ..UdpRr::default() });
    let (tcp_open, udp_open) = (
        TcpRr { rate_per_second: Some(1000), ..tcp.clone() },
        UdpRr { rate_per_second: Some(1000), ..udp.clone() },
    );
    let cases: [(&dyn Engine, f64); 4] = [(&tcp, 3.0), (&udp, 3.0), (&tcp_open, 99.0), (&udp_open, 99.0)];
    for (engine, wanted) in cases {
        let part = engine.drive(&setting(0, 100), free).unwrap();
        assert_eq!(part.value("dead_connections"), 3.0, "{}: {part:?}", engine.kind());
        assert!(part.faults.iter().all(|f| !f.void && f.detail.contains("refused")), "{:?}", part.faults);
        let trial = engine.combine(std::slice::from_ref(&part), &[]);
        assert!(trial.faults.iter().all(|f| !f.void), "{:?}", trial.faults);
        assert!((trial.value("wanted") - wanted).abs() <= 3.0, "{}: {:?}", engine.kind(), trial.values);
        assert_eq!(trial.value("failed"), trial.value("wanted"));
        assert_eq!(trial.histograms["rtt"].quantile(0.5), Some(Censored::FAILED));
        assert_eq!(trial.value("transactions_per_second"), 0.0);
    }
    let taken = TcpListener::bind(LOOPBACK).unwrap();
    let error = TcpRr::default().open(&setting(0, 100), taken.local_addr().unwrap()).err().unwrap();
    assert!(matches!(error, Error::Listen { .. }), "{error}");
}

#[test]
fn a_connection_that_dies_counts_as_failed_for_the_rest_of_the_window() {
    let (target, server) = slow_responder(|n| {
        assert!(n < 200, "ends the responder");
        Duration::ZERO
    });
    let part = TcpRr::default().drive(&setting(0, 2000), target).unwrap();
    assert_eq!(part.value("answered"), 199.0);
    assert_eq!(part.value("attempted"), 200.0);
    assert!(
        part.faults.iter().any(|f| !f.void && f.code == FaultCode::ConnectionFailed),
        "{:?}",
        part.faults
    );
    // 199 answers took a small part of the window: the rest of it would have held many more.
    assert!(part.value("not_asked") > 199.0, "{:?}", part.values);
    assert_eq!(part.histograms["rtt"].quantile(0.9).unwrap().seen(), None);
    assert!(server.join().is_err());
}

#[test]
fn measured_a_raised_stop_ends_everything_at_once() {
    measured(2, 3, |_| holds(stop_everything));
}

fn stop_everything() {
    let closed = (TcpRr::default(), UdpRr::default());
    let open = (
        TcpRr { rate_per_second: Some(5), ..TcpRr::default() },
        UdpRr { rate_per_second: Some(5), ..UdpRr::default() },
    );
    // Answers never come: the responder of TCP stalls, the one of UDP is silent after the greeting.
    let stalled = TcpRr::default();
    let engines: [&(dyn Engine + Sync); 5] = [&closed.0, &closed.1, &open.0, &open.1, &stalled];
    for (nth, engine) in engines.into_iter().enumerate() {
        let setting = setting(0, 60_000);
        let responder = engine.open(&setting, LOOPBACK.parse().unwrap()).unwrap();
        let (target, _stalled) = if nth == 4 {
            let (target, server) = slow_responder(|n| Duration::from_secs(if n == 3 { 2 } else { 0 }));
            (target, Some(server))
        } else {
            (SocketAddr::new("127.0.0.1".parse().unwrap(), responder.port()), None)
        };
        let started = Barrier::new(2);
        let stop = setting.stop.clone();
        let took = std::thread::scope(|scope| {
            let driven = scope.spawn(|| {
                started.wait();
                let part = engine.drive(&setting, target).unwrap();
                (Instant::now(), part)
            });
            started.wait();
            // Long enough for the connection to be in its loop on any machine; if not, the stop ends the dialling.
            std::thread::sleep(Duration::from_millis(300));
            let raised = Instant::now();
            stop.raise();
            let (ended, part) = driven.join().unwrap();
            assert_eq!(
                part.value("attempted"),
                part.value("answered") + part.value("cut"),
                "{}",
                engine.kind()
            );
            ended - raised
        });
        let finishing = Instant::now();
        responder.finish().unwrap();
        // 100 ms is the promise; the test shows that no time limit (1 s and more) was waited for.
        assert!(took < Duration::from_millis(500), "{} {nth}: {took:?}", engine.kind());
        assert!(finishing.elapsed() < Duration::from_millis(500), "{}", engine.kind());
    }
}

#[test]
fn options_out_of_range_name_the_key() {
    for (engine, key) in [
        (TcpRr { request_bytes: 0, ..TcpRr::default() }, "request-bytes"),
        (TcpRr { response_bytes: 1 << 21, ..TcpRr::default() }, "response-bytes"),
        (TcpRr { connections: 0, ..TcpRr::default() }, "connections"),
        (TcpRr { window: 99, ..TcpRr::default() }, "window"),
        (TcpRr { rate_per_second: Some(0), ..TcpRr::default() }, "rate-per-second"),
    ] {
        assert!(engine.validate().unwrap_err().starts_with(key));
    }
    assert!(UdpRr { request_bytes: 15, ..UdpRr::default() }.validate().unwrap_err().contains("16 to 65507"));
    assert!(TcpRr::default().validate().is_ok() && UdpRr::default().validate().is_ok());
}
