//! The same tables over packet sockets: the reference NAT as a hop of weir's lab says on the wire what it says in memory.

mod reference;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reference::combinations::{CLASSES, Draws};
use reference::memory::Memory;
use reference::wire::Wire;
use reference::wire64::{self, Flaw, Translator};
use reference::{Behaviour, Defect};
use weir_lab::{Family, Lab, LabOptions, SiteSpec, Topology};
use weir_nat::lab::LabEnds;
use weir_nat::{Compliance, Ends, Observations, Table, measure};
use weir_sys::sched::go_first;
use weir_sys::{Stop, privilege};
use weir_testkit::{holds, measured};

fn lab(name: &str, sites: usize, family: Family) -> Lab {
    let specs: Vec<SiteSpec> = (0..sites)
        .map(|n| SiteSpec {
            name: format!("s{n}"),
            topology: Topology::Routed,
            return_route: false,
            wan: false,
        })
        .collect();
    let options = LabOptions { family, ..LabOptions::default() };
    Lab::build(&format!("test-nat-{name}-{}", std::process::id()), &options, &specs).unwrap()
}

fn on_the_wire(site: &weir_lab::Site, behaviour: Behaviour, idle: Duration) -> Observations {
    let limits = Memory::new(behaviour.clone(), idle).conditions().limits;
    let _nat = Wire::start(site, behaviour);
    let mut ends = LabEnds::attach(site, limits, &Stop::default()).unwrap();
    measure(&mut ends, &mut |_| true).unwrap()
}

/// The same NAT behind a translator of headers: the inside is of IPv6.
fn nat64_on_the_wire(site: &weir_lab::Site, behaviour: Behaviour, flaws: &[Flaw]) -> Observations {
    wire64::prepare(site);
    let limits = Memory::new(behaviour.clone(), Duration::ZERO).conditions().limits;
    let _nat = Wire::translating(site, behaviour, Translator { flaws: flaws.to_vec() });
    let prefix = wire64::PREFIX_TEXT.to_owned().try_into().unwrap();
    let outside = [10, 11].map(|host| Ipv4Addr::new(198, 19, 0, host));
    let mut ends = LabEnds::attach_nat64(site, outside, prefix, limits, &Stop::default()).unwrap();
    measure(&mut ends, &mut |_| true).unwrap()
}

fn verdicts(observations: &Observations) -> BTreeMap<&'static str, Compliance> {
    let lines = Table::of(observations).rows;
    lines.into_iter().map(|line| (line.id, line.judgement.verdict)).collect()
}

/// How many sites measure at a time: they go first of all on the machine, so more of them would make each other late.
const AT_ONCE: usize = 30;
/// One test at a time, for the same reason.
static TURN: Mutex<()> = Mutex::new(());

/// The behaviours, each in a site of its own.
fn compare(name: &str, behaviours: &[Behaviour], idle: Duration) {
    each_of(name, Family::Ipv4, behaviours, |site, behaviour| {
        let wire = on_the_wire(site, behaviour.clone(), idle);
        let memory = measure(&mut Memory::new(behaviour.clone(), idle), &mut |_| true).unwrap();
        assert_eq!(verdicts(&wire), verdicts(&memory), "{behaviour:?}: {wire:#?}");
    });
}

/// Each case in a site of its own, several at a time.
fn each_of<C: Sync>(name: &str, family: Family, cases: &[C], check: impl Fn(&weir_lab::Site, &C) + Sync) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = lab(name, cases.len(), family);
    let left = Mutex::new(lab.sites().iter().zip(cases));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                // Both ends of the path and the NAT measure time: no other work makes them late.
                go_first().unwrap();
                while let Some((site, case)) = next(&left) {
                    check(site, case);
                }
            });
        }
    });
}

fn next<T>(left: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    left.lock().unwrap().next()
}

#[test]
fn root_all_nine_classes_on_the_wire() {
    if privilege::test_needs_root() {
        return;
    }
    let all = CLASSES.iter().flat_map(|mapping| CLASSES.iter().map(|filtering| (*mapping, *filtering)));
    let behaviours: Vec<Behaviour> =
        all.map(|(mapping, filtering)| Behaviour { mapping, filtering, ..Behaviour::default() }).collect();
    compare("classes", &behaviours, Duration::ZERO);
}

#[test]
fn root_defects_on_the_wire() {
    if privilege::test_needs_root() {
        return;
    }
    let behaviours: Vec<Behaviour> = Defect::ALL.into_iter().map(Behaviour::with).collect();
    compare("defects", &behaviours, Duration::ZERO);
}

/// Both inside hosts are of IPv6, and what comes from outside is of IPv4: damaged errors, too.
#[test]
fn root_defects_of_a_nat64_on_the_wire() {
    if privilege::test_needs_root() {
        return;
    }
    let flaws = [Flaw::QuoteKept, Flaw::PseudoHeaderForgotten, Flaw::ShortQuotesDropped];
    let flawed = flaws.into_iter().map(|flaw| (Behaviour::default(), vec![flaw]));
    let defects = Defect::ALL.into_iter().map(|defect| (Behaviour::with(defect), Vec::new()));
    let cases: Vec<(Behaviour, Vec<Flaw>)> = defects.chain(flawed).collect();
    each_of("defects64", Family::Ipv6, &cases, |site, (behaviour, flaws)| {
        let wire = nat64_on_the_wire(site, behaviour.clone(), flaws);
        let translator = Translator { flaws: flaws.clone() };
        let mut memory = Memory::nat64(behaviour.clone(), translator, Duration::ZERO);
        let memory = measure(&mut memory, &mut |_| true).unwrap();
        assert_eq!(verdicts(&wire), verdicts(&memory), "{behaviour:?} {flaws:?}: {wire:#?}");
    });
}

#[test]
fn root_combinations_on_the_wire() {
    if privilege::test_needs_root() {
        return;
    }
    let mut draws = Draws::from_seed(0x1234_5678);
    let behaviours: Vec<Behaviour> = (0..40).map(|_| draws.behaviour()).collect();
    compare("combinations", &behaviours, Duration::ZERO);
}

#[test]
fn root_soak_combinations_on_the_wire() {
    if privilege::test_needs_root() {
        return;
    }
    for seed in 1..=5 {
        let mut draws = Draws::from_seed(seed);
        let behaviours: Vec<Behaviour> = (0..40).map(|_| draws.behaviour()).collect();
        compare(&format!("combinations-{seed}"), &behaviours, Duration::ZERO);
    }
}

#[test]
fn root_measured_idle_times_on_the_wire() {
    if privilege::test_needs_root() {
        return;
    }
    let [udp_unanswered, udp_answered] = [Duration::from_secs(2), Duration::from_millis(4500)];
    let limit = Duration::from_secs(7);
    let behaviours: Vec<Behaviour> = [Vec::new(), vec![Defect::NoRefreshFromInside]]
        .into_iter()
        .map(|defects| Behaviour { udp_unanswered, udp_answered, defects, ..Behaviour::default() })
        .collect();
    measured(1, 1, |_| holds(|| compare("idle", &behaviours, limit)));
}
