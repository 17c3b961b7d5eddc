//! Counting what arrives by a packet socket.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_sys::clock::Clocks;
use weir_wire::{Ethernet, ethernet};

use super::ring::Ring;
use super::socket::{bind, dropped, failed, open, set_filter};
use crate::Error;
use crate::frame::HEAD;
use crate::state::StateTable;
use crate::tally::Tally;
use crate::transfer::{Link, Received, Sending};

/// Pause of the reading thread when it has read all there is. The ring holds what comes in hundreds of such pauses, and a reader
/// that waited for each frame would make the path's softirq wake it up for each.
const NAP: Duration = Duration::from_micros(500);

/// The same while nothing is expected.
const LONG_NAP: Duration = Duration::from_millis(10);

/// Frames read before others may have a look at the counts.
const TURN: usize = 4096;

/// Position of the protocol: the ninth byte of an IPv4 header, the sixth of an IPv6 one.
const PROTOCOL_AT: [usize; 2] = [Ethernet::LENGTH + 9, Ethernet::LENGTH + 6];

/// A receiver on one interface, with a thread that reads.
#[derive(Debug)]
pub struct RawReceiver {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    /// How many others want the lock: a reader that has no pause would take it again before they woke up.
    waiting: AtomicU32,
    over: AtomicBool,
}

struct Inner {
    ring: Ring,
    socket: OwnedFd,
    tally: Tally,
    /// Frames that the ring had no room for since the last expectation.
    own_drops: u64,
    /// Frames are expected.
    busy: bool,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("tally", &self.tally).finish_non_exhaustive()
    }
}

impl RawReceiver {
    /// Begins to read on the interface of that index in the calling thread's namespace, which is `link`'s. Until something is
    /// expected nothing is counted.
    ///
    /// # Errors
    /// [`Error::Missing`] without CAP_NET_RAW.
    pub fn open(interface: u32, link: &Link) -> Result<Self, Error> {
        let socket = open()?;
        let v6 = link.address.is_ipv6();
        set_filter(&socket, PROTOCOL_AT[usize::from(v6)] as u32, HEAD as u32)?;
        let ring = Ring::new(&socket)?;
        // One EtherType only: outgoing frames and those of other protocols are not even looked at.
        bind(&socket, interface, if v6 { ethernet::IPV6 } else { ethernet::IPV4 })?;
        let inner = Inner { ring, socket, tally: Tally::new(link), own_drops: 0, busy: false };
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            waiting: AtomicU32::new(0),
            over: AtomicBool::new(false),
        });
        let reader = std::thread::Builder::new()
            .name("receiver".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.read()
            })
            .map_err(|e| failed("start a receiving thread", e))?;
        Ok(RawReceiver { shared, reader: Some(reader) })
    }

    /// How frames are taken in.
    pub fn describe(&self) -> &'static str {
        "a packet socket, beside the stack"
    }

    /// From now on counts the frames of this transfer, from zero; `None` counts none. `forget` empties the state table, else it
    /// is kept for the flows of the same numbers.
    ///
    /// # Errors
    /// [`Error::Unfit`] if the other side cannot send this.
    pub fn expect(&mut self, cookie: u32, incoming: Option<&Sending>, forget: bool) -> Result<(), Error> {
        let mut inner = self.shared.get();
        inner.read_all();
        inner.tally.expect(cookie, incoming, forget)?;
        dropped(&inner.socket)?;
        inner.own_drops = 0;
        inner.busy = incoming.is_some();
        // It may be in a long nap.
        if let Some(reader) = &self.reader {
            reader.thread().unpark();
        }
        Ok(())
    }

    /// Returns the counts so far of the expected transfer.
    ///
    /// # Errors
    /// If the kernel does not tell how many frames it had no room for.
    pub fn received(&mut self) -> Result<Received, Error> {
        let mut inner = self.shared.get();
        inner.read_all();
        inner.own_drops += dropped(&inner.socket)?;
        Ok(Received { own_drops: inner.own_drops, ..inner.tally.received() })
    }

    /// Hands the state table to `f`: where each flow was seen to come from. Nothing is counted meanwhile.
    pub fn with_learnt<T>(&self, f: impl FnOnce(&StateTable) -> T) -> T {
        f(self.shared.get().tally.learnt())
    }
}

impl Drop for RawReceiver {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.thread().unpark();
            // A panic of the reader was reported when it happened.
            let _ = reader.join();
        }
    }
}

impl Shared {
    /// A reader that panicked leaves counts that are too low, which show as loss; nothing else depends on them.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, ahead of the reader.
    fn get(&self) -> MutexGuard<'_, Inner> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    fn read(&self) {
        while !self.over.load(Ordering::Relaxed) {
            let mut inner = self.lock();
            let read = inner.read_some(TURN);
            let nap = if inner.busy { NAP } else { LONG_NAP };
            drop(inner);
            if read < TURN {
                std::thread::park_timeout(nap);
            }
            while self.waiting.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
        }
    }
}

impl Inner {
    /// Reads what has arrived until now. Bounded by the ring, since more can come meanwhile.
    fn read_all(&mut self) {
        self.read_some(Ring::slots());
    }

    /// Reads at most so many frames, and returns how many there were.
    fn read_some(&mut self, most: usize) -> usize {
        let clocks = Clocks::read();
        let tally = &mut self.tally;
        (0..most)
            .take_while(|_| {
                self.ring.take(|slot| tally.arrive(slot.head, slot.length, clocks.monotonic(slot.real_ns)))
            })
            .count()
    }
}
