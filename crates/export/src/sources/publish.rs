//! Published ports in BPF.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_publish::{Direction, Pinned, Reason};
use weir_sys::Stop;

use crate::board::Source;
use crate::page::{Group, Metric, Page};

static CONTAINERS: Metric =
    Metric::gauge("publish_containers", &[], "Containers whose ports are published by BPF.");
static MAPPINGS: Metric = Metric::gauge("publish_mappings", &[], "Their mappings.");
static DETACHED: Metric =
    Metric::gauge("publish_detached_containers", &[], "Containers of these without one of the two programs.");
static PACKETS: Metric = Metric::counter(
    "publish_packets_total",
    &["direction", "reason"],
    "Packets by why they were translated or left to the kernel; a super-packet is one.",
);
static BYTES: Metric =
    Metric::counter("publish_bytes_total", &["direction", "reason"], "Bytes of these packets.");

/// For the reference.
pub(crate) static GROUP: Group = Group {
    title: "Published ports",
    about: "Read every 5 s; summed over all containers, so that the number of series does not grow with them. `direction` is `in` \
            (from a client) or `out`; `reason` is `translated`, `translated-error`, `direct` and `failed` (dropped), or why a packet was \
            left to the kernel.",
    metrics: &[&CONTAINERS, &MAPPINGS, &DETACHED, &PACKETS, &BYTES],
};

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::In => "in",
        Direction::Out => "out",
    }
}

fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Translated => "translated",
        Reason::TranslatedError => "translated-error",
        Reason::NotIp => "not-ip",
        Reason::NotOurs => "not-ours",
        Reason::Malformed => "malformed",
        Reason::Options => "options",
        Reason::Fragment => "fragment",
        Reason::NotMapped => "not-mapped",
        Reason::LastHop => "last-hop",
        Reason::TooBig => "too-big",
        Reason::OtherWay => "other-way",
        Reason::NoForwarding => "no-forwarding",
        Reason::Opens => "opens",
        Reason::FalseSource => "false-source",
        Reason::Direct => "direct",
        Reason::Failed => "failed",
    }
}

type Series = (Direction, Reason);

/// Counters of programs that come and go, summed up so that no sum ever shrinks.
#[derive(Debug, Default)]
struct Growth {
    /// The last value of each program that is loaded: packets and bytes.
    last: BTreeMap<(String, u32, Series), [u64; 2]>,
    sums: BTreeMap<Series, [u64; 2]>,
}

impl Growth {
    /// Takes the values of all programs that are loaded now.
    fn take(&mut self, now: BTreeMap<(String, u32, Series), [u64; 2]>) {
        for (key, values) in &now {
            let before = self.last.get(key).copied().unwrap_or_default();
            let sum = self.sums.entry(key.2).or_default();
            for n in 0..2 {
                // A lower one has begun again at 0.
                sum[n] += values[n].checked_sub(before[n]).unwrap_or(values[n]);
            }
        }
        self.last = now;
    }
}

/// Ports that are published here.
#[derive(Debug, Default)]
pub struct PublishedPorts {
    growth: Growth,
}

impl PublishedPorts {
    fn write(&mut self, page: &mut Page, loaded: &[Pinned]) {
        let mut now = BTreeMap::new();
        for pinned in loaded {
            for (direction, reason, count) in pinned.counted.iter().flat_map(|status| &status.reasons) {
                let key = (pinned.id.clone(), pinned.link, (*direction, *reason));
                now.insert(key, [count.packets, count.bytes]);
            }
        }
        self.growth.take(now);
        page.single(&CONTAINERS, loaded.len() as f64);
        page.single(&MAPPINGS, loaded.iter().map(|p| p.mappings.len()).sum::<usize>() as f64);
        page.single(&DETACHED, loaded.iter().filter(|p| !p.is_attached()).count() as f64);
        for (metric, n) in [(&PACKETS, 0), (&BYTES, 1)] {
            let sums = self.growth.sums.iter();
            let sums = sums.map(|((way, why), sums)| ([direction(*way), reason(*why)], sums[n] as f64));
            page.series(metric, sums);
        }
    }
}

impl Source for PublishedPorts {
    fn name(&self) -> &'static str {
        "publish"
    }

    fn every(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn read(&mut self, page: &mut Page, _stop: &Stop) -> Result<(), String> {
        let loaded = weir_publish::loaded().map_err(|e| e.to_string())?;
        self.write(page, &loaded);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_grow_while_containers_come_and_go() {
        let series = (Direction::In, Reason::Translated);
        let mut growth = Growth::default();
        let mut packets = |values: &[(&str, u64)]| {
            growth.take(values.iter().map(|(id, n)| (((*id).to_owned(), 3, series), [*n, 0])).collect());
            growth.sums[&series][0]
        };
        assert_eq!(packets(&[("a", 100)]), 100);
        assert_eq!(packets(&[("a", 120), ("b", 5)]), 125);
        // One has gone.
        assert_eq!(packets(&[("b", 6)]), 126);
        // One was loaded anew under the same name.
        assert_eq!(packets(&[("b", 2)]), 128);
    }
}
