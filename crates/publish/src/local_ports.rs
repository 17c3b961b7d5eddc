//! Ports that connections of this host may begin from: the kernel chooses them without knowing the mappings.

use std::ops::RangeInclusive;

use weir_sys::{ProcRoot, sysctl};

use crate::Result;

/// The kernel's range, unless it is set (net/ipv4/af_inet.c).
const USUAL: RangeInclusive<u16> = 32_768..=60_999;

/// The range without the reserved ports; of IPv6 too (Documentation/networking/ip-sysctl.rst).
#[derive(Debug)]
pub(crate) struct LocalPorts {
    range: RangeInclusive<u16>,
    reserved: Vec<RangeInclusive<u16>>,
}

impl LocalPorts {
    /// Those of the calling thread's network namespace.
    pub(crate) fn read(root: &ProcRoot) -> Result<Self> {
        let setting = |name| sysctl::get_optional(root, name).map(Option::unwrap_or_default);
        Ok(LocalPorts::of(
            &setting("net.ipv4.ip_local_port_range")?,
            &setting("net.ipv4.ip_local_reserved_ports")?,
        ))
    }

    /// `32768 60999`, and `8080,9148-9150` or nothing.
    fn of(range: &str, reserved: &str) -> Self {
        let mut ends = range.split_whitespace().map(str::parse);
        let range = match (ends.next(), ends.next()) {
            (Some(Ok(first)), Some(Ok(last))) => first..=last,
            _ => USUAL,
        };
        let part = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        };
        LocalPorts { range, reserved: reserved.split(',').filter_map(part).collect() }
    }

    /// Whether the kernel may choose it.
    pub(crate) fn contains(&self, port: u16) -> bool {
        self.range.contains(&port) && !self.reserved.iter().any(|reserved| reserved.contains(&port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_not_chosen() {
        let chosen = |range, reserved, port| LocalPorts::of(range, reserved).contains(port);
        assert!(chosen("32768\t60999\n", "\n", 32_768) && chosen("32768\t60999", "", 60_999));
        assert!(!chosen("32768 60999", "", 8080) && !chosen("32768 60999", "", 61_000));
        assert!(!chosen("32768 60999", "40000,41000-41002", 40_000));
        assert!(!chosen("32768 60999", "40000,41000-41002", 41_002));
        assert!(chosen("32768 60999", "40000,41000-41002", 41_003));
        assert!(chosen("", "", 40_000));
    }
}
