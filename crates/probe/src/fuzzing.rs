//! Bytes that no honest peer sends, for every parser of this crate, of weir's own protocol and of iperf3's: to be run for seconds by a test, and for as long as
//! one likes by the example `fuzz`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::frame::{self, MOST_FROM_CLIENT, MOST_FROM_SERVER};
use crate::message::{Ask, OPENING, Tell};
use crate::{Limits, iperf3, server};

/// What a run came to.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Inputs tried.
    pub cases: u64,
    /// Of these, such as a parser took for a message.
    pub taken: u64,
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

/// Try inputs for so long.
///
/// # Panics
/// Never, unless a parser does: that is what it is for.
pub fn run(length: Duration, seed: u64) -> Outcome {
    let mut random = Random(seed);
    let seeds = seeds();
    let limits = Limits::default();
    let before = high_water();
    let deadline = Instant::now() + length;
    let (mut cases, mut taken) = (0, 0);
    while Instant::now() < deadline {
        for _ in 0..100 {
            let input = mutated(&seeds, &mut random);
            cases += 1;
            taken += u64::from(parse(&input, &limits));
        }
    }
    Outcome { cases, taken, growth_bytes: high_water().saturating_sub(before) }
}

/// Everything that reads bytes of a peer. True if one of them made sense of it.
fn parse(input: &[u8], limits: &Limits) -> bool {
    let mut sense = server::is_known_opening(input);
    sense |= weir_load::knock::read(input).is_some();
    sense |= iperf3::makes_sense(input);
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

fn seeds() -> Vec<Vec<u8>> {
    let asks = [
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
        json!({"tcp": true, "omit": 0, "time": 10, "num": 0, "blockcount": 0, "parallel": 2, "len": 131072, "reverse": true,
            "pacing_timer": 1000, "client_version": "3.12"}),
        json!({"udp": true, "omit": 1, "time": 0, "num": 1000000, "blockcount": 0, "parallel": 1, "len": 1460,
            "bandwidth": 1048576, "udp_counters_64bit": 1, "title": "t", "client_version": "3.12"}),
        json!({"cpu_util_total": 1.5, "cpu_util_user": 0.5, "cpu_util_system": 1.0, "sender_has_retransmits": 1, "streams":
            [{"id": 1, "bytes": 1000, "retransmits": 0, "jitter": 0.001, "errors": 2, "packets": 10, "start_time": 0,
            "end_time": 1.0}]}),
    ];
    let mut all: Vec<Vec<u8>> = asks.iter().filter_map(|a| frame::encode(a, MOST_FROM_CLIENT).ok()).collect();
    let with_opening: Vec<Vec<u8>> = all.iter().map(|f| [&OPENING[..], f].concat()).collect();
    all.extend(with_opening);
    all.push(weir_load::knock::challenge(7, [1; 16]).to_vec());
    all.push([&b"weirKNK1"[..], &[0; 24]].concat());
    all.push(b"abcdefghijklmnopqrstuvwxyz234567abcd\0".to_vec());
    all.push([&b"weirTCP1"[..], &[0; 16]].concat());
    all
}

/// One of the seeds with some of its bytes changed, left out, doubled or replaced by what parsers stumble over.
fn mutated(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
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
    if random.below(2) == 0 && bytes.len() >= 4 {
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
        let outcome = run(Duration::from_secs(3), 20_261_121);
        assert!(outcome.cases > 1000, "{outcome:?}");
        // Inputs that are never taken would test nothing behind the first check.
        assert!(outcome.taken > outcome.cases / 100, "{outcome:?}");
        // The longest frame that may be read is 16 MiB, and other tests run beside this one.
        assert!(outcome.growth_bytes < 256 << 20, "{outcome:?}");
    }

    #[test]
    fn the_generator_is_splitmix64() {
        // The reference implementation's first outputs for the seed 1234567 (Vigna, splitmix64.c).
        let mut random = Random(1_234_567);
        let first: [u64; 3] = std::array::from_fn(|_| random.next());
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
