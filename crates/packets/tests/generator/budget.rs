//! The verifier's work, which must stay far below its limit and is a measure of what each program costs.

use std::collections::BTreeMap;

use weir_bpf::{Loader, Object, Plain};
use weir_packets::shared::WeirGenerator;
use weir_sys::privilege::test_needs_root;

static GENERATOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/generator.bpf.z"));
static RECEIVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/receiver.bpf.z"));

#[test]
fn root_programs_stay_within_the_verifiers_budget() {
    if test_needs_root() {
        return;
    }
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/budget.toml")).unwrap();
    let budget: BTreeMap<String, BTreeMap<String, u32>> = toml::from_str(&text).unwrap();
    // The verifier does not look at what the generator's configuration leaves out, so the dearest counts.
    let generators = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(paced, tcp)| {
        let mut loader = Loader::unpack("generator", GENERATOR).unwrap();
        loader
            .config(&WeirGenerator { paced, tcp, deck: 1, batch: 64, reference: 1, ..Plain::zeroed() })
            .unwrap();
        loader.load().unwrap()
    });
    check(&budget["generator"], &generators);
    check(&budget["receiver"], &[Loader::unpack("receiver", RECEIVER).unwrap().load().unwrap()]);
}

fn check(budget: &BTreeMap<String, u32>, loaded: &[Object]) {
    let programs: Vec<String> =
        loaded[0].inner().progs().map(|p| p.name().to_string_lossy().into_owned()).collect();
    assert_eq!(budget.len(), programs.len(), "there are {programs:?}, the budget has {budget:?}");
    for name in programs {
        let spent = loaded.iter().map(|o| o.program(&name).unwrap().verified_instructions().unwrap());
        let (spent, most) = (spent.max().unwrap(), budget[&name]);
        println!("{name}: {spent} of {most}");
        assert!((1..=most).contains(&spent), "{name}: {spent} of {most} instructions");
    }
}
