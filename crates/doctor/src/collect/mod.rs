//! Reads the evidence: once at the beginning of the window what counts up, at its end the same again and all that is as it is.
//!
//! Every collector stands alone: one that fails makes its evidence source blind, with the reason, and stops nothing else. Nothing is
//! changed and no module is loaded on purpose.

mod connections;
mod counters;
mod drops;
mod fastpath;
mod interfaces;
mod machine;
mod namespaces;
mod neighbours;
mod routes;
mod rules;
mod settings;
mod sockets;
mod transit;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_sys::{NetNs, ProcRoot};
use weir_text::order;

use crate::evidence::{
    DropGroup, Evidence, EvidenceSource, FastPath, FlowEvent, Namespace, NatTable, Sight, Tuple, VERSION,
};

pub(crate) use connections::is_private;
pub(crate) use machine::is_of_machine;

/// Names of what the collectors read, for the test that causes ask for nothing else.
#[cfg(test)]
pub(crate) mod names {
    use std::collections::BTreeSet;

    use weir_sys::ProcRoot;

    /// Settings of a namespace, of an interface in it, and of the machine.
    pub(crate) fn settings(interface: &str) -> BTreeSet<String> {
        super::settings::names(&[interface])
            .chain(super::machine::SETTINGS.iter().map(|n| (*n).into()))
            .collect()
    }

    /// Counters and gauges whose names are ours, and those that this kernel has.
    pub(crate) fn counters() -> BTreeSet<String> {
        let (counters, gauges) = super::counters::protocols(&ProcRoot::default()).unwrap();
        let tables = super::machine::tables(&ProcRoot::default());
        let ours = super::counters::names().chain(tables.into_keys());
        counters.into_keys().chain(gauges.into_keys()).chain(ours).collect()
    }
}

pub use namespaces::{Found, LocalSockets, Looked};

/// Which namespaces are looked at.
#[derive(Debug, Clone, Default)]
pub enum Scope {
    /// Every one on this machine, as far as they may be entered.
    #[default]
    Machine,
    /// The namespace of the calling thread alone.
    Own,
    /// These, with their names.
    These(Vec<(String, NetNs)>),
}

/// The scope and the ways of a look.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which namespaces.
    pub scope: Scope,
    /// The folder of `proc` and `sys`.
    pub root: ProcRoot,
    /// Evidence sources that are not to be looked at, e.g. to see what remains without them.
    pub hidden: BTreeSet<EvidenceSource>,
    /// A table of `weir nat` to be explained: then what it depends on is read, too.
    pub nat: Option<NatTable>,
}

/// A window that has begun.
#[derive(Debug)]
pub struct OpenWindow {
    options: Options,
    began: Instant,
    namespaces: Vec<(Found, Namespace)>,
    /// One for each of `namespaces`; none where neighbours are not looked at.
    listeners: Vec<neighbours::Listener>,
    machine: machine::Looking,
    tracer: drops::Tracer,
    transit: transit::Watches,
    sources: BTreeMap<EvidenceSource, Sight>,
}

impl OpenWindow {
    /// Begins a window.
    ///
    /// # Errors
    /// If the namespaces cannot be listed.
    pub fn begin(options: Options) -> weir_sys::Result<Self> {
        let mut sources = BTreeMap::new();
        let found = namespaces::find(&options.root, &options.scope)?;
        let tracer = drops::Tracer::begin(&options, &mut sources);
        let machine = machine::begin(&options, &mut sources);
        let read = |found: Found| {
            let namespace = first(&options, &found);
            (found, namespace)
        };
        let mut namespaces: Vec<_> = found.into_iter().map(read).collect();
        let mut listeners = Vec::new();
        if !options.hidden.contains(&EvidenceSource::Neighbours) {
            listeners.extend(namespaces.iter().map(|(found, _)| neighbours::Listener::begin(found)));
        }
        let transit = if options.hidden.contains(&EvidenceSource::Transit) {
            transit::Watches::default()
        } else {
            transit::Watches::begin(&mut namespaces)
        };
        let began = Instant::now();
        Ok(OpenWindow { began, namespaces, listeners, machine, tracer, transit, sources, options })
    }

    /// How long it has been open.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Ends the window and reads all the rest.
    pub fn end(mut self) -> Evidence {
        let ended = Instant::now();
        let mut evidence = Evidence {
            version: VERSION,
            window_s: (ended - self.began).as_secs_f64(),
            ended_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64),
            evidence_sources: self.sources,
            nat: self.options.nat.clone(),
            ..Evidence::default()
        };
        self.tracer.end(&mut evidence);
        let mut passed = self.transit.end(&mut evidence.cost);
        if !matches!(self.options.scope, Scope::Machine) {
            // The programs in the kernel count for every namespace.
            let inside = order::set(self.namespaces.iter().map(|(found, _)| found.id));
            evidence.drops.retain(|d| inside.contains(&d.namespace));
            evidence.flows.retain(|f| inside.contains(&f.namespace));
        }
        evidence.machine = self.machine.end(&self.options, &mut evidence.evidence_sources);
        let tables =
            connections::Common::new(self.namespaces.iter().map(|(_, earlier)| tracked(earlier)).sum());
        let mut all = Vec::new();
        for (found, earlier) in self.namespaces {
            let watched =
                earlier.blind.get(&EvidenceSource::Transit).cloned().map(Err).or(passed.remove(&found.id));
            let mut namespace = last(&self.options, &found, earlier, &evidence, &tables);
            match watched {
                Some(Ok(transit)) => namespace.transit = Some(transit),
                Some(Err(why)) => _ = namespace.blind.entry(EvidenceSource::Transit).or_insert(why),
                None if self.options.hidden.contains(&EvidenceSource::Transit) => {}
                None => namespace
                    .blind
                    .extend(transit::unwatched(&namespace).map(|why| (EvidenceSource::Transit, why))),
            }
            evidence.namespaces.push(namespace);
            all.push(found);
        }
        interfaces::join(&mut evidence.namespaces, &all);
        for (namespace, listener) in evidence.namespaces.iter_mut().zip(self.listeners) {
            listener.end(namespace);
        }
        sum_up(&mut evidence.evidence_sources, &evidence.namespaces, &self.options.hidden);
        latecomers(&self.options, &mut evidence);
        evidence.cost.analysis_ms = ended.elapsed().as_secs_f64() * 1e3;
        self.machine.own_cost(&self.options.root, &mut evidence.cost);
        evidence
    }
}

/// Adds those namespaces of which there is nothing but what the programs in the kernel counted.
fn latecomers(options: &Options, evidence: &mut Evidence) {
    let known = order::set(evidence.namespaces.iter().map(|n| n.id).chain([0]));
    let counted =
        evidence.drops.iter().map(|d| d.namespace).chain(evidence.flows.iter().map(|f| f.namespace));
    let late = order::set(counted.filter(|id| !known.contains(id)));
    for (id, name) in namespaces::late(&options.root, &late) {
        let why = "it was not in sight when the window began";
        let blind = weir_text::order::map(OF_NAMESPACES.iter().map(|source| (*source, why.to_owned())));
        evidence.namespaces.push(Namespace { id, name, blind, ..Namespace::default() });
    }
}

fn hidden() -> Sight {
    Sight::Blind("it was asked not to be looked at".into())
}

/// Evidence sources that every namespace has for itself.
const OF_NAMESPACES: &[EvidenceSource] = &[
    EvidenceSource::Counters,
    EvidenceSource::Interfaces,
    EvidenceSource::Driver,
    EvidenceSource::Qdiscs,
    EvidenceSource::Programs,
    EvidenceSource::ConntrackStatistics,
    EvidenceSource::Connections,
    EvidenceSource::Rules,
    EvidenceSource::Sockets,
    EvidenceSource::Neighbours,
    EvidenceSource::Routes,
    EvidenceSource::Settings,
    EvidenceSource::FastPath,
    EvidenceSource::Transit,
];

/// Says of an evidence source that it was blind where no namespace had it, and partly where some had not.
fn sum_up(
    sources: &mut BTreeMap<EvidenceSource, Sight>,
    namespaces: &[Namespace],
    hide: &BTreeSet<EvidenceSource>,
) {
    for source in OF_NAMESPACES {
        let blind: Vec<&Namespace> = namespaces.iter().filter(|n| n.blind.contains_key(source)).collect();
        let sight = match blind.first() {
            _ if hide.contains(source) => hidden(),
            None => Sight::Seen,
            Some(first) if blind.len() == namespaces.len() => Sight::Blind(first.blind[source].clone()),
            Some(first) => Sight::Partly(format!("not in {}: {}", first.name, first.blind[source])),
        };
        sources.insert(*source, sight);
    }
}

/// The readings at the window's beginning.
fn first(options: &Options, found: &Found) -> Namespace {
    let mut namespace = named(found);
    enter(options, found, &mut namespace, &|inside| {
        counted(options, inside);
        inside.sockets =
            keep(options, &mut inside.blind, EvidenceSource::Sockets, || sockets::begin(&options.root));
        inside.fastpath = accelerated(options, inside);
    });
    namespace
}

/// The readings at its end, as growth since the beginning.
fn last(
    options: &Options,
    found: &Found,
    earlier: Namespace,
    evidence: &Evidence,
    tables: &connections::Common,
) -> Namespace {
    let mut now = named(found);
    let asked = Asked::of(evidence, found.id);
    enter(options, found, &mut now, &|inside| {
        counted(options, inside);
        let read = || sockets::end(&options.root, earlier.sockets.as_ref(), &asked);
        if let Some((sockets, missing)) = keep(options, &mut inside.blind, EvidenceSource::Sockets, read) {
            inside.sockets = Some(sockets);
            inside.blind.extend(missing.map(|why| (EvidenceSource::Sockets, why)));
        }
        let read = || connections::read(&options.root, &asked, tables, tracked(&earlier));
        inside.connections = keep(options, &mut inside.blind, EvidenceSource::Connections, read).flatten();
        inside.fastpath = accelerated(options, inside);
        if let Some(now) = &mut inside.fastpath {
            fastpath::since(now, earlier.fastpath.as_ref());
        }
        standing(options, inside, &asked);
        rules::finish(&options.root, inside, &earlier, evidence);
        if let Some(table) = &options.nat {
            let inside_now = &*inside;
            let mut blind = BTreeMap::new();
            let read = || rules::read_nat(&options.root, inside_now, table);
            let host = keep(options, &mut blind, EvidenceSource::Rules, read);
            inside.nat = host;
            inside.blind.extend(blind);
        }
    });
    crate::evidence::counters_since(&mut now.counters, &earlier.counters);
    interfaces::since(&mut now.interfaces, &earlier.interfaces);
    now
}

/// Entries of connection tracking.
fn tracked(namespace: &Namespace) -> u64 {
    namespace.gauges.get("conntrack.count").copied().unwrap_or(0)
}

fn named(found: &Found) -> Namespace {
    Namespace { id: found.id, name: found.name.clone(), own: found.own, ..Namespace::default() }
}

/// Runs `read` inside the namespace. One that cannot be entered is blind in everything.
fn enter(
    options: &Options,
    found: &Found,
    namespace: &mut Namespace,
    read: &(dyn Fn(&mut Namespace) + Sync),
) {
    let result = found.inside(|| read(namespace));
    if let Err(e) = result {
        for source in OF_NAMESPACES {
            namespace.blind.insert(*source, e.to_string());
        }
    }
    for source in &options.hidden {
        namespace.blind.insert(*source, "it was asked not to be looked at".into());
    }
}

/// Keeps what a collector returns, or why it returned nothing.
fn keep<T>(
    options: &Options,
    blind: &mut BTreeMap<EvidenceSource, String>,
    source: EvidenceSource,
    read: impl FnOnce() -> weir_sys::Result<T>,
) -> Option<T> {
    if options.hidden.contains(&source) {
        return None;
    }
    read().map_err(|e| blind.insert(source, why(&e))).ok()
}

/// The obstacle of a collector, and its remedy.
fn why(error: &weir_sys::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("{error}: this needs root, or CAP_NET_ADMIN in the namespace")
        }
        _ => error.to_string(),
    }
}

/// Values that count up.
fn counted(options: &Options, inside: &mut Namespace) {
    let root = &options.root;
    let Namespace { blind, counters, gauges, .. } = inside;
    if let Some((read, levels)) = keep(options, blind, EvidenceSource::Counters, || counters::protocols(root))
    {
        counters.extend(read);
        gauges.extend(levels);
    }
    if let Some(read) =
        keep(options, blind, EvidenceSource::ConntrackStatistics, || counters::conntrack(root))
    {
        counters.extend(read);
    }
    let mut unseen = BTreeMap::new();
    let read = || interfaces::read(root, &options.hidden, &mut unseen);
    let interfaces = keep(options, blind, EvidenceSource::Interfaces, read);
    blind.extend(unseen);
    let rules = keep(options, blind, EvidenceSource::Rules, || rules::read(root));
    inside.interfaces = interfaces.unwrap_or_default();
    inside.rules = rules;
}

fn accelerated(options: &Options, inside: &mut Namespace) -> Option<FastPath> {
    keep(options, &mut inside.blind, EvidenceSource::FastPath, || fastpath::read(&options.root)).flatten()
}

/// The questions about a namespace because of the packets lost in it.
#[derive(Debug, Default)]
pub(crate) struct Asked<'a> {
    /// Groups of drops of this namespace.
    pub(crate) drops: Vec<&'a DropGroup>,
    /// Events of connections, likewise.
    pub(crate) flows: Vec<&'a FlowEvent>,
    /// Their tuples, each once, with the interface that the packet came in through (0: made here).
    pub(crate) tuples: BTreeSet<(Tuple, u32)>,
}

impl<'a> Asked<'a> {
    fn of(evidence: &'a Evidence, namespace: u64) -> Self {
        let drops: Vec<_> = evidence.drops.iter().filter(|d| d.namespace == namespace).collect();
        let flows: Vec<_> = evidence.flows.iter().filter(|f| f.namespace == namespace).collect();
        let samples = drops.iter().flat_map(|d| &d.samples);
        let mut tuples = order::set(samples.filter_map(|s| Some((s.tuple()?, s.came_in))));
        tuples.extend(flows.iter().filter_map(|f| Some((f.tuple?, 0))));
        Asked { drops, flows, tuples }
    }
}

/// Values that do not count up.
fn standing(options: &Options, inside: &mut Namespace, asked: &Asked<'_>) {
    let root = &options.root;
    let blind = &mut inside.blind;
    inside.neighbours = keep(options, blind, EvidenceSource::Neighbours, neighbours::read);
    inside.routes = keep(options, blind, EvidenceSource::Routes, || routes::read(asked));
    let interfaces: Vec<&str> = inside.interfaces.iter().map(|i| i.name.as_str()).collect();
    let settings = keep(options, blind, EvidenceSource::Settings, || settings::read(root, &interfaces));
    inside.settings = settings.unwrap_or_default();
}
