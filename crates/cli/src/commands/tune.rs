//! `weir tune`, and the guard process behind it.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_doctor::tune::prove::{Better, LEAST, Proof, measure};
use weir_doctor::tune::{
    self, Counter, LARGEST_FINDINGS, Place, Plan, Profile, Request, View, render_plan, render_set,
    render_status,
};
use weir_guard::{
    ChangeSet, Keeper, Metric, Namespace, Phase, Program, Sentinel, StepNow, StepState, Watch, Worse,
};
use weir_sys::privilege::Privilege;
use weir_sys::process::run_captured;
use weir_sys::{NetNs, ProcRoot};

use super::conntrack::namespace;
use crate::args::time::DAY;
use crate::args::tune::{ApplyArgs, Direction, ProveArgs, TuneArgs, TuneCommand, WhatArgs};
use crate::exit::{FAILED, Failure, MISSING, NOT_MET, Outcome, USAGE};
use crate::output::{print, print_json, printable, width};

/// Whose change sets these are.
const BY: &str = "tune";
/// Version of the JSON of change sets.
const SCHEMA: u32 = 1;
/// How long counters are watched before a change to know how fast they grow without it.
const BASELINE: Duration = Duration::from_secs(2);
/// Longest time for a reading of a number to be watched.
const READING: Duration = Duration::from_secs(5);
/// Longest time for a command between two windows.
const BETWEEN: Duration = Duration::from_secs(60);

pub(crate) fn run(args: &TuneArgs) -> Outcome {
    match &args.command {
        TuneCommand::Plan(args) => {
            let (plan, _) = plan(&args.what)?;
            if args.json { print_json(&plan) } else { print(&page(&plan, "apply")) }
        }
        TuneCommand::Apply(args) => apply(args),
        TuneCommand::Confirm(args) => confirm(args.json),
        TuneCommand::Rollback(args) => rollback(args.json),
        TuneCommand::Status(args) => status(args.json),
        TuneCommand::Prove(args) => prove(args),
    }
}

/// `weir guard`: the process that takes a change set back unless it is confirmed.
pub(crate) fn guard(by: &str, id: &str) -> Outcome {
    weir_guard::guard(by, id, &tune::metric).map_err(Failure::from)
}

impl From<weir_guard::Error> for Failure {
    fn from(error: weir_guard::Error) -> Self {
        if error.is_permission() {
            return Failure::new(
                MISSING,
                format!(
                    "{error} (it needs root: the journal and the settings of weir tune are root's alone)"
                ),
            );
        }
        Failure::new(if error.is_usage() { USAGE } else { FAILED }, error)
    }
}

impl From<tune::Error> for Failure {
    fn from(error: tune::Error) -> Self {
        match error {
            tune::Error::System(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                Failure::new(MISSING, format!("{e} (it needs root)"))
            }
            tune::Error::System(e) => Failure::failed(e),
            other => Failure::usage(other),
        }
    }
}

fn needs_root(what: &str) -> Outcome {
    let own = Privilege::current(&ProcRoot::default()).map_err(Failure::failed)?;
    if own.euid != 0 {
        return Err(Failure::new(
            MISSING,
            format!(
                "weir tune {what} changes this host, which needs root: sudo weir tune {what} ... (weir tune plan does not)"
            ),
        ));
    }
    Ok(())
}

/// Where `--netns` leads.
fn place(netns: Option<&str>) -> Result<Place, Failure> {
    let root = ProcRoot::default();
    let Some(name) = netns else {
        let own = Namespace::own()?;
        let view = View { root, namespace: None };
        return Ok(Place { view, name: "this network namespace".into(), namespace: Some(own) });
    };
    let opened: NetNs = namespace(name)?;
    let path = if name.contains('/') {
        PathBuf::from(name)
    } else if name.parse::<u32>().is_ok() {
        PathBuf::from(format!("/proc/{name}/ns/net"))
    } else {
        PathBuf::from("/run/netns").join(name)
    };
    let known = Namespace::at(&opened, path)?;
    let view = View { root, namespace: Some(opened) };
    Ok(Place { view, name: format!("network namespace {name}"), namespace: Some(known) })
}

fn plan(what: &WhatArgs) -> Result<(Plan, Place), Failure> {
    let place = place(what.netns.as_deref())?;
    let findings = what.from.as_deref().map(read_findings).transpose()?;
    let mut set = Vec::new();
    for pair in &what.set {
        let (name, value) =
            pair.split_once('=').ok_or_else(|| Failure::usage(format!("--set {pair}: not NAME=VALUE")))?;
        set.push((name.trim().to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    let mut profiles = what.profiles.clone();
    if profiles.is_empty() && findings.is_none() && set.is_empty() {
        profiles.push(Profile::NatGateway);
    }
    let request = Request {
        profiles,
        findings,
        set,
        memory: what.memory,
        peak: what.peak,
        rtt_ms: what.rtt,
        window: what.window,
    };
    Ok((tune::plan(&place, &request)?, place))
}

/// Name and text of the doctor's findings.
fn read_findings(path: &str) -> Result<(String, String), Failure> {
    let name = if path == "-" { "standard input" } else { path };
    let unreadable = |e: io::Error| Failure::usage(format!("cannot read {name}: {e}"));
    let source: Box<dyn Read> =
        if path == "-" { Box::new(io::stdin()) } else { Box::new(fs::File::open(path).map_err(unreadable)?) };
    let mut text = String::new();
    source.take(LARGEST_FINDINGS + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > LARGEST_FINDINGS {
        return Err(Failure::usage(format!(
            "{name} has more than {LARGEST_FINDINGS} bytes: no diagnosis is that long"
        )));
    }
    Ok((name.to_owned(), text))
}

fn page(plan: &Plan, next: &str) -> String {
    let mut page = render_plan(plan, width());
    if !plan.is_empty() && next == "apply" {
        page.push_str("nothing is changed yet: weir tune apply, with the same options, does it on trial\n");
    }
    page
}

fn apply(args: &ApplyArgs) -> Outcome {
    needs_root("apply")?;
    Keeper::new(BY).make_way()?;
    let (plan, place) = plan(&args.what)?;
    if !args.json {
        print(&page(&plan, ""))?;
    }
    if plan.is_empty() {
        can_be_written(&plan)?;
        eprintln!("there is nothing to apply");
        return if args.json {
            print_json(&json!({ "schema": SCHEMA, "plan": plan, "set": null }))
        } else {
            Ok(())
        };
    }
    let mut new = plan.change_set(args.confirm_within);
    if !args.no_watch {
        new.watches = tune::watches(&plan, &place.view, BASELINE);
    }
    new.watches.extend(own_watch(args)?);
    let watched: Vec<String> = new.watches.iter().map(|w| printable(&w.name)).collect();
    let set = Keeper::new(BY).apply(new, &sentinel())?;
    if args.json {
        return print_json(&json!({ "schema": SCHEMA, "plan": plan, "set": set_json(&set, None) }));
    }
    print(&format!("\n{}", render_set(&set)))?;
    for watched in watched {
        print(&format!("  watched: {watched}\n"))?;
    }
    eprintln!("taken back in {} s, unless: weir tune confirm", args.confirm_within);
    Ok(())
}

/// Whether a plan without anything to apply is one only because it cannot be written here.
fn can_be_written(plan: &Plan) -> Outcome {
    if !plan.is_blocked() {
        return Ok(());
    }
    let rows = plan.rows.iter().filter_map(|r| Some(format!("{}: {}", r.name, r.held.as_ref()?)));
    Err(Failure::new(MISSING, rows.collect::<Vec<_>>().join("; ")))
}

fn sentinel() -> Sentinel {
    Sentinel { args: vec!["guard".into()] }
}

/// The number that a user wants watched.
fn own_watch(args: &ApplyArgs) -> Result<Option<Watch>, Failure> {
    let (limit, worse) = match (args.above, args.below) {
        (Some(limit), _) => (limit, Worse::Above),
        (None, Some(limit)) => (limit, Worse::Below),
        (None, None) => return Ok(None),
    };
    let Some(command) = args.watch.as_ref() else { return Ok(None) };
    // As the guard does it: from the root folder, and the first word is the number.
    let mut once = Command::new("sh");
    once.args(["-c", command]).current_dir("/");
    let printed = run_captured(once, READING).map_err(Failure::usage)?.stdout_text();
    if printed.split_whitespace().next().and_then(|w| w.parse::<f64>().ok()).is_none() {
        return Err(Failure::usage(format!(
            "--watch {command}: it does not print a number first, run in /: {printed}"
        )));
    }
    Ok(Some(Watch {
        name: format!("`{command}`"),
        metric: Metric::Command(Program::new(["sh", "-c", command])),
        rate: false,
        every_ms: 1000,
        worse,
        limit,
        strikes: 3,
    }))
}

fn confirm(json: bool) -> Outcome {
    needs_root("confirm")?;
    let confirmed = Keeper::new(BY).confirm()?;
    if json {
        let mut value = set_json(&confirmed.set, None);
        value["problems"] = json!(confirmed.problems);
        value["already"] = json!(confirmed.already);
        print_json(&json!({ "schema": SCHEMA, "set": value }))?;
    } else {
        if confirmed.already {
            print("it was confirmed before\n")?;
        }
        print(&render_set(&confirmed.set))?;
    }
    for problem in &confirmed.problems {
        eprintln!("weir: {}", printable(problem));
    }
    if confirmed.problems.is_empty() { Ok(()) } else { Err(Failure::Silent(FAILED)) }
}

fn rollback(json: bool) -> Outcome {
    needs_root("rollback")?;
    let set = Keeper::new(BY).rollback()?;
    if json {
        print_json(&json!({ "schema": SCHEMA, "set": set_json(&set, None) }))?;
    } else {
        print(&render_set(&set))?;
    }
    let others = set.states.iter().any(|state| {
        matches!(state, StepState::Reverted { outcome: weir_guard::Outcome::LeftToOthers { .. } })
    });
    if !matches!(set.phase, Phase::Reverted { .. }) {
        return Err(Failure::failed(
            "something could not be put back; the next weir tune command tries again",
        ));
    }
    if others {
        eprintln!("weir: what somebody else changed since was left alone");
        return Err(Failure::Silent(FAILED));
    }
    Ok(())
}

fn status(json: bool) -> Outcome {
    let Some(status) = Keeper::new(BY).status()? else {
        return if json {
            print_json(&json!({ "schema": SCHEMA, "set": null }))
        } else {
            print("nothing was applied here\n")
        };
    };
    if !json {
        return print(&render_status(&status));
    }
    let mut set = set_json(&status.set, Some(&status.now));
    set["guarded"] = json!(status.guarded);
    set["remaining_s"] = json!(status.remaining_s);
    set["rebooted"] = json!(status.rebooted);
    set["busy"] = json!(status.busy);
    print_json(&json!({ "schema": SCHEMA, "set": set }))
}

fn set_json(set: &ChangeSet, now: Option<&[StepNow]>) -> Value {
    let begin = &set.begin;
    let steps = begin.steps.iter().zip(&set.states).enumerate().map(|(n, (step, state))| {
        let mut value = json!({
            "target": step.change.target(), "when": step.when, "old": step.old, "new": step.change.wanted(), "progress": state,
        });
        if let Some(now) = now {
            value["now"] = json!(now[n]);
        }
        value
    });
    json!({
        "id": begin.id, "by": begin.by, "title": begin.title, "applied_unix_s": begin.unix_s, "timeout_s": begin.timeout_s,
        "progress": set.phase, "confirmed_unix_s": set.confirmed_unix_s, "watches": begin.watches,
        "steps": steps.collect::<Vec<_>>(),
    })
}

fn prove(args: &ProveArgs) -> Outcome {
    needs_root("prove")?;
    Keeper::new(BY).make_way()?;
    let (plan, place) = plan(&args.what)?;
    if plan.is_empty() {
        can_be_written(&plan)?;
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
    let mut trial = Keeper::new(BY).try_out(plan.change_set(DAY.as_secs()), &sentinel())?;
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
    let output = run_captured(super::shell(line)?, limit).map_err(Failure::failed)?;
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
