//! How far the round-trip times of `weir probe latency` are from those that others measure on the same link: `cargo run --release
//! -p weir-probe --example ping_pong -- 20` for twenty rounds of windows of a second each, in an order that changes with each round.
//! Needs root, for it takes place on the lab's direct link: two namespaces and a veth pair, the client on the first core and the
//! servers on the last one.
//!
//! The others are a plain ping-pong, what anyone would write with the standard library (blocking sockets, a clock before and after),
//! and sockperf where it is installed. All send 16 bytes there and back: the least that both sockperf and a request over UDP take.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_lab::{Lab, LabOptions, Role, Site, SiteSpec, Topology};
use weir_load::rr::{TcpRr, UdpRr};
use weir_load::{Stop, Workload};
use weir_probe::client::{Span, Visit};
use weir_probe::{Config, Limits, Server};
use weir_stats::{Histogram, order};
use weir_sys::netns::NetNs;
use weir_sys::process::which;
use weir_sys::sched::{allowed_cpus, pin_current_thread};

const WINDOW: Duration = Duration::from_secs(1);
const BYTES: usize = 16;
const QUANTILES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];
const PROTOCOLS: [&str; 2] = ["tcp", "udp"];
const TOOLS: [&str; 3] = ["plain", "sockperf", "weir"];

/// sockperf's servers are told their ports; nobody else is in the namespace.
const SOCKPERF_PORT: u16 = 11111;

/// p50 and p99 of a window, in nanoseconds.
type Times = [f64; QUANTILES.len()];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let address = |at: usize| SocketAddr::new(words[at].parse().expect("an address"), 0);
    match words.first().map(String::as_str) {
        Some("--echo") => echo(address(1)),
        Some("--weir") => weir(address(1)),
        rounds => Link::new().compare(rounds.and_then(|n| n.parse().ok()).unwrap_or(10)),
    }
}

/// A server's process ends with its parent's end of the pipe.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().lines().count();
        std::process::exit(0);
    });
}

/// The plain program's far end, over TCP and UDP on one port.
fn echo(any: SocketAddr) {
    let listener = TcpListener::bind(any).expect("a port");
    let address = listener.local_addr().expect("an address");
    let socket = UdpSocket::bind(address).expect("the same port for UDP");
    println!("{address}");
    end_with_parent();
    std::thread::spawn(move || {
        let mut bytes = [0; BYTES];
        while let Ok((n, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..n], from);
        }
    });
    for mut stream in listener.incoming().flatten() {
        stream.set_nodelay(true).expect("a socket");
        let mut bytes = [0; BYTES];
        while stream.read_exact(&mut bytes).and_then(|()| stream.write_all(&bytes)).is_ok() {}
    }
}

fn weir(any: SocketAddr) {
    let config = Config { key: None, iperf3: false, iperf3_json: false, log: Arc::new(|_| {}) };
    let server = Server::open(any, Limits::default(), config).expect("a port");
    println!("{}", server.address());
    end_with_parent();
    server.run(&Stop::default()).expect("a server");
}

/// A program on the far host, gone with this value.
struct Process(Child);

impl Process {
    fn start(command: &mut Command, host: &NetNs) -> Process {
        host.enter_on_spawn(command);
        Process(command.stdin(Stdio::piped()).spawn().expect("a process"))
    }

    /// This program as a server, and where it listens.
    fn server(kind: &str, host: &NetNs, at: IpAddr) -> (Process, SocketAddr) {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(kind).arg(at.to_string()).stdout(Stdio::piped());
        let mut process = Process::start(&mut command, host);
        let mut line = String::new();
        let out = process.0.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("an address");
        (process, line.trim().parse().expect("an address"))
    }

    fn sockperf_server(protocol: &str, host: &NetNs, at: IpAddr) -> Process {
        let mut command = sockperf("server", protocol, at);
        Process::start(command.stdout(Stdio::null()), host)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sockperf(mode: &str, protocol: &str, at: IpAddr) -> Command {
    let mut command = Command::new("sockperf");
    command.args([mode, "-i", &at.to_string(), "-p", &SOCKPERF_PORT.to_string()]);
    if protocol == "tcp" {
        command.arg("--tcp");
    }
    command
}

fn of_histogram(times: &Histogram) -> Times {
    QUANTILES.map(|(_, q)| times.quantile(q).expect("round trips") as f64)
}

fn plain_window(protocol: &str, target: SocketAddr) -> Times {
    let mut bytes = [0; BYTES];
    if protocol == "tcp" {
        let mut stream = TcpStream::connect(target).expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        return timed(|| stream.write_all(&[1; BYTES]).and_then(|()| stream.read_exact(&mut bytes)));
    }
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).expect("a port");
    socket.connect(target).expect("a socket");
    socket.set_read_timeout(Some(WINDOW)).expect("a socket");
    timed(|| socket.send(&[1; BYTES]).and_then(|_| socket.recv(&mut bytes)).map(drop))
}

fn timed(mut round_trip: impl FnMut() -> std::io::Result<()>) -> Times {
    let mut all = Histogram::new();
    let until = Instant::now() + WINDOW;
    loop {
        let begun = Instant::now();
        if begun >= until {
            return of_histogram(&all);
        }
        round_trip().expect("an answer");
        all.record(begun.elapsed().as_nanos() as u64);
    }
}

fn weir_window(protocol: &str, target: SocketAddr) -> Times {
    let (span, bytes) = (Span { warmup: Duration::ZERO, duration: WINDOW }, BYTES as u32);
    let work = if protocol == "tcp" {
        Workload::TcpRr(TcpRr { request_bytes: bytes, response_bytes: bytes, ..TcpRr::default() })
    } else {
        Workload::UdpRr(UdpRr { request_bytes: bytes, response_bytes: bytes, ..UdpRr::default() })
    };
    let mut visit = Visit::begin(target, None, &Stop::default()).expect("a server");
    let m = visit.measure(&work, span, &Stop::default(), &mut |_| {}).expect("a measurement");
    of_histogram(m.trial.histograms["rtt"].answered())
}

fn sockperf_window(protocol: &str, host: &NetNs, at: IpAddr) -> Times {
    let mut command = sockperf("ping-pong", protocol, at);
    command.args(["--full-rtt", "-m", &BYTES.to_string(), "-t", &WINDOW.as_secs().to_string()]);
    host.enter_on_spawn(&mut command);
    let said = command.output().expect("sockperf");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    QUANTILES.map(|(_, q)| {
        let label = format!("percentile {:.3} =", q * 100.0);
        let us = said.lines().find_map(|line| line.split_once(&label)?.1.trim().parse::<f64>().ok());
        us.unwrap_or_else(|| panic!("sockperf said no `{label}`:\n{said}")) * 1000.0
    })
}

/// The two hosts and the servers on the far one.
struct Link {
    plain: (Process, SocketAddr),
    weir: (Process, SocketAddr),
    sockperf: Option<[Process; PROTOCOLS.len()]>,
    lab: Lab,
}

fn host(site: &Site, role: Role) -> NetNs {
    site.host(role).expect("a host of a direct link").clone()
}

impl Link {
    fn new() -> Link {
        let spec =
            SiteSpec { name: "direct".into(), topology: Topology::Direct, return_route: false, wan: false };
        let lab = Lab::build("example-ping-pong", &LabOptions::default(), &[spec]).expect("a lab (root)");
        let site = &lab.sites()[0];
        let (far, at) = (host(site, Role::Responder), site.addresses().responder);
        let cores = allowed_cpus().expect("cores");
        // Children and threads have the cores of the thread that starts them.
        pin_current_thread(&cores[cores.len() - 1..]).expect("the last core");
        let [plain, weir] = ["--echo", "--weir"].map(|kind| Process::server(kind, &far, at));
        let sockperf =
            which("sockperf").map(|_| PROTOCOLS.map(|protocol| Process::sockperf_server(protocol, &far, at)));
        if sockperf.is_none() {
            println!("sockperf is not installed: nothing is compared with it");
        }
        // sockperf does not say when it listens.
        std::thread::sleep(Duration::from_secs(1));
        pin_current_thread(&cores[..1]).expect("the first core");
        Link { plain, weir, sockperf, lab }
    }

    /// A window of a tool.
    fn window(&self, tool: &str, protocol: &str) -> Times {
        let site = &self.lab.sites()[0];
        let near = host(site, Role::Initiator);
        let inside = |f: &(dyn Fn() -> Times + Sync)| near.run(f).expect("the near host");
        match tool {
            "plain" => inside(&|| plain_window(protocol, self.plain.1)),
            "weir" => inside(&|| weir_window(protocol, self.weir.1)),
            _ => sockperf_window(protocol, &near, site.addresses().responder),
        }
    }

    fn compare(&self, rounds: usize) {
        let tools: Vec<&str> =
            TOOLS.into_iter().filter(|tool| *tool != "sockperf" || self.sockperf.is_some()).collect();
        for protocol in PROTOCOLS {
            let mut times = vec![Vec::new(); tools.len()];
            for round in 0..rounds {
                // In turn, and every other time backwards, so that what drifts favours nobody.
                let mut order: Vec<usize> = (0..tools.len()).map(|i| (i + round) % tools.len()).collect();
                if round % 2 == 1 {
                    order.reverse();
                }
                for i in order {
                    times[i].push(self.window(tools[i], protocol));
                }
            }
            for (a, b) in (0..tools.len()).flat_map(|b| (b + 1..tools.len()).map(move |a| (a, b))) {
                say(&format!("{protocol}: {} / {}", tools[a], tools[b]), &times[a], &times[b]);
            }
        }
    }
}

/// The ratio of two tools' percentiles within rounds: its median, and the interval of that.
fn say(pair: &str, of: &[Times], to: &[Times]) {
    for (at, (name, _)) in QUANTILES.iter().enumerate() {
        let ratios: Vec<f64> = of.iter().zip(to).map(|(a, b)| a[at] / b[at]).collect();
        let us = |times: &[Times]| {
            order::median(&times.iter().map(|t| t[at] / 1000.0).collect::<Vec<_>>()).unwrap_or(f64::NAN)
        };
        let median = order::median(&ratios).unwrap_or(f64::NAN);
        let interval =
            order::median_interval(&ratios).map_or(String::new(), |(l, h)| format!(" [{l:.3}, {h:.3}]"));
        println!("{pair}, {name}: {median:.3}{interval}   ({:.1} us, {:.1} us)", us(of), us(to));
    }
}
