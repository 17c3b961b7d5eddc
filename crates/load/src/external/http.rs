//! ab and wrk, against the server that weir's own `http` workload has.

use std::net::SocketAddr;
use std::time::Duration;

use weir_record::{Better, Fault, FaultCode, MetricDef, Unit};

use super::iperf3::seconds;
use super::{External, Program};
use crate::child::{Finished, start, words};
use crate::http::{Http, add_server_cpu, shared_metrics};
use crate::latency::per_second;
use crate::part::sum;
use crate::rr::in_range;
use crate::{Engine, Error, Part, Setting};

/// Connections at a time when none are set.
const CONNECTIONS: u32 = 10;

/// How long the client may take to end after its time: what is still to be answered, and ab's sorting.
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests a second beyond which ab would end before its time: it wants a number, and memory for each (32 bytes).
const MOST_PER_SECOND: u64 = 500_000;

/// The workload whose server this one has.
pub(super) fn server(work: &External) -> Http {
    let own = Http::default();
    Http {
        server: work.server.unwrap_or_default(),
        body_bytes: work.body_bytes.unwrap_or(own.body_bytes),
        connections: work.connections.unwrap_or(CONNECTIONS),
        threads: work.threads.unwrap_or(1),
        keep_alive: work.keep_alive.unwrap_or(true),
        ..own
    }
}

/// The first of the options that are set and that only these programs have.
pub(super) fn first_option(work: &External) -> Option<&'static str> {
    [
        ("server", work.server.is_some()),
        ("body-bytes", work.body_bytes.is_some()),
        ("connections", work.connections.is_some()),
        ("threads", work.threads.is_some()),
        ("keep-alive", work.keep_alive.is_some()),
        ("requests", work.requests.is_some()),
    ]
    .into_iter()
    .find_map(|(key, set)| set.then_some(key))
}

pub(super) fn describe(work: &External) -> String {
    let like = server(work);
    let kept = if like.keep_alive { "keep-alive" } else { "a connection for each request" };
    let s = if like.connections == 1 { "" } else { "s" };
    let mut text = format!("{} HTTP, {kept}, {} connection{s}", work.program.name(), like.connections);
    if like.threads > 1 {
        text += &format!(" on {} threads", like.threads);
    }
    if !work.args.is_empty() {
        text += &format!(", {}", work.args.join(" "));
    }
    text
}

pub(super) fn validate(work: &External) -> Result<(), String> {
    let default = External::default();
    for (key, set) in [
        ("protocol", work.protocol != default.protocol),
        ("direction", work.direction != default.direction),
        ("streams", work.streams != default.streams),
        ("payload-bytes", work.payload_bytes.is_some()),
        ("rate-bps", work.rate_bps != default.rate_bps),
        ("window-bytes", work.window_bytes.is_some()),
    ] {
        if set {
            return Err(format!("{key}: only with program = \"iperf3\""));
        }
    }
    // ab's own limit (MAX_CONCURRENCY).
    in_range("connections", work.connections.unwrap_or(CONNECTIONS), 1..=20_000)?;
    if work.program == Program::Ab && work.threads.is_some() {
        return Err("threads: ab has one".into());
    }
    match work.requests {
        Some(_) if work.program == Program::Wrk => {
            return Err("requests: wrk has a duration only; use program = \"ab\"".into());
        }
        Some(n) if !(1..=100_000_000).contains(&n) => {
            return Err(format!("requests = {n} is out of range: valid is 1 to 100000000"));
        }
        _ => {}
    }
    let like = server(work);
    if work.program == Program::Wrk && like.threads > like.connections {
        return Err(format!("threads = {}: wrk wants at least as many connections", like.threads));
    }
    like.validate()
}

pub(super) fn metrics() -> Vec<MetricDef> {
    let help = |share: &str| {
        format!("What the program says that {share} of its requests took at most; ab in whole milliseconds.")
    };
    let reported = |name: &str, label: &str, share: &str| {
        MetricDef::value(name, label, Unit::Ns, Better::Lower, &help(share)).detail()
    };
    let mut all = shared_metrics();
    all.push(reported("reported_p50_ns", "reported p50", "half"));
    all.push(reported("reported_p99_ns", "reported p99", "99%"));
    all
}

fn args(work: &External, setting: &Setting, target: SocketAddr) -> Vec<String> {
    let like = server(work);
    let time = seconds(setting.duration, 1);
    let url = format!("http://{target}{}", like.path(setting));
    let mut args: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|w| (*w).to_owned()));
    let connections = like.connections.to_string();
    match work.program {
        Program::Wrk => {
            add(&[
                "-t",
                &like.threads.to_string(),
                "-c",
                &connections,
                "-d",
                &format!("{time}s"),
                "--latency",
            ]);
            if !like.keep_alive {
                add(&["-H", "Connection: close"]);
            }
        }
        _ => {
            // -t sets -n too, so this order.
            let requests = work.requests.unwrap_or(MOST_PER_SECOND * time);
            // -r: a broken connection is counted and not the end of all.
            add(&["-q", "-r", "-t", &time.to_string(), "-n", &requests.to_string(), "-c", &connections]);
            if like.keep_alive {
                add(&["-k"]);
            }
        }
    }
    args.extend(work.args.iter().cloned());
    args.push(url);
    args
}

/// Run the client to its end.
pub(super) fn client(work: &External, setting: &Setting, target: SocketAddr) -> Result<Part, Error> {
    let program = work.program.name();
    let failed = |reason: String| Error::Program { program: program.to_owned(), reason };
    let child = start(program, &args(work, setting, target), &setting.cpus)?;
    let limit = Duration::from_secs(seconds(setting.duration, 1)) + PATIENCE;
    let (ended, stdout, stderr) = match child.finish(program, &setting.stop, limit)? {
        Finished::Ended(ended, stdout, stderr) => (ended, stdout, stderr),
        Finished::Stopped => {
            let detail = format!("{program} was stopped before its end");
            let fault = Fault::void(FaultCode::Interrupted, "initiator", detail);
            return Ok(Part { faults: vec![fault], ..Part::default() });
        }
    };
    if !ended.status.success() {
        return Err(failed(words(&stdout, &stderr)));
    }
    let said = match work.program {
        Program::Wrk => wrk(&stdout),
        _ => ab(&stdout),
    };
    let said =
        said.ok_or_else(|| failed(format!("its report cannot be read: {}", words(&stdout, &stderr))))?;
    Ok(said.into_part(ended.cpu))
}

/// What a program said.
#[derive(Debug, Clone, PartialEq, Default)]
struct Said {
    /// Whole responses of status 2xx or 3xx, and whatever else became of requests.
    ok: f64,
    failed: f64,
    seconds: f64,
    p50_ns: Option<f64>,
    p99_ns: Option<f64>,
}

impl Said {
    fn into_part(self, cpu: Duration) -> Part {
        let mut part = Part { cpu_s: cpu.as_secs_f64(), ..Part::default() };
        part.set("ok", self.ok);
        part.set("failed", self.failed);
        part.set("window_s", self.seconds);
        for (name, value) in [("reported_p50_ns", self.p50_ns), ("reported_p99_ns", self.p99_ns)] {
            if let Some(ns) = value {
                part.set(name, ns);
            }
        }
        part
    }
}

/// The number behind a label at the beginning of a line.
fn labelled(text: &str, label: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

/// `ab`: a label, a colon, a number.
fn ab(text: &str) -> Option<Said> {
    let complete = labelled(text, "Complete requests:")?;
    let failed = labelled(text, "Failed requests:")? + labelled(text, "Non-2xx responses:").unwrap_or(0.0);
    let quantile = |label: &str| labelled(text, label).map(|ms| ms * 1e6);
    Some(Said {
        ok: (complete - failed).max(0.0),
        failed,
        seconds: labelled(text, "Time taken for tests:").filter(|s| *s > 0.0)?,
        p50_ns: quantile("50%"),
        p99_ns: quantile("99%"),
    })
}

/// `wrk`: `156913 requests in 1.10s, 127.35MB read`, errors in lines of their own.
fn wrk(text: &str) -> Option<Said> {
    let line = text.lines().find(|line| line.contains(" requests in "))?;
    let mut fields = line.split_whitespace();
    let all: f64 = fields.next()?.parse().ok()?;
    let seconds = in_seconds(fields.nth(2)?.trim_end_matches(','))?;
    let other = labelled(text, "Non-2xx or 3xx responses:").unwrap_or(0.0);
    let errors = text.lines().find_map(|line| line.trim_start().strip_prefix("Socket errors:"));
    let errors: f64 = errors.map_or(0.0, |list| {
        list.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<f64>().ok()).sum()
    });
    let quantile = |label: &str| {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
        in_seconds(line.trim()).map(|s| s * 1e9)
    };
    Some(Said {
        ok: (all - other).max(0.0),
        failed: other + errors,
        seconds: Some(seconds).filter(|s| *s > 0.0)?,
        p50_ns: quantile("50%"),
        p99_ns: quantile("99%"),
    })
}

/// wrk's units of time: `us`, `ms`, `s`, `m`, `h` (its src/units.c).
fn in_seconds(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * factor)
}

pub(super) fn combine(initiators: &[Part], responders: &[Part]) -> Part {
    let parts = || initiators.iter().chain(responders);
    let mut trial = Part { faults: parts().flat_map(|p| p.faults.clone()).collect(), ..Part::default() };
    trial.cpu_s = parts().map(|p| p.cpu_s).sum();
    let (ok, failed) = (sum(initiators, "ok"), sum(initiators, "failed"));
    if ok == 0.0 {
        if trial.faults.is_empty() {
            let detail = format!("not one good response, {failed} failures");
            trial.faults.push(Fault::void(FaultCode::External, "initiator", detail));
        }
        return trial;
    }
    trial.set("ok", ok);
    trial.set("requests_per_second", per_second(initiators, "ok"));
    trial.set("failed_ratio", failed / (ok + failed));
    trial.set("client_cpu_ns_per_request", initiators.iter().map(|p| p.cpu_s).sum::<f64>() * 1e9 / ok);
    add_server_cpu(&mut trial, responders, ok);
    // Quantiles of several initiators cannot be merged without their distributions.
    if let [only] = initiators {
        for name in ["reported_p50_ns", "reported_p99_ns"] {
            if let Some(ns) = only.values.get(name) {
                trial.set(name, *ns);
            }
        }
    }
    trial
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ab 2.3's own words, shortened.
    const AB: &str = "Concurrency Level:      10\nTime taken for tests:   0.500 seconds\nComplete requests:      1000\n\
        Failed requests:        3\n   (Connect: 0, Receive: 0, Length: 3, Exceptions: 0)\nNon-2xx responses:      7\n\
        Requests per second:    2000.00 [#/sec] (mean)\n\nPercentage of the requests served within a certain time (ms)\n\
        \x20 50%      4\n  66%      5\n  99%     11\n 100%     12 (longest request)\n";

    /// wrk 4.1's own words, shortened.
    const WRK: &str = "Running 1s test @ http://127.0.0.1:18080/none\n  1 threads and 10 connections\n\
        \x20 Latency Distribution\n     50%   58.00us\n     75%   59.00us\n     90%    1.50ms\n     99%    0.81s\n\
        \x20 166634 requests in 1.10s, 48.94MB read\n  Socket errors: connect 1, read 2, write 3, timeout 4\n\
        \x20 Non-2xx or 3xx responses: 634\nRequests/sec: 166602.01\n";

    #[test]
    fn reports_are_read() {
        let said = ab(AB).unwrap();
        assert_eq!((said.ok, said.failed, said.seconds), (990.0, 10.0, 0.5));
        assert_eq!((said.p50_ns, said.p99_ns), (Some(4e6), Some(11e6)));
        let said = wrk(WRK).unwrap();
        assert_eq!((said.ok, said.failed), (166_000.0, 644.0));
        assert!((said.seconds - 1.1).abs() < 1e-9);
        assert!((said.p50_ns.unwrap() - 58e3).abs() < 1e-3 && (said.p99_ns.unwrap() - 0.81e9).abs() < 1.0);
    }

    #[test]
    fn other_words_are_no_report() {
        for text in [
            "",
            "apr_socket_recv: Connection refused (111)",
            "0 requests in , 0.00B read",
            "x requests in 1.0s, 1B read",
        ] {
            assert_eq!((ab(text), wrk(text)), (None, None), "{text}");
        }
    }
}
