//! Bytes that no honest peer sends, for every parser of this crate, of weir's own protocol and of iperf3's: to be run for seconds by a test, and for as long as
//! one likes by the example `fuzz`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::frame::{self, MOST_FROM_CLIENT, MOST_FROM_SERVER};
use crate::message::{Ask, OPENING, Tell};
use crate::{Limits, server};

/// An input that takes more CPU time is a failure: it is a thousand times what the slowest takes that is none.
const LONGEST: Duration = Duration::from_secs(1);

/// By how much memory may grow. The longest frame that may be read is 16 MiB, of which some are in memory at a time.
pub const MOST_GROWTH_BYTES: u64 = 256 << 20;

/// Failures that are kept; the run ends with the last of them.
const MOST_FAILURES: usize = 10;

/// The form of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A length of four bytes, big-endian, and so many bytes; a connection's opening bytes may precede it.
    Framed,
    /// No lengths.
    Text,
}

/// Reads bytes of a peer.
pub type Parse = Box<dyn FnMut(&[u8]) -> bool>;

/// Something that reads bytes of a peer.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// The form of its inputs.
    pub shape: Shape,
    /// Honest inputs.
    pub seeds: Vec<Vec<u8>>,
    /// True if it made sense of the bytes. It may not panic.
    pub parse: Parse,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Counts of the inputs to one target.
#[derive(Debug, Clone, Copy, Default)]
pub struct TargetCounts {
    /// Inputs tried.
    pub cases: u64,
    /// Inputs among these that the parser accepted as a message.
    pub taken: u64,
    /// The longest CPU time of one.
    pub slowest: Duration,
}

/// An input that a parser did not stand.
#[derive(Debug, Clone)]
pub struct Failure {
    /// [`Target::name`].
    pub target: &'static str,
    /// The panic's words, or how long it took.
    pub what: String,
    /// The input.
    pub input: Vec<u8>,
}

/// The result of a run.
#[derive(Debug)]
pub struct FuzzReport {
    /// One tally per target.
    pub tallies: Vec<TargetCounts>,
    /// The first ten.
    pub failures: Vec<Failure>,
    /// By how much the process' greatest resident set grew, bytes.
    pub growth_bytes: u64,
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators"): enough to be different every time, and the
/// same for a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`, which is above 0.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Tries inputs for `length`, one target after the other.
pub fn run(targets: &mut [Target], length: Duration, seed: u64) -> FuzzReport {
    let mut random = Random(seed);
    let mut outcome = FuzzReport {
        tallies: vec![TargetCounts::default(); targets.len()],
        failures: Vec::new(),
        growth_bytes: 0,
    };
    let before = high_water();
    let deadline = Instant::now() + length;
    while Instant::now() < deadline && outcome.failures.len() < MOST_FAILURES {
        for (target, tally) in targets.iter_mut().zip(&mut outcome.tallies) {
            for _ in 0..100 {
                let input = mutated(&target.seeds, target.shape, &mut random);
                if let Err(what) = attempt(target, tally, &input) {
                    outcome.failures.push(Failure { target: target.name, what, input });
                }
            }
        }
    }
    outcome.failures.truncate(MOST_FAILURES);
    outcome.growth_bytes = high_water().saturating_sub(before);
    outcome
}

fn attempt(target: &mut Target, tally: &mut TargetCounts, input: &[u8]) -> Result<(), String> {
    // CPU time, so that a busy machine is no failure.
    let begun = weir_sys::sched::thread_cpu_use().total();
    // After a panic, only the next input sees the state that the parser kept.
    let parsed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (target.parse)(input)));
    let took = weir_sys::sched::thread_cpu_use().total().saturating_sub(begun);
    tally.cases += 1;
    tally.slowest = tally.slowest.max(took);
    match parsed {
        Ok(sense) => tally.taken += u64::from(sense),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
            return Err(format!("panicked: {}", words.unwrap_or("without words")));
        }
    }
    if took > LONGEST { Err(format!("took {took:?}")) } else { Ok(()) }
}

/// The parsers of this crate, and of the datagrams that its port takes.
pub fn own() -> Vec<Target> {
    let (asks, reports) = (asks(), reports());
    let framed = |messages: &[serde_json::Value]| -> Vec<Vec<u8>> {
        messages.iter().filter_map(|m| frame::encode(m, MOST_FROM_CLIENT).ok()).collect()
    };
    let mut protocol = framed(&asks);
    let with_opening: Vec<Vec<u8>> = protocol.iter().map(|f| [&OPENING[..], f].concat()).collect();
    protocol.extend(with_opening);
    protocol.push([&b"weirTCP1"[..], &[0; 16]].concat());
    let limits = Limits::default();
    let mut iperf3 = framed(&reports);
    iperf3.push(b"abcdefghijklmnopqrstuvwxyz234567abcd\0".to_vec());
    let target = |name, shape, seeds, parse| Target { name, shape, seeds, parse };
    vec![
        target("protocol", Shape::Framed, protocol, Box::new(move |input| parse(input, &limits))),
        target("iperf3", Shape::Framed, iperf3, Box::new(weir_iperf3::makes_sense)),
        target("udp", Shape::Text, datagrams(), Box::new(datagram(weir_mtu::Responder::open()))),
    ]
}

/// A client's and a server's messages. True if one of them made sense of it.
fn parse(input: &[u8], limits: &Limits) -> bool {
    let mut sense = server::is_known_opening(input);
    let after = input.strip_prefix(&OPENING).unwrap_or(input);
    match frame::read::<Ask>(after, MOST_FROM_CLIENT) {
        Ok(Ask::Open { workload, warmup_ms, duration_ms }) => {
            let (warmup, duration) = (Duration::from_millis(warmup_ms), Duration::from_millis(duration_ms));
            server::would_do(limits, *workload, warmup, duration);
            sense = true;
        }
        Ok(_) => sense = true,
        Err(_) => {}
    }
    sense | frame::read::<Tell>(after, MOST_FROM_SERVER).is_ok()
}

/// Returns a parser of requests, greetings, iperf3 data, and probes of the path's MTU. An answer to a probe must not be longer than
/// the probe.
fn datagram(mtu: weir_mtu::Responder) -> impl FnMut(&[u8]) -> bool {
    let from = std::net::SocketAddr::from(([192, 0, 2, 1], 7));
    move |input| {
        let answer = mtu.answer(input, input.len(), from);
        let longer = answer.as_ref().is_some_and(|a| a.bytes.len() > input.len());
        assert!(!longer, "the answer is longer than the probe");
        answer.is_some() | weir_load::udp_handshake::read(input).is_some() | weir_iperf3::makes_sense(input)
    }
}

fn asks() -> Vec<serde_json::Value> {
    vec![
        json!({"ask": "hello", "version": 1, "nonce": "00".repeat(32), "program": "weir"}),
        json!({"ask": "prove", "proof": "ab".repeat(32)}),
        json!({"ask": "finish"}),
        json!({"ask": "open", "workload": {"kind": "tcp-stream", "streams": 4}, "warmup_ms": 0, "duration_ms": 1000}),
        json!({"ask": "open", "workload": {"kind": "udp-stream", "rate-bps": 1e6}, "warmup_ms": 0, "duration_ms": 1000}),
        json!({"ask": "open", "workload": {"kind": "udp-rr", "request-bytes": 16}, "warmup_ms": 0, "duration_ms": 1000}),
        json!({"tell": "challenge", "version": 1, "nonce": "00".repeat(32), "keyed": true}),
        json!({"tell": "live", "flows": [{"way": "egress", "number": 0, "sends": true, "bytes": 1, "packets": 1, "lost": 0,
            "reordered": 0, "jitter_ns": 0, "retransmits": 0, "rtt_ns": 0, "cwnd": 0, "ok": 0, "failed": 0}]}),
        json!({"tell": "seen", "part": {"values": {"x": 1.0}, "histograms": {}, "series": [], "faults": [], "cpu_s": 0.0},
            "flows": []}),
        json!({"tell": "refused", "reason": "no"}),
    ]
}

fn reports() -> Vec<serde_json::Value> {
    vec![
        json!({"tcp": true, "omit": 0, "time": 10, "num": 0, "blockcount": 0, "parallel": 2, "len": 131072, "reverse": true,
            "pacing_timer": 1000, "client_version": "3.12"}),
        json!({"udp": true, "omit": 1, "time": 0, "num": 1000000, "blockcount": 0, "parallel": 1, "len": 1460,
            "bandwidth": 1048576, "udp_counters_64bit": 1, "title": "t", "client_version": "3.12"}),
        json!({"cpu_util_total": 1.5, "cpu_util_user": 0.5, "cpu_util_system": 1.0, "sender_has_retransmits": 1, "streams":
            [{"id": 1, "bytes": 1000, "retransmits": 0, "jitter": 0.001, "errors": 2, "packets": 10, "start_time": 0,
            "end_time": 1.0}]}),
    ]
}

fn datagrams() -> Vec<Vec<u8>> {
    // Kinds 1 to 9 of weir-mtu (`message.rs`), each with a session, a number and room for the reported values.
    let probe = |kind: u8| {
        [&weir_mtu::MAGIC[..], &[7; 8], &[0, 0, 0, 1, kind, 0, 0, 0, 0, 0, 5, 0], &[0; 60]].concat()
    };
    let mut all: Vec<Vec<u8>> = (1..10).map(probe).collect();
    all.push(weir_load::udp_handshake::challenge(7, [1; 16]).to_vec());
    all.push([&b"weirREQ1"[..], &[0; 24]].concat());
    all.push(b"9876".to_vec());
    all.push([&[0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 40]].concat());
    all
}

/// One of the seeds with some of its bytes changed, left out, doubled or replaced by what parsers stumble over.
fn mutated(seeds: &[Vec<u8>], shape: Shape, random: &mut Random) -> Vec<u8> {
    const STUMBLES: [&[u8]; 12] = [
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\x7f\xff\xff\xff",
        b"99999999999999999999",
        b"-1",
        b"1e309",
        b"null",
        b"[[[[[[[[",
        b"{\"",
        b"\\u0000",
        b"\\ud800",
        b"\xc3\x28",
    ];
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(6) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            3 => {
                let what = STUMBLES[random.below(STUMBLES.len())];
                bytes.splice(at..at, what.iter().copied());
            }
            4 => {
                let end = at + random.below(bytes.len() - at + 1);
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    // The length as it is in half of them, so that the rest is looked at, too.
    if shape == Shape::Framed && random.below(2) == 0 && bytes.len() >= 4 {
        let start = if bytes.starts_with(&OPENING) && bytes.len() >= 12 { 8 } else { 0 };
        let length = (bytes.len() - start - 4) as u32;
        bytes[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
    bytes
}

/// VmHWM of proc_pid_status(5), bytes; 0 if it cannot be read.
fn high_water() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_of_fuzzing_neither_panic_nor_allocate_without_bounds() {
        let mut targets = own();
        // Long enough for the cases that are asked for, also while other tests have most of the machine.
        let outcome = run(&mut targets, Duration::from_secs(8), 20_261_121);
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        for (target, tally) in targets.iter().zip(&outcome.tallies) {
            assert!(tally.cases > 1000, "{} {tally:?}", target.name);
            // Inputs that are never taken would test nothing behind the first check.
            assert!(tally.taken > tally.cases / 100, "{} {tally:?}", target.name);
        }
        // Other tests run beside this one.
        assert!(outcome.growth_bytes < MOST_GROWTH_BYTES, "{outcome:?}");
    }

    #[test]
    fn a_parser_that_panics_is_found_with_its_input() {
        let parse = |input: &[u8]| {
            assert!(!input.ends_with(b"null"), "null");
            true
        };
        let seeds = vec![b"1, 2".to_vec()];
        let mut targets = [Target { name: "bad", shape: Shape::Text, seeds, parse: Box::new(parse) }];
        let outcome = run(&mut targets, Duration::from_secs(20), 7);
        assert_eq!(outcome.failures.len(), MOST_FAILURES);
        for failure in &outcome.failures {
            assert!(failure.input.ends_with(b"null") && failure.what.contains("null"), "{failure:?}");
        }
    }

    #[test]
    fn the_generator_is_splitmix64() {
        // The reference implementation's first outputs for the seed 1234567 (Vigna, splitmix64.c).
        let mut random = Random(1_234_567);
        let first: [u64; 3] = std::array::from_fn(|_| random.next());
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
