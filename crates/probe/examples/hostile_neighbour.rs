//! What a hostile client of a server costs another one: `cargo run --release -p weir-probe --example hostile_neighbour -- 40` for forty
//! rounds of five seconds. Over loopback; the neighbour has an address of its own (127.0.0.2).
//!
//! In each round one client measures round trips and bulk TCP (a quarter of a second each) five times, in alternating order: without
//! a neighbour (`quiet`), with one that floods a plain program (`plain`), with one that floods another server of ours (`twin`), the same
//! again (`twin2`), and with one that floods the server itself (`here`), as it would: new connections with garbage, huge lengths, half
//! frames, half cookies, greetings of clients that go no further, or nothing at all, and datagrams of all kinds. The plain program
//! only accepts and closes, and throws datagrams away.
//!
//! On one machine a flood takes time and cores from the measurement wherever it goes, and more of them where more is done for it.
//! The twin does the same work as the server, in another process: what is between `here` and `twin` is what the flood and the
//! measurement have in common because they share a server, and what is between `twin2` and `twin` is the noise of that comparison.
//!
//! Each process is one of its own, as in real life. Words after the rounds: connections and datagrams per second (1000, 10000), and
//! the kind of flood: `all`, `garbage` (datagrams and connections that mean nothing), `halves` (frames and cookies cut short),
//! `lengths` (huge ones), `polite` (what the server takes for a client's: greetings, requests, probes) or `silence` (connections only).
//! With `apart` as the last word the client has the first core and the servers have the last one, as on machines of their own:
//! otherwise the scheduler may put both ends of a round trip on one core, where nobody has to be woken on another.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use serde_json::json;
use weir_load::{Stop, Workload};
use weir_probe::client::{Span, Visit};
use weir_probe::{Config, Limits, Server, frame};
use weir_stats::order;

/// Short, and many of them: what drifts, and on which core the scheduler puts whom, is then different in each.
const WINDOW: Duration = Duration::from_millis(250);

/// The neighbour's address.
const NEIGHBOUR: &str = "127.0.0.2:0";

/// Connections that it holds and says nothing more on.
const HELD: usize = 400;

/// Floods come in pieces of this length.
const TICK: Duration = Duration::from_millis(1);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u32| words.get(at).and_then(|w| w.parse().ok()).unwrap_or(usual);
    match words.first().map(String::as_str) {
        Some("--server") => server(),
        Some("--sink") => sink(),
        Some("--flood") => flood(&words[1], number(2, 1000), number(3, 10_000), &words[4]),
        _ => {
            let kind = words.get(3).map_or("all", String::as_str);
            assert!(kind == "all" || openings().iter().any(|(of, _)| *of == kind), "{kind}: no such flood");
            let apart = words.get(4).is_some_and(|w| w == "apart");
            let rates = [number(1, 1000), number(2, 10_000)].map(|rate| rate.to_string());
            let results = Machines::start(rates, kind, apart).run(number(0, 40));
            results.print();
        }
    }
}

/// A child ends with its parent's end of the pipe.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().lines().count();
        std::process::exit(0);
    });
}

fn server() {
    let config = Config { key: None, iperf3: true, iperf3_json: false, log: Arc::new(|_| {}) };
    let server = Server::open("127.0.0.1:0".parse().expect("an address"), Limits::default(), config);
    let server = server.expect("a port");
    println!("{}", server.address());
    end_with_parent();
    server.run(&Stop::default()).expect("a server");
}

/// The plain program: it accepts and closes, and throws datagrams away.
fn sink() {
    let (tcp, udp) = loop {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().expect("an address")) {
            break (tcp, udp);
        }
    };
    println!("{}", tcp.local_addr().expect("an address"));
    end_with_parent();
    std::thread::spawn(move || {
        let mut datagram = [0; 2048];
        while udp.recv(&mut datagram).is_ok() {}
    });
    tcp.incoming().flatten().for_each(drop);
}

/// What is sent on connections, by kind: nothing good.
fn openings() -> Vec<(&'static str, Vec<u8>)> {
    let hello = json!({"ask": "hello", "version": 1, "nonce": "00".repeat(32), "program": "neighbour"});
    let hello = [&b"weirCTL1"[..], &frame::encode(&hello, 4096).expect("a short frame")].concat();
    vec![
        ("garbage", vec![0xaa; 2000]),
        ("lengths", b"weirCTL1\xff\xff\xff\xff".to_vec()),
        ("halves", b"weirCTL1\0\0\x01\0{\"ask\":".to_vec()),
        ("garbage", b"weirTCP1aaaaaaaa".to_vec()),
        ("halves", b"abcdefghijklmnopqrst".to_vec()),
        ("lengths", b"abcdefghijklmnopqrstuvwxyz234567abcd\0\xff\xff\xff\xff".to_vec()),
        ("polite", hello),
        ("silence", Vec::new()),
    ]
}

fn datagrams() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("polite", b"9876".to_vec()),
        ("polite", b"weirKNK1aaaaaaaabbbbbbbbbbbbbbbb".to_vec()),
        ("polite", [&b"weirMTU1"[..], &[1; 200]].concat()),
        ("garbage", vec![0xaa; 1400]),
        ("halves", b"weirKNK1aaaaaaaabbbbbbbbbbbb".to_vec()),
    ]
}

/// What is of that kind.
fn of_kind(all: Vec<(&'static str, Vec<u8>)>, kind: &str) -> Vec<Vec<u8>> {
    all.into_iter().filter(|(of, _)| kind == "all" || *of == kind).map(|(_, bytes)| bytes).collect()
}

/// From the neighbour's address.
fn dial(to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &NEIGHBOUR.parse::<SocketAddr>().expect("an address"))?;
    connect(&socket, &to)?;
    Ok(socket.into())
}

/// Floods while the last line that it was sent is not empty.
fn flood(to: &str, connections: u32, datagrams_per_second: u32, kind: &str) {
    let to: SocketAddr = to.parse().expect("an address");
    let on = Arc::new(AtomicBool::new(false));
    let switch = on.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            switch.store(!line.is_empty(), Relaxed);
        }
        std::process::exit(0);
    });
    println!("{to}");
    let (openings, datagrams) = (of_kind(openings(), kind), of_kind(datagrams(), kind));
    // A kind may have no datagrams.
    let datagrams_per_second = if datagrams.is_empty() { 0 } else { datagrams_per_second };
    let udp = UdpSocket::bind(NEIGHBOUR).expect("a socket");
    let mut held = std::collections::VecDeque::new();
    let (mut begun, mut dialled, mut sent) = (Instant::now(), 0u64, 0u64);
    loop {
        std::thread::sleep(TICK);
        if !on.load(Relaxed) {
            held.clear();
            (begun, dialled, sent) = (Instant::now(), 0, 0);
            continue;
        }
        // What it could not do in time it does not make up for: the rate is a bound.
        let due = |rate: u32| (begun.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        let (mut now, most) = (due(connections), u64::from(connections / 100 + 1));
        dialled = dialled.max(now.saturating_sub(most));
        while dialled < now {
            if let Ok(mut stream) = dial(to) {
                let _ = stream.write(&openings[dialled as usize % openings.len()]);
                held.push_back(stream);
            }
            dialled += 1;
        }
        held.drain(..held.len().saturating_sub(HELD));
        now = due(datagrams_per_second);
        sent = sent.max(now.saturating_sub(u64::from(datagrams_per_second / 100 + 1)));
        while sent < now {
            let _ = udp.send_to(&datagrams[sent as usize % datagrams.len()], to);
            sent += 1;
        }
    }
}

struct Process {
    child: Child,
    input: ChildStdin,
    address: SocketAddr,
}

impl Process {
    fn start(words: &[&str]) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let (mut line, out) = (String::new(), child.stdout.take().expect("a pipe"));
        BufReader::new(out).read_line(&mut line).expect("an address");
        let input = child.stdin.take().expect("a pipe");
        Process { child, input, address: line.trim().parse().expect("an address") }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("a process that listens");
    }

    /// CPU time so far, seconds: utime and stime of proc_pid_stat(5), in hundredths.
    fn cpu_s(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / 100.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const CONDITIONS: [&str; 5] = ["quiet", "plain", "twin", "twin2", "here"];
const VALUES: [&str; 3] = ["p50", "p99", "goodput"];

/// What is compared with what.
const PAIRS: [(usize, usize); 6] = [(1, 0), (2, 0), (4, 0), (4, 1), (4, 2), (3, 2)];

/// The processes, and who is flooded in each condition.
struct Machines {
    server: Process,
    twin: Process,
    plain: Process,
    floods: [Option<Process>; 4],
}

/// What was seen: the values, and CPU time of the server, its twin, the plain program and the neighbour, in seconds.
#[derive(Default)]
struct Results {
    rounds: Vec<[[f64; 3]; 5]>,
    cpu_s: [[f64; 4]; 5],
}

/// With this thread's children on these cores.
fn on<T>(cores: &[usize], start: impl FnOnce() -> T) -> T {
    weir_sys::sched::pin_current_thread(cores).expect("cores that are there");
    start()
}

impl Machines {
    fn start(rates: [String; 2], kind: &str, apart: bool) -> Machines {
        let all = weir_sys::sched::allowed_cpus().expect("cores");
        let (first, last) = if apart { (&all[..1], &all[all.len() - 1..]) } else { (&all[..], &all[..]) };
        let [server, twin] = [(); 2].map(|()| on(last, || Process::start(&["--server"])));
        let plain = on(last, || Process::start(&["--sink"]));
        let flood =
            |to: SocketAddr| Process::start(&["--flood", &to.to_string(), &rates[0], &rates[1], kind]);
        let floods = on(&all, || [plain.address, twin.address, server.address].map(flood));
        let [at_plain, at_twin, here] = floods.map(Some);
        // The threads that measure are this one's.
        on(first, || Machines { server, twin, plain, floods: [None, at_plain, at_twin, here] })
    }

    /// The flood of a condition.
    fn flood(&mut self, which: usize) -> &mut Option<Process> {
        &mut self.floods[[0, 1, 2, 2, 3][which]]
    }

    fn used_s(&mut self, which: usize) -> [f64; 4] {
        let flood = self.flood(which).as_ref().map_or(0.0, Process::cpu_s);
        [self.server.cpu_s(), self.twin.cpu_s(), self.plain.cpu_s(), flood]
    }

    fn say(&mut self, which: usize, line: &str) {
        if let Some(flood) = self.flood(which) {
            flood.say(line);
        }
    }

    fn run(&mut self, rounds: u32) -> Results {
        let mut results = Results::default();
        for n in 0..rounds as usize {
            let mut round = [[0.0; 3]; 5];
            for step in 0..CONDITIONS.len() {
                // In another order each time, so that what drifts favours none.
                let which = if n % 2 == 0 { (n + step) % 5 } else { (n + 5 - step) % 5 };
                self.say(which, "on");
                let before = self.used_s(which);
                round[which] = measure(self.server.address);
                let after = self.used_s(which);
                self.say(which, "");
                for (sum, (after, before)) in results.cpu_s[which].iter_mut().zip(after.iter().zip(before)) {
                    *sum += after - before;
                }
                // What the neighbour holds is closed, and what the server has of it runs out.
                std::thread::sleep(Duration::from_millis(100));
            }
            for (name, [p50, p99, goodput]) in CONDITIONS.iter().zip(&round) {
                print!("{name}: {:.1} us, {:.1} us, {:.2} Gbit/s   ", p50 / 1e3, p99 / 1e3, goodput / 1e9);
            }
            println!();
            results.rounds.push(round);
        }
        results
    }
}

impl Results {
    fn print(&self) {
        for (name, cpu_s) in CONDITIONS.iter().zip(self.cpu_s) {
            let [server, twin, plain, flood] = cpu_s.map(|s| s / self.rounds.len().max(1) as f64);
            println!(
                "{name:5} CPU a round: server {server:.3} s, twin {twin:.3} s, plain program {plain:.3} s, neighbour {flood:.3} s"
            );
        }
        for (at, value) in VALUES.iter().enumerate() {
            for (a, b) in PAIRS {
                let ratios: Vec<f64> = self.rounds.iter().map(|round| round[a][at] / round[b][at]).collect();
                let median = order::median(&ratios).unwrap_or(f64::NAN);
                print!("{value:8} {:5} / {:5} = {median:.3}", CONDITIONS[a], CONDITIONS[b]);
                match order::median_interval(&ratios) {
                    Some((low, high)) => println!(" [{low:.3}, {high:.3}]"),
                    None => println!(" (from 6 rounds on with a 95 % interval)"),
                }
            }
        }
    }
}

/// p50 and p99 of round trips, ns, and the bit rate of one TCP stream.
fn measure(server: SocketAddr) -> [f64; 3] {
    let span = Span { warmup: Duration::from_millis(100), duration: WINDOW };
    let mut visit = Visit::begin(server, None, &Stop::default()).expect("a server that lets others in");
    let mut run = |work: serde_json::Value| {
        let work: Workload = serde_json::from_value(work).expect("a workload");
        visit.measure(&work, span, &Stop::default(), &mut |_| {}).expect("a measurement").trial
    };
    let rtt = run(json!({"kind": "tcp-rr"})).histograms["rtt"].answered().clone();
    let quantile = |q| rtt.quantile(q).map_or(f64::NAN, |ns| ns as f64);
    let stream = run(json!({"kind": "tcp-stream", "congestion": ""}));
    [quantile(0.5), quantile(0.99), stream.value("goodput_bps")]
}
