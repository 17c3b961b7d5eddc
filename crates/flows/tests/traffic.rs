//! Real connections through a watched gateway.

mod world;

use std::io::{Read, Write};
use std::net::SocketAddr;

use weir_flows::{Flow, FlowState, Options, Reading};
use weir_sys::privilege::test_needs_root;
use weir_sys::sched::{allowed_cpus, pin_current_thread};
use weir_testkit::{PATIENCE, until};
use world::{PathWorld, send, sh};

fn both_sides_are_joined(ipv6: bool, masquerades: bool) {
    // A sender that the scheduler moves to another core leaves packets in the first one's queue of veth, and they are overtaken.
    pin_current_thread(&allowed_cpus().unwrap()[..1]).unwrap();
    let world = PathWorld::new(ipv6, masquerades);
    let mut watch = world.watch(Options::default());
    let listener = world.listen(5001);
    let (mut near, mut far) = world.connect(&listener);
    let client = near.local_addr().unwrap();
    let outside = far.peer_addr().unwrap();
    send(&mut near, &mut far, 1 << 20);
    send(&mut far, &mut near, 2 << 20);
    let reading = watch.read().unwrap();
    assert_eq!(reading.interfaces, ["g0", "g1"]);
    assert_eq!(reading.flows.len(), 1, "{:?}", reading.flows);
    let flow = &reading.flows[0];
    assert_eq!((flow.client, flow.server), (client, listener.local_addr().unwrap()));
    assert_eq!(flow.client_outside, Some(outside));
    assert_eq!(flow.server_inside, Some(flow.server));
    let by = [flow.client_interface.as_deref(), flow.server_interface.as_deref()];
    assert_eq!(by, [Some("g0"), Some("g1")]);
    assert_eq!((flow.state, flow.connections, flow.seen_from_start), (FlowState::Ended, 1, true));
    for (side, bytes) in [(&flow.client_side, 1 << 20), (&flow.server_side, 2 << 20)] {
        assert!(side.bytes > bytes, "{side:?}");
        assert_eq!((side.syns, side.resets, side.bypassed, side.unjudged), (1, 0, 0, 0));
        assert_eq!((side.lost_from.segments, side.lost_to.segments, side.reordered), (0, 0, 0), "{side:?}");
        assert!(side.round_trips.smallest_ns.is_some(), "{side:?}");
    }
}

#[test]
fn root_both_sides_of_a_masquerade_are_one_flow() {
    if !test_needs_root() {
        both_sides_are_joined(false, true);
    }
}

#[test]
fn root_a_routed_flow_is_one_flow() {
    if !test_needs_root() {
        both_sides_are_joined(false, false);
    }
}

#[test]
fn root_ipv6_with_and_without_masquerade_is_one_flow() {
    if !test_needs_root() {
        both_sides_are_joined(true, true);
        both_sides_are_joined(true, false);
    }
}

/// Exchanges a byte each way.
fn exchange(near: &mut std::net::TcpStream, far: &mut std::net::TcpStream) {
    near.write_all(b"a").unwrap();
    far.read_exact(&mut [0]).unwrap();
    far.write_all(b"b").unwrap();
    near.read_exact(&mut [0]).unwrap();
}

#[track_caller]
fn flow_to(reading: &Reading, server: SocketAddr) -> &Flow {
    reading
        .flows
        .iter()
        .find(|f| f.server == server)
        .unwrap_or_else(|| panic!("{server}: {:?}", reading.flows))
}

/// A connection that was there before the watch, through a masquerade: conntrack says who began it and joins both sides.
#[test]
fn root_a_connection_from_before_is_joined() {
    if test_needs_root() {
        return;
    }
    for (ipv6, server_first) in [(false, false), (false, true), (true, true)] {
        let world = PathWorld::new(ipv6, true);
        let listener = world.listen(5001);
        let (mut near, mut far) = world.connect(&listener);
        exchange(&mut near, &mut far);
        let mut watch = world.watch(Options::default());
        if server_first {
            far.write_all(b"c").unwrap();
            near.read_exact(&mut [0]).unwrap();
        }
        exchange(&mut near, &mut far);
        let reading = watch.read().unwrap();
        assert_eq!(reading.flows.len(), 1, "{:?}", reading.flows);
        let flow = &reading.flows[0];
        assert_eq!(
            (flow.client, flow.client_outside),
            (near.local_addr().unwrap(), Some(far.peer_addr().unwrap()))
        );
        assert_eq!((flow.seen_from_start, flow.connections, flow.state), (false, 0, FlowState::Open));
        assert!(flow.client_side.packets > 0 && flow.server_side.packets > 0, "{flow:?}");
        assert_eq!(reading.not_tracked.stray, 0);
    }
}

#[test]
fn root_syns_without_an_answer_and_resets_are_seen() {
    if test_needs_root() {
        return;
    }
    for masquerades in [true, false] {
        let world = PathWorld::new(false, masquerades);
        world.rule(&world.behind, "tcp dport 5002 counter drop");
        let mut watch = world.watch(Options::default());
        let at = |port| SocketAddr::new(world.server_address, port);
        // Nothing listens there: the server's host resets.
        assert!(world.try_connect(at(5003)).is_err());
        // The client resets: it closes with bytes that it has not read.
        let listener = world.listen(5001);
        let (near, mut far) = world.connect(&listener);
        far.write_all(b"unread").unwrap();
        until("the bytes are there", PATIENCE, || near.peek(&mut [0; 6]).is_ok_and(|n| n == 6).then_some(()));
        drop(near);
        until("the reset is there", PATIENCE, || far.read(&mut [0]).is_err().then_some(()));
        let client = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                let to = socket_address(at(5002));
                sh(&world.client, &format!("timeout 5 bash -c 'exec 3<>/dev/tcp/{to}' 2>/dev/null || true"))
            });
            let reading = until("it is unanswered", PATIENCE, || {
                let reading = watch.read().unwrap();
                let found = reading.flows.iter().any(|f| f.state == FlowState::Unanswered);
                found.then_some(reading)
            });
            connecting.join().unwrap();
            reading
        });
        let refused = flow_to(&client, at(5003));
        assert_eq!(
            (refused.state, refused.server_side.resets, refused.client_side.resets),
            (FlowState::Reset, 1, 0)
        );
        let left = flow_to(&client, at(5001));
        assert_eq!((left.state, left.server_side.resets), (FlowState::Reset, 0));
        assert!(left.client_side.resets >= 1);
        let silent = flow_to(&client, at(5002));
        assert_eq!((silent.state, silent.server_side.packets), (FlowState::Unanswered, 0));
        assert!(
            silent.client_side.syns >= 2 && client.all.unanswered_syns == silent.client_side.syns,
            "{silent:?}"
        );
    }
}

fn socket_address(at: SocketAddr) -> String {
    format!("{}/{}", at.ip(), at.port())
}

/// A server that does not read closes its window, and opens it when it reads.
#[test]
fn root_a_closed_window_is_seen_with_its_side() {
    if test_needs_root() {
        return;
    }
    for ipv6 in [false, true] {
        let world = PathWorld::new(ipv6, true);
        let mut watch = world.watch(Options::default());
        let (mut near, mut far) = world.connect(&world.listen(5001));
        near.set_nonblocking(true).unwrap();
        let mut sent = 0;
        until("the window is closed", PATIENCE, || {
            while let Ok(n) = near.write(&[0; 10_000]) {
                sent += n;
            }
            (watch.read().unwrap().flows[0].server_side.zero_windows > 0).then_some(())
        });
        let side = &watch.read().unwrap().flows[0].server_side;
        assert_eq!(side.zero_window_seconds, 0.0, "it is still closed: {side:?}");
        let mut left = sent;
        let mut room = vec![0; 10_000];
        while left > 0 {
            left -= far.read(&mut room).unwrap();
        }
        let flow = &watch.read().unwrap().flows[0];
        assert!(flow.server_side.zero_window_seconds > 0.0, "{flow:?}");
        assert_eq!(flow.client_side.zero_windows, 0, "{flow:?}");
    }
}

#[test]
fn root_marks_of_congestion_are_counted() {
    if test_needs_root() {
        return;
    }
    for (ipv6, rule) in [(false, "ip ecn set ce counter"), (true, "ip6 ecn set ce counter")] {
        let world = PathWorld::new(ipv6, false);
        world.rule(&world.before, &format!("iifname b0 {rule}"));
        let mut watch = world.watch(Options::default());
        let (mut near, mut far) = world.connect(&world.listen(5001));
        send(&mut near, &mut far, 100_000);
        let flow = &watch.read().unwrap().flows[0];
        let marked = world.dropped(&world.before);
        assert_eq!((flow.client_side.congestion_marks, flow.server_side.congestion_marks), (marked, 0));
        assert!(marked > 50);
    }
}

/// A flood of SYNs of ever new flows takes a quarter of the table, and pushes none of the others out.
#[test]
fn root_a_flood_pushes_no_tracked_flow_out() {
    if test_needs_root() {
        return;
    }
    let world = PathWorld::new(false, false);
    world.rule(&world.behind, "tcp dport 6000-6999 counter drop");
    let mut watch = world.watch(Options { flows: 64, ..Options::default() });
    let listener = world.listen(5001);
    let mut first: Vec<_> = (0..20).map(|_| world.connect(&listener)).collect();
    world
        .client
        .run(|| {
            // Connects without waiting: one SYN each.
            for port in 6000..6500 {
                let to = SocketAddr::new(world.server_address, port);
                drop(std::net::TcpStream::connect_timeout(&to, std::time::Duration::from_millis(1)));
            }
        })
        .unwrap();
    for (near, far) in &mut first {
        exchange(near, far);
    }
    let reading = watch.read().unwrap();
    let opening = reading.flows.iter().filter(|f| f.server.port() >= 6000).count();
    assert_eq!(opening, 16, "a quarter of 64");
    assert!(reading.not_tracked.too_many_opening >= 484, "{:?}", reading.not_tracked);
    let open = reading.flows.iter().filter(|f| f.server.port() == 5001);
    assert!(open.clone().all(|f| f.client_side.segments == 1 && f.server_side.segments == 1));
    assert_eq!(open.count(), 20);
    // More connections than there is room for: 64 - 16 - 20 of them fit.
    let mut more: Vec<_> = (0..40).map(|_| world.connect(&listener)).collect();
    for (near, far) in first.iter_mut().chain(&mut more) {
        exchange(near, far);
    }
    let reading = watch.read().unwrap();
    assert_eq!(reading.flows_now, 64);
    assert!(reading.not_tracked.no_room > 0, "{:?}", reading.not_tracked);
    for (near, _) in &first {
        let client = near.local_addr().unwrap();
        let flow = reading.flows.iter().find(|f| f.client == client).unwrap();
        assert_eq!(flow.client_side.segments, 2, "{flow:?}");
    }
}

/// A flow is in the sample as a whole or not at all, through NAT as well.
#[test]
fn root_a_sample_has_whole_flows() {
    if test_needs_root() {
        return;
    }
    let world = PathWorld::new(false, true);
    let mut watch = world.watch(Options { share: 0.5, ..Options::default() });
    let listener = world.listen(5001);
    for _ in 0..200 {
        let (mut near, mut far) = world.connect(&listener);
        exchange(&mut near, &mut far);
    }
    let reading = watch.read().unwrap();
    // 200 draws with probability 1/2: outside of this once in 10^8.
    assert!((60..=140).contains(&reading.flows_now), "{}", reading.flows_now);
    assert!(reading.not_tracked.outside_sample > 0);
    for flow in &reading.flows {
        assert!(
            flow.seen_from_start && flow.client_side.segments >= 1 && flow.server_side.segments >= 1,
            "{flow:?}"
        );
    }
}

/// Flows that have ended leave the table, and stay in the sums of their network.
#[test]
fn root_flows_that_have_ended_make_room() {
    if test_needs_root() {
        return;
    }
    let world = PathWorld::new(false, true);
    let mut watch = world.watch(Options { flows: 4, ..Options::default() });
    let listener = world.listen(5001);
    for _ in 0..4 {
        let (mut near, mut far) = world.connect(&listener);
        send(&mut near, &mut far, 1000);
    }
    let full = watch.read().unwrap();
    assert_eq!((full.flows_now, full.flows_over, full.all.flows), (4, 0, 4));
    let (mut near, mut far) = world.connect(&listener);
    exchange(&mut near, &mut far);
    let full = watch.read().unwrap();
    assert!(full.flows_now == 4 && full.not_tracked.no_room > 0, "{:?}", full.not_tracked);
    let empty = until("all have left", PATIENCE, || {
        let reading = watch.read().unwrap();
        (reading.flows_now == 0).then_some(reading)
    });
    assert_eq!((empty.flows_over, empty.all.flows, empty.all.connections), (4, 4, 4));
    assert_eq!(empty.all.client_side.bytes, full.all.client_side.bytes);
    assert_eq!(empty.all.client_side.lost_from.of, full.all.client_side.lost_from.of);
    // The one that found no room is picked up.
    exchange(&mut near, &mut far);
    let after = watch.read().unwrap();
    assert_eq!((after.flows_now, after.flows[0].client), (1, near.local_addr().unwrap()));
}

/// Connections of the gateway itself pass in one direction only: nothing in them looks like a fault of the path.
#[test]
fn root_connections_of_the_gateway_itself_are_one_way_and_without_faults() {
    if test_needs_root() {
        return;
    }
    let world = PathWorld::new(false, true);
    let mut watch = world.watch(Options::default());
    let outgoing = world.listen(5001);
    let to = outgoing.local_addr().unwrap();
    let mut out = world.gateway.run(|| std::net::TcpStream::connect(to).unwrap()).unwrap();
    let mut far = outgoing.accept().unwrap().0;
    let own = SocketAddr::new(world.gateway_outside, 5002);
    let incoming = world.gateway.run(|| std::net::TcpListener::bind(own).unwrap()).unwrap();
    let mut near = world.try_connect(own).unwrap();
    let mut into = incoming.accept().unwrap().0;
    for _ in 0..20 {
        exchange(&mut out, &mut far);
        exchange(&mut near, &mut into);
    }
    let reading = watch.read().unwrap();
    assert_eq!(reading.flows_now, 2, "{:?}", reading.flows);
    for flow in &reading.flows {
        assert_eq!(flow.state, FlowState::OneWay, "{flow:?}");
        for side in [&flow.client_side, &flow.server_side] {
            let faults = [
                side.bypassed,
                side.needless,
                side.reordered,
                side.lost_from.segments,
                side.lost_to.segments,
            ];
            assert_eq!(faults, [0; 5], "{flow:?}");
        }
    }
    assert_eq!(reading.all.unanswered_syns, 0);
}
