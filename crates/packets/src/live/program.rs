//! One loaded generator: a program, its deck and its state. Each sending thread has its own, so nothing is shared between cores.

use std::net::IpAddr;

use weir_bpf::{LiveFrames, Loader, Mapped, Object, Plain, ProgramFd};

use crate::Error;
use crate::flow_order::Tuple;
use crate::frame::Template;
use crate::shared::{self, WeirGenerator, WeirSender, WeirSlice, WeirTuple4, WeirTuple6};
use crate::state::words6;
use crate::transfer::{Family, Inject, Protocol};

/// The object that `cargo build` made of `bpf/generator.bpf.c`.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/generator.bpf.z"));

/// Actions of XDP on a frame (`enum xdp_action`, include/uapi/linux/bpf.h).
const PASS: u32 = 2;
const TX: u32 = 3;

/// Parameters that cannot change while the program is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Make {
    /// All that frames have in common.
    pub template: Template,
    /// Interface that they leave or enter by.
    pub interface: u32,
    /// Which of both.
    pub inject: Inject,
    /// By a schedule.
    pub paced: bool,
    /// Runs that make one batch (1 to 256).
    pub batch: u32,
    /// Interface of the reference router, to which two batches go now and then; `None`: none do.
    pub reference: Option<u32>,
}

/// A generator ready to run.
#[derive(Debug)]
pub struct Program {
    // Keeps the maps.
    _object: Object,
    program: ProgramFd,
    sender: Mapped<WeirSender>,
    slices: Mapped<WeirSlice>,
    make: Make,
}

impl Program {
    /// Loads it with these flows, which must be of the template's family.
    ///
    /// # Errors
    /// [`Error::Bpf`] if the kernel refuses; [`Error::Unfit`] for a tuple of another family.
    pub fn load(make: Make, flows: &[(u32, Tuple)]) -> Result<Self, Error> {
        let frame = make.template.frame();
        let length = u32::try_from(flows.len()).ok().filter(|length| *length > 0);
        let length = length.ok_or_else(|| Error::Unfit(format!("an order of {} flows", flows.len())))?;
        let (name, other, deck) = match frame.family {
            Family::Ipv4 => ("generate4", "generate6", "deck4"),
            Family::Ipv6 => ("generate6", "generate4", "deck6"),
        };
        let mut loader = Loader::unpack("generator", OBJECT)?;
        loader.config(&configuration(&make, length))?;
        loader.entries(deck, length)?;
        loader.without(other)?;
        let object = loader.load()?;
        let (program, sender) = (object.program(name)?, object.map("sender")?.share()?);
        let slices = object.map("slices")?.share()?;
        let map = object.map(deck)?;
        match frame.family {
            Family::Ipv4 => fill(&map.share()?, flows, tuple4)?,
            Family::Ipv6 => fill(&map.share()?, flows, tuple6)?,
        }
        Ok(Program { _object: object, program, sender, slices, make })
    }

    /// Returns the parameters that it was loaded with.
    pub fn make(&self) -> &Make {
        &self.make
    }

    /// The loaded program, for running it on single packets.
    pub fn fd(&self) -> &ProgramFd {
        &self.program
    }

    /// The state before the first frame of a transfer with that cookie. It allows no frame until its bounds are set.
    pub fn fresh(&self, cookie: u32) -> WeirSender {
        let mut state = WeirSender::zeroed();
        state.cookie = cookie.to_be();
        let sum = self.make.template.transport_sum();
        state.sum = native(match self.make.template.frame().protocol {
            Protocol::Udp => sum.bytes(&cookie.to_be_bytes()),
            // The window is the lower half.
            Protocol::TcpSyn => sum.word(cookie as u16),
        });
        state
    }

    /// Its state, as the last call left it.
    pub fn state(&self) -> WeirSender {
        self.sender.get(0)
    }

    /// Replaces its state. No thread may be in [`Self::run`].
    pub fn set_state(&self, state: WeirSender) {
        self.sender.set(0, state);
    }

    /// The slices of the last transfer, if there is a reference.
    pub fn slices(&self) -> Vec<WeirSlice> {
        let count = (self.state().slices as usize).min(self.slices.len());
        (0..count).map(|index| self.slices.get(index)).collect()
    }

    /// Runs it that often on the calling thread's core; a signal ends that early.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn run(&self, repeat: u32) -> Result<(), Error> {
        let live = LiveFrames {
            program: &self.program,
            packet: self.make.template.bytes(),
            ingress: self.make.interface,
        };
        match live.run(repeat, self.make.batch) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => Ok(()),
            other => Ok(other?),
        }
    }
}

fn configuration(make: &Make, deck: u32) -> WeirGenerator {
    let mut config = WeirGenerator::zeroed();
    let bytes = make.template.bytes();
    let length = bytes.len().min(config.head.len());
    config.head[..length].copy_from_slice(&bytes[..length]);
    // To a veth and on to a program that drops there, a frame took 65.5 ns by XDP_TX, 66.8 ns by bpf_redirect and 66.7 ns by
    // bpf_redirect_map (Linux 6.18, medians).
    config.verdict = match make.inject {
        Inject::Wire => TX,
        Inject::Gateway => PASS,
    };
    config.tcp = u32::from(make.template.frame().protocol == Protocol::TcpSyn);
    config.paced = u32::from(make.paced);
    config.deck = deck;
    config.batch = make.batch;
    // No interface has the number 0.
    config.reference = make.reference.unwrap_or(0);
    config.ip_sum = native(make.template.network_sum());
    config
}

/// A sum as the program adds it up: of words as they lie in memory (RFC 1071 section 2 (B): the order of bytes does not matter).
fn native(sum: weir_wire::Sum) -> u32 {
    u32::from(sum.folded().to_be())
}

fn fill<T: Plain>(
    deck: &Mapped<T>,
    flows: &[(u32, Tuple)],
    as_on_wire: impl Fn(u32, &Tuple) -> Option<T>,
) -> Result<(), Error> {
    for (index, (flow, tuple)) in flows.iter().enumerate() {
        let value = as_on_wire(*flow, tuple).ok_or_else(|| {
            let Tuple { source, destination, .. } = tuple;
            Error::Unfit(format!(
                "flow {flow} from {source} to {destination} is not of the frames' IP version"
            ))
        })?;
        deck.set(index, value);
    }
    Ok(())
}

fn ports(tuple: &Tuple) -> [u16; 2] {
    [tuple.source_port.to_be(), tuple.destination_port.to_be()]
}

fn tuple4(flow: u32, tuple: &Tuple) -> Option<WeirTuple4> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (tuple.source, tuple.destination) else {
        return None;
    };
    Some(WeirTuple4 {
        source: source.to_bits().to_be(),
        destination: destination.to_bits().to_be(),
        ports: ports(tuple),
        flow: flow.to_be(),
    })
}

fn tuple6(flow: u32, tuple: &Tuple) -> Option<WeirTuple6> {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (tuple.source, tuple.destination) else {
        return None;
    };
    Some(WeirTuple6 {
        source: words6(source),
        destination: words6(destination),
        ports: ports(tuple),
        flow: flow.to_be(),
    })
}

/// How often the program ended in a verdict.
pub(super) fn count(state: &WeirSender, verdict: u64) -> u64 {
    state.counts[verdict as usize]
}

/// True if the program said that the transfer is over.
pub(super) fn is_over(state: &WeirSender) -> bool {
    [shared::WEIR_ALL_SENT, shared::WEIR_TIME_UP, shared::WEIR_UNFIT].contains(&u64::from(state.closed))
}
