//! The program at its interfaces.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rustix::io::Errno;
use weir_bpf::{Attached, Direction, Loader, Object, ProgramFd, attach_tcx_first, require_tcx};
use weir_netlink::Link;
use weir_netlink::sock_diag::SocketEnds;
use weir_sys::clock::now_ns;
use weir_sys::sched::thread_cpu_time;
use weir_text::order;

use crate::budget::Budget;
use crate::counts::FlowCounts;
use crate::icmp::IcmpReporter;
use crate::networks::{Grouping, Key, NetworkSum};
use crate::processes::{Known, Processes, Sums};
use crate::progress::ProgressReader;
use crate::reading::{Flow, NotTracked, Reading};
use crate::sample::secret;
use crate::shared::{WeirConfig, WeirFlow, WeirUdpFlow};
use crate::table::{Contents, Table, Tracked};
use crate::udp::UdpFlow;
use crate::untracked::Notes;
use crate::{Error, Result, containers, interfaces};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flows.bpf.z"));

/// Most flows that can be tracked at a time: 2.5 GB.
pub const MOST_FLOWS: u32 = 1 << 20;

/// Which flows are watched.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Names of interfaces; none: those that forward.
    pub interfaces: Vec<String>,
    /// TCP flows that are tracked at a time, 1 to [`MOST_FLOWS`]; each takes 2.4 kB.
    pub flows: u32,
    /// Follow UDP, too: half as many flows, of 1.1 kB each.
    pub udp: bool,
    /// Share of all flows that is tracked at most, above 0 and up to 1.
    pub share: f64,
    /// Share of one core that the program and readings may take, above 0 and up to 1: fewer flows are tracked where they would take
    /// more. `None`: any.
    pub budget: Option<f64>,
    /// How flows are grouped.
    pub grouping: Grouping,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            interfaces: Vec::new(),
            flows: 16_384,
            udp: true,
            share: 1.0,
            budget: None,
            grouping: Grouping::default(),
        }
    }
}

/// A program that watches the flows of the calling thread's network namespace, until it is dropped or the process ends.
#[derive(Debug)]
pub struct Watch {
    table: Table,
    notes: Notes,
    budget: Budget,
    options: Options,
    interfaces: BTreeMap<u32, String>,
    /// Sums of flows that are no longer in the table.
    past: BTreeMap<Key, NetworkSum>,
    past_flows: u64,
    past_udp_flows: u64,
    /// Addresses of the namespace.
    own: BTreeSet<IpAddr>,
    containers: BTreeMap<IpAddr, String>,
    /// None where nothing looks for them.
    processes: Option<Processes>,
    sockets: BTreeSet<SocketEnds>,
    began: u64,
    attached: BTreeMap<u32, Attached>,
    object: Object,
}

/// Attaches the program before all others. `None` where the interface `may_be_gone` since it was listed, and is.
fn attach(program: &ProgramFd, link: &Link, may_be_gone: bool) -> Result<Option<Attached>> {
    match attach_tcx_first(program, link.index, Direction::Ingress) {
        Err(e) if may_be_gone && e.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
        attached => Ok(Some(attached?)),
    }
}

/// Refuses an option that is no share.
fn check_share(name: &str, share: f64) -> Result<()> {
    if share > 0.0 && share <= 1.0 {
        return Ok(());
    }
    Err(Error::Options(format!("{name}: {share} is not above 0 and up to 1")))
}

/// Loads the program, with tables for that many flows.
pub(crate) fn load(options: &Options) -> Result<Object> {
    let udp_flows = if options.udp { (options.flows / 2).max(1) } else { 1 };
    let mut loader = Loader::unpack("flows", OBJECT)?;
    loader.config(&WeirConfig {
        key: secret(),
        // A flood of SYNs leaves room for flows that are answered.
        opening: (options.flows / 4).max(1),
        // Strangers may send UDP that has no answer, too. Flows of this host itself have none here.
        udp_opening: if options.udp { udp_flows.div_ceil(2) } else { 0 },
    })?;
    for (names, entries) in [(WeirFlow::MAPS, options.flows), (WeirUdpFlow::MAPS, udp_flows)] {
        for (map, entries) in names.into_iter().zip([entries, entries, entries, 2 * entries]) {
            loader.entries(map, entries)?;
        }
    }
    // One of TCP, one of UDP.
    for map in ["opening", "removed"] {
        loader.entries(map, 2)?;
    }
    Ok(loader.load()?)
}

impl Watch {
    /// Loads the program and attaches it before all others, so that it sees what they drop or redirect.
    ///
    /// # Errors
    /// [`Error::is_missing`] without the privilege or on a kernel without TCX (Linux 6.6); an option out of its range; an interface that
    /// is not there.
    pub fn start(options: Options) -> Result<Self> {
        if !(1..=MOST_FLOWS).contains(&options.flows) {
            return Err(Error::Options(format!("flows: {} is not 1 to {MOST_FLOWS}", options.flows)));
        }
        check_share("share", options.share)?;
        options.budget.map_or(Ok(()), |budget| check_share("budget", budget))?;
        let own = interfaces::addresses()?;
        let links = interfaces::choose(&options.interfaces)?;
        links.first().map_or(Ok(()), |link| require_tcx(link.index))?;
        let object = load(&options)?;
        let mut table = Table::new(&object)?;
        table.set_share(options.share);
        let program = object.program("flows_in")?;
        table.set_ethernet(links.iter().all(Link::has_ethernet_header));
        let mut attached = BTreeMap::new();
        let mut interfaces = BTreeMap::new();
        for link in links {
            if let Some(one) = attach(&program, &link, options.interfaces.is_empty())? {
                attached.insert(link.index, one);
                interfaces.insert(link.index, link.name);
            }
        }
        Ok(Watch {
            table,
            notes: Notes::new(&object)?,
            budget: Budget::new(options.budget, options.share, now_ns()),
            options,
            interfaces,
            past: BTreeMap::new(),
            past_flows: 0,
            past_udp_flows: 0,
            own,
            containers: BTreeMap::new(),
            processes: None,
            sockets: BTreeSet::new(),
            began: now_ns(),
            attached,
            object,
        })
    }

    /// Attaches the program to interfaces that came since, and leaves those that went or forward no more. Flows and sums stay. True
    /// if something changed.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn follow_interfaces(&mut self) -> Result<bool> {
        self.own = interfaces::addresses()?;
        let links = interfaces::present(&self.options.interfaces)?;
        self.table.set_ethernet(links.iter().all(Link::has_ethernet_header));
        let before = self.attached.len();
        self.attached.retain(|index, _| links.iter().any(|link| link.index == *index));
        let mut changed = self.attached.len() != before;
        let program = self.object.program("flows_in")?;
        for link in links {
            if let Entry::Vacant(place) = self.attached.entry(link.index) {
                let Some(one) = attach(&program, &link, true)? else { continue };
                place.insert(one);
                changed = true;
            }
            self.interfaces.insert(link.index, link.name);
        }
        let attached = &self.attached;
        self.interfaces.retain(|index, _| attached.contains_key(index));
        Ok(changed)
    }

    /// From now on, these containers are named where they are ends of flows.
    pub fn name_containers(&mut self, names: BTreeMap<IpAddr, String>) {
        self.containers = names;
    }

    /// From now on, these processes are named where they are ends of flows, and [`Watch::sockets`] has the sockets to look for.
    pub fn name_processes(&mut self, processes: Processes) {
        self.processes = Some(processes);
    }

    /// The sockets at the ends of the flows of the latest reading: of the 4096 flows of TCP with the most bytes, and as many of UDP.
    pub fn sockets(&self) -> &BTreeSet<SocketEnds> {
        &self.sockets
    }

    /// The program that sees every packet, e.g. to ask for its cost.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn program(&self) -> Result<ProgramFd> {
        Ok(self.object.program("flows_in")?)
    }

    /// A reader of how far flows have come, to be read many times a second.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn progress_reader(&self) -> Result<ProgressReader> {
        Ok(ProgressReader::new(self.object.map("slots")?))
    }

    /// Names of the interfaces that are watched.
    pub fn interfaces(&self) -> Vec<&str> {
        self.interfaces.values().map(String::as_str).collect()
    }

    /// Reads everything that was seen since the beginning. Call it every second or so: it also makes room for new flows in the place of
    /// those that are over.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn read(&mut self) -> Result<Reading> {
        self.read_top(usize::MAX, usize::MAX)
    }

    /// The same with the networks and the flows with the most bytes alone, so many of each. Intervals of thousands take their time.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn read_top(&mut self, networks: usize, flows: usize) -> Result<Reading> {
        let (time, used) = (now_ns(), thread_cpu_time());
        let reading = self.read_at(time, networks, flows);
        self.budget.count_reading(time, thread_cpu_time().saturating_sub(used));
        reading
    }

    fn read_at(&mut self, time: u64, networks: usize, flows: usize) -> Result<Reading> {
        let mut contents = self.table.read(time)?;
        self.notes.read(&self.options.grouping)?;
        let packets = NotTracked::of(&contents.verdicts).packets();
        if self.budget.look(&self.program()?, time, packets) {
            self.table.set_share(self.budget.share());
        }
        let mut sums = self.past.clone();
        let grouping = &self.options.grouping;
        contents.tcp.all.iter().for_each(|flow| grouping.add(&mut sums, flow, time));
        contents.udp.all.iter().for_each(|flow| grouping.add_udp(&mut sums, flow, &self.own, time));
        let mut all = NetworkSum::default();
        sums.values().for_each(|sum| all.merge(sum));
        let mut sums: Vec<(Key, NetworkSum)> = sums.into_iter().collect();
        order::by_key(&mut sums, |(_, sum)| Reverse(sum.bytes()));
        order::by_key(&mut contents.tcp.all, |flow| Reverse(flow.side_bytes().iter().sum::<u64>()));
        order::by_key(&mut contents.udp.all, |flow| Reverse(flow.side_bytes().iter().sum::<u64>()));
        let shown = contents.tcp.all.iter().take(flows);
        let shown_udp = contents.udp.all.iter().take(flows);
        let [capacity, udp_capacity] = self.table.capacity();
        let mut reading = Reading {
            interfaces: self.interfaces.values().cloned().collect(),
            seconds: time.saturating_sub(self.began) as f64 / 1e9,
            sample_share: self.budget.share(),
            packet_ns: self.budget.last().map(|cost| cost.packet_ns),
            core_share: self.budget.last().map(|cost| cost.core()),
            readings_share: self.budget.last().map(|cost| cost.readings),
            core_budget: self.budget.most(),
            budget_unknown: self.budget.untimed().map(str::to_owned),
            capacity,
            udp_capacity: if self.options.udp { udp_capacity } else { 0 },
            flows_now: contents.tcp.all.len() as u64,
            flows_over: self.past_flows,
            udp_flows_now: contents.udp.all.len() as u64,
            udp_flows_over: self.past_udp_flows,
            not_tracked: NotTracked::of(&contents.verdicts),
            untracked: self.notes.report(grouping, networks, flows),
            all: all.report(None),
            networks_in_all: sums.len() as u64,
            networks: sums.iter().take(networks).map(|(key, sum)| sum.report(grouping.name(*key))).collect(),
            flows: shown
                .map(|flow| Flow {
                    network_name: grouping.named(flow),
                    ..Flow::of(flow, &self.interfaces, time)
                })
                .collect(),
            icmp_errors: IcmpReporter::all(&self.table.icmp_errors()?),
            udp_flows: shown_udp
                .map(|flow| UdpFlow {
                    network_name: grouping.named(flow),
                    ..UdpFlow::of(flow, &self.interfaces, &self.own, time)
                })
                .collect(),
            ..Reading::default()
        };
        self.name_ends(&mut reading, &contents, flows);
        self.retire(&contents, time);
        Ok(reading)
    }

    /// Fills in the containers and processes at the ends of flows, and at most so many sums by process.
    fn name_ends(&mut self, reading: &mut Reading, contents: &Contents, most: usize) {
        reading.containers = containers::among(&self.containers, reading.ends());
        let Some(processes) = &self.processes else { return };
        let known = Known { processes, own: &self.own, containers: &self.containers };
        for (flow, raw) in reading.flows.iter_mut().zip(&contents.tcp.all) {
            [flow.client_here, flow.server_here] = known.ends(raw);
        }
        for (flow, raw) in reading.udp_flows.iter_mut().zip(&contents.udp.all) {
            [flow.client_here, flow.server_here] = known.ends(raw);
        }
        let mut sums = Sums::default();
        sums.add(&contents.tcp.all, &known);
        sums.add(&contents.udp.all, &known);
        (reading.processes, self.sockets) = sums.report();
        reading.processes.truncate(most);
        reading.processes_missing = processes.missing.clone();
    }

    /// Counters of all TCP flows in the table as they are, and what was not tracked. Cheaper than [`Watch::read`], which makes intervals; flows
    /// that are over leave the table, and their counters are not returned again.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn read_counts(&mut self) -> Result<(Vec<FlowCounts>, NotTracked)> {
        let time = now_ns();
        let contents = self.table.read(time)?;
        let flows = contents.tcp.all.iter();
        let flows = flows.map(|flow| FlowCounts::of(flow, &self.interfaces, time)).collect();
        self.retire(&contents, time);
        Ok((flows, NotTracked::of(&contents.verdicts)))
    }

    fn retire(&mut self, contents: &Contents, time: u64) {
        let grouping = &self.options.grouping;
        for flow in &contents.tcp.removed {
            grouping.add(&mut self.past, flow, time);
        }
        for flow in &contents.udp.removed {
            grouping.add_udp(&mut self.past, flow, &self.own, time);
        }
        self.past_flows += contents.tcp.removed.len() as u64;
        self.past_udp_flows += contents.udp.removed.len() as u64;
        grouping.bound(&mut self.past);
    }
}
