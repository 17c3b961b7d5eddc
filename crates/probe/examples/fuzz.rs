//! Feed the parsers of weir's own protocol with malformed bytes: `cargo run --release -p weir-probe --example fuzz -- 600` for ten
//! minutes. A second number is the seed.

use std::time::Duration;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let (Ok(seconds), seed) = (numbers.next().unwrap_or(Ok(600)), numbers.next()) else {
        eprintln!("usage: fuzz [SECONDS [SEED]]");
        std::process::exit(2);
    };
    let seed = match seed {
        Some(Ok(seed)) => seed,
        _ => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |d| d.as_nanos() as u64),
    };
    println!("seed {seed}, {seconds} s");
    let outcome = weir_probe::fuzzing::run(Duration::from_secs(seconds), seed);
    println!(
        "{} inputs, {} of them taken for messages; memory grew by {} KiB",
        outcome.cases,
        outcome.taken,
        outcome.growth_bytes >> 10
    );
}
