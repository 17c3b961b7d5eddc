//! The client's part of a NAT check: asks the server to send through the NAT, and hears what came there.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{Error, PATIENCE, Visit, hear, out_of_turn, say};
use crate::key::{from_hex_up_to, to_hex};
use crate::message::{Ask, NatAsk, Tell};
use crate::nat::{At, Endpoints, LONGEST_RAW, MARK, Transport, raw_mark};
use crate::nat64::Prefix64;
use crate::readdress::readdress;

/// A packet of this client, as the server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// Its protocol.
    pub transport: Transport,
    /// The server's endpoint that it came to.
    pub at: At,
    /// Its source there.
    pub from: SocketAddr,
    /// The mark by which it is known.
    pub mark: Vec<u8>,
}

/// Bytes of a check with their headers, as the server counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    /// From this client.
    pub received: u64,
    /// To it.
    pub sent: u64,
}

/// A NAT check under way.
#[derive(Debug)]
pub struct NatCheck {
    visit: Visit,
    number: u64,
    endpoints: Endpoints,
    /// The one of the NAT64 on the way.
    prefix: Option<Prefix64>,
    round_trip: Duration,
    longest: Option<Duration>,
    /// Words of this end that the server has not answered.
    open: u32,
    arrived: VecDeque<Arrived>,
    /// Why there are no raw packets, as far as it is known.
    raw: Result<(), String>,
    /// The server's own addresses where this client knows others, and those.
    names: Vec<(IpAddr, IpAddr)>,
    arrived_raw: VecDeque<Vec<u8>>,
}

impl NatCheck {
    /// Asks for a check's endpoints. The address that this client knows the server by stands for the server's own one.
    ///
    /// # Errors
    /// The server does not serve checks, has no free ports, or is gone.
    pub fn open(visit: Visit) -> Result<NatCheck, Error> {
        let line = visit.line()?;
        let begun = Instant::now();
        say(&line, &Ask::NatOpen {})?;
        let Tell::NatOpened { number, own, mut addresses, ports, knows_raw, longest_s } = hear(&line)? else {
            return Err(out_of_turn());
        };
        let round_trip = begun.elapsed();
        if !(1..=2).contains(&addresses.len()) || ports[0] == ports[1] || ports.contains(&0) {
            return Err(out_of_turn());
        }
        let own = own.map(usize::from);
        let real = addresses.clone();
        let prefix = rename(&mut addresses, own, visit.server.ip().to_canonical())?;
        let raw =
            if knows_raw { Ok(()) } else { Err("the server is older and has no raw packets".to_owned()) };
        // Behind NAT64 a packet of the server's keeps its version.
        let renames = |(real, known): &(IpAddr, IpAddr)| real != known && prefix.is_none();
        let names = real.into_iter().zip(addresses.iter().copied()).filter(renames);
        Ok(NatCheck {
            visit,
            names: names.collect(),
            number,
            endpoints: Endpoints { addresses, ports },
            prefix,
            round_trip,
            longest: longest_s.map(Duration::from_secs),
            open: 0,
            arrived: VecDeque::new(),
            raw,
            arrived_raw: VecDeque::new(),
        })
    }

    /// The server's endpoints.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// The prefix by which this client knows addresses of IPv4, if the way leads through NAT64. All endpoints here have it.
    pub fn prefix(&self) -> Option<Prefix64> {
        self.prefix
    }

    /// The number that begins each packet of this check.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How long the server took to answer.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// After how long the server ends a check; `None` of an older server, which does not say.
    pub fn longest(&self) -> Option<Duration> {
        self.longest
    }

    /// The conversation.
    pub fn visit(&self) -> &Visit {
        &self.visit
    }

    /// Asks the server to send a packet with that mark from one of its endpoints: over a connection that came if `answer` is set,
    /// else as a first packet. A refusal is an error of [`NatCheck::hear`].
    ///
    /// # Errors
    /// The server is gone.
    pub fn send(
        &mut self,
        transport: Transport,
        answer: bool,
        (at, to): (At, SocketAddr),
        mark: &[u8],
    ) -> Result<(), Error> {
        let to = self.prefix.map_or(to, |prefix| prefix.real(to));
        let ask = NatAsk { transport, answer, at: (at.address, at.port), to, mark: to_hex(mark) };
        self.ask(&Ask::Nat(ask))
    }

    /// Asks the server for raw packets, from now on. An `Err` inside has the reason why there are none.
    ///
    /// # Errors
    /// The server is gone.
    pub fn open_raw(&mut self) -> Result<Result<(), String>, Error> {
        if self.raw.is_ok() {
            self.settle()?;
            self.ask(&Ask::NatRawOpen {})?;
            match self.settle() {
                Err(Error::Refused(reason)) => self.raw = Err(reason),
                other => other?,
            }
        }
        Ok(self.raw.clone())
    }

    /// Asks the server not to answer segments of TCP on the ports of this check, or to answer them again. A refusal is an error of
    /// [`NatCheck::hear`].
    ///
    /// # Errors
    /// The server is gone.
    pub fn set_tcp_silent(&mut self, silent: bool) -> Result<(), Error> {
        self.ask(&Ask::NatTcp { silent })?;
        self.settle()
    }

    /// The first bytes of the data of raw packets. By them the server knows those of this check.
    pub fn raw_mark(&self) -> [u8; 4] {
        raw_mark(self.number)
    }

    /// Asks the server to send a packet, from its IP header on: behind NAT64 one of IPv4. A refusal is an error of
    /// [`NatCheck::hear`].
    ///
    /// # Errors
    /// The server is gone.
    pub fn send_raw(&mut self, packet: &[u8]) -> Result<(), Error> {
        let mut packet = packet.to_vec();
        let back: Vec<_> = self.names.iter().map(|(real, known)| (*known, *real)).collect();
        readdress(&mut packet, &back);
        self.ask(&Ask::NatRaw { packet: to_hex(&packet) })
    }

    /// The next raw packet that came to the server and was heard of: behind NAT64 one of IPv4.
    pub fn raw_arrival(&mut self) -> Option<Vec<u8>> {
        self.arrived_raw.pop_front()
    }

    fn ask(&mut self, ask: &Ask) -> Result<(), Error> {
        say(&self.visit.line()?, ask)?;
        self.open += 1;
        Ok(())
    }

    /// Hears what is there already.
    ///
    /// # Errors
    /// The server refused to send something, or is gone.
    pub fn hear(&mut self) -> Result<(), Error> {
        while self.hear_one(Duration::ZERO)? {}
        Ok(())
    }

    /// Hears until the server has sent everything that it was asked to. All that came to it before has been heard then.
    ///
    /// # Errors
    /// As [`NatCheck::hear`].
    pub fn settle(&mut self) -> Result<(), Error> {
        while self.open > 0 {
            if !self.hear_one(PATIENCE)? {
                return Err(Error::Gone(crate::frame::Error::Late));
            }
        }
        Ok(())
    }

    /// The next packet that came to the server and was heard of.
    pub fn arrival(&mut self) -> Option<Arrived> {
        self.arrived.pop_front()
    }

    /// False if nothing comes in time.
    fn hear_one(&mut self, patience: Duration) -> Result<bool, Error> {
        let line = self.visit.line()?;
        if !line.await_word(patience)? {
            return Ok(false);
        }
        match hear(&line)? {
            Tell::NatArrived { transport, at: (address, port), from, mark } => {
                let mark = from_hex_up_to(&mark, MARK).ok_or_else(out_of_turn)?;
                let from = self.prefix.map_or(from, |prefix| prefix.known(from));
                self.arrived.push_back(Arrived { transport, at: At { address, port }, from, mark });
            }
            Tell::NatRawArrived { packet } => {
                let packet = from_hex_up_to(&packet, LONGEST_RAW);
                let mut packet = packet.ok_or_else(out_of_turn)?;
                readdress(&mut packet, &self.names);
                self.arrived_raw.push_back(packet);
            }
            Tell::NatSent { refused } if self.open > 0 => {
                self.open -= 1;
                if let Some(reason) = refused {
                    return Err(Error::Refused(reason));
                }
            }
            _ => return Err(out_of_turn()),
        }
        Ok(true)
    }

    /// Ends the check. The conversation goes on.
    ///
    /// # Errors
    /// As [`NatCheck::hear`].
    pub fn finish(mut self) -> Result<(Visit, Bytes), Error> {
        self.settle()?;
        let line = self.visit.line()?;
        say(&line, &Ask::Finish)?;
        loop {
            match hear(&line)? {
                // On their way when the end was asked for.
                Tell::NatArrived { .. } | Tell::NatRawArrived { .. } => {}
                Tell::NatClosed { received_bytes: received, sent_bytes: sent } => {
                    return Ok((self.visit, Bytes { received, sent }));
                }
                _ => return Err(out_of_turn()),
            }
        }
    }
}

impl AsFd for NatCheck {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.visit.socket.as_fd()
    }
}

/// Renames a server's addresses as this client has to write them: the one that it knows the server by, where that is one of them
/// (`own`), and all of IPv4 where it is of IPv6, as behind NAT64.
fn rename(addresses: &mut [IpAddr], own: Option<usize>, known: IpAddr) -> Result<Option<Prefix64>, Error> {
    let mut prefix = None;
    if let Some(own) = own.and_then(|own| addresses.get_mut(own)) {
        if let (IpAddr::V6(known), IpAddr::V4(real)) = (known, *own) {
            prefix = Prefix64::between(known, real);
        }
        *own = known;
    }
    if let Some(prefix) = prefix {
        for address in addresses.iter_mut() {
            *address = prefix.known(SocketAddr::new(*address, 0)).ip();
        }
    }
    match addresses.iter().find(|address| address.is_ipv4() != known.is_ipv4()) {
        Some(other) => Err(Error::Refused(format!(
            "NAT checks are of one version of IP: the server has {other}, and is known here as {known}"
        ))),
        None => Ok(prefix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_the_name_that_the_client_knows() {
        let renamed = |addresses: [&str; 2], own: Option<usize>, known: &str| {
            let mut addresses = addresses.map(|text| text.parse().unwrap());
            let prefix = rename(&mut addresses, own, known.parse().unwrap()).ok()?;
            Some((addresses.map(|address| address.to_string()), prefix.map(|prefix| prefix.to_string())))
        };
        let two = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        // A cloud translates the server's own address.
        assert_eq!(
            renamed(["10.0.0.4", "10.0.0.5"], Some(1), "192.0.2.7"),
            Some((two("10.0.0.4", "192.0.2.7"), None))
        );
        assert_eq!(
            renamed(["192.0.2.7", "192.0.2.8"], Some(0), "64:ff9b::192.0.2.7"),
            Some((two("64:ff9b::c000:207", "64:ff9b::c000:208"), Some("64:ff9b::/96".to_owned())))
        );
        // The client came by an address that serves no checks.
        let both = (two("192.0.2.7", "192.0.2.8"), None);
        assert_eq!(renamed(["192.0.2.7", "192.0.2.8"], None, "192.0.2.9"), Some(both));
        for own in [Some(0), None] {
            assert_eq!(renamed(["192.0.2.7", "192.0.2.8"], own, "2001:2::7"), None);
        }
    }
}
