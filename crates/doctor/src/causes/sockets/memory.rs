//! The memory that all sockets of a protocol share.

use crate::causes::EvidenceView;
use crate::evidence::Namespace;

/// `tcp_mem` and `udp_mem`: three numbers of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Below it the kernel lets everybody grow.
    pub(super) low: u64,
    /// From here on it holds back (tcp_mem only).
    pub(super) pressure: u64,
    /// No more than that.
    pub(super) most: u64,
}

impl Limits {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Limits { low: next()?, pressure: next()?, most: next()? })
    }

    /// All of them so many times larger, as sysctl(8) takes them.
    pub(super) fn times(self, factor: u64) -> String {
        let [a, b, c] = [self.low, self.pressure, self.most].map(|pages| pages.saturating_mul(factor));
        format!("{a} {b} {c}")
    }
}

/// The machine's limits for the memory of a protocol, and its use.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) limits: Option<Limits>,
    pub(super) used: Option<u64>,
}

impl Memory {
    /// `TCP` or `UDP`. The memory in use is the machine's; every namespace shows the same.
    pub(super) fn of(view: &EvidenceView<'_>, namespace: &Namespace, protocol: &str) -> Self {
        let name = format!("net.ipv4.{}_mem", protocol.to_ascii_lowercase());
        Memory {
            limits: view.evidence.machine.settings.get(&name).and_then(|text| Limits::parse(text)),
            used: namespace.gauge(&format!("sockstat.{protocol}.mem")),
        }
    }

    pub(super) fn is_under_pressure(self) -> bool {
        matches!((self.limits, self.used), (Some(limits), Some(used)) if used >= limits.pressure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_prints_them() {
        let limits = Limits::parse("287898\t383867\t575796").unwrap();
        assert_eq!(limits, Limits { low: 287_898, pressure: 383_867, most: 575_796 });
        assert_eq!(limits.times(2), "575796 767734 1151592");
        assert_eq!(Limits::parse("1 2"), None);
    }
}
