//! `weir publish apply` and `confirm`: the shorter way on trial.

use std::fmt::Write as _;

use serde_json::json;
use weir_guard::{Keeper, Namespace, NewSet, Sentinel, When};
use weir_publish::{Plan, Request, Wanted};

use super::{BY, SCHEMA, change, line};
use crate::args::publish::ApplyArgs;
use crate::commands::on_trial::{self, in_words, needs_root, set_json};
use crate::exit::{Failure, NOT_MET, Outcome};
use crate::output::{print, print_json};

pub(super) fn run(args: &ApplyArgs) -> Outcome {
    needs_root("publish apply")?;
    let keeper = Keeper::new(BY);
    keeper.make_way()?;
    let wanted = wanted(args)?;
    let before = change::tidy()?;
    let id = wanted.id();
    if before.as_ref() == Some(&wanted) && weir_publish::is_whole(&wanted)? {
        eprintln!("this is in effect already: there is nothing to do");
        return if args.json {
            print_json(&json!({ "schema": SCHEMA, "id": id, "set": null }))
        } else {
            Ok(())
        };
    }
    change::keep(&wanted, before.as_ref())?;
    let new = NewSet {
        title: title(&wanted),
        namespace: Some(Namespace::own()?),
        changes: vec![(When::Apply, change::change(&wanted, before.as_ref()))],
        timeout_s: args.confirm_within,
        watches: Vec::new(),
    };
    let mut set = keeper.apply(new, &Sentinel { args: vec!["guard".into()] }).map_err(in_words)?;
    if args.no_guard {
        set = keeper.confirm()?.set;
    }
    if args.json {
        print_json(&json!({ "schema": SCHEMA, "id": id, "wanted": wanted, "set": set_json(&set) }))?;
    } else {
        print(&format!("{}\nundo: weir publish remove\n", page(&wanted)))?;
    }
    if !args.no_guard {
        eprintln!("taken back in {} s, unless: weir publish confirm", args.confirm_within);
    }
    Ok(())
}

fn wanted(args: &ApplyArgs) -> Result<Wanted, Failure> {
    let plan = Plan::make(&Request { outer: args.outer.clone(), link: args.link.clone() })?;
    let wanted = if args.all { plan.all()? } else { plan.only(&args.mappings)? };
    for left_out in plan.found.iter().filter(|f| args.all && f.why_not.is_some()) {
        let why = left_out.why_not.as_deref().unwrap_or_default();
        eprintln!("left to the kernel: {}: {}", left_out.published, line(why));
    }
    let passed_by = plan.passed_by(&wanted);
    if passed_by.is_empty() {
        return Ok(wanted);
    }
    let chains = passed_by.join("; ");
    if !args.force {
        return Err(Failure::new(
            NOT_MET,
            format!(
                "packets would not be seen any more by rules that throw some away: {chains}; nothing was changed (--force \
                 does it all the same; weir allow filters before it)"
            ),
        ));
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

pub(super) fn confirm(json: bool) -> Outcome {
    needs_root("publish confirm")?;
    if change::of_tune()?.is_some_and(|status| status.remaining_s.is_some()) {
        return Err(Failure::failed(
            "weir tune has it on trial, with what else it changed: weir tune confirm",
        ));
    }
    on_trial::confirm(BY, "publish confirm", SCHEMA, json, |title, before| {
        format!(
            "{} stay{before}, until the next reboot or until the container is started again\n",
            line(title)
        )
    })
}
