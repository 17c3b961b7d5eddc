//! The tables in the kernel, and the programs that use them.

use std::net::IpAddr;

use weir_bpf::{Attached, Direction as Hook, ProgramFd, TestRun, XdpMode, attach_tcx, attach_xdp, test_run};

use crate::action::{ACTIONS, Action, Direction};
use crate::compile::Compiled;
use crate::events::{Events, Follower, address_of};
use crate::shared::{WEIR_COUNTS, WEIR_REASONS, WeirAddress, WeirCount, WeirDenied};
use crate::tables::{AT_XDP, COUNTERS, Loaded, Options};

/// Why a packet was not looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It was.
    LookedUp,
    /// Neither IPv4 nor IPv6.
    NotIp,
    /// Shorter than its header.
    TooShort,
    /// Packets without which the link itself would not work: 0.0.0.0, ::, fe80::/10, neighbour discovery, answers of DHCP. This
    /// may also count an answer from a class that may pass.
    LinkLocal,
    /// It belongs to a connection that is there already ([`Options::established_first`]).
    Established,
}

impl Reason {
    const ALL: [Reason; WEIR_REASONS as usize] =
        [Reason::LookedUp, Reason::NotIp, Reason::TooShort, Reason::LinkLocal, Reason::Established];
}

/// Packets and bytes, from the Ethernet header on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Count {
    fn plus(self, other: &Count) -> Count {
        Count { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

/// A source of packets that were refused or logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied {
    /// Its address.
    pub source: IpAddr,
    /// Packets that were sampled.
    pub packets: u64,
    /// When the last one came, CLOCK_MONOTONIC, ns.
    pub last_ns: u64,
    /// Its class.
    pub class: u32,
}

/// The counts of a filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// By direction, class and what was done with them (by the name of the action); those with none are left out.
    pub classes: Vec<(Direction, u32, &'static str, Count)>,
    /// By direction and reason, likewise.
    pub reasons: Vec<(Direction, Reason, Count)>,
    /// Sources of refused packets, those with most packets first.
    pub denied: Vec<Denied>,
    /// Counts of their events.
    pub events: Events,
}

/// The attachment point of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// At tc (TCX).
    Tc(Direction),
    /// At XDP, for what comes in.
    Xdp(XdpMode),
}

impl At {
    /// The program that belongs there.
    pub(crate) fn program(self) -> &'static str {
        match self {
            At::Tc(Direction::Ingress) => "allow_ingress",
            At::Tc(Direction::Egress) => "allow_egress",
            At::Xdp(_) => AT_XDP,
        }
    }

    /// Attaches a program there.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attach(self, program: &ProgramFd, interface: u32) -> weir_bpf::Result<Attached> {
        match self {
            At::Tc(Direction::Ingress) => attach_tcx(program, interface, Hook::Ingress),
            At::Tc(Direction::Egress) => attach_tcx(program, interface, Hook::Egress),
            At::Xdp(mode) => attach_xdp(program, interface, mode),
        }
    }
}

/// Counters of classes; those of reasons are behind them.
const CLASS_COUNTS: usize = WEIR_COUNTS as usize;

/// The programs in the kernel, with their tables. Dropping it detaches what it attached.
#[derive(Debug)]
pub struct Filter {
    pub(crate) kernel: Loaded,
    attached: Vec<(At, Attached)>,
}

impl Filter {
    /// Loads the programs with these lists: an address in no list has class 0, one in list `n` has class `n + 1`. `actions[c]` is
    /// the action on class `c`; packets of a class without one are dropped. One in `sample` refused packets is remembered with
    /// its source; 0: none.
    ///
    /// # Errors
    /// [`weir_bpf::Error::Missing`] without privilege, or where the kernel lacks something (it needs 6.0, TCX 6.6).
    pub fn load(tables: &Compiled, actions: &[Action], sample: u32) -> weir_bpf::Result<Self> {
        Filter::load_with(tables, actions, Options { sample, established_first: false })
    }

    /// As [`Filter::load`], with all options.
    ///
    /// # Errors
    /// As [`Filter::load`]; with [`Options::established_first`] also where the kernel has no connection tracking for BPF.
    pub fn load_with(tables: &Compiled, actions: &[Action], options: Options) -> weir_bpf::Result<Self> {
        Ok(Filter::of(Loaded::load(tables, actions, options, None)?))
    }

    /// Makes a filter of programs and tables that are in the kernel already.
    pub(crate) fn of(kernel: Loaded) -> Self {
        Filter { kernel, attached: Vec::new() }
    }

    /// Replaces the lists: it loads other programs with other tables, and replaces those that this value has attached, one
    /// attachment after the other. Every packet meets the old ones or the new ones. Counts and sampled sources are kept, and
    /// followers go on.
    ///
    /// # Errors
    /// If the kernel refuses: memory. The old lists stay then.
    pub fn swap(&mut self, tables: &Compiled, actions: &[Action]) -> weir_bpf::Result<()> {
        let other = Loaded::load(tables, actions, self.kernel.options, Some(&self.kernel))?;
        for (done, (at, attached)) in self.attached.iter().enumerate() {
            if let Err(e) = attached.replace(other.program(at.program())?) {
                for (at, attached) in &self.attached[..done] {
                    attached.replace(self.kernel.program(at.program())?)?;
                }
                return Err(e);
            }
        }
        self.kernel = other;
        Ok(())
    }

    /// Attaches it at tc (TCX) to the interface of that number in the calling thread's namespace.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attach(&mut self, interface: u32, direction: Direction) -> weir_bpf::Result<()> {
        let at = At::Tc(direction);
        self.attached.push((at, self.attach_apart(interface, at)?));
        Ok(())
    }

    /// Attaches it at XDP, for what comes in.
    ///
    /// # Errors
    /// If the driver has no XDP, or the kernel refuses.
    pub fn attach_xdp(&mut self, interface: u32, mode: XdpMode) -> weir_bpf::Result<()> {
        let at = At::Xdp(mode);
        self.attached.push((at, self.attach_apart(interface, at)?));
        Ok(())
    }

    /// Attaches it, and leaves it to the caller how long: to be pinned, say.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attach_apart(&self, interface: u32, at: At) -> weir_bpf::Result<Attached> {
        at.attach(self.program_at(at)?, interface)
    }

    /// Puts it into the place of another filter that is attached there, of whatever version: every packet meets one or the other.
    ///
    /// # Errors
    /// If the kernel refuses: ENOLINK where the interface is gone.
    pub fn replace(&self, attached: &Attached, at: At) -> weir_bpf::Result<()> {
        attached.replace(self.program_at(at)?)
    }

    /// The program that runs there when it is attached.
    ///
    /// # Errors
    /// If it has no program for that place.
    pub fn program_at(&self, at: At) -> weir_bpf::Result<&ProgramFd> {
        self.kernel.program(at.program())
    }

    /// Returns its counts so far.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn status(&self) -> weir_bpf::Result<Status> {
        let mut status = Status::default();
        for (at, count) in self.counts()? {
            let direction = |first_out| if at < first_out { Direction::Ingress } else { Direction::Egress };
            if let Some(reason) = at.checked_sub(CLASS_COUNTS) {
                let (direction, all) = (direction(CLASS_COUNTS + Reason::ALL.len()), Reason::ALL);
                status.reasons.push((direction, all[reason % all.len()], count));
            } else {
                let (direction, class) =
                    (direction(CLASS_COUNTS / 2), at / ACTIONS.len() % (CLASS_COUNTS / 2 / ACTIONS.len()));
                status.classes.push((direction, class as u32, ACTIONS[at % ACTIONS.len()], count));
            }
        }
        for direction in [Direction::Ingress, Direction::Egress] {
            let of_it = status.classes.iter().filter(|c| c.0 == direction);
            let looked_up = of_it.fold(Count::default(), |sum, c| sum.plus(&c.3));
            if looked_up.packets > 0 {
                status.reasons.push((direction, Reason::LookedUp, looked_up));
            }
        }
        status.reasons.sort_by_key(|r| (r.0 == Direction::Egress, r.1));
        for (address, denied) in self.kernel.map("denied")?.all::<WeirAddress, WeirDenied>()? {
            let source = address_of(&address);
            let WeirDenied { packets, last_ns, class_number } = denied;
            status.denied.push(Denied { source, packets, last_ns, class: class_number as u32 });
        }
        status.denied.sort_by_key(|d| std::cmp::Reverse(d.packets));
        status.events = Events::of(&self.kernel)?;
        Ok(status)
    }

    /// Has the programs tell of each packet that is refused or logged and sampled ([`Options::sample`]), and reads that. One
    /// at a time: see [`weir_bpf::Ring`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn follow(&self) -> weir_bpf::Result<Follower> {
        Follower::of(&self.kernel)
    }

    /// Counters that are not zero, summed over the cores: first those of classes.
    fn counts(&self) -> weir_bpf::Result<Vec<(usize, Count)>> {
        let counters = self.kernel.counters()?;
        let of_a_core = |at| (at..counters.len()).step_by(COUNTERS).map(|at| counters.get(at));
        let sum = |at| {
            of_a_core(at).fold(Count::default(), |sum, WeirCount { packets, bytes }| {
                sum.plus(&Count { packets, bytes })
            })
        };
        Ok((0..COUNTERS).map(|at| (at, sum(at))).filter(|(_, count)| count.packets > 0).collect())
    }

    /// Whether a packet from there would be thrown away, asked of the program itself. It is counted like any other.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn drops(&self, source: IpAddr) -> weir_bpf::Result<bool> {
        let run = self.run(At::Tc(Direction::Ingress), &crate::probe::frame_from(source), 1)?;
        Ok(run.verdict == crate::probe::SHOT)
    }

    /// Runs a program `repeat` times on a packet that begins with its Ethernet header; nothing is sent.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn run(&self, at: At, packet: &[u8], repeat: u32) -> weir_bpf::Result<TestRun> {
        test_run(self.program_at(at)?, packet, 0, repeat)
    }

    /// Begins counting anew.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forget_counts(&self) -> weir_bpf::Result<()> {
        let counters = self.kernel.counters()?;
        // Only what is not zero: the programs write there, too.
        for at in (0..counters.len()).filter(|at| counters.get(*at).packets > 0) {
            counters.set(at, WeirCount { packets: 0, bytes: 0 });
        }
        let denied = self.kernel.map("denied")?;
        denied.all::<WeirAddress, WeirDenied>()?.iter().try_for_each(|(address, _)| denied.remove(address))
    }

    /// Memory of all its tables, as the kernel counts it, bytes.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn memory_bytes(&self) -> weir_bpf::Result<u64> {
        self.kernel.memory_bytes()
    }

    /// A program by its name, to be run on given packets.
    #[cfg(test)]
    pub(crate) fn program(&self, name: &str) -> &ProgramFd {
        self.kernel.program(name).unwrap()
    }
}
