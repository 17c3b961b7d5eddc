//! From the options to what is sent.

use std::time::Duration;

use weir_load::http::{Http, Server};
use weir_load::rr::{TcpRr, UdpRr};
use weir_load::tcp_connect::TcpConnect;
use weir_load::tcp_crr::TcpCrr;
use weir_load::tcp_stream::TcpStream;
use weir_load::udp_stream::UdpStream;
use weir_load::{Direction, Workload};

use super::target::{Target, Url};
use crate::args::probe::{Mode, ProbeArgs, TrafficArgs};
use crate::exit::Failure;

/// Payload bits per second of `udp` when none are set, as iperf3 does: enough to see a path, too little to harm one.
const UDP_BPS: f64 = 1e6;

/// Connections a second of `connect` when none are set.
const CONNECTS: u32 = 10;

/// Seconds that the receive buffer of `udp` should hold: a receiver on a busy core may be kept waiting for tens of milliseconds.
const BUFFERED_S: f64 = 0.5;

/// The kernel's own bookkeeping takes up to four times the payload, and most for small datagrams.
const OVERHEAD: f64 = 4.0;

/// The workload that the arguments ask for, and nothing that they do not: an option without effect is refused.
pub(super) fn of(args: &ProbeArgs, mode: Mode, target: &Target) -> Result<Workload, Failure> {
    let traffic = &args.traffic;
    refuse_strangers(args, mode).map_err(Failure::usage)?;
    Ok(match mode {
        Mode::Tcp => Workload::TcpStream(tcp(traffic)),
        Mode::Udp => Workload::UdpStream(udp(traffic).map_err(Failure::usage)?),
        Mode::Latency if traffic.udp => {
            let bytes = traffic.length.unwrap_or(UdpRr::default().request_bytes);
            let usual = UdpRr::default();
            Workload::UdpRr(UdpRr {
                request_bytes: bytes,
                response_bytes: bytes,
                connections: traffic.parallel.unwrap_or(1),
                rate_per_second: traffic.rate,
                timeout_ms: traffic.timeout.map_or(usual.timeout_ms, milliseconds),
                ..usual
            })
        }
        Mode::Latency => {
            let bytes = traffic.length.unwrap_or(1);
            Workload::TcpRr(TcpRr {
                request_bytes: bytes,
                response_bytes: bytes,
                connections: traffic.parallel.unwrap_or(1),
                rate_per_second: traffic.rate,
                ..TcpRr::default()
            })
        }
        Mode::Connect => {
            let usual = TcpConnect::default();
            Workload::TcpConnect(TcpConnect {
                rate_per_second: traffic.rate.unwrap_or(CONNECTS),
                timeout_ms: traffic.timeout.map_or(usual.timeout_ms, milliseconds),
                any_responder: true,
            })
        }
        Mode::Cps => {
            let usual = TcpCrr::default();
            let bytes = traffic.length.unwrap_or(usual.request_bytes);
            Workload::TcpCrr(TcpCrr {
                connections: traffic.parallel,
                rate_per_second: traffic.rate,
                request_bytes: bytes,
                response_bytes: bytes,
                timeout_ms: traffic.timeout.map_or(usual.timeout_ms, milliseconds),
                ..usual
            })
        }
        Mode::Http => Workload::Http(http(args, target.url.as_ref())?),
    })
}

fn direction(traffic: &TrafficArgs) -> Direction {
    match (traffic.reverse, traffic.bidir) {
        (true, _) => Direction::Ingress,
        (_, true) => Direction::Both,
        _ => Direction::Egress,
    }
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn tcp(traffic: &TrafficArgs) -> TcpStream {
    let usual = TcpStream::default();
    TcpStream {
        direction: direction(traffic),
        streams: traffic.parallel.unwrap_or(1),
        rate_bps: traffic.bitrate.map(|b| b.bps).filter(|bps| *bps > 0.0),
        buffer_bytes: traffic.length.unwrap_or(usual.buffer_bytes),
        mss: traffic.set_mss,
        // By default, the congestion control of this host's other connections, not the one that a lab compares.
        congestion: traffic.congestion.clone().unwrap_or_default(),
        window_bytes: traffic.window,
        nodelay: traffic.no_delay,
        ..usual
    }
}

fn udp(traffic: &TrafficArgs) -> Result<UdpStream, String> {
    let usual = UdpStream::default();
    let payload = match traffic.length {
        None => None,
        Some(n) => Some(u16::try_from(n).map_err(|_| format!("--length {n}: valid is 16 to 65507"))?),
    };
    let rate = traffic.bitrate.map_or(UDP_BPS, |b| b.bps);
    let rate_bps = (rate > 0.0).then_some(rate);
    let most = f64::from(usual.receive_buffer_bytes);
    let buffer =
        rate_bps.map_or(most, |bps| (bps / 8.0 * BUFFERED_S * OVERHEAD).clamp(f64::from(1 << 20), most));
    Ok(UdpStream {
        direction: direction(traffic),
        streams: traffic.parallel.unwrap_or(1),
        rate_bps,
        payload_bytes: payload,
        receive_buffer_bytes: buffer as u32,
        ..usual
    })
}

fn http(args: &ProbeArgs, url: Option<&Url>) -> Result<Http, Failure> {
    let url = url.ok_or_else(|| Failure::usage("http measures towards a URL"))?;
    let (traffic, usual) = (&args.traffic, Http::default());
    Ok(Http {
        server: Server::None,
        port: Some(url.port),
        path: Some(url.path.clone()),
        host: Some(url.authority.clone()),
        headers: args.http.headers.clone(),
        connections: traffic.parallel.unwrap_or(1),
        keep_alive: !args.http.no_keep_alive,
        requests: args.http.requests,
        rate_per_second: traffic.rate,
        timeout_ms: traffic.timeout.map_or(usual.timeout_ms, milliseconds),
        tls: url.tls,
        insecure: args.http.insecure,
        ca: args.http.ca.clone(),
        ..usual
    })
}

/// An option that the mode does nothing with would be taken for one that had an effect.
fn refuse_strangers(args: &ProbeArgs, mode: Mode) -> Result<(), String> {
    use Mode::{Connect, Cps, Http, Latency, Tcp, Udp};
    let (traffic, http) = (&args.traffic, &args.http);
    let streams: &[Mode] = &[Tcp, Udp];
    let given: [(&str, bool, &[Mode]); 17] = [
        ("--parallel", traffic.parallel.is_some(), &[Tcp, Udp, Latency, Cps, Http]),
        ("--reverse", traffic.reverse, streams),
        ("--bidir", traffic.bidir, streams),
        ("--bitrate", traffic.bitrate.is_some(), streams),
        ("--length", traffic.length.is_some(), &[Tcp, Udp, Latency, Cps]),
        ("--window", traffic.window.is_some(), &[Tcp]),
        ("--set-mss", traffic.set_mss.is_some(), &[Tcp]),
        ("--congestion", traffic.congestion.is_some(), &[Tcp]),
        ("--no-delay", traffic.no_delay, &[Tcp]),
        ("--udp", traffic.udp, &[Latency]),
        ("--rate", traffic.rate.is_some(), &[Latency, Connect, Cps, Http]),
        ("--timeout", traffic.timeout.is_some(), &[Connect, Cps, Http, Latency]),
        ("--no-keep-alive", http.no_keep_alive, &[Http]),
        ("--requests", http.requests.is_some(), &[Http]),
        ("--header", !http.headers.is_empty(), &[Http]),
        ("--insecure", http.insecure, &[Http]),
        ("--ca", http.ca.is_some(), &[Http]),
    ];
    for (option, set, modes) in given {
        if set && !modes.contains(&mode) {
            return Err(format!("{option} has no effect with {mode}"));
        }
    }
    if traffic.timeout.is_some() && mode == Latency && !traffic.udp {
        return Err("--timeout has no effect with latency over TCP: add --udp".into());
    }
    if traffic.bitrate.is_some_and(|b| b.burst.is_some()) {
        return Err("--bitrate RATE/N: bursts only with --iperf3".into());
    }
    if args.key_file.is_some() && matches!(mode, Connect | Http) {
        return Err(format!("--key-file has no effect with {mode}"));
    }
    Ok(())
}
