//! The needs of this host, as far as they can be measured: how full its tables are, and the losses in a window of time.
//!
//! Counters since boot say nothing about now: what was lost before the last change would be healed again and again.

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use weir_netlink::conntrack::Conntrack;
use weir_sys::procfs::Softnet;
use weir_sys::slab::Slab;
use weir_sys::{NetNs, ProcRoot, sysctl};

use super::knobs::{Scope, numbers};

/// Bytes of an entry with its extensions on x86-64 since Linux 4.10 or so, where the kernel's own figures cannot be read: a
/// slab object of 256 and a `kmalloc` of 128 bytes.
const USUAL_ENTRY_BYTES: u64 = 384;

/// The place to read settings from: those of the machine here, the others in the tuned network namespace.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// `/`, but in tests.
    pub root: ProcRoot,
    /// Another one than the calling thread's.
    pub namespace: Option<NetNs>,
}

impl View {
    /// Does something in the namespace that is tuned.
    ///
    /// # Errors
    /// If it cannot be entered.
    pub fn inside<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, weir_sys::Error> {
        match &self.namespace {
            None => Ok(f()),
            Some(namespace) => namespace.run(f),
        }
    }

    /// A setting's value; `None` where it does not exist or cannot be read.
    pub(crate) fn get(&self, name: &str, scope: Scope) -> Option<String> {
        let read = || sysctl::get_optional(&self.root, name).ok().flatten();
        match scope {
            Scope::Machine => read(),
            Scope::Namespace => self.inside(read).ok().flatten(),
        }
    }

    /// Whether the kernel lets anybody write it there: settings of the machine are read-only, or missing, in other network
    /// namespaces (mode 0444). It says nothing about the privilege of this process.
    pub(crate) fn is_writable(&self, name: &str, scope: Scope) -> bool {
        let path = self.root.path(&format!("proc/sys/{}", weir_sys::sysctl::path_of(name)));
        let look = || {
            use std::os::unix::fs::PermissionsExt;
            std::fs::metadata(&path).is_ok_and(|m| m.permissions().mode() & 0o200 != 0)
        };
        match scope {
            Scope::Machine => look(),
            Scope::Namespace => self.inside(look).unwrap_or(false),
        }
    }

    /// True in the machine's own network namespace: only there is this setting, or can it be written.
    pub(crate) fn is_machines_own(&self) -> bool {
        self.is_writable("net.core.netdev_max_backlog", Scope::Namespace)
    }

    fn number(&self, name: &str, scope: Scope) -> Option<u64> {
        let value = self.get(name, scope)?;
        numbers(&value).filter(|n| n.len() == 1).map(|n| n[0])
    }
}

/// Measured, or `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Need {
    /// Entries of the connection-tracking table now.
    pub entries: Option<u64>,
    /// Its limit.
    pub max: Option<u64>,
    /// Its buckets.
    pub buckets: Option<u64>,
    /// Memory that an entry takes with its extensions, bytes.
    pub entry_bytes: u64,
    /// False where that is the usual figure, not this kernel's own.
    pub entry_bytes_measured: bool,
    /// Memory of the machine, bytes.
    pub memory_bytes: Option<u64>,
    /// Available part of it, bytes.
    pub available_bytes: Option<u64>,
    /// Fastest link with a known speed, bit/s.
    pub link_bps: Option<u64>,
    /// Length of the window, s; 0 where none was needed.
    pub window_s: f64,
    /// Losses in the window.
    pub lost: Lost,
}

/// Events of a window; `None` where they cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Lost {
    /// First packets that a full connection-tracking table refused.
    pub refused: Option<u64>,
    /// Its entries that had to go before their time.
    pub evicted: Option<u64>,
    /// Packets dropped because a core's backlog was full.
    pub backlog_dropped: Option<u64>,
    /// Times that a core had to leave packets for later.
    pub squeezed: Option<u64>,
    /// Packets that cores took in.
    pub processed: Option<u64>,
    /// Connections that a full accept queue refused.
    pub listen_overflows: Option<u64>,
    /// SYNs dropped or answered with cookies because the backlog was full.
    pub syn_overflows: Option<u64>,
    /// Datagrams that a full receive buffer refused.
    pub udp_buffer_errors: Option<u64>,
}

impl Lost {
    /// The counters now, since boot or since the namespace was made.
    fn read(view: &View, conntrack: bool) -> Lost {
        let softnet = view.root.softnet().ok().filter(|lines| !lines.is_empty());
        let sum = |of: fn(&Softnet) -> u64| softnet.as_ref().map(|lines| lines.iter().map(of).sum());
        let counters = view.inside(|| view.root.protocol_counters().ok()).ok().flatten();
        let counter = |names: &[&str]| {
            let counters = counters.as_ref()?;
            let found: Vec<u64> = names.iter().filter_map(|n| counters.get(*n).copied()).collect();
            (!found.is_empty()).then(|| found.iter().sum())
        };
        // ctnetlink would load its module where there is no connection tracking at all.
        let ask = || Conntrack::open().and_then(|mut c| c.statistics()).ok();
        let statistics = conntrack.then(|| view.inside(ask).ok().flatten()).flatten();
        let tracked = |name| statistics.as_ref().and_then(|s| s.get(name).copied());
        Lost {
            // A lost race for an entry is counted as a drop, too, and no larger table helps against it.
            refused: tracked("drop").map(|d: u64| d.saturating_sub(tracked("insert_failed").unwrap_or(0))),
            evicted: tracked("early_drop"),
            backlog_dropped: sum(|c| c.dropped),
            squeezed: sum(|c| c.time_squeeze),
            processed: sum(|c| c.processed),
            listen_overflows: counter(&["tcpext.ListenOverflows"]),
            syn_overflows: counter(&["tcpext.TCPReqQFullDrop", "tcpext.TCPReqQFullDoCookies"]),
            udp_buffer_errors: counter(&["udp.RcvbufErrors", "udp6.RcvbufErrors"]),
        }
    }

    /// Returns the events since `before`.
    fn since(&self, before: &Lost) -> Lost {
        let grew = |of: fn(&Lost) -> Option<u64>| Some(of(self)?.saturating_sub(of(before)?));
        Lost {
            refused: grew(|l| l.refused),
            evicted: grew(|l| l.evicted),
            backlog_dropped: grew(|l| l.backlog_dropped),
            squeezed: grew(|l| l.squeezed),
            processed: grew(|l| l.processed),
            listen_overflows: grew(|l| l.listen_overflows),
            syn_overflows: grew(|l| l.syn_overflows),
            udp_buffer_errors: grew(|l| l.udp_buffer_errors),
        }
    }
}

impl Need {
    /// Reads it; watches counters for as long as the window lasts.
    pub fn read(view: &View, window: Duration) -> Need {
        let ns = Scope::Namespace;
        let slabs = Slab::read(&view.root, "nf_conntrack").zip(Slab::read(&view.root, "kmalloc-128"));
        let memory = view.root.meminfo().ok();
        let max = view.number("net.netfilter.nf_conntrack_max", ns);
        let (begun, before) = (Instant::now(), Lost::read(view, max.is_some()));
        std::thread::sleep(window);
        let lost = Lost::read(view, max.is_some()).since(&before);
        Need {
            entries: view.number("net.netfilter.nf_conntrack_count", ns),
            max,
            buckets: view.number("net.netfilter.nf_conntrack_buckets", ns),
            entry_bytes: slabs.map_or(USUAL_ENTRY_BYTES, |(e, x)| e.bytes_each() + x.bytes_each()),
            entry_bytes_measured: slabs.is_some(),
            memory_bytes: memory.map(|m| m.total),
            available_bytes: memory.map(|m| m.available),
            link_bps: link_bps(&view.root),
            window_s: if window.is_zero() { 0.0 } else { begun.elapsed().as_secs_f64() },
            lost,
        }
    }

    /// True if the table is too small for what comes.
    pub(crate) fn table_overflowed(&self) -> bool {
        let near =
            self.entries.zip(self.max).is_some_and(|(entries, max)| entries as f64 >= 0.9 * max as f64);
        near || self.lost.refused.unwrap_or(0) > 0 || self.lost.evicted.unwrap_or(0) > 0
    }
}

/// `/sys/class/net/*/speed` is in Mbit/s, and -1 or an error where the device does not know.
fn link_bps(root: &ProcRoot) -> Option<u64> {
    let names = std::fs::read_dir(root.path("sys/class/net")).ok()?.flatten().map(|e| e.file_name());
    let speed = |name: std::ffi::OsString| {
        let text = root.read_optional(&format!("sys/class/net/{}/speed", name.to_string_lossy()))?;
        text.parse::<u64>().ok().filter(|mbit| *mbit < u64::from(u32::MAX))
    };
    // The speed that a veth reports (10 Gbit/s) is not that of a link. Every physical link is below `devices`.
    let physical = |name: &std::ffi::OsString| root.path("sys/class/net").join(name).join("device").exists();
    names.filter(physical).filter_map(speed).max()?.checked_mul(1_000_000).filter(|bps| *bps > 0)
}
