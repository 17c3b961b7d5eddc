//! `weir serve`.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use weir_probe::{Config, Limits, NatPorts, Note, Server};
use weir_text::order;

use super::probe::key_of;
use crate::args::probe::ServeArgs;
use crate::documents::line;
use crate::exit::{CommandResult, Failure, MISSING};
use crate::output::print;
use crate::talk;

/// Ports after the server's own one that NAT checks use.
const NAT_PORTS: u16 = 8;

pub(crate) fn run(args: &ServeArgs) -> CommandResult {
    let key = key_of(args.key_file.as_deref())?;
    let bind = args.bind.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    if key.is_some() && args.open {
        return Err(Failure::usage("--open lets anyone in, and a key only its holders: choose one of them"));
    }
    if key.is_none() && !args.open && !bind.is_loopback() {
        return Err(Failure::usage(
            "who may use this server? Give --key-file FILE (holders of the key), --open (anyone who can reach the port), or \
             --bind 127.0.0.1 (only this machine)",
        ));
    }
    let limits = Limits {
        sessions: args.max_sessions,
        sessions_per_client: args.max_per_client,
        streams: args.max_streams,
        duration: args.max_time,
        rate_bps: args.max_rate,
        total_rate_bps: args.max_total_rate,
        memory_bytes: args.max_memory,
        ..Limits::default()
    };
    let (json, quiet) = (args.json, talk::is_quiet());
    let (keyed, iperf3) = (key.is_some(), key.is_none());
    let config = Config { key, iperf3, iperf3_json: json, log: Arc::new(move |note| log(note, json, quiet)) };
    let stop = super::stop_on_signals()?;
    let nat = nat_ports(args)?;
    let server = open(SocketAddr::new(bind, args.port), args, limits, config)?;
    let server = match nat {
        Some(ports) => server.with_nat(ports),
        None => server,
    };
    let who = match (keyed, bind.is_loopback()) {
        (true, _) => "holders of the key",
        (false, true) => "this machine",
        (false, false) => "anyone who can reach it",
    };
    talk::note(&format!("weir: serving {who} on {}, TCP and UDP; Ctrl-C ends it", server.address()));
    server.run(&stop).map_err(|e| Failure::failed(format!("the port failed: {e}")))
}

/// Addresses and ports of NAT checks, if they are served. Each address must be this host's.
fn nat_ports(args: &ServeArgs) -> Result<Option<NatPorts>, Failure> {
    let mut addresses = args.nat_addresses.clone();
    order::by_key(&mut addresses, |address| *address);
    addresses.dedup();
    if addresses.is_empty() {
        return Ok(None);
    }
    let of_ipv4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    if of_ipv4 > 2 || addresses.len() - of_ipv4 > 2 {
        return Err(Failure::usage("--nat-address: at most two addresses of IPv4 and two of IPv6"));
    }
    for address in &addresses {
        std::net::UdpSocket::bind((*address, 0))
            .map_err(|e| Failure::new(MISSING, format!("--nat-address {address}: {e}")))?;
    }
    let ports = match (&args.nat_ports, args.port.checked_add(NAT_PORTS)) {
        (Some(ports), _) => ports.clone(),
        (None, Some(last)) if args.port > 0 => args.port + 1..=last,
        (None, _) => return Err(Failure::usage("--nat-ports is needed with this --port")),
    };
    Ok(Some(NatPorts { addresses, ports: Some(ports) }))
}

/// All addresses of this host mean IPv6 and IPv4; where the kernel has no IPv6, IPv4 alone.
fn open(address: SocketAddr, args: &ServeArgs, limits: Limits, config: Config) -> Result<Server, Failure> {
    let no_ipv6 = args.bind.is_none()
        && std::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
            .is_err_and(|e| e.kind() != std::io::ErrorKind::AddrInUse);
    let address = if no_ipv6 { SocketAddr::new([0, 0, 0, 0].into(), address.port()) } else { address };
    Server::open(address, limits, config).map_err(|e| {
        let hint = match e.kind() {
            std::io::ErrorKind::AddrInUse => "; another --port?",
            std::io::ErrorKind::PermissionDenied => "; a port below 1024 needs root (CAP_NET_BIND_SERVICE)",
            _ => "",
        };
        Failure::new(MISSING, format!("cannot listen on {address}: {e}{hint}"))
    })
}

/// One line per client's doing. Standard output that is closed does not end the server.
fn log(note: &Note, json: bool, quiet: bool) {
    if quiet {
        return;
    }
    if json {
        if let Ok(line) = line(note) {
            let _ = print(&line);
        }
        return;
    }
    let mut line = format!("{} {}", jiff::Timestamp::now().strftime("%FT%TZ"), note.peer);
    for part in [&note.program, &note.workload].into_iter().flatten() {
        line += &format!(" {part};");
    }
    line += &format!(
        " {:.1} s, received {} bytes, sent {} bytes: {}",
        note.seconds, note.received_bytes, note.sent_bytes, note.end
    );
    let _ = writeln!(std::io::stdout(), "{}", weir_text::escape::line(&line));
}
