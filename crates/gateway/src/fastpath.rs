//! The flow table beside a variant's rules, held by this process: it ends with it, and everything takes the kernel's way again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_fastpath::{Fastpath, Keeper, Options, Reason};
use weir_sys::ProcRoot;

use crate::held::Held;
use crate::journal::Change;
use crate::{Error, Family, Journal, Place};

/// A table in effect, with the thread that keeps it.
pub(crate) struct Kept {
    fastpath: Arc<Fastpath>,
    keeper: Keeper,
}

/// Tables in effect: they live as long as this process holds them.
pub(crate) static HELD: Held<Kept> = Held::new();

fn refused(error: weir_fastpath::Error) -> Error {
    match error {
        weir_fastpath::Error::System(e) => Error::System(e),
        other => Error::Unsupported(format!("fastpath: {other}")),
    }
}

/// Puts the table into effect at both interfaces of the gateway.
pub(crate) fn begin(place: &Place, journal: &mut Journal) -> Result<(), Error> {
    let is_ipv6 = place.family == Family::Ipv6;
    let options = Options::for_host(&ProcRoot::default(), (!is_ipv6, is_ipv6)).map_err(refused)?;
    let fastpath = Fastpath::load(options).map_err(refused)?;
    if is_ipv6 && !fastpath.carries_ipv6() {
        return Err(Error::Unsupported(
            "fastpath: IPv6 needs a kernel that knows BPF_F_IPV6 (Linux 6.16, or a stable series with the correction)".into(),
        ));
    }
    // No other process knows of it before it is in the journal; this process's end removes it.
    journal.record(Change::Fastpath { tag: place.tag.clone() })?;
    for interface in [&place.inside_interface, &place.outside_interface] {
        fastpath.attach(interface).map_err(refused)?;
    }
    let fastpath = Arc::new(fastpath);
    let keeper = Keeper::start(&fastpath).map_err(refused)?;
    HELD.add(place, Kept { fastpath, keeper });
    Ok(())
}

/// Checks that the programs are attached and kept.
pub(crate) fn verify(place: &Place) -> Result<(), Error> {
    let state = HELD.with(&place.tag, |kept| Ok((kept.fastpath.is_attached()?, kept.keeper.is_alive())));
    let wrong = match state.transpose().map_err(refused)? {
        Some((true, true)) => return Ok(()),
        None => "its programs are not loaded",
        Some((false, _)) => "an interface is gone, and its programs with it",
        Some((true, false)) => "the thread that keeps it has ended",
    };
    Err(Error::NotInEffect(format!("fastpath: {wrong}")))
}

/// Counts of a fast path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Packets that it carried.
    pub carried: u64,
    /// All packets that came in by its interfaces.
    pub came_in: u64,
}

impl Carried {
    /// The counts since an earlier reading.
    pub fn since(self, before: Carried) -> Carried {
        Carried {
            carried: self.carried.saturating_sub(before.carried),
            came_in: self.came_in.saturating_sub(before.came_in),
        }
    }
}

/// The counts so far; zero if it is not in effect.
pub(crate) fn carried(place: &Place) -> Result<Carried, Error> {
    let status = HELD.with(&place.tag, |kept| kept.fastpath.status()).transpose().map_err(refused)?;
    let Some(status) = status else { return Ok(Carried::default()) };
    let came_in = status.reasons.iter().map(|(_, count)| count.packets).sum();
    Ok(Carried { carried: status.packets(Reason::Carried), came_in })
}
