//! `weir publish remove`.

use serde_json::json;
use weir_guard::{Keeper, Phase};
use weir_publish::Store;

use super::{BY, SCHEMA, change};
use crate::commands::on_trial::needs_root;
use crate::exit::{Failure, Outcome};
use crate::output::{print, print_json, printable};

/// Takes everything away. A journal that cannot be read must not keep it.
pub(super) fn run(json: bool) -> Outcome {
    needs_root("publish remove")?;
    let keeper = Keeper::new(BY);
    // What is damaged is taken away all the same, and has no list of mappings.
    let loaded = weir_publish::loaded().unwrap_or_default();
    let before: Vec<String> = loaded.iter().flat_map(|p| &p.mappings).map(ToString::to_string).collect();
    let nothing = weir_publish::state().is_ok_and(|state| state.is_empty());
    match keeper.status() {
        // Taken back first, so that its guard process ends and finds nothing to do, and so that nobody misses what was confirmed.
        Ok(Some(status)) if !matches!(status.set.phase, Phase::Reverted { .. }) => {
            if let Err(e) = keeper.rollback() {
                eprintln!("warning: what was applied could not be taken back: {}", printable(&e.to_string()));
            }
        }
        Ok(_) => {}
        Err(e) => eprintln!("warning: {}", printable(&e.to_string())),
    }
    weir_publish::unload()?;
    Store::usual().clear()?;
    // What could not be put back before is settled: there is nothing left to put back.
    if keeper.status().is_ok_and(|status| status.is_some_and(|status| status.set.is_in_flight())) {
        keeper.abandon("weir publish remove")?;
    }
    let left = weir_publish::state()?;
    if !left.is_empty() {
        return Err(Failure::failed(format!("something is still there: {left}")));
    }
    if change::of_tune().is_ok_and(|of_tune| of_tune.is_some()) {
        eprintln!("note: weir tune had applied it; weir tune rollback takes back what else it changed");
    }
    if json {
        return print_json(&json!({ "schema": SCHEMA, "removed": before }));
    }
    if nothing {
        return print("nothing was published by BPF\n");
    }
    print("removed; the kernel's rules publish as before\n")
}
