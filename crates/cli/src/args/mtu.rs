//! Options of `weir mtu`.

use clap::Args;

/// `weir mtu`.
#[derive(Debug, Args)]
#[command(
    long_about = "How large a packet the path to a host carries, whether ICMP says so, and what becomes of fragments: in words, \
                  with the UDP payload that is safe (-l 1472 for an MTU of 1500) and the MSS to clamp to, then everything that was \
                  tried.\n\nWith `weir serve` on the target each direction is measured by itself, and single fragments are told \
                  apart where the server may see them (CAP_NET_RAW). Without it pings and the refusals of a closed port have to \
                  do. A few dozens of small packets, no load, and no root.",
    after_help = "Exit codes: 0 done, whatever was found; 1 nobody answers, or the host is unreachable; 2 wrong usage; 3 something \
                  was found, and --fail-on-finding was given."
)]
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
    /// Time for the whole
    #[arg(short, long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=300))]
    pub(crate) time: u64,
    /// Exit with 3 if anything is found
    #[arg(long)]
    pub(crate) fail_on_finding: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}
