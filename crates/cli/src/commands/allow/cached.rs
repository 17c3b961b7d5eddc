//! Lists out of the cache.

use std::path::Path;

use weir_guard::unix_s;
use weir_lists::{Cache, Registry};
use weir_prefix::{List, Selection};
use weir_text::time::duration;

use super::add_bytes;
use crate::args::allow::ListArgs;
use crate::exit::{Failure, MISSING};
use crate::output::printable;
use crate::talk::note;

/// Registries publish every day: who was not asked for a week is probably not asked any more.
const OLD_S: u64 = 7 * 86_400;

/// The folder that was named, or the usual one.
pub(super) fn folder(named: Option<&Path>) -> Result<Cache, Failure> {
    named.map_or_else(|| Cache::usual().map_err(Failure::usage), |path| Ok(Cache::at(path)))
}

/// Adds the registries' files, and says how old they are.
pub(super) fn add(list: &mut List, args: &ListArgs, selection: &Selection) -> Result<(), Failure> {
    let cache = folder(args.cache.as_deref())?;
    let registries = if args.registries.is_empty() { &Registry::ALL } else { args.registries.as_slice() };
    let (mut ages, mut missing) = (Vec::new(), Vec::new());
    for registry in registries {
        match cache.stored(&registry.file_name()).map_err(Failure::failed)? {
            None => missing.push(registry.name()),
            Some(stored) => {
                ages.push((stored.age_s(unix_s()), registry.name()));
                let name = stored.path.display().to_string();
                add_bytes(list, &name, &stored.bytes, selection, args.skip_bad_lines)?;
            }
        }
    }
    let folder = cache.folder().display().to_string();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        let text = format!(
            "{folder} has no file of {missing}: run `weir allow update`, name a FILE, or choose with --registry"
        );
        return Err(Failure::new(MISSING, text));
    }
    let old: Vec<String> = ages
        .iter()
        .filter(|(s, _)| *s > OLD_S)
        .map(|(s, name)| format!("{name} ({})", duration(*s as f64)))
        .collect();
    if let Some((oldest, _)) = ages.iter().max() {
        note(&format!(
            "lists of {}, last found current {} ago",
            printable(&folder),
            duration(*oldest as f64)
        ));
    }
    if !old.is_empty() {
        eprintln!(
            "warning: these lists were not checked for long: {}; run `weir allow update`",
            old.join(", ")
        );
    }
    Ok(())
}
