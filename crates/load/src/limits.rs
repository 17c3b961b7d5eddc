//! How much of a server its clients may use, together and each, and who is in.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bounds of a server. Its clients are counted here too: [`Limits::admit`].
#[derive(Debug)]
pub struct Limits {
    /// Clients at once.
    pub sessions: u32,
    /// Clients at once from one address; for IPv6 from one /64, which a single subscriber has (RFC 6177).
    pub sessions_per_client: u32,
    /// Streams or connections at once of one client, over all of its measurements, in each direction.
    pub streams: u32,
    /// Longest measurement, warm-up included.
    pub duration: Duration,
    /// Highest bit rate of one client in each direction, payload bits per second, over all of its measurements, iperf3's too, by the
    /// rate that each names; TCP that names none has what is left. `None` for as fast as it goes.
    pub rate_bps: Option<f64>,
    /// The same over all clients together.
    pub total_rate_bps: Option<f64>,
    /// Bytes of sockets' buffers over all clients; one of them has [`Limits::memory_per_client`] of it.
    pub memory_bytes: u64,
    /// How long a client may take for the next step of a conversation that is its turn: the opening bytes, the rest of a frame,
    /// an answer. Who is idle between two measurements may be so for [`Limits::idle`].
    pub patience: Duration,
    /// How long a client may stay without asking for anything.
    pub idle: Duration,
    /// How long a measurement may go on in which nothing moves.
    pub standstill: Duration,
    /// The clients that are admitted now; none at first.
    pub guests: Guests,
}

/// Counts the admitted clients; none by default.
#[derive(Debug, Default)]
pub struct Guests(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: Held,
    /// By [`counted_as`]; only those who hold something.
    by_client: HashMap<IpAddr, Held>,
    begun: HashMap<IpAddr, Begun>,
}

/// Resources of a server that are in use.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Held {
    sessions: u32,
    streams: u32,
    memory_bytes: u64,
    /// Whole bits per second: what was added is taken away again to the last one.
    rate_bps: u64,
}

/// Resources that a client holds by being admitted.
const PLACE: Held = Held { sessions: 1, streams: 0, memory_bytes: 0, rate_bps: 0 };

impl Held {
    fn add(&mut self, more: Held) {
        self.sessions += more.sessions;
        self.streams = self.streams.saturating_add(more.streams);
        self.memory_bytes = self.memory_bytes.saturating_add(more.memory_bytes);
        self.rate_bps = self.rate_bps.saturating_add(more.rate_bps);
    }

    fn take(&mut self, less: Held) {
        self.sessions -= less.sessions;
        self.streams = self.streams.saturating_sub(less.streams);
        self.memory_bytes = self.memory_bytes.saturating_sub(less.memory_bytes);
        self.rate_bps = self.rate_bps.saturating_sub(less.rate_bps);
    }
}

impl Counts {
    /// Returns the resources that a client holds, by [`counted_as`].
    fn of(&self, client: IpAddr) -> Held {
        self.by_client.get(&client).copied().unwrap_or_default()
    }

    fn add(&mut self, client: IpAddr, more: Held) {
        self.all.add(more);
        self.by_client.entry(client).or_default().add(more);
    }

    fn take(&mut self, client: IpAddr, less: Held) {
        self.all.take(less);
        if let Some(own) = self.by_client.get_mut(&client) {
            own.take(less);
            if *own == Held::default() {
                self.by_client.remove(&client);
            }
        }
    }
}

/// How many clients have begun at an address lately: a bucket that runs empty at [`Limits::sessions_per_client`] a second.
#[derive(Debug)]
struct Begun {
    level: f64,
    at: Instant,
}

/// It holds what runs out in so many seconds. Each client has a thread: to begin and end those all the time is the most work that a
/// flood of connections can give the server.
const BURST_S: f64 = 4.0;

/// Addresses that are remembered before those whose bucket is empty are forgotten.
const REMEMBERED: usize = 1024;

/// Divisor of a rate: a remainder below that share of it is not worth a measurement.
const LEAST_SHARE: u64 = 100;

/// Divisor of the memory that gives one client's share, so that no client can take all of it from the others. In the usual 256
/// MiB this share holds the largest usual measurement: 128 TCP streams both ways set 80 MiB aside, iperf3's 128 of UDP 92 MiB.
const MEMORY_SHARE: u64 = 2;

/// One client's share is at least this many bytes, if the server has them. So a server with little memory serves one client after
/// the other, instead of none.
const LEAST_MEMORY: u64 = 4 << 20;

impl Default for Limits {
    fn default() -> Self {
        Limits {
            sessions: 128,
            sessions_per_client: 16,
            streams: 128,
            duration: Duration::from_secs(3600),
            rate_bps: None,
            total_rate_bps: None,
            memory_bytes: 256 << 20,
            patience: Duration::from_secs(5),
            idle: Duration::from_secs(300),
            // The default of iperf3's --rcv-timeout.
            standstill: Duration::from_secs(120),
            guests: Guests::default(),
        }
    }
}

/// Why a client is not let in, in words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// All places are taken.
    #[error("the server is busy: it serves {0} clients at a time")]
    Full(u32),
    /// All places of this client's address are taken.
    #[error("too many at a time: the server takes {0} from one address")]
    ClientFull(u32),
    /// Too many from this client's address began and ended lately: so many a second may.
    #[error("too many after one another: the server takes {0} a second from one address")]
    ClientOften(u32),
    /// So many streams that this client's address may have are not left.
    #[error("too many streams at a time: the server gives {0} to one address")]
    ClientStreams(u32),
    /// The memory that is asked for is not left.
    #[error("the server's buffers are in use: it gives {0} bytes to all clients together")]
    Memory(u64),
    /// It is not left of the share of this client's address.
    #[error("too much memory for buffers at a time: the server gives {0} bytes to one address")]
    ClientMemory(u64),
    /// The bit rate that is asked for is not left, in each direction.
    #[error("the server's bit rate is in use: it gives {0} bit/s to all clients together")]
    Rate(u64),
    /// It is not left of what this client's address may have.
    #[error("this address has its bit rate in use: the server gives it {0} bit/s")]
    ClientRate(u64),
}

/// A client's place. Dropping it makes room.
#[derive(Debug)]
pub struct Admission {
    limits: Arc<Limits>,
    client: IpAddr,
}

/// Streams with their memory, or a bit rate, that a client was given. Dropping it gives it back.
#[derive(Debug)]
pub struct Reserved {
    limits: Arc<Limits>,
    client: IpAddr,
    held: Held,
}

impl Reserved {
    /// The bit rate, payload bits per second in each direction.
    pub fn rate_bps(&self) -> f64 {
        self.held.rate_bps as f64
    }
}

impl Limits {
    /// Let a client in, if there is room.
    ///
    /// # Errors
    /// Which limit is reached.
    pub fn admit(self: &Arc<Self>, client: IpAddr) -> Result<Admission, Refused> {
        self.admit_at(client, Instant::now())
    }

    fn admit_at(self: &Arc<Self>, client: IpAddr, now: Instant) -> Result<Admission, Refused> {
        let client = counted_as(client);
        let mut guests = self.guests();
        let most = self.sessions_per_client;
        if guests.of(client).sessions >= most {
            return Err(Refused::ClientFull(most));
        }
        let level = |begun: &Begun| {
            let passed_s = now.saturating_duration_since(begun.at).as_secs_f64();
            (begun.level - f64::from(most) * passed_s).max(0.0)
        };
        if guests.begun.len() >= REMEMBERED {
            guests.begun.retain(|_, begun| level(begun) > 0.0);
        }
        let before = guests.begun.get(&client).map_or(0.0, level);
        if before + 1.0 > f64::from(most) * BURST_S {
            return Err(Refused::ClientOften(most));
        }
        // Last: for a client that would be let in otherwise, another one may have to make room.
        if guests.all.sessions >= self.sessions {
            return Err(Refused::Full(self.sessions));
        }
        guests.begun.insert(client, Begun { level: before + 1.0, at: now });
        guests.add(client, PLACE);
        Ok(Admission { limits: self.clone(), client })
    }

    /// Set streams aside for a client, and so many bytes for their buffers.
    ///
    /// # Errors
    /// They are not left, of all or of this client's.
    pub fn reserve(
        self: &Arc<Self>,
        client: IpAddr,
        streams: u32,
        memory_bytes: u64,
    ) -> Result<Reserved, Refused> {
        let client = counted_as(client);
        let mut guests = self.guests();
        let own = guests.of(client);
        if own.streams.saturating_add(streams) > self.streams {
            return Err(Refused::ClientStreams(self.streams));
        }
        let share = self.memory_per_client();
        if own.memory_bytes.saturating_add(memory_bytes) > share {
            return Err(Refused::ClientMemory(share));
        }
        if guests.all.memory_bytes.saturating_add(memory_bytes) > self.memory_bytes {
            return Err(Refused::Memory(self.memory_bytes));
        }
        Ok(self.give(&mut guests, client, Held { streams, memory_bytes, ..Held::default() }))
    }

    /// Set aside a bit rate for a client, out of [`Limits::rate_bps`] and [`Limits::total_rate_bps`] where there are such limits.
    ///
    /// # Errors
    /// It is not left, of all or of this client's.
    pub fn reserve_rate(self: &Arc<Self>, client: IpAddr, bps: f64) -> Result<Reserved, Refused> {
        let client = counted_as(client);
        let mut guests = self.guests();
        let rate_bps = bps.ceil() as u64;
        let beyond = |limit: Option<f64>, used: u64| {
            let most = limit.map(|most| most.ceil() as u64);
            most.filter(|most| used.saturating_add(rate_bps) > *most)
        };
        if let Some(most) = beyond(self.rate_bps, guests.of(client).rate_bps) {
            return Err(Refused::ClientRate(most));
        }
        if let Some(most) = beyond(self.total_rate_bps, guests.all.rate_bps) {
            return Err(Refused::Rate(most));
        }
        Ok(self.give(&mut guests, client, Held { rate_bps, ..Held::default() }))
    }

    /// Set aside what one measurement may have of what is left; `None` where there is no limit.
    ///
    /// # Errors
    /// Less than a hundredth is left of what all may have together, or of what this client may have.
    pub fn reserve_rate_left(self: &Arc<Self>, client: IpAddr) -> Result<Option<Reserved>, Refused> {
        let client = counted_as(client);
        let mut guests = self.guests();
        let left = |limit: Option<f64>, used: u64, refused: fn(u64) -> Refused| {
            let Some(most) = limit.map(|most| most as u64) else { return Ok(None) };
            let left = most.saturating_sub(used);
            if left < (most / LEAST_SHARE).max(1) { Err(refused(most)) } else { Ok(Some(left)) }
        };
        let own = left(self.rate_bps, guests.of(client).rate_bps, Refused::ClientRate)?;
        let all = left(self.total_rate_bps, guests.all.rate_bps, Refused::Rate)?;
        let Some(rate_bps) = own.into_iter().chain(all).min() else { return Ok(None) };
        Ok(Some(self.give(&mut guests, client, Held { rate_bps, ..Held::default() })))
    }

    fn give(self: &Arc<Self>, guests: &mut Counts, client: IpAddr, held: Held) -> Reserved {
        guests.add(client, held);
        Reserved { limits: self.clone(), client, held }
    }

    /// Returns the rate that one client may use in each direction: the limit for one client, or else the total limit.
    pub fn most_bps(&self) -> Option<f64> {
        self.rate_bps.or(self.total_rate_bps)
    }

    /// Bytes of sockets' buffers that one client may have: half of [`Limits::memory_bytes`], or 4 MiB where that is more and there are
    /// so many.
    pub fn memory_per_client(&self) -> u64 {
        (self.memory_bytes / MEMORY_SHARE).max(LEAST_MEMORY).min(self.memory_bytes)
    }

    /// Clients that are in now.
    pub fn admitted(&self) -> u32 {
        self.guests().all.sessions
    }

    fn guests(&self) -> MutexGuard<'_, Counts> {
        // Nothing that holds the lock can panic half-way.
        self.guests.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.limits.guests().take(self.client, PLACE);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.limits.guests().take(self.client, self.held);
    }
}

/// The address that stands for a client: IPv4 as such, IPv6 by its /64.
pub fn counted_as(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests;
