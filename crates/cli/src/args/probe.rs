//! Options of `weir probe` and `weir serve`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::time::time;

/// What `weir probe` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Bulk TCP: bit rate, retransmits, RTT
    Tcp,
    /// Datagrams at a rate: loss, reordering, jitter
    Udp,
    /// Request and response: round-trip time, in windows of 1,000
    Latency,
    /// Time to connect to any TCP port; needs no weir there
    Connect,
    /// Connections per second: connect, request, response, close
    Cps,
    /// HTTP requests; TARGET is a URL, and needs no weir there
    Http,
}

/// As it is written on the command line.
impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mode::Tcp => "tcp",
            Mode::Udp => "udp",
            Mode::Latency => "latency",
            Mode::Connect => "connect",
            Mode::Cps => "cps",
            Mode::Http => "http",
        })
    }
}

/// `weir probe`.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// Host name, address or URL; with a port as HOST:PORT or [ADDRESS]:PORT, or by --port
    pub(crate) target: String,
    /// What to measure: tcp, or http where TARGET is a URL, if not given
    #[arg(value_enum)]
    pub(crate) mode: Option<Mode>,
    /// Port of the far end; by default 9347, with --iperf3 5201, with connect 443
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// The far end is a stock iperf3 server
    #[arg(long)]
    pub(crate) iperf3: bool,
    /// Only IPv4 addresses of the target's name
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// Only IPv6 addresses of the target's name
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
    /// File with the pre-shared key of the server, readable by its owner only; or the key itself in the variable WEIR_KEY
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// One document as JSON instead of lines; with --watch one line each time
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// No line per second, only the summary
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    #[command(flatten)]
    pub(crate) iperf: Iperf3Args,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// How long, and how often.
#[derive(Debug, Args)]
#[command(next_help_heading = "How long")]
pub(crate) struct PlanArgs {
    /// How long to measure: 10, 90s, 2m, 500ms; 10 s if not given
    #[arg(short, long, alias = "for", value_name = "TIME", value_parser = time)]
    pub(crate) time: Option<Duration>,
    /// Traffic before that, which is not counted; TCP modes need about 1 s to come to speed
    #[arg(short = 'O', long, value_name = "TIME", value_parser = time_or_none)]
    pub(crate) omit: Option<Duration>,
    /// Then so often for so long, each on new connections: `10s x 4` or 4x10s; one argument
    #[arg(long, value_name = "N x TIME", value_parser = repeat)]
    pub(crate) repeat: Option<Repeat>,
    /// Again and again until Ctrl-C
    #[arg(long, conflicts_with = "repeat")]
    pub(crate) watch: bool,
}

/// What is sent.
#[derive(Debug, Args)]
#[command(next_help_heading = "Traffic")]
pub(crate) struct TrafficArgs {
    /// tcp, udp: streams at once; latency, cps, http: connections at once
    #[arg(short = 'P', long, alias = "streams", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) parallel: Option<u32>,
    /// tcp, udp: the far end sends
    #[arg(short = 'R', long, conflicts_with = "bidir")]
    pub(crate) reverse: bool,
    /// tcp, udp: both ends send
    #[arg(long)]
    pub(crate) bidir: bool,
    /// tcp, udp: payload bits per second over all streams: 500K, 100M, 1.5G; 0 for as fast as possible; if not given 1M for udp, and
    /// as fast as possible for tcp; with --iperf3 of each stream, and RATE/N sends N writes in a burst
    #[arg(short, long, value_name = "RATE", value_parser = bitrate)]
    pub(crate) bitrate: Option<Bitrate>,
    /// Bytes of a write (tcp), of a datagram's payload (udp), of a request and a response (latency, cps): 1472, 8K
    #[arg(short, long, value_name = "BYTES", value_parser = bytes_u32)]
    pub(crate) length: Option<u32>,
    /// tcp: socket buffers (SO_SNDBUF, SO_RCVBUF) in bytes: 512K
    #[arg(short, long, value_name = "BYTES", value_parser = bytes_u32)]
    pub(crate) window: Option<u32>,
    /// tcp: largest segment in bytes
    #[arg(short = 'M', long, alias = "mss", value_name = "BYTES", value_parser = clap::value_parser!(u16).range(88..=32767))]
    pub(crate) set_mss: Option<u16>,
    /// tcp: congestion control, such as cubic, reno or bbr; the system's if not given
    #[arg(short = 'C', long, value_name = "NAME")]
    pub(crate) congestion: Option<String>,
    /// tcp: send small writes at once (TCP_NODELAY)
    #[arg(short = 'N', long)]
    pub(crate) no_delay: bool,
    /// latency: over UDP
    #[arg(short, long)]
    pub(crate) udp: bool,
    /// latency, connect, cps, http: so many a second on a schedule; connect: 10 if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) rate: Option<u32>,
    /// connect, cps, http, latency over UDP: give one up after this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Option<Duration>,
}

/// Only with --iperf3.
#[derive(Debug, Args)]
#[command(next_help_heading = "Only with --iperf3")]
pub(crate) struct Iperf3Args {
    /// Send so many bytes instead of for a time: 100M
    #[arg(short = 'n', long, value_name = "BYTES", value_parser = bytes_u64, requires = "iperf3",
          conflicts_with_all = ["time", "blockcount"])]
    pub(crate) bytes: Option<u64>,
    /// Send so many blocks (writes or datagrams) instead of for a time
    #[arg(short = 'k', long, value_name = "N", value_parser = bytes_u64, requires = "iperf3", conflicts_with = "time")]
    pub(crate) blockcount: Option<u64>,
    /// Ask for the server's own output
    #[arg(long, requires = "iperf3")]
    pub(crate) get_server_output: bool,
    /// 64-bit numbers in UDP datagrams
    #[arg(long = "udp-counters-64bit", requires = "iperf3")]
    pub(crate) udp_counters_64bit: bool,
    /// Send from a file's pages without copying (sendfile)
    #[arg(short = 'Z', long, requires = "iperf3")]
    pub(crate) zerocopy: bool,
    /// Type-of-service byte of the IP header: 0..255, or 0x..
    #[arg(short = 'S', long, value_name = "TOS", value_parser = tos, requires = "iperf3")]
    pub(crate) tos: Option<u8>,
    /// Title that goes before each of the server's lines
    #[arg(short = 'T', long, value_name = "TEXT", requires = "iperf3")]
    pub(crate) title: Option<String>,
}

/// Only for http.
#[derive(Debug, Args)]
#[command(next_help_heading = "Only for http")]
pub(crate) struct HttpArgs {
    /// A connection for each request
    #[arg(long)]
    pub(crate) no_keep_alive: bool,
    /// End after so many requests
    #[arg(long, value_name = "N")]
    pub(crate) requests: Option<u64>,
    /// A further header line, such as 'Accept-Encoding: gzip'; may be repeated
    #[arg(long = "header", value_name = "LINE")]
    pub(crate) headers: Vec<String>,
    /// Do not ask who signed the server's certificate
    #[arg(long)]
    pub(crate) insecure: bool,
    /// File with the authorities that may have signed it (PEM); those that the system trusts if not given
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) ca: Option<String>,
}

/// Heading of what `weir serve` allows at most.
const LIMITS: &str = "Limits";

/// `weir serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on: all of this host's if not given
    #[arg(short, long, value_name = "ADDRESS")]
    pub(crate) bind: Option<IpAddr>,
    /// Port, TCP and UDP; 5201 is the one that iperf3 clients ask for by themselves; 0 for any that is free
    #[arg(short, long, default_value_t = 9347, value_name = "PORT")]
    pub(crate) port: u16,
    /// File with the key that clients must have, 16 bytes at least, readable by its owner only; or the key itself in the variable
    /// WEIR_KEY
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Let anyone in who can reach the port
    #[arg(long)]
    pub(crate) open: bool,
    /// One line per client as JSON
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// No line per client
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Clients at once
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = LIMITS)]
    pub(crate) max_sessions: u32,
    /// Of these, from one address (IPv6: from one /64); as many may begin in a second
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = LIMITS)]
    pub(crate) max_per_client: u32,
    /// Streams or connections at once of one client's address, over all of its measurements
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = LIMITS)]
    pub(crate) max_streams: u32,
    /// Longest measurement: 10m, 1h
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = time, help_heading = LIMITS)]
    pub(crate) max_time: Duration,
    /// Highest bit rate of one client's address, in each direction and over all of its measurements: 100M, 10G; without it as fast as it
    /// goes
    #[arg(long, value_name = "RATE", value_parser = bits, help_heading = LIMITS)]
    pub(crate) max_rate: Option<f64>,
    /// The same over all clients together, by the rate that each measurement names (--bitrate); TCP without one has what is left, and
    /// one for which not enough is left is refused. Without --max-rate one client may have all of it
    #[arg(long, value_name = "RATE", value_parser = bits, help_heading = LIMITS)]
    pub(crate) max_total_rate: Option<f64>,
    /// Memory for sockets' buffers over all clients, of which one client's address has half (4M at least, as far as there is so much): 256M
    #[arg(long, default_value = "256M", value_name = "BYTES", value_parser = bytes_u64, help_heading = LIMITS)]
    pub(crate) max_memory: u64,
}

/// What `--repeat` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Repeat {
    /// How often, 1..=10000.
    pub(crate) times: u32,
    /// How long each.
    pub(crate) each: Duration,
}

/// What `--bitrate` says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bitrate {
    /// Bits per second; 0 for as fast as possible.
    pub(crate) bps: f64,
    /// Writes in a burst (only with --iperf3).
    pub(crate) burst: Option<u32>,
}

/// As [`time`], and 0.
fn time_or_none(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" { Ok(Duration::ZERO) } else { time(text) }
}

/// `10s x 4`, `4 x 10s`, `4x10s`: the one without a unit is how often, the first of two such.
fn repeat(text: &str) -> Result<Repeat, String> {
    let wrong = || "not of the kind 4x10s or `10s x 4`".to_owned();
    let (a, b) = text.split_once(['x', 'X', '*']).ok_or_else(wrong)?;
    let (a, b) = (a.trim(), b.trim());
    let (times, each) = match (a.parse::<u32>(), b.parse::<u32>()) {
        (Ok(n), _) => (n, time(b)?),
        (Err(_), Ok(n)) => (n, time(a)?),
        (Err(_), Err(_)) => return Err(wrong()),
    };
    if !(1..=10_000).contains(&times) {
        return Err("1 to 10000 times".into());
    }
    Ok(Repeat { times, each })
}

/// A number with a suffix of powers of `base`.
fn scaled(text: &str, base: f64) -> Option<f64> {
    let text = text.trim();
    let (number, power) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1),
        (at, 'm' | 'M') => (&text[..at], 2),
        (at, 'g' | 'G') => (&text[..at], 3),
        (at, 't' | 'T') => (&text[..at], 4),
        _ => (text, 0),
    };
    // Rust's parser also takes `inf`, `nan`, a sign and an exponent.
    let plain = number.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    let value = number.parse::<f64>().ok().filter(|_| plain)?;
    Some(value * base.powi(power))
}

/// Bits per second: suffixes are powers of 1000, as in iperf3.
fn bits(text: &str) -> Result<f64, String> {
    match scaled(text, 1000.0) {
        Some(bps) if (1.0..=1e13).contains(&bps) => Ok(bps),
        Some(_) => Err("1 to 10000G".into()),
        None => Err("not a rate such as 500K, 100M or 1.5G".into()),
    }
}

fn bitrate(text: &str) -> Result<Bitrate, String> {
    let (rate, burst) = match text.split_once('/') {
        None => (text, None),
        Some((rate, burst)) => {
            let burst = burst.parse::<u32>().ok().filter(|n| (1..=1000).contains(n));
            (rate, Some(burst.ok_or("a burst is of 1 to 1000 writes")?))
        }
    };
    let bps = if rate.trim() == "0" { 0.0 } else { bits(rate)? };
    Ok(Bitrate { bps, burst })
}

/// Bytes: suffixes are powers of 1024, as in iperf3.
fn bytes_u64(text: &str) -> Result<u64, String> {
    match scaled(text, 1024.0) {
        // Exact up to 2^53.
        Some(n) if (1.0..=(1u64 << 53) as f64).contains(&n) => Ok(n as u64),
        Some(_) => Err("1 to 8192T".into()),
        None => Err("not a number of bytes such as 1472, 8K or 100M".into()),
    }
}

fn bytes_u32(text: &str) -> Result<u32, String> {
    u32::try_from(bytes_u64(text)?).ok().filter(|n| *n <= 1 << 30).ok_or_else(|| "1 to 1G".to_owned())
}

fn tos(text: &str) -> Result<u8, String> {
    let value = match text.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16),
        None => text.parse(),
    };
    value.map_err(|_| "0 to 255, or 0x00 to 0xff".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_read_as_people_write_them() {
        let four = Repeat { times: 4, each: Duration::from_secs(10) };
        for text in ["4x10s", "10s x 4", "4 x 10", "4X10s", "10s*4"] {
            assert_eq!(repeat(text), Ok(four), "{text}");
        }
        for bad in ["", "4", "x", "4x", "x10s", "0x10s", "10s x 10s", "4x10s x 2", "10001x1s"] {
            assert!(repeat(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_are_powers_of_1000_and_sizes_of_1024() {
        assert_eq!(bitrate("1.5G"), Ok(Bitrate { bps: 1.5e9, burst: None }));
        assert_eq!(bitrate("100M/10"), Ok(Bitrate { bps: 1e8, burst: Some(10) }));
        assert_eq!(bitrate("0"), Ok(Bitrate { bps: 0.0, burst: None }));
        assert_eq!(bytes_u64("8K"), Ok(8192));
        assert_eq!(bytes_u32("1472"), Ok(1472));
        for bad in ["", "M", "-1", "inf", "nan", "1e9", "10x", "0.1", "99999T"] {
            assert!(bits(bad).is_err(), "{bad}");
        }
        for bad in ["", "K", "-1", "inf", "2G"] {
            assert!(bytes_u32(bad).is_err(), "{bad}");
        }
        assert!(bitrate("1M/0").is_err() && bitrate("1M/").is_err());
        assert_eq!((tos("0x10"), tos("255")), (Ok(16), Ok(255)));
        assert!(tos("256").is_err());
    }
}
