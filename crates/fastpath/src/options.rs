//! How large the tables are, and when a flow enters them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_sys::{ProcRoot, sysctl};

use crate::attachments::LARGEST_INDEX;
use crate::shared::{WEIR_TICKS_PER_SECOND, WEIR_WAYS, WeirBucket4, WeirBucket6, WeirLabel, WeirPort};
use crate::{Error, Result, Xdp};

/// How large the table is, and when a flow enters it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Connections that are carried at most, 64 to 16 million; twice as many directions, in a table of twice that size.
    pub connections: u32,
    /// The same of IPv6.
    pub connections6: u32,
    /// Connections of each version of IP that the table has room for at first. It grows up to the numbers above as it fills; all flows
    /// are learnt anew then. The memory is taken at once.
    pub at_first: u32,
    /// Packets of one direction before it is learnt, 1 to 1000.
    pub packets: u32,
    /// Longest time between two packets of a flow that take the kernel's way.
    pub refresh: Duration,
    /// Attach as on a kernel without TCX: for tests of that.
    pub without_tcx: bool,
    /// Learn as on a kernel without conntrack's functions for BPF: for tests of that.
    pub without_functions: bool,
    /// Whether packets are carried by XDP, too.
    pub xdp: Xdp,
}

/// The part that asks conntrack about a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Learns {
    /// The programs, by the kernel's conntrack functions for BPF (Linux 5.18).
    #[default]
    InKernel,
    /// The resident process, by ctnetlink: a flow enters some milliseconds later.
    ByNetlink,
}

impl Default for Options {
    fn default() -> Self {
        Options::DEFAULT
    }
}

/// Time for which one renewal of the lease lasts.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// Renewals of the lease.
pub(crate) const RENEWALS_PER_SECOND: u32 = WEIR_TICKS_PER_SECOND as u32;
/// Connections of a table that is not used.
const NONE: u32 = 64;

/// Sizes of the tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tables {
    pub(crate) buckets4: u32,
    pub(crate) buckets6: u32,
    /// Buckets in use at first.
    pub(crate) first4: u32,
    pub(crate) first6: u32,
}

impl Options {
    /// The sizes and times of a fast path without options.
    pub const DEFAULT: Options = Options {
        connections: 65_536,
        connections6: 4096,
        at_first: 1024,
        packets: 8,
        refresh: Duration::from_secs(30),
        without_tcx: false,
        without_functions: false,
        xdp: Xdp::Off,
    };

    /// Room for as many connections as conntrack may have, within a sixteenth of the memory for each version of IP.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn for_host(root: &ProcRoot, (ipv4, ipv6): (bool, bool)) -> Result<Self> {
        const LEAST: u64 = 65_536;
        const MOST: u64 = 4 << 20;
        /// Bytes for a connection: two directions of a cache line (IPv6: two lines) in a table that is half full at most.
        const BYTES: [u64; 2] = [256, 512];
        let text = sysctl::get_optional(root, "net.netfilter.nf_conntrack_max")?;
        let wanted = text.and_then(|text| text.trim().parse().ok()).unwrap_or(LEAST);
        let share = root.meminfo()?.total / 16;
        let room = |is_wanted, bytes| {
            if is_wanted { wanted.min(share / bytes).clamp(LEAST, MOST) as u32 } else { NONE }
        };
        let [connections, connections6] = [room(ipv4, BYTES[0]), room(ipv6, BYTES[1])];
        Ok(Options { connections, connections6, ..Options::default() })
    }

    /// Room for so many connections of each version of IP that is used, in at most a quarter of the memory.
    ///
    /// # Errors
    /// [`Error::Options`] if the number is out of range or the tables need more memory; else if `/proc` cannot be read.
    pub fn with_room(connections: u32, root: &ProcRoot, (ipv4, ipv6): (bool, bool)) -> Result<Self> {
        let room = |is_wanted| if is_wanted { connections } else { NONE };
        let options = Options { connections: room(ipv4), connections6: room(ipv6), ..Options::default() };
        options.check()?;
        let (wanted, most) = (options.memory_bytes(), root.meminfo()?.total / 4);
        if wanted > most {
            return Err(Error::Options(format!(
                "{connections} connections need tables of {wanted} bytes; a quarter of the memory is {most}"
            )));
        }
        Ok(options)
    }

    /// The smallest table that can be made: for a look at what this kernel can do.
    pub(crate) fn smallest() -> Self {
        Options { connections: NONE, connections6: NONE, ..Options::default() }
    }

    pub(crate) fn tables(&self) -> Tables {
        let buckets = |connections: u32| (connections * 4 / WEIR_WAYS as u32).next_power_of_two();
        let (buckets4, buckets6) = (buckets(self.connections), buckets(self.connections6));
        Tables {
            buckets4,
            buckets6,
            first4: buckets4.min(buckets(self.at_first)),
            first6: buckets6.min(buckets(self.at_first)),
        }
    }

    /// Memory of the tables, bytes.
    pub fn memory_bytes(&self) -> u64 {
        const LABEL: usize = size_of::<WeirLabel>();
        let Tables { buckets4, buckets6, .. } = self.tables();
        let of = |number: u32, bytes: usize| u64::from(number) * bytes as u64;
        let ports = if self.xdp == Xdp::Off { 0 } else { of(LARGEST_INDEX + 1, size_of::<WeirPort>()) };
        of(buckets4, size_of::<WeirBucket4>() + LABEL)
            + of(buckets6, size_of::<WeirBucket6>() + LABEL)
            + ports
    }

    pub(crate) fn check(&self) -> Result<()> {
        const CONNECTIONS: std::ops::RangeInclusive<u32> = 64..=1 << 24;
        for (name, value) in [
            ("connections", self.connections),
            ("connections6", self.connections6),
            ("connections at first", self.at_first),
        ] {
            if !CONNECTIONS.contains(&value) {
                return Err(Error::Options(format!(
                    "{name} = {value}: valid is 64 to {}",
                    CONNECTIONS.end()
                )));
            }
        }
        if !(1..=1000).contains(&self.packets) {
            return Err(Error::Options(format!("packets = {}: valid is 1 to 1000", self.packets)));
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&self.refresh) {
            return Err(Error::Options(format!("refresh = {:?}: valid is 1 s to 1 h", self.refresh)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use weir_testkit::Files;

    use super::*;

    #[test]
    fn the_room_follows_conntrack_and_memory() {
        let root = Files::new(&[
            ("proc/sys/net/netfilter/nf_conntrack_max", "262144\n"),
            ("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n"),
        ]);
        let room = |ipv4, ipv6| {
            let options = Options::for_host(&root.root(), (ipv4, ipv6)).unwrap();
            (options.connections, options.connections6)
        };
        assert_eq!(room(true, true), (262_144, 262_144));
        assert_eq!(room(true, false), (262_144, 64));
        assert_eq!(room(false, true), (64, 262_144));
        let with = |connections| Options::with_room(connections, &root.root(), (true, false));
        assert_eq!(with(1_000_000).map(|o| (o.connections, o.connections6)).unwrap(), (1_000_000, 64));
        // 16 Mi connections of IPv4: 64 Mi entries of 64 bytes and their labels are more than 4 GiB.
        for (connections, why) in
            [(1 << 24, "a quarter of the memory"), (63, "valid is"), (1 << 25, "valid is")]
        {
            let refused = with(connections).unwrap_err();
            assert!(matches!(&refused, Error::Options(text) if text.contains(why)), "{refused}");
        }
    }
}
