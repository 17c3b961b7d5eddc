//! Options of `weir conntrack`.

use std::time::Duration;

use clap::Args;

use super::time::{DAY, between};

/// Heading of the options that say which entries are counted.
const ENTRIES: &str = "Which entries";
/// Heading of the options that ask what would be.
const WHAT_IF: &str = "What if";
/// Shortest time between two readings: a full table takes about that long.
const SHORTEST: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct ConntrackArgs {
    /// Another network namespace: a name of `ip netns`, a process id, or a path such as /proc/PID/ns/net
    #[arg(long, value_name = "NAME|PID|PATH")]
    pub(crate) netns: Option<String>,
    /// Lines of each ranking
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) top: usize,
    /// Again and again until Ctrl-C, every 2 s or so often: 5, 500ms, 1m
    #[arg(short, long, alias = "every", value_name = "TIME", num_args = 0..=1, default_missing_value = "2",
          value_parser = between(SHORTEST, DAY))]
    pub(crate) watch: Option<Duration>,
    /// As JSON; with --watch one line each time
    #[arg(long)]
    pub(crate) json: bool,
    /// Only this protocol: a name or a number
    #[arg(long, value_name = "PROTOCOL", help_heading = ENTRIES)]
    pub(crate) protocol: Option<String>,
    /// Only TCP in this state, e.g. `established`, `time-wait`; may be repeated
    #[arg(long = "state", value_name = "STATE", help_heading = ENTRIES)]
    pub(crate) states: Vec<String>,
    /// Only entries with this: assured, replied, unreplied, snat, dnat, expected, offload; may be repeated, all must hold
    #[arg(long = "flag", value_name = "FLAG", help_heading = ENTRIES)]
    pub(crate) flags: Vec<String>,
    /// Only connections opened from here: an address or a prefix
    #[arg(long, value_name = "PREFIX", help_heading = ENTRIES)]
    pub(crate) source: Option<String>,
    /// Only connections to here, as asked for or after translation: an address or a prefix
    #[arg(long, value_name = "PREFIX", help_heading = ENTRIES)]
    pub(crate) destination: Option<String>,
    /// Only this destination port, as asked for or after translation
    #[arg(long, value_name = "PORT", help_heading = ENTRIES)]
    pub(crate) port: Option<u16>,
    /// Only this zone
    #[arg(long, value_name = "ZONE", help_heading = ENTRIES)]
    pub(crate) zone: Option<u16>,
    /// Only this mark, in decimal or as 0x...
    #[arg(long, value_name = "MARK[/MASK]", help_heading = ENTRIES)]
    pub(crate) mark: Option<String>,
    /// Stop after this many entries that match
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = ENTRIES)]
    pub(crate) limit: Option<u64>,
    /// What would nf_conntrack_max = N cost?
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40), help_heading = WHAT_IF)]
    pub(crate) max: Option<u64>,
    /// The port range of the SNAT rule, e.g. `10000-19999`; without it the nftables rules are read
    #[arg(long, value_name = "FIRST-LAST", help_heading = WHAT_IF)]
    pub(crate) nat_ports: Option<String>,
}
