//! What the filter costs: loading, replacing and memory by the number of prefixes, and the time for a packet with and without
//! established connections first.
//!
//! `cargo run --release -p weir-filter --example filter_costs`, as root. Lists are made up: prefixes that lie apart, nine in ten
//! a /24, the others a /25. Times of packets are the kernel's own mean over a million runs of the program on one packet
//! (BPF_PROG_TEST_RUN), which is always in the cache: what a flood of drawn addresses costs is for `weir bench country-filter`.
//! Rows are measured in turn, again and again; shown are the median and the extremes.

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, ExitCode};
use std::time::Instant;

use weir_filter::{Action, BpfError, Class, Compiled, Direction, Filter, Options};
use weir_prefix::Ranges;
use weir_sys::NetNs;
use weir_sys::conntrack::{Conntrack, NewEntry};

const SIZES: [u32; 5] = [1, 2860, 28_000, 172_000, 1_000_000];
const ROUNDS: usize = 11;
const RUNS: u32 = 1_000_000;
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
    let rows = [
        ("list alone, listed", &plain, listed),
        ("list alone, listed with a part of its /24", &plain, in_part),
        ("list alone, refused", &plain, stranger),
        ("established first, listed, not in the table", &tracking, listed),
        ("established first, in the table", &tracking, stranger),
    ];
    let mut times: Vec<Vec<f64>> = rows.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (times, (_, filter, from)) in times.iter_mut().zip(&rows) {
            let run = filter.run(Direction::Ingress, &packet(*from, own), RUNS)?;
            times.push(run.duration_ns.into());
        }
    }
    println!("\n{:>46}  {:>22}", "a packet, 172,000 prefixes", "ns");
    for ((name, ..), times) in rows.iter().zip(times) {
        println!("{name:>46}  {:>22}", words(times));
    }
    Ok(())
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
