//! The connection-tracking table of a network namespace: who fills it, how full it is, which ports source NAT has left, and
//! what it costs in memory.
//!
//! weir reads the table once, entry by entry, and keeps only counts: memory does not grow with the table. It changes nothing, and
//! loads no kernel module on purpose: without connection tracking, it reports that.

mod contents;
mod memory;
pub mod names;
pub mod nat_ports;

pub mod pools;
mod render;
mod spread;
mod tally;
pub mod top;

use std::collections::BTreeMap;
use std::io;
use std::ops::{ControlFlow, RangeInclusive};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;
use weir_netlink::conntrack::{Conntrack, Dumped, Filter, dump};
use weir_sys::{ProcRoot, sysctl};
use weir_text::order;

pub use contents::{Contents, Flags, OfAddress, OfNumber, OfPort, Protocol, Ranking, Talker, Times};
pub use memory::{Memory, Proposed};
pub use names::{parse_flag, parse_protocol, parse_tcp_state};
pub use nat_ports::NatRule;
pub use pools::{Pool, SnatPool};
pub use render::{changes, render};
pub use spread::Class;

use nat_ports::NatPorts;
use tally::{Settings, TableCounts};

/// Distinct keys of which counts are exact, for each ranking; beyond them the error is at most one in as many entries. About
/// 100 bytes each.
pub const PLACES: usize = 1 << 16;

/// The question about a table.
#[derive(Debug, Clone)]
pub struct Question {
    /// Which entries.
    pub filter: Filter,
    /// Lines of each ranking.
    pub top: usize,
    /// Stop after so many entries that passed the filter.
    pub limit: Option<u64>,
    /// A limit, to report its cost.
    pub max: Option<u64>,
    /// The range of ports that source NAT gives. If it is absent, weir reads the rules.
    pub nat_ports: Option<RangeInclusive<u16>>,
    /// See [`PLACES`].
    pub places: usize,
}

impl Default for Question {
    fn default() -> Self {
        Question {
            filter: Filter::default(),
            top: 10,
            limit: None,
            max: None,
            nat_ports: None,
            places: PLACES,
        }
    }
}

/// Why there is nothing to tell.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection tracking here.
    #[error(
        "this kernel has no connection tracking now: /proc/sys/net/netfilter/nf_conntrack_max is missing (it comes with \
         the module nf_conntrack, which the first rule that needs it loads)"
    )]
    Absent,
    /// The kernel has conntrack, but no way to read it.
    #[error(
        "the connection-tracking table cannot be read: the kernel has no ctnetlink (module nf_conntrack_netlink, \
         CONFIG_NF_CT_NETLINK)"
    )]
    Unreadable,
    /// Something went wrong on the way.
    #[error(transparent)]
    System(#[from] weir_sys::Error),
}

/// How full the table is.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Fill {
    /// Entries of this namespace.
    pub count: Option<u64>,
    /// The limit (`nf_conntrack_max`): of the whole kernel, but compared with each namespace's own count.
    pub max: Option<u64>,
    /// `count / max`.
    pub ratio: Option<f64>,
    /// Heads of hash chains (`nf_conntrack_buckets`), of all namespaces together.
    pub buckets: Option<u64>,
    /// `count / buckets`.
    pub entries_per_bucket: Option<f64>,
    /// Mean length of a chain, counting this namespace alone: each entry is in two chains.
    pub mean_chain: Option<f64>,
}

/// How the reading went.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Reading {
    /// False if the table itself could not be read.
    pub complete: bool,
    /// Why not.
    pub why: Option<String>,
    /// Entries that the kernel sent.
    pub received: u64,
    /// Messages that were no whole entry.
    pub malformed: u64,
    /// The kernel said that the table changed in a way that may have hidden entries or shown some twice.
    pub interrupted: bool,
    /// Reading ended after as many entries as were asked for.
    pub limited: bool,
    /// How long it took, ms.
    pub took_ms: f64,
}

/// Everything that is known about a table.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Table {
    /// How full it is.
    pub fill: Fill,
    /// How it was read.
    pub reading: Reading,
    /// True if only a part of the table was asked for.
    pub filtered: bool,
    /// Its contents; `None` if they could not be read.
    pub contents: Option<Contents>,
    /// Its cost in memory.
    pub memory: Memory,
    /// Counters since the namespace was made, by the names of conntrack(8): `insert_failed`, `drop`, `early_drop`, ...;
    /// `None` without CAP_NET_ADMIN.
    pub statistics: Option<BTreeMap<&'static str, u64>>,
    /// Settings of the namespace that decide what is in it, where they exist.
    pub settings: BTreeMap<&'static str, u64>,
    /// The range that `--nat-ports` gave, first and last.
    pub nat_ports: Option<(u16, u16)>,
    /// Rules of source NAT that name a range of ports.
    pub nat_rules: Vec<NatRule>,
    /// Notes to read before you trust the figures.
    pub notes: Vec<String>,
}

/// The reported settings, below `net.netfilter.`.
const SETTINGS: [&str; 9] = [
    "nf_conntrack_acct",
    "nf_conntrack_events",
    "nf_conntrack_timestamp",
    "nf_conntrack_tcp_timeout_established",
    "nf_conntrack_tcp_timeout_time_wait",
    "nf_conntrack_udp_timeout",
    "nf_conntrack_udp_timeout_stream",
    "nf_conntrack_icmp_timeout",
    "nf_conntrack_generic_timeout",
];

/// Reads the table of the calling thread's namespace.
///
/// # Errors
/// [`Error::Absent`] and [`Error::Unreadable`] where there is nothing to read. Without privilege the result says what it
/// could not see, which is no error.
pub fn read(root: &ProcRoot, question: &Question) -> Result<Table, Error> {
    let number = |name: &str| {
        let text = sysctl::get_optional(root, &format!("net.netfilter.{name}")).ok().flatten()?;
        text.trim().parse::<u64>().ok()
    };
    // Asking by netlink would load the modules.
    let max = number("nf_conntrack_max");
    if max.is_none() {
        return Err(Error::Absent);
    }
    let settings = order::map(SETTINGS.iter().filter_map(|name| Some((*name, number(name)?))));
    let buckets = number("nf_conntrack_buckets");

    let begun = Instant::now();
    let given = NatPorts::find(root, question.nat_ports.clone());
    let established_s = settings.get("nf_conntrack_tcp_timeout_established").copied();
    let seen = contents(question, established_s, given.clone())?;
    let took = begun.elapsed();
    // After the dump, which takes a while on a full table: closer to what the entries say.
    let count = number("nf_conntrack_count");
    let statistics = seen.as_ref().ok().and_then(|_| Conntrack::open().ok()?.statistics().ok());
    let on = |name: &str| settings.get(name) == Some(&1);
    let always = on("nf_conntrack_acct") || on("nf_conntrack_timestamp") || on("nf_conntrack_events");
    let evidence = seen.as_ref().ok().map(|(tally, _)| tally.evidence(always));

    let mut table = Table {
        fill: fill(count, max, buckets),
        reading: reading(&seen, took),
        filtered: !question.filter.is_empty(),
        contents: seen.as_ref().ok().map(|(tally, _)| tally.contents(question.top)),
        memory: Memory::read(root, max, buckets, evidence, question.max),
        statistics,
        settings,
        nat_ports: question.nat_ports.as_ref().map(|r| (*r.start(), *r.end())),
        nat_rules: given.with_range(),
        notes: Vec::new(),
    };
    table.notes = notes(&table, &given);
    Ok(table)
}

/// The tally of all entries; why there is none is a text, unless it is an error.
fn contents(
    question: &Question,
    established_s: Option<u64>,
    given: NatPorts,
) -> Result<Result<(Box<TableCounts>, Dumped), String>, Error> {
    let settings = Settings {
        places: question.places,
        given,
        established_s,
        now_ns: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64),
    };
    let mut tally = Box::new(TableCounts::new(&settings));
    let mut left = question.limit.unwrap_or(u64::MAX);
    if left == 0 {
        return Ok(Ok((tally, Dumped { stopped: true, ..Dumped::default() })));
    }
    let dumped = dump(&question.filter, |entry| {
        tally.add(entry);
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match dumped {
        Ok(dumped) => Ok(Ok((tally, dumped))),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(Err(
            "reading the entries needs root (CAP_NET_ADMIN over this network namespace): run it with sudo"
                .to_owned(),
        )),
        // nfnetlink answers EINVAL for an unregistered subsystem, and the protocol itself may be missing.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EPROTONOSUPPORT)) => {
            Err(Error::Unreadable)
        }
        Err(e) => Err(e.into()),
    }
}

fn fill(count: Option<u64>, max: Option<u64>, buckets: Option<u64>) -> Fill {
    // A limit of 0 is none (nf_conntrack_alloc).
    let ratio = count.zip(max.filter(|m| *m > 0)).map(|(c, m)| c as f64 / m as f64);
    let per_bucket = count.zip(buckets.filter(|b| *b > 0));
    Fill {
        count,
        max,
        ratio,
        buckets,
        entries_per_bucket: per_bucket.map(|(c, b)| c as f64 / b as f64),
        mean_chain: per_bucket.map(|(c, b)| memory::mean_chain(c, b)),
    }
}

fn reading(seen: &Result<(Box<TableCounts>, Dumped), String>, took: Duration) -> Reading {
    let dumped = seen.as_ref().map(|(_, dumped)| *dumped).unwrap_or_default();
    Reading {
        complete: seen.is_ok() && !dumped.stopped && !dumped.interrupted,
        why: seen.as_ref().err().cloned(),
        received: dumped.received,
        malformed: dumped.malformed,
        interrupted: dumped.interrupted,
        limited: dumped.stopped,
        took_ms: took.as_secs_f64() * 1e3,
    }
}

/// Returns facts that the figures do not show themselves.
fn notes(table: &Table, given: &NatPorts) -> Vec<String> {
    let mut notes = Vec::new();
    let reading = &table.reading;
    if let Some(why) = &reading.why {
        notes.push(why.clone());
    }
    if reading.interrupted {
        notes.push("the table changed while it was read: entries may be missing or counted twice".into());
    }
    if reading.limited {
        notes.push("reading ended early at --limit: the figures are of the first entries only".into());
    }
    if reading.malformed > 0 {
        notes.push(format!(
            "{} messages of the kernel were no whole entries and are left out",
            reading.malformed
        ));
    }
    if table.memory.entry_bytes.is_none() {
        notes.push("the size of an entry is in /proc/slabinfo, which needs root".into());
    }
    let Some(contents) = &table.contents else { return notes };
    if let (false, Some(why)) = (contents.nat_pools.top.is_empty(), given.doubt()) {
        notes.push(format!(
            "{why}, so SNAT ports are counted against the kernel's own range where it is not certain (1024 to 65535 for \
             original ports from 1024 on): --nat-ports FIRST-LAST says which one it is"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_no_division_by_zero() {
        let f = fill(Some(10), Some(0), Some(0));
        assert_eq!((f.ratio, f.entries_per_bucket, f.mean_chain), (None, None, None));
        let f = fill(Some(50), Some(200), Some(100));
        assert_eq!((f.ratio, f.entries_per_bucket, f.mean_chain), (Some(0.25), Some(0.5), Some(1.0)));
    }

    #[test]
    fn without_conntrack_nothing_is_asked() {
        let nowhere = ProcRoot::new("/proc/self/task/none");
        assert!(matches!(read(&nowhere, &Question::default()), Err(Error::Absent)));
    }
}
