//! Options of `weir export`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use weir_export::ProbeTarget;

use super::flows::TrackingArgs;
use super::shared::NetnsArgs;
use super::time::{DAY, between};

/// Heading of the options about how the page is read.
const ACCESS: &str = "Access";
/// Heading of the options about what is measured.
const SOURCES: &str = "Sources";

/// A window that loses less to its own analysis than it watches.
fn window(text: &str) -> Result<Duration, String> {
    between(Duration::from_secs(1), DAY)(text)
}

/// node_exporter(1) reads files of that ending only.
fn textfile(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().is_some_and(|e| e == "prom") && path.file_stem().is_some() {
        true => Ok(path),
        false => Err("the name must end in .prom: node_exporter reads no other files".into()),
    }
}

/// A source of figures that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Without {
    /// Flows that pass this host (BPF)
    Flows,
    /// Fill and statistics of the connection-tracking table
    Conntrack,
    /// Ports of source NAT, which need a dump of the table every 30 s
    Snat,
    /// The doctor (BPF)
    Doctor,
    /// The fast path
    Fastpath,
    /// Published ports
    Publish,
    /// Address lists in effect
    Allow,
    /// Age of cached address lists
    Lists,
}

/// `weir export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) netns: NetnsArgs,
    #[command(flatten)]
    pub(crate) tracking: TrackingArgs,
    /// Address and port to listen on (default: 127.0.0.1:9348, with --textfile none); off the loopback only with --token-file or TLS
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = ACCESS)]
    pub(crate) listen: Option<SocketAddr>,
    /// File with a token of at least 16 bytes, readable by its owner only; clients send it as `Authorization: Bearer TOKEN`
    #[arg(long, value_name = "FILE", help_heading = ACCESS)]
    pub(crate) token_file: Option<PathBuf>,
    /// Serve HTTPS with this chain of certificates (PEM); read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = ACCESS)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM), not open to others
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = ACCESS)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Write the page every 2s for node_exporter's textfile collector, and remove it at the end; FILE ends in .prom
    #[arg(long, value_name = "FILE", value_parser = textfile, help_heading = ACCESS)]
    pub(crate) textfile: Option<PathBuf>,
    /// Number of networks with series of their own; all others share the label `other`
    #[arg(long, default_value_t = 50, value_name = "N", help_heading = SOURCES)]
    pub(crate) networks: usize,
    /// Number of destinations whose ports of source NAT have series, the fullest first
    #[arg(long, default_value_t = 20, value_name = "N", help_heading = SOURCES)]
    pub(crate) destinations: usize,
    /// Length of the doctor's windows (examples: 30s, 5m)
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = window, help_heading = SOURCES)]
    pub(crate) doctor_window: Duration,
    /// Connect to HOST:PORT by TCP on a schedule and close at once; may be repeated, 64 times at most
    #[arg(long = "probe", value_name = "HOST:PORT", help_heading = SOURCES)]
    pub(crate) probes: Vec<ProbeTarget>,
    /// Time between two connects to the same target
    #[arg(long, default_value = "15s", value_name = "TIME", value_parser = window, help_heading = SOURCES)]
    pub(crate) probe_every: Duration,
    /// Leave out a source of figures; may be repeated
    #[arg(long, value_enum, value_name = "SOURCE", help_heading = SOURCES)]
    pub(crate) without: Vec<Without>,
}
