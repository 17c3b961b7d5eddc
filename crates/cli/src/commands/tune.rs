//! `weir tune`, and the guard process behind it.

mod ports;
mod prove;

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use weir_doctor::tune::{
    self, LARGEST_FINDINGS, Place, Plan, Profile, Request, View, render_plan, render_set, render_status,
};
use weir_guard::{
    ChangeSet, Keeper, Metric, Namespace, Phase, Program, Sentinel, StepNow, StepState, Watch, Worse,
};
use weir_sys::privilege::Privilege;
use weir_sys::process::run_captured;
use weir_sys::{NetNs, ProcRoot};

use super::conntrack::namespace;
use super::on_trial::in_words;
use crate::args::tune::{ApplyArgs, TuneArgs, TuneCommand, WhatArgs};
use crate::exit::{FAILED, Failure, MISSING, Outcome, USAGE};
use crate::output::{print, print_json, printable, width};
use ports::Ports;

/// Whose change sets these are.
pub(super) const BY: &str = "tune";
/// Version of the JSON of change sets.
const SCHEMA: u32 = 1;
/// How long counters are watched before a change to know how fast they grow without it.
const BASELINE: Duration = Duration::from_secs(2);
/// Longest time for a reading of a number to be watched.
const READING: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &TuneArgs) -> Outcome {
    match &args.command {
        TuneCommand::Plan(args) => {
            let Made { plan, .. } = make(&args.what, false)?;
            if args.json { print_json(&plan) } else { print(&page(&plan, "apply")) }
        }
        TuneCommand::Apply(args) => apply(args),
        TuneCommand::Confirm(args) => confirm(args.json),
        TuneCommand::Rollback(args) => rollback(args.json),
        TuneCommand::Status(args) => status(args.json),
        TuneCommand::Prove(args) => prove::run(args),
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

/// A plan, where it is for, and what it has to do with published ports.
struct Made {
    plan: Plan,
    place: Place,
    ports: Ports,
}

/// Plans. To go on with the plan, what nobody answers for any more is taken back first; otherwise nothing is changed.
fn make(what: &WhatArgs, to_go_on: bool) -> Result<Made, Failure> {
    if to_go_on {
        Keeper::new(BY).make_way()?;
    }
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
    let mut request = Request {
        profiles,
        findings,
        set,
        memory: what.memory,
        peak: what.peak,
        rtt_ms: what.rtt,
        window: what.window,
        actions: Vec::new(),
        notes: Vec::new(),
    };
    let ports = match tune::wish(&place, &request)? {
        Some(wish) => Ports::look(&wish, what, to_go_on)?,
        None if what.outer.is_some() => {
            return Err(Failure::usage("--outer is for published ports: --profile published-ports"));
        }
        None => Ports::default(),
    };
    request.actions.extend(ports.action.clone());
    request.notes.extend(ports.note.clone());
    Ok(Made { plan: tune::plan(&place, &request)?, place, ports })
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
    let Made { plan, place, ports } = make(&args.what, true)?;
    if !args.json {
        print(&page(&plan, ""))?;
    }
    if plan.is_empty() {
        can_be_made(&plan, &ports)?;
        eprintln!("there is nothing to apply");
        return if args.json {
            print_json(&json!({ "schema": SCHEMA, "plan": plan, "set": null }))
        } else {
            Ok(())
        };
    }
    let mut new = plan.change_set(args.confirm_within);
    let unwatched = if args.no_watch {
        Vec::new()
    } else {
        let watched = tune::watches(&plan, &place.view, BASELINE);
        new.watches = watched.watches;
        watched.gaps
    };
    new.watches.extend(own_watch(args)?);
    let watched: Vec<String> = new.watches.iter().map(|w| printable(&w.name)).collect();
    ports.keep()?;
    let set = Keeper::new(BY).apply(new, &sentinel()).map_err(in_words)?;
    if args.json {
        return print_json(
            &json!({ "schema": SCHEMA, "plan": plan, "set": set_json(&set, None), "unwatched": unwatched }),
        );
    }
    print(&format!("\n{}", render_set(&set)))?;
    for watched in watched {
        print(&format!("  watched: {watched}\n"))?;
    }
    for gap in unwatched {
        print(&format!("  {}\n", printable(&gap)))?;
    }
    eprintln!("taken back in {} s, unless: weir tune confirm", args.confirm_within);
    Ok(())
}

/// Whether a plan without anything to apply is one only because something is missing here.
fn can_be_made(plan: &Plan, ports: &Ports) -> Outcome {
    if let Some(missing) = &ports.missing {
        return Err(Failure::new(MISSING, missing));
    }
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
