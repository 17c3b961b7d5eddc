//! State that the server's threads share: open trials and admitted clients.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ring::hmac;
use weir_load::incoming::HandoverSender;
use weir_load::udp_handshake::{self, TOKEN_BYTES};
use weir_sys::datagram_filter::Start;

use super::nat::Pool;
use super::{Config, Note};
use crate::{Limits, Port, key};
use weir_iperf3::HELLOS;
use weir_load::limits::Admission;

/// How long a challenge is good for, seconds; one that was made just before the end of such a time is good for the next one, too.
const CHALLENGE_S: u64 = 30;

/// Most trials whose requests the socket filter can distinguish; with more at once it admits every request. A filter may have 4096
/// instructions and, on older kernels, 20 KB (net.core.optmem_max).
const TOLD_APART: usize = 128;

/// State of one open trial.
#[derive(Debug)]
pub(super) struct TrialSlot {
    pub(super) handover: HandoverSender,
    /// The address of this host that its client talks to.
    pub(super) own: IpAddr,
    /// Connections, or flows, that may still come.
    pub(super) left: Option<u32>,
    /// Those that have come.
    pub(super) came: u32,
    /// Whose flows have come: a proof that was sent twice is not another one.
    pub(super) peers: HashSet<SocketAddr>,
    /// Bytes per second that each may be sent.
    pub(super) pacing: Option<u32>,
    /// Its flows are UDP: they request.
    pub(super) handshake: bool,
}

impl TrialSlot {
    /// Take one of the connections that may still come; `None` if none may.
    fn take_one(&mut self) -> Option<()> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        self.came = self.came.wrapping_add(1);
        Some(())
    }
}

/// See the module.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) limits: Arc<Limits>,
    pub(super) port: Arc<Port>,
    /// The ports of NAT checks, if they are served.
    pub(super) nat: OnceLock<Pool>,
    secret: hmac::Key,
    begun: std::time::Instant,
    trials: Mutex<HashMap<u64, TrialSlot>>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    closing: bool,
    next: u64,
    /// Those who came first are first.
    open: BTreeMap<u64, Guest>,
}

/// A client whose connection is open.
struct Guest {
    socket: Arc<TcpStream>,
    /// Its place, until another client gets it.
    place: Option<Admission>,
    /// It is welcome, with the key where there is one.
    welcome: bool,
}

/// An open trial. Dropping it refuses later connections.
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
            nat: OnceLock::new(),
            secret: hmac::Key::new(hmac::HMAC_SHA256, &key::random::<32>()?),
            begun: std::time::Instant::now(),
            trials: Mutex::default(),
            lines: Mutex::default(),
        };
        shared.admit_requests(&HashMap::new());
        Ok(shared)
    }

    pub(super) fn note(&self, note: &Note) {
        (self.config.log)(note);
    }

    /// Make a trial known, so that what comes for it is handed over.
    pub(super) fn open_trial(&self, cookie: u64, trial: TrialSlot) -> OpenTrial<'_> {
        let mut trials = lock(&self.trials);
        let handshake = trial.handshake;
        trials.insert(cookie, trial);
        if handshake {
            self.admit_requests(&trials);
        }
        OpenTrial { shared: self, cookie }
    }

    fn close_trial(&self, cookie: u64) {
        let mut trials = lock(&self.trials);
        if trials.remove(&cookie).is_some_and(|trial| trial.handshake) {
            self.admit_requests(&trials);
        }
    }

    /// Admits only expected datagrams to the shared UDP socket. A host that sends endless other datagrams wakes no thread, and
    /// takes no time from measurements.
    fn admit_requests(&self, trials: &HashMap<u64, TrialSlot>) {
        let length = udp_handshake::BYTES as u16;
        let waiting: Vec<u64> = trials.iter().filter(|(_, trial)| trial.handshake).map(|(c, _)| *c).collect();
        let cookies: Vec<Option<u64>> =
            if waiting.len() > TOLD_APART { vec![None] } else { waiting.into_iter().map(Some).collect() };
        let mut starts: Vec<Start> = cookies
            .into_iter()
            .map(|cookie| Start { bytes: udp_handshake::beginning(cookie), length, exact: true })
            .collect();
        let magic = weir_mtu::MAGIC;
        starts.push(Start { bytes: magic.to_vec(), length: magic.len() as u16, exact: false });
        if self.config.iperf3 {
            starts.extend(HELLOS.map(|hello| Start { bytes: hello.to_vec(), length: 4, exact: true }));
        }
        self.port.admit_datagrams(&starts);
    }

    /// Do something for the trial of that cookie, if it is open and takes another connection.
    pub(super) fn admit_to<T>(&self, cookie: u64, hand_over: impl FnOnce(&TrialSlot) -> T) -> Option<T> {
        let mut trials = lock(&self.trials);
        let trial = trials.get_mut(&cookie)?;
        trial.take_one()?;
        Some(hand_over(trial))
    }

    /// The same for the flow of an address, which comes once. Only who gets in is remembered: a client may prove itself from as many
    /// addresses and ports as it has.
    pub(super) fn admit_flow<T>(
        &self,
        cookie: u64,
        peer: SocketAddr,
        hand_over: impl FnOnce(&TrialSlot) -> T,
    ) -> Option<T> {
        let mut trials = lock(&self.trials);
        let trial = trials.get_mut(&cookie)?;
        if trial.peers.contains(&peer) {
            return None;
        }
        trial.take_one()?;
        trial.peers.insert(peer);
        Some(hand_over(trial))
    }

    /// The address of this host that the client of that trial talks to, if it is open, has room for another flow, and none of that
    /// peer has come yet.
    pub(super) fn own_address_for(&self, cookie: u64, peer: SocketAddr) -> Option<IpAddr> {
        let trials = lock(&self.trials);
        let trial = trials.get(&cookie)?;
        (trial.left != Some(0) && !trial.peers.contains(&peer)).then_some(trial.own)
    }

    /// True while a trial is open whose client opens connections all the time and measures how long that takes.
    pub(super) fn times_connections(&self) -> bool {
        lock(&self.trials).values().any(|trial| trial.left.is_none())
    }

    /// Make a client's connection known, with its place; `None` if the server is closing.
    pub(super) fn open_line(self: &Arc<Self>, socket: Arc<TcpStream>, place: Admission) -> Option<OpenLine> {
        let mut lines = lock(&self.lines);
        if lines.closing {
            return None;
        }
        lines.next += 1;
        let number = lines.next;
        lines.open.insert(number, Guest { socket, place: Some(place), welcome: false });
        Some(OpenLine { shared: self.clone(), number })
    }

    /// Ends the session of the client that has been in for longest without proving the key, and frees its place. So strangers do
    /// not keep out clients that have the key. False if no such client exists.
    pub(super) fn make_room(&self) -> bool {
        if self.config.key.is_none() {
            return false;
        }
        let mut lines = lock(&self.lines);
        let stranger = lines.open.values_mut().find(|guest| !guest.welcome && guest.place.is_some());
        let Some(stranger) = stranger else { return false };
        stranger.place = None;
        // Wakes its thread; it may have gone before.
        let _ = stranger.socket.shutdown(Shutdown::Both);
        true
    }

    /// End all clients' connections; none is opened any more.
    pub(super) fn close_lines(&self) {
        let mut lines = lock(&self.lines);
        lines.closing = true;
        for guest in lines.open.values() {
            // Wakes its thread; the client may have gone before.
            let _ = guest.socket.shutdown(Shutdown::Both);
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

impl OpenTrial<'_> {
    /// Connections, or flows, that have come for it.
    pub(super) fn came(&self) -> u32 {
        lock(&self.shared.trials).get(&self.cookie).map_or(0, |trial| trial.came)
    }
}

impl Drop for OpenTrial<'_> {
    fn drop(&mut self) {
        self.shared.close_trial(self.cookie);
    }
}

impl OpenLine {
    /// The client is welcome: it keeps its place. False if it has lost it to another.
    pub(super) fn welcome(&self) -> bool {
        let mut lines = lock(&self.shared.lines);
        let guest = lines.open.get_mut(&self.number).filter(|guest| guest.place.is_some());
        guest.map(|guest| guest.welcome = true).is_some()
    }

    /// True if another client was given its place.
    pub(super) fn lost_its_place(&self) -> bool {
        lock(&self.shared.lines).open.get(&self.number).is_some_and(|guest| guest.place.is_none())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A server's state with one open trial in which so many flows may come.
    fn with_trial<T>(left: Option<u32>, look: impl FnOnce(&Shared, u64) -> T) -> T {
        let port = Arc::new(Port::open("127.0.0.1:0".parse().unwrap()).unwrap());
        let config = Config { key: None, iperf3: false, iperf3_json: false, log: Arc::new(|_| {}) };
        let shared = Shared::new(config, Arc::default(), port).unwrap();
        let (handover, _queue) = weir_load::incoming::handover(1).unwrap();
        let own = "127.0.0.1".parse().unwrap();
        let trial =
            TrialSlot { handover, own, left, came: 0, peers: HashSet::new(), pacing: None, handshake: true };
        let _open = shared.open_trial(7, trial);
        look(&shared, 7)
    }

    fn peer(n: u16) -> SocketAddr {
        SocketAddr::new("192.0.2.1".parse().unwrap(), n)
    }

    #[test]
    fn only_flows_that_are_in_are_remembered_however_many_prove_themselves() {
        with_trial(Some(2), |shared, cookie| {
            let mut entered = 0;
            for _ in 0..2 {
                for n in 1..=1000 {
                    entered += u32::from(shared.admit_flow(cookie, peer(n), |_| ()).is_some());
                }
            }
            assert_eq!(entered, 2);
            assert_eq!(lock(&shared.trials)[&cookie].peers.len(), 2);
            assert!(shared.own_address_for(cookie, peer(1)).is_none(), "it is in");
            assert!(shared.own_address_for(cookie, peer(3)).is_none(), "no room");
            assert!(shared.admit_flow(8, peer(3), |_| ()).is_none(), "not open");
        });
    }

    #[test]
    fn a_flow_that_comes_twice_leaves_room_for_another() {
        with_trial(Some(2), |shared, cookie| {
            for (n, enters) in [(1, true), (1, false), (2, true), (3, false)] {
                assert_eq!(shared.own_address_for(cookie, peer(n)).is_some(), enters, "{n}");
                assert_eq!(shared.admit_flow(cookie, peer(n), |_| ()).is_some(), enters, "{n}");
            }
        });
    }

    #[test]
    fn connections_are_timed_only_where_they_come_all_the_time() {
        assert!(with_trial(None, |shared, _| shared.times_connections()));
        assert!(!with_trial(Some(2), |shared, _| shared.times_connections()));
        // Closed again.
        let closed = with_trial(None, |shared, cookie| {
            shared.close_trial(cookie);
            shared.times_connections()
        });
        assert!(!closed);
    }
}
