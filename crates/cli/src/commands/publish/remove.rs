//! `weir publish remove`.

use weir_publish::Store;

use super::{BY, change};
use crate::commands::on_trial::{self, needs_root};
use crate::documents::{Remove, print_json};
use crate::exit::CommandResult;
use crate::output::print;
use crate::talk::note;

/// Takes everything away. A journal that cannot be read must not keep it.
pub(super) fn run(json: bool) -> CommandResult {
    needs_root("publish remove")?;
    // Damaged programs and tables are also removed, and have no list of mappings.
    let loaded = weir_publish::loaded().unwrap_or_default();
    let before: Vec<String> = loaded.iter().flat_map(|p| &p.mappings).map(ToString::to_string).collect();
    let nothing = weir_publish::state().is_ok_and(|state| state.is_empty());
    let unload = || Ok(weir_publish::unload().and_then(|()| Store::usual().clear())?);
    on_trial::remove(BY, unload, || Ok(weir_publish::state()?))?;
    if change::of_tune().is_ok_and(|of_tune| of_tune.is_some()) {
        note("note: weir tune had applied it; weir tune rollback rolls back what else it changed");
    }
    if json {
        return print_json(&Remove { removed: &before });
    }
    if nothing {
        return print("nothing was published by BPF\n");
    }
    print("removed; the kernel's rules publish as before\n")
}
