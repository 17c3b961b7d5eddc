//! A driver's counters, and its numbers of rings and queues.

use std::collections::BTreeMap;
use std::io;

use super::{Ethtool, u32_at, with_room};
use weir_sys::error::{Context, Result};

/// ETHTOOL_GRINGPARAM, ETHTOOL_GSTATS, ETHTOOL_GCHANNELS.
const GET_RINGS: u32 = 0x10;
const GET_COUNTERS: u32 = 0x1d;
const GET_CHANNELS: u32 = 0x3c;
/// ETH_SS_STATS.
const COUNTER_NAMES: u32 = 1;

/// Descriptors of a card's rings: now, and the most that it can have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rings {
    /// To receive.
    pub rx: u32,
    /// The most.
    pub rx_most: u32,
    /// To send.
    pub tx: u32,
    /// The most.
    pub tx_most: u32,
}

/// Queues of a card that receive: those of its own and those that also send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Channels {
    /// Now.
    pub rx: u32,
    /// The most that it can have.
    pub rx_most: u32,
    /// Receiving queues that also send (`combined`).
    pub combined: u32,
    /// The most of those.
    pub combined_most: u32,
}

impl Ethtool {
    /// Returns the driver's counters by its own names, those of `ethtool -S`. Empty if it counts nothing.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn counters(&self, interface: &str) -> Result<BTreeMap<String, u64>> {
        let what = || format!("read the driver's counters of {interface}");
        let names = match self.strings(interface, COUNTER_NAMES) {
            Err(e) if is_absent(&e) => return Ok(BTreeMap::new()),
            other => other.context(what)?,
        };
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        // struct ethtool_stats: command, number, then the values.
        let mut data = vec![0; 8 + with_room(names.len()) * 8];
        data[..4].copy_from_slice(&GET_COUNTERS.to_ne_bytes());
        data[4..8].copy_from_slice(&(names.len() as u32).to_ne_bytes());
        match self.call(interface, &mut data) {
            Err(e) if is_absent(&e) => return Ok(BTreeMap::new()),
            other => other.context(what)?,
        }
        let count = u32_at(&data, 4) as usize;
        let value = |word: &[u8]| u64::from_ne_bytes(word.try_into().unwrap_or_default());
        // Not by `collect`, which would sort them first, by several kilobytes of code.
        let mut counters = BTreeMap::new();
        counters.extend(names.into_iter().take(count).zip(data[8..].chunks_exact(8).map(value)));
        Ok(counters)
    }

    /// The rings; `None` where the driver does not tell of any.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn rings(&self, interface: &str) -> Result<Option<Rings>> {
        // struct ethtool_ringparam: most rx, mini, jumbo, tx.
        let told = self.limits(interface, GET_RINGS).context(|| format!("read the rings of {interface}"))?;
        Ok(told.map(|[most, now]| Rings { rx_most: most[0], tx_most: most[3], rx: now[0], tx: now[3] }))
    }

    /// The queues; `None` where the driver does not tell.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn channels(&self, interface: &str) -> Result<Option<Channels>> {
        // struct ethtool_channels: most rx, tx, other, combined.
        let told =
            self.limits(interface, GET_CHANNELS).context(|| format!("read the queues of {interface}"))?;
        Ok(told.map(|[most, now]| Channels {
            rx_most: most[0].max(most[3]),
            combined_most: most[3],
            rx: now[0] + now[3],
            combined: now[3],
        }))
    }

    /// Four numbers behind the command, the most that they can be and what they are now; `None` where the driver has none.
    fn limits(&self, interface: &str, command: u32) -> io::Result<Option<[[u32; 4]; 2]>> {
        let mut data = [0u8; 36];
        data[..4].copy_from_slice(&command.to_ne_bytes());
        match self.call(interface, &mut data) {
            Ok(()) => Ok(Some([4, 20].map(|from| [0, 4, 8, 12].map(|at| u32_at(&data, from + at))))),
            Err(e) if is_absent(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// True if the driver has no such thing, which it says in several ways.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{Rtnetlink, VethEnd};
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    #[test]
    fn root_counters_and_queues_are_what_ethtool_shows() {
        if test_needs_root() {
            return;
        }
        if weir_sys::process::which("ethtool").is_none() {
            println!("SKIP: ethtool is not installed");
            return;
        }
        let ns = NetNs::create().unwrap();
        let end = |name| VethEnd { name, namespace: None, mtu: 1500, mac: None };
        Rtnetlink::open_in(&ns).unwrap().create_veth(end("eth0"), end("eth1")).unwrap();
        let shown = |option: &str| {
            let mut command = Command::new("ethtool");
            command.args([option, "eth0"]);
            ns.enter_on_spawn(&mut command);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        let ethtool = ns.run(Ethtool::open).unwrap().unwrap();
        let text = shown("-S");
        let lines = text.lines().skip(1).filter_map(|l| l.trim().split_once(": "));
        let expected: BTreeMap<String, u64> =
            lines.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect();
        assert!(expected.contains_key("peer_ifindex"), "{text}");
        assert_eq!(ethtool.counters("eth0").unwrap(), expected);
        let channels = ethtool.channels("eth0").unwrap().unwrap();
        let text = shown("-l");
        let numbers: Vec<u32> =
            text.lines().filter_map(|l| l.strip_prefix("RX:")?.trim().parse().ok()).collect();
        assert_eq!(vec![channels.rx_most, channels.rx], numbers, "{text}");
        // A veth pair has a ring that cannot be set, and loopback counts nothing.
        assert_eq!(ethtool.rings("eth0").unwrap(), None);
        assert_eq!(ethtool.counters("lo").unwrap(), BTreeMap::new());
        assert!(ethtool.counters("nothing").is_err());
    }
}
