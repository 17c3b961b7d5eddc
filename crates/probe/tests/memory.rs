//! A thousand clients that do nothing and a hundred that measure, on one server of its own process: what it needs of memory at
//! most, as the kernel counts it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use weir_load::{Stop, Workload};
use weir_probe::client::{Span, Visit};
use weir_probe::{Config, Limits, Server};

const IDLE: usize = 1000;
const ACTIVE: usize = 100;
const MOST_BYTES: u64 = 200 << 20;

/// Longer than it takes on a busy machine until all of them are at it.
const PATIENCE: Duration = Duration::from_secs(60);
const SPAN: Span = Span { warmup: Duration::ZERO, duration: PATIENCE };

fn main() {
    if std::env::args().any(|a| a == "--serve") {
        return serve();
    }
    // As the harness of other tests does, for those who run a test by its name.
    let wanted = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let name = "a_thousand_idle_and_a_hundred_active_clients_fit_in_200_megabytes";
    if wanted.is_some_and(|w| !name.contains(&w)) {
        return println!("{}", summary(0));
    }
    if std::env::args().any(|a| a == "--list") {
        return println!("{name}: test");
    }
    let bytes = measure();
    assert!(bytes < MOST_BYTES, "{bytes} bytes");
    println!("test {name} ... ok\n{} MiB\n\n{}", bytes >> 20, summary(1));
}

/// The last line of a test program, as scripts read it.
fn summary(passed: u32) -> String {
    let filtered = 1 - passed;
    format!(
        "test result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured; {filtered} filtered out; finished in 0.00s"
    )
}

fn raise_descriptor_limit() {
    let now = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now }).unwrap();
}

/// The server's process: says where it listens, and ends with its standard input.
fn serve() {
    let limits = Limits {
        sessions: 1200,
        sessions_per_client: 1200,
        idle: Duration::from_secs(300),
        memory_bytes: 1 << 30,
        ..Limits::default()
    };
    let config = Config { key: None, iperf3: true, iperf3_json: false, log: Arc::new(|_| {}) };
    let server = Server::open("127.0.0.1:0".parse().unwrap(), limits, config).unwrap();
    println!("{}", server.address());
    let stop = Stop::default();
    let end = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lines().count();
        end.raise();
    });
    server.run(&stop).unwrap();
}

struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The greatest resident set of the server, bytes.
fn measure() -> u64 {
    raise_descriptor_limit();
    let mut server = Command::new(std::env::current_exe().unwrap());
    server.arg("--serve").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = Ends(server.spawn().unwrap());
    let mut address = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let address = address.trim().parse().unwrap();
    let stop = Stop::default();
    let idle: Vec<Visit> = (0..IDLE).map(|_| Visit::begin(address, None, &stop).unwrap()).collect();
    let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for nth in 0..ACTIVE {
            let (stop, begun, done) = (&stop, &begun, &done);
            scope.spawn(move || {
                let work = match nth % 4 {
                    0 => json!({"kind": "tcp-stream", "congestion": "", "direction": "both"}),
                    1 => json!({"kind": "udp-stream", "rate-pps": 100.0, "direction": "both", "receive-buffer-bytes": 1 << 20}),
                    2 => json!({"kind": "tcp-rr", "connections": 2, "rate-per-second": 100}),
                    _ => json!({"kind": "tcp-crr", "rate-per-second": 20}),
                };
                let work: Workload = serde_json::from_value(work).unwrap();
                let mut visit = Visit::begin(address, None, stop).unwrap();
                let mut first = true;
                let result = visit.measure(&work, SPAN, stop, &mut |snapshot| {
                    if first && snapshot.near.iter().any(|f| f.bytes + f.ok > 0) {
                        first = false;
                        begun.fetch_add(1, Ordering::Relaxed);
                    }
                });
                done.fetch_add(1, Ordering::Relaxed);
                // Stopped from outside when all of them have been at it together.
                result.unwrap();
            });
        }
        let deadline = Instant::now() + PATIENCE;
        while begun.load(Ordering::Relaxed) < ACTIVE {
            assert_eq!(done.load(Ordering::Relaxed), 0, "one ended before its time");
            assert!(Instant::now() < deadline, "{} of {ACTIVE} began", begun.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.raise();
    });
    drop(idle);
    high_water(server.0.id())
}

/// VmHWM of proc_pid_status(5), bytes.
fn high_water(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}
