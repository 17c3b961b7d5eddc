//! The verifier's work, which must stay far below its limit of a million instructions (BPF_COMPLEXITY_LIMIT_INSNS) and is a measure
//! of what each program costs.

use weir_bpf::Loader;
use weir_sys::privilege::test_needs_root;

/// Programs, and how many instructions the verifier may look at.
const BUDGET: [(&str, u32); 3] = [("publish_in", 10_000), ("publish_out", 10_000), ("knows_ipv6", 100)];

#[test]
fn root_programs_stay_within_the_verifiers_budget() {
    if test_needs_root() {
        return;
    }
    let bytes = include_bytes!(concat!(env!("OUT_DIR"), "/publish.bpf.z"));
    let object = Loader::unpack("publish", bytes).unwrap().load().unwrap();
    assert_eq!(object.inner().progs().count(), BUDGET.len());
    for (name, most) in BUDGET {
        let spent = object.program(name).unwrap().verified_instructions().unwrap();
        println!("{name}: {spent} of {most}");
        assert!((1..=most).contains(&spent), "{name}: {spent} of {most} instructions");
    }
}
