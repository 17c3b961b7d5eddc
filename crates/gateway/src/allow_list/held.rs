//! Active objects outside of the rules: BPF filters, which this process holds, and sets of ipset.

use weir_filter::{Filter, Status};

use crate::held::Held;
use crate::{Error, Place, command};

/// Filters in effect: they live as long as this process holds them.
pub(crate) static HELD: Held<Filter> = Held::new();

/// Packets with which the filter of that place did what that action says; `None` where there is none.
pub(super) fn counted(place: &Place, action: &str) -> Result<Option<u64>, Error> {
    let status = HELD.with(&place.tag, Filter::status).transpose().map_err(refused)?;
    let of_it = |status: Status| status.classes.iter().filter(|c| c.2 == action).map(|c| c.3.packets).sum();
    Ok(status.map(of_it))
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
