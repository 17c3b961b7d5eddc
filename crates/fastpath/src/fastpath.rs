//! The programs and their tables.

use std::io::Read;
use std::mem::offset_of;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_bpf::{Loader, Map, Mapped, Object, Plain, ProgramFd, Ring, test_run};
use weir_netlink::conntrack::Tuple;
use weir_text::order;

use crate::attachments::{Attachments, LARGEST_INDEX};
use crate::changes::Changes;
use crate::direction::{WayOut, direction};
use crate::needs::{lacks_functions, named};
use crate::options::{LEASE, Learns, Options, Tables};
use crate::shared::{
    WEIR_REMOVED_AT_ONCE, WeirConfig, WeirControl, WeirCount, WeirDirection, WeirEntry, WeirExclusions,
    WeirIdle, WeirProposal, WeirSettlement, WeirTimes,
};
use crate::store::check_number;
use crate::tick;
use crate::xdp::Drivers;
use crate::{
    AttachedBy, Change, ChangeCount, Count, Error, Exclusion, Lesson, Reason, Result, Status, Times, Xdp,
    XdpInterface,
};

/// The programs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fastpath.bpf.z"));

/// The flow table in the kernel. Dropping it detaches the programs; everything then takes the kernel's way.
#[derive(Debug)]
pub struct Fastpath {
    object: Object,
    control: Mapped<WeirControl>,
    /// The same memory. Programs and another thread change other values at the same time, so each is written alone.
    words: Mapped<u32>,
    longs: Mapped<u64>,
    renew: ProgramFd,
    remove: ProgramFd,
    keep_idle: ProgramFd,
    settle: ProgramFd,
    learns: Learns,
    attachments: Mutex<Attachments>,
    /// If packets are carried by XDP, too.
    drivers: Option<Mutex<Drivers>>,
    changes: Changes,
    /// True while it is paused. Held for each change of the lease and of the generation.
    pause: Mutex<bool>,
}

impl Fastpath {
    /// Loads programs and tables, attached to nothing. Nothing is carried before the lease is renewed ([`crate::Keeper`]).
    ///
    /// # Errors
    /// [`Error::Options`] out of range; [`Error::Kernel`] if the kernel lacks something; [`Error::Bpf`] without privilege or memory.
    pub fn load(options: Options) -> Result<Self> {
        if !options.without_functions {
            match Fastpath::load_for(options, Learns::InKernel) {
                Err(e) if lacks_functions(&e) => {}
                other => return other,
            }
        }
        Fastpath::load_for(options, Learns::ByNetlink)
    }

    fn load_for(options: Options, learns: Learns) -> Result<Self> {
        options.check()?;
        let Tables { buckets4, buckets6, first4, first6 } = options.tables();
        let mut seed = [0; 8];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut f| f.read_exact(&mut seed))
            .map_err(|e| Error::Options(format!("/dev/urandom: {e}")))?;
        let mut loader = Loader::unpack("fastpath", OBJECT)?;
        let asks_resident = u32::from(learns == Learns::ByNetlink);
        let seed = u64::from_ne_bytes(seed);
        loader.config(&WeirConfig { seed, packets: options.packets, asks_resident })?;
        loader.entries("flows4", buckets4)?;
        loader.entries("flows6", buckets6)?;
        loader.entries("labels4", buckets4)?;
        loader.entries("labels6", buckets6)?;
        match options.xdp {
            Xdp::Off => loader.without(XDP_PROGRAM)?,
            // By the number of an interface.
            _ => loader.entries("ports", LARGEST_INDEX + 1)?,
        }
        let object = loader.load().map_err(named)?;
        let values = object.map(".data.control")?;
        let (control, words, longs) = (values.share::<WeirControl>()?, values.share()?, values.share()?);
        let program = |name| object.program(name);
        let (renew, remove, keep_idle) = (program("renew")?, program("remove")?, program("keep_idle")?);
        let settle = program("settle")?;
        let attachments =
            Attachments::new(program("fastpath_in")?, program("fastpath_out")?, options.without_tcx);
        let drivers = match options.xdp {
            Xdp::Off => None,
            xdp => Some(Mutex::new(Drivers::new(xdp, program(XDP_PROGRAM)?, object.map("ports")?.share()?))),
        };
        let (attachments, pause) = (Mutex::new(attachments), Mutex::new(false));
        let fastpath = Fastpath {
            object,
            control,
            words,
            longs,
            renew,
            remove,
            keep_idle,
            settle,
            learns,
            attachments,
            drivers,
            changes: Changes::default(),
            pause,
        };
        fastpath.set_word(offset_of!(WeirControl, mask4), first4 - 1);
        fastpath.set_word(offset_of!(WeirControl, mask6), first6 - 1);
        fastpath.calibrate(options.refresh)?;
        Ok(fastpath)
    }

    /// Tells the programs how long the kernel's ticks are.
    fn calibrate(&self, refresh: Duration) -> Result<()> {
        let hz = tick::per_second(|| self.jiffies())?;
        let control = WeirControl {
            lease: LEASE.as_secs() * u64::from(hz),
            hz,
            shortest: u32::MAX,
            carries6: self.object.confirms("knows_ipv6")?.into(),
            longest_refresh: (refresh.as_secs_f64() * f64::from(hz)) as u32,
            ..self.control.get(0)
        };
        self.control.set(0, control);
        Ok(())
    }

    fn jiffies(&self) -> Result<u64> {
        test_run(&self.renew, &[0; 64], 0, 1)?;
        Ok(self.control.get(0).now)
    }

    /// Memory of all tables as the kernel counts it, bytes. [`Options::memory_bytes`] tells most of it before.
    ///
    /// # Errors
    /// If `/proc` does not show it.
    pub fn memory_bytes(&self) -> Result<u64> {
        Ok(self.object.memory_bytes()?)
    }

    /// Attaches the programs to an interface, behind those that are there: by TCX, or by clsact where the kernel has no TCX.
    ///
    /// # Errors
    /// [`Error::Interface`] if it has no Ethernet header; [`Error::Bpf`] and [`Error::System`] if the kernel refuses.
    pub fn attach(&self, interface: &str) -> Result<()> {
        self.attachments().add(interface)
    }

    /// Attaches the program to the driver of an interface, too, which may interrupt its link for a moment.
    ///
    /// # Errors
    /// [`Error::Interface`] if its driver has no XDP, or something stands in the way; [`Error::Options`] if it was loaded without XDP.
    pub fn attach_xdp(&self, interface: &str) -> Result<()> {
        let mut drivers = self.drivers().ok_or_else(|| Error::Options("loaded without XDP".into()))?;
        drivers.add(interface)
    }

    fn drivers(&self) -> Option<MutexGuard<'_, Drivers>> {
        self.drivers.as_ref().map(|drivers| drivers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at the interfaces of XDP again.
    pub(crate) fn look_at_drivers(&self, rules_changed: bool) {
        if let Some(mut drivers) = self.drivers() {
            drivers.look(rules_changed);
        }
    }

    /// The interfaces of XDP, and what stands in its way there.
    pub fn xdp_interfaces(&self) -> Vec<XdpInterface> {
        self.drivers().map_or_else(Vec::new, |drivers| drivers.seen().to_vec())
    }

    fn attachments(&self) -> MutexGuard<'_, Attachments> {
        self.attachments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches the programs again where an interface was made anew, or another program came behind them. Then everything is learnt anew.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn mend(&self) -> Result<()> {
        if self.attachments().mend()? {
            self.forget_ways([Change::Programs]);
        }
        Ok(())
    }

    /// Names of the interfaces that it is attached to.
    pub fn interfaces(&self) -> Vec<String> {
        self.attachments().names()
    }

    /// How it is attached; `None` if it is attached to nothing.
    pub fn attached_by(&self) -> Option<AttachedBy> {
        self.attachments().by()
    }

    /// True if this kernel can carry IPv6: it knows BPF_F_IPV6.
    pub fn carries_ipv6(&self) -> bool {
        self.control.get(0).carries6 != 0
    }

    /// Whether all programs are where they were attached: an interface that is gone took its programs along.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn is_attached(&self) -> Result<bool> {
        self.attachments().are_whole()
    }

    /// Renews the lease by 2 s: until then packets are carried. Not while it is paused.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn renew(&self) -> Result<()> {
        let pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        if !*pause {
            test_run(&self.renew, &[0; 64], 0, 1)?;
        }
        Ok(())
    }

    /// Carries nothing from now on, until it goes on: everything takes the kernel's way.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_paused(&self, paused: bool) -> Result<()> {
        let mut is_paused = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        *is_paused = paused;
        if paused {
            self.longs.set(offset_of!(WeirControl, until) / size_of::<u64>(), 0);
        }
        drop(is_paused);
        self.renew()
    }

    /// Leaves flows with these addresses and ports to the kernel, and no others; those that are carried now, too.
    ///
    /// # Errors
    /// [`Error::Options`] if there are more than 64.
    pub fn exclude(&self, excluded: &[Exclusion]) -> Result<()> {
        let mut all = WeirExclusions::zeroed();
        check_number(excluded.len())?;
        for (place, exclusion) in all.all.iter_mut().zip(excluded) {
            *place = exclusion.shared();
        }
        self.table("exclusions")?.set(0, all);
        self.set_word(offset_of!(WeirControl, exclusions), excluded.len() as u32);
        self.forget_ways([Change::Exclusions]);
        Ok(())
    }

    /// The verdict on a usual packet that comes in with these addresses and ports, and how it would leave, if it is in the table.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn explain(&self, tuple: &Tuple) -> Result<(Reason, Option<WayOut>)> {
        let question = direction(tuple);
        let mut packet = vec![0; ETHERNET];
        packet.extend_from_slice(question.bytes());
        packet.resize(packet.len() + size_of::<WeirEntry>(), 0);
        let run = test_run(&self.object.program("explain")?, &packet, 0, 1)?;
        let reason = Reason::ALL.get(run.verdict as usize).copied().unwrap_or(Reason::Unknown);
        let answer = run.packet.get(ETHERNET + question.bytes().len()..).unwrap_or_default();
        let entry = WeirEntry::from_bytes(answer);
        let is_there = entry.way.goes_by != 0;
        Ok((reason, is_there.then(|| WayOut::of(&entry, question.version, question.protocol))))
    }

    /// Makes every entry stale: the next packet of each flow takes the kernel's way, and is learnt from anew.
    pub fn forget_ways(&self, because: impl IntoIterator<Item = Change>) {
        because.into_iter().for_each(|change| self.changes.note(change));
        // Two at the same time must raise it twice: entries may have been learnt in between.
        let _one = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.control.get(0).generation.wrapping_add(1);
        self.set_word(offset_of!(WeirControl, generation), next);
    }

    pub(crate) fn set_word(&self, offset: usize, value: u32) {
        self.words.set(offset / size_of::<u32>(), value);
    }

    /// Why that was done since it was loaded.
    pub fn changes(&self) -> Vec<ChangeCount> {
        self.changes.counts()
    }

    /// Removes the entries of packets that come in with these addresses and ports; one that is not there is no error.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&self, tuples: &[Tuple]) -> Result<()> {
        for some in tuples.chunks(WEIR_REMOVED_AT_ONCE as usize) {
            let mut packet = vec![0; ETHERNET];
            some.iter().for_each(|tuple| packet.extend_from_slice(direction(tuple).bytes()));
            test_run(&self.remove, &packet, 0, 1)?;
        }
        Ok(())
    }

    /// The part that asks conntrack about a flow.
    pub fn learns(&self) -> Learns {
        self.learns
    }

    /// Takes in what conntrack says of an entry that waits for it.
    pub(crate) fn settle(&self, settlement: &WeirSettlement) -> Result<()> {
        tell(&self.settle, settlement)
    }

    /// The entries that wait for what conntrack says of them, as they come.
    pub(crate) fn proposals(&self) -> Result<Ring<WeirProposal>> {
        Ok(Ring::open(&self.object.map("proposals")?)?)
    }

    /// Sees to conntrack's timeout of a connection of which that direction is silent. If both are, and the programs cannot ask conntrack,
    /// returns what they know of it.
    pub(crate) fn keep_idle(&self, flow: WeirDirection) -> Result<Option<WeirIdle>> {
        let mut packet = vec![0; ETHERNET];
        packet.extend_from_slice(WeirIdle { flow, ..WeirIdle::zeroed() }.bytes());
        let run = test_run(&self.keep_idle, &packet, 0, 1)?;
        let is_left = run.verdict == 0 && self.learns == Learns::ByNetlink;
        Ok(is_left.then(|| WeirIdle::from_bytes(run.packet.get(ETHERNET..).unwrap_or_default())))
    }

    /// The values that the programs change and read.
    pub(crate) fn control(&self) -> WeirControl {
        self.control.get(0)
    }

    /// A table's memory, as values of that type.
    pub(crate) fn table<T: Plain>(&self, name: &str) -> Result<Mapped<T>> {
        Ok(self.map(name)?.share()?)
    }

    /// The TCP connections whose window conntrack must not check any more, as they come.
    ///
    /// # Errors
    /// If the ring cannot be read.
    pub(crate) fn wishes(&self) -> Result<Ring<WeirDirection>> {
        Ok(Ring::open(&self.object.map("wishes")?)?)
    }

    /// Returns the counts since it was loaded.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn status(&self) -> Result<Status> {
        let mut status = Status { reasons: self.counts("counts")?, ..Status::default() };
        let carried = status.packets(Reason::Carried);
        let times = self.map("times")?.all_by_cpu::<u32, WeirTimes>()?;
        status.times = Times::of(&times, carried);
        status.add_xdp(self.counts("xdp_counts")?);
        for (at, by_cpu) in self.map("lessons")?.all_by_cpu::<u32, u64>()? {
            let number: u64 = by_cpu.iter().sum();
            if number > 0 {
                status.lessons.push((Lesson::ALL[at as usize % Lesson::ALL.len()], number));
            }
        }
        order::by_key(&mut status.reasons, |r| r.0);
        order::by_key(&mut status.lessons, |l| l.0);
        Ok(status)
    }

    /// Packets by reason; those with none are left out.
    fn counts(&self, map: &str) -> Result<Vec<(Reason, Count)>> {
        let mut counts = Vec::new();
        for (at, by_cpu) in self.map(map)?.all_by_cpu::<u32, WeirCount>()? {
            let packets = by_cpu.iter().map(|c| c.packets).sum();
            let bytes = by_cpu.iter().map(|c| c.bytes).sum();
            if packets > 0 {
                counts.push((Reason::ALL[at as usize % Reason::ALL.len()], Count { packets, bytes }));
            }
        }
        order::by_key(&mut counts, |count| count.0);
        Ok(counts)
    }

    pub(crate) fn map(&self, name: &str) -> Result<Map> {
        Ok(self.object.map(name)?)
    }
}

const ETHERNET: usize = 14;
/// The program in drivers.
const XDP_PROGRAM: &str = "fastpath_xdp";

/// Runs a program on a value, which lies behind an Ethernet header.
fn tell<T: Plain>(program: &ProgramFd, value: &T) -> Result<()> {
    let mut packet = vec![0; ETHERNET];
    packet.extend_from_slice(value.bytes());
    test_run(program, &packet, 0, 1)?;
    Ok(())
}
