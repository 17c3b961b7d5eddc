//! The forwarding rate with the doctor and without.

use std::time::Duration;

use weir_doctor::collect::{OpenWindow, Options};
use weir_doctor::evidence::{Cost, Evidence, EvidenceSource, Sight};
use weir_stats::compare::{Comparison, compare_ratio};

use crate::Result;
use crate::gateway::{Gateway, Phase, Window};

/// Length of a window. Short, because the machine is not equally fast for long.
const WINDOW: Duration = Duration::from_millis(500);
/// How long the doctor watches unless it is told otherwise, s.
const WATCHED_S: f64 = 10.0;
/// The least that is to be forwarded with the doctor, as a share of what is forwarded without.
const LEAST_RATIO: f64 = 0.98;

/// What the gateway without the doctor is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tried {
    /// The gateway with the doctor.
    Doctor,
    /// The gateway without it, once more.
    Nothing,
}

/// One window with, and what it took to begin and to end it.
struct Watched {
    window: Window,
    begin: Phase,
    end: Phase,
    cost: Cost,
    /// Drops that were counted.
    counted: u64,
}

/// Twice without and twice with, in turns.
#[derive(Default)]
struct Round {
    without: Vec<Window>,
    with: Vec<Watched>,
}

impl Round {
    fn measure(gateway: &Gateway, tried: Tried, index: usize) -> Result<Round> {
        let mut round = Round::default();
        // A B B A, then B A A B: what comes first, or second, is not always the same.
        for turn in [0, 1, 1, 0] {
            if turn == index % 2 {
                round.without.push(gateway.window(WINDOW)?);
            } else {
                round.with.push(match tried {
                    Tried::Doctor => watched(gateway)?,
                    Tried::Nothing => unwatched(gateway)?,
                });
            }
        }
        Ok(round)
    }

    /// With and without.
    fn pair(&self, of: impl Fn(&Window) -> f64) -> (f64, f64) {
        (mean(self.with.iter().map(|w| of(&w.window))), mean(self.without.iter().map(of)))
    }

    fn phase(&self, of: impl Fn(&Watched) -> Phase) -> (f64, f64) {
        (mean(self.with.iter().map(|w| of(w).seconds)), mean(self.with.iter().map(|w| of(w).ratio)))
    }

    /// What is forwarded in a run of the doctor, with its beginning and its end, against the same time without it, if it watches for
    /// so many seconds.
    fn whole(&self, seconds: f64) -> (f64, f64) {
        let (with, without) = self.pair(|w| w.adjusted);
        let (begin_s, begin) = self.phase(|w| w.begin);
        let (end_s, end) = self.phase(|w| w.end);
        (seconds * with / without + begin_s * begin + end_s * end, seconds + begin_s + end_s)
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0), |(sum, n), value| (sum + value, n + 1));
    sum / f64::from(n.max(1))
}

/// A window in which the doctor watches every namespace.
fn watched(gateway: &Gateway) -> Result<Watched> {
    let (watch, begin, at_first) = gateway.during(|| Ok(OpenWindow::begin(Options::default())?))?;
    let window = gateway.window(WINDOW)?;
    let (evidence, end, at_last) = gateway.during(|| Ok(watch.end()))?;
    let counted = dropped_by_rule(&evidence)?;
    // Some of those that were thrown away while it began and ended; all of the window's. The last turn of flows may be a part of one.
    let most = at_first + window.drops + at_last + 3;
    if !(window.drops..=most).contains(&counted) {
        let made = window.drops;
        return Err(format!("{counted} drops were counted, of {made} to {most} that there were").into());
    }
    Ok(Watched { window, begin, end, counted, cost: evidence.cost })
}

fn dropped_by_rule(evidence: &Evidence) -> Result<u64> {
    match evidence.evidence_sources.get(&EvidenceSource::Drops) {
        Some(Sight::Seen) => {}
        other => return Err(format!("drops are not in sight: {other:?}").into()),
    }
    let rule = evidence.drops.iter().filter(|d| d.reason == "NETFILTER_DROP" && d.protocol == 17);
    Ok(rule.map(|d| d.packets).sum())
}

/// As [`watched`], with waiting instead of the doctor, for about as long as that takes.
fn unwatched(gateway: &Gateway) -> Result<Watched> {
    let wait = || {
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    };
    let ((), begin, _) = gateway.during(wait)?;
    let window = gateway.window(WINDOW)?;
    let ((), end, _) = gateway.during(wait)?;
    Ok(Watched { window, begin, end, counted: 0, cost: Cost::default() })
}

/// Compares, prints, and fails if it is certain that less is forwarded than must be.
pub(crate) fn compare(tried: Tried, rounds: usize) -> Result<()> {
    let gateway = Gateway::build()?;
    // Loads the sender.
    gateway.window(WINDOW)?;
    println!(
        "windows of {} ms, frames a second: speed-adjusted with, without; as they were with, without",
        WINDOW.as_millis()
    );
    let mut all = Vec::new();
    for index in 0..rounds {
        let round = Round::measure(&gateway, tried, index)?;
        let (with, without) = round.pair(|w| w.adjusted);
        let (raw_with, raw_without) = round.pair(|w| w.rate);
        println!("{:>3} {with:>9.0} {without:>9.0} {raw_with:>9.0} {raw_without:>9.0}", index + 1);
        all.push(round);
    }
    costs(&all, tried);
    match ratios(&all, tried) {
        Some((_, high)) if high < LEAST_RATIO => Err("the doctor costs more than it may".into()),
        _ => Ok(()),
    }
}

/// How many drops there were, and what the doctor says that they cost. Its CPU time is the process's, and so also the sender's here.
fn costs(rounds: &[Round], tried: Tried) {
    let drops = |w: &Window| w.drops as f64 / WINDOW.as_secs_f64();
    let with = || rounds.iter().flat_map(|r| &r.with);
    println!(
        "drops a second: {:.0} with, {:.0} without",
        mean(with().map(|w| drops(&w.window))),
        mean(rounds.iter().flat_map(|r| &r.without).map(drops)),
    );
    if tried == Tried::Nothing {
        return;
    }
    let runs = |cost: &Cost| cost.bpf_runs.filter(|runs| *runs > 0);
    let ns = with().filter_map(|w| Some(w.cost.bpf_ns? as f64 / runs(&w.cost)? as f64));
    println!(
        "drops counted: {}; each takes {:.0} ns by the kernel's clock, with looking at it; events lost: {}",
        with().map(|w| w.counted).sum::<u64>(),
        mean(ns),
        with().map(|w| w.cost.events_lost).sum::<u64>(),
    );
}

/// Prints the ratios; the interval of the one that the bound is about.
fn ratios(rounds: &[Round], tried: Tried) -> Option<(f64, f64)> {
    let compared =
        |of: &dyn Fn(&Round) -> (f64, f64)| compare_ratio(&rounds.iter().map(of).collect::<Vec<_>>());
    println!("with / without:");
    print("in the window, speed-adjusted", compared(&|r| r.pair(|w| w.adjusted)).as_ref());
    print("in the window, as it was", compared(&|r| r.pair(|w| w.rate)).as_ref());
    for (what, of) in [("begins", (|w| w.begin) as fn(&Watched) -> Phase), ("ends", |w| w.end)] {
        let ms = mean(rounds.iter().map(|r| r.phase(of).0)) * 1e3;
        let ratio = compared(&|r| (r.phase(of).1, 1.0));
        print(&format!("while it {what} ({ms:.0} ms)"), ratio.as_ref());
    }
    print("a run of 2 s with both", compared(&|r| r.whole(2.0)).as_ref());
    let all = compared(&|r| r.whole(WATCHED_S));
    let what = format!("a run of {WATCHED_S} s with both");
    print(&what, all.as_ref());
    let interval = all?.interval?;
    println!("{}", verdict(interval, tried));
    Some(interval)
}

fn verdict((low, high): (f64, f64), tried: Tried) -> String {
    match tried {
        Tried::Nothing if low <= 1.0 && high >= 1.0 => {
            "nothing against nothing: no difference seen, as it must be".into()
        }
        Tried::Nothing => {
            "nothing against nothing: a difference, which one run of twenty shows by chance".into()
        }
        Tried::Doctor if low >= LEAST_RATIO => format!("at least {LEAST_RATIO}: held"),
        Tried::Doctor if high < LEAST_RATIO => format!("at least {LEAST_RATIO}: missed"),
        Tried::Doctor => {
            format!("at least {LEAST_RATIO}: not decided, needs more rounds or a quieter machine")
        }
    }
}

fn print(what: &str, comparison: Option<&Comparison>) {
    let what = format!("  {what}:");
    match comparison.map(|c| (c.estimate, c.interval, c.n)) {
        Some((estimate, Some((low, high)), n)) => {
            println!("{what:<34} {estimate:.4} [{low:.4}, {high:.4}], n = {n}")
        }
        Some((estimate, None, n)) => println!("{what:<34} {estimate:.4}, n = {n}: too few for an interval"),
        None => println!("{what:<34} nothing to compare"),
    }
}
