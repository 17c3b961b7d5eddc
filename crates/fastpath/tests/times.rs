//! The time that carrying saves, by what the programs time.

mod world;

use weir_fastpath::{Options, Times};
use weir_sys::privilege::test_needs_root;
use world::{NatWorld, passes, sh};

/// A flow enters with its second packet.
const EARLY: Options = Options { connections: 1024, connections6: 1024, packets: 2, ..Options::DEFAULT };

/// More flows than packets of the kernel's way have to be timed.
const FLOWS: u16 = 60;
/// Packets of each direction after that, of which one of 256 is timed.
const PACKETS: usize = 400;

/// The times of flows through a gateway with so many rules that match none of their packets.
fn times(ipv6: bool, rules: usize) -> Times {
    let world = NatWorld::new(ipv6);
    let table = "add table inet weight\\nadd chain inet weight f { type filter hook forward priority 0; }\\n";
    let rule = format!("yes 'add rule inet weight f meta mark 77 counter' | head -n {rules}");
    sh(&world.gateway, &format!("{{ printf '{table}'; {rule}; }} | nft -f -"));
    let carried = world.carried(EARLY);
    let server = world.server_udp(5000);
    let to = server.local_addr().unwrap();
    let both = |client, packets| {
        for _ in 0..packets {
            let from = passes(client, to, &server, &[1; 100]);
            passes(&server, from, client, &[2; 120]);
        }
    };
    let clients: Vec<_> =
        (0..FLOWS).map(|n| world.udp(&world.inside[0], world.inside_addresses[0], 4000 + n)).collect();
    clients.iter().for_each(|client| both(client, 4));
    clients.iter().for_each(|client| both(client, PACKETS));
    carried.status().times
}

fn is_told(ipv6: bool) {
    let plain = times(ipv6, 0);
    let (kernel, fast) = (plain.kernels_way.unwrap(), plain.carried.unwrap());
    // Both directions teach.
    assert!((30..=u64::from(2 * FLOWS)).contains(&kernel.packets), "{plain:?}");
    let timed = u64::from(FLOWS) * 2 * PACKETS as u64 / 256;
    assert!(fast.packets <= timed + 20 && fast.packets >= timed / 2, "{plain:?}");
    assert_eq!(plain.saved_ns, Some(kernel.ns - fast.ns));
    // No packet that is carried meets a rule, and each by the kernel's way meets all of them.
    let ruled = times(ipv6, 3000);
    assert!(ruled.kernels_way.unwrap().ns > 3.0 * kernel.ns, "{plain:?} {ruled:?}");
    assert!(ruled.carried.unwrap().ns < 3.0 * fast.ns, "{plain:?} {ruled:?}");
    let saved_s = ruled.saved_s.unwrap();
    assert!(saved_s > 1e-9 * ruled.saved_interval_ns.unwrap().0 * timed as f64, "{ruled:?}");
}

#[test]
fn root_the_time_saved_grows_with_the_rules_that_carried_packets_do_not_meet() {
    if !test_needs_root() {
        is_told(false);
    }
}

#[test]
fn root_the_time_saved_is_told_of_ipv6_too() {
    if !test_needs_root() {
        is_told(true);
    }
}
