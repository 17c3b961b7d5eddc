//! Both ends of a workload in one process.
#![allow(dead_code, reason = "each test program uses its own share of it")]

pub(crate) mod path;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use weir_load::{Engine, Error, Part, Stop, TrialSettings, Workload};
use weir_record::{FaultCode, Source};
use weir_stats::Delays;
use weir_sys::NetNs;
use weir_testkit::PATIENCE;

/// Any free port.
pub(crate) const LOOPBACK: &str = "127.0.0.1:0";

/// The mark of this process' trials.
pub(crate) fn cookie() -> u64 {
    0x5eed_0000_0000_0000 | u64::from(std::process::id())
}

/// A trial's settings: warm-up and window in milliseconds.
pub(crate) fn setting(warmup_ms: u64, duration_ms: u64) -> TrialSettings {
    TrialSettings::new(Duration::from_millis(warmup_ms), Duration::from_millis(duration_ms), cookie())
}

/// A workload as a scenario spells it.
pub(crate) fn workload(toml_like_json: serde_json::Value) -> Workload {
    let workload: Workload = serde_json::from_value(toml_like_json).expect("options are valid");
    workload.engine().validate().expect("options are in range");
    workload
}

/// The place of the ends.
pub(crate) struct Site<'a> {
    pub(crate) initiator: Option<&'a NetNs>,
    pub(crate) responder: Option<&'a NetNs>,
    pub(crate) address: IpAddr,
}

impl Site<'_> {
    /// Both in the test's own namespace.
    pub(crate) fn loopback() -> Site<'static> {
        Site { initiator: None, responder: None, address: IpAddr::from([127, 0, 0, 1]) }
    }

    pub(crate) fn loopback_v6() -> Site<'static> {
        Site { address: "::1".parse().unwrap(), ..Site::loopback() }
    }
}

/// Run one trial. Both ends get clones of `setting`; the parts are (initiator's, responder's).
pub(crate) fn parts(
    workload: &Workload,
    setting: &TrialSettings,
    site: &Site,
) -> Result<(Part, Part), Error> {
    let own = TrialSettings { stop: Stop::default(), ..setting.clone() };
    let responder =
        within(site.responder, || workload.engine().open(&own, SocketAddr::new(site.address, 0)))?;
    let target = SocketAddr::new(site.address, responder.port());
    let initiator = within(site.initiator, || workload.engine().drive(setting, target))?;
    Ok((initiator, responder.finish()?))
}

/// Run one trial and return its metrics.
pub(crate) fn trial(workload: &Workload, setting: &TrialSettings, site: &Site) -> Part {
    let (initiator, responder) = parts(workload, setting, site).expect("the trial runs");
    let trial = workload.engine().combine(&[initiator], &[responder]);
    for metric in workload.engine().metrics() {
        if metric.source == Source::Value && metric.headline {
            assert!(trial.values.contains_key(&metric.name), "no {} in {:?}", metric.name, trial.values);
        }
    }
    trial
}

/// Run one trial of an engine at a given address: initiator's part, responder's part, what they make together, and the
/// responder's port.
pub(crate) fn both_ends(engine: &dyn Engine, setting: &TrialSettings, bind: &str) -> (Part, Part, Part, u16) {
    engine.validate().unwrap();
    let bind: SocketAddr = bind.parse().unwrap();
    let responder = engine.open(setting, bind).unwrap();
    let port = responder.port();
    let initiator = engine.drive(setting, SocketAddr::new(bind.ip(), port)).unwrap();
    let responder = responder.finish().unwrap();
    let trial = engine.combine(std::slice::from_ref(&initiator), std::slice::from_ref(&responder));
    (initiator, responder, trial, port)
}

/// Every metric that the engine announces has a value, or a distribution that is not empty.
pub(crate) fn assert_all_metrics(engine: &dyn Engine, trial: &Part) {
    for metric in engine.metrics() {
        match metric.source {
            Source::Value => assert!(trial.values.contains_key(&metric.name), "{}", metric.name),
            Source::Quantile { histogram, .. } => assert!(!trial.histograms[&histogram].is_empty()),
        }
    }
}

/// How many of those that ended took no less than this.
pub(crate) fn at_least(h: &Delays, ns: u64) -> u64 {
    h.answered().buckets().filter(|&(value, _)| value >= ns).map(|(_, n)| n).sum()
}

/// A workload that takes longer than any wait here ends after a raised stop, and says that it was interrupted.
pub(crate) fn assert_stops(workload: &Workload) {
    let s = setting(0, 600_000);
    let stop = s.stop.clone();
    let raised = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        stop.raise();
        Instant::now()
    });
    let (initiator, responder) = parts(workload, &s, &Site::loopback()).unwrap();
    let took = raised.join().unwrap().elapsed();
    assert!(took < PATIENCE, "{workload:?}: {took:?}");
    println!("stopped after {took:?}");
    let t = workload.engine().combine(&[initiator], &[responder]);
    assert!(t.faults.iter().any(|f| f.code == FaultCode::Interrupted && f.void), "{:?}", t.faults);
}

fn within<T: Send>(place: Option<&NetNs>, f: impl FnOnce() -> T + Send) -> T {
    match place {
        Some(ns) => ns.run(f).expect("enter a namespace"),
        None => f(),
    }
}
