//! Counting what arrives by an XDP program (`bpf/receiver.bpf.c`), before the stack has spent anything on it.
//!
//! The program counts the frames of one transfer and drops them; everything else (ARP, neighbour discovery, ICMP, traffic of
//! others) goes on to the stack. It is attached no longer than the [`XdpReceiver`] lives, also if the process is killed.
//!
//! Why in the driver: frames that come from a direct link then need no socket buffer at all, and behind a routed gateway, whose
//! core does the receiver's work in the lab, it costs least although veth makes an XDP frame out of a socket buffer first.
//! All CPU time per 64-byte frame from a live-frame sender through the lab's routed gateway (Linux 6.18, 12 runs in turn on
//! a busy 2-core VM, lower quartile) with a program at the far end that only counts and drops: XDP in the driver 442 ns,
//! TCX 464 ns (465 with GRO on), generic XDP 482 ns. With this receiver: 469 ns in the driver, 510 ns generic.
//!
//! The receiver adds some 25 ns to the cost of dropping, mostly for the window's atomic operation and the flow's ports (two
//! divisions). Reading the clock would add 35 ns, so not every frame is timed. The first frame of each of a million flows costs
//! another 120 ns, since its place in the state table is in no cache.

use std::net::IpAddr;
use std::sync::atomic::{Ordering, fence};

use weir_bpf::{Attached, Loader, Mapped, Object, Plain, ProgramFd, XdpMode, attach_xdp, possible_cpus};
use weir_stats::Histogram;

use crate::Error;
use crate::frame::CHECK_SEQUENCE;
use crate::shared::{self, WeirArrivals, WeirBoard, WeirExpect, WeirProgress, WeirSeen4, WeirSeen6};
use crate::state::{StateTable, words6};
use crate::transfer::{Family, Link, Protocol, Received, Sending, Way};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/receiver.bpf.z"));

/// Flows that there is room for from the start: 512 KiB with IPv4. More is made when it is needed, and stays.
const ROOM: u32 = 1 << 16;
/// Epochs have 25 bits: the bits of a window word that the lap and the frames do not use.
const EPOCHS: u32 = 1 << (32 - shared::WEIR_LAP_BITS);
/// Bytes of an Ethernet header.
const ETHERNET: u16 = 14;

/// A receiver on one interface.
#[derive(Debug)]
pub struct XdpReceiver {
    link: Link,
    program: Loaded,
    attached: Attached,
    /// How it is attached, in words.
    how: String,
    /// Number of the last expectation.
    epoch: u32,
    /// Cookie of the last transfer.
    cookie: Option<u32>,
    /// Flows of the transfer that is expected; `None` while none is.
    flows: Option<u32>,
    reflect: bool,
}

/// A loaded program with its memory.
#[derive(Debug)]
struct Loaded {
    program: ProgramFd,
    board: Mapped<WeirBoard>,
    progress: Mapped<WeirProgress>,
    arrivals: Mapped<WeirArrivals>,
    delays: Mapped<u64>,
    state: StateTable,
}

impl XdpReceiver {
    /// Attaches the program to the interface of that index, which is `link`'s, in the calling thread's namespace: in the driver, or
    /// where that has no XDP, in the stack. Until something is expected it passes everything on.
    ///
    /// # Errors
    /// [`Error::Bpf`] if the privilege or XDP is missing, or another XDP program is attached.
    pub fn open(interface: u32, link: &Link) -> Result<Self, Error> {
        let program = Loaded::new(link.address, ROOM)?;
        let (attached, how) = match attach_xdp(&program.program, interface, XdpMode::Native) {
            Ok(attached) => (attached, "XDP in the driver".to_owned()),
            // The stack may accept a program that the driver refuses. If both refuse, the error is the driver's.
            Err(native) => match attach_xdp(&program.program, interface, XdpMode::Generic) {
                Ok(attached) => (attached, format!("generic XDP, which costs more ({native})")),
                Err(_) => return Err(native.into()),
            },
        };
        let link = link.clone();
        Ok(XdpReceiver { link, program, attached, how, epoch: 0, cookie: None, flows: None, reflect: false })
    }

    /// How it is attached.
    pub fn describe(&self) -> &str {
        &self.how
    }

    /// From the next [`XdpReceiver::expect`] on, stamped frames are sent back where they came from (after they were counted), so that
    /// the sender's own receiver measures round trips with one clock: it expects the same sending with the same cookie, and
    /// what it measures as delay is then the round trip.
    pub fn reflect(&mut self, on: bool) {
        self.reflect = on;
    }

    /// From now on counts the frames of this transfer, from zero; `None` counts none. `forget` empties the state table, else it
    /// is kept for the flows of the same numbers.
    ///
    /// # Errors
    /// [`Error::Unfit`] if the other side cannot send this; [`Error::Bpf`] if there is no memory for as many flows.
    pub fn expect(&mut self, cookie: u32, incoming: Option<&Sending>, forget: bool) -> Result<(), Error> {
        let expectation = incoming.map(|sending| self.expectation(cookie, sending)).transpose()?;
        self.put_in_force(WeirExpect::zeroed());
        self.flows = None;
        if forget {
            self.program.state.forget();
            self.program.progress.set(0, WeirProgress::zeroed());
        }
        let Some(mut expectation) = expectation else { return Ok(()) };
        if expectation.flows > self.program.state.room() {
            self.grow(expectation.flows)?;
        }
        // Epochs alternate between even and odd, which is what chooses the counters, so 2 follows on the last, which is odd.
        self.epoch = if self.epoch + 1 < EPOCHS { self.epoch + 1 } else { 2 };
        expectation.epoch = self.epoch;
        for set in self.program.sets(self.epoch) {
            self.program.arrivals.set(set, WeirArrivals::zeroed());
            for bucket in buckets(set) {
                self.program.delays.set(bucket, 0);
            }
        }
        self.put_in_force(expectation);
        self.cookie = Some(cookie);
        self.flows = Some(expectation.flows);
        Ok(())
    }

    /// Returns the counts of the expected transfer so far; empty if none is expected.
    pub fn received(&self) -> Received {
        let Some(flows) = self.flows else { return Received::default() };
        let (mut received, mut first_ns, mut last_ns) = (Received::default(), u64::MAX, 0);
        for set in self.program.sets(self.epoch) {
            let core = self.program.arrivals.get(set);
            let count = |what: u64| core.frames[what as usize];
            received.frames += count(shared::WEIR_COUNTED) + count(shared::WEIR_REFLECTED);
            received.duplicated += count(shared::WEIR_DUPLICATED);
            received.reordered += core.reordered;
            received.late += count(shared::WEIR_LATE);
            received.mistranslated += count(shared::WEIR_MISTRANSLATED);
            received.foreign += count(shared::WEIR_FOREIGN) + count(shared::WEIR_STALE);
            if core.first_ns != 0 {
                first_ns = first_ns.min(core.first_ns);
                last_ns = last_ns.max(core.last_ns);
            }
            self.program.delays_into(set, &mut received.delay);
        }
        received.flows = self.program.progress.get(0).flows;
        received.duration_ns = last_ns.saturating_sub(first_ns);
        received.source = match self.incoming() {
            _ if received.frames == 0 => None,
            Way::Egress => self.program.state.main_source(flows),
            Way::Ingress => Some(self.link.target),
        };
        received
    }

    /// Returns the observed source of each flow.
    pub fn learnt(&self) -> &StateTable {
        &self.program.state
    }

    /// The program, to run it on given packets: what it does with them is counted.
    pub fn program(&self) -> &ProgramFd {
        &self.program.program
    }

    /// The way of the frames that come in here.
    fn incoming(&self) -> Way {
        match self.link.way {
            Way::Egress => Way::Ingress,
            Way::Ingress => Way::Egress,
        }
    }

    fn expectation(&self, cookie: u32, sending: &Sending) -> Result<WeirExpect, Error> {
        let unfit = |what: &str| Err(Error::Unfit(what.to_owned()));
        let (frame, tuples) = (sending.frame, &sending.tuples);
        let least = match (frame.family, self.link.address) {
            (Family::Ipv4, IpAddr::V4(_)) => crate::frame::LEAST_IPV4,
            (Family::Ipv6, IpAddr::V6(_)) => crate::frame::LEAST_IPV6,
            _ => return unfit("the frames to come are of another address family than the link's address"),
        };
        if !(least..=crate::frame::GREATEST).contains(&frame.bytes) {
            return unfit("the frames to come have a length that none of ours has");
        }
        if tuples.flows == 0 || tuples.source_ports.is_empty() || tuples.destination_ports.is_empty() {
            return unfit("a transfer has at least one flow, source port and destination port");
        }
        let count = |ports: &std::ops::RangeInclusive<u16>| u32::from(ports.end() - ports.start()) + 1;
        Ok(WeirExpect {
            epoch: 0,
            cookie: cookie.to_be(),
            stale: self.cookie.unwrap_or(cookie).to_be(),
            ip_bytes: frame.bytes - CHECK_SEQUENCE as u16 - ETHERNET,
            protocol: match frame.protocol {
                Protocol::Udp => 17,
                Protocol::TcpSyn => 6,
            },
            ingress: u8::from(self.incoming() == Way::Ingress),
            reflect: u8::from(self.reflect),
            pad: [0; 3],
            flows: tuples.flows,
            source_ports: count(&tuples.source_ports),
            destination_ports: count(&tuples.destination_ports),
            first_source_port: *tuples.source_ports.start(),
            first_destination_port: *tuples.destination_ports.start(),
            own: words(self.link.address),
            target: words(self.link.target),
        })
    }

    /// Fills in the next place, and only then makes it the one that counts.
    fn put_in_force(&mut self, expectation: WeirExpect) {
        let mut board = self.program.board.get(0);
        let next = (board.current + 1) % shared::WEIR_EXPECTS as u32;
        board.expects[next as usize] = expectation;
        self.program.board.set(0, board);
        fence(Ordering::SeqCst);
        board.current = next;
        self.program.board.set(0, board);
        fence(Ordering::SeqCst);
    }

    /// Loads the program again with more room, and lets it take the place of the one that is attached. Nothing is in force now.
    fn grow(&mut self, flows: u32) -> Result<(), Error> {
        let mut larger = Loaded::new(self.link.address, flows)?;
        larger.state.take_over(&self.program.state);
        larger
            .progress
            .set(0, WeirProgress { flows: self.program.progress.get(0).flows, ..WeirProgress::zeroed() });
        self.attached.replace(&larger.program)?;
        self.program = larger;
        Ok(())
    }
}

impl Loaded {
    fn new(address: IpAddr, flows: u32) -> Result<Self, Error> {
        let mut loader = Loader::unpack("receiver", OBJECT)?;
        let sets = 2 * possible_cpus() as u32;
        let (program, other, table) = match address {
            IpAddr::V4(_) => ("receive4", "receive6", "seen4"),
            IpAddr::V6(_) => ("receive6", "receive4", "seen6"),
        };
        loader.without(other)?;
        loader.entries(table, flows)?;
        loader.entries("arrivals", sets)?;
        loader.entries("delays", sets * shared::WEIR_DELAY_BUCKETS as u32)?;
        let object: Object = loader.load()?;
        let state = match address {
            IpAddr::V4(_) => StateTable::of_kernel4(address, object.map(table)?.share::<WeirSeen4>()?),
            IpAddr::V6(_) => StateTable::of_kernel6(address, object.map(table)?.share::<WeirSeen6>()?),
        };
        Ok(Loaded {
            program: object.program(program)?,
            board: object.map(".data.board")?.share()?,
            progress: object.map(".data.progress")?.share()?,
            arrivals: object.map("arrivals")?.share()?,
            delays: object.map("delays")?.share()?,
            state,
        })
    }

    /// Sets of counters of an epoch: one for each core.
    fn sets(&self, epoch: u32) -> impl Iterator<Item = usize> + use<> {
        (0..self.arrivals.len()).skip(epoch as usize & 1).step_by(2)
    }

    fn delays_into(&self, set: usize, histogram: &mut Histogram) {
        for (bucket, index) in buckets(set).enumerate() {
            let count = self.delays.get(index);
            if count > 0 {
                histogram.record_n(middle_ns(bucket as u32), count);
            }
        }
    }
}

/// Returns the index range of a set's buckets.
fn buckets(set: usize) -> std::ops::Range<usize> {
    let each = shared::WEIR_DELAY_BUCKETS as usize;
    set * each..(set + 1) * each
}

/// The delay in the middle of a bucket, ns (see `bpf/delay.h`): at most 0.4 % from any that is counted there.
fn middle_ns(bucket: u32) -> u64 {
    let each = 1 << shared::WEIR_DELAY_BITS;
    if bucket < 2 * each {
        return bucket.into();
    }
    let shift = bucket / each - 1;
    let first = u64::from(bucket - shift * each) << shift;
    first + (1 << shift) / 2
}

/// An address as it lies in a frame, in as many words as IPv6 needs.
fn words(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(address) => [u32::from_ne_bytes(address.octets()), 0, 0, 0],
        IpAddr::V6(address) => words6(address),
    }
}
