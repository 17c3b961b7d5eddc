//! The initiator: its threads, and what they saw together.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use weir_record::{Fault, FaultCode};

use super::tally::HttpCounts;
use super::tls::Tls;
use super::worker::{Arrival, Expect, Job, Worker};
use super::{Http, Server};
use crate::latency::kernel::own_descriptors;
use crate::latency::schedule::Schedule;
use crate::latency::{Span, pin};
use crate::socket::precise_sleeps;
use crate::{Error, Part, TrialSettings};

/// Descriptors of this process that are no connections: standard streams, epoll, the agent's own.
const OTHER_DESCRIPTORS: u64 = 64;

pub(super) fn drive(work: &Http, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
    weir_sys::process::raise_descriptor_limit();
    has_descriptors(work)?;
    let job = job(work, setting, target)?;
    let span = Span::starting_now(setting);
    let threads = work.threads.min(work.connections);
    let tally = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for nth in 0..threads {
            let job = &job;
            let body = move || {
                own_descriptors(None);
                pin(setting, nth as usize)?;
                // A poll's time limit else ends up to 50 us late; ends with the thread.
                precise_sleeps().map_err(Error::io("set the timer slack"))?;
                worker(work, job, setting, span, (nth, threads))?.run()
            };
            let thread = std::thread::Builder::new().name("http".into()).spawn_scoped(scope, body);
            running.push(thread.map_err(Error::io("start a thread"))?);
        }
        let mut all = HttpCounts::default();
        for thread in running {
            all.merge(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok::<HttpCounts, Error>(all)
    })?;
    Ok(part(tally, work, setting, &job, &span))
}

/// Each thread has its own table of descriptors, so the limit is per thread.
fn has_descriptors(work: &Http) -> Result<(), Error> {
    let threads = work.threads.min(work.connections);
    let needed = u64::from(work.connections.div_ceil(threads)) + OTHER_DESCRIPTORS;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(Error::Resources(format!(
            "{} connections on {threads} {} need {needed} file descriptors, and this host allows {limit}: raise the hard limit \
             (`ulimit -Hn`, LimitNOFILE= of its service) or use more threads",
            work.connections,
            if threads == 1 { "thread" } else { "threads" },
        ))),
        _ => Ok(()),
    }
}

fn job(work: &Http, setting: &TrialSettings, target: SocketAddr) -> Result<Job, Error> {
    let target = match (work.server, work.port) {
        (Server::None, Some(port)) => SocketAddr::new(target.ip(), port),
        _ => target,
    };
    let tls = if work.tls {
        // weir's own server makes a certificate for the trial, which is known nowhere else.
        let insecure = work.insecure || work.server != Server::None;
        let name = work.host.as_deref().map(without_port).filter(|host| host.parse::<IpAddr>().is_err());
        Some(Tls::new(name, target.ip(), insecure, work.ca.as_deref().map(Path::new))?)
    } else {
        None
    };
    Ok(Job {
        target,
        request: request(work, setting, target),
        keep_alive: work.keep_alive,
        close: work.close,
        quick_ack: work.quick_ack,
        timeout: Duration::from_millis(work.timeout_ms.into()),
        tls,
        budget: work.requests.map(AtomicU64::new),
        expect: expect(work),
    })
}

/// weir's own server sends the whole file; of another one the scenario may say what it answers.
fn expect(work: &Http) -> Expect {
    let own = work.server != Server::None;
    let body_bytes = if own { Some(work.body_bytes.into()) } else { work.expect_body_bytes };
    Expect { statuses: work.expect_status.clone(), body_bytes }
}

/// The name in `name:port`, and the address in `[address]:port`.
fn without_port(authority: &str) -> &str {
    if let Some((address, _)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match authority.split_once(':') {
        // More than one colon: an address of IPv6 without brackets.
        Some((name, port)) if !port.contains(':') => name,
        _ => authority,
    }
}

/// The request, the same every time (RFC 9112 section 3).
fn request(work: &Http, setting: &TrialSettings, target: SocketAddr) -> Vec<u8> {
    let default_port = if work.tls { 443 } else { 80 };
    let host = match &work.host {
        Some(host) => host.clone(),
        None if target.port() == default_port && target.is_ipv6() => format!("[{}]", target.ip()),
        None if target.port() == default_port => target.ip().to_string(),
        None => target.to_string(),
    };
    let mut text = format!("GET {} HTTP/1.1\r\nHost: {host}\r\n", work.path(setting));
    for header in &work.headers {
        text += header;
        text += "\r\n";
    }
    if !work.keep_alive {
        text += "Connection: close\r\n";
    }
    text += "\r\n";
    text.into_bytes()
}

/// One of so many threads, with its share of connections and rate.
fn worker<'a>(
    work: &Http,
    job: &'a Job,
    setting: &'a TrialSettings,
    span: Span,
    (nth, of): (u32, u32),
) -> Result<Worker<'a>, Error> {
    let connections = work.connections / of + u32::from(nth < work.connections % of);
    let arrival = match work.rate_per_second {
        None => Arrival::Closed,
        Some(rate) => {
            Arrival::Open(Schedule::new(&span, f64::from(rate), nth.into(), of.into(), setting.cookie))
        }
    };
    let ramp = f64::from(work.ramp_per_second) / f64::from(of);
    Worker::new(job, setting, span, arrival, connections as usize, ramp)
}

fn part(mut tally: HttpCounts, work: &Http, setting: &TrialSettings, job: &Job, span: &Span) -> Part {
    let now = weir_sys::clock::now_ns();
    let mut window_s = span.elapsed_s(now);
    if let Some(left) = job.budget.as_ref().map(|budget| budget.load(Ordering::Relaxed)) {
        tally.unasked = left;
        if left == 0 && tally.unfinished == 0 && tally.last_ns > span.window_ns {
            // The window ended with the last response.
            window_s = (tally.last_ns - span.window_ns) as f64 / 1e9;
        }
    }
    let interrupted = setting.stop.raised();
    let mut part = tally.into_part(window_s, work.rate_per_second.is_some());
    if interrupted {
        part.faults.push(Fault::void(FaultCode::Interrupted, "initiator", "stopped before its end"));
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_s_name_has_no_port() {
        for (authority, name) in [
            ("example.net", "example.net"),
            ("example.net:8443", "example.net"),
            ("192.0.2.1:443", "192.0.2.1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("[::1]", "::1"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            assert_eq!(without_port(authority), name);
        }
    }
}
