//! The client's part of a NAT check: asks the server to send through the NAT, and hears what came there.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{Error, PATIENCE, Visit, out_of_turn};
use crate::frame::{Line, MOST_FROM_SERVER};
use crate::key::{from_hex_up_to, to_hex};
use crate::message::{Ask, NatAsk, Tell};
use crate::nat::{At, Endpoints, MARK, Transport};

/// A packet of this client, as the server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// Its protocol.
    pub transport: Transport,
    /// The server's endpoint that it came to.
    pub at: At,
    /// Its source there.
    pub from: SocketAddrV4,
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
    round_trip: Duration,
    /// Words of this end that the server has not answered.
    open: u32,
    arrived: VecDeque<Arrived>,
}

impl NatCheck {
    /// Asks for a check's endpoints. The address that this client knows the server by stands for the server's own one.
    ///
    /// # Errors
    /// The server does not serve checks, has no free ports, or is gone.
    pub fn open(visit: Visit) -> Result<NatCheck, Error> {
        let line = Line::new(&visit.socket, MOST_FROM_SERVER)?;
        let begun = Instant::now();
        line.say(&Ask::NatOpen {}, PATIENCE).map_err(Error::Gone)?;
        let (number, own, mut addresses, ports) = match line.hear(PATIENCE).map_err(Error::Gone)? {
            Tell::NatOpened { number, own, addresses, ports } => (number, own, addresses, ports),
            Tell::Refused { reason } => return Err(Error::Refused(reason)),
            _ => return Err(Error::Gone(out_of_turn())),
        };
        let round_trip = begun.elapsed();
        if !(1..=2).contains(&addresses.len()) || ports[0] == ports[1] || ports.contains(&0) {
            return Err(Error::Gone(out_of_turn()));
        }
        let own = own.and_then(|own| addresses.get_mut(usize::from(own)));
        if let (Some(own), IpAddr::V4(known)) = (own, visit.server.ip().to_canonical()) {
            *own = known;
        }
        let endpoints = Endpoints { addresses, ports };
        Ok(NatCheck { visit, number, endpoints, round_trip, open: 0, arrived: VecDeque::new() })
    }

    /// The server's endpoints.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// The number that begins each packet of this check.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How long the server took to answer.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
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
        (at, to): (At, SocketAddrV4),
        mark: &[u8],
    ) -> Result<(), Error> {
        let ask = NatAsk { transport, answer, at: (at.address, at.port), to, mark: to_hex(mark) };
        let line = Line::new(&self.visit.socket, MOST_FROM_SERVER)?;
        line.say(&Ask::Nat(ask), PATIENCE).map_err(Error::Gone)?;
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
        let line = Line::new(&self.visit.socket, MOST_FROM_SERVER)?;
        if !line.await_word(patience)? {
            return Ok(false);
        }
        match line.hear(PATIENCE).map_err(Error::Gone)? {
            Tell::NatArrived { transport, at: (address, port), from, mark } => {
                let mark = from_hex_up_to(&mark, MARK).ok_or_else(|| Error::Gone(out_of_turn()))?;
                self.arrived.push_back(Arrived { transport, at: At { address, port }, from, mark });
            }
            Tell::NatSent { refused } if self.open > 0 => {
                self.open -= 1;
                if let Some(reason) = refused {
                    return Err(Error::Refused(reason));
                }
            }
            Tell::Refused { reason } => return Err(Error::Refused(reason)),
            _ => return Err(Error::Gone(out_of_turn())),
        }
        Ok(true)
    }

    /// Ends the check. The conversation goes on.
    ///
    /// # Errors
    /// As [`NatCheck::hear`].
    pub fn finish(mut self) -> Result<(Visit, Bytes), Error> {
        self.settle()?;
        let line = Line::new(&self.visit.socket, MOST_FROM_SERVER)?;
        line.say(&Ask::Finish, PATIENCE).map_err(Error::Gone)?;
        loop {
            match line.hear(PATIENCE).map_err(Error::Gone)? {
                // On their way when the end was asked for.
                Tell::NatArrived { .. } => {}
                Tell::NatClosed { received_bytes: received, sent_bytes: sent } => {
                    return Ok((self.visit, Bytes { received, sent }));
                }
                Tell::Refused { reason } => return Err(Error::Refused(reason)),
                _ => return Err(Error::Gone(out_of_turn())),
            }
        }
    }
}

impl AsFd for NatCheck {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.visit.socket.as_fd()
    }
}
