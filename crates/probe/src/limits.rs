//! How much of a server its clients may use, together and each, and who is in.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bounds of a server. Its clients are counted here too: [`Limits::admit`].
#[derive(Debug)]
pub struct Limits {
    /// Clients at once.
    pub sessions: u32,
    /// Of these, from one address; IPv6: from one /64, which is what a single subscriber has (RFC 6177).
    pub sessions_per_client: u32,
    /// Streams or connections at once of one client, in each direction.
    pub streams: u32,
    /// Longest measurement, warm-up included.
    pub duration: Duration,
    /// Highest bit rate of one measurement in each direction, payload bits per second; `None` for as fast as it goes.
    pub rate_bps: Option<f64>,
    /// The same over all measurements together, iperf3's too, by the rate that each names; TCP that names none has what is left,
    /// and no more than [`Limits::rate_bps`] of it.
    pub total_rate_bps: Option<f64>,
    /// Bytes of sockets' buffers over all clients.
    pub memory_bytes: u64,
    /// How long a client may take for the next step of a conversation that is its turn: the opening bytes, the rest of a frame,
    /// an answer. Who is idle between two measurements may be so for [`Limits::idle`].
    pub patience: Duration,
    /// How long a client may stay without asking for anything.
    pub idle: Duration,
    /// Who is in: nobody at first.
    pub guests: Guests,
}

/// Counts who is in; its default is nobody.
#[derive(Debug, Default)]
pub struct Guests(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: u32,
    by_client: HashMap<IpAddr, u32>,
    begun: HashMap<IpAddr, Begun>,
    memory_bytes: u64,
    /// Whole bits per second: what was added is taken away again to the last one.
    rate_bps: u64,
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

/// What is left of the total rate is not worth a measurement below one so manieth of it.
const LEAST_SHARE: u64 = 100;

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
            guests: Guests::default(),
        }
    }
}

/// Why a client is not let in, in words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// All places are taken.
    Full(u32),
    /// All places of this client's address are taken.
    ClientFull(u32),
    /// Too many from this client's address began and ended lately: so many a second may.
    ClientOften(u32),
    /// The memory that is asked for is not left.
    Memory(u64),
    /// The bit rate that is asked for is not left, in each direction.
    Rate(u64),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Full(n) => write!(f, "the server is busy: it serves {n} clients at a time"),
            Refused::ClientFull(n) => {
                write!(f, "too many at a time: the server takes {n} from one address")
            }
            Refused::ClientOften(n) => {
                write!(f, "too many after one another: the server takes {n} a second from one address")
            }
            Refused::Memory(n) => {
                write!(f, "the server's buffers are in use: it gives {n} bytes to all clients together")
            }
            Refused::Rate(n) => {
                write!(f, "the server's bit rate is in use: it gives {n} bit/s to all clients together")
            }
        }
    }
}

/// A client's place. Dropping it makes room.
#[derive(Debug)]
pub struct Admission {
    limits: Arc<Limits>,
    client: IpAddr,
}

/// Memory, or a bit rate, that a client was given. Dropping it gives it back.
#[derive(Debug)]
pub struct Reserved {
    limits: Arc<Limits>,
    bytes: u64,
    rate_bps: u64,
}

impl Reserved {
    /// The bit rate, payload bits per second in each direction.
    pub fn rate_bps(&self) -> f64 {
        self.rate_bps as f64
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
        if guests.by_client.get(&client).is_some_and(|own| *own >= most) || most == 0 {
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
        if guests.all >= self.sessions {
            return Err(Refused::Full(self.sessions));
        }
        guests.begun.insert(client, Begun { level: before + 1.0, at: now });
        *guests.by_client.entry(client).or_default() += 1;
        guests.all += 1;
        Ok(Admission { limits: self.clone(), client })
    }

    /// Set so many bytes aside for a client's buffers.
    ///
    /// # Errors
    /// They are not left.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reserved, Refused> {
        let mut guests = self.guests();
        let sum = guests.memory_bytes.checked_add(bytes).filter(|sum| *sum <= self.memory_bytes);
        guests.memory_bytes = sum.ok_or(Refused::Memory(self.memory_bytes))?;
        Ok(Reserved { limits: self.clone(), bytes, rate_bps: 0 })
    }

    /// Set aside a bit rate of [`Limits::total_rate_bps`], if there is such a limit.
    ///
    /// # Errors
    /// It is not left.
    pub fn reserve_rate(self: &Arc<Self>, bps: f64) -> Result<Reserved, Refused> {
        let mut guests = self.guests();
        let rate_bps = bps.ceil() as u64;
        let sum = guests.rate_bps.saturating_add(rate_bps);
        if let Some(most) = self.total_rate_bps
            && sum > most as u64
        {
            return Err(Refused::Rate(most as u64));
        }
        guests.rate_bps = sum;
        Ok(Reserved { limits: self.clone(), bytes: 0, rate_bps })
    }

    /// Set aside what one measurement may have of what is left; `None` where there is no limit.
    ///
    /// # Errors
    /// Less than a hundredth of the total is left.
    pub fn reserve_rate_left(self: &Arc<Self>) -> Result<Option<Reserved>, Refused> {
        let Some(most) = self.most_bps() else { return Ok(None) };
        let mut guests = self.guests();
        let mut rate_bps = most as u64;
        if let Some(total) = self.total_rate_bps {
            let total = total as u64;
            rate_bps = rate_bps.min(total.saturating_sub(guests.rate_bps));
            if rate_bps < (total / LEAST_SHARE).max(1) {
                return Err(Refused::Rate(total));
            }
        }
        guests.rate_bps = guests.rate_bps.saturating_add(rate_bps);
        Ok(Some(Reserved { limits: self.clone(), bytes: 0, rate_bps }))
    }

    /// What one measurement may have in each direction: the limit of one, or else all there is.
    pub fn most_bps(&self) -> Option<f64> {
        self.rate_bps.or(self.total_rate_bps)
    }

    /// Clients that are in now.
    pub fn admitted(&self) -> u32 {
        self.guests().all
    }

    fn guests(&self) -> MutexGuard<'_, Counts> {
        // Nothing that holds the lock can panic half-way.
        self.guests.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut guests = self.limits.guests();
        guests.all -= 1;
        if let Some(own) = guests.by_client.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                guests.by_client.remove(&self.client);
            }
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut guests = self.limits.guests();
        guests.memory_bytes -= self.bytes;
        guests.rate_bps = guests.rate_bps.saturating_sub(self.rate_bps);
    }
}

/// The address that stands for a client: IPv4 as such, IPv6 by its /64.
pub(crate) fn counted_as(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Arc<Limits> {
        Arc::new(Limits { sessions: 3, sessions_per_client: 2, memory_bytes: 100, ..Limits::default() })
    }

    #[test]
    fn places_are_given_and_come_back() {
        let limits = limits();
        let admit = |a: &str| limits.admit(a.parse().unwrap());
        let first = admit("192.0.2.1").unwrap();
        let second = admit("::ffff:192.0.2.1").unwrap();
        assert_eq!(
            admit("192.0.2.1").unwrap_err(),
            Refused::ClientFull(2),
            "the same address, written so or so"
        );
        let third = admit("192.0.2.2").unwrap();
        assert_eq!(admit("192.0.2.3").unwrap_err(), Refused::Full(3));
        assert_eq!(admit("192.0.2.1").unwrap_err(), Refused::ClientFull(2), "nobody need make room for it");
        drop((first, third));
        assert_eq!(limits.admitted(), 1);
        drop(second);
        assert!(limits.guests().by_client.is_empty(), "nothing is left of who has gone");
    }

    #[test]
    fn clients_of_one_address_may_not_begin_and_end_all_the_time() {
        let limits = limits();
        let begun = Instant::now();
        let admit =
            |address: &str, ms| limits.admit_at(address.parse().unwrap(), begun + Duration::from_millis(ms));
        // Two at once: eight, and two a second.
        for _ in 0..8 {
            drop(admit("192.0.2.1", 0).unwrap());
        }
        assert_eq!(admit("192.0.2.1", 499).unwrap_err(), Refused::ClientOften(2));
        drop(admit("192.0.2.2", 499).unwrap());
        drop(admit("192.0.2.1", 500).unwrap());
        assert!(admit("192.0.2.1", 500).is_err());
        // Who has been quiet has all of it again, and is not remembered for ever.
        for _ in 0..8 {
            drop(admit("192.0.2.1", 10_000).unwrap());
        }
        for n in 0..2 * REMEMBERED as u64 {
            let other = IpAddr::from(0x0a00_0000u32.wrapping_add(n as u32).to_be_bytes());
            drop(limits.admit_at(other, begun + Duration::from_secs(20 + n)).unwrap());
        }
        assert!(limits.guests().begun.len() <= REMEMBERED, "{}", limits.guests().begun.len());
    }

    #[test]
    fn a_64_of_ipv6_is_one_client() {
        let limits = limits();
        let admit = |a: &str| limits.admit(a.parse().unwrap());
        let _one = admit("2001:db8:0:1::1").unwrap();
        let _two = admit("2001:db8:0:1:ffff::2").unwrap();
        assert_eq!(admit("2001:db8:0:1::3").unwrap_err(), Refused::ClientFull(2));
        assert!(admit("2001:db8:0:2::1").is_ok());
    }

    #[test]
    fn bit_rates_are_bounded_over_all() {
        let limits = Arc::new(Limits { total_rate_bps: Some(1e9), ..Limits::default() });
        let most = limits.reserve_rate(8e8).unwrap();
        assert_eq!(limits.reserve_rate(3e8).unwrap_err(), Refused::Rate(1_000_000_000));
        drop(most);
        let _all = limits.reserve_rate(1e9).unwrap();
        assert!(limits.reserve_rate(1.0).is_err());
        assert_eq!((limits.most_bps(), Limits::default().most_bps()), (Some(1e9), None));
        let unlimited = Arc::new(Limits::default());
        assert!(unlimited.reserve_rate(1e18).is_ok() && unlimited.reserve_rate_left().unwrap().is_none());
    }

    #[test]
    fn who_names_no_rate_has_what_is_left() {
        let limits = Arc::new(Limits { total_rate_bps: Some(1e9), rate_bps: Some(7e8), ..Limits::default() });
        let left = || limits.reserve_rate_left().map(|r| r.unwrap());
        let (one, two) = (left().unwrap(), left().unwrap());
        assert_eq!((one.rate_bps(), two.rate_bps()), (7e8, 3e8));
        assert_eq!(left().unwrap_err(), Refused::Rate(1_000_000_000));
        drop((one, two));
        let _most = limits.reserve_rate(0.1 + 0.2 + 989_999_998.0).unwrap();
        assert_eq!(left().unwrap().rate_bps(), 10_000_001.0, "rounded in favour of who was first");
        let _more = limits.reserve_rate(2e6).unwrap();
        assert!(left().is_err(), "less than a hundredth");
        // Nothing is left over of fractions.
        drop((_most, _more));
        assert!(limits.reserve_rate(1e9).is_ok());
        let each = Arc::new(Limits { rate_bps: Some(5e6), ..Limits::default() });
        let all: Vec<_> = (0..3).map(|_| each.reserve_rate_left().unwrap().unwrap().rate_bps()).collect();
        assert_eq!(all, [5e6; 3]);
    }

    #[test]
    fn memory_is_bounded_over_all() {
        let limits = limits();
        let most = limits.reserve(60).unwrap();
        assert_eq!(limits.reserve(41).unwrap_err(), Refused::Memory(100));
        let rest = limits.reserve(40).unwrap();
        assert_eq!(limits.reserve(u64::MAX).unwrap_err(), Refused::Memory(100));
        drop((most, rest));
        assert!(limits.reserve(100).is_ok());
    }
}
