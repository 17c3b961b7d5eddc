//! Static translation against nft's rules for the same, packet by packet, and by RFC 6296's own example.
//!
//! `WEIR_STATELESS_SEED` sets the first seed, and with `WEIR_STATELESS_SECONDS` more seeds follow until that time has passed.

mod case;
#[path = "../differential/packet.rs"]
#[allow(dead_code, reason = "the other test uses the rest")]
mod packet;
mod prefixes;
mod site;

use std::time::{Duration, Instant};

use case::{Case, hide_chosen};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use site::{Arrivals, End, Site};
use weir_sys::privilege::test_needs_root;

const CASES: u32 = 1500;

/// Sends the same packets through both gateways. Errors must arrive as they are built for the other side, all else as nft leaves it.
fn compare_once(ipv6: bool, seed: u64) {
    let (plain, fast) = (Site::new(ipv6, false), Site::new(ipv6, true));
    weir_sys::sched::pin_current_thread(&weir_sys::sched::allowed_cpus().unwrap()[..1]).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut arrived, mut errors) = (0, 0);
    for number in 0..CASES {
        let case = Case::draw(&mut random, &plain.addresses, number);
        for packet in &case.packets {
            plain.send(case.from, packet);
            fast.send(case.from, packet);
        }
        let far = if case.from == End::Inside { 1 } else { 0 };
        let (mut by_nft, mut by_bpf) = (plain.settle(number), fast.settle(number));
        [&mut by_nft, &mut by_bpf].into_iter().flatten().flatten().for_each(|packet| hide_chosen(packet));
        if let Some(translated) = &case.error {
            let mut expected = Arrivals::default();
            expected[far].push(translated.clone());
            expected.iter_mut().flatten().for_each(|packet| hide_chosen(packet));
            assert_eq!(by_bpf, expected, "seed {seed}, case {number}: {case:02x?}");
            errors += 1;
        } else {
            assert_eq!(by_bpf, by_nft, "seed {seed}, case {number}: {case:02x?}");
        }
        arrived += u32::from(!by_nft[far].is_empty());
    }
    let translated = fast.translated();
    println!(
        "seed {seed}, IPv{}: {arrived} arrived, {translated} translated, {errors} errors",
        if ipv6 { 6 } else { 4 }
    );
    assert!(arrived > CASES / 2, "{arrived} cases arrived");
    assert!(errors > CASES / 20, "{errors} errors");
    // Packets that the programs leave to the rules are drawn far less often.
    assert!(translated > u64::from(CASES) / 2, "{:?}", fast.stateless.as_ref().unwrap().status());
}

fn compare(ipv6: bool) {
    if test_needs_root() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let began = Instant::now();
    let limit = Duration::from_secs(number("WEIR_STATELESS_SECONDS").unwrap_or(0));
    let mut seed = number("WEIR_STATELESS_SEED").unwrap_or(1);
    loop {
        compare_once(ipv6, seed);
        seed += 1;
        if began.elapsed() >= limit {
            return;
        }
    }
}

#[test]
fn root_ipv4_arrives_as_by_the_rules_of_nft() {
    compare(false);
}

#[test]
fn root_ipv6_arrives_as_by_the_rules_of_nft() {
    compare(true);
}
