//! Real connections through a watched gateway.

mod world;

use weir_flows::{FlowState, Options};
use weir_sys::privilege::test_needs_root;
use world::{PathWorld, send};

fn both_sides_are_joined(ipv6: bool, masquerades: bool) {
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
