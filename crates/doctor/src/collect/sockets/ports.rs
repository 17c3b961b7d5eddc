//! Local ports that outgoing connections take, by where they go.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use weir_netlink::sock_diag::{Entry, state};
use weir_sys::{ProcRoot, sysctl};
use weir_text::order;

use crate::evidence::PortsInUse;

/// Destinations that are counted separately. A crawler has a new one for every connection, and no shortage of ports.
const DESTINATIONS: usize = 200_000;
/// Destinations that are described.
const DESCRIBED: usize = 16;
/// Share of the ports from which on that is worth a word.
const BUSY: f64 = 0.1;

/// Counts ports.
#[derive(Debug)]
pub(super) struct Ports<'a> {
    listening: &'a BTreeSet<u16>,
    range: (u16, u16),
    available: u64,
    by_destination: foldhash::HashMap<(IpAddr, SocketAddr), Used>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Used {
    all: u32,
    time_wait: u32,
}

impl<'a> Ports<'a> {
    /// For the calling thread's namespace. Connections on `listening` ports came in and take none.
    pub(super) fn read(root: &ProcRoot, listening: &'a BTreeSet<u16>) -> Self {
        let setting = |name: &str| sysctl::get_optional(root, name).ok().flatten().unwrap_or_default();
        // The kernel's own range where it does not tell (net/ipv4/af_inet.c, inet_init_net).
        let range = parse_range(&setting("net.ipv4.ip_local_port_range")).unwrap_or((32_768, 60_999));
        let reserved = count_reserved(&setting("net.ipv4.ip_local_reserved_ports"), range);
        let available = (u64::from(range.1) + 1).saturating_sub(range.0.into()).saturating_sub(reserved);
        Ports { listening, range, available, by_destination: Default::default() }
    }

    pub(super) fn count(&mut self, e: &Entry<'_>) {
        let (local, remote) = (e.local(), e.remote());
        let port = local.port();
        if port < self.range.0 || port > self.range.1 || self.listening.contains(&port) {
            return;
        }
        let key = (local.ip(), remote);
        if self.by_destination.len() >= DESTINATIONS && !self.by_destination.contains_key(&key) {
            return;
        }
        let used = self.by_destination.entry(key).or_default();
        used.all += 1;
        used.time_wait += u32::from(e.state() == state::TIME_WAIT);
    }

    /// Those that take a good part of what there is, the fullest first.
    pub(super) fn busiest(self) -> Vec<PortsInUse> {
        let available = self.available;
        let busy = |used: &Used| f64::from(used.all) >= BUSY * available as f64;
        let mut found: Vec<PortsInUse> = self
            .by_destination
            .into_iter()
            .filter(|(_, used)| busy(used))
            .map(|((local, remote), used)| PortsInUse {
                local,
                remote,
                used: used.all.into(),
                available,
                time_wait: used.time_wait.into(),
            })
            .collect();
        order::by_key(&mut found, |p| (std::cmp::Reverse(p.used), p.local, p.remote));
        found.truncate(DESCRIBED);
        found
    }
}

/// `32768\t60999`.
fn parse_range(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Ports of a list like `8080,9000-9010` that lie in the range.
fn count_reserved(list: &str, range: (u16, u16)) -> u64 {
    let one = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let first: u16 = first.trim().parse().ok()?;
        let last: u16 = last.trim().parse().ok()?;
        let (first, last) = (first.max(range.0), last.min(range.1));
        Some((u64::from(last) + 1).saturating_sub(first.into()))
    };
    list.split(',').filter_map(one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_counted_where_they_lie_in_the_range() {
        assert_eq!(parse_range("32768\t60999"), Some((32_768, 60_999)));
        assert_eq!(parse_range(""), None);
        let range = (50_000, 50_009);
        assert_eq!(count_reserved("", range), 0);
        assert_eq!(count_reserved("50001", range), 1);
        assert_eq!(count_reserved("80,49990-50001,50005-50006,50009-50020", range), 2 + 2 + 1);
        assert_eq!(count_reserved("1-2,x,7-3", range), 0);
    }
}
