//! `weir nat check SERVER` and `weir nat ports`: the NAT in front of this host, by `weir serve` on the other side.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use weir_nat::capture::{Captured, Recorder};
use weir_nat::served::{Means, ServerEnds, raise_descriptor_limit, restrict, survey};
use weir_nat::{Compliance, Conditions, Ends, Limits, Observations, Table, measure_from};
use weir_probe::Key;
use weir_probe::client::{Error, NatCheck, Visit};
use weir_sys::Stop;
use weir_text::time::duration;

use super::check::address;
use super::document::{self, NatCheckServer, NatPortsSeen};
use super::progress::{Circumstances, Follower, ProgressFile, goes_on};
use super::{page, write_packets};
use crate::args::nat::{NatCheckArgs, NatPortsArgs};
use crate::commands::probe::OWN_PORT;
use crate::documents::print_json;
use crate::exit::{CommandResult, Failure};
use crate::output::{Color, print, printable};
use crate::talk::{note, step};

/// The path of a check, in the file of --progress.
const NAME: &str = "check";

/// How long a check may take beyond its timers, and a survey of ports beyond its packets. A check opens thousands of mappings one after
/// the other, and each takes a round trip or more.
pub(super) const BEYOND: Duration = Duration::from_secs(600);

pub(super) fn check(
    server: &str,
    key: &Option<Key>,
    args: &NatCheckArgs,
    stop: &Stop,
    color: Color,
) -> CommandResult {
    let server = address(server, OWN_PORT, &args.version)?;
    raise_descriptor_limit();
    let mut ends = begin(server, key.as_ref(), args.limits(), stop)?;
    let limits = ends.conditions().limits;
    let file = args.progress.as_ref().map(|path| progress(path, &ends, server)).transpose()?;
    let left = file.as_ref().map_or(limits.idle.max(limits.connections), |f| f.longest_left(NAME, limits));
    let timers = duration(left.as_secs_f64());
    note(&format!("measures the NAT on the way to {server}; the timers take {timers}"));
    let (observed, files) = observe(&mut ends, file.as_ref(), stop);
    if stop.raised() {
        return Err(stopped(args.progress.as_deref()));
    }
    let observations = observed.map_err(|e| failed(server, stop, &e))?;
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
        started: file.map(|file| file.started()).unwrap_or_default(),
        path: end(ends, server)?,
        idle_s: limits.idle.as_secs_f64(),
        connections_idle_s: limits.connections.as_secs_f64(),
        no_raw_packets: means.raw_packets.err(),
        table,
        observations,
    };
    let page = || Ok(printable(&page::check_server(&check, two_addresses, color.terminal())));
    super::tell(&check, (args.json, args.markdown, args.html), page)?;
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
    let mut ends = begin(server, key.as_ref(), Limits::default(), stop)?;
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
    print(&printable(&page::ports(&seen, color.terminal())))
}

/// Makes the experiments that are left. The packets are those of this part.
fn observe(
    ends: &mut ServerEnds,
    file: Option<&ProgressFile>,
    stop: &Stop,
) -> (io::Result<Observations>, Vec<Captured>) {
    let mut begins = |name: &'static str| {
        step(|| name.to_owned());
        !stop.raised()
    };
    let earlier = file.map(|file| file.earlier(NAME)).unwrap_or_default();
    let mut follower = Follower { gateway: NAME.to_owned(), file, begins: &mut begins, kept: ends.now() };
    let mut recorder = Recorder::new(ends);
    let observed = measure_from(&mut recorder, earlier, &mut follower);
    (observed, recorder.files())
}

/// Goes on from an earlier part of a check between the same ends, or begins its file.
fn progress(path: &Path, ends: &ServerEnds, server: SocketAddr) -> Result<ProgressFile, Failure> {
    let Conditions { inside, limits, .. } = ends.conditions();
    let raw = if ends.raw_packets().is_ok() { "with raw packets" } else { "without raw packets" };
    let between = Some(format!("{} to {server}, {raw}", inside[0]));
    let circumstances =
        Circumstances { path: between, ipv6: server.is_ipv6(), ..Circumstances::of(*limits)? };
    let file = ProgressFile::open(path, circumstances, *limits)?;
    file.begin()?;
    Ok(file)
}

/// Opens a check, and tries whether datagrams reach each of the server's endpoints.
fn begin(server: SocketAddr, key: Option<&Key>, limits: Limits, stop: &Stop) -> Result<ServerEnds, Failure> {
    let visit = Visit::begin(server, key, stop).map_err(Failure::failed)?;
    let check = NatCheck::open(visit).map_err(|e| match e {
        Error::Refused(reason) if reason.contains("not a message") => {
            Failure::failed(format!("the server at {server} is too old for NAT checks: {reason}"))
        }
        other => Failure::failed(other),
    })?;
    let longest = check.longest();
    let mut ends = ServerEnds::new(check, limits, stop).map_err(Failure::failed)?;
    fits(&ends.conditions().limits, longest)?;
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

/// Whether a server that ends checks after `longest` can bear with these timers. The rest of a check takes a minute on a short path.
fn fits(limits: &Limits, longest: Option<Duration>) -> CommandResult {
    let timers = limits.idle.max(limits.connections);
    match longest {
        Some(longest) if longest <= timers => Err(Failure::failed(format!(
            "the server ends a check after {}; start it with: weir serve --max-time {}",
            duration(longest.as_secs_f64()),
            whole_minutes(timers + BEYOND)
        ))),
        _ => Ok(()),
    }
}

/// A time as an option takes it, rounded up.
pub(super) fn whole_minutes(time: Duration) -> String {
    format!("{}m", time.as_secs().div_ceil(60))
}

/// Ends the check, and describes its path.
fn end(ends: ServerEnds, server: SocketAddr) -> Result<document::Path, Failure> {
    let local = ends.conditions().inside[0];
    let endpoints = ends.endpoints();
    let bytes = ends.finish().map_err(Failure::failed)?;
    Ok(document::Path { server, endpoints, local, received_bytes: bytes.received, sent_bytes: bytes.sent })
}

fn failed(server: SocketAddr, stop: &Stop, error: &io::Error) -> Failure {
    if stop.raised() { stopped(None) } else { Failure::failed(format!("{server}: {error}")) }
}

fn stopped(progress: Option<&Path>) -> Failure {
    Failure::failed(format!("stopped before the check was complete{}", goes_on(progress)))
}
