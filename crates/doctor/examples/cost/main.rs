//! What the doctor costs, measured; `scripts/bench-doctor` builds and runs it. Needs root; everything happens in network
//! namespaces that are gone when it ends.
//!
//! `cost rate [ROUNDS]`: what a gateway forwards while it throws away every sixteenth packet, with the doctor and without, in short
//! alternating windows, and whether that is as much as it must be. On a core of its own that is more than 100,000 drops a second.
//! `cost same [ROUNDS]`: the same without any doctor, against itself: what the method takes for a difference where there is none.
//! `cost size`: how long the analysis takes, and how much memory, on a machine with a million connections and 100 namespaces.
//! It fails if a bound is missed for certain.

mod gateway;
mod rate;
mod size;

use std::error::Error;
use std::process::Command;

use weir_sys::NetNs;

use rate::Tried;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Rounds of a comparison: three minutes.
const ROUNDS: usize = 40;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rounds = || arguments.get(1).map_or(Ok(ROUNDS), |n| n.parse());
    match arguments.first().map(String::as_str) {
        Some("rate") => rate::compare(Tried::Doctor, rounds()?),
        Some("same") => rate::compare(Tried::Nothing, rounds()?),
        Some("size") => size::size(),
        _ => Err("usage: cost rate [ROUNDS] | cost same [ROUNDS] | cost size".into()),
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
