//! Lists are replaced under traffic, by each back end: every packet meets the old list or the new one.

mod allow_world;
mod documents;

use allow_world::{Flood, Gate, LISTED, UNLISTED, names};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Both families: a listed and an unlisted address each.
const ALL: [&str; 4] = [LISTED[0], LISTED[1], UNLISTED[0], UNLISTED[1]];

/// Replaces one list by another again and again under traffic: no packet from a listed address is lost, none from an unlisted
/// one comes through.
fn swap_under_traffic(backend: &str, times: usize) {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("first", 1000);
    gate.list("second", 1500);
    gate.apply("first", backend, &[]).expect(0);
    gate.run(&["confirm"]).expect(0);
    gate.apply("second", backend, &[]).expect(0);
    gate.run(&["confirm"]).expect(0);
    let folder = gate.state().join("allow");
    let policies: Vec<String> =
        names(&folder).into_iter().filter(|name| folder.join(name).is_dir()).collect();
    assert_eq!(policies.len(), 2, "{policies:?}");
    let flood = Flood::begin(&gate, &ALL, u32::MAX);
    for n in 0..times {
        // The command that apply and its undo call.
        let path = folder.join(&policies[n % 2]);
        gate.run(&["load", path.to_str().unwrap()]).expect(0);
    }
    let outcome = flood.end(true);
    // Enough that some packet met every swap.
    assert!(outcome[0].0 > 20 * times as u64, "{outcome:?}");
    for (source, (sent, received)) in ALL.iter().zip(&outcome) {
        let expected = if LISTED.contains(source) { *sent } else { 0 };
        assert_eq!(*received, expected, "{backend}, {source}: of {sent}");
    }
    gate.run(&["remove"]).expect(0);
}

#[test]
fn root_swaps_of_bpf_lose_nothing_and_let_nobody_through() {
    swap_under_traffic("bpf", 20);
}

#[test]
fn root_swaps_of_nft_lose_nothing_and_let_nobody_through() {
    swap_under_traffic("nft", 20);
}

#[test]
fn root_swaps_of_ipset_lose_nothing_and_let_nobody_through() {
    swap_under_traffic("ipset", 20);
}

/// `make soak` runs it.
#[test]
fn root_soak_fifty_swaps_of_each_lose_nothing_and_let_nobody_through() {
    for backend in allow_world::BACKENDS {
        swap_under_traffic(backend, 50);
    }
}
