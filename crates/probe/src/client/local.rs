//! Measurements towards any service that listens at the target: no weir server is needed there.

use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use weir_load::{Observer, Stop, TrialSettings, Workload};

use super::{Error, LOOK, LiveSnapshot, Measured, OnSnapshot, Span};
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
    let near = std::thread::scope(|scope| {
        let (done, result) = channel();
        let setting = &setting;
        std::thread::Builder::new().name("drive".into()).spawn_scoped(scope, move || {
            // The receiver lives until the thread is done.
            let _ = done.send(workload.engine().drive(setting, target));
        })?;
        loop {
            let part = match result.recv_timeout(LOOK) {
                Ok(part) => Some(part?),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Io(std::io::Error::other("the measuring thread is gone")));
                }
            };
            watch(LiveSnapshot {
                elapsed: begun.elapsed(),
                near: observer.flows(),
                far: Vec::new(),
                times: observer.take_times(),
            });
            if let Some(part) = part {
                return Ok(part);
            }
        }
    })?;
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
