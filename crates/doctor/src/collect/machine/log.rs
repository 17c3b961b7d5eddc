//! Lines of the kernel's log about packets.

use weir_sys::kernel_log::KernelLog;
use weir_sys::{ProcRoot, Result};

use crate::evidence::Machine;

/// Lines that are kept.
const KEPT: usize = 500;

/// Words in log lines about packets, in lower case. Rules log with `in=` and `out=`.
const WORDS: &[&str] = &[
    "conntrack",
    "neighbour",
    "neighbor table",
    "martian",
    "tcp:",
    "tcp_",
    "udp:",
    "icmp",
    "arp:",
    "ipv4:",
    "ipv6:",
    "net_ratelimit",
    "netdev watchdog",
    "transmit queue",
    "link is ",
    "link becomes",
    "hw csum",
    "packet",
    "skb",
    "flooding",
    "out of memory",
    "page allocation failure",
    "oom",
    "port exhaust",
    "nf_",
    "nft",
    "xt_",
    "ipt_",
    "ip_set",
    "bridge:",
    "duplicate address",
    "route cache",
    "virtio_net",
];

/// The log from the window's beginning on.
#[derive(Debug)]
pub(super) struct Log(KernelLog);

impl Log {
    pub(super) fn begin(root: &ProcRoot) -> Result<Self> {
        KernelLog::from_now(root).map(Log)
    }

    /// Adds the lines since the beginning. Returns a note on missed lines, if any.
    pub(super) fn end(&mut self, machine: &mut Machine) -> Result<Option<String>> {
        let Machine { log, log_lines, .. } = machine;
        let missed = self.0.drain(|line| {
            *log_lines += 1;
            if is_about_packets(line) && log.len() < KEPT {
                log.push(line.to_owned());
            }
        })?;
        *log_lines += missed;
        Ok((missed > 0)
            .then(|| format!("{missed} lines of the kernel's log were overwritten before they were read")))
    }
}

pub(super) fn is_about_packets(line: &str) -> bool {
    let line = line.to_lowercase();
    WORDS.iter().any(|word| line.contains(word)) || line.contains("in=") && line.contains("out=")
}
