//! The fast path on a kernel without TCX: its programs are filters of clsact, which outlive their process.

mod world;

use weir_fastpath::{
    AttachedBy, Error, ExclusionStore, Options, Reason, Resident, Setup, Wanted, leftovers, others,
    remove_leftovers,
};
use weir_netlink::Rtnetlink;
use weir_sys::privilege::test_needs_root;
use world::{NatWorld, passes, sh, until};

/// A flow enters with its second packet.
const EARLY: Options =
    Options { connections: 1024, connections6: 1024, packets: 2, without_tcx: true, ..Options::DEFAULT };

/// Filters and clsact qdiscs of the gateway, as iproute2 shows them.
fn shown(world: &NatWorld) -> String {
    sh(
        &world.gateway,
        "for i in br0 out0; do for side in ingress egress; do tc filter show dev $i $side 2>/dev/null || true; done; done; \
         tc qdisc show | grep clsact || true",
    )
}

fn has_tc() -> bool {
    let found = weir_sys::process::which("tc").is_some();
    if !found {
        println!("SKIP: tc is not installed");
    }
    found
}

fn left(world: &NatWorld) -> Vec<String> {
    world.gateway.run(|| leftovers().unwrap()).unwrap()
}

fn udp_is_carried(ipv6: bool) {
    let world = NatWorld::new(ipv6);
    let carried = world.carried(EARLY);
    assert_eq!(carried.fastpath.attached_by(), Some(AttachedBy::Clsact));
    assert!(carried.fastpath.is_attached().unwrap());
    let client = world.udp(&world.inside[0], world.inside_addresses[0], 4000);
    let server = world.server_udp(5000);
    let to = server.local_addr().unwrap();
    let both = |n: u8| {
        let from = passes(&client, to, &server, &[n; 100]);
        assert_eq!(from.ip(), world.gateway_outside);
        passes(&server, from, &client, &[n; 120]);
    };
    until("the flow is carried both ways", || (carried.during(|| both(1)).0 == 2).then_some(()));
    let text = shown(&world);
    assert_eq!(text.matches("fastpath_in+clsact").count(), 2, "{text}");
    assert_eq!(text.matches("fastpath_out+clsact").count(), 2, "{text}");
    assert!(text.contains("direct-action"), "{text}");
    drop(carried);
    assert_eq!(shown(&world), "", "nothing is left");
    both(2);
}

#[test]
fn root_flows_are_carried_and_nothing_is_left_at_the_end() {
    if !test_needs_root() && has_tc() {
        udp_is_carried(false);
    }
}

#[test]
fn root_flows_of_ipv6_are_carried_and_nothing_is_left_at_the_end() {
    if !test_needs_root() && has_tc() {
        udp_is_carried(true);
    }
}

#[test]
fn root_filters_of_an_ended_process_carry_nothing_and_are_found_and_removed() {
    if test_needs_root() || !has_tc() {
        return;
    }
    let world = NatWorld::new(false);
    let mut carried = world.carried(EARLY);
    let client = world.udp(&world.inside[0], world.inside_addresses[0], 4000);
    let server = world.server_udp(5000);
    let to = server.local_addr().unwrap();
    until("the flow is carried", || {
        (carried.during(|| passes(&client, to, &server, b"x")).0 == 1).then_some(())
    });
    // As after kill -9: no one renews the lease, and no one removes the filters.
    carried.keeper = None;
    std::mem::forget(std::sync::Arc::clone(&carried.fastpath));
    let dead = std::sync::Arc::clone(&carried.fastpath);
    drop(carried);
    let packets = |reason| dead.status().unwrap().packets(reason);
    until("the lease ends", || {
        let before = packets(Reason::NoLease);
        passes(&client, to, &server, b"y");
        (packets(Reason::NoLease) > before).then_some(())
    });
    assert_eq!(left(&world), ["br0", "out0"]);
    // The next start removes them, also where it carries nothing.
    let path = std::path::Path::new("/nonexistent");
    let wanted = Wanted {
        interfaces: vec!["out0".into()],
        connections: 1024,
        connections6: 64,
        packets: 2,
        excluded: Vec::new(),
        xdp: Vec::new(),
    };
    let setup = Setup { wanted, trial: None, kept: ExclusionStore::in_folder(path) };
    let resident = world.gateway.run(|| Resident::begin(setup).unwrap()).unwrap();
    assert_eq!(left(&world), [""; 0]);
    assert_eq!(shown(&world), "");
    drop(resident);
    // And so does a command.
    std::mem::forget(world.carried(EARLY).fastpath);
    assert_eq!(left(&world).len(), 2);
    world.gateway.run(|| remove_leftovers().unwrap()).unwrap();
    assert_eq!(shown(&world), "");
    passes(&client, to, &server, b"z");
}

#[test]
fn root_the_qdisc_and_filters_of_others_stay_and_come_first() {
    if test_needs_root() || !has_tc() {
        return;
    }
    let world = NatWorld::new(false);
    sh(
        &world.gateway,
        "ip link add x0 type veth peer name x1 && ip link set x0 up && tc qdisc add dev br0 clsact && \
         tc filter add dev br0 ingress pref 7 protocol ip u32 match ip dport 5001 0xffff action mirred egress redirect dev x0",
    );
    let before = shown(&world);
    let carried = world.carried(EARLY);
    let index =
        |name: &str| world.gateway.run(|| Rtnetlink::open().unwrap().interface(name).unwrap().index).unwrap();
    let met = world.gateway.run(|| others(index("br0")).unwrap()).unwrap();
    assert_eq!(met, [], "carried packets meet the filter, which is before the programs");
    let client = world.udp(&world.inside[0], world.inside_addresses[0], 4000);
    let server = world.server_udp(5000);
    let refused = world.server_udp(5001);
    until("the flow is carried", || {
        (carried.during(|| passes(&client, server.local_addr().unwrap(), &server, b"x")).0 == 1).then_some(())
    });
    refused.set_nonblocking(true).unwrap();
    client.send_to(b"?", refused.local_addr().unwrap()).unwrap();
    passes(&client, server.local_addr().unwrap(), &server, b"behind it");
    assert!(refused.recv_from(&mut [0]).is_err(), "the filter sends it elsewhere");
    // One that is removed comes back.
    sh(&world.gateway, "tc filter del dev br0 ingress pref 65535");
    assert!(!carried.fastpath.is_attached().unwrap());
    world.gateway.run(|| carried.fastpath.mend().unwrap()).unwrap();
    assert!(carried.fastpath.is_attached().unwrap());
    drop(carried);
    assert_eq!(shown(&world), before, "only what was there");
    sh(&world.gateway, "tc qdisc del dev br0 clsact && tc qdisc add dev br0 ingress");
    let refused = world.gateway.run(|| weir_fastpath::Fastpath::load(EARLY).unwrap().attach("br0")).unwrap();
    let Err(Error::System(why)) = refused else { panic!("{refused:?}") };
    assert!(why.to_string().contains("the qdisc ingress is in its place"), "{why}");
}
