//! `weir fastpath exclude`.

use std::fmt::Write as _;

use weir_fastpath::{Exclusion, ExclusionStore, Visit};

use crate::args::fastpath::ExcludeArgs;
use crate::commands::on_trial::needs_root;
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::print;
use crate::talk::note;

pub(super) fn run(args: &ExcludeArgs) -> CommandResult {
    needs_root("fastpath exclude")?;
    let store = ExclusionStore::usual()?;
    let now = Visit::look()?;
    let of_apply = now.as_ref().map_or(Vec::new(), |now| now.wanted.excluded.clone());
    if args.excluded.is_empty() && !args.clear {
        return print(&list(&store.read()?, &of_apply));
    }
    let change = store.change()?;
    let before = store.read()?;
    let kept = if args.remove {
        without(before, &args.excluded, &of_apply)?
    } else {
        with(if args.clear { Vec::new() } else { before }, &args.excluded)
    };
    change.keep(&kept)?;
    // The file first: a process that starts just now reads it.
    match Visit::find()? {
        Some(visit) => visit.exclude(kept)?,
        None => note("no fast path is in effect here; this holds from the next apply on"),
    }
    if args.clear && !of_apply.is_empty() {
        note("exclusions of `weir fastpath apply --exclude` stay until the next apply");
    }
    Ok(())
}

fn with(mut kept: Vec<Exclusion>, added: &[Exclusion]) -> Vec<Exclusion> {
    for exclusion in added {
        if !kept.contains(exclusion) {
            kept.push(*exclusion);
        }
    }
    kept
}

/// All but those that are to go, each of which must be kept.
fn without(
    kept: Vec<Exclusion>,
    removed: &[Exclusion],
    of_apply: &[Exclusion],
) -> Result<Vec<Exclusion>, Failure> {
    if let Some(unknown) = removed.iter().find(|exclusion| !kept.contains(exclusion)) {
        let why = if of_apply.contains(unknown) {
            "it belongs to the last apply; end it by another `weir fastpath apply` without it"
        } else {
            "it is not excluded; list the exclusions with: weir fastpath exclude"
        };
        return Err(Failure::new(NOT_MET, format!("{unknown}: {why}; nothing was changed")));
    }
    Ok(kept.into_iter().filter(|exclusion| !removed.contains(exclusion)).collect())
}

fn list(kept: &[Exclusion], of_apply: &[Exclusion]) -> String {
    let mut page = String::new();
    for exclusion in kept {
        let _ = writeln!(page, "{exclusion}");
    }
    for exclusion in of_apply.iter().filter(|exclusion| !kept.contains(exclusion)) {
        let _ = writeln!(page, "{exclusion} (until the next apply)");
    }
    if page.is_empty() { "nothing is excluded\n".into() } else { page }
}

/// The kept ones in a plan and a status.
pub(super) fn kept_lines(kept: &[Exclusion]) -> String {
    kept.iter().map(|exclusion| format!("left to the kernel until exclude --remove: {exclusion}\n")).collect()
}

/// After everything was removed.
pub(super) fn remind() {
    match ExclusionStore::usual().and_then(|store| store.read()) {
        Ok(kept) if kept.is_empty() => {}
        Ok(_) => note("exclusions are kept for the next apply; end them with: weir fastpath exclude --clear"),
        // Only a new fast path needs them.
        Err(e) => note(&e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exclusions(texts: &[&str]) -> Vec<Exclusion> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn one_of_the_last_apply_or_of_none_cannot_be_removed() {
        let (kept, of_apply) = (exclusions(&["192.0.2.1", "192.0.2.2"]), exclusions(&["192.0.2.3"]));
        let remove = |texts: &[&str]| without(kept.clone(), &exclusions(texts), &of_apply);
        assert_eq!(remove(&["192.0.2.1"]).ok(), Some(exclusions(&["192.0.2.2"])));
        assert!(remove(&["192.0.2.1", "192.0.2.3"]).is_err(), "of the last apply");
        assert!(remove(&["192.0.2.1:53"]).is_err(), "of none");
    }

    #[test]
    fn the_list_says_what_ends_with_the_next_apply() {
        let (kept, of_apply) = (exclusions(&["192.0.2.1"]), exclusions(&["192.0.2.1", "192.0.2.3"]));
        assert_eq!(list(&kept, &of_apply), "192.0.2.1\n192.0.2.3 (until the next apply)\n");
        assert_eq!(list(&[], &[]), "nothing is excluded\n");
    }
}
