//! The interfaces that packets in transit come in by.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use weir_netlink::{Link, Rtnetlink};
use weir_text::order;

use crate::{Error, Result};

/// `net.ipv4.conf.NAME.forwarding`, or that of IPv6.
fn forwards(conf: &Path, name: &str) -> bool {
    ["ipv4", "ipv6"].iter().any(|family| {
        let path = conf.join(family).join("conf").join(name).join("forwarding");
        fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
    })
}

/// Those of [`choose`] that are here now, without an error for those that are not.
pub(crate) fn present(names: &[String]) -> Result<Vec<Link>> {
    let links = Rtnetlink::open()?.links()?;
    let is_one = |l: &Link| if names.is_empty() { transits(l) } else { names.contains(&l.name) };
    Ok(links.into_iter().filter(is_one).collect())
}

/// Addresses of the calling thread's namespace.
pub(crate) fn addresses() -> Result<BTreeSet<IpAddr>> {
    let links = Rtnetlink::open()?.links()?;
    Ok(order::set(links.into_iter().flat_map(|link| link.addresses).map(|(address, _)| address)))
}

/// Whether packets in transit come in by it. A port of a bridge or a bond is left out: its packets come in by the bridge or the bond.
fn transits(l: &Link) -> bool {
    l.up && l.master.is_none() && l.name != "lo" && forwards(Path::new("/proc/sys/net"), &l.name)
}

/// Names of the interfaces of the calling thread's namespace that [`crate::Watch`] attaches to if none is named.
///
/// # Errors
/// If they cannot be listed.
pub fn forwarding() -> Result<Vec<String>> {
    Ok(present(&[])?.into_iter().map(|link| link.name).collect())
}

/// Those of that name; without names those of [`forwarding`].
///
/// # Errors
/// If one is missing, or if none forwards.
pub(crate) fn choose(names: &[String]) -> Result<Vec<Link>> {
    let links = Rtnetlink::open()?.links()?;
    if names.is_empty() {
        let found: Vec<Link> = links.into_iter().filter(transits).collect();
        if found.is_empty() {
            return Err(Error::Options(
                "no interface that is up forwards packets here (net.ipv4.conf.*.forwarding); name one with --interface".into(),
            ));
        }
        return Ok(found);
    }
    let mut found = Vec::new();
    for name in names {
        let link = links.iter().find(|l| &l.name == name);
        let link =
            link.ok_or_else(|| Error::Options(format!("interface {} is not here", name.escape_default())))?;
        if !found.contains(link) {
            found.push(link.clone());
        }
    }
    Ok(found)
}
