//! Lists out of the cache.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use weir_lists::{Cache, Registry};
use weir_prefix::{List, Selection};

use super::add_bytes;
use crate::args::allow::ListArgs;
use crate::exit::{Failure, MISSING};
use crate::output::printable;

/// Registries publish every day: who was not asked for a week is probably not asked any more.
const OLD_S: u64 = 7 * 86_400;

/// The folder that was named, or the usual one.
pub(super) fn folder(named: Option<&Path>) -> Result<Cache, Failure> {
    named.map_or_else(|| Cache::usual().map_err(Failure::usage), |path| Ok(Cache::at(path)))
}

/// Seconds since 1970.
pub(super) fn now_s() -> u64 {
    // A clock before 1970 was never set; everything is from its future then.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
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
                ages.push((stored.age_s(now_s()), registry.name()));
                let name = stored.path.display().to_string();
                add_bytes(list, &name, &stored.bytes, selection, args.skip_bad_lines)?;
            }
        }
    }
    let folder = cache.folder().display().to_string();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Err(Failure::new(
            MISSING,
            format!(
                "{folder} has no file of {missing}: run `weir allow update`, name a FILE, or choose with --registry"
            ),
        ));
    }
    let old: Vec<String> =
        ages.iter().filter(|(s, _)| *s > OLD_S).map(|(s, name)| format!("{name} ({})", age(*s))).collect();
    if let Some((oldest, _)) = ages.iter().max() {
        eprintln!("lists of {}, last found current {} ago", printable(&folder), age(*oldest));
    }
    if !old.is_empty() {
        eprintln!(
            "warning: nobody asked for newer lists for long: {}; run `weir allow update`",
            old.join(", ")
        );
    }
    Ok(())
}

/// A time in words.
pub(super) fn age(s: u64) -> String {
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", s / 60),
        7200..172_800 => format!("{} h", s / 3600),
        _ => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_rounded_down() {
        for (s, text) in [
            (0, "0 s"),
            (119, "119 s"),
            (7199, "119 min"),
            (7200, "2 h"),
            (172_799, "47 h"),
            (691_199, "7 days"),
        ] {
            assert_eq!(age(s), text);
        }
    }
}
