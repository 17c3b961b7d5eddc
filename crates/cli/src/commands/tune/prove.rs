//! `weir tune prove`: before and after in alternating windows.

use std::io;
use std::time::{Duration, Instant};

use serde_json::json;
use weir_doctor::tune::prove::{Better, LEAST, Proof, measure};
use weir_doctor::tune::{Counter, View};
use weir_guard::{Keeper, Phase};
use weir_sys::process::run_captured;

use super::{BY, Made, SCHEMA, can_be_made, make, needs_root, page, sentinel, set_json};
use crate::args::time::DAY;
use crate::args::tune::{Direction, ProveArgs};
use crate::commands::on_trial::in_words;
use crate::exit::{Failure, MISSING, NOT_MET, Outcome};
use crate::output::{print, print_json};

/// Longest time for a command between two windows.
const BETWEEN: Duration = Duration::from_secs(60);

pub(super) fn run(args: &ProveArgs) -> Outcome {
    needs_root("prove")?;
    let Made { plan, place, ports } = make(&args.what, true)?;
    if plan.is_empty() {
        can_be_made(&plan, &ports)?;
        return Err(Failure::failed(
            "there is nothing to apply, so there is nothing to prove (weir tune plan says why)",
        ));
    }
    let rounds = usize::from(args.rounds);
    if rounds < LEAST {
        eprintln!("note: fewer than {LEAST} rounds show no interval");
    }
    let better = match (args.better, args.counter) {
        (Some(Direction::Higher), _) | (None, None) => Better::Higher,
        (Some(Direction::Lower), _) | (None, Some(_)) => Better::Lower,
    };
    let seed = args.seed.unwrap_or_else(new_seed);
    let window = Window { args, view: &place.view };
    ports.keep()?;
    let mut trial = Keeper::new(BY).try_out(plan.change_set(DAY.as_secs()), &sentinel()).map_err(in_words)?;
    eprintln!("{rounds} rounds of two windows; Ctrl-C ends it, and everything is put back");
    let mut n = 0;
    let measured = measure(rounds, seed, |made| -> Result<f64, Failure> {
        trial.switch(made)?;
        let value = window.measure()?;
        n += 1;
        eprintln!("{n}/{}: {} {value}", 2 * rounds, if made { "after " } else { "before" });
        Ok(value)
    });
    let set = trial.end()?;
    let proof = Proof::of(measured?, seed, better);
    if args.json {
        print_json(&json!({ "schema": SCHEMA, "plan": plan, "proof": proof, "set": set_json(&set, None) }))?;
    } else {
        print(&format!("{}{}\n(seed {seed}; everything is as before)\n", page(&plan, ""), proof.words()))?;
    }
    if !matches!(set.phase, Phase::Reverted { .. }) {
        return Err(Failure::failed(
            "something could not be put back; the next weir tune command tries again",
        ));
    }
    if args.require_better && !proof.helps() { Err(Failure::Silent(NOT_MET)) } else { Ok(()) }
}

/// From the clock: it only has to differ from the last one.
fn new_seed() -> u64 {
    io::Read::bytes(&mut jiff::Timestamp::now().as_nanosecond().to_le_bytes().as_slice())
        .flatten()
        .fold(0, |seed, byte| (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// One measurement.
struct Window<'a> {
    args: &'a ProveArgs,
    view: &'a View,
}

impl Window<'_> {
    fn measure(&self) -> Result<f64, Failure> {
        if let Some(line) = &self.args.between {
            shell(line, BETWEEN)?;
        }
        let before = self.args.counter.map(|c| self.count(c)).transpose()?;
        let begun = Instant::now();
        let printed = shell(&self.args.command, self.args.timeout)?;
        let seconds = begun.elapsed().as_secs_f64();
        match (self.args.counter, before) {
            (Some(counter), Some(before)) => Ok(self.count(counter)?.saturating_sub(before) as f64 / seconds),
            _ => number(&printed, self.args.number_after.as_deref()).ok_or_else(|| {
                let after =
                    self.args.number_after.as_ref().map_or(String::new(), |t| format!(" after `{t}`"));
                let printed: String = printed.chars().take(400).collect();
                Failure::failed(format!("the load printed no number{after}: {printed}"))
            }),
        }
    }

    fn count(&self, counter: Counter) -> Result<u64, Failure> {
        let read = self.view.inside(|| counter.read(&self.view.root)).map_err(Failure::failed)?;
        read.map_err(|e| Failure::new(MISSING, format!("--counter {}: {e}", counter.name())))
    }
}

fn shell(line: &str, limit: Duration) -> Result<String, Failure> {
    let output = run_captured(crate::commands::shell(line)?, limit).map_err(Failure::failed)?;
    if !output.status.success() {
        return Err(Failure::failed(format!("`{line}` failed ({}): {}", output.status, output.message())));
    }
    Ok(output.stdout_text())
}

/// The first number in a text, or the first after some words of it.
fn number(text: &str, after: Option<&str>) -> Option<f64> {
    let rest = match after {
        Some(words) => &text[text.find(words)? + words.len()..],
        None => text,
    };
    let word = |c: char| {
        c.is_whitespace() || matches!(c, ',' | ':' | ';' | '=' | '"' | '[' | ']' | '{' | '}' | '(' | ')')
    };
    rest.split(word).find_map(|w| w.parse().ok().filter(|v: &f64| v.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_what_loads_print() {
        let ab = "Concurrency Level:      50\nRequests per second:    6315.25 [#/sec] (mean)\n";
        assert_eq!(number(ab, Some("Requests per second:")), Some(6315.25));
        assert_eq!(number(ab, None), Some(50.0));
        assert_eq!(number(r#"{"end":{"bits_per_second":1.5e9}}"#, Some("bits_per_second")), Some(1.5e9));
        for (text, after) in [("none", None), ("5", Some("x")), ("x nan", Some("x")), ("", None)] {
            assert_eq!(number(text, after), None);
        }
    }
}
