//! Options of `weir mtu`.

use std::time::Duration;

use clap::Args;

use super::time::between;

/// `weir mtu`.
#[derive(Debug, Args)]
pub(crate) struct MtuArgs {
    /// Host name or address
    pub(crate) target: String,
    /// Port of `weir serve`; without a server, any closed UDP port
    #[arg(short, long, default_value_t = 9347, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Use only IPv4 addresses of the name
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// Use only IPv6 addresses of the name
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
    /// Search for TIME at most, over all lengths and both directions (examples: 10, 30s, 2m)
    #[arg(long = "for", default_value = "10s", value_name = "TIME",
          value_parser = between(Duration::from_secs(1), Duration::from_secs(300)))]
    pub(crate) time: Duration,
    /// Exit with 3 on any finding
    #[arg(long)]
    pub(crate) fail_on_finding: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
