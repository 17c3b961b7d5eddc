//! Feed everything that reads a peer's bytes with malformed ones: `make fuzz`, or `cargo run --release -p weir --example fuzz -- 600`
//! for ten minutes. A second number is the seed, and words after it are the targets, all of them if none is named.
//!
//! Ends with 1 if a parser panicked, took more than a second of CPU time, or memory grew beyond its bound. What ends the process itself, such as
//! an overflow of the stack, is found again with the seed.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use weir_agent::frame;
use weir_agent::protocol::{Hello, Request, Response, Task};
use weir_prefix::{List, Selection};
use weir_probe::fuzzing::{self, MOST_GROWTH_BYTES, Shape, Target};

fn main() {
    let mut words = std::env::args().skip(1);
    let numbers = (words.next().map_or(Ok(600), |w| w.parse()), words.next().map(|w| w.parse()));
    let (Ok(seconds), None | Some(Ok(_))) = &numbers else {
        eprintln!("usage: fuzz [SECONDS [SEED [TARGET...]]]");
        std::process::exit(2);
    };
    let clock = || std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64);
    let seed = numbers.1.clone().and_then(Result::ok).unwrap_or_else(clock);
    let named: Vec<String> = words.collect();
    let mut targets = fuzzing::own();
    targets.extend([agent(), lists(), scrape()]);
    if let Some(unknown) = named.iter().find(|n| targets.iter().all(|t| t.name != **n)) {
        let all: Vec<_> = targets.iter().map(|t| t.name).collect();
        eprintln!("fuzz: {unknown}: there are {}", all.join(", "));
        std::process::exit(2);
    }
    targets.retain(|t| named.is_empty() || named.iter().any(|n| n == t.name));
    println!("seed {seed}, {seconds} s");
    let outcome = fuzzing::run(&mut targets, Duration::from_secs(*seconds), seed);
    for (target, tally) in targets.iter().zip(&outcome.tallies) {
        println!(
            "{:8} {:>12} inputs, {:>10} of them taken, the slowest in {:?}",
            target.name, tally.cases, tally.taken, tally.slowest
        );
    }
    println!("memory grew by {} KiB", outcome.growth_bytes >> 10);
    for failure in &outcome.failures {
        println!("FAILED {}: {}\n  input: {}", failure.target, failure.what, failure.input.escape_ascii());
    }
    if outcome.growth_bytes > MOST_GROWTH_BYTES {
        println!("FAILED: memory grew by more than {} MiB", MOST_GROWTH_BYTES >> 20);
    }
    if !outcome.failures.is_empty() || outcome.growth_bytes > MOST_GROWTH_BYTES {
        std::process::exit(1);
    }
}

/// Messages between runner and agent, in both directions.
fn agent() -> Target {
    fn framed(message: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::write(&mut bytes, message).expect("a vector takes everything");
        bytes
    }
    let request = |task| framed(&Request { id: 7, task });
    let samples: [Value; 4] = [
        json!({"id": 1, "task": {"open": {"session": 1, "workload": {"kind": "tcp-stream"}, "setting": {}, "bind": "127.0.0.1:0"}}}),
        json!({"id": 2, "task": {"reach": {"target": "[::1]:9", "timeout": {"secs": 1, "nanos": 0}}}}),
        json!({"id": 3, "answer": {"Ok": "done"}}),
        json!({"id": 4, "answer": {"Err": {"missing": true, "message": "no nft here"}}}),
    ];
    let mut seeds: Vec<Vec<u8>> = samples.iter().map(framed).collect();
    seeds.push(framed(&Hello { protocol: 5, version: "0.1.0".into(), pid: 1 }));
    seeds.push(request(Task::Ping));
    seeds.push(request(Task::Missing { programs: vec!["nft".into()] }));
    seeds.push(request(Task::CloseEcho));
    seeds.push(request(Task::Finish { session: 1 }));
    let parse = |input: &[u8]| {
        let task = frame::read::<Request>(input).is_ok_and(|m| m.is_some());
        let answer = frame::read::<Response>(input).is_ok_and(|m| m.is_some());
        task | answer | frame::read::<Hello>(input).is_ok_and(|m| m.is_some())
    };
    Target { name: "agent", shape: Shape::Framed, seeds, parse: Box::new(parse) }
}

/// Files of registries, and lists of addresses, as they are downloaded.
fn lists() -> Target {
    let seeds = [
        "2.3|apnic|20251120|2|19830613|20251119|+1000\napnic|*|ipv4|*|1|summary\n\
         apnic|JP|ipv4|1.0.16.0|4096|20110412|allocated|A92E1062\napnic|AU|ipv6|2001:db8::|32|20110412|assigned|x\n",
        "# a comment\n192.0.2.0/24\n198.51.100.7 # one\n2001:db8::/32\n203.0.113.1-203.0.113.9\n",
        "\u{feff}10.0.0.0/8\r\n::ffff:192.0.2.1/128\r\n",
    ];
    let one = Selection::of(["JP"]).expect("a country");
    let parse = move |input: &[u8]| {
        let known = weir_prefix::read::head(input).is_some();
        let mut sense = known;
        for selection in [&Selection::default(), &one] {
            sense |= weir_prefix::read::read(&mut List::default(), "fuzz", input, selection).is_ok();
            let mut list = List::default();
            weir_prefix::read::read_leniently(&mut list, "fuzz", input, selection);
            sense |= weir_lists::Survey::of("fuzz", input, selection).is_ok();
        }
        sense
    };
    let seeds = seeds.iter().map(|s| s.as_bytes().to_vec()).collect();
    Target { name: "lists", shape: Shape::Text, seeds, parse: Box::new(parse) }
}

/// Requests of clients of `weir export`, as they come in pieces.
fn scrape() -> Target {
    let seeds = [
        "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9348\r\nAccept: text/plain;version=0.0.4\r\n\r\n",
        "HEAD /metrics?a=b HTTP/1.0\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n",
        "POST / HTTP/1.1\nauthorization:bearer a\nAuthorization: Basic b\n\n",
    ];
    let parse = |input: &[u8]| {
        let asked = weir_export::read(input);
        // The beginning has no answer yet, is too long, or has the same answer.
        for end in [input.len() / 3, input.len() / 2] {
            let earlier = weir_export::read(&input[..end]);
            assert!(
                earlier == weir_export::Asked::Unfinished || earlier == asked,
                "{earlier:?}, then {asked:?}"
            );
        }
        let token = weir_export::bearer(input);
        assert!(token.is_none_or(|token| token.len() < input.len()));
        !matches!(asked, weir_export::Asked::Unfinished | weir_export::Asked::Broken)
    };
    let seeds = seeds.iter().map(|s| s.as_bytes().to_vec()).collect();
    Target { name: "scrape", shape: Shape::Text, seeds, parse: Box::new(parse) }
}
