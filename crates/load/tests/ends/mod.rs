//! Both ends of a workload in one process.
#![allow(dead_code, reason = "each test program uses its own share of it")]

pub(crate) mod path;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weir_load::{Error, Part, Setting, Stop, Workload};
use weir_sys::NetNs;

/// A trial's settings: warm-up and window in milliseconds.
pub(crate) fn setting(warmup_ms: u64, duration_ms: u64) -> Setting {
    Setting {
        warmup: Duration::from_millis(warmup_ms),
        duration: Duration::from_millis(duration_ms),
        cpus: Vec::new(),
        cookie: 0x5eed_0000_0000_0000 | u64::from(std::process::id()),
        stop: Stop::default(),
    }
}

/// A workload as a scenario spells it.
pub(crate) fn workload(toml_like_json: serde_json::Value) -> Workload {
    let workload: Workload = serde_json::from_value(toml_like_json).expect("options are valid");
    workload.engine().validate().expect("options are in range");
    workload
}

/// Where the ends live.
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
pub(crate) fn parts(workload: &Workload, setting: &Setting, site: &Site) -> Result<(Part, Part), Error> {
    let own = Setting { stop: Stop::default(), ..setting.clone() };
    let responder =
        within(site.responder, || workload.engine().open(&own, SocketAddr::new(site.address, 0)))?;
    let target = SocketAddr::new(site.address, responder.port());
    let initiator = within(site.initiator, || workload.engine().drive(setting, target))?;
    Ok((initiator, responder.finish()?))
}

/// Run one trial and return its metrics.
pub(crate) fn trial(workload: &Workload, setting: &Setting, site: &Site) -> Part {
    let (initiator, responder) = parts(workload, setting, site).expect("the trial runs");
    let trial = workload.engine().combine(&[initiator], &[responder]);
    for metric in workload.engine().metrics() {
        if metric.source == weir_record::Source::Value && metric.headline {
            assert!(trial.values.contains_key(&metric.name), "no {} in {:?}", metric.name, trial.values);
        }
    }
    trial
}

fn within<T: Send>(place: Option<&NetNs>, f: impl FnOnce() -> T + Send) -> T {
    match place {
        Some(ns) => ns.run(f).expect("enter a namespace"),
        None => f(),
    }
}
