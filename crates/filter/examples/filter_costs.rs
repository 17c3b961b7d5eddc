//! What the filter costs: loading, replacing and memory by the number of prefixes, and the time for a packet with and without
//! established connections first.
//!
//! `cargo run --release -p weir-filter --example filter_costs`, as root. Lists are made up: prefixes that lie apart, nine in ten
//! a /24, the others a /25. Times of packets are the kernel's own mean over a million runs of the program on one packet
//! (BPF_PROG_TEST_RUN), which is always in the cache; and over single runs after as much memory was read as drives everything out
//! of a core's first cache, which contain reading the clock twice. Programs that do nothing show how much of it is being called.
//! What a flood of drawn addresses costs is for `weir bench country-filter`. Rows are measured in turn, again and again; shown are
//! the median and the extremes.

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, ExitCode};
use std::time::Instant;

use weir_bpf::{Loader, ProgramFd, test_run};
use weir_filter::{Action, At, BpfError, Class, Compiled, Direction, Filter, Options, XdpMode};
use weir_netlink::conntrack::{Conntrack, NewEntry};
use weir_prefix::Ranges;
use weir_sys::NetNs;

const SIZES: [u32; 5] = [1, 2860, 28_000, 172_000, 1_000_000];
const ROUNDS: usize = 11;
const RUNS: u32 = 1_000_000;
/// Single runs of a turn, and the memory that is read before each.
const SINGLE_RUNS: usize = 300;
const DRIVES_OUT: usize = 512 << 10;
const ACTIONS: [Action; 2] = [Action::Drop, Action::Allow];

/// Prefixes that lie apart, shifted a little by `round`, so that lists differ.
fn class(prefixes: u32, round: u32) -> Class {
    let one = |n: u32| {
        let first = (1 << 24) + n * 15 * 256 + round * 256;
        let half = if n % 10 == 9 { 128 } else { 0 };
        (first + half, first + 255)
    };
    Class { v4: Ranges::new((0..prefixes).map(one)), ..Class::default() }
}

fn tables(prefixes: u32, round: u32) -> Compiled {
    Compiled::of(&[class(prefixes, round)]).expect("one list has room")
}

fn ms(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// Median, least and most.
fn words(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    format!("{:.1} [{:.1}, {:.1}]", values[values.len() / 2], values[0], values[values.len() - 1])
}

fn loading() -> Result<(), BpfError> {
    println!(
        "{:>9}  {:>22}  {:>22}  {:>22}  {:>10}",
        "prefixes", "tables, ms", "load, ms", "swap, ms", "memory"
    );
    let mut rows: Vec<[Vec<f64>; 3]> = SIZES.iter().map(|_| Default::default()).collect();
    let mut memory = vec![0; SIZES.len()];
    for round in 0..ROUNDS as u32 {
        for (row, prefixes) in SIZES.into_iter().enumerate() {
            let begun = Instant::now();
            let (first, second) = (tables(prefixes, 0), tables(prefixes, round % 14 + 1));
            rows[row][0].push(ms(begun) / 2.0);
            let begun = Instant::now();
            let mut filter = Filter::load(&first, &ACTIONS, 0)?;
            rows[row][1].push(ms(begun));
            let begun = Instant::now();
            filter.swap(&second, &ACTIONS)?;
            rows[row][2].push(ms(begun));
            memory[row] = filter.memory_bytes()?;
        }
    }
    for ((prefixes, row), memory) in SIZES.into_iter().zip(rows).zip(memory) {
        let [tables, load, swap] = row.map(words);
        let memory = format!("{:.1} MiB", memory as f64 / f64::from(1 << 20));
        println!("{prefixes:>9}  {tables:>22}  {load:>22}  {swap:>22}  {memory:>10}");
    }
    Ok(())
}

/// A TCP packet of a connection that is there already.
fn packet(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    if let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) {
        bytes.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
        bytes.extend(source.octets());
        bytes.extend(destination.octets());
    }
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    bytes
}

fn packets() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let rule = "add table inet t; add chain inet t c { type filter hook input priority 0; }; \
                add rule inet t c ct state established accept";
    if !Command::new("nft").arg(rule).status()?.success() {
        return Err("nft: it is needed to have connections tracked".into());
    }
    // The tenth prefix is the second half of 1.0.135.0/24.
    let [listed, in_part, stranger, own] =
        ["1.0.0.9:443", "1.0.135.200:443", "198.18.9.9:443", "198.18.0.1:40000"]
            .map(str::parse::<SocketAddr>);
    let (listed, in_part, stranger, own) = (listed?, in_part?, stranger?, own?);
    Conntrack::open()?.insert([NewEntry::tcp(own, stranger, 3)])?;
    let tables = tables(172_000, 0);
    let plain = Filter::load(&tables, &ACTIONS, 0)?;
    let options = Options { sample: 0, established_first: true };
    let tracking = Filter::load_with(&tables, &ACTIONS, options)?;
    let nothing =
        Loader::unpack("nothing", include_bytes!(concat!(env!("OUT_DIR"), "/nothing.bpf.z")))?.load()?;
    let (nothing_at_tc, nothing_at_xdp) =
        (nothing.program("nothing_at_tc")?, nothing.program("nothing_at_xdp")?);
    let (tc, xdp) = (At::Tc(Direction::Ingress), At::Xdp(XdpMode::Native));
    let ask = |filter: &'static str, at, from| Row { name: filter, program: Program::Filter(at), from };
    let rows = [
        Row { name: "nothing, at tc", program: Program::Nothing(&nothing_at_tc), from: listed },
        ask("list alone, at tc, listed", (&plain, tc), listed),
        ask("list alone, at tc, listed with a part of its /24", (&plain, tc), in_part),
        ask("list alone, at tc, refused", (&plain, tc), stranger),
        Row { name: "nothing, at XDP", program: Program::Nothing(&nothing_at_xdp), from: listed },
        ask("list alone, at XDP, listed", (&plain, xdp), listed),
        ask("list alone, at XDP, listed with a part of its /24", (&plain, xdp), in_part),
        ask("list alone, at XDP, refused", (&plain, xdp), stranger),
        ask("established first, listed, not in the table", (&tracking, tc), listed),
        ask("established first, in the table", (&tracking, tc), stranger),
    ];
    let memory = vec![1_u8; DRIVES_OUT];
    let mut times: Vec<[Vec<f64>; 2]> = rows.iter().map(|_| Default::default()).collect();
    for _ in 0..ROUNDS {
        for (times, row) in times.iter_mut().zip(&rows) {
            let packet = packet(row.from, own);
            times[0].push(row.program.run(&packet, RUNS)?);
            let mut sum = 0.0;
            for _ in 0..SINGLE_RUNS {
                std::hint::black_box(memory.iter().step_by(64).map(|b| u64::from(*b)).sum::<u64>());
                sum += row.program.run(&packet, 1)?;
            }
            times[1].push(sum / SINGLE_RUNS as f64);
        }
    }
    println!(
        "\n{:>50}  {:>20}  {:>24}",
        "a packet, 172,000 prefixes, ns", "in the cache", "not in the first cache"
    );
    for (row, times) in rows.iter().zip(times) {
        let [warm, cold] = times.map(words);
        println!("{:>50}  {warm:>20}  {cold:>24}", row.name);
    }
    Ok(())
}

/// What is asked.
enum Program<'a> {
    Nothing(&'a ProgramFd),
    Filter((&'a Filter, At)),
}

impl Program<'_> {
    /// Mean time of a run, ns.
    fn run(&self, packet: &[u8], repeat: u32) -> Result<f64, BpfError> {
        let run = match self {
            Program::Nothing(program) => test_run(program, packet, 0, repeat)?,
            Program::Filter((filter, at)) => filter.run(*at, packet, repeat)?,
        };
        Ok(run.duration_ns.into())
    }
}

/// A program, and where the packet comes from that it is asked about.
struct Row<'a> {
    name: &'static str,
    program: Program<'a>,
    from: SocketAddr,
}

fn main() -> ExitCode {
    println!("{ROUNDS} rounds; median [least, most]");
    let outcome = loading().map_err(Into::into).and_then(|()| NetNs::create()?.run(packets)?);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
