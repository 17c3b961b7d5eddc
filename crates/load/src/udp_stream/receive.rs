//! The receiving end of one stream.

use std::collections::BTreeMap;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use weir_sys::clock::{Clocks, NS_PER_S, now_ns};

use super::UdpStream;
use super::datagram::{
    Flow, GREETING_BYTES, HEADER_BYTES, Header, Word, greeting, is_control, read_greeting,
};
use super::meter::{Counts, Meter};
use crate::Error;
use crate::mmsg::ReceiveBatch;
use crate::observer::Flow as Told;
use crate::pace::Ending;
use crate::socket::{set_int, set_receive_buffer, timed_out};
use crate::streams::by_path;
use crate::window::{CpuMeter, Phase, Window, nanos};

/// How long a call may block before the loop looks at the stop flag again.
pub(super) const LOOK: Duration = Duration::from_millis(40);

/// How long a window that has begun may go on when the other end is done: it began later by the path's delay, or because the first
/// datagrams were lost.
const LAST: Duration = Duration::from_millis(500);

/// After the window, late datagrams are waited for this long. More than any reordering within one path.
const DRAIN: Duration = Duration::from_millis(200);

/// Datagrams per recvmmsg(2).
const BATCH: usize = 64;

/// Pause after a call that took all there was. The times of arrival are the kernel's, so reading late costs nothing, while a
/// receiver that waits for each datagram makes the path's softirq wake it up for each: in trials a tenth and more of the
/// rate. The default buffer holds what comes in hundreds of such pauses.
const NAP: Duration = Duration::from_micros(500);

/// Bytes kept of each datagram.
const HEAD_BYTES: usize = 32;
const _: () = assert!(HEAD_BYTES >= HEADER_BYTES && HEAD_BYTES > GREETING_BYTES);

/// The results of a stream's receiving end.
#[derive(Debug)]
pub(super) struct Received {
    /// Number of the flow in its direction.
    pub stream: u32,
    /// Datagrams that were due in the window before the flow's greeting was answered.
    pub missed: u64,
    pub counts: Counts,
    /// Datagrams of other flows, none of ours, or ours that are not as long as they were sent.
    pub strangers: u64,
    /// Controls that came, by their payload in bytes.
    pub controls: BTreeMap<u32, u32>,
    /// Receive buffer that was wanted and the one that was given, bytes.
    pub buffer: (u32, u32),
    pub cpu_s: f64,
    /// The window was not over when the user stopped it.
    pub cut_short: bool,
}

/// Prepare a socket so that nothing is lost in it and nothing goes unseen. Returns wanted and given buffer.
pub(super) fn prepare(work: &UdpStream, socket: &UdpSocket) -> io::Result<(u32, u32)> {
    socket.set_read_timeout(Some(LOOK))?;
    // The times of arrival are the kernel's: how late this thread wakes up is not the path's doing.
    set_int(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    set_int(socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
    let wanted = work.receive_buffer_bytes / work.streams;
    Ok((wanted, set_receive_buffer(socket, wanted)?))
}

/// The counts of received datagrams so far.
struct Books<'a> {
    work: &'a UdpStream,
    flow: Flow,
    window: &'a Window,
    meter: Meter,
    /// Whether a datagram of this flow came.
    heard: bool,
    strangers: u64,
    controls: BTreeMap<u32, u32>,
}

impl Books<'_> {
    /// Enter what a call took. Returns up to when everything that arrived has been read.
    fn enter(
        &mut self,
        socket: &UdpSocket,
        batch: &ReceiveBatch,
        full: bool,
        clocks: &Clocks,
        told: &Told,
    ) -> u64 {
        let now = clocks.monotonic_ns;
        let mark = self.flow.mark();
        let mut read_until = now;
        for d in batch.datagrams() {
            // A datagram without a time arrives when it is read; none does later.
            let arrived = d.arrived_ns.map_or(now, |t| clocks.monotonic(t).min(now));
            match Header::read(d.head) {
                Some(header) if header.mark == mark && self.work.is_whole(d.length) => {
                    self.window.begin(arrived);
                    self.heard = true;
                    self.meter.enter(self.window.phase(arrived));
                    self.meter.arrive(header, d.length, arrived, d.dropped);
                    told.bytes.add(d.length as u64);
                    if full {
                        read_until = arrived;
                    }
                }
                _ if read_greeting(d.head) == Some((Word::Hello, self.flow)) => {
                    reply(socket, Word::Ready, self.flow)
                }
                _ if is_control(d.head, self.flow) => {
                    *self.controls.entry(d.length as u32).or_default() += 1;
                }
                _ => self.strangers += 1,
            }
        }
        read_until
    }
}

/// Receive until window and drain are over. `asks` is sent now and then until the flow's first datagram comes: the initiator's
/// go, where the responder is the sender.
#[expect(clippy::too_many_arguments, reason = "what a thread of either end knows of its flow")]
pub(super) fn receive(
    work: &UdpStream,
    socket: &UdpSocket,
    flow: Flow,
    buffer: (u32, u32),
    asks: Option<Word>,
    window: &Window,
    ending: &Ending,
    told: &Told,
) -> Result<Received, Error> {
    let mut batch = ReceiveBatch::new(BATCH, HEAD_BYTES);
    let meter = Meter::new(window);
    let mut books =
        Books { work, flow, window, meter, heard: false, strangers: 0, controls: BTreeMap::new() };
    let mut cpu = CpuMeter::default();
    let give_up = now_ns() + window.span_ns() + NS_PER_S;
    let mut far_done = None;
    loop {
        let result = batch.receive(socket.as_fd());
        let clocks = Clocks::read();
        let now = clocks.monotonic_ns;
        let mut read_until = now;
        let took = result.as_ref().ok().copied();
        match result {
            Ok(n) => read_until = books.enter(socket, &batch, n == BATCH, &clocks, told),
            Err(e) if timed_out(&e) => {
                books.meter.enter(window.phase(now));
                // The window may have begun with other flows.
                if let Some(word) = asks.filter(|_| !books.heard) {
                    reply(socket, word, flow);
                }
            }
            // An ICMP message about this end's greetings says nothing about incoming datagrams.
            Err(e) if by_path(&e) => {}
            Err(source) => return Err(Error::Io { what: "receive datagrams", source }),
        }
        books.meter.tell(told);
        if took.is_some_and(|n| n < BATCH) {
            std::thread::sleep(NAP);
        }
        let phase = window.phase(now);
        cpu.look(phase);
        let drain_end = window.end_ns().map(|end| end + nanos(DRAIN));
        let drained = drain_end.is_some_and(|t| read_until >= t || now >= t + nanos(DRAIN));
        // When this end's stop is raised, nothing is waited for; when the other end is done, what is left of the window and the
        // drain are.
        let done_ns = ending.done.raised().then(|| *far_done.get_or_insert(now));
        let begun = window.first_ns().is_some();
        let no_more = done_ns.is_some_and(|t| !begun || (phase != Phase::After && now >= t + nanos(LAST)));
        // The responder waits for its finish; the initiator gives up when the sender must be done.
        let nothing_came = !begun && asks.is_some() && now >= give_up;
        if drained || ending.stop.raised() || no_more || nothing_came {
            let cut_short = phase != Phase::After && ending.stop.raised();
            let Books { meter, strangers, controls, .. } = books;
            let (counts, cpu_s, stream) = (meter.finish(), cpu.seconds(), flow.stream);
            return Ok(Received { stream, missed: 0, counts, strangers, controls, buffer, cpu_s, cut_short });
        }
    }
}

/// Send a greeting. If it is lost, the other end repeats its own, so an error is not one either.
fn reply(socket: &UdpSocket, word: Word, flow: Flow) {
    let _ = socket.send(&greeting(word, flow));
}
