//! What the doctor costs, measured; `scripts/bench-doctor` builds and runs it. Needs root; everything happens in network
//! namespaces that are gone when it ends.
//!
//! `cost rate [ROUNDS]`: what a gateway forwards while it throws away every seventh packet, with the doctor and without, in
//! alternating windows, and whether that is as much as it must be. On a core of its own that is more than 100,000 drops a second.
//! `cost size`: how long the analysis takes, and how much memory, on a machine with a million connections and 100 namespaces.
//! It fails if a bound is missed for certain.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_doctor::collect::{Options, Scope, Watch};
use weir_doctor::diagnosis::diagnose;
use weir_doctor::evidence::{Evidence, Plane, Sight};
use weir_stats::compare::{Comparison, compare_ratio};
use weir_sys::conntrack::{Conntrack, NewEntry};
use weir_sys::netlink::{Rtnetlink, VethEnd};
use weir_sys::sched::{allowed_cpus, pin_current_thread, thread_cpu_time};
use weir_sys::{NetNs, ProcRoot, SendBatch};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(5);
/// Batches that are forwarded for one that is thrown away. A share and not a rate, so that a machine with other work does the same
/// work with the doctor and without, if less of it.
const FORWARDED_PER_DROP: usize = 6;
/// Messages of one system call.
const BATCH: usize = 64;
/// The least that is to be forwarded with the doctor, as a share of what is forwarded without.
const LEAST_RATIO: f64 = 0.98;
/// The most that the analysis of a large machine may take.
const MOST_MS: f64 = 5000.0;
const MOST_BYTES: u64 = 200_000_000;
/// Connections, and how many namespaces besides the machine's own.
const CONNECTIONS: u64 = 1_000_000;
const NAMESPACES: usize = 100;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("rate") => rate(arguments.get(1).map_or(Ok(20), |n| n.parse())?),
        Some("size") => size(),
        _ => Err("usage: cost rate [ROUNDS] | cost size".into()),
    }
}

/// Runs a program in a namespace.
fn run(namespace: &NetNs, line: &str) -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-ec", line]);
    namespace.enter_on_spawn(&mut command);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// An initiator and a gateway, which forwards to an interface that swallows what it is given.
struct Lab {
    initiator: NetNs,
    gateway: NetNs,
    /// Counter of what the gateway has forwarded.
    forwarded: &'static str,
}

impl Lab {
    fn build() -> Result<Self> {
        let (initiator, gateway) = (NetNs::create()?, NetNs::create()?);
        let mut net = Rtnetlink::open_in(&gateway)?;
        let end = |name, namespace| VethEnd { name, namespace: Some(namespace), mtu: 1500, mac: None };
        net.create_veth(end("in0", &gateway), end("veth0", &initiator))?;
        run(
            &initiator,
            "ip link set lo up; ip address add 198.18.0.2/24 dev veth0; ip link set veth0 up; ip route add default via 198.18.0.1",
        )?;
        run(
            &gateway,
            "ip link set lo up; ip address add 198.18.0.1/24 dev in0; ip link set in0 up; sysctl -qw net.ipv4.ip_forward=1",
        )?;
        // An ifb takes whatever is not redirected to it for a mistake: it counts it as dropped, and consumes it.
        let forwarded = match run(&gateway, "ip link add out0 type dummy") {
            Ok(()) => "tx_packets",
            Err(_) => {
                run(&gateway, "ip link add out0 type ifb")?;
                "rx_dropped"
            }
        };
        run(
            &gateway,
            "ip link set out0 up; ip address add 198.19.0.1/24 dev out0; \
             ip neigh add 198.19.0.2 lladdr 02:00:00:00:00:02 nud permanent dev out0; \
             nft add table ip t; nft 'add chain ip t c { type filter hook forward priority 0; }'; \
             nft add rule ip t c udp dport 7001 drop",
        )?;
        Ok(Lab { initiator, gateway, forwarded })
    }

    fn forwarded(&self) -> Result<u64> {
        let counters = self.gateway.run(|| ProcRoot::default().net_dev())??;
        let out = counters.get("out0").ok_or("out0 is gone")?;
        Ok(if self.forwarded == "tx_packets" { out.tx_packets } else { out.rx_dropped })
    }
}

/// What the sender did so far.
#[derive(Default)]
struct Sent {
    to_drop: AtomicU64,
    cpu_ns: AtomicU64,
    stop: AtomicBool,
}

/// Sends as fast as it can. A veth hands packets over in the sender's own system call, so this thread does the gateway's work too.
fn send(lab: &Lab, sent: &Sent) -> Result<()> {
    let socket = |port| -> Result<UdpSocket> {
        let to = SocketAddr::V4(SocketAddrV4::new([198, 19, 0, 2].into(), port));
        let socket = lab.initiator.run(|| UdpSocket::bind("198.18.0.2:0"))??;
        socket.connect(to)?;
        Ok(socket)
    };
    let (through, dropped) = (socket(7000)?, socket(7001)?);
    // Moving from core to core is noise; the doctor may run wherever there is room.
    let cores = allowed_cpus()?;
    pin_current_thread(&cores[cores.len().saturating_sub(1)..])?;
    let mut batch = SendBatch::new(vec![0; BATCH * 18], 18);
    let mut count = 0_u64;
    while !sent.stop.load(Ordering::Relaxed) {
        count += batch.send(&dropped, 0, BATCH)? as u64;
        sent.to_drop.store(count, Ordering::Relaxed);
        for _ in 0..FORWARDED_PER_DROP {
            batch.send(&through, 0, BATCH)?;
        }
        sent.cpu_ns.store(thread_cpu_time().as_nanos() as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// What a window has shown: packets forwarded a second, and a second of the CPU time of whoever forwards.
struct Rate {
    per_s: f64,
    per_cpu_s: f64,
    drops_per_cpu_s: f64,
}

fn window(lab: &Lab, sent: &Sent, during: impl FnOnce() -> Result<()>) -> Result<Rate> {
    let (began, packets, cpu) = (Instant::now(), lab.forwarded()?, sent.cpu_ns.load(Ordering::Relaxed));
    let drops = sent.to_drop.load(Ordering::Relaxed);
    during()?;
    let drops = (sent.to_drop.load(Ordering::Relaxed) - drops) as f64;
    let packets = (lab.forwarded()? - packets) as f64;
    let cpu_s = (sent.cpu_ns.load(Ordering::Relaxed) - cpu) as f64 / 1e9;
    Ok(Rate {
        per_s: packets / began.elapsed().as_secs_f64(),
        per_cpu_s: packets / cpu_s,
        drops_per_cpu_s: drops / cpu_s,
    })
}

fn pause() -> Result<()> {
    std::thread::sleep(WINDOW);
    Ok(())
}

fn rate(rounds: usize) -> Result<()> {
    let lab = Lab::build()?;
    let sent = Sent::default();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&lab, &sent));
        let measured = compare(&lab, &sent, rounds);
        sent.stop.store(true, Ordering::Relaxed);
        sender.join().map_err(|_| "the sender has panicked")??;
        measured
    })
}

fn compare(lab: &Lab, sent: &Sent, rounds: usize) -> Result<()> {
    std::thread::sleep(Duration::from_millis(500));
    let (mut rates, mut per_cpu) = (Vec::new(), Vec::new());
    let (mut rates_inside, mut per_cpu_inside) = (Vec::new(), Vec::new());
    let (mut seen, mut least, mut most, mut evidence) = (0, 0, 0, Evidence::default());
    let mut drops = Vec::new();
    println!("forwarded a second: round, with the doctor, without");
    for round in 0..rounds {
        let mut inside = None;
        let mut with = || {
            window(lab, sent, || {
                let made = || sent.to_drop.load(Ordering::Relaxed);
                let before = made();
                let watch = Watch::begin(scope(lab))?;
                let begun = made();
                inside = Some(window(lab, sent, pause)?);
                least += made() - begun;
                evidence = watch.end();
                most += made() - before;
                Ok(())
            })
        };
        let without = || window(lab, sent, pause);
        // In turns: what comes second is not always the same.
        let (with, without) = if round % 2 == 0 {
            let first = with()?;
            (first, without()?)
        } else {
            let first = without()?;
            (with()?, first)
        };
        if evidence.planes.get(&Plane::Drops) != Some(&Sight::Seen) {
            return Err(format!("drops are not in sight: {:?}", evidence.planes.get(&Plane::Drops)).into());
        }
        let rule = evidence.drops.iter().filter(|d| d.reason == "NETFILTER_DROP" && d.protocol == 17);
        seen += rule.map(|d| d.packets).sum::<u64>();
        println!("{:>3} {:>9.0} {:>9.0}", round + 1, with.per_s, without.per_s);
        drops.push(without.drops_per_cpu_s);
        rates.push((with.per_s, without.per_s));
        per_cpu.push((with.per_cpu_s, without.per_cpu_s));
        let inside = inside.ok_or("no window")?;
        rates_inside.push((inside.per_s, without.per_s));
        per_cpu_inside.push((inside.per_cpu_s, without.per_cpu_s));
    }
    println!(
        "drops counted {seen}; {least} were made in the windows, and {most} with their beginnings and ends"
    );
    let mean = drops.iter().sum::<f64>() / drops.len().max(1) as f64;
    println!("drops in a second of CPU time, without the doctor: {mean:.0}");
    let cost = &evidence.cost;
    let of_bpf = cost.bpf_ns.zip(cost.bpf_runs).map_or(0.0, |(ns, runs)| ns as f64 / runs.max(1) as f64);
    println!("a drop costs {of_bpf:.0} ns in the kernel; events lost {}", cost.events_lost);
    ratios(&rates_inside, &rates, &per_cpu_inside, &per_cpu)
}

/// Of pairs with the doctor and without.
type Pairs = [(f64, f64)];

fn ratios(rates_inside: &Pairs, rates: &Pairs, per_cpu_inside: &Pairs, per_cpu: &Pairs) -> Result<()> {
    println!("with / without, in the window alone, and with its beginning and its analysis:");
    print("  forwarding rate, window", compare_ratio(rates_inside).as_ref());
    let all = compare_ratio(rates);
    print("  forwarding rate, all", all.as_ref());
    // On a machine with other work it is this that says something: the forwarding thread's own time.
    print("  forwarded in a CPU second, window", compare_ratio(per_cpu_inside).as_ref());
    print("  forwarded in a CPU second, all", compare_ratio(per_cpu).as_ref());
    match all.and_then(|c| c.interval) {
        Some((_, high)) if high < LEAST_RATIO => Err("the doctor costs more than it may".into()),
        _ => Ok(()),
    }
}

fn print(what: &str, comparison: Option<&Comparison>) {
    let Some(c) = comparison else { return println!("{what}: nothing to compare") };
    match c.interval {
        Some((low, high)) => {
            let verdict = match () {
                () if low >= LEAST_RATIO => "held",
                () if high < LEAST_RATIO => "missed",
                () => "not decided, needs more rounds or a quieter machine",
            };
            println!(
                "{what}: {:.4} [{low:.4}, {high:.4}], n = {}; at least {LEAST_RATIO}: {verdict}",
                c.estimate, c.n
            );
        }
        None => println!("{what}: {:.4}, n = {}: too few for an interval", c.estimate, c.n),
    }
}

/// The two namespaces of the lab; the programs in the kernel see all the others as well.
fn scope(lab: &Lab) -> Options {
    let these = [("initiator", &lab.initiator), ("gateway", &lab.gateway)];
    let scope = Scope::These(these.iter().map(|(name, ns)| ((*name).to_owned(), (*ns).clone())).collect());
    Options { scope, hidden: BTreeSet::new(), ..Options::default() }
}

/// A million connections, in as few namespaces as the kernel's limit of one allows, and the rest of the namespaces empty.
fn size() -> Result<()> {
    let namespaces = (0..NAMESPACES).map(|_| NetNs::create()).collect::<std::result::Result<Vec<_>, _>>()?;
    for namespace in &namespaces {
        run(
            namespace,
            "ip link set lo up; nft add table ip t; nft 'add chain ip t c { type filter hook input priority 0; }'; nft add rule ip t c ct state new accept",
        )?;
    }
    let full = fill(&namespaces)?;
    println!("{CONNECTIONS} connections in {full} of {NAMESPACES} namespaces");
    let began = Instant::now();
    let watch = Watch::begin(Options::default())?;
    println!("begun after {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    std::thread::sleep(WINDOW);
    let ended = Instant::now();
    let evidence = watch.end();
    let findings = diagnose(&evidence).findings;
    let analysis_ms = ended.elapsed().as_secs_f64() * 1e3;
    println!("analysis took {analysis_ms:.0} ms (most allowed: {MOST_MS})");
    println!("{} namespaces", evidence.namespaces.len());
    for finding in &findings {
        println!("found: {:?} {} in {}: {}", finding.severity, finding.cause, finding.place, finding.summary);
    }
    let cost = &evidence.cost;
    println!(
        "peak memory {:.0} MB (most allowed: {}), CPU {:.0} ms",
        cost.memory_bytes as f64 / 1e6,
        MOST_BYTES / 1_000_000,
        cost.cpu_ns as f64 / 1e6
    );
    let tables = evidence.namespaces.iter().filter_map(|n| Some((&n.name, n.connections.as_ref()?)));
    for (name, table) in tables.filter(|(_, t)| t.count > 0) {
        let gap = table.partial.as_deref().unwrap_or("all of them read");
        println!("{} connections in {name}: {gap}", table.count);
    }
    for (plane, sight) in &evidence.planes {
        if *sight != Sight::Seen {
            println!("{plane:?}: {sight:?}");
        }
    }
    if analysis_ms > MOST_MS || cost.memory_bytes > MOST_BYTES {
        return Err("the analysis of a large machine takes more than it may".into());
    }
    Ok(())
}

/// Makes the connections; in how many namespaces they are.
fn fill(namespaces: &[NetNs]) -> Result<usize> {
    let limit: u64 = ProcRoot::default().read("proc/sys/net/netfilter/nf_conntrack_max")?.trim().parse()?;
    let each = limit.saturating_sub(1000).min(CONNECTIONS);
    let mut left = CONNECTIONS;
    let mut full = 0;
    for namespace in namespaces {
        let n = each.min(left);
        if n > 0 {
            namespace.run(|| -> Result<()> {
                Conntrack::open()?.insert((0..n).map(entry))?;
                Ok(())
            })??;
            full += 1;
        }
        left -= n;
    }
    if left > 0 {
        return Err(format!("nf_conntrack_max is {limit}: {left} connections found no room").into());
    }
    Ok(full)
}

/// The n-th connection.
fn entry(n: u64) -> NewEntry {
    let source =
        SocketAddrV4::new([10, (n >> 16) as u8, (n >> 8) as u8, n as u8].into(), 1024 + (n % 60_000) as u16);
    let destination = SocketAddrV4::new([198, 19, 0, (n % 200) as u8].into(), 443);
    NewEntry::tcp(source.into(), destination.into(), 3)
}
