//! `weir tune prove`: before and after in alternating windows.

use std::io;
use std::time::{Duration, Instant};

use weir_guard::Phase;
use weir_stats::Verdict;
use weir_sys::process::run_captured;
use weir_tune::hidden::{self, Counted, Figure};
use weir_tune::prove::{Better, LEAST, Proof, Round, measure};
use weir_tune::{Counter, View};

use super::{BY, Made, can_be_made, make, page};
use crate::args::time::DAY;
use crate::args::tune::{Direction, ProveArgs};
use crate::commands::on_trial;
use crate::documents::{Set, TuneProve, print_json};
use crate::exit::{CommandResult, Failure, MISSING, NOT_MET};
use crate::output::print;
use crate::talk::note;

/// Longest time for a command between two windows.
const BETWEEN: Duration = Duration::from_secs(60);

pub(super) fn run(args: &ProveArgs) -> CommandResult {
    on_trial::needs_root("tune prove")?;
    let Made { plan, place, ports } = make(&args.what, Some(DAY.as_secs()))?;
    if plan.is_empty() {
        can_be_made(&plan, &ports)?;
        return Err(Failure::failed(
            "there is nothing to apply, so there is nothing to prove (weir tune plan says why)",
        ));
    }
    let rounds = usize::from(args.rounds);
    if rounds < LEAST {
        note(&format!("note: fewer than {LEAST} rounds show no interval"));
    }
    let better = match (args.better, args.counter) {
        (Some(Direction::Higher), _) | (None, None) => Better::Higher,
        (Some(Direction::Lower), _) | (None, Some(_)) => Better::Lower,
    };
    let seed = args.seed.unwrap_or_else(new_seed);
    let window = Window { args, view: &place.view };
    ports.keep()?;
    let mut trial = on_trial::try_out(BY, plan.change_set(DAY.as_secs()))?;
    note(&format!("{rounds} rounds of two windows; Ctrl-C ends it, and everything is restored"));
    let (mut failed, mut counted) = (Vec::new(), Vec::new());
    let measured = measure(rounds, seed, |made| -> Result<f64, Failure> {
        trial.switch(made)?;
        let seen = window.measure()?;
        failed.push(seen.failures);
        counted.push(seen.counted);
        let n = failed.len();
        note(&format!("{n}/{}: {} {}", 2 * rounds, if made { "after " } else { "before" }, seen.value));
        Ok(seen.value)
    });
    let set = trial.end()?;
    let measured = measured?;
    let failures = failures_of(&measured, &failed).map(|rounds| Proof::of(rounds, seed, Better::Lower));
    let kernel = hidden::figures(&measured, &counted, seed);
    let proof = Proof::of(measured, seed, better);
    let breaks = broken(failures.as_ref(), &kernel);
    if args.json {
        let (plan, proof, failures, kernel) = (&plan, &proof, failures.as_ref(), kernel.as_slice());
        print_json(&TuneProve { plan, proof, failures, kernel, set: Set::of(&set) })?;
    } else {
        let said = match proof.words() {
            words if breaks.is_empty() => words,
            words => format!("{breaks}not better; its own figure: {words}"),
        };
        print(&format!("{}{said}\n(seed {seed}; everything is as before)\n", page(&plan, "")))?;
    }
    if !matches!(set.phase, Phase::Reverted { .. }) {
        return Err(Failure::failed(
            "something could not be restored; the next weir tune command tries again",
        ));
    }
    if args.require_better && (!breaks.is_empty() || !proof.helps()) {
        Err(Failure::Silent(NOT_MET))
    } else {
        Ok(())
    }
}

/// Lists what the change breaks, a line each, by the load's output and by the kernel's counters.
fn broken(printed: Option<&Proof>, kernel: &[Figure]) -> String {
    let printed = printed.filter(|f| f.verdict == Some(Verdict::Higher));
    let printed = printed.map(|f| format!("more operations fail: {}\n", f.words()));
    let counted = kernel.iter().filter(|f| f.breaks);
    let counted = counted.map(|f| format!("{}, by the kernel's count: {}\n", f.name, f.proof.words()));
    printed.into_iter().chain(counted).collect()
}

/// From the clock: it only has to differ from the last one.
fn new_seed() -> u64 {
    io::Read::bytes(&mut jiff::Timestamp::now().as_nanosecond().to_le_bytes().as_slice())
        .flatten()
        .fold(0, |seed, byte| (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The result of a window.
struct Seen {
    value: f64,
    /// Operations that failed, where the load says so.
    failures: Option<f64>,
    /// The kernel's counters for the same time, whatever the load prints.
    counted: Counted,
}

/// Texts that loads print before the number of failed operations, and how many numbers follow: ab, wrk (`Socket errors: connect
/// 1, read 2, write 3, timeout 4`).
const FAILURES: [(&str, usize); 4] = [
    ("Failed requests:", 1),
    ("Non-2xx responses:", 1),
    ("Non-2xx or 3xx responses:", 1),
    ("Socket errors:", 4),
];

/// Operations that failed, in the words of the load. wrk says nothing where none did, so silence is none where the other window
/// of the run has some.
fn failures(printed: &str) -> Option<f64> {
    let after = |(words, numbers): (&str, usize)| {
        let rest = &printed[printed.find(words)? + words.len()..];
        let line = rest.lines().next().unwrap_or_default();
        Some(words_of(line).filter_map(|w| w.parse::<f64>().ok()).take(numbers).sum::<f64>())
    };
    FAILURES.into_iter().filter_map(after).reduce(|a, b| a + b)
}

/// The rounds of a run by operations that failed; `None` if the load never told any. `failed` is in the order of the windows.
fn failures_of(rounds: &[Round], failed: &[Option<f64>]) -> Option<Vec<Round>> {
    failed.iter().any(Option::is_some).then(|| {
        let of = |(round, both): (&Round, &[Option<f64>])| {
            let [first, second] = [0, 1].map(|n| both[n].unwrap_or(0.0));
            let (before, after) = if round.before_first { (first, second) } else { (second, first) };
            Round { before, after, before_first: round.before_first }
        };
        rounds.iter().zip(failed.chunks_exact(2)).map(of).collect()
    })
}

/// One measurement.
struct Window<'a> {
    args: &'a ProveArgs,
    view: &'a View,
}

impl Window<'_> {
    fn measure(&self) -> Result<Seen, Failure> {
        if let Some(line) = &self.args.between {
            shell(line, BETWEEN)?;
        }
        let before = self.args.counter.map(|c| self.count(c)).transpose()?;
        let counted = self.counted()?;
        let begun = Instant::now();
        let printed = shell(&self.args.command, self.args.timeout)?;
        let seconds = begun.elapsed().as_secs_f64();
        let value = match (self.args.counter, before) {
            (Some(counter), Some(before)) => self.count(counter)?.saturating_sub(before) as f64 / seconds,
            _ => number(&printed, self.args.number_after.as_deref()).ok_or_else(|| {
                let after =
                    self.args.number_after.as_ref().map_or(String::new(), |t| format!(" after `{t}`"));
                let printed: String = printed.chars().take(400).collect();
                Failure::failed(format!("the load printed no number{after}: {printed}"))
            })?,
        };
        let counted = self.counted()?.since(counted);
        Ok(Seen { value, failures: failures(&printed), counted })
    }

    fn counted(&self) -> Result<Counted, Failure> {
        Counted::read(self.view)
            .map_err(|e| Failure::failed(format!("cannot read the kernel's counters: {e}")))
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
    words_of(rest).find_map(|w| w.parse().ok().filter(|v: &f64| v.is_finite()))
}

/// Splits a text at blanks and punctuation.
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| {
        c.is_whitespace() || matches!(c, ',' | ':' | ';' | '=' | '"' | '[' | ']' | '{' | '}' | '(' | ')')
    })
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

    #[test]
    fn failures_are_read_in_the_words_of_ab_and_wrk() {
        let ab = "Complete requests:      1000\nFailed requests:        500\n   (Connect: 0, Receive: 0, Length: 500, Exceptions: 0)\n\
                  Non-2xx responses:      20\nRequests per second:    6315.25 [#/sec] (mean)\n";
        assert_eq!(failures(ab), Some(520.0));
        let wrk = "  Socket errors: connect 1, read 2, write 3, timeout 4\n  Non-2xx or 3xx responses: 30\nRequests/sec: 99\n";
        assert_eq!(failures(wrk), Some(40.0));
        assert_eq!(failures("Failed requests:        0\n1000 per s\n"), Some(0.0));
        assert_eq!(failures("1000 per s\n"), None);
    }

    #[test]
    fn failures_stand_where_their_windows_were() {
        let round = |before_first| Round { before: 1.0, after: 2.0, before_first };
        let rounds = [round(true), round(false)];
        let found = failures_of(&rounds, &[Some(0.0), Some(5.0), Some(6.0), None]).unwrap();
        let both: Vec<(f64, f64)> = found.iter().map(|r| (r.before, r.after)).collect();
        assert_eq!(both, [(0.0, 5.0), (0.0, 6.0)]);
        assert_eq!(failures_of(&rounds, &[None; 4]), None);
    }
}
