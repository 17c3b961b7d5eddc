//! Losses that a test plants, one hop before and one hop behind the gateway, against what the gateway says of them.

mod world;

use std::time::Duration;

use weir_flows::Options;
use weir_sys::privilege::test_needs_root;
use weir_testkit::{holds, measured};
use world::PathWorld;
use world::planted::{Planted, holds_truth, see, traffic};
use world::relay::{Hold, Relay};

/// Lets everything pass.
const NONE: &str = "meta length > 200 numgen random mod 1000 < 0 counter drop";
/// Drops segments with data, two in a hundred.
const RANDOM: &str = "meta length > 200 numgen random mod 1000 < 20 counter drop";
/// The same, five in a row.
const BURSTS: &str = "meta length > 200 numgen inc mod 250 < 5 counter drop";
const FEW: &str = "meta length > 200 numgen random mod 1000 < 3 counter drop";
const MANY: &str = "meta length > 200 numgen random mod 1000 < 80 counter drop";

const PLAIN: Planted = Planted { ipv6: false, before: NONE, behind: NONE, connections: 1, by_server: false };

fn truth_of(planted: Planted) {
    println!("{planted:?}");
    see(planted).sides().iter().for_each(holds_truth);
}

fn truths_of(cases: &[Planted]) {
    if test_needs_root() {
        return;
    }
    for case in cases {
        measured(2, 4, |_| holds(|| truth_of(*case)));
    }
}

/// On no side, one, the other and both; single and in bursts; by one connection and by many; from either end; of both IP versions.
#[test]
fn root_paced_loss_is_on_its_side_and_within_the_interval() {
    truths_of(&[
        PLAIN,
        Planted { behind: BURSTS, ..PLAIN },
        Planted { before: MANY, connections: 10, ..PLAIN },
        Planted { before: BURSTS, behind: RANDOM, connections: 10, by_server: true, ..PLAIN },
        Planted { before: RANDOM, behind: RANDOM, ipv6: true, ..PLAIN },
    ]);
}

/// The other combinations. `make soak` runs it.
#[test]
fn root_soak_loss_is_on_its_side_and_within_the_interval() {
    truths_of(&[
        Planted { behind: RANDOM, ..PLAIN },
        Planted { before: RANDOM, ..PLAIN },
        Planted { before: BURSTS, ..PLAIN },
        Planted { before: RANDOM, behind: RANDOM, ..PLAIN },
        Planted { before: FEW, behind: FEW, connections: 10, ..PLAIN },
        Planted { behind: MANY, connections: 10, ..PLAIN },
        Planted { before: RANDOM, behind: BURSTS, connections: 50, ..PLAIN },
        Planted { before: RANDOM, behind: FEW, by_server: true, ..PLAIN },
    ]);
}

/// Without loss before the gateway every segment that is sent again passes it, and differs from the first copies: the sender's own
/// counter says how many there were.
#[test]
fn root_each_segment_that_is_sent_again_is_counted() {
    if test_needs_root() {
        return;
    }
    for case in [
        Planted { behind: RANDOM, ..PLAIN },
        Planted { behind: BURSTS, ..PLAIN },
        Planted { behind: MANY, connections: 10, ..PLAIN },
        Planted { behind: RANDOM, ipv6: true, ..PLAIN },
    ] {
        let seen = see(case);
        let (client, server) = (&seen.network.client_side, &seen.network.server_side);
        let counted = server.lost_to.segments + client.needless;
        assert_eq!(counted, seen.again, "{case:?}: {client:?} {server:?}");
        assert!(seen.dropped[1] > 0, "nothing was dropped: this tests nothing");
    }
}

/// One packet in twenty is overtaken, before and behind the gateway; none is lost.
#[test]
fn root_paced_reordering_is_no_loss() {
    if test_needs_root() {
        return;
    }
    let late = Hold { each: Duration::from_millis(5), one_in: 20, longer: Duration::from_millis(2) };
    for (ipv6, is_before) in [(false, true), (false, false), (true, true)] {
        measured(2, 3, |_| {
            holds(|| {
                let world = PathWorld::new(ipv6, true);
                let (router, interface) =
                    if is_before { (&world.before, "b0") } else { (&world.behind, "h0") };
                let relay = Relay::start(router, ipv6, interface, late);
                let mut watch = world.watch(Options::default());
                let again = traffic(&world, &world.listen(5001), 1, 2_000_000, false);
                let network = &watch.read().unwrap().networks[0];
                let (client, server) = (&network.client_side, &network.server_side);
                println!("before: {is_before}; sent again {again}: {client:?} {server:?}");
                assert_eq!((client.lost_from.segments, server.lost_to.segments), (0, 0));
                assert!(!is_before || client.reordered > 20, "{}", client.reordered);
                drop(relay);
            })
        });
    }
}

/// Smallest round trips are those of the path: never shorter, and not longer by more than 2 %.
#[test]
fn root_paced_smallest_round_trips_are_those_of_the_path() {
    if test_needs_root() {
        return;
    }
    let hold = |ms| Hold { each: Duration::from_millis(ms), one_in: 0, longer: Duration::ZERO };
    measured(2, 3, |_| {
        holds(|| {
            let world = PathWorld::new(false, true);
            let before = Relay::start(&world.before, false, "b0", hold(40));
            let behind = Relay::start(&world.behind, false, "h0", hold(80));
            let mut watch = world.watch(Options::default());
            traffic(&world, &world.listen(5001), 1, 300_000, false);
            traffic(&world, &world.listen(5002), 1, 300_000, true);
            let reading = watch.read().unwrap();
            for flow in &reading.flows {
                for (side, ms) in [(&flow.client_side, 40.0), (&flow.server_side, 80.0)] {
                    let smallest = side.round_trips.smallest_ns.unwrap() as f64 / 1e6;
                    println!("{smallest} ms of {ms} ms; {:?}", side.round_trips);
                    assert!(smallest >= ms && smallest <= ms * 1.02, "{smallest} ms of {ms} ms");
                }
            }
            drop((before, behind));
        })
    });
}
