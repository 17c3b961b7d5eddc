//! The options of the client.

use std::time::Duration;

use super::error::Error;
use super::parameters::{
    MAX_BURST, MAX_LENGTH, MAX_MSS, MAX_OMIT_S, MAX_STREAMS, MAX_TIME_S, MAX_WINDOW, Parameters, TCP_LENGTH,
    UDP_LENGTHS, Way, printable,
};
use weir_netlink::Protocol;

/// The end of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// After this time, 1 ms to a day.
    Time(Duration),
    /// After so many payload bytes over all streams of a direction.
    Bytes(u64),
    /// After so many writes or datagrams over all streams of a direction.
    Blocks(u64),
}

/// Bit rate of a UDP stream if none is asked for, as in iperf3 (UDP_RATE).
pub const UDP_RATE_BPS: u64 = 1 << 20;

/// Writes a second at least of a TCP stream with a rate: writes of the usual length come in lumps at low rates, and of a write
/// that is not whole yet newer servers count nothing.
const WRITES_PER_S: u64 = 100;

/// Least length of such a write, bytes: a segment of the usual MTU.
const LEAST_WRITE: u64 = 1448;

/// One test of the client.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Who sends.
    pub way: Way,
    /// Streams in each direction, 1..=128.
    pub streams: u32,
    /// Its end.
    pub end: End,
    /// Seconds before that, which do not count, 0..=600. Whole ones: the server runs its own timer.
    pub omit_s: u32,
    /// Bytes of a write, 1..=1048576, or of a datagram's payload, 16..=65507; `None`: 128 KiB, less at low rates, or for
    /// UDP what fits the path's MTU.
    pub length: Option<u32>,
    /// Bit rate of each stream, bits per second; 0 for as fast as it goes; `None`: that for TCP, 1 Mbit/s for UDP.
    pub rate_bps: Option<u64>,
    /// Writes in a burst, 1..=1000.
    pub burst: Option<u32>,
    /// SO_SNDBUF and SO_RCVBUF at both ends, bytes, up to 512 MiB.
    pub window: Option<u32>,
    /// TCP_MAXSEG, 88..=32767.
    pub mss: Option<u32>,
    /// Congestion control at both ends.
    pub congestion: Option<String>,
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// Type-of-service byte.
    pub tos: u8,
    /// Send from a file's pages without copying (sendfile(2)); TCP.
    pub zerocopy: bool,
    /// 64-bit numbers in datagrams.
    pub counters_64bit: bool,
    /// Ask for the server's own output.
    pub get_server_output: bool,
    /// Begins each line, here and at the server.
    pub title: Option<String>,
    /// How long a connection may take to come about.
    pub connect_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            protocol: Protocol::Tcp,
            way: Way::Egress,
            streams: 1,
            end: End::Time(Duration::from_secs(10)),
            omit_s: 0,
            length: None,
            rate_bps: None,
            burst: None,
            window: None,
            mss: None,
            congestion: None,
            nodelay: false,
            tos: 0,
            zerocopy: false,
            counters_64bit: false,
            get_server_output: false,
            title: None,
            connect_timeout: Duration::from_secs(5),
        }
    }
}

impl Options {
    /// How long it takes, if time ends it.
    pub(super) fn time(&self) -> Option<Duration> {
        match self.end {
            End::Time(time) => Some(time),
            End::Bytes(_) | End::Blocks(_) => None,
        }
    }

    /// Returns the bytes of a write or datagram if the options set none; 0: it follows from the path.
    fn usual_length(&self) -> u32 {
        let blocks = matches!(self.end, End::Blocks(_));
        match (self.protocol, self.rate_bps) {
            (Protocol::Udp, _) => 0,
            (Protocol::Tcp, Some(rate)) if rate > 0 && self.burst.is_none() && !blocks => {
                (rate / 8 / WRITES_PER_S).clamp(LEAST_WRITE, TCP_LENGTH.into()) as u32
            }
            (Protocol::Tcp, _) => TCP_LENGTH,
        }
    }

    /// Refuses options that are out of range, or do not go together.
    fn check(&self) -> Result<(), Error> {
        let within = |name: &str, value: u64, least: u64, most: u64| {
            let fits = (least..=most).contains(&value);
            fits.then_some(()).ok_or_else(|| {
                Error::Option(format!("{name} {value} is not what iperf3 takes: {least} to {most}"))
            })
        };
        let udp = self.protocol == Protocol::Udp;
        let (least, most) = if udp { (*UDP_LENGTHS.start(), *UDP_LENGTHS.end()) } else { (1, MAX_LENGTH) };
        within("--parallel", self.streams.into(), 1, MAX_STREAMS.into())?;
        within("--omit", self.omit_s.into(), 0, MAX_OMIT_S.into())?;
        if let Some(length) = self.length {
            within("--length", length.into(), least.into(), most.into())?;
        }
        within("--window", self.window.unwrap_or(0).into(), 0, MAX_WINDOW.into())?;
        within("--set-mss", self.mss.unwrap_or(88).into(), 88, MAX_MSS.into())?;
        within("a burst of", self.burst.unwrap_or(1).into(), 1, MAX_BURST.into())?;
        let tcp_only = [
            (self.mss.is_some(), "--set-mss"),
            (self.congestion.is_some(), "--congestion"),
            (self.nodelay, "--no-delay"),
            (self.zerocopy, "--zerocopy"),
        ];
        if let Some((_, name)) = tcp_only.iter().find(|(on, _)| *on && udp) {
            return Err(Error::Option(format!("{name} is for TCP only")));
        }
        if self.counters_64bit && !udp {
            return Err(Error::Option("--udp-counters-64bit is for UDP only".into()));
        }
        match self.end {
            End::Time(time) => within("--time", seconds(time), 1, MAX_TIME_S.into()),
            End::Bytes(n) => within("--bytes", n, 1, 1 << 53),
            End::Blocks(n) => within("--blockcount", n, 1, 1 << 53),
        }
    }

    /// The parameters sent to the server; `length` is 0 if it follows from the path.
    pub(super) fn parameters(&self) -> Result<Parameters, Error> {
        self.check()?;
        let udp = self.protocol == Protocol::Udp;
        let (time_s, bytes, blocks) = match self.end {
            End::Time(time) => (seconds(time), 0, 0),
            End::Bytes(n) => (0, n, 0),
            End::Blocks(n) => (0, 0, n),
        };
        Ok(Parameters {
            protocol: self.protocol,
            way: self.way,
            streams: self.streams,
            // In range: checked above.
            time_s: time_s as u32,
            omit_s: self.omit_s,
            bytes,
            blocks,
            length: self.length.unwrap_or_else(|| self.usual_length()),
            rate_bps: self.rate_bps.unwrap_or(if udp { UDP_RATE_BPS } else { 0 }),
            burst: self.burst.unwrap_or(0),
            window: self.window.unwrap_or(0),
            mss: self.mss.unwrap_or(0),
            nodelay: self.nodelay,
            tos: self.tos,
            zerocopy: self.zerocopy,
            counters_64bit: self.counters_64bit,
            get_server_output: self.get_server_output,
            congestion: self.congestion.clone(),
            title: self.title.as_deref().map(printable),
            client_version: Some(super::SPOKEN_VERSION.into()),
            ..Parameters::default()
        })
    }
}

/// Whole seconds, rounded up: a fraction is ours, the server's timer is only its last resort.
fn seconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis().div_ceil(1000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_iperf3s() {
        let p = Options::default().parameters().unwrap();
        assert_eq!((p.time_s, p.length, p.rate_bps, p.streams), (10, 131_072, 0, 1));
        let udp = Options { protocol: Protocol::Udp, ..Options::default() }.parameters().unwrap();
        assert_eq!((udp.rate_bps, udp.length), (1_048_576, 0));
        let length = |rate_bps, burst, end| {
            let options = Options { rate_bps: Some(rate_bps), burst, end, ..Options::default() };
            options.parameters().unwrap().length
        };
        let time = Options::default().end;
        assert_eq!([length(0, None, time), length(8_000_000, Some(5), time)], [131_072; 2]);
        assert_eq!(length(8_000_000, None, End::Blocks(9)), 131_072);
        assert_eq!([length(8_000_000, None, time), length(8_000, None, time)], [10_000, 1448]);
        assert_eq!(length(u64::MAX, None, time), 131_072);
        let short = Options { end: End::Time(Duration::from_millis(500)), ..Options::default() };
        assert_eq!(short.parameters().unwrap().time_s, 1);
    }

    #[test]
    fn what_is_out_of_range_or_does_not_go_together_is_named() {
        let udp = || Options { protocol: Protocol::Udp, ..Options::default() };
        let cases = [
            (Options { streams: 129, ..Options::default() }, "--parallel"),
            (Options { omit_s: 601, ..Options::default() }, "--omit"),
            (Options { length: Some(1_048_577), ..Options::default() }, "--length"),
            (Options { length: Some(65_508), ..udp() }, "--length"),
            (Options { mss: Some(87), ..Options::default() }, "--set-mss"),
            (Options { burst: Some(1001), ..Options::default() }, "burst"),
            (Options { end: End::Bytes(0), ..Options::default() }, "--bytes"),
            (Options { zerocopy: true, ..udp() }, "--zerocopy is for TCP only"),
            (Options { counters_64bit: true, ..Options::default() }, "--udp-counters-64bit"),
        ];
        for (options, name) in cases {
            let text = options.parameters().unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        }
    }
}
