//! Every process of weir is killed at a random instant, over and over, while two inside hosts that use the same ports have traffic.
//!
//! WEIR_SEED chooses the instants, WEIR_KILLS their number (scripts/soak-fastpath: 200).

mod documents;
mod fastpath_world;

use std::time::{Duration, Instant};

use fastpath_world::Gateway;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_testkit::{PATIENCE, until};

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

/// Changes that make everything stale, and that raise no event of their own.
const CHANGES: [&str; 4] = [
    "ip route add 198.18.9.0/24 via 198.18.1.2 && ip route del 198.18.9.0/24",
    "ip neigh flush dev out0",
    "nft 'add chain ip nat more; delete chain ip nat more'",
    "nft 'flush chain ip nat p; add rule ip nat p oifname out0 masquerade'",
];

#[test]
fn root_killed_at_random_instants_it_leaves_nothing_and_no_packet_goes_to_another_host() {
    let Some(gateway) = Gateway::new() else { return };
    let (seed, kills) = (number("WEIR_SEED", 1), number("WEIR_KILLS", 8));
    println!("seed {seed}, {kills} kills");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let traffic =
        ["inside", "inside2"].map(|host| gateway.begin(host, "traffic", &[host, &seed.to_string()]));
    // How long it takes here until packets are carried: some kills come before that, and some later.
    let begun = Instant::now();
    let applying = gateway.world.start("applying", gateway.weir(&["apply", "--confirm-within", "1h"]));
    until("it is in effect", PATIENCE, || (!gateway.processes("fastpath hold").is_empty()).then_some(()));
    let longest = begun.elapsed().as_millis() as u64 * 2;
    gateway.run(&["rollback"]).expect(0);
    drop(applying);
    let mut in_effect = 0;
    for n in 0..kills {
        let kept = random.random_bool(0.5);
        let applying = gateway.world.start("applying", gateway.weir(&["apply", "--confirm-within", "1h"]));
        std::thread::sleep(Duration::from_millis(random.random_range(0..longest)));
        if kept {
            // Too early is a failure of this command alone.
            gateway.run(&["confirm"]);
            gateway.world.sh(CHANGES[random.random_range(0..CHANGES.len())]);
            std::thread::sleep(Duration::from_millis(random.random_range(0..500)));
        }
        in_effect += u64::from(!gateway.processes("fastpath hold").is_empty());
        gateway.kill_if_any(&["weir fastpath", "guard fastpath"]);
        drop(applying);
        until("it has ended", PATIENCE, || gateway.run(&["state"]).expect(0).stdout.is_empty().then_some(()));
        // Rolls back what was killed on the way.
        let status = gateway.run(&["status", "--json"]);
        assert!([0, 3].contains(&status.code), "kill {n}: {status:?}");
        assert!(gateway.run(&["state"]).expect(0).stdout.is_empty(), "kill {n}");
    }
    assert!(in_effect > 0, "none of {kills} kills hit a fast path in effect");
    gateway.world.write("enough", "");
    for ended in traffic.map(|host| host.end_within(PATIENCE).expect(0)) {
        let counts: Vec<u64> = ended.stdout.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let [asked, answered, wrong] = counts[..] else { panic!("{ended:?}") };
        println!("{asked} asked, {answered} answered, {wrong} wrong");
        assert_eq!(wrong, 0, "answers of the other host");
        // A few get lost while a neighbour is found anew.
        assert!(answered * 10 >= asked * 9, "{answered} of {asked} answered");
    }
    gateway.finish();
}
