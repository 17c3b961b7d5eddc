//! `weir nat check SERVER` and `weir nat ports`: the NAT in front of this host, by `weir serve` on the other side.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use weir_nat::capture::Recorder;
use weir_nat::served::{Means, ServerEnds, raise_descriptor_limit, restrict, survey};
use weir_nat::{Compliance, Ends, Table, measure};
use weir_probe::Key;
use weir_probe::client::{Error, NatCheck, Visit};
use weir_sys::Stop;
use weir_text::layout::Terminal;
use weir_text::time::duration;

use super::check::address;
use super::document::{NatCheckServer, NatPortsSeen, Path};
use super::{page, write_packets};
use crate::args::nat::{NatCheckArgs, NatPortsArgs};
use crate::commands::probe::OWN_PORT;
use crate::documents::print_json;
use crate::exit::{CommandResult, Failure};
use crate::output::{Color, print, printable, width};
use crate::talk::{note, step};

pub(super) fn check(
    server: &str,
    key: &Option<Key>,
    args: &NatCheckArgs,
    stop: &Stop,
    color: Color,
) -> CommandResult {
    let server = address(server, OWN_PORT, &args.version)?;
    raise_descriptor_limit();
    let mut ends = begin(server, key.as_ref(), args.idle, stop)?;
    note(&format!(
        "measures the NAT on the way to {server}; the timers take {}",
        duration(args.idle.as_secs_f64())
    ));
    let mut go_on = |name: &'static str| {
        step(|| name.to_owned());
        !stop.raised()
    };
    let mut recorder = Recorder::new(&mut ends);
    let observations = measure(&mut recorder, &mut go_on).map_err(|e| failed(server, stop, &e))?;
    let files = recorder.files();
    if stop.raised() {
        return Err(stopped());
    }
    let two_addresses = ends.has_two_addresses();
    let low_ports = observations.udp_ports.iter().flatten().any(|t| t.inside.port() < 1024);
    let mut table = Table::of(&observations);
    if let Some(folder) = &args.pcap {
        write_packets(folder, &files)?;
        table = table.with_packets(&files);
    }
    let raw_packets = ends.raw_packets();
    let means = Means { two_addresses, low_ports, raw_packets };
    restrict(&mut table, &means);
    let check = NatCheckServer {
        weir: env!("CARGO_PKG_VERSION"),
        time: jiff::Timestamp::now().to_string(),
        path: end(ends, server)?,
        idle_s: args.idle.as_secs_f64(),
        no_raw_packets: means.raw_packets.err(),
        table,
        observations,
    };
    let terminal = Terminal { width: width(), color: color.stdout };
    super::tell(&check, args, || page::check_server(&check, two_addresses, terminal))?;
    super::verdict_of(args.fail_on_must, &check.table.rows)?;
    let seen = check.table.rows.iter().filter(|line| line.judgement.verdict != Compliance::NotTestable);
    if seen.clone().count() > 0 && seen.clone().all(|line| line.judgement.verdict == Compliance::NotSure) {
        return Err(Failure::failed("packets were lost in every experiment; repeat the check"));
    }
    Ok(())
}

pub(super) fn ports(
    server: &str,
    key: &Option<Key>,
    args: &NatPortsArgs,
    stop: &Stop,
    color: Color,
) -> CommandResult {
    let server = address(server, OWN_PORT, &args.version)?;
    raise_descriptor_limit();
    let mut ends = begin(server, key.as_ref(), Duration::ZERO, stop)?;
    let mut go_on = |n: usize| {
        step(|| format!("{n} ports"));
        !stop.raised()
    };
    let survey = survey(&mut ends, args.limit as usize, &mut go_on).map_err(|e| failed(server, stop, &e))?;
    let seen = NatPortsSeen {
        weir: env!("CARGO_PKG_VERSION"),
        time: jiff::Timestamp::now().to_string(),
        path: end(ends, server)?,
        survey,
    };
    if args.json {
        return print_json(&seen);
    }
    let terminal = Terminal { width: width(), color: color.stdout };
    print(&printable(&page::ports(&seen, terminal)))
}

/// Opens a check, and tries whether datagrams reach each of the server's endpoints.
fn begin(server: SocketAddr, key: Option<&Key>, idle: Duration, stop: &Stop) -> Result<ServerEnds, Failure> {
    let visit = Visit::begin(server, key, stop).map_err(Failure::failed)?;
    let check = NatCheck::open(visit).map_err(|e| match e {
        Error::Refused(reason) if reason.contains("not a message") => {
            Failure::failed(format!("the server at {server} is too old for NAT checks: {reason}"))
        }
        other => Failure::failed(other),
    })?;
    let mut ends = ServerEnds::new(check, idle, stop).map_err(Failure::failed)?;
    let unreachable = ends.unreachable().map_err(|e| failed(server, stop, &e))?;
    if unreachable.is_empty() {
        return Ok(ends);
    }
    let all: Vec<String> = unreachable.iter().map(ToString::to_string).collect();
    Err(Failure::failed(format!(
        "no datagram reached {}; does a firewall admit UDP and TCP to the server's --nat-ports?",
        all.join(", ")
    )))
}

/// Ends the check, and describes its path.
fn end(ends: ServerEnds, server: SocketAddr) -> Result<Path, Failure> {
    let local = ends.conditions().inside[0];
    let endpoints = ends.endpoints();
    let bytes = ends.finish().map_err(Failure::failed)?;
    Ok(Path { server, endpoints, local, received_bytes: bytes.received, sent_bytes: bytes.sent })
}

fn failed(server: SocketAddr, stop: &Stop, error: &io::Error) -> Failure {
    if stop.raised() { stopped() } else { Failure::failed(format!("{server}: {error}")) }
}

fn stopped() -> Failure {
    Failure::failed("stopped before the check was complete")
}
