//! The flow table beside a variant's rules, held by this process: it ends with it, and everything takes the kernel's way again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_fastpath::{Fastpath, Keeper, Options, Reason, Xdp};
use weir_netlink::ethtool::{Ethtool, is_meant};
use weir_sys::ProcRoot;

use crate::held::Held;
use crate::journal::Change;
use crate::options::{FastpathHook, FastpathOption};
use crate::{Error, Family, Journal, Place};

/// A table in effect, with the thread that keeps it.
pub(crate) struct Kept {
    fastpath: Arc<Fastpath>,
    keeper: Keeper,
    by_xdp: bool,
}

/// Tables in effect: they live as long as this process holds them.
pub(crate) static HELD: Held<Kept> = Held::new();

fn refused(error: weir_fastpath::Error) -> Error {
    match error {
        weir_fastpath::Error::System(e) => Error::System(e),
        other => Error::Unsupported(format!("fastpath: {other}")),
    }
}

/// Puts the table into effect at both interfaces of the gateway, if that is wanted.
pub(crate) fn begin(option: FastpathOption, place: &Place, journal: &mut Journal) -> Result<(), Error> {
    let Some(settings) = option.settings() else { return Ok(()) };
    let is_ipv6 = place.family == Family::Ipv6;
    let by_xdp = settings.hook == FastpathHook::Xdp;
    let options = Options::for_host(&ProcRoot::default(), (!is_ipv6, is_ipv6)).map_err(refused)?;
    let options = Options {
        xdp: if by_xdp { Xdp::SingleFrames } else { Xdp::Off },
        packets: settings.packets.unwrap_or(options.packets),
        ..options
    };
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
        if by_xdp {
            leaves_no_work(interface)?;
            fastpath.attach_xdp(interface).map_err(refused)?;
        }
    }
    let fastpath = Arc::new(fastpath);
    let keeper = Keeper::start(&fastpath).map_err(refused)?;
    HELD.add(place, Kept { fastpath, keeper, by_xdp });
    Ok(())
}

/// Checks that the programs are attached and kept.
pub(crate) fn verify(place: &Place) -> Result<(), Error> {
    let state = HELD.with(&place.tag, |kept| Ok((kept.fastpath.is_attached()?, kept.keeper.is_alive())));
    let wrong = match state.transpose().map_err(refused)? {
        Some((true, true)) => match HELD.with(&place.tag, why_not_by_xdp).flatten() {
            None => return Ok(()),
            Some(why) => format!("tc carries what XDP should: {why}"),
        },
        None => "its programs are not loaded".into(),
        Some((false, _)) => "an interface is gone, and its programs with it".into(),
        Some((true, false)) => "the thread that keeps it has ended".into(),
    };
    Err(Error::NotInEffect(format!("fastpath: {wrong}")))
}

/// XDP on a veth loses a checksum that the other end leaves to it. A lab gives all its interfaces the same offloads.
fn leaves_no_work(interface: &str) -> Result<(), Error> {
    let features = Ethtool::open()?.features(interface)?;
    match features.iter().find(|(name, is_on)| **is_on && is_meant("tx", name)) {
        None => Ok(()),
        Some((name, _)) => Err(Error::Unsupported(format!(
            "fastpath = \"xdp\": {interface} has {name}, so packets come without their checksums; the lab needs \
             offloads = {{ preset = \"off\", tx = false, gro = true }}"
        ))),
    }
}

/// Why XDP does not carry everything at one of the interfaces.
fn why_not_by_xdp(kept: &Kept) -> Option<String> {
    let interfaces = kept.fastpath.xdp_interfaces().into_iter();
    interfaces
        .filter(|_| kept.by_xdp)
        .find_map(|i| Some(format!("{}: {}", i.name, i.incoming.or(i.outgoing)?)))
}

/// Counts of a fast path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Packets that it carried, in drivers if that is what is measured.
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
    let status = HELD.with(&place.tag, |kept| Ok((kept.fastpath.status()?, kept.by_xdp)));
    let Some((status, by_xdp)) = status.transpose().map_err(refused)? else { return Ok(Carried::default()) };
    let came_in = status.reasons.iter().map(|(_, count)| count.packets).sum();
    let carried =
        if by_xdp { status.packets_by_xdp(Reason::Carried) } else { status.packets(Reason::Carried) };
    Ok(Carried { carried, came_in })
}
