//! Counting what arrives, frame by frame: the same rules as those of the XDP receiver (`bpf/receiver.bpf.c`), for receivers in user
//! space.
//!
//! Every frame that has the form of ours is exactly one of: of this transfer and new, a duplicate, too late to tell, mistranslated, or
//! of another transfer.

use crate::Error;
use crate::frame::{self, Captured, Marked};
use crate::shared::{WEIR_SEQ_BITS, WEIR_STREAMS};
use crate::state::StateTable;
use crate::transfer::{Family, Link, Received, Sending, Way, address_after};

/// How many numbers of a stream the receiver remembers, a power of two. A frame may arrive up to this many others late and still
/// be distinguished from a duplicate. Equal to the window of the XDP receiver.
const REMEMBERED: u64 = 1 << 21;

/// Numbers of a stream are counted from here, so that the first one seen may be a reordered one.
const ORIGIN: u64 = 1 << 40;

/// Numbers in the frames of a stream are modulo this.
const CIRCLE: u64 = 1 << WEIR_SEQ_BITS;

/// Classification of a received number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// Greater than all before it.
    InOrder,
    /// Smaller than one before it, and new (RFC 4737 section 3.3).
    Reordered,
    /// It was there before (RFC 5560).
    Duplicate,
    /// So far behind that nothing is known of it.
    Late,
}

/// Numbers seen of one sending thread.
#[derive(Debug, Default)]
struct Stream {
    /// Bit n % REMEMBERED: number n was seen, for `highest - REMEMBERED < n <= highest`. Empty until the first comes.
    seen: Vec<u64>,
    highest: u64,
}

impl Stream {
    /// Takes note of a number, which is compared with the highest one as RFC 1982 does: it is the one less than half the circle away.
    #[inline]
    fn arrive(&mut self, number: u64) -> Arrival {
        if self.seen.is_empty() {
            self.seen = vec![0; (REMEMBERED / 64) as usize];
            self.highest = ORIGIN + number;
            self.set(self.highest);
            return Arrival::InOrder;
        }
        let ahead = number.wrapping_sub(self.highest) % CIRCLE;
        if ahead != 0 && ahead < CIRCLE / 2 {
            self.advance(self.highest + ahead);
            return Arrival::InOrder;
        }
        let behind = (CIRCLE - ahead) % CIRCLE;
        if behind >= REMEMBERED {
            return Arrival::Late;
        }
        if self.set(self.highest - behind) { Arrival::Reordered } else { Arrival::Duplicate }
    }

    /// True if it was new.
    #[inline]
    fn set(&mut self, number: u64) -> bool {
        let index = number % REMEMBERED;
        let (word, bit) = (&mut self.seen[(index / 64) as usize], 1 << (index % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// The numbers up to this one come into what is remembered, all but it unseen.
    #[inline]
    fn advance(&mut self, number: u64) {
        if number - self.highest >= REMEMBERED {
            self.seen.fill(0);
        } else {
            self.clear(self.highest + 1, number);
        }
        self.highest = number;
        self.set(number);
    }

    /// The numbers `from..=until` are unseen, a word at a time where they fill one.
    #[inline]
    fn clear(&mut self, mut from: u64, until: u64) {
        while from <= until {
            let (bit, left) = (from % 64, until - from + 1);
            let bits = left.min(64 - bit);
            let mask = if bits == 64 { u64::MAX } else { ((1 << bits) - 1) << bit };
            self.seen[(from % REMEMBERED / 64) as usize] &= !mask;
            from += bits;
        }
    }
}

/// The expected transfer.
#[derive(Debug)]
struct Expected {
    cookie: u32,
    /// Cookie of the previous transfer, to recognise its stragglers.
    stale: Option<u32>,
    sending: Sending,
}

/// A receiver's counts and its state table.
#[derive(Debug)]
pub(crate) struct Tally {
    link: Link,
    expected: Option<Expected>,
    /// Cookie of the last transfer.
    cookie: Option<u32>,
    streams: Vec<Stream>,
    received: Received,
    first_ns: u64,
    state: StateTable,
}

impl Tally {
    /// For the end of a link; expects nothing.
    pub(crate) fn new(link: &Link) -> Self {
        Tally {
            link: link.clone(),
            expected: None,
            cookie: None,
            streams: Vec::new(),
            received: Received::default(),
            first_ns: 0,
            state: StateTable::new(link.address, 0),
        }
    }

    /// From now on counts the frames of this transfer, from zero; `None` counts none. `forget` empties the state table.
    ///
    /// # Errors
    /// [`Error::Unfit`] for frames of another family than the link's address, or for tuples without any.
    pub(crate) fn expect(
        &mut self,
        cookie: u32,
        incoming: Option<&Sending>,
        forget: bool,
    ) -> Result<(), Error> {
        if let Some(sending) = incoming {
            let family = if self.link.address.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
            if sending.frame.family != family {
                return Err(Error::Unfit(format!(
                    "the frames to come are of another address family than {}",
                    self.link.address
                )));
            }
            let tuples = &sending.tuples;
            if tuples.flows == 0 || tuples.source_ports.is_empty() || tuples.destination_ports.is_empty() {
                return Err(Error::Unfit("a transfer has at least one flow and one port at each end".into()));
            }
        }
        let flows = if forget { 0 } else { self.received.flows };
        if forget {
            self.state.forget();
        }
        self.received = Received { flows, ..Received::default() };
        self.first_ns = 0;
        self.streams.clear();
        let Some(sending) = incoming else {
            self.expected = None;
            return Ok(());
        };
        if sending.tuples.flows > self.state.room() {
            let mut larger = StateTable::new(self.link.address, sending.tuples.flows);
            larger.take_over(&self.state);
            self.state = larger;
        }
        self.streams.resize_with(WEIR_STREAMS as usize, Stream::default);
        let stale = self.cookie.replace(cookie).filter(|stale| *stale != cookie);
        self.expected = Some(Expected { cookie, stale, sending: sending.clone() });
        Ok(())
    }

    /// Counts a frame of `length` bytes (without check sequence) of which `head` is the beginning, taken in at `at_ns` of
    /// CLOCK_MONOTONIC.
    #[inline]
    pub(crate) fn arrive(&mut self, head: &[u8], length: usize, at_ns: u64) {
        let Some(expected) = &self.expected else { return };
        let sending = &expected.sending;
        let Some(Captured { marked, bytes }) = frame::read_captured(head, length) else { return };
        if marked.protocol != sending.frame.protocol || marked.source.is_ipv4() != self.link.address.is_ipv4()
        {
            return;
        }
        let right_length = bytes == usize::from(sending.frame.bytes);
        if !marked.is_of(expected.cookie) {
            let stale = expected.stale.is_some_and(|cookie| marked.is_of(cookie));
            let for_us = stale || marked.destination == self.link.address;
            self.received.foreign += u64::from(right_length && for_us);
            return;
        }
        if !right_length || !has_its_flow(&self.link, sending, &marked) {
            self.received.mistranslated += 1;
            return;
        }
        let (stream, number) = (marked.tag.seq >> WEIR_SEQ_BITS, u64::from(marked.tag.seq) % CIRCLE);
        match self.streams[stream as usize].arrive(number) {
            Arrival::InOrder => {}
            Arrival::Reordered => self.received.reordered += 1,
            Arrival::Duplicate => {
                self.received.duplicated += 1;
                return;
            }
            Arrival::Late => {
                self.received.late += 1;
                return;
            }
        }
        self.count(&marked, at_ns);
    }

    /// Counts a frame that is new.
    #[inline]
    fn count(&mut self, marked: &Marked, at_ns: u64) {
        let tag = &marked.tag;
        let new = self.state.learn(tag.flow, marked.source, marked.source_port, marked.destination_port);
        let received = &mut self.received;
        received.flows += u64::from(new);
        if received.frames == 0 {
            self.first_ns = at_ns;
        }
        received.frames += 1;
        received.duration_ns = received.duration_ns.max(at_ns.saturating_sub(self.first_ns));
        if tag.sent_ns != 0 {
            // Both times are modulo 2^32 ns, so delays up to 4.29 s are what they seem.
            received.delay.record(u64::from((at_ns as u32).wrapping_sub(tag.sent_ns)));
        }
    }

    /// Returns the counts of the expected transfer so far; empty if none is expected.
    pub(crate) fn received(&self) -> Received {
        let Some(expected) = &self.expected else { return Received::default() };
        let source = match self.link.way {
            _ if self.received.frames == 0 => None,
            // Ingress frames leave from here: egress frames come in, from where the gateway chose.
            Way::Ingress => self.state.main_source(expected.sending.tuples.flows),
            Way::Egress => Some(self.link.target),
        };
        Received { source, ..self.received.clone() }
    }

    /// Returns the observed source of each flow.
    pub(crate) fn learnt(&self) -> &StateTable {
        &self.state
    }
}

/// Checks the addresses and ports of a frame against its flow. At the responder, the frame must go to its address and the flow's
/// destination port. The gateway chooses the source, but port 0 is invalid because it cannot be answered. At the initiator, the
/// frame must come from the flow's destination and go to the flow's source.
#[inline]
fn has_its_flow(link: &Link, sending: &Sending, marked: &Marked) -> bool {
    let flow = marked.tag.flow;
    if flow >= sending.tuples.flows {
        return false;
    }
    let (source_port, destination_port, host) = sending.tuples.flow(flow);
    match link.way {
        Way::Ingress => {
            marked.source_port != 0
                && marked.destination_port == destination_port
                && marked.destination == link.address
        }
        Way::Egress => {
            marked.source == link.target
                && marked.source_port == destination_port
                && marked.destination == address_after(link.address, host)
                && marked.destination_port == source_port
        }
    }
}

#[cfg(test)]
mod tests;
