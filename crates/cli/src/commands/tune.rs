//! `weir tune`, and the guard process behind it.

mod fastpath;
mod ports;
mod prove;
mod rfc;

use std::io;
use std::process::Command;
use std::time::Duration;

use weir_guard::{ChangeGuard, Metric, Namespace, Phase, Program, WatchedNumber, Worse};
use weir_sys::process::run_captured;
use weir_sys::{NetNs, ProcRoot};
use weir_tune::{Profile, Request, TunePlan, TunedHost, View, render_plan, render_set, render_status};

use super::conntrack::{namespace, namespace_path};
use super::on_trial;
use crate::args::tune::{ApplyArgs, TuneArgs, TuneCommand, WhatArgs};
use crate::documents::{Remove, Set, StatusSet, TuneApply, TuneStatus, print_json};
use crate::exit::{CommandResult, Failure, MISSING};
use crate::output::{print, printable, width};
use crate::talk::{self, note};
use ports::Ports;

/// Whose change sets these are.
pub(super) const BY: &str = "tune";
/// How long counters are watched before a change to know how fast they grow without it.
const BASELINE: Duration = Duration::from_secs(2);
/// Longest time for a reading of a number to be watched.
const READING: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &TuneArgs) -> CommandResult {
    match &args.command {
        TuneCommand::Plan(args) => {
            let Made { plan, .. } = make(&args.what, None)?;
            if args.json { print_json(&plan) } else { print(&page(&plan, "apply")) }
        }
        TuneCommand::Apply(args) => apply(args),
        TuneCommand::Confirm(args) => confirm(args.json),
        TuneCommand::Rollback(args) => on_trial::rollback(BY, args.json, render_set),
        TuneCommand::Remove(args) => remove(args.json),
        TuneCommand::Status(args) => status(args.json),
        TuneCommand::Prove(args) => prove::run(args),
    }
}

impl From<weir_tune::Error> for Failure {
    fn from(error: weir_tune::Error) -> Self {
        match error {
            weir_tune::Error::System(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                Failure::new(MISSING, format!("{e} (it needs root)"))
            }
            weir_tune::Error::System(e) => Failure::failed(e),
            other => Failure::usage(other),
        }
    }
}

/// Opens the network namespace of `--netns`; without it, the process's own.
fn place(netns: Option<&str>) -> Result<TunedHost, Failure> {
    let root = ProcRoot::default();
    let Some(name) = netns else {
        let own = Namespace::own()?;
        let view = View { root, namespace: None };
        return Ok(TunedHost { view, name: "this network namespace".into(), namespace: Some(own) });
    };
    let opened: NetNs = namespace(name)?;
    let known = Namespace::at(&opened, namespace_path(name))?;
    let view = View { root, namespace: Some(opened) };
    Ok(TunedHost { view, name: format!("network namespace {name}"), namespace: Some(known) })
}

/// A plan, where it is for, and what it has to do with published ports.
struct Made {
    plan: TunePlan,
    place: TunedHost,
    ports: Ports,
}

/// Plans. To go on with the plan, on trial for that time, a trial whose guards were killed is rolled back first; otherwise nothing is
/// changed.
fn make(what: &WhatArgs, trial_s: Option<u64>) -> Result<Made, Failure> {
    if trial_s.is_some() {
        ChangeGuard::new(BY).make_way()?;
    }
    let place = place(what.netns.name.as_deref())?;
    let findings = what.from.as_deref().map(super::doctor::read_report).transpose()?;
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
        advice: Vec::new(),
        notes: Vec::new(),
    };
    talk::step(|| {
        format!(
            "profiles {}, {} settings by --set, in {}",
            names(&request.profiles),
            request.set.len(),
            place.name
        )
    });
    let ports = match weir_tune::wish(&place, &request)? {
        Some(wish) => Ports::look(&wish, what, trial_s)?,
        None if what.outer.is_some() => {
            return Err(Failure::usage("--interface is for published ports: --profile published-ports"));
        }
        None => Ports::default(),
    };
    request.actions.extend(ports.action.clone());
    request.notes.extend(ports.note.clone());
    rfc::add(&place, what, &mut request)?;
    let offer = fastpath::Offer::look(&place, what, &request.profiles)?;
    request.actions.extend(offer.action);
    request.notes.extend(offer.note);
    talk::step(|| format!("reads counters and settings, for {:.1} s", request.window.as_secs_f64()));
    let plan = weir_tune::plan(&place, &request)?;
    talk::step(|| format!("planned {} settings and {} other changes", plan.rows.len(), plan.actions.len()));
    Ok(Made { plan, place, ports })
}

fn names(profiles: &[Profile]) -> String {
    if profiles.is_empty() {
        return "none".to_owned();
    }
    profiles.iter().map(|profile| profile.name()).collect::<Vec<_>>().join(", ")
}

fn page(plan: &TunePlan, next: &str) -> String {
    let mut page = render_plan(plan, width());
    if !plan.is_empty() && next == "apply" {
        page.push_str("nothing is changed yet: weir tune apply, with the same options, does it on trial\n");
    }
    page
}

fn apply(args: &ApplyArgs) -> CommandResult {
    on_trial::needs_root("tune apply")?;
    let Made { plan, place, ports } = make(&args.what, Some(args.confirm_within))?;
    if !args.json {
        print(&page(&plan, ""))?;
    }
    if plan.is_empty() {
        can_be_made(&plan, &ports)?;
        note("there is nothing to apply");
        return if args.json {
            print_json(&TuneApply { plan: &plan, set: None, unwatched: &[] })
        } else {
            Ok(())
        };
    }
    let mut new = plan.change_set(args.confirm_within);
    let unwatched = if args.no_watch {
        Vec::new()
    } else {
        let watched = weir_tune::watches(&plan, &place.view, BASELINE);
        new.watches = watched.watches;
        watched.gaps
    };
    new.watches.extend(own_watch(args)?);
    let watched: Vec<String> = new.watches.iter().map(|w| printable(&w.name)).collect();
    ports.keep()?;
    let set = on_trial::apply(BY, new)?;
    if args.json {
        return print_json(&TuneApply { plan: &plan, set: Some(Set::of(&set)), unwatched: &unwatched });
    }
    print(&format!("\n{}", render_set(&set)))?;
    for watched in watched {
        print(&format!("  watched: {watched}\n"))?;
    }
    for gap in unwatched {
        print(&format!("  {}\n", printable(&gap)))?;
    }
    on_trial::announce(BY, args.confirm_within, None);
    Ok(())
}

/// Whether a plan without anything to apply is one only because something is missing here.
fn can_be_made(plan: &TunePlan, ports: &Ports) -> CommandResult {
    if let Some(missing) = &ports.missing {
        return Err(Failure::new(MISSING, missing));
    }
    if !plan.is_blocked() {
        return Ok(());
    }
    let rows = plan.rows.iter().filter_map(|r| Some(format!("{}: {}", r.name, r.held.as_ref()?)));
    Err(Failure::new(MISSING, rows.collect::<Vec<_>>().join("; ")))
}

/// The number that a user wants watched.
fn own_watch(args: &ApplyArgs) -> Result<Option<WatchedNumber>, Failure> {
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
            "--watch-command {command}: it does not print a number first, run in /: {printed}"
        )));
    }
    Ok(Some(WatchedNumber {
        name: format!("`{command}`"),
        metric: Metric::Command(Program::new(["sh", "-c", command])),
        rate: false,
        every_ms: 1000,
        worse,
        limit,
        strikes: 3,
    }))
}

fn confirm(json: bool) -> CommandResult {
    on_trial::confirm(BY, json, |set, before| {
        let before = if before.is_empty() { "" } else { "it was confirmed before\n" };
        format!("{before}{}", render_set(set))
    })
}

fn status(json: bool) -> CommandResult {
    let Some(status) = ChangeGuard::new(BY).status()? else {
        return if json {
            print_json(&TuneStatus { set: None })
        } else {
            print("nothing was applied here\n")
        };
    };
    if json {
        return print_json(&TuneStatus { set: Some(StatusSet::of(&status)) });
    }
    print(&render_status(&status))
}

/// Rolls back whatever is left of the last set, and forgets it.
fn remove(json: bool) -> CommandResult {
    on_trial::needs_root("tune remove")?;
    let keeper = ChangeGuard::new(BY);
    let before = keeper.status().ok().flatten().filter(|s| !matches!(s.set.phase, Phase::Reverted { .. }));
    on_trial::before_remove(BY);
    let Some(before) = before else {
        return if json { print_json(&Remove { removed: &[] }) } else { print("nothing was applied\n") };
    };
    let Some(after) = keeper.status()? else { return Ok(()) };
    if json {
        let targets: Vec<String> = before.set.begin.steps.iter().map(|step| step.change.target()).collect();
        print_json(&Remove { removed: &targets })?;
    } else {
        print(&render_set(&after.set))?;
    }
    on_trial::rolled_back(BY, &after.set)
}
