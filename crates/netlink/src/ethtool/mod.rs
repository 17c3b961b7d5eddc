//! Offloads, driver, its counters, rings and queues of an interface (SIOCETHTOOL, include/uapi/linux/ethtool.h).
//!
//! Offloads have the kernel's own feature names (`rx-gro`, `tx-generic-segmentation`, `tx-udp-segmentation`, ...) or the short
//! ones of ethtool(8): `gro`, `gso`, `tso`, `rx`, `tx`.
#![allow(unsafe_code, reason = "ioctl(2) SIOCETHTOOL takes a pointer inside a structure")]

mod counters;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use weir_sys::error::{Context, Error, Result};

pub use counters::{Channels, Rings};

/// Commands and sizes of include/uapi/linux/ethtool.h.
const GET_DRIVER: u32 = 0x03;
const GET_STRINGS: u32 = 0x1b;
const GET_STRING_SET: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;
/// ETH_SS_FEATURES: the string set that names the features.
const FEATURE_NAMES: u32 = 4;
/// ETH_GSTRING_LEN.
const NAME_LEN: usize = 32;

/// An interface's features: whether each is active, by the kernel's name.
pub type Features = BTreeMap<String, bool>;

/// A handle for the interfaces of the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
}

/// One word of features as the kernel reports it (`struct ethtool_get_features_block`).
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    available: u32,
    active: u32,
    never_changed: u32,
}

impl Ethtool {
    /// For the calling thread's namespace; it stays with it in every thread.
    pub fn open() -> Result<Self> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .context(|| "open a socket for ethtool".into())?;
        Ok(Ethtool { socket })
    }

    /// The driver's name (`veth`, `virtio_net`), empty where there is none (`lo`).
    pub fn driver(&self, interface: &str) -> Result<String> {
        // struct ethtool_drvinfo: the command, then 32 bytes of name, 196 bytes in all.
        let mut data = [0u8; 196];
        data[..4].copy_from_slice(&GET_DRIVER.to_ne_bytes());
        match self.call(interface, &mut data) {
            Ok(()) => Ok(text(&data[4..4 + NAME_LEN])),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(String::new()),
            Err(e) => Err(Error::new(format!("read the driver of {interface}"), e)),
        }
    }

    /// All features that this device has, on or off.
    pub fn features(&self, interface: &str) -> Result<Features> {
        let what = || format!("read the offloads of {interface}");
        let names = self.names(interface).context(what)?;
        let blocks = self.blocks(interface, names.len()).context(what)?;
        let state = |i: usize| {
            let (block, bit) = (blocks.get(i / 32)?, 1 << (i % 32));
            // The kernel lists the features of all devices; this one has those that it can switch or that are on.
            (block.available & bit != 0 || block.active & bit != 0).then_some(block.active & bit != 0)
        };
        Ok(names.into_iter().enumerate().filter_map(|(i, name)| Some((name, state(i)?))).collect())
    }

    /// Switches features on or off, in one step. Names are the kernel's or a short one of [`is_meant`].
    ///
    /// # Errors
    /// A name that the device does not have, or a feature that it cannot switch; nothing is changed then. Also when a
    /// feature is as before because another one that it needs is off.
    pub fn set(&self, interface: &str, wanted: &BTreeMap<String, bool>) -> Result<()> {
        let what = || format!("set offloads of {interface}");
        let names = self.names(interface).context(what)?;
        let blocks = self.blocks(interface, names.len()).context(what)?;
        let wanted = select(&names, &blocks, wanted).map_err(|why| Error::other(what(), why))?;
        // struct ethtool_sfeatures: command, number of words, then (valid, requested) per word.
        let words = blocks.len();
        let mut data = vec![0; 8 + words * 8];
        data[..4].copy_from_slice(&SET_FEATURES.to_ne_bytes());
        data[4..8].copy_from_slice(&(words as u32).to_ne_bytes());
        for &(i, on) in &wanted {
            let at = 8 + i / 32 * 8;
            let bit = 1u32 << (i % 32);
            set_bit(&mut data[at..at + 4], bit);
            if on {
                set_bit(&mut data[at + 4..at + 8], bit);
            }
        }
        self.call(interface, &mut data).context(what)?;
        let now = self.blocks(interface, names.len()).context(what)?;
        for (i, on) in wanted {
            if now.get(i / 32).is_some_and(|b| (b.active & 1 << (i % 32) != 0) != on) {
                let state = if on { "off" } else { "on" };
                return Err(Error::other(
                    what(),
                    format!("{} stays {state}: the device or another feature forbids it", names[i]),
                ));
            }
        }
        Ok(())
    }

    /// Names of all features by their number.
    fn names(&self, interface: &str) -> io::Result<Vec<String>> {
        self.strings(interface, FEATURE_NAMES)
    }

    /// The names of a set of strings (ETH_SS_*); none of a set that the device lacks.
    fn strings(&self, interface: &str, set: u32) -> io::Result<Vec<String>> {
        // struct ethtool_sset_info: command, reserved, mask of sets, then one length.
        let mut info = [0u8; 20];
        info[..4].copy_from_slice(&GET_STRING_SET.to_ne_bytes());
        info[8..16].copy_from_slice(&(1u64 << set).to_ne_bytes());
        self.call(interface, &mut info)?;
        // The mask that comes back has the sets that it has.
        let count = if u32_at(&info, 8) & 1 << set == 0 { 0 } else { u32_at(&info, 16) as usize };
        if count == 0 {
            return Ok(Vec::new());
        }
        // struct ethtool_gstrings: command, set, length, then the names.
        let mut data = vec![0; 12 + with_room(count) * NAME_LEN];
        data[..4].copy_from_slice(&GET_STRINGS.to_ne_bytes());
        data[4..8].copy_from_slice(&set.to_ne_bytes());
        data[8..12].copy_from_slice(&(count as u32).to_ne_bytes());
        self.call(interface, &mut data)?;
        let count = (u32_at(&data, 8) as usize).min(with_room(count));
        Ok(data[12..].chunks_exact(NAME_LEN).take(count).map(text).collect())
    }

    fn blocks(&self, interface: &str, features: usize) -> io::Result<Vec<Block>> {
        // struct ethtool_gfeatures: command, number of words, then (available, requested, active, never changed) per word.
        let words = features.div_ceil(32);
        let mut data = vec![0; 8 + words * 16];
        data[..4].copy_from_slice(&GET_FEATURES.to_ne_bytes());
        data[4..8].copy_from_slice(&(words as u32).to_ne_bytes());
        self.call(interface, &mut data)?;
        let block =
            |b: &[u8]| Block { available: u32_at(b, 0), active: u32_at(b, 8), never_changed: u32_at(b, 12) };
        Ok(data[8..].chunks_exact(16).map(block).collect())
    }

    /// One SIOCETHTOOL. `data` begins with the command and is as long as that command reads and writes.
    fn call(&self, interface: &str, data: &mut [u8]) -> io::Result<()> {
        // SAFETY: ifreq is plain data, for which all zeros are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if interface.len() >= request.ifr_name.len() || interface.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
        // SAFETY: the kernel reads and writes no further than the command and the counts in `data` say, and every
        // caller sizes the buffer by the same counts; sets of strings and counters, of which the kernel writes as many as
        // there are by now, have room for more (see `with_room`). Both pointers live until the call returns.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// True if the feature is meant by `name`: its own, or a short one with the same meaning as in ethtool(8).
pub fn is_meant(name: &str, feature: &str) -> bool {
    match name {
        "gro" => feature == "rx-gro",
        "gso" => feature == "tx-generic-segmentation",
        // One per kind of TCP, and kernels add some (6.18: tx-tcp-accecn-segmentation).
        "tso" => feature.starts_with("tx-tcp") && feature.ends_with("-segmentation"),
        "rx" => feature == "rx-checksum",
        "tx" => feature.starts_with("tx-checksum-ip"),
        _ => feature == name,
    }
}

/// The numbers of the wanted features. A short name takes those of its features that the device has and can switch.
fn select(
    names: &[String],
    blocks: &[Block],
    wanted: &BTreeMap<String, bool>,
) -> std::result::Result<Vec<(usize, bool)>, String> {
    let has = |i: usize| {
        blocks
            .get(i / 32)
            .is_some_and(|b| b.available & 1 << (i % 32) != 0 && b.never_changed & 1 << (i % 32) == 0)
    };
    let is_on = |i: usize| blocks.get(i / 32).is_some_and(|b| b.active & 1 << (i % 32) != 0);
    let mut selected = Vec::new();
    for (name, &on) in wanted {
        let known: Vec<usize> = (0..names.len()).filter(|&i| is_meant(name, &names[i])).collect();
        if known.is_empty() {
            return Err(format!("this kernel has no offload `{name}`"));
        }
        let usable: Vec<usize> = known.iter().copied().filter(|&i| has(i)).collect();
        // A feature that cannot be switched but is already as wanted needs no switching.
        if usable.is_empty() && !known.iter().all(|&i| is_on(i) == on) {
            return Err(format!("the device cannot switch `{name}` {}", if on { "on" } else { "off" }));
        }
        selected.extend(usable.into_iter().map(|i| (i, on)));
    }
    Ok(selected)
}

/// A set of strings or counters may grow between the requests for its length and for its contents, when queues are added. The
/// kernel then writes all of it, whatever length it was given (net/ethtool/ioctl.c, ethtool_get_stats).
fn with_room(count: usize) -> usize {
    2 * count + 1024
}

fn set_bit(word: &mut [u8], bit: u32) {
    let value = u32_at(word, 0) | bit;
    word.copy_from_slice(&value.to_ne_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Text up to its terminating zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{Rtnetlink, VethEnd};
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    fn map(entries: &[(&str, bool)]) -> BTreeMap<String, bool> {
        entries.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect()
    }

    fn veth() -> NetNs {
        let ns = NetNs::create().unwrap();
        let end = |name| VethEnd { name, namespace: None, mtu: 1500, mac: None };
        Rtnetlink::open_in(&ns).unwrap().create_veth(end("eth0"), end("eth1")).unwrap();
        ns
    }

    #[test]
    fn root_switches_are_what_ethtool_sees() {
        if test_needs_root() {
            return;
        }
        if weir_sys::process::which("ethtool").is_none() {
            println!("SKIP: ethtool is not installed");
            return;
        }
        let ns = veth();
        let shown = |line: &str| {
            let mut command = Command::new("ethtool");
            command.args(["-k", "eth0"]);
            ns.enter_on_spawn(&mut command);
            let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let line =
                text.lines().find_map(|l| l.trim().strip_prefix(line)?.strip_prefix(": ").map(str::to_owned));
            line.unwrap_or_else(|| panic!("{text}"))
        };
        let ethtool = ns.run(Ethtool::open).unwrap().unwrap();
        assert_eq!(ethtool.driver("eth0").unwrap(), "veth");
        let wanted = map(&[("gso", false), ("tso", false), ("gro", true), ("tx-udp-segmentation", false)]);
        ethtool.set("eth0", &wanted).unwrap();
        assert_eq!(shown("generic-segmentation-offload"), "off");
        assert_eq!(shown("tcp-segmentation-offload"), "off");
        assert_eq!(shown("generic-receive-offload"), "on");
        assert_eq!(shown("tx-udp-segmentation"), "off");
        let features = ethtool.features("eth0").unwrap();
        assert_eq!((features["rx-gro"], features["tx-generic-segmentation"]), (true, false));
        ethtool.set("eth0", &map(&[("gso", true), ("gro", false)])).unwrap();
        assert_eq!(shown("generic-segmentation-offload"), "on");
        assert_eq!(shown("generic-receive-offload"), "off");
    }

    #[test]
    fn root_what_cannot_be_switched_is_refused_and_nothing_changes() {
        if test_needs_root() {
            return;
        }
        let ns = veth();
        let ethtool = ns.run(Ethtool::open).unwrap().unwrap();
        let before = ethtool.features("eth0").unwrap();
        let error = ethtool.set("eth0", &map(&[("gso", false), ("no-such-offload", false)])).unwrap_err();
        assert!(error.to_string().contains("no-such-offload"), "{error}");
        // A veth pair has no hardware to sort flows.
        let error = ethtool.set("eth0", &map(&[("gso", false), ("rx-ntuple-filter", true)])).unwrap_err();
        assert!(error.to_string().contains("rx-ntuple-filter"), "{error}");
        assert_eq!(ethtool.features("eth0").unwrap(), before);
        assert!(ethtool.features("nothing").is_err());
    }
}
