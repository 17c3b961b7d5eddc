//! Options of `weir nat`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use weir_agent::HostAddress;
use weir_nat::Limits;

use super::time::between;

#[derive(Debug, Args)]
pub(crate) struct NatArgs {
    #[command(subcommand)]
    pub(crate) command: NatCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NatCommand {
    /// Measure the NAT in front of this host, by `weir serve` on the other side or by a STUN server
    Check(NatCheckArgs),
    /// Show how the NAT in front of this host chooses ports, and what happens when they run out
    Ports(NatPortsArgs),
    /// Measure gateways in weir's lab: which requirements of the NAT RFCs each meets
    Lab(NatLabArgs),
    /// Compare two saved results, of `nat lab --json` or `nat check --json`
    Compare(NatCompareArgs),
    /// List the rows of the table: what each asks, and what breaks where it is not met
    Rows {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `weir nat check`.
#[derive(Debug, Args)]
pub(crate) struct NatCheckArgs {
    /// Host with `weir serve --nat-address`, by name or address; the port is 9347 unless given
    #[arg(value_name = "SERVER", required_unless_present_any = ["stun", "to"])]
    pub(crate) server: Option<String>,
    /// Ask a STUN server with two addresses (RFC 5780) instead, about mapping and filtering of UDP only; the port is 3478 unless
    /// given
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["server", "key_file", "preset", "idle", "pcap", "progress", "from", "to"])]
    pub(crate) stun: Option<String>,
    /// File with the server's key, readable by its owner only; or set the key in WEIR_KEY
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// How far to go: quick (idle times up to 35s, below a minute in all), standard (305s; six minutes) or long (established
    /// connections up to 2 h 4 min 5 s too, with root on both sides)
    #[arg(long, value_enum, default_value_t = NatPreset::Quick, value_name = "NAME", hide_possible_values = true)]
    pub(crate) preset: NatPreset,
    /// Leave mappings idle for TIME at most: 0 skips the timers (default: as the preset; examples: 0, 125s, 6m)
    #[arg(long, value_name = "TIME", value_parser = idle, conflicts_with = "preset")]
    pub(crate) idle: Option<Duration>,
    #[command(flatten)]
    pub(crate) version: VersionArgs,
    #[command(flatten)]
    pub(crate) hosts: HostsArgs,
    /// Write the raw packets of each experiment to DIR/EXPERIMENT.pcapng, for Wireshark and tcpdump; with --from on that host
    #[arg(long, value_name = "DIR")]
    pub(crate) pcap: Option<PathBuf>,
    /// Keep what is known in FILE, and go on from it if it is there
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pcap", "from"])]
    pub(crate) progress: Option<PathBuf>,
    /// Exit with 3 if a MUST or MUST NOT is not met
    #[arg(long)]
    pub(crate) fail_on_must: bool,
    /// Print Markdown: what breaks, the packets of each unmet MUST with --pcap, and all rows
    #[arg(long, conflicts_with_all = ["html", "json"])]
    pub(crate) markdown: bool,
    /// Print the same as one self-contained HTML page
    #[arg(long, conflicts_with = "json")]
    pub(crate) html: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which NAT is asked about, of a server that has addresses of both versions.
#[derive(Debug, Default, Args)]
pub(crate) struct VersionArgs {
    /// Go over IPv4 (default, if the server has such an address)
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// Go over IPv6: NPTv6, NAT66 or NAT64
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
}

/// The two ends, where they are not this host and a server that runs already.
#[derive(Debug, Default, Args)]
pub(crate) struct HostsArgs {
    /// Run this command on HOST instead of here: ssh://[USER@]HOST[:PORT], docker://CONTAINER,
    /// kubectl://NAMESPACE/POD[/CONTAINER] or netns:NAME; weir copies itself there
    #[arg(long, value_name = "HOST")]
    pub(crate) from: Option<HostAddress>,
    /// Run `weir serve` on HOST while this command runs, with a key made for it; HOST as for --from
    #[arg(long, value_name = "HOST", requires = "addresses", conflicts_with_all = ["server", "key_file"])]
    pub(crate) to: Option<HostAddress>,
    /// Address of the host of --to, as `weir serve --nat-address`; give a second one for all rows
    #[arg(long = "nat-address", value_name = "ADDRESS", requires = "to")]
    pub(crate) addresses: Vec<IpAddr>,
    /// Start weir on these hosts through `sudo -n`, where the login is not root
    #[arg(long)]
    pub(crate) sudo: bool,
}

/// `weir nat ports`.
#[derive(Debug, Args)]
pub(crate) struct NatPortsArgs {
    /// Host with `weir serve --nat-address`, by name or address; the port is 9347 unless given
    #[arg(value_name = "SERVER", required_unless_present = "to")]
    pub(crate) server: Option<String>,
    /// File with the server's key, readable by its owner only; or set the key in WEIR_KEY
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Send from N ports at most, 1,250 a second. Every one takes a port of the NAT, which other hosts behind it may need
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=60_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) version: VersionArgs,
    #[command(flatten)]
    pub(crate) hosts: HostsArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `weir nat lab`.
#[derive(Debug, Args)]
pub(crate) struct NatLabArgs {
    /// Gateway to measure; may be repeated (default: nft-masquerade)
    #[arg(long = "gateway", value_name = "NAME", value_enum, hide_possible_values = true)]
    pub(crate) gateways: Vec<LabGateway>,
    /// Measure all gateways side by side; those whose programs are missing are skipped
    #[arg(long, conflicts_with = "gateways")]
    pub(crate) all: bool,
    /// List the names of gateways
    #[arg(long)]
    pub(crate) list: bool,
    /// Measure over IPv6: what is translated (nothing, prefixes, addresses and ports), and the same rows
    #[arg(long)]
    pub(crate) ipv6: bool,
    /// How far to go: quick (idle times up to 35s, below a minute in all), standard (305s; six minutes) or long (established
    /// connections up to 2 h 4 min 5 s too)
    #[arg(long, value_enum, default_value_t = NatPreset::Quick, value_name = "NAME", hide_possible_values = true)]
    pub(crate) preset: NatPreset,
    /// Leave mappings idle for TIME at most: 0 skips the timers (default: as the preset; examples: 0, 125s, 6m)
    #[arg(long, value_name = "TIME", value_parser = idle, conflicts_with = "preset")]
    pub(crate) idle: Option<Duration>,
    /// Open N mappings at most in search of the end of the gateway's ports: 0 skips that. An address has 64,512 ports
    /// (default: 2000 in quick, 66000 otherwise)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=129_000))]
    pub(crate) mappings: Option<u32>,
    /// Set a net.* sysctl of the gateway first (example: net.netfilter.nf_conntrack_udp_timeout=60); may be repeated
    #[arg(long = "sysctl", value_name = "NAME=VALUE", value_parser = assignment)]
    pub(crate) sysctls: Vec<(String, String)>,
    /// Write the packets of each experiment to DIR/GATEWAY/EXPERIMENT.pcapng, for Wireshark and tcpdump
    #[arg(long, value_name = "DIR")]
    pub(crate) pcap: Option<PathBuf>,
    /// Keep what is known in FILE, and go on from it if it is there. A complete FILE prints its result at once
    #[arg(long, value_name = "FILE", conflicts_with = "pcap")]
    pub(crate) progress: Option<PathBuf>,
    /// Exit with 3 if a MUST or MUST NOT is not met
    #[arg(long)]
    pub(crate) fail_on_must: bool,
    /// Print Markdown: what breaks, the packets of each unmet MUST with --pcap, and gateways side by side
    #[arg(long, conflicts_with_all = ["html", "json"])]
    pub(crate) markdown: bool,
    /// Print the same as one self-contained HTML page
    #[arg(long, conflicts_with = "json")]
    pub(crate) html: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl NatCheckArgs {
    /// How far the experiments go.
    pub(crate) fn limits(&self) -> Limits {
        Limits { mappings: 0, ..self.preset.limits(self.idle) }
    }
}

impl NatLabArgs {
    /// How far the experiments go.
    pub(crate) fn limits(&self) -> Limits {
        let limits = self.preset.limits(self.idle);
        Limits { mappings: self.mappings.unwrap_or(limits.mappings), ..limits }
    }
}

/// `weir nat compare`.
#[derive(Debug, Args)]
pub(crate) struct NatCompareArgs {
    /// Earlier result, a file of JSON
    pub(crate) before: PathBuf,
    /// Later result
    pub(crate) after: PathBuf,
    /// Exit with 3 if a requirement is met less than before
    #[arg(long)]
    pub(crate) fail_on_worse: bool,
    /// Print Markdown
    #[arg(long, conflicts_with_all = ["html", "json"])]
    pub(crate) markdown: bool,
    /// Print one self-contained HTML page
    #[arg(long, conflicts_with = "json")]
    pub(crate) html: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// More than the 64,512 ports from 1024 upwards that a NAT with one address has.
const ALL_PORTS: u32 = 66_000;

/// How far the experiments go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NatPreset {
    /// Below a minute: timers up to 35 s
    Quick,
    /// Six minutes: decides every timer of RFC 4787, 5382 and 5508 up to five minutes
    Standard,
    /// Two hours and six minutes: the timers of established connections too
    Long,
}

impl NatPreset {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// How far the experiments go, with the same idle time for all where one is given.
    fn limits(self, given: Option<Duration>) -> Limits {
        let limits = |idle, connections, mappings| {
            let [idle, connections] = [idle, connections].map(|s| given.unwrap_or(Duration::from_secs(s)));
            Limits { idle, connections, mappings }
        };
        match self {
            // The kernel's shortest timers, of 30 s, end within it.
            NatPreset::Quick => limits(35, 35, 2_000),
            NatPreset::Standard => limits(305, 305, ALL_PORTS),
            // RFC 5382 REQ-5 asks for 7,440 s.
            NatPreset::Long => limits(305, 7_445, ALL_PORTS),
        }
    }
}

/// A gateway of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LabGateway {
    /// Forwards and translates nothing
    Routed,
    /// Masquerade by nft
    NftMasquerade,
    /// The same, with ports offset at random
    NftMasqueradeRandom,
    /// The same, with ports chosen at random
    NftMasqueradeFullyRandom,
    /// The same, with the option persistent
    NftMasqueradePersistent,
    /// The same, with established connections carried by BPF
    NftMasqueradeFastpath,
    /// Masquerade by nft, with an address list of nft in front of it
    NftMasqueradeAllow,
    /// Containers behind a bridge, with the rules of Docker Engine
    Docker,
    /// The same, with established connections carried by BPF
    DockerFastpath,
    /// Ports of a container behind such rules, forwarded by BPF without state (weir publish)
    Publish,
    /// Masquerade by iptables on nf_tables
    IptablesMasquerade,
    /// Masquerade by iptables on x_tables
    IptablesLegacyMasquerade,
    /// Source NAT by nft to a pool of 250 addresses
    NftPool,
    /// The same, with the option persistent
    NftPoolPersistent,
    /// With --ipv6: prefixes translated by nft
    NftPrefix,
    /// With --ipv6: prefixes translated by SNPT and DNPT of ip6tables (RFC 6296)
    Ip6tablesNpt,
    /// With --ipv6: NAT64 by tayga and masquerade of nft; the outside is of IPv4 (RFC 6146)
    TaygaNat64,
}

impl LabGateway {
    /// Whether the lab has it over that version of IP.
    pub(crate) fn is_of(self, ipv6: bool) -> bool {
        match self {
            LabGateway::NftPrefix | LabGateway::Ip6tablesNpt | LabGateway::TaygaNat64 => ipv6,
            // Its experiments are those of published ports of IPv4.
            LabGateway::Publish => !ipv6,
            _ => true,
        }
    }

    /// As it is written on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A time up to an hour, or 0.
fn idle(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    between(Duration::from_millis(500), Duration::from_secs(3600))(text)
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    if !name.starts_with("net.") {
        return Err(format!("`{name}` is not a setting of a network namespace (net.*)"));
    }
    Ok((name.to_owned(), value.to_owned()))
}
