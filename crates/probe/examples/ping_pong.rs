//! How far the round-trip times of `weir probe latency` are from those of a plain ping-pong: `cargo run --release -p weir-probe
//! --example ping_pong -- 20` for twenty pairs of windows of a second each, in alternating order, over loopback.
//!
//! The ping-pong is what anyone would write with the standard library: two blocking sockets, one byte there, one byte back, a clock
//! before and after. Both have their server in a process of its own, as in a real measurement.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_load::rr::TcpRr;
use weir_load::{Stop, Workload};
use weir_probe::client::{Span, Visit};
use weir_probe::{Config, Limits, Server};
use weir_stats::{Histogram, order};

const WINDOW: Duration = Duration::from_secs(1);
const QUANTILES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("--echo") => echo(),
        Some("--weir") => weir(),
        pairs => compare(pairs.and_then(|n| n.parse().ok()).unwrap_or(10)),
    }
}

/// A server's process ends with its parent's end of the pipe.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().lines().count();
        std::process::exit(0);
    });
}

fn echo() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    end_with_parent();
    for mut stream in listener.incoming().flatten() {
        stream.set_nodelay(true).expect("a socket");
        let mut byte = [0];
        while stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {}
    }
}

fn weir() {
    let config = Config { key: None, iperf3: false, iperf3_json: false, log: Arc::new(|_| {}) };
    let server = Server::open("127.0.0.1:0".parse().expect("an address"), Limits::default(), config);
    let server = server.expect("a port");
    println!("{}", server.address());
    end_with_parent();
    server.run(&Stop::default()).expect("a server");
}

struct Process(Child, SocketAddr);

impl Process {
    fn start(kind: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(kind).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let mut line = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("an address");
        let address = line.trim().parse().expect("an address");
        Process(child, address)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn plain(address: SocketAddr) -> Histogram {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let mut all = Histogram::new();
    let mut byte = [0];
    let until = Instant::now() + WINDOW;
    loop {
        let begun = Instant::now();
        if begun >= until {
            return all;
        }
        stream.write_all(&[1]).and_then(|()| stream.read_exact(&mut byte)).expect("an answer");
        all.record(begun.elapsed().as_nanos() as u64);
    }
}

fn ours(address: SocketAddr) -> Histogram {
    let span = Span { warmup: Duration::ZERO, duration: WINDOW };
    let mut visit = Visit::begin(address, None, &Stop::default()).expect("a server");
    let work = Workload::TcpRr(TcpRr::default());
    let m = visit.measure(&work, span, &Stop::default(), &mut |_| {}).expect("a measurement");
    m.trial.histograms["rtt"].clone()
}

fn compare(pairs: u32) {
    let (echo, weir) = (Process::start("--echo"), Process::start("--weir"));
    let mut ratios = vec![Vec::new(); QUANTILES.len()];
    for n in 0..pairs {
        // In alternating order, so that what drifts favours neither.
        let (a, b) = if n % 2 == 0 {
            let a = plain(echo.1);
            (a, ours(weir.1))
        } else {
            let b = ours(weir.1);
            (plain(echo.1), b)
        };
        for ((name, q), ratios) in QUANTILES.iter().zip(&mut ratios) {
            let (a, b) = (a.quantile(*q).unwrap_or(0) as f64, b.quantile(*q).unwrap_or(0) as f64);
            print!("{name} plain {a:8.0} ns  weir {b:8.0} ns  ratio {:.3}   ", b / a);
            ratios.push(b / a);
        }
        println!();
    }
    for ((name, _), ratios) in QUANTILES.iter().zip(&ratios) {
        let median = order::median(ratios).unwrap_or(f64::NAN);
        match order::median_interval(ratios) {
            Some((low, high)) => println!("{name}: weir / plain = {median:.3} [{low:.3}, {high:.3}]"),
            None => println!("{name}: weir / plain = {median:.3}"),
        }
    }
}
