//! What this host needs, as far as it can be measured: how full its tables are, and what was lost since it started.

use serde::Serialize;
use weir_sys::conntrack::Conntrack;
use weir_sys::slab::Slab;
use weir_sys::{NetNs, ProcRoot, sysctl};

use super::knobs::{Scope, numbers};

/// Bytes of an entry with its extensions on x86-64 since Linux 4.10 or so, where the kernel's own figures cannot be read: a
/// slab object of 256 and a `kmalloc` of 128 bytes.
const USUAL_ENTRY_BYTES: u64 = 384;

/// Where settings are read: those of the machine here, the others in the network namespace that is tuned.
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
        let path = self.root.path(&format!("proc/sys/{}", super::path_of(name)));
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
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Need {
    /// Entries of the connection-tracking table now.
    pub entries: Option<u64>,
    /// Its limit.
    pub max: Option<u64>,
    /// Its buckets.
    pub buckets: Option<u64>,
    /// First packets that were refused because it was full, since the namespace was made.
    pub refused: Option<u64>,
    /// Entries that had to go before their time, likewise.
    pub evicted: Option<u64>,
    /// What an entry takes with its extensions, bytes.
    pub entry_bytes: u64,
    /// False where that is the usual figure, not this kernel's own.
    pub entry_bytes_measured: bool,
    /// Memory of the machine, bytes.
    pub memory_bytes: Option<u64>,
    /// Of it available, bytes.
    pub available_bytes: Option<u64>,
    /// Dropped because a core's backlog was full, since boot.
    pub backlog_dropped: Option<u64>,
    /// Times that a core had to leave packets for later, since boot.
    pub squeezed: Option<u64>,
    /// Packets that cores took in, since boot.
    pub processed: Option<u64>,
    /// Connections that a full accept queue refused, since the namespace was made.
    pub listen_overflows: Option<u64>,
    /// SYNs dropped or answered with cookies because the backlog was full, likewise.
    pub syn_overflows: Option<u64>,
    /// Datagrams that a full receive buffer refused, likewise.
    pub udp_buffer_errors: Option<u64>,
    /// Fastest link with a known speed, bit/s.
    pub link_bps: Option<u64>,
}

impl Need {
    /// Reads it.
    pub fn read(view: &View) -> Need {
        let ns = Scope::Namespace;
        let slabs = Slab::read(&view.root, "nf_conntrack").zip(Slab::read(&view.root, "kmalloc-128"));
        let memory = view.root.meminfo().ok();
        let softnet = view.root.softnet().ok().filter(|lines| !lines.is_empty());
        let counters = view.inside(|| view.root.protocol_counters().ok()).ok().flatten();
        let counter = |names: &[&str]| {
            let counters = counters.as_ref()?;
            let found: Vec<u64> = names.iter().filter_map(|n| counters.get(*n).copied()).collect();
            (!found.is_empty()).then(|| found.iter().sum())
        };
        let mut need = Need {
            entries: view.number("net.netfilter.nf_conntrack_count", ns),
            max: view.number("net.netfilter.nf_conntrack_max", ns),
            buckets: view.number("net.netfilter.nf_conntrack_buckets", ns),
            entry_bytes: slabs.map_or(USUAL_ENTRY_BYTES, |(e, x)| e.bytes_each() + x.bytes_each()),
            entry_bytes_measured: slabs.is_some(),
            memory_bytes: memory.map(|m| m.total),
            available_bytes: memory.map(|m| m.available),
            backlog_dropped: softnet.as_ref().map(|l| l.iter().map(|c| c.dropped).sum()),
            squeezed: softnet.as_ref().map(|l| l.iter().map(|c| c.time_squeeze).sum()),
            processed: softnet.as_ref().map(|l| l.iter().map(|c| c.processed).sum()),
            listen_overflows: counter(&["tcpext.ListenOverflows"]),
            syn_overflows: counter(&["tcpext.TCPReqQFullDrop", "tcpext.TCPReqQFullDoCookies"]),
            udp_buffer_errors: counter(&["udp.RcvbufErrors", "udp6.RcvbufErrors"]),
            link_bps: link_bps(&view.root),
            ..Need::default()
        };
        // ctnetlink would load its module where there is no connection tracking at all.
        if need.max.is_some()
            && let Ok(Some(statistics)) =
                view.inside(|| Conntrack::open().and_then(|mut c| c.statistics()).ok())
        {
            need.refused = statistics.get("drop").copied();
            need.evicted = statistics.get("early_drop").copied();
        }
        need
    }

    /// True if the table is, or was, too small for what came.
    pub(crate) fn table_overflowed(&self) -> bool {
        let near =
            self.entries.zip(self.max).is_some_and(|(entries, max)| entries as f64 >= 0.9 * max as f64);
        near || self.refused.unwrap_or(0) > 0 || self.evicted.unwrap_or(0) > 0
    }
}

/// `/sys/class/net/*/speed` is in Mbit/s, and -1 or an error where the device does not know.
fn link_bps(root: &ProcRoot) -> Option<u64> {
    let names = std::fs::read_dir(root.path("sys/class/net")).ok()?.flatten().map(|e| e.file_name());
    let speed = |name: std::ffi::OsString| {
        let text = root.read_optional(&format!("sys/class/net/{}/speed", name.to_string_lossy()))?;
        text.parse::<u64>().ok().filter(|mbit| *mbit < u64::from(u32::MAX))
    };
    // What a veth says of itself (10 Gbit/s) is no link; no physical one is missing from below `devices`.
    let physical = |name: &std::ffi::OsString| root.path("sys/class/net").join(name).join("device").exists();
    names.filter(physical).filter_map(speed).max()?.checked_mul(1_000_000).filter(|bps| *bps > 0)
}
