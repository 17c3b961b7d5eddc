//! Who limits a sender, against what the sender's own kernel says of it (tcpi_busy_time, tcpi_rwnd_limited, tcpi_sndbuf_limited).

mod world;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use weir_bpf::Loader;
use weir_flows::{Limiter, Limits, Options};
use weir_netlink::Protocol;
use weir_netlink::sock_diag::{self, Query};
use weir_sys::privilege::test_needs_root;
use weir_sys::{NetNs, ProcRoot};
use weir_testkit::{holds, measured};
use world::relay::{Hold, Relay};
use world::{PathWorld, sh};

/// How long the sender sends.
const FOR: Duration = Duration::from_secs(3);
/// The path's delay, on the way back.
const DELAY: Duration = Duration::from_millis(20);

/// A sender, a receiver and their path.
#[derive(Debug, Clone, Copy)]
struct Case {
    ipv6: bool,
    /// The server sends instead of the client.
    by_server: bool,
    send_buffer: Option<usize>,
    receive_buffer: Option<usize>,
    /// Bytes of a write, and the pause after it.
    write: usize,
    pause: Duration,
    /// The delay is between the client and the gateway.
    delayed_before: bool,
    /// Run on the router behind the gateway.
    fault: &'static str,
    limiter: Limiter,
}

const BULK: Case = Case {
    ipv6: false,
    by_server: false,
    send_buffer: None,
    receive_buffer: None,
    write: 64 << 10,
    pause: Duration::ZERO,
    delayed_before: false,
    fault: "true",
    limiter: Limiter::Network,
};

/// Knowledge of the sender's kernel, µs.
#[derive(Debug, Default, Clone, Copy)]
struct Truth {
    busy: u64,
    window: u64,
    buffer: u64,
    again: u32,
}

fn truth(ns: &NetNs, port: u16) -> Truth {
    let query = Query { protocol: Protocol::Tcp, states: u32::MAX, memory: false, info: true };
    let mut truth = Truth::default();
    ns.run(|| {
        sock_diag::dump(&ProcRoot::default(), query, |entry| {
            if let Some(info) = entry.tcp_info().filter(|_| entry.local().port() == port) {
                truth = Truth {
                    busy: truth.busy.max(info.busy_us()),
                    window: truth.window.max(info.window_limited_us()),
                    buffer: truth.buffer.max(info.buffer_limited_us()),
                    again: truth.again.max(info.total_retransmits()),
                };
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    })
    .unwrap();
    truth
}

fn transfer(case: Case, from: &mut TcpStream, to: &mut TcpStream, ns: &NetNs) -> Truth {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut piece = vec![0; 64 << 10];
            while to.read(&mut piece).unwrap() > 0 {}
        });
        let (began, piece) = (Instant::now(), vec![7; case.write]);
        while began.elapsed() < FOR {
            from.write_all(&piece).unwrap();
            std::thread::sleep(case.pause);
        }
        let truth = truth(ns, from.local_addr().unwrap().port());
        from.shutdown(Shutdown::Write).unwrap();
        truth
    })
}

fn see(case: Case) -> (Limits, Truth) {
    let world = PathWorld::new(case.ipv6, true);
    // Windows that grow stay below the queue of a core, which all namespaces share.
    for ns in [&world.client, &world.server] {
        sh(ns, "sysctl -q net.ipv4.tcp_rmem='4096 131072 400000'");
    }
    let (router, interface) = if case.delayed_before { (&world.before, "b1") } else { (&world.behind, "h1") };
    let hold = Hold { each: DELAY, one_in: 0, longer: Duration::ZERO };
    let relay = Relay::start(router, case.ipv6, interface, hold);
    sh(&world.behind, case.fault);
    let mut watch = world.watch(Options::default());
    let listener = world.listen(5001);
    if let Some(bytes) = case.receive_buffer {
        set_socket_recv_buffer_size(&listener, bytes).unwrap();
    }
    let (mut near, mut far) = world.connect(&listener);
    let (from, to, ns) = if case.by_server {
        (&mut far, &mut near, &world.server)
    } else {
        (&mut near, &mut far, &world.client)
    };
    if let Some(bytes) = case.send_buffer {
        set_socket_send_buffer_size(&*from, bytes).unwrap();
    }
    from.set_nodelay(false).unwrap();
    let truth = transfer(case, from, to, ns);
    drop(relay);
    let flow = watch.read().unwrap().flows.remove(0);
    let side = if case.by_server { flow.server_side } else { flow.client_side };
    (side.limits, truth)
}

fn is_named(case: Case) {
    let (limits, truth) = see(case);
    println!("{case:?}\n{limits:?}\n{truth:?}");
    // The kernel counts less: the wait for its own time to send (TCP_CHRONO_BUSY) goes before both.
    let (window, buffer) = (4 * truth.window > truth.busy, 4 * truth.buffer > truth.busy);
    match case.limiter {
        Limiter::Receiver => assert!(window && !buffer, "the sender says something else"),
        Limiter::Sender => assert!(buffer && !window, "the sender says something else"),
        Limiter::Network => assert!(truth.again > 0, "nothing was lost: this tests nothing"),
        Limiter::Application => assert!(!window && !buffer, "the sender says something else"),
    }
    assert_eq!(limits.by, Some(case.limiter));
    let all = limits.seconds();
    assert!((FOR.as_secs_f64() - 1.0..FOR.as_secs_f64() + 1.5).contains(&all), "{all} s of {FOR:?}");
}

#[track_caller]
fn all_are_named(cases: &[Case]) {
    if test_needs_root() {
        return;
    }
    for case in cases {
        measured(2, 4, |_| holds(|| is_named(*case)));
    }
}

#[test]
fn root_paced_a_small_receive_buffer_is_the_receivers_limit() {
    let case = Case { receive_buffer: Some(16_384), limiter: Limiter::Receiver, ..BULK };
    all_are_named(&[case, Case { delayed_before: true, ipv6: true, ..case }]);
}

#[test]
fn root_paced_a_small_send_buffer_is_the_senders_limit() {
    let case = Case { send_buffer: Some(16_384), limiter: Limiter::Sender, ..BULK };
    all_are_named(&[case, Case { delayed_before: true, ..case }, Case { by_server: true, ..case }]);
}

#[test]
fn root_paced_a_program_that_writes_now_and_then_is_the_applications_limit() {
    let case =
        Case { write: 10_000, pause: Duration::from_millis(50), limiter: Limiter::Application, ..BULK };
    all_are_named(&[case, Case { delayed_before: true, ..case }]);
}

const LOSS: &str = "nft 'add table inet loss; add chain inet loss f { type filter hook forward priority 0; }; \
                    add rule inet loss f meta length > 200 numgen random mod 1000 < 20 drop'";
/// A link of 8 Mbit/s with a queue of 60 ms.
const SLOW: &str = "tc qdisc add dev h1 root tbf rate 8mbit burst 16kb limit 60kb";

#[test]
fn root_paced_loss_and_a_slow_link_are_the_networks_limit() {
    all_are_named(&[Case { fault: LOSS, ..BULK }, Case { fault: SLOW, ..BULK }]);
}

/// The verifier's work stays far below its limit of a million instructions (BPF_COMPLEXITY_LIMIT_INSNS).
#[test]
fn root_the_program_stays_within_the_verifiers_budget() {
    if test_needs_root() {
        return;
    }
    const MOST: u32 = 200_000;
    let object = include_bytes!(concat!(env!("OUT_DIR"), "/flows.bpf.z"));
    let object = Loader::unpack("flows", object).unwrap().load().unwrap();
    let spent = object.program("flows_in").unwrap().verified_instructions().unwrap();
    println!("flows_in: {spent} of {MOST}");
    assert!((1..=MOST).contains(&spent), "{spent} of {MOST}");
}
