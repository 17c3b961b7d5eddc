//! `weir publish apply` and `confirm`: the shorter way on trial.

use std::fmt::Write as _;

use weir_guard::{ChangeGuard, NewSet, When};
use weir_publish::{Mapping, PublishPlan, Request, Wanted};
use weir_text::escape::line;

use super::{BY, change, shared};
use crate::args::publish::ApplyArgs;
use crate::commands::netns;
use crate::commands::on_trial::{self, needs_root};
use crate::documents::{PublishApply, Set, print_json};
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::print;
use crate::talk::{self, note};

pub(super) fn run(args: &ApplyArgs) -> CommandResult {
    needs_root("publish apply")?;
    let keeper = ChangeGuard::new(BY);
    keeper.make_way()?;
    let wanted = wanted(args)?;
    talk::step(|| format!("read the rules that publish ports: {}", title(&wanted)));
    let before = change::tidy()?;
    let id = wanted.id();
    if before.as_ref() == Some(&wanted) && weir_publish::is_whole(&wanted)? {
        let document = PublishApply { id: &id, wanted: &wanted, set: None };
        return on_trial::nothing_to_do(args.json.then_some(&document));
    }
    change::keep(&wanted, before.as_ref())?;
    let new = NewSet {
        title: title(&wanted),
        namespace: Some(netns::entered(args.netns.name.as_deref())?),
        changes: vec![(When::Apply, change::change(&wanted, before.as_ref(), args.confirm_within))],
        timeout_s: args.confirm_within,
        watches: Vec::new(),
    };
    let mut set = on_trial::apply(BY, new)?;
    if args.no_guard {
        set = keeper.confirm()?.set;
    }
    if args.json {
        print_json(&PublishApply { id: &id, wanted: &wanted, set: Some(Set::of(&set)) })?;
    } else {
        print(&format!("{}\nundo: weir publish remove\n", page(&wanted)))?;
    }
    if !args.no_guard {
        on_trial::announce(BY, args.confirm_within, args.netns.name.as_deref());
    }
    Ok(())
}

fn wanted(args: &ApplyArgs) -> Result<Wanted, Failure> {
    let plan = PublishPlan::make(&Request { outer: args.outer.clone(), link: args.link.clone() })?;
    let wanted = if args.all { plan.all()? } else { plan.only(&args.mappings)? };
    for left_out in plan.found.iter().filter(|f| args.all && f.why_not.is_some()) {
        let why = left_out.why_not.as_deref().unwrap_or_default();
        note(&format!("left to the kernel: {}: {}", left_out.published, line(why)));
    }
    let taken: Vec<Mapping> = wanted.mappings().filter(|m| plan.local_ports.contains(m)).copied().collect();
    if let Some(words) = shared(&taken) {
        note(&words);
    }
    let passed_by = plan.passed_by(&wanted);
    if passed_by.is_empty() {
        return Ok(wanted);
    }
    let chains = passed_by.join("; ");
    if !args.force {
        let text = format!(
            "packets would bypass rules that drop some of them: {chains}; nothing was changed (--force applies it \
             nevertheless; weir allow filters before it)"
        );
        return Err(Failure::new(NOT_MET, text));
    }
    eprintln!("warning: packets are not seen any more by: {}", line(&chains));
    Ok(wanted)
}

fn title(wanted: &Wanted) -> String {
    let ports = wanted.mappings().count();
    let links: Vec<&str> = wanted.containers.iter().map(|c| c.link.as_str()).collect();
    format!("{ports} ports from {} to {}", wanted.outer, links.join(", "))
}

fn page(wanted: &Wanted) -> String {
    let mut page = format!("published by BPF, for what comes in by {}:\n", line(&wanted.outer));
    for container in &wanted.containers {
        for mapping in &container.mappings {
            let _ = writeln!(page, "  {mapping} by {}", line(&container.link));
        }
    }
    page.push_str("established connections go on; the rules stay for what is not plain\n");
    page.trim_end().to_owned()
}

pub(super) fn confirm(json: bool) -> CommandResult {
    needs_root("publish confirm")?;
    if change::of_tune()?.is_some_and(|status| status.remaining_s.is_some()) {
        return Err(Failure::failed(
            "weir tune has it on trial, with what else it changed: weir tune confirm",
        ));
    }
    on_trial::confirm(BY, json, |set, before| {
        format!(
            "{} stay{before}, until the next reboot or until the container is started again\n",
            line(&set.begin.title)
        )
    })
}
