//! Mapping and filtering by a STUN server with two addresses (RFC 5780), for a NAT of which only the inside is at hand.

mod message;
mod udp;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

pub use message::{Change, Response, request};
pub use udp::UdpExchange;

use crate::Observations;
use crate::observed::{Filtering, Inbound, Mapping, Translation};

/// How long one answer may take (RFC 8489 section 6.2.1: 500 ms before the first retransmission).
const PATIENCE: Duration = Duration::from_millis(500);
/// How often a request is sent before its answer counts as lost.
const ATTEMPTS: usize = 4;
/// Sockets from which each question is asked.
const SOCKETS: usize = 2;

/// A socket at a time, and what it sends and receives.
pub trait Exchange {
    /// Opens a socket with a fresh port, in place of the last one. Returns its own address and port.
    ///
    /// # Errors
    /// If the system refuses.
    fn open(&mut self, server: SocketAddr) -> io::Result<SocketAddr>;

    /// Sends a datagram.
    ///
    /// # Errors
    /// If the system refuses.
    fn send(&mut self, to: SocketAddr, data: &[u8]) -> io::Result<()>;

    /// Returns the next datagram and its source; `None` if none comes within that time.
    ///
    /// # Errors
    /// If the system refuses.
    fn receive(&mut self, patience: Duration) -> io::Result<Option<(SocketAddr, Vec<u8>)>>;
}

/// The server's side of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StunServer {
    /// Its address and port.
    pub address: SocketAddr,
    /// Its other address and port.
    pub other: SocketAddr,
    /// Own address and port, as the client has it.
    pub local: SocketAddr,
    /// The same, as the server saw it.
    pub mapped: SocketAddr,
    /// Requests that it answered from another endpoint than asked: it cannot tell filters apart.
    pub ignores_change: bool,
}

/// A server that cannot help.
#[derive(Debug)]
pub enum StunError {
    /// No answer came.
    Silent,
    /// It has no second address, so it sees no dependence on one.
    OneAddress,
    /// The system refused.
    System(io::Error),
}

impl std::fmt::Display for StunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StunError::Silent => f.write_str("no answer from the STUN server"),
            StunError::OneAddress => f.write_str(
                "the STUN server has no second address (OTHER-ADDRESS of RFC 5780); use one that has two",
            ),
            StunError::System(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for StunError {}

impl From<io::Error> for StunError {
    fn from(e: io::Error) -> Self {
        StunError::System(e)
    }
}

/// Asks the server about mapping and filtering of UDP. The other fields of the observations stay empty.
///
/// # Errors
/// If the server does not answer, has one address only, or the system refuses.
pub fn measure(
    exchange: &mut dyn Exchange,
    address: SocketAddr,
) -> Result<(StunServer, Observations), StunError> {
    let mut client = Client { exchange, serial: 0 };
    let local = client.exchange.open(address)?;
    let first = client.ask(address, Change::Nothing)?.ok_or(StunError::Silent)?;
    let mapped = first.response.mapped.ok_or(StunError::Silent)?;
    // A server of one address may give that one as the other.
    let other =
        first.response.other.filter(|other| other.ip() != address.ip() && other.port() != address.port());
    let other = other.ok_or(StunError::OneAddress)?;
    let mut server = StunServer { address, other, local, mapped, ignores_change: false };
    let mut mappings = Vec::new();
    let mut filters = Vec::new();
    for _ in 0..SOCKETS {
        mappings.push(client.mapping(&server)?);
        filters.push(client.filtering(&mut server)?);
    }
    let observations = Observations {
        udp_mapping: Some(mappings),
        udp_filtering: (!server.ignores_change).then_some(filters),
        ..Observations::default()
    };
    Ok((server, observations))
}

/// A response and where it came from.
struct Answer {
    from: SocketAddr,
    response: Response,
}

struct Client<'a> {
    exchange: &'a mut dyn Exchange,
    serial: u32,
}

impl Client<'_> {
    /// One transaction, with retransmissions; `None` if no answer came.
    fn ask(&mut self, to: SocketAddr, change: Change) -> io::Result<Option<Answer>> {
        self.serial += 1;
        let transaction = message::transaction(self.serial);
        let bytes = request(transaction, change);
        for _ in 0..ATTEMPTS {
            self.exchange.send(to, &bytes)?;
            while let Some((from, data)) = self.exchange.receive(PATIENCE)? {
                if let Some(response) = Response::read(&data, transaction) {
                    return Ok(Some(Answer { from, response }));
                }
            }
        }
        Ok(None)
    }

    /// RFC 5780 section 4.3, with all four endpoints of the server.
    fn mapping(&mut self, server: &StunServer) -> io::Result<Mapping> {
        let inside = self.exchange.open(server.address)?;
        let (near, far) = (server.address, server.other);
        let to = [near, SocketAddr::new(near.ip(), far.port()), SocketAddr::new(far.ip(), near.port()), far];
        let mut seen = to.map(|to| translation(inside, to, None));
        for (translation, to) in seen.iter_mut().zip(to) {
            let answer = self.ask(to, Change::Nothing)?;
            translation.seen = answer.and_then(|answer| answer.response.mapped);
        }
        Ok(Mapping { seen })
    }

    /// RFC 5780 section 4.4. The plain request comes first and last: it opens the mapping, and proves that it is still there.
    fn filtering(&mut self, server: &mut StunServer) -> io::Result<Filtering> {
        let inside = self.exchange.open(server.address)?;
        let to = server.address;
        let seen = self.ask(to, Change::Nothing)?.and_then(|answer| answer.response.mapped);
        let (near, far) = (server.address, server.other);
        let both = self.stranger(server, Change::AddressAndPort, inside, far)?;
        let port = SocketAddr::new(near.ip(), far.port());
        let same_address = self.stranger(server, Change::Port, inside, port)?;
        let answer = self.ask(to, Change::Nothing)?;
        let answer = Inbound { reached: answer.map(|_| inside), sure: true, answered: None };
        let mapping = translation(inside, to, seen);
        Ok(Filtering { mapping, same_address, other_address: both, answer })
    }

    /// A request whose answer comes from another endpoint of the server.
    fn stranger(
        &mut self,
        server: &mut StunServer,
        change: Change,
        inside: SocketAddr,
        expected: SocketAddr,
    ) -> io::Result<Inbound> {
        let answer = self.ask(server.address, change)?;
        let from = answer.map(|answer| answer.from);
        server.ignores_change |= from.is_some_and(|from| from != expected);
        Ok(Inbound { reached: from.map(|_| inside), sure: true, answered: None })
    }
}

fn translation(inside: SocketAddr, to: SocketAddr, seen: Option<SocketAddr>) -> Translation {
    Translation { inside, to, seen, sure: true }
}
