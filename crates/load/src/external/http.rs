//! ab and wrk, against the server that weir's own `http` workload has.

use std::net::SocketAddr;
use std::time::Duration;

use weir_record::{Better, Fault, FaultCode, MetricDef, Unit};

use super::iperf3::seconds;
use super::{External, Program, path_broke};
use crate::child::{Finished, start, words};
use crate::http::{Http, add_server_cpu, shared_metrics};
use crate::latency::per_second;
use crate::part::sum;
use crate::rr::in_range;
use crate::{Engine, Error, Part, TrialSettings};

/// Connections at a time when none are set.
const CONNECTIONS: u32 = 10;

/// How long the client may take to end after its time: what is still to be answered, and ab's sorting.
const PATIENCE: Duration = Duration::from_secs(10);

/// Seconds without any response after which ab gives up.
const SILENCE_S: u64 = 5;

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
        format!(
            "The time within which {share} of the answered requests ended, as the program reports it; ab in whole milliseconds, and left out where any failed, \
             since it counts those too."
        )
    };
    let reported = |name: &str, label: &str, share: &str| {
        MetricDef::value(name, label, Unit::Ns, Better::Lower, &help(share)).detail()
    };
    let mut all = shared_metrics();
    all.retain(|m| m.name != "failed_ratio");
    all.push(MetricDef::failure(
        "failed_ratio",
        "failed",
        ("failed", "requests"),
        "Requests and connections that the program reports as failed: broken, refused, late, of a wrong length, or of a status that is \
         not 2xx or 3xx. All, where the path let it not begin or go on. wrk does not report what was unanswered at its end.",
    ));
    all.push(reported("reported_p50_ns", "reported p50 (answered)", "half"));
    all.push(reported("reported_p99_ns", "reported p99 (answered)", "99%"));
    all
}

fn args(work: &External, setting: &TrialSettings, target: SocketAddr) -> Vec<String> {
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
            // -r: a broken connection is counted and not the end of all. -s: it says so when nothing comes any more, within our
            // own patience.
            add(&[
                "-q",
                "-r",
                "-s",
                &SILENCE_S.to_string(),
                "-t",
                &time.to_string(),
                "-n",
                &requests.to_string(),
                "-c",
                &connections,
            ]);
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
pub(super) fn client(work: &External, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
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
        let said = words(&stdout, &stderr);
        if gave_up(&said) {
            return Ok(nothing(program, &said, setting));
        }
        return Err(failed(said));
    }
    let said = match work.program {
        Program::Wrk => wrk(&stdout, server(work).connections),
        _ => ab(&stdout),
    };
    let said =
        said.ok_or_else(|| failed(format!("its report cannot be read: {}", words(&stdout, &stderr))))?;
    Ok(said.into_part(ended.cpu))
}

/// True of the last words of a program that the path did not let begin or go on: wrk's of its first connection, ab's of eleven
/// broken ones or of none that is answered.
fn gave_up(said: &str) -> bool {
    let opens = ["unable to connect to ", "apr_socket_connect():", "apr_socket_recv:", "apr_pollset_poll:"];
    opens.iter().any(|word| said.contains(word)) && path_broke(said)
}

/// Returns the result of such a program: a rate of 0 over its whole time.
fn nothing(program: &str, said: &str, setting: &TrialSettings) -> Part {
    let seconds = seconds(setting.duration, 1) as f64;
    let mut part = Said { failed: 1.0, seconds, ..Said::default() }.into_part(Duration::ZERO);
    let detail = format!("the path did not let {program} begin or go on; it counts as a rate of 0: {said}");
    part.faults.push(Fault::noted(FaultCode::External, "initiator", detail));
    part
}

/// The figures that a program printed.
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

/// `ab`: a label, a colon, a number. A broken response may be among its failed requests twice, as broken and as too short; connections
/// that failed are not among the complete ones.
fn ab(text: &str) -> Option<Said> {
    let complete = labelled(text, "Complete requests:")?;
    let failed = labelled(text, "Failed requests:")? + labelled(text, "Non-2xx responses:").unwrap_or(0.0);
    let connects = text.lines().find_map(|line| line.trim_start().strip_prefix("(Connect:"));
    let connects = connects.and_then(|rest| rest.split(',').next()?.trim().parse().ok()).unwrap_or(0.0);
    let all: f64 = complete + connects;
    // A connection that breaks at once is a quick request in its percentiles.
    let quantile = |label: &str| labelled(text, label).filter(|_| failed == 0.0).map(|ms| ms * 1e6);
    Some(Said {
        ok: (all - failed).max(0.0),
        failed: failed.min(all),
        seconds: labelled(text, "Time taken for tests:").filter(|s| *s > 0.0)?,
        p50_ns: quantile("50%"),
        p99_ns: quantile("99%"),
    })
}

/// `wrk`: `156913 requests in 1.10s, 127.35MB read`, errors in lines of their own. The requests include those that took longer
/// than its limit (`timeout`). If it prints neither a request nor an error, each connection waited in vain.
fn wrk(text: &str, connections: u32) -> Option<Said> {
    let line = text.lines().find(|line| line.contains(" requests in "))?;
    let mut fields = line.split_whitespace();
    let all: f64 = fields.next()?.parse().ok()?;
    let seconds = weir_text::time::seconds(fields.nth(2)?.trim_end_matches(','))?;
    let other = labelled(text, "Non-2xx or 3xx responses:").unwrap_or(0.0);
    let errors = text.lines().find_map(|line| line.trim_start().strip_prefix("Socket errors:")).unwrap_or("");
    let count = |word: &str| -> f64 {
        let number = errors.split(',').find_map(|e| e.trim().strip_prefix(word));
        number.and_then(|n| n.trim().parse().ok()).unwrap_or(0.0)
    };
    let late = count("timeout");
    let failed = other + late + count("connect") + count("read") + count("write");
    let quantile = |label: &str| {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
        weir_text::time::seconds(line).map(|s| s * 1e9)
    };
    Some(Said {
        ok: (all - other - late).max(0.0),
        failed: if all + failed == 0.0 { connections.into() } else { failed },
        seconds: Some(seconds).filter(|s| *s > 0.0)?,
        p50_ns: quantile("50%"),
        p99_ns: quantile("99%"),
    })
}

pub(super) fn combine(initiators: &[Part], responders: &[Part]) -> Part {
    let parts = || initiators.iter().chain(responders);
    let mut trial = Part { faults: parts().flat_map(|p| p.faults.clone()).collect(), ..Part::default() };
    trial.cpu_s = parts().map(|p| p.cpu_s).sum();
    let (ok, failed) = (sum(initiators, "ok"), sum(initiators, "failed"));
    if ok + failed == 0.0 {
        if trial.faults.is_empty() {
            let detail = "the program reports neither a response nor a failure";
            trial.faults.push(Fault::void(FaultCode::External, "initiator", detail));
        }
        return trial;
    }
    trial.set("ok", ok);
    trial.set("requests_per_second", per_second(initiators, "ok"));
    trial.set("failed", failed);
    trial.set("requests", ok + failed);
    trial.set("failed_ratio", failed / (ok + failed));
    if ok > 0.0 {
        trial.set("client_cpu_ns_per_request", initiators.iter().map(|p| p.cpu_s).sum::<f64>() * 1e9 / ok);
        add_server_cpu(&mut trial, responders, ok);
    }
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
        // Two connections failed beside the thousand requests, and each broken one is there twice.
        let broken =
            AB.replace("requests:        3", "requests:        2006").replace("Connect: 0", "Connect: 2");
        let said = ab(&broken).unwrap();
        assert_eq!((said.ok, said.failed), (0.0, 1002.0));
        assert_eq!((said.p50_ns, said.p99_ns), (None, None), "those that failed are among them");
        let whole =
            AB.replace("requests:        3", "requests:        0").replace("Non-2xx responses:      7\n", "");
        let said = ab(&whole).unwrap();
        assert_eq!((said.failed, said.p50_ns, said.p99_ns), (0.0, Some(4e6), Some(11e6)));
        let said = wrk(WRK, 10).unwrap();
        assert_eq!((said.ok, said.failed), (165_996.0, 644.0));
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
            assert_eq!((ab(text), wrk(text, 1)), (None, None), "{text}");
        }
    }

    #[test]
    fn nothing_but_failures_is_a_rate_of_nothing() {
        // wrk 4.1's own words of a server that takes connections and answers nothing.
        let silent = "Running 1s test @ http://127.0.0.1:1/\n  1 threads and 4 connections\n  0 requests in 1.00s, 0.00B read\n";
        let said = wrk(silent, 4).unwrap();
        assert_eq!((said.ok, said.failed, said.seconds), (0.0, 4.0, 1.0));
        let setting = TrialSettings::new(Duration::ZERO, Duration::from_millis(800), 1);
        for near in [said.into_part(Duration::ZERO), nothing("ab", "refused", &setting)] {
            let trial = combine(&[near], &[Part::default()]);
            assert!(!trial.faults.iter().any(|f| f.void), "{:?}", trial.faults);
            assert_eq!((trial.value("failed_ratio"), trial.value("requests") > 0.0), (1.0, true));
            assert_eq!(trial.values.get("requests_per_second"), Some(&0.0));
            assert!(!trial.values.contains_key("client_cpu_ns_per_request"));
        }
        assert!(combine(&[Part::default()], &[]).faults[0].void, "nothing is known");
    }

    #[test]
    fn only_words_about_the_path_are_a_result() {
        for said in [
            "unable to connect to 198.19.7.2:8080 Connection refused",
            "Test aborted after 10 failures apr_socket_connect(): Connection refused (111)",
            "apr_pollset_poll: The timeout specified has expired (70007)",
        ] {
            assert!(gave_up(said), "{said}");
        }
        for said in [
            "",
            "ab: wrong number of arguments",
            "unable to connect to x:1 Name or service not known",
            "socket: Too many open files (24)",
        ] {
            assert!(!gave_up(said), "{said}");
        }
    }
}
