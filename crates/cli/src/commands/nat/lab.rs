//! `weir nat lab`: gateways of the lab, each between two ends of the experiments.

use std::fs::File;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;
use rustix::fs::{MemfdFlags, memfd_create};
use weir_gateway::allow_list::{AllowList, Lookup};
use weir_gateway::bpf_publish::BpfPublish;
use weir_gateway::docker_publish::DockerPublish;
use weir_gateway::iptables_masquerade::{IptablesLegacyMasquerade, IptablesMasquerade, Masquerade};
use weir_gateway::nft_masquerade::NftMasquerade;
use weir_gateway::options::{FastpathHook, FastpathOption, FastpathSettings};
use weir_gateway::routed::Routed;
use weir_gateway::{Journal, Place, Role, Topology, Variant, apply};
use weir_lab::{Family, Lab, LabOptions, Role as LabRole, Site, SiteSpec};
use weir_nat::capture::{Captured, Recorder};
use weir_nat::lab::{LabEnds, addresses};
use weir_nat::{Ends, Limits, Observations, Published, Table, measure_from};
use weir_report::requirements::requirements_terminal;
use weir_sys::privilege::Privilege;
use weir_sys::{ProcRoot, Stop};
use weir_text::order;
use weir_text::time::duration;

use super::document::{Measured, NatTables};
use super::progress::{Circumstances, Follower, ProgressFile, goes_on};
use super::saved::Saved;
use super::{page, write_packets};
use crate::args::nat::{LabGateway, NatLabArgs};
use crate::exit::{CommandResult, FAILED, Failure, MISSING};
use crate::output::{Color, print};
use crate::talk::{note, step};

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod kernel_table;
mod nat64;
mod pool;
mod prefix;

/// The experiment that opens as many mappings as it can. It takes the whole machine, so gateways take turns: no mapping may end
/// before the last one is open.
const FILLS: &str = "udp-exhaustion";
static TURN: Mutex<()> = Mutex::new(());

/// Learns each direction by its first packet that may be carried: few flows of the experiments have more than two or three.
const EAGER: FastpathOption =
    FastpathOption::With(FastpathSettings { hook: FastpathHook::Tc, packets: Some(1) });

/// The variant that translates, by the gateway's name.
fn variant_of(gateway: LabGateway) -> Box<dyn Variant + Send + Sync> {
    let nft = NftMasquerade::default();
    match gateway {
        LabGateway::Routed => Box::new(Routed::default()),
        LabGateway::NftMasquerade | LabGateway::NftMasqueradeAllow => Box::new(nft),
        LabGateway::NftMasqueradeRandom => Box::new(NftMasquerade { random: true, ..nft }),
        LabGateway::NftMasqueradeFullyRandom => Box::new(NftMasquerade { fully_random: true, ..nft }),
        LabGateway::NftMasqueradeFastpath => Box::new(NftMasquerade { fastpath: EAGER, ..nft }),
        LabGateway::NftMasqueradePersistent => Box::new(NftMasquerade { persistent: true, ..nft }),
        LabGateway::Docker => Box::new(DockerPublish::default()),
        LabGateway::DockerFastpath => Box::new(DockerPublish { fastpath: EAGER, ..DockerPublish::default() }),
        LabGateway::Publish => Box::new(BpfPublish::default()),
        LabGateway::IptablesMasquerade => Box::new(IptablesMasquerade(Masquerade::default())),
        LabGateway::IptablesLegacyMasquerade => Box::new(IptablesLegacyMasquerade(Masquerade::default())),
        LabGateway::NftPool => Box::new(pool::by_nft("")),
        LabGateway::NftPoolPersistent => Box::new(pool::by_nft("persistent")),
        LabGateway::NftPrefix => Box::new(prefix::by_nft()),
        LabGateway::Ip6tablesNpt => Box::new(prefix::by_ip6tables()),
        LabGateway::TaygaNat64 => Box::new(nat64::by_tayga()),
    }
}

pub(crate) fn run(args: &NatLabArgs, color: Color) -> CommandResult {
    if args.list {
        return print(&listing());
    }
    tell(&measure(args)?, args, color)
}

/// The gateways that are asked for.
pub(super) fn wanted(args: &NatLabArgs) -> Vec<LabGateway> {
    match (&args.gateways[..], args.all) {
        (_, true) => {
            LabGateway::value_variants().iter().copied().filter(|which| which.is_of(args.ipv6)).collect()
        }
        ([], false) => vec![LabGateway::NftMasquerade],
        (some, false) => some.to_vec(),
    }
}

/// Measures them.
///
/// # Errors
/// A gateway cannot be had, or a signal asked to stop.
pub(super) fn measure(args: &NatLabArgs) -> Result<NatTables, Failure> {
    prepare_privilege()?;
    let stop = super::super::stop_on_signals()?;
    let wanted = wanted(args);
    if let Some(which) = wanted.iter().find(|which| !which.is_of(args.ipv6)) {
        let name = which.name();
        return Err(Failure::usage(match args.ipv6 {
            true => format!("{name} is of IPv4 only; leave out --ipv6"),
            false => format!("{name} is of IPv6 only; add --ipv6"),
        }));
    }
    let tables = measure_all(&wanted, args, &stop);
    if stop.raised() {
        let go_on = goes_on(args.progress.as_deref());
        return Err(Failure::failed(format!("stopped before the table was complete{go_on}")));
    }
    tables
}

/// Prints the tables in the form that is asked for.
pub(super) fn tell(tables: &NatTables, args: &NatLabArgs, color: Color) -> CommandResult {
    super::tell(tables, (args.json, args.markdown, args.html), || {
        let page = page::tables(&tables.gateways, &tables.kernel, color.terminal());
        if tables.gateways.len() < 2 {
            return Ok(page);
        }
        let beside = Saved::of_document(tables)?.requirements();
        Ok(page + "\n" + &requirements_terminal(&beside, color.terminal()))
    })?;
    super::verdict_of(args.fail_on_must, tables.gateways.iter().flat_map(|g| &g.table.rows))
}

/// `1 gateway`, `2 gateways`.
pub(super) fn count(n: usize) -> String {
    if n == 1 { "1 gateway".to_owned() } else { format!("{n} gateways") }
}

/// Each name with its line of help.
fn listing() -> String {
    let values: Vec<_> = LabGateway::value_variants().iter().filter_map(|v| v.to_possible_value()).collect();
    let widest = values.iter().map(|v| v.get_name().len()).max().unwrap_or_default();
    let help = |v: &clap::builder::PossibleValue| v.get_help().map(ToString::to_string).unwrap_or_default();
    values.iter().map(|v| format!("{:<widest$}  {}\n", v.get_name(), help(v))).collect()
}

fn prepare_privilege() -> CommandResult {
    let privilege = Privilege::current(&ProcRoot::new("/")).map_err(Failure::failed)?;
    if !privilege.may_create_namespaces() {
        weir_lab::registry::enter_user_namespace()?;
        note("not root: the lab is built in a user namespace");
    }
    Ok(())
}

/// All gateways at once: each waits for its mappings to end most of the time.
fn measure_all(wanted: &[LabGateway], args: &NatLabArgs, stop: &Stop) -> Result<NatTables, Failure> {
    let limits = args.limits();
    let sysctls = order::map(args.sysctls.iter().cloned());
    let circumstances = Circumstances { ipv6: args.ipv6, sysctls, ..Circumstances::of(limits)? };
    let file = args.progress.as_ref();
    let file = file.map(|path| ProgressFile::open(path, circumstances.clone(), limits)).transpose()?;
    let mut unique: Vec<LabGateway> = Vec::new();
    for gateway in wanted {
        if !unique.contains(gateway) {
            unique.push(*gateway);
        }
    }
    let earlier = |which: LabGateway| file.as_ref().map(|f| f.earlier(&which.name())).unwrap_or_default();
    let left: Vec<LabGateway> = unique.iter().copied().filter(|which| !earlier(*which).is_whole()).collect();
    let mut results = measure_in_lab(&left, args, file.as_ref(), stop)?.into_iter();
    let all = unique.iter().map(|which| match earlier(*which) {
        // A complete one was not measured again.
        known if !left.contains(which) => Ok(measured(*which, known.seen, &[])),
        _ => results.next().unwrap_or_else(|| Err(Failure::failed("a gateway has no result"))),
    });
    let gateways = kept(all.collect(), args.all)?;
    let Circumstances { kernel, sysctls, .. } = circumstances;
    Ok(NatTables {
        weir: env!("CARGO_PKG_VERSION"),
        time: jiff::Timestamp::now().to_string(),
        started: file.map(|file| file.started()).unwrap_or_default(),
        kernel,
        idle_s: limits.idle.as_secs_f64(),
        connections_idle_s: limits.connections.as_secs_f64(),
        mappings: limits.mappings,
        ipv6: args.ipv6,
        sysctls,
        gateways,
    })
}

/// Those gateways, each in a lab of its own.
fn measure_in_lab(
    gateways: &[LabGateway],
    args: &NatLabArgs,
    file: Option<&ProgressFile>,
    stop: &Stop,
) -> Result<Vec<Result<Measured, Failure>>, Failure> {
    if gateways.is_empty() {
        return Ok(Vec::new());
    }
    let limits = args.limits();
    let timers = match file {
        Some(file) => {
            file.begin()?;
            gateways.iter().map(|which| file.longest_left(&which.name(), limits)).max().unwrap_or_default()
        }
        None => limits.idle.max(limits.connections),
    };
    let timers = duration(timers.as_secs_f64());
    note(&format!("measures {}; the timers take {timers}", count(gateways.len())));
    let sysctls = order::map(args.sysctls.iter().cloned());
    let family = if args.ipv6 { Family::Ipv6 } else { Family::Ipv4 };
    let options =
        LabOptions { family, sysctls: order::map([(LabRole::Gateway, sysctls)]), ..LabOptions::default() };
    let specs: Vec<SiteSpec> = gateways.iter().map(|which| site_of(*which)).collect();
    let lab = Lab::build(&format!("nat-{}", std::process::id()), &options, &specs)?;
    Ok(std::thread::scope(|scope| {
        let threads: Vec<_> = (lab.sites().iter().zip(gateways))
            .map(|(site, which)| scope.spawn(move || measure_one(site, *which, args, file, stop)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p))).collect()
    }))
}

/// The hosts and links of a gateway.
fn site_of(which: LabGateway) -> SiteSpec {
    let topology = variant_of(which).topology();
    SiteSpec { name: which.name(), topology, return_route: true, wan: false }
}

/// The results. With --all, gateways whose programs are missing are left out, with a note.
fn kept(results: Vec<Result<Measured, Failure>>, all: bool) -> Result<Vec<Measured>, Failure> {
    let mut kept = Vec::new();
    for result in results {
        match result {
            Ok(measured) => kept.push(measured),
            Err(Failure::Told { code: MISSING, message }) if all => note(&format!("skipped: {message}")),
            Err(failure) => return Err(failure),
        }
    }
    Ok(kept)
}

fn measure_one(
    site: &Site,
    which: LabGateway,
    args: &NatLabArgs,
    file: Option<&ProgressFile>,
    stop: &Stop,
) -> Result<Measured, Failure> {
    let gateway = which.name();
    let (observed, carried) = with_gateway(site, which, || {
        let mut ends = attach(which, site, args.limits(), stop)?;
        let mut turn = None;
        let mut begins = |name: &'static str| {
            if name == FILLS {
                turn = Some(TURN.lock().unwrap_or_else(PoisonError::into_inner));
            }
            step(|| format!("{gateway}: {name}"));
            !stop.raised()
        };
        let earlier = file.map(|file| file.earlier(&gateway)).unwrap_or_default();
        let kept = ends.now();
        let mut follower = Follower { gateway: gateway.clone(), file, begins: &mut begins, kept };
        if args.pcap.is_none() {
            return measure_from(&mut ends, earlier, &mut follower).map(|seen| (seen, Vec::new()));
        }
        let mut recorder = Recorder::new(&mut ends);
        let seen = measure_from(&mut recorder, earlier, &mut follower)?;
        Ok((seen, recorder.files()))
    })?;
    let (observations, files) =
        observed.map_err(|e: io::Error| Failure::failed(format!("{gateway}: {e}")))?;
    if let Some(folder) = &args.pcap {
        write_packets(&folder.join(gateway), &files)?;
    }
    Ok(Measured { carried, ..measured(which, observations, &files) })
}

/// The verdicts of what was seen.
fn measured(which: LabGateway, observations: Observations, files: &[Captured]) -> Measured {
    Measured {
        gateway: which.name(),
        describes: describe(which),
        carried: None,
        table: Table::of(&observations).with_packets(files),
        observations,
    }
}

/// Makes the site's gateway that one while `f` runs. Returns its result, and the packets that a fast path carried meanwhile.
fn with_gateway<T>(
    site: &Site,
    which: LabGateway,
    f: impl FnOnce() -> T,
) -> Result<(T, Option<u64>), Failure> {
    let (layers, _list) =
        layers(which, site).map_err(|e| Failure::failed(format!("{}: {e}", which.name())))?;
    let gateway = site.host(LabRole::Gateway).ok_or_else(|| Failure::failed("the lab has no gateway"))?;
    let applied = gateway.run(|| {
        let mut journal = Journal::new();
        let outcome = layers
            .iter()
            .try_for_each(|(variant, place)| apply(&**variant, Role::Gateway, place, &mut journal));
        outcome.map(|()| journal)
    });
    let mut journal = applied.map_err(Failure::failed)?.map_err(|e| {
        let missing = matches!(e, weir_gateway::Error::Missing { .. } | weir_gateway::Error::Unsupported(_));
        let code = if missing { MISSING } else { FAILED };
        Failure::new(code, format!("{}: {e}", which.name()))
    })?;
    let result = f();
    // In the gateway: an undo in another namespace would find nothing there.
    let carried = gateway.run(|| {
        let carried = layers[0].0.carried(&layers[0].1);
        journal.undo();
        carried
    });
    let carried = carried.map_err(Failure::failed)?.map_err(Failure::failed)?;
    Ok((result, carried.map(|carried| carried.carried)))
}

/// Both ends of a gateway; they know which ports BPF forwards.
fn attach(which: LabGateway, site: &Site, limits: Limits, stop: &Stop) -> io::Result<LabEnds> {
    if which == LabGateway::TaygaNat64 {
        return nat64::attach(site, limits, stop);
    }
    let mut ends = LabEnds::attach(site, limits, stop).map_err(io::Error::other)?;
    if which == LabGateway::Publish {
        let address = site.addresses().gateway_inside;
        ends.set_published(Published { address, ports: published(which) });
    }
    Ok(ends)
}

/// Its settings in one line.
fn describe(which: LabGateway) -> String {
    let words = variant_of(which).describe();
    match which {
        LabGateway::NftMasqueradeAllow => format!("{words}, behind an address list of nft"),
        _ => words,
    }
}

/// A variant with the place where it is applied.
type Layer = (Box<dyn Variant + Send + Sync>, Place);

/// The variants in the order of their application, and the file that they read.
fn layers(which: LabGateway, site: &Site) -> io::Result<(Vec<Layer>, Option<File>)> {
    // The fast path carries all flows of both interfaces, and is there once; only the first container publishes ports.
    let second = variant_of(match which {
        LabGateway::NftMasqueradeFastpath => LabGateway::NftMasquerade,
        LabGateway::DockerFastpath | LabGateway::Publish => LabGateway::Docker,
        // One rule is about both hosts; they forward nothing by themselves.
        LabGateway::NftPool
        | LabGateway::NftPoolPersistent
        | LabGateway::NftPrefix
        | LabGateway::Ip6tablesNpt
        | LabGateway::TaygaNat64 => LabGateway::Routed,
        other => other,
    });
    let places = places(which, site).map_err(io::Error::other)?;
    let (mut layers, mut kept): (Vec<Layer>, Option<File>) = (Vec::new(), None);
    if which == LabGateway::NftMasqueradeAllow {
        let both = [&places[0], &places[1]].map(|place| place.initiator.to_string() + "\n").concat();
        // A list comes from a file: this one has no name, and ends with the process.
        let mut file = File::from(memfd_create("weir-nat-list", MemfdFlags::CLOEXEC)?);
        file.write_all(both.as_bytes())?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
        let list = AllowList { filter: Lookup::NftSet, files: vec![path], ..AllowList::default() };
        kept = Some(file);
        let tag = format!("{}allow", places[0].tag);
        layers.push((Box::new(list), Place { tag, ..places[0].clone() }));
    }
    // A rule of a variant is about one inside host: there are two.
    layers.extend([variant_of(which), second].into_iter().zip(places));
    Ok((layers, kept))
}

/// The ports that the first container publishes: where BPF carries them, those of all its experiments, or else one that no experiment
/// uses.
fn published(which: LabGateway) -> RangeInclusive<u16> {
    if which == LabGateway::Publish { 8_000..=8_255 } else { 8_080..=8_080 }
}

/// The place of a variant, once for each inside host.
fn places(which: LabGateway, site: &Site) -> weir_sys::Result<[Place; 2]> {
    let (inside, outside) = addresses(site);
    let plan = site.addresses();
    let bridged = site.spec().topology == Topology::Bridged;
    let place = |n: usize| Place {
        family: plan.family,
        inside_interface: plan.inside_interface.clone(),
        outside_interface: plan.outside_interface.clone(),
        initiator: if bridged { outside[0] } else { inside[n] },
        gateway_inside: plan.gateway_inside,
        gateway_outside: plan.gateway_outside,
        spare_outside: plan.spare_outside,
        responder: if bridged { inside[n] } else { outside[0] },
        ports: match (bridged, n) {
            (false, _) => 1..=u16::MAX,
            (true, 0) => published(which),
            // A port is published for one container.
            (true, _) => RangeInclusive::new(1, 0),
        },
        // Parts that this process holds are known by it, and all gateways are there at once.
        tag: format!("nat{}n{n}", which as u8),
    };
    Ok([place(0), place(1)])
}
