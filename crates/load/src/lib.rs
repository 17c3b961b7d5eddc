//! Traffic through sockets: senders, receivers, meters.
//!
//! A workload has two ends. The responder's end is opened first ([`Engine::open`]) on a port that the runner
//! names; then the initiator's end drives it ([`Engine::drive`]): the initiator opens every connection, whichever way
//! the data goes, so that all of it works behind a NAT. Each end returns a [`Part`] with what it saw; [`Engine::combine`]
//! makes the trial's metrics out of the parts. One file per workload; a new one is registered in [`Workload::engine`].
//!
//! No async runtime: own threads, blocking or epoll.

mod child;
mod connector;
pub mod error;
pub mod external;
pub mod http;
pub mod incoming;
mod latency;
pub mod limits;
mod listener;
mod mmsg;
pub mod mtu;
pub mod observer;
mod pace;
pub mod part;
pub mod port;
pub mod properties;
pub mod rr;
mod series;
pub mod setting;
mod socket;
mod source;
mod streams;
pub mod tcp_connect;
pub mod tcp_crr;
pub mod tcp_stream;
pub mod udp_handshake;
pub mod udp_stream;
mod window;

/// Socket calls that neither the standard library nor rustix has, for protocols of others that need not be engines here.
pub mod sockets {
    pub use crate::mmsg::{Datagram, ReceiveBatch};
    pub use crate::socket::{
        TcpInfo, TcpOptions, connect_tcp, get_int, precise_sleeps, set_int, set_receive_buffer, tcp_info,
    };
    pub use crate::source::send_from;
}

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_record::MetricDef;

pub use error::Error;
pub use observer::{FlowFigures, Observer};
pub use part::Part;
pub use properties::Properties;
pub use setting::{Direction, Stop, TrialSettings};

/// The traffic and its measurement: one `[[workload]]` of a scenario, distinguished by `kind`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Workload {
    /// Bulk TCP.
    TcpStream(tcp_stream::TcpStream),
    /// Datagrams at a rate or unlimited.
    UdpStream(udp_stream::UdpStream),
    /// Request and response over one TCP connection.
    TcpRr(rr::TcpRr),
    /// Request and response over UDP.
    UdpRr(rr::UdpRr),
    /// Time to connect, open loop at a rate.
    TcpConnect(tcp_connect::TcpConnect),
    /// Connect, request, response, close; per second.
    TcpCrr(tcp_crr::TcpCrr),
    /// HTTP/1.1 requests.
    Http(http::Http),
    /// Path MTU and fragments.
    Mtu(mtu::Mtu),
    /// Another program, for comparison.
    External(external::External),
}

impl Workload {
    /// The engine behind the kind.
    pub fn engine(&self) -> &dyn Engine {
        match self {
            Workload::TcpStream(w) => w,
            Workload::UdpStream(w) => w,
            Workload::TcpRr(w) => w,
            Workload::UdpRr(w) => w,
            Workload::TcpConnect(w) => w,
            Workload::TcpCrr(w) => w,
            Workload::Http(w) => w,
            Workload::Mtu(w) => w,
            Workload::External(w) => w,
        }
    }

    /// The direction of a stream; `None` where the traffic is requests and their answers.
    pub fn stream_direction(&self) -> Option<Direction> {
        match self {
            Workload::TcpStream(w) => Some(w.direction),
            Workload::UdpStream(w) => Some(w.direction),
            Workload::TcpRr(_)
            | Workload::UdpRr(_)
            | Workload::TcpConnect(_)
            | Workload::TcpCrr(_)
            | Workload::Http(_)
            | Workload::Mtu(_)
            | Workload::External(_) => None,
        }
    }
}

/// One workload's two ends.
pub trait Engine {
    /// The kind as written in scenarios, e.g. `tcp-stream`.
    fn kind(&self) -> &'static str;

    /// Describes the workload and its options in one line for people.
    fn describe(&self) -> String;

    /// Options out of range or contradicting each other: one message that names the key and what is valid.
    fn validate(&self) -> Result<(), String>;

    /// Returns its demands on a host. There is no default: a new workload must state them.
    fn properties(&self) -> Properties;

    /// The metrics that [`Engine::combine`] fills in, headline ones first.
    fn metrics(&self) -> Vec<MetricDef>;

    /// Programs that the initiator runs.
    fn programs(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Programs that the responder runs; those of the initiator unless the workload says otherwise.
    fn responder_programs(&self) -> Vec<&'static str> {
        self.programs()
    }

    /// How long after the window's end the initiator may go on waiting for what it began.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }

    /// Open the responder's end. When this returns, the initiator may start.
    fn open(&self, setting: &TrialSettings, bind: SocketAddr) -> Result<Box<dyn Responder>, Error>;

    /// Opens the responder's end for connections that the owner of a shared port accepts and hands over.
    ///
    /// # Errors
    /// If the workload has no responder of weir's own, or for the same reasons as [`Engine::open`].
    fn serve(
        &self,
        setting: &TrialSettings,
        queue: incoming::HandoverQueue,
    ) -> Result<Box<dyn Responder>, Error> {
        let _ = (setting, queue);
        Err(Error::Resources(format!("{} cannot be served over a shared port", self.kind())))
    }

    /// Drive the workload from the initiator. Returns when warm-up and measuring window are over, or soon after
    /// [`TrialSettings::stop`] is raised.
    fn drive(&self, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error>;

    /// Make the trial's metrics, histograms, series and faults out of what the two ends saw.
    /// Several initiators and responders may have taken part.
    fn combine(&self, initiators: &[Part], responders: &[Part]) -> Part;
}

/// The responder's end while it is open. Dropping it closes it.
pub trait Responder: Send {
    /// The port it listens on.
    fn port(&self) -> u16;

    /// Called when the initiator is done: stop, and return what was seen. Returns within a second.
    fn finish(self: Box<Self>) -> Result<Part, Error>;
}
