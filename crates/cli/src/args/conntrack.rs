//! Options of `weir conntrack`.

use clap::Args;

use super::shared::{NetnsArgs, WatchArgs};

/// Heading of the filters.
const ENTRIES: &str = "Filters";
/// Heading of the options about another limit or range.
const ESTIMATES: &str = "Estimates";

#[derive(Debug, Args)]
pub(crate) struct ConntrackArgs {
    #[command(flatten)]
    pub(crate) netns: NetnsArgs,
    /// Number of lines in each ranking
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) top: usize,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Count only this protocol, by name or number
    #[arg(long, value_name = "PROTOCOL", help_heading = ENTRIES)]
    pub(crate) protocol: Option<String>,
    /// Count only TCP in this state (examples: established, time-wait); may be repeated
    #[arg(long = "state", value_name = "STATE", help_heading = ENTRIES)]
    pub(crate) states: Vec<String>,
    /// Count only entries with this flag: assured, replied, unreplied, snat, dnat, expected, offload; may be repeated, all must hold
    #[arg(long = "flag", value_name = "FLAG", help_heading = ENTRIES)]
    pub(crate) flags: Vec<String>,
    /// Count only connections opened from this address or prefix
    #[arg(long, value_name = "PREFIX", help_heading = ENTRIES)]
    pub(crate) source: Option<String>,
    /// Count only connections to this address or prefix, before or after translation
    #[arg(long, value_name = "PREFIX", help_heading = ENTRIES)]
    pub(crate) destination: Option<String>,
    /// Count only this destination port, before or after translation
    #[arg(long, value_name = "PORT", help_heading = ENTRIES)]
    pub(crate) port: Option<u16>,
    /// Count only this zone
    #[arg(long, value_name = "ZONE", help_heading = ENTRIES)]
    pub(crate) zone: Option<u16>,
    /// Count only this mark, in decimal or as 0x...
    #[arg(long, value_name = "MARK[/MASK]", help_heading = ENTRIES)]
    pub(crate) mark: Option<String>,
    /// Stop after N matching entries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = ENTRIES)]
    pub(crate) limit: Option<u64>,
    /// Print the memory of nf_conntrack_max = N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40), help_heading = ESTIMATES)]
    pub(crate) max: Option<u64>,
    /// Port range of the SNAT rule (default: read from the nftables rules; example: 10000-19999)
    #[arg(long, value_name = "FIRST-LAST", help_heading = ESTIMATES)]
    pub(crate) nat_ports: Option<String>,
}
