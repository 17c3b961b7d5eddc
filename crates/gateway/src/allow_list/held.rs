//! Active objects outside of the rules: BPF filters, which this process holds, and sets of ipset.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_filter::Filter;

use crate::{Error, command};

/// Filters in effect, by the tag of their place: they live as long as this process holds them.
static FILTERS: Mutex<Vec<(String, Filter)>> = Mutex::new(Vec::new());

fn filters() -> MutexGuard<'static, Vec<(String, Filter)>> {
    FILTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds a filter for a place.
pub(super) fn hold(tag: &str, filter: Filter) {
    filters().push((tag.to_owned(), filter));
}

/// Takes the filter of that place away, if it is there.
pub(crate) fn remove_filter(tag: &str) {
    filters().retain(|(held, _)| held != tag);
}

/// Packets with which the filter of that place did what that action says; `None` where there is none.
pub(super) fn counted(tag: &str, action: &str) -> Result<Option<u64>, Error> {
    let held = filters();
    let Some((_, filter)) = held.iter().find(|(held, _)| held == tag) else { return Ok(None) };
    let status = filter.status().map_err(refused)?;
    Ok(Some(status.classes.iter().filter(|c| c.2 == action).map(|c| c.3.packets).sum()))
}

/// Takes a set of ipset away, if it is there.
pub(crate) fn remove_ipset(set: &str) -> Result<(), Error> {
    if command::succeeds("ipset", &["list", "-n", set])? {
        command::run("ipset", &["destroy", set])?;
    }
    Ok(())
}

/// Wraps an error of BPF.
pub(super) fn refused(error: weir_filter::BpfError) -> Error {
    Error::Unsupported(format!("the BPF filter: {error}"))
}
