//! Refused or logged packets, one by one, while a reader wants to see them.
//!
//! The programs write an event only while a reader holds a lease: a time that it puts off again and again. A reader that was
//! killed is forgotten when its lease is over. However many packets are refused, each core writes so many events and no more;
//! the others are counted.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use weir_bpf::{Map, Mapped, Ring};
use weir_sys::clock::now_ns;

use crate::action::{ACTIONS, Direction};
use crate::shared::{WEIR_FRAGMENT, WEIR_HAS_PORT, WEIR_OUT, WeirAddress, WeirEvent, WeirEvents, WeirFollow};
use crate::tables::Loaded;

/// How long events are written for a reader that does not come back.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// A packet that was refused or logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When, CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// In or out.
    pub direction: Direction,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Its class.
    pub class: u32,
    /// The action on it: `drop` or `log`.
    pub action: &'static str,
    /// Number of its protocol; of IPv6 that of the first header that is no extension. In a fragment other than the first one
    /// nothing but that is known.
    pub protocol: u8,
    /// Destination port of TCP and UDP, where it is no fragment and long enough.
    pub port: Option<u16>,
    /// Whether it is a fragment, the first one or another.
    pub fragment: bool,
    /// Its length from the Ethernet header on.
    pub bytes: u32,
}

impl Event {
    fn of(raw: &WeirEvent) -> Event {
        let has = |flag: u64| u64::from(raw.flags) & flag != 0;
        Event {
            time_ns: raw.time_ns,
            direction: if has(WEIR_OUT) { Direction::Egress } else { Direction::Ingress },
            source: address_of(&raw.source),
            destination: address_of(&raw.destination),
            class: raw.class_number,
            action: ACTIONS[usize::from(raw.action) % ACTIONS.len()],
            protocol: raw.protocol,
            port: has(WEIR_HAS_PORT).then_some(raw.port),
            fragment: has(WEIR_FRAGMENT),
            bytes: raw.bytes,
        }
    }
}

/// IPv4 out of its mapped form.
pub(crate) fn address_of(address: &WeirAddress) -> IpAddr {
    let v6 = Ipv6Addr::from(address.bytes);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// Counts of events since the filter was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Events {
    /// Events written, whether or not a reader read them.
    pub written: u64,
    /// Not written although there was a reader: more than 125 in an eighth of a second on one core, or the ring was full.
    pub lost: u64,
    /// Whether a reader reads them now.
    pub followed: bool,
}

impl Events {
    pub(crate) fn of(kernel: &Loaded) -> weir_bpf::Result<Events> {
        let until_ns = kernel.map("follow")?.share::<WeirFollow>()?.get(0).until_ns;
        let (written, lost) = sums(kernel.map("event_counts")?)?;
        Ok(Events { written, lost, followed: now_ns() < until_ns })
    }
}

/// Written and lost, on all cores.
fn sums(counts: &Map) -> weir_bpf::Result<(u64, u64)> {
    let by_core = counts.all_by_cpu::<u32, WeirEvents>()?.into_iter().flat_map(|(_, by_core)| by_core);
    Ok(by_core.fold((0, 0), |(written, lost), c| (written + c.written, lost + c.lost)))
}

/// Reads the events of a filter. While there is one, the programs write them; they cease to when it is dropped, and 3 s after it
/// was last read where it was not, because its process was killed.
#[derive(Debug)]
pub struct Follower {
    ring: Ring<WeirEvent>,
    lease: Mapped<WeirFollow>,
    counts: Map,
    lost_before: u64,
}

impl Follower {
    pub(crate) fn of(kernel: &Loaded) -> weir_bpf::Result<Self> {
        let counts = kernel.map("event_counts")?.try_clone()?;
        let mut ring = Ring::open(kernel.map("events")?)?;
        // Discards events written for an earlier reader that did not fetch them.
        ring.read()?;
        let lost_before = sums(&counts)?.1;
        let lease = kernel.map("follow")?.share::<WeirFollow>()?;
        let follower = Follower { ring, lease, counts, lost_before };
        follower.renew();
        Ok(follower)
    }

    fn renew(&self) {
        self.lease.set(0, WeirFollow { until_ns: now_ns() + LEASE.as_nanos() as u64 });
    }

    /// Events since it was last asked, in the order in which room was found for them; does not wait. To be asked often: each
    /// time it is, the programs go on for another 3 s.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn read(&mut self) -> weir_bpf::Result<Vec<Event>> {
        self.renew();
        Ok(self.ring.read()?.iter().map(Event::of).collect())
    }

    /// Events that were not written since this began, although their packets were sampled.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn lost(&self) -> weir_bpf::Result<u64> {
        Ok(sums(&self.counts)?.1.saturating_sub(self.lost_before))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.lease.set(0, WeirFollow { until_ns: 0 });
    }
}
