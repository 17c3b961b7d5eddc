//! Options of `weir mtu`.

use std::time::Duration;

use clap::Args;

use super::time::between;

/// `weir mtu`.
#[derive(Debug, Args)]
pub(crate) struct MtuArgs {
    /// Host name or address
    pub(crate) target: String,
    /// Port of `weir serve`; where none runs, any on which nobody listens for UDP
    #[arg(short, long, default_value_t = 9347, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Only IPv4 addresses of the name
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// Only IPv6 addresses of the name
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
    /// Time for the whole: 10, 30s, 2m
    #[arg(short, long, alias = "for", default_value = "10s", value_name = "TIME",
          value_parser = between(Duration::from_secs(1), Duration::from_secs(300)))]
    pub(crate) time: Duration,
    /// Exit with 3 if anything is found
    #[arg(long)]
    pub(crate) fail_on_finding: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}
