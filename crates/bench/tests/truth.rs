//! A delay that is known is measured: by the wan of a lab's site, between the engines that a bench runs.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use weir_lab::impair::{Impairment, Passed, Way};
use weir_lab::{Family, Lab, LabOptions, Role, SiteSpec, Topology};
use weir_load::{Part, TrialSettings, Workload};
use weir_sys::privilege;
use weir_sys::process::which;
use weir_testkit::{AwakeCores, measured};

/// The delay that is added in one direction, or in both.
const DELAY: Duration = Duration::from_millis(5);

/// Tests run side by side, and would measure each other.
static TURN: Mutex<()> = Mutex::new(());

/// The most that a measured delay may differ by.
const TOLERANCE: f64 = 0.02;

/// A machine that is busy with other things disturbs a measurement now and then, but not each time. An engine that
/// measures wrongly does so each time.
const NEEDED: usize = 2;
const ATTEMPTS: usize = 4;

fn lab(family: Family) -> Lab {
    let spec = SiteSpec { name: "s".into(), topology: Topology::Direct, return_route: false, wan: true };
    let options = LabOptions { family, ..LabOptions::default() };
    // The tests of this program run at the same time, and each lab is listed under a name of its own.
    static LABS: AtomicUsize = AtomicUsize::new(0);
    let number = LABS.fetch_add(1, Ordering::Relaxed);
    Lab::build(&format!("test-truth-{}-{number}", std::process::id()), &options, &[spec]).unwrap()
}

/// One trial of a workload between the ends of the lab's site.
fn trial(lab: &Lab, workload: &Workload, cookie: u64) -> Part {
    let site = lab.site("s").unwrap();
    let setting = |role| TrialSettings {
        cpus: lab.cpus(role),
        ..TrialSettings::new(Duration::from_millis(100), Duration::from_millis(700), cookie)
    };
    let bind = SocketAddr::new(site.addresses().responder, 5001);
    let far = site.host(Role::Responder).unwrap();
    let responder = far.run(|| workload.engine().open(&setting(Role::Responder), bind)).unwrap().unwrap();
    let near = site.host(Role::Initiator).unwrap();
    let initiator = near.run(|| workload.engine().drive(&setting(Role::Initiator), bind)).unwrap().unwrap();
    workload.engine().combine(&[initiator], &[responder.finish().unwrap()])
}

fn median_ns(trial: &Part, histogram: &str) -> f64 {
    let histogram = trial.histograms[histogram].answered();
    histogram.reportable_quantile(0.5).unwrap_or_else(|| panic!("only {} samples", histogram.len())) as f64
}

/// How late the element let packets go, itself: it is a thread, and a thread is woken late. The packets really had
/// this delay, on top of what was asked for.
fn late_ns(passed: &Passed) -> f64 {
    assert_eq!(passed.overflows, 0, "the element was too slow");
    passed.lateness.quantile(0.5).unwrap_or(0) as f64
}

/// The median of a trial while packets wait that long there and back, and how late they were let go, ns.
fn delayed(lab: &Lab, workload: &Workload, histogram: &str, [there, back]: [Duration; 2]) -> (f64, f64) {
    let way = |delay| Way { delay, ..Way::default() };
    let impairment = Impairment::start(lab.site("s").unwrap(), way(there), way(back)).unwrap();
    let median = median_ns(&trial(lab, workload, 1), histogram);
    let (egress, ingress) = impairment.finish().unwrap();
    (median, late_ns(&egress) + late_ns(&ingress))
}

/// The added delay by the workload, over the true one.
fn measured_share(lab: &Lab, workload: &Workload, histogram: &str, before: Duration, back: bool) -> f64 {
    let ways = |delay| [delay, if back { delay } else { Duration::ZERO }];
    let (without, late_before) = delayed(lab, workload, histogram, ways(before));
    let (with, late) = delayed(lab, workload, histogram, ways(before + DELAY));
    let added = ways(DELAY).iter().sum::<Duration>().as_nanos() as f64;
    let share = (with - without) / (added + late - late_before);
    println!(
        "{}: {without} ns, then {added} ns added and {late} ns late: {with} ns, {share:.4} of the truth",
        workload.engine().describe()
    );
    share
}

fn delays(family: Family, workload: serde_json::Value, histogram: &str, before: Duration) {
    if privilege::test_needs_root() {
        return;
    }
    if which("iptables").is_none() {
        println!("SKIP: iptables is not installed");
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // Other programs here must not be measured: this thread, and all that it starts, go first.
    if let Err(error) = rustix::process::setpriority_process(None, -15) {
        println!("not first: {error}");
    }
    let _awake = AwakeCores::start();
    let workload: Workload = serde_json::from_value(workload).unwrap();
    let lab = lab(family);
    for back in [false, true] {
        let right = |_| {
            let share = measured_share(&lab, &workload, histogram, before, back);
            (share - 1.0).abs() < TOLERANCE
        };
        measured(NEEDED, ATTEMPTS, right);
    }
}

/// Without a delay, a ping-pong's threads hardly sleep. With one, each is woken for every packet, and that takes some 20 us more
/// also on a core that is awake: the path really is slower by it. So the delay is added to a path that has one. On a schedule
/// they sleep with and without it.
const ASLEEP: Duration = DELAY;

#[test]
fn root_paced_tcp_rr_measures_an_added_delay() {
    delays(Family::Ipv4, json!({"kind": "tcp-rr"}), "rtt", ASLEEP);
}

#[test]
fn root_paced_udp_rr_measures_an_added_delay() {
    delays(Family::Ipv6, json!({"kind": "udp-rr"}), "rtt", ASLEEP);
}

#[test]
fn root_paced_udp_rr_on_a_schedule_measures_an_added_delay() {
    delays(Family::Ipv4, json!({"kind": "udp-rr", "rate-per-second": 300}), "rtt", Duration::ZERO);
}

#[test]
fn root_paced_tcp_connect_measures_an_added_delay() {
    delays(Family::Ipv4, json!({"kind": "tcp-connect", "rate-per-second": 300}), "connect", Duration::ZERO);
}
