//! What the server's threads share: the trials that are open, and the clients that are in.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::hmac;
use weir_load::door::Usher;
use weir_load::knock::{self, TOKEN_BYTES};
use weir_sys::datagram_filter::Start;

use super::{Config, Note};
use crate::iperf3::HELLOS;
use crate::{Limits, Port, key};

/// How long a challenge is good for, seconds; one that was made just before the end of such a time is good for the next one, too.
const CHALLENGE_S: u64 = 30;

/// Trials whose knocks are told apart before they are taken in; with more at once every knock is. A filter may have 4096 instructions
/// and, on older kernels, 20 KB (net.core.optmem_max).
const TOLD_APART: usize = 128;

/// What belongs to one trial while it is open.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) usher: Usher,
    /// The address of this host that its client talks to.
    pub(super) own: IpAddr,
    /// Connections, or flows, that may still come.
    pub(super) left: Option<u32>,
    /// Whose flows have come: a proof that was sent twice is not another one.
    pub(super) peers: HashSet<SocketAddr>,
    /// Bytes per second that each may be sent.
    pub(super) pacing: Option<u32>,
    /// Its flows are UDP: they knock.
    pub(super) knocks: bool,
}

/// See the module.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) limits: Arc<Limits>,
    pub(super) port: Arc<Port>,
    secret: hmac::Key,
    begun: std::time::Instant,
    trials: Mutex<HashMap<u64, Trial>>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    closing: bool,
    next: u64,
    open: HashMap<u64, Arc<TcpStream>>,
}

/// An open trial. Dropping it closes the door for what would still come.
pub(super) struct OpenTrial<'a> {
    shared: &'a Shared,
    cookie: u64,
}

/// A client's connection, known to the server so that it can end it.
pub(super) struct OpenLine {
    shared: Arc<Shared>,
    number: u64,
}

impl Shared {
    pub(super) fn new(config: Config, limits: Arc<Limits>, port: Arc<Port>) -> std::io::Result<Self> {
        let shared = Shared {
            config,
            limits,
            port,
            secret: hmac::Key::new(hmac::HMAC_SHA256, &key::random::<32>()?),
            begun: std::time::Instant::now(),
            trials: Mutex::default(),
            lines: Mutex::default(),
        };
        shared.admit_knocks(&HashMap::new());
        Ok(shared)
    }

    pub(super) fn note(&self, note: &Note) {
        (self.config.log)(note);
    }

    /// Make a trial known, so that what comes for it is handed over.
    pub(super) fn open_trial(&self, cookie: u64, trial: Trial) -> OpenTrial<'_> {
        let mut trials = lock(&self.trials);
        let knocks = trial.knocks;
        trials.insert(cookie, trial);
        if knocks {
            self.admit_knocks(&trials);
        }
        OpenTrial { shared: self, cookie }
    }

    fn close_trial(&self, cookie: u64) {
        let mut trials = lock(&self.trials);
        if trials.remove(&cookie).is_some_and(|trial| trial.knocks) {
            self.admit_knocks(&trials);
        }
    }

    /// Let through what may come to the UDP socket that all share, and nothing else: whoever sends something else without end wakes
    /// nobody, and takes no time from what is measured.
    fn admit_knocks(&self, trials: &HashMap<u64, Trial>) {
        let length = knock::BYTES as u16;
        let knocking: Vec<u64> = trials.iter().filter(|(_, trial)| trial.knocks).map(|(c, _)| *c).collect();
        let cookies: Vec<Option<u64>> =
            if knocking.len() > TOLD_APART { vec![None] } else { knocking.into_iter().map(Some).collect() };
        let mut starts: Vec<Start> = cookies
            .into_iter()
            .map(|cookie| Start { bytes: knock::beginning(cookie), length, exact: true })
            .collect();
        let magic = weir_mtu::MAGIC;
        starts.push(Start { bytes: magic.to_vec(), length: magic.len() as u16, exact: false });
        if self.config.iperf3 {
            starts.extend(HELLOS.map(|hello| Start { bytes: hello.to_vec(), length: 4, exact: true }));
        }
        self.port.admit_datagrams(&starts);
    }

    /// Do something for the trial of that cookie, if it is open and takes another connection.
    pub(super) fn admit_to<T>(&self, cookie: u64, hand_over: impl FnOnce(&Trial) -> T) -> Option<T> {
        let mut trials = lock(&self.trials);
        let trial = trials.get_mut(&cookie)?;
        if let Some(left) = &mut trial.left {
            *left = left.checked_sub(1)?;
        }
        Some(hand_over(trial))
    }

    /// The same for the flow of an address, which comes once.
    pub(super) fn admit_flow<T>(
        &self,
        cookie: u64,
        peer: SocketAddr,
        hand_over: impl FnOnce(&Trial) -> T,
    ) -> Option<T> {
        let new = lock(&self.trials).get_mut(&cookie)?.peers.insert(peer);
        if new { self.admit_to(cookie, hand_over) } else { None }
    }

    /// The address of this host that the client of that trial talks to, if it is open and no flow of that peer has come yet.
    pub(super) fn own_address_for(&self, cookie: u64, peer: SocketAddr) -> Option<IpAddr> {
        lock(&self.trials).get(&cookie).filter(|trial| !trial.peers.contains(&peer)).map(|trial| trial.own)
    }

    /// Make a client's connection known; `None` if the server is closing.
    pub(super) fn open_line(self: &Arc<Self>, socket: Arc<TcpStream>) -> Option<OpenLine> {
        let mut lines = lock(&self.lines);
        if lines.closing {
            return None;
        }
        lines.next += 1;
        let number = lines.next;
        lines.open.insert(number, socket);
        Some(OpenLine { shared: self.clone(), number })
    }

    /// End all clients' connections; none is opened any more.
    pub(super) fn close_lines(&self) {
        let mut lines = lock(&self.lines);
        lines.closing = true;
        for socket in lines.open.values() {
            // Wakes its thread; the client may have gone before.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Clients whose threads have not ended.
    pub(super) fn lines(&self) -> usize {
        lock(&self.lines).open.len()
    }

    /// The challenge for that address now: nothing needs to be kept until it comes back.
    pub(super) fn challenge(&self, peer: SocketAddr, cookie: u64) -> [u8; TOKEN_BYTES] {
        self.challenge_of(peer, cookie, self.period())
    }

    /// True if it is a challenge that was sent to that address lately.
    pub(super) fn is_challenge(&self, token: [u8; TOKEN_BYTES], peer: SocketAddr, cookie: u64) -> bool {
        let now = self.period();
        let wrong_bits = |period| {
            // Over all bytes, so that the time says nothing about where they begin to differ.
            self.challenge_of(peer, cookie, period).iter().zip(token).fold(0, |all, (a, b)| all | (a ^ b))
        };
        let (one, other) = (wrong_bits(now), wrong_bits(now.saturating_sub(1)));
        one == 0 || other == 0
    }

    fn period(&self) -> u64 {
        self.begun.elapsed().as_secs() / CHALLENGE_S
    }

    fn challenge_of(&self, peer: SocketAddr, cookie: u64, period: u64) -> [u8; TOKEN_BYTES] {
        let address = match peer.ip().to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let said =
            [&address.octets()[..], &peer.port().to_be_bytes(), &cookie.to_be_bytes(), &period.to_be_bytes()]
                .concat();
        let tag = hmac::sign(&self.secret, &said);
        let mut token = [0; TOKEN_BYTES];
        token.copy_from_slice(&tag.as_ref()[..TOKEN_BYTES]);
        // All zeros stand for none.
        token[0] |= 1;
        token
    }
}

impl Drop for OpenTrial<'_> {
    fn drop(&mut self) {
        self.shared.close_trial(self.cookie);
    }
}

impl Drop for OpenLine {
    fn drop(&mut self) {
        lock(&self.shared.lines).open.remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds the lock can panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
