//! The server: many clients at once over one port.
//!
//! One thread, the [`acceptor`], accepts, looks at the first bytes of each connection and at each datagram, and gives it to whom it
//! belongs: a client's control connection to a thread of its own ([`session`]), data to the trial that it names, iperf3's
//! to its host. It never waits for anyone. Who has not said by then what he wants is closed after [`Limits::patience`].

mod acceptor;
mod bounds;
mod cut;
mod flood;
mod nat;
mod opening;
mod rate_watch;
mod session;
mod shared;
mod standstill;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use weir_load::{Stop, Workload};

use crate::key::Key;
use crate::{Limits, Port};
use acceptor::Acceptor;
use shared::Shared;
use weir_iperf3::{Ended, Host, Protocol, Way};

pub use nat::{NatPorts, shared_tcp};

/// How long the end waits for the clients' threads. Each is woken; what they have to close takes milliseconds.
const ENDING: Duration = Duration::from_secs(2);

/// Access rules and the log.
pub struct Config {
    /// The key that clients must prove to have; without one, every client that reaches the port may enter.
    pub key: Option<Key>,
    /// Answer stock iperf3 clients, which have no key.
    pub iperf3: bool,
    /// iperf3 clients that ask for the server's output get it as JSON, and not as text.
    pub iperf3_json: bool,
    /// Called with what each client did; from several threads, and it should not take long.
    pub log: Arc<dyn Fn(&Note) + Send + Sync>,
}

/// One line of the server's log.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Note {
    /// The client.
    pub peer: SocketAddr,
    /// Name that the client gives itself; text from outside, so escape it before it goes to a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The requested workload, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Payload bytes that this end received and sent.
    pub received_bytes: u64,
    /// See above.
    pub sent_bytes: u64,
    /// `done`, or what went wrong, in words.
    pub end: String,
}

/// For the fuzzer: whether a connection that begins so belongs to anyone.
pub(crate) fn is_known_opening(bytes: &[u8]) -> bool {
    !matches!(opening::read(bytes), opening::Opening::Stranger | opening::Opening::More)
}

/// For the fuzzer: whether a client that asks for this would get it.
pub(crate) fn would_do(limits: &Limits, workload: Workload, warmup: Duration, duration: Duration) -> bool {
    bounds::fit(limits, workload, warmup, duration).is_ok()
}

impl Note {
    fn of_iperf3(ended: &Ended) -> Note {
        let words = |asked: &weir_iperf3::Asked| {
            let protocol = if asked.protocol == Protocol::Udp { "UDP" } else { "TCP" };
            let title = asked.title.as_deref().map(|t| format!(", {t:?}")).unwrap_or_default();
            let lost = ended.lost.map(|(n, of)| format!(", lost {n} of {of} datagrams")).unwrap_or_default();
            let way = match asked.way {
                Way::Egress => "from the client",
                Way::Ingress => "to the client",
                Way::Both => "both ways",
            };
            format!("{protocol} {way}, {} streams{title}{lost}", asked.streams)
        };
        Note {
            peer: ended.client,
            program: Some("iperf3".to_owned()),
            workload: ended.test.as_ref().map(words),
            seconds: ended.seconds,
            received_bytes: ended.received_bytes,
            sent_bytes: ended.sent_bytes,
            end: ended.error.as_ref().map_or_else(|| "done".to_owned(), ToString::to_string),
        }
    }
}

/// A server that listens.
pub struct Server {
    shared: Arc<Shared>,
    acceptor: Acceptor,
}

impl Server {
    /// Listen on an address. Clients are answered from [`Server::run`] on.
    ///
    /// # Errors
    /// The port is taken or needs a privilege, the address is not this host's, or descriptors have run out.
    pub fn open(address: SocketAddr, limits: Limits, config: Config) -> io::Result<Server> {
        // Each client and each of its streams needs one.
        weir_sys::process::raise_descriptor_limit();
        let (limits, port) = (Arc::new(limits), Arc::new(Port::open(address)?));
        let log = config.log.clone();
        let host = config.iperf3.then(|| {
            Host::new(limits.clone(), port.clone())
                .json_output(config.iperf3_json)
                .log(move |ended| log(&Note::of_iperf3(ended)))
        });
        let shared = Arc::new(Shared::new(config, limits, port)?);
        let acceptor = Acceptor::new(shared.clone(), host)?;
        Ok(Server { shared, acceptor })
    }

    /// Serve NAT checks too, from these addresses and ports. Without this call they are refused.
    #[must_use]
    pub fn with_nat(self, ports: NatPorts) -> Server {
        // A second call changes nothing.
        let _ = self.shared.nat.set(nat::Pool::new(ports));
        self
    }

    /// Returns the listening address, with the port's number.
    pub fn address(&self) -> SocketAddr {
        self.shared.port.address()
    }

    /// Answer clients until `stop` is raised; measurements under way are ended then.
    ///
    /// # Errors
    /// The listening sockets failed.
    pub fn run(mut self, stop: &Stop) -> io::Result<()> {
        let result = self.acceptor.run(stop);
        self.shared.close_lines();
        let deadline = Instant::now() + ENDING;
        while self.shared.lines() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        result
    }
}
