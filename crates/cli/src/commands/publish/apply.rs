//! `weir publish apply` and `confirm`: the shorter way on trial.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;
use weir_guard::{Change, Keeper, Namespace, NewSet, Sentinel, When};
use weir_publish::{Plan, Request, Store, Wanted};

use super::{BY, SCHEMA, line};
use crate::args::publish::ApplyArgs;
use crate::commands::on_trial::{self, in_words, needs_root, own, set_json, text};
use crate::exit::{Failure, NOT_MET, Outcome};
use crate::output::{print, print_json};

/// Longest time for a loading, s: some tables and two programs for each container, on a busy machine.
const LIMIT_S: u64 = 60;

pub(super) fn run(args: &ApplyArgs) -> Outcome {
    needs_root("publish apply")?;
    let keeper = Keeper::new(BY);
    keeper.make_way()?;
    let wanted = wanted(args)?;
    let store = Store::usual();
    let before = tidy(&store)?;
    let id = wanted.id();
    if before.as_ref() == Some(&wanted) && weir_publish::is_whole(&wanted)? {
        eprintln!("this is in effect already: there is nothing to do");
        return if args.json {
            print_json(&json!({ "schema": SCHEMA, "id": id, "set": null }))
        } else {
            Ok(())
        };
    }
    let path = store.keep(&wanted)?;
    let before_id = before.as_ref().map(Wanted::id);
    let undo = match &before_id {
        // If it cannot be loaded any more, because its container is gone, the kernel has the packets.
        Some(before) => own(&["publish", "load", "--or-unload", &text(&store.path(before))]),
        None => own(&["publish", "unload"]),
    };
    let keep: Vec<&str> = std::iter::once(id.as_str()).chain(before_id.as_deref()).collect();
    store.forget_but(&keep)?;
    let new = NewSet {
        title: title(&wanted),
        namespace: Some(Namespace::own()?),
        changes: vec![(
            When::Apply,
            Change::Commands {
                name: "published ports".into(),
                apply: own(&["publish", "load", &text(&path)]),
                undo,
                read: own(&["publish", "state"]),
                limit_s: LIMIT_S,
                outlives_reboot: false,
            },
        )],
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

/// Takes away what is in effect no more, and says what is.
fn tidy(store: &Store) -> Result<Option<Wanted>, Failure> {
    let Some(id) = weir_publish::loaded_id()? else {
        if weir_publish::state()?.lines().any(|line| !line.starts_with("tables ")) {
            return Err(Failure::failed(
                "programs of weir's are attached whose tables are gone: weir publish remove takes them away; nothing was \
                 changed",
            ));
        }
        // Tables that nothing uses, of something that was killed.
        weir_publish::unload()?;
        return Ok(None);
    };
    let Some(before) = store.find(&id)? else {
        return Err(Failure::failed(format!(
            "what is in effect ({id}) is not on disk in {}: it could not be put back (weir publish remove takes it away)",
            store.path(&id).display()
        )));
    };
    if weir_publish::is_whole(&before)? {
        return Ok(Some(before));
    }
    // What is left is loaded as a set of its own, to which the way back leads.
    match weir_publish::alive(&before)? {
        None => {
            weir_publish::unload()?;
            Ok(None)
        }
        Some(alive) => {
            store.keep(&alive)?;
            weir_publish::load(&alive)?;
            Ok(Some(alive))
        }
    }
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
    on_trial::confirm(BY, "publish confirm", SCHEMA, json, |title, before| {
        format!(
            "{} stay{before}, until the next reboot or until the container is started again\n",
            line(title)
        )
    })
}

/// `weir publish load`: what the guard calls to make and to take back.
pub(super) fn load_now(path: &Path, or_unload: bool) -> Outcome {
    let loaded = Store::read(path).and_then(|wanted| weir_publish::load(&wanted));
    if loaded.is_err() && or_unload {
        return Ok(weir_publish::unload()?);
    }
    Ok(loaded?)
}
