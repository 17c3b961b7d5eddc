//! Measurements towards any service that listens at the target: no weir server is needed there.

use std::net::SocketAddr;
use std::time::Instant;

use weir_load::{Observer, Stop, TrialSettings, Workload};

use super::{Error, LiveSnapshot, Measured, OnSnapshot, Span, drive_beside};
use crate::key;

/// Drives a workload against a foreign responder: `tcp-connect` with `any-responder`, `http` with `server = "none"`.
///
/// # Errors
/// As [`Error`] says.
pub fn alone(
    workload: &Workload,
    target: SocketAddr,
    span: Span,
    stop: &Stop,
    watch: OnSnapshot<'_>,
) -> Result<Measured, Error> {
    let observer = Observer::watched();
    let cookie = u64::from_be_bytes(key::random()?);
    let setting = TrialSettings {
        stop: stop.clone(),
        observer: observer.clone(),
        ..TrialSettings::new(span.warmup, span.duration, cookie)
    };
    let begun = Instant::now();
    let mut snapshot = || watch(LiveSnapshot::taken(begun, &observer, Vec::new()));
    let near = drive_beside(|| workload.engine().drive(&setting, target), &mut snapshot)??;
    snapshot();
    Ok(Measured {
        workload: workload.clone(),
        notes: Vec::new(),
        trial: workload.engine().combine(std::slice::from_ref(&near), &[]),
        near,
        far: None,
        near_flows: observer.flows(),
        far_flows: Vec::new(),
    })
}
