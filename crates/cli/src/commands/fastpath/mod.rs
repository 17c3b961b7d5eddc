//! `weir fastpath`: established connections past the rules.

mod apply;
mod exclude;
mod resident;
mod status;

use std::fmt::Write as _;

use weir_fastpath::{
    Effect, ExclusionStore, FastpathPlan, Objection, Request, Visit, Wanted, XdpInterface, leftovers,
};
use weir_guard::Change;
use weir_sys::ProcRoot;
use weir_text::escape::line;
use weir_text::units;

use super::netns;
use super::on_trial::{self, needs_root};
use crate::args::fastpath::{ExplainArgs, FastpathArgs, FastpathCommand, PlanArgs, WhatArgs};
use crate::documents::{FastpathExplain, Remove, print_json};
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::print;
use crate::talk::note;

/// Whose change sets these are.
const BY: &str = "fastpath";

impl From<weir_fastpath::Error> for Failure {
    fn from(error: weir_fastpath::Error) -> Self {
        if matches!(error, weir_fastpath::Error::Nothing(_)) {
            return Failure::new(NOT_MET, error);
        }
        Failure::of_part(&error, error.is_usage(), error.is_missing())
    }
}

pub(crate) fn run(args: &FastpathArgs) -> CommandResult {
    netns::enter(args.command.netns())?;
    match &args.command {
        FastpathCommand::Plan(args) => plan(args),
        FastpathCommand::Apply(args) => apply::run(args),
        FastpathCommand::Status(args) => status::run(args),
        FastpathCommand::Explain(args) => explain(args),
        FastpathCommand::Pause(_) => pause(true),
        FastpathCommand::Resume(_) => pause(false),
        FastpathCommand::Exclude(args) => exclude::run(args),
        FastpathCommand::Confirm(args) => apply::confirm(args.json),
        FastpathCommand::Rollback(args) => on_trial::rollback(BY, args.json, on_trial::outcomes),
        FastpathCommand::Remove(args) => remove(args.json),
        FastpathCommand::Run(args) => resident::run(args),
        FastpathCommand::Load { or_unload, trial } => resident::load(*or_unload, *trial),
        FastpathCommand::Hold { trial } => resident::hold(*trial),
        FastpathCommand::Keep => resident::keep(),
        FastpathCommand::Unload => resident::unload(),
        FastpathCommand::State => print(&resident::state()?),
    }
}

/// The change that puts it into effect where there is none, as a part of a plan of `weir tune`.
pub(super) fn change(wanted: &Wanted) -> Result<Change, Failure> {
    apply::change(wanted, None, 1)
}

fn make(what: &WhatArgs) -> Result<FastpathPlan, Failure> {
    let request = Request {
        interfaces: what.interfaces.clone(),
        excluded: what.excluded.clone(),
        packets: what.packets,
        connections: what.connections,
        xdp: what.xdp,
        kept: ExclusionStore::usual()?.read()?,
    };
    Ok(FastpathPlan::make(&request, &ProcRoot::default())?)
}

fn plan(args: &PlanArgs) -> CommandResult {
    needs_root("fastpath plan")?;
    let plan = make(&args.what)?;
    if args.json { print_json(&plan) } else { print(&page(&plan)) }
}

fn page(plan: &FastpathPlan) -> String {
    let wanted = &plan.wanted;
    let names: Vec<String> = wanted.interfaces.iter().map(|name| line(name)).collect();
    let mut page = format!("established TCP and UDP flows between: {}\n", names.join(", "));
    for left in &plan.left_out {
        let _ = writeln!(page, "  left out: {}: {}", line(&left.name), line(&left.why));
    }
    let ipv6 = format!(" and {} of IPv6", units::count(wanted.connections6));
    let _ = writeln!(
        page,
        "room: {} connections of IPv4{}, in {}",
        units::count(wanted.connections),
        if plan.carries_ipv6 { &ipv6 } else { "" },
        units::bytes(plan.memory_bytes)
    );
    let _ = writeln!(page, "a flow is carried after {} packets of one direction", wanted.packets);
    if !wanted.xdp.is_empty() {
        page.push_str(&driver_lines(&plan.drivers));
    }
    for exclusion in &wanted.excluded {
        let _ = writeln!(page, "left to the kernel: {exclusion}");
    }
    page.push_str(&exclude::kept_lines(&plan.kept));
    for text in &plan.notes {
        let _ = writeln!(page, "note: {text}");
    }
    let objections = plan.objections();
    if !objections.is_empty() {
        page.push_str("carried packets would bypass, though these decide packet by packet:\n");
    }
    page.push_str(&objection_lines(&objections));
    let excluded: Vec<_> = plan.bypassed.iter().filter(|rule| rule.excluded).collect();
    if !excluded.is_empty() {
        page.push_str("decide packet by packet, and meet only flows that are excluded:\n");
    }
    for rule in excluded {
        let _ = writeln!(page, "  {}", line(&rule.to_string()));
    }
    let records: Vec<_> = plan.bypassed.iter().filter(|rule| rule.effect == Effect::Records).collect();
    if !records.is_empty() {
        page.push_str("would see only some packets of each flow:\n");
    }
    for rule in records {
        let _ = writeln!(page, "  {}", line(&rule.to_string()));
    }
    page
}

/// The packets that XDP carries at interfaces, and why not the rest.
pub(super) fn driver_lines(drivers: &[XdpInterface]) -> String {
    let mut text = "carried by XDP:\n".to_owned();
    for driver in drivers {
        let _ = writeln!(text, "  {}: {}", line(&driver.name), line(&what_xdp_carries(driver)));
    }
    text
}

fn what_xdp_carries(driver: &XdpInterface) -> String {
    match (&driver.incoming, &driver.outgoing) {
        (None, None) => "packets that come in or leave".into(),
        (None, Some(why)) => format!("packets that come in; those that leave not: {why}"),
        (Some(why), None) => format!("packets that leave; those that come in not: {why}"),
        (Some(why), Some(other)) if why == other => format!("nothing: {why}"),
        (Some(why), Some(other)) => format!("nothing: {why}; {other}"),
    }
}

/// Each with the exclusions that would leave its flows to the kernel.
pub(super) fn objection_lines(objections: &[Objection]) -> String {
    let mut text = String::new();
    for objection in objections {
        let _ = writeln!(text, "  {}", line(&objection.text));
        let options: Vec<String> = objection
            .exclusions
            .iter()
            .map(|x| format!("--exclude {}", weir_text::shell::word(&x.to_string())))
            .collect();
        let _ = match options.is_empty() {
            true => writeln!(text, "    no exclusion names its flows"),
            false => writeln!(text, "    its flows stay with the kernel by: {}", options.join(" ")),
        };
    }
    text
}

/// The process that keeps the fast path here.
fn visit() -> Result<Visit, Failure> {
    Visit::find()?.ok_or_else(|| Failure::new(NOT_MET, "no fast path is in effect here: weir fastpath apply"))
}

fn pause(pause: bool) -> CommandResult {
    needs_root(if pause { "fastpath pause" } else { "fastpath resume" })?;
    visit()?.pause(pause)?;
    note(if pause {
        "everything takes the kernel's way; go on with: weir fastpath resume"
    } else {
        "it carries again"
    });
    Ok(())
}

fn explain(args: &ExplainArgs) -> CommandResult {
    needs_root("fastpath explain")?;
    let protocol = args.protocol;
    let directions = visit()?.explain(protocol, args.source, args.destination)?;
    if args.loaded.json {
        return print_json(&FastpathExplain { directions });
    }
    let mut page = String::new();
    for direction in &directions {
        let _ = writeln!(
            page,
            "{protocol} {} -> {}: {}",
            direction.source,
            direction.destination,
            line(&direction.why)
        );
        if let Some(out) = &direction.out {
            let _ = writeln!(page, "  leaves as {} -> {}", out.source, out.destination);
        }
    }
    print(&page)
}

fn remove(json: bool) -> CommandResult {
    needs_root("fastpath remove")?;
    let mut before: Vec<String> = resident::state()?.lines().map(str::to_owned).collect();
    if before.is_empty() {
        before.extend(leftovers()?.iter().map(|name| format!("filters of an ended fast path at {name}")));
    }
    on_trial::remove(BY, resident::unload, resident::state)?;
    if json {
        return print_json(&Remove { removed: &before });
    }
    print(if before.is_empty() {
        "no fast path was in effect\n"
    } else {
        "removed; everything takes the kernel's way\n"
    })?;
    exclude::remind();
    Ok(())
}
