//! Options of `weir probe` and `weir serve`.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::shared::WatchArgs;
use super::time::time;

/// Measurements of `weir probe`.
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
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// `weir probe`.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// Host name, address or URL; with a port as HOST:PORT or [ADDRESS]:PORT, or by --port
    pub(crate) target: String,
    /// Measurement (default: tcp, or http for a URL)
    #[arg(value_enum)]
    pub(crate) mode: Option<Mode>,
    /// Port of the far end (default: 9347, with --iperf3 5201, with connect 443)
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Speak to a stock iperf3 server
    #[arg(long)]
    pub(crate) iperf3: bool,
    /// Use only IPv4 addresses of the target's name
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// Use only IPv6 addresses of the target's name
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
    /// File with the pre-shared key of the server, readable by its owner only; or set the key in WEIR_KEY
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Print one JSON document instead of lines
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    #[command(flatten)]
    pub(crate) iperf: Iperf3Args,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// Time options.
#[derive(Debug, Args)]
#[command(next_help_heading = "How long")]
pub(crate) struct PlanArgs {
    /// Measure for TIME (default 10s; examples: 90s, 2m, 500ms)
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    pub(crate) time: Option<Duration>,
    /// Send uncounted traffic for TIME first (default 0); TCP needs about 1s to reach its rate
    #[arg(short = 'O', long, value_name = "TIME", value_parser = time_or_none)]
    pub(crate) omit: Option<Duration>,
    /// Repeat N times for TIME each, on new connections (examples: 4x10s, `10s x 4`)
    #[arg(long, value_name = "N x TIME", value_parser = repeat, conflicts_with = "every")]
    pub(crate) repeat: Option<Repeat>,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}

/// Traffic options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Traffic")]
pub(crate) struct TrafficArgs {
    /// tcp, udp: parallel streams; latency, cps, http: parallel connections
    #[arg(short = 'P', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) parallel: Option<u32>,
    /// tcp, udp: the far end sends
    #[arg(short = 'R', long, conflicts_with = "bidir")]
    pub(crate) reverse: bool,
    /// tcp, udp: both ends send
    #[arg(long)]
    pub(crate) bidir: bool,
    /// tcp, udp: payload bits per second over all streams (default: 1M for udp, unlimited for tcp; examples: 500K, 1.5G; 0 is
    /// unlimited); with --iperf3 of each stream, and RATE/N sends N writes in a burst
    #[arg(short, long, value_name = "RATE", value_parser = bitrate)]
    pub(crate) bitrate: Option<Bitrate>,
    /// Bytes of a write (tcp), a datagram's payload (udp), a request and a response (latency, cps) (examples: 1472, 8K)
    #[arg(short, long, value_name = "BYTES", value_parser = bytes_u32)]
    pub(crate) length: Option<u32>,
    /// tcp: socket buffers (SO_SNDBUF, SO_RCVBUF) in bytes (example: 512K)
    #[arg(short, long, value_name = "BYTES", value_parser = bytes_u32)]
    pub(crate) window: Option<u32>,
    /// tcp: largest segment in bytes
    #[arg(short = 'M', long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(88..=32767))]
    pub(crate) set_mss: Option<u16>,
    /// tcp: congestion control (default: the system's; examples: cubic, reno, bbr)
    #[arg(short = 'C', long, value_name = "NAME")]
    pub(crate) congestion: Option<String>,
    /// tcp: send small writes immediately (TCP_NODELAY)
    #[arg(short = 'N', long)]
    pub(crate) no_delay: bool,
    /// latency: use UDP
    #[arg(short, long)]
    pub(crate) udp: bool,
    /// latency, connect, cps, http: start N per second on a schedule (default for connect: 10)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) rate: Option<u32>,
    /// Give up on one operation after TIME (connect, cps, http, latency over UDP)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Option<Duration>,
}

/// Only with --iperf3.
#[derive(Debug, Args)]
#[command(next_help_heading = "Only with --iperf3")]
pub(crate) struct Iperf3Args {
    /// Send BYTES instead of for a time (example: 100M)
    #[arg(short = 'n', long, value_name = "BYTES", value_parser = bytes_u64, requires = "iperf3",
          conflicts_with_all = ["time", "blockcount"])]
    pub(crate) bytes: Option<u64>,
    /// Send N blocks (writes or datagrams) instead of for a time
    #[arg(short = 'k', long, value_name = "N", value_parser = bytes_u64, requires = "iperf3", conflicts_with = "time")]
    pub(crate) blockcount: Option<u64>,
    /// Fetch the server's own output
    #[arg(long, requires = "iperf3")]
    pub(crate) get_server_output: bool,
    /// Use 64-bit sequence numbers in UDP datagrams
    #[arg(long = "udp-counters-64bit", requires = "iperf3")]
    pub(crate) udp_counters_64bit: bool,
    /// Send from a file's pages without copying (sendfile)
    #[arg(short = 'Z', long, requires = "iperf3")]
    pub(crate) zerocopy: bool,
    /// Type-of-service byte of the IP header (0 to 255, or 0x..)
    #[arg(short = 'S', long, value_name = "TOS", value_parser = tos, requires = "iperf3")]
    pub(crate) tos: Option<u8>,
    /// Title before each of the server's lines
    #[arg(short = 'T', long, value_name = "TEXT", requires = "iperf3")]
    pub(crate) title: Option<String>,
}

/// Only for http.
#[derive(Debug, Args)]
#[command(next_help_heading = "Only for http")]
pub(crate) struct HttpArgs {
    /// Open a connection for each request
    #[arg(long)]
    pub(crate) no_keep_alive: bool,
    /// End after N requests
    #[arg(long, value_name = "N")]
    pub(crate) requests: Option<u64>,
    /// Add a header line (example: 'Accept-Encoding: gzip'); may be repeated
    #[arg(long = "header", value_name = "LINE")]
    pub(crate) headers: Vec<String>,
    /// Accept any certificate of the server
    #[arg(long)]
    pub(crate) insecure: bool,
    /// File with trusted authorities in PEM (default: those of the system)
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) ca: Option<String>,
}

/// Heading of the limits of `weir serve`.
const LIMITS: &str = "Limits";

/// `weir serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Listen on this address (default: all addresses)
    #[arg(short, long, value_name = "ADDRESS")]
    pub(crate) bind: Option<IpAddr>,
    /// Port for TCP and UDP; iperf3 clients use 5201 by default; 0 takes any free port
    #[arg(short, long, default_value_t = 9347, value_name = "PORT")]
    pub(crate) port: u16,
    /// File with the clients' key, at least 16 bytes, readable by its owner only; or set the key in WEIR_KEY
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Serve every client that reaches the port
    #[arg(long)]
    pub(crate) open: bool,
    /// Serve `weir nat check` and `weir nat ports` from this address of this host; give a second one for all rows, and two of IPv6
    /// for clients of IPv6
    #[arg(long = "nat-address", value_name = "ADDRESS")]
    pub(crate) nat_addresses: Vec<IpAddr>,
    /// Ports for NAT checks, TCP and UDP, two for each client at once (default: the eight after --port; example: 9348-9355)
    #[arg(long, value_name = "FIRST-LAST", value_parser = port_range, requires = "nat_addresses")]
    pub(crate) nat_ports: Option<RangeInclusive<u16>>,
    /// Print one line of JSON per client
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// Parallel clients
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = LIMITS)]
    pub(crate) max_sessions: u32,
    /// Parallel clients of one address (IPv6: one /64); as many may begin per second
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = LIMITS)]
    pub(crate) max_per_client: u32,
    /// Parallel streams or connections of one client's address, over all of its measurements
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = LIMITS)]
    pub(crate) max_streams: u32,
    /// Longest measurement (examples: 10m, 1h)
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = time, help_heading = LIMITS)]
    pub(crate) max_time: Duration,
    /// Highest bit rate of one client's address, in each direction, over all of its measurements (default: unlimited; examples: 100M,
    /// 10G)
    #[arg(long, value_name = "RATE", value_parser = bits, help_heading = LIMITS)]
    pub(crate) max_rate: Option<f64>,
    /// Highest bit rate of all clients together. Each measurement reserves its --bitrate; TCP without one gets the remainder, and a
    /// measurement beyond it is rejected. Without --max-rate one client may use all of it
    #[arg(long, value_name = "RATE", value_parser = bits, help_heading = LIMITS)]
    pub(crate) max_total_rate: Option<f64>,
    /// Memory for socket buffers of all clients; one client's address gets half (at least 4M, if available)
    #[arg(long, default_value = "256M", value_name = "BYTES", value_parser = bytes_u64, help_heading = LIMITS)]
    pub(crate) max_memory: u64,
}

/// `FIRST-LAST`, with room for an even port and the next one.
fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || "expected FIRST-LAST, an even port and the one after it among them".to_owned();
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong);
    let (first, last) = (port(first)?, port(last)?);
    if u32::from(first).next_multiple_of(2) < u32::from(last) { Ok(first..=last) } else { Err(wrong()) }
}

/// Value of `--repeat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Repeat {
    /// Number of measurements, 1..=10000.
    pub(crate) times: u32,
    /// Length of each.
    pub(crate) each: Duration,
}

/// Value of `--bitrate`.
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

/// `10s x 4`, `4 x 10s`, `4x10s`: the number without a unit is the count, or the first of two.
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
