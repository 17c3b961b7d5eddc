#![allow(missing_docs, reason = "a test program")]
//! udp-stream against itself on loopback, with a relay that loses, reorders and doubles on purpose.

mod ends;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use ends::{Site, assert_stops, parts, setting, trial, workload};
use serde_json::json;
use weir_load::{Part, Stop, Workload};
use weir_record::FaultCode;

#[test]
fn a_gentle_rate_arrives_whole_in_every_direction_and_kind() {
    for batch in ["single", "sendmmsg", "gso"] {
        for direction in ["egress", "ingress", "both"] {
            let w = workload(json!({
                "kind": "udp-stream", "direction": direction, "batch": batch, "streams": 2,
                "rate-pps": 4000, "payload-bytes": 16,
            }));
            let t = trial(&w, &setting(50, 300), &Site::loopback());
            let hard: Vec<_> = t.faults.iter().filter(|f| f.code != FaultCode::LateSends).collect();
            assert!(hard.is_empty(), "{batch} {direction}: {hard:?}");
            let ways = if direction == "both" { 2.0 } else { 1.0 };
            assert_eq!((t.value("lost"), t.value("duplicated"), t.value("reordered")), (0.0, 0.0, 0.0));
            assert!(t.value("sent") > 0.0);
            // The rate is of both streams together; a stall of the sender at the window's edge moves it by its length.
            let pps = t.value("delivered_pps") / ways;
            assert!((3000.0..5000.0).contains(&pps), "{batch} {direction}: {pps}");
            assert_eq!(t.value("goodput_bps"), t.value("delivered_pps") * 128.0);
        }
    }
}

#[test]
fn large_payloads_and_ipv6() {
    for (site, payload) in
        [(Site::loopback(), 65507), (Site::loopback_v6(), 1452), (Site::loopback_v6(), 65507)]
    {
        let w = workload(json!({"kind": "udp-stream", "rate-pps": 200, "payload-bytes": payload}));
        let t = trial(&w, &setting(20, 200), &site);
        assert_eq!(t.value("lost"), 0.0);
        assert_eq!(t.value("goodput_bps"), t.value("delivered_pps") * 8.0 * f64::from(payload));
        assert!(t.value("delivered_pps") > 100.0);
    }
}

#[test]
fn the_rate_is_kept_over_a_second() {
    for rate in [1_000.0, 30_000.0] {
        let w = workload(json!({"kind": "udp-stream", "rate-pps": rate, "payload-bytes": 64}));
        let (initiator, responder) = parts(&w, &setting(50, 1000), &Site::loopback()).unwrap();
        // The schedule makes up for any stall but one at the window's very end, which is then said.
        let kept = initiator.value("egress_sent_pps") / rate;
        let trial = w.engine().combine(&[initiator], &[responder]);
        let late = trial.faults.iter().any(|f| f.void && f.code == FaultCode::LateSends);
        assert!(late || (kept - 1.0).abs() <= 0.001, "{kept}");
        assert_eq!(trial.value("lost"), 0.0);
    }
}

#[test]
fn a_tiny_receive_buffer_is_the_testers_fault_and_not_loss() {
    let w = workload(json!({
        "kind": "udp-stream", "batch": "sendmmsg", "payload-bytes": 1000, "receive-buffer-bytes": 4096,
    }));
    let t = trial(&w, &setting(50, 400), &Site::loopback());
    let drops = t.value("receiver_drops");
    assert!(drops > 0.0, "{:?}", t.values);
    let fault = t.faults.iter().find(|f| f.code == FaultCode::ReceiverDrops).unwrap();
    assert!(fault.void && fault.host == "responder", "{fault:?}");
    // On loopback nothing else can lose: the kernel's count and the gaps in the numbers agree to the last datagram.
    assert_eq!(t.value("lost"), 0.0, "{:?}", t.values);
    assert_eq!(t.value("loss_ratio"), 0.0);
    assert!(t.value("sent") > drops);
}

#[test]
fn a_raised_stop_ends_every_loop() {
    for (batch, direction) in [("single", "egress"), ("sendmmsg", "ingress"), ("gso", "both")] {
        let w = workload(
            json!({"kind": "udp-stream", "batch": batch, "direction": direction, "payload-bytes": 64}),
        );
        assert_stops(&w);
    }
    assert_stops(&workload(json!({"kind": "udp-stream", "rate-pps": 1.0})));
}

/// The action of a relay on the data datagram of that number.
type Fates = fn(u64) -> Fate;

enum Fate {
    Pass,
    Lose,
    Double,
    /// Keep it back and send it after the next one.
    Swap,
}

/// A userspace NAT between the two ends: forwards both ways, and treats data from the initiator by plan.
struct Relay {
    address: SocketAddr,
    stop: Stop,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Relay {
    fn start(target: SocketAddr, plan: Fates) -> Relay {
        let inside = UdpSocket::bind("127.0.0.1:0").unwrap();
        let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
        outside.connect(target).unwrap();
        for socket in [&inside, &outside] {
            socket.set_nonblocking(true).unwrap();
        }
        let (address, stop) = (inside.local_addr().unwrap(), Stop::default());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            let (mut client, mut held) = (None, None::<Vec<u8>>);
            while !stopped.raised() {
                let mut idle = true;
                if let Ok((n, from)) = inside.recv_from(&mut buffer) {
                    (client, idle) = (Some(from), false);
                    forward(&outside, &buffer[..n], plan, &mut held);
                }
                if let (Ok(n), Some(client)) = (outside.recv(&mut buffer), client) {
                    inside.send_to(&buffer[..n], client).unwrap();
                    idle = false;
                }
                if idle {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        Relay { address, stop, thread: Some(thread) }
    }
}

fn forward(outside: &UdpSocket, datagram: &[u8], plan: Fates, held: &mut Option<Vec<u8>>) {
    // Greetings have 24 bytes; data of these tests has 100, with the number in bytes 8..16.
    if datagram.len() != 100 {
        outside.send(datagram).unwrap();
        return;
    }
    let number = u64::from_be_bytes(datagram[8..16].try_into().unwrap());
    // The responder may be done before the last of them.
    let send = |d: &[u8]| drop(outside.send(d));
    match plan(number) {
        Fate::Pass => send(datagram),
        Fate::Lose => {}
        Fate::Double => {
            send(datagram);
            send(datagram);
        }
        Fate::Swap => {
            *held = Some(datagram.to_vec());
            return;
        }
    }
    if let Some(late) = held.take() {
        send(&late);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.raise();
        let _ = self.thread.take().unwrap().join();
    }
}

fn relayed(plan: Fates) -> Part {
    let w = workload(json!({"kind": "udp-stream", "rate-pps": 2000, "payload-bytes": 100}));
    let s = setting(100, 1000);
    let responder = w.engine().open(&s, "127.0.0.1:0".parse().unwrap()).unwrap();
    let relay = Relay::start(SocketAddr::from(([127, 0, 0, 1], responder.port())), plan);
    let initiator = w.engine().drive(&s, relay.address).unwrap();
    w.engine().combine(&[initiator], &[responder.finish().unwrap()])
}

/// How many of `sent` consecutive numbers are hit by a plan that treats one in `every`: that or one more or less.
fn about(value: f64, sent: f64, every: f64) -> bool {
    (value - sent / every).abs() <= 1.0
}

#[test]
fn each_misfortune_is_counted_as_what_it_is() {
    let lost = relayed(|n| if n % 50 == 7 { Fate::Lose } else { Fate::Pass });
    let sent = lost.value("sent");
    assert!(sent > 1000.0 && about(lost.value("lost"), sent, 50.0), "{:?}", lost.values);
    assert_eq!((lost.value("reordered"), lost.value("duplicated")), (0.0, 0.0));
    assert!((lost.value("loss_ratio") - 0.02).abs() < 0.001);

    let doubled = relayed(|n| if n % 20 == 7 { Fate::Double } else { Fate::Pass });
    assert!(about(doubled.value("duplicated"), doubled.value("sent"), 20.0), "{:?}", doubled.values);
    assert_eq!((doubled.value("lost"), doubled.value("reordered")), (0.0, 0.0));

    let swapped = relayed(|n| if n % 10 == 7 { Fate::Swap } else { Fate::Pass });
    assert!(about(swapped.value("reordered"), swapped.value("sent"), 10.0), "{:?}", swapped.values);
    assert_eq!((swapped.value("lost"), swapped.value("duplicated")), (0.0, 0.0));

    // A second copy of a neighbour does not make good for a lost one, as it would by counting arrivals.
    let both = relayed(|n| match n % 20 {
        7 => Fate::Lose,
        8 => Fate::Double,
        _ => Fate::Pass,
    });
    assert!(about(both.value("lost"), both.value("sent"), 20.0), "{:?}", both.values);
    assert!(about(both.value("duplicated"), both.value("sent"), 20.0));
}

#[test]
fn a_path_that_dies_is_loss_up_to_the_window_s_end() {
    // Number 800 leaves 400 ms after the first: 300 ms of the 1 s window pass datagrams, 700 ms do not.
    let t = relayed(|n| if n < 800 { Fate::Pass } else { Fate::Lose });
    assert!((t.value("loss_ratio") - 0.7).abs() < 0.02, "{:?}", t.values);
    let nothing = relayed(|_| Fate::Lose);
    assert_eq!(nothing.value("loss_ratio"), 1.0);
    assert_eq!(nothing.value("delivered_pps"), 0.0);
    assert_eq!(nothing.value("failed_streams"), 1.0, "{:?}", nothing.values);
    // A busy machine may send late; nothing else is the tester's.
    assert!(nothing.faults.iter().all(|f| f.code == FaultCode::LateSends), "{:?}", nothing.faults);
}

/// The responder is open when the initiator comes: a refusal is the path's. The due datagrams are lost.
#[test]
fn refused_flows_are_loss_and_no_fault() {
    for direction in ["egress", "ingress", "both"] {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let w =
            workload(json!({"kind": "udp-stream", "streams": 2, "rate-pps": 1000, "direction": direction}));
        let near = w.engine().drive(&setting(0, 500), closed).unwrap();
        let t = w.engine().combine(&[near], &[Part::default()]);
        assert_eq!(t.faults, [], "{direction}");
        let ways = if direction == "both" { 2.0 } else { 1.0 };
        // Half a second of 1000 a second.
        assert_eq!((t.value("sent"), t.value("lost")), (500.0 * ways, 500.0 * ways), "{direction}");
        assert_eq!((t.value("streams"), t.value("failed_streams")), (2.0 * ways, 2.0 * ways));
        for (name, value) in [("loss_ratio", 1.0), ("delivered_pps", 0.0), ("goodput_bps", 0.0)] {
            assert_eq!(t.values.get(name), Some(&value), "{direction} {name}");
        }
        assert!(!t.values.contains_key("jitter_ns"), "of nothing: {:?}", t.values);
    }
}

#[test]
fn segments_are_refused_where_the_link_takes_super_packets() {
    let w = workload(json!({"kind": "udp-stream", "batch": "segment", "payload-bytes": 64}));
    let error = parts(&w, &setting(0, 100), &Site::loopback()).unwrap_err().to_string();
    assert!(error.contains("ethtool -K lo tx-udp-segmentation off") && error.contains("gso"), "{error}");
}

#[test]
fn refuses_what_cannot_be() {
    for (options, key) in [
        (json!({"kind": "udp-stream", "streams": 0}), "streams"),
        (json!({"kind": "udp-stream", "payload-bytes": 15}), "payload-bytes"),
        (json!({"kind": "udp-stream", "payload-bytes": 65508}), "payload-bytes"),
        (json!({"kind": "udp-stream", "payload-bytes": 1473, "batch": "segment"}), "payload-bytes"),
        (json!({"kind": "udp-stream", "rate-bps": 0.5}), "rate-bps"),
        (json!({"kind": "udp-stream", "rate-bps": 1e6, "rate-pps": 1e3}), "rate-bps"),
        (json!({"kind": "udp-stream", "receive-buffer-bytes": 1}), "receive-buffer-bytes"),
    ] {
        let w: Workload = serde_json::from_value(options).unwrap();
        let message = w.engine().validate().unwrap_err();
        assert!(message.starts_with(key) && message.contains("valid is"), "{message}");
    }
}
