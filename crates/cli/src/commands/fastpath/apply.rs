//! `weir fastpath apply` and `confirm`.

use weir_fastpath::{FastpathPlan, Visit, Wanted};
use weir_guard::{Change, ChangeGuard, NewSet, Program, When};
use weir_text::escape::line;

use super::{BY, make, objection_lines, page, visit};
use crate::args::fastpath::ApplyArgs;
use crate::commands::netns;
use crate::commands::on_trial::{self, needs_root, own};
use crate::documents::{FastpathApply, Set, print_json};
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::print;

/// Longest time for a start of the process that keeps it, s: a large table is filled with zeros first.
const LIMIT_S: u64 = 60;

pub(super) fn run(args: &ApplyArgs) -> CommandResult {
    needs_root("fastpath apply")?;
    ChangeGuard::new(BY).make_way()?;
    let plan = make(&args.what)?;
    check(&plan, args.force)?;
    let wanted = &plan.wanted;
    let id = wanted.id();
    let before = Visit::look()?;
    let same =
        |now: &&weir_fastpath::Now| now.wanted == *wanted && now.attached && now.trial_left_s.is_none();
    if let Some(now) = before.as_ref().filter(same) {
        // An exclusion may be on disk only: the process did not answer when it was made.
        if now.kept != plan.kept {
            visit()?.exclude(plan.kept.clone())?;
        }
        let document = FastpathApply { id: &id, wanted, set: None };
        return on_trial::nothing_to_do(args.json.then_some(&document));
    }
    let new = NewSet {
        title: title(wanted),
        namespace: Some(netns::entered(args.what.netns.name.as_deref())?),
        changes: vec![(
            When::Apply,
            change(wanted, before.map(|now| now.wanted).as_ref(), args.confirm_within)?,
        )],
        timeout_s: args.confirm_within,
        watches: Vec::new(),
    };
    let set = on_trial::apply(BY, new)?;
    if args.json {
        print_json(&FastpathApply { id: &id, wanted, set: Some(Set::of(&set)) })?;
    } else {
        print(&format!("{}undo: weir fastpath remove\n", page(&plan)))?;
    }
    on_trial::announce(BY, args.confirm_within, args.what.netns.name.as_deref());
    Ok(())
}

/// Refuses what would change the outcome for some packets.
pub(super) fn check(plan: &FastpathPlan, force: bool) -> CommandResult {
    let objections = plan.objections();
    if objections.is_empty() {
        return Ok(());
    }
    let list = objection_lines(&objections);
    if force {
        eprint!("warning: carried packets bypass:\n{list}");
        return Ok(());
    }
    Err(Failure::new(
        NOT_MET,
        format!(
            "carried packets would bypass what decides packet by packet; nothing was changed:\n{list}--force applies it nevertheless"
        ),
    ))
}

fn title(wanted: &Wanted) -> String {
    format!("the fast path between {}", wanted.interfaces.join(", "))
}

/// Starts the process that keeps it; a rollback starts the one before, or leaves all to the kernel.
pub(super) fn change(wanted: &Wanted, before: Option<&Wanted>, trial_s: u64) -> Result<Change, Failure> {
    let with = |args: &[&str], wanted: &Wanted| -> Result<Program, Failure> {
        let stdin = serde_json::to_string(wanted).map_err(Failure::failed)?;
        Ok(Program { stdin, ..own(args) })
    };
    Ok(Change::Commands {
        name: "fast path".into(),
        apply: with(&[BY, "load", "--trial", &trial_s.to_string()], wanted)?,
        undo: match before {
            Some(before) => with(&[BY, "load", "--or-unload"], before)?,
            None => own(&[BY, "unload"]),
        },
        confirm: Some(own(&[BY, "keep"])),
        read: own(&[BY, "state"]),
        limit_s: LIMIT_S,
        outlives_reboot: false,
    })
}

pub(super) fn confirm(json: bool) -> CommandResult {
    needs_root("fastpath confirm")?;
    on_trial::confirm(BY, json, |set, before| {
        format!("{} stays{before}, until the next reboot\n", line(&set.begin.title))
    })
}
