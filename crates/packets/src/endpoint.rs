//! A host's part in a transfer: it sends frames and counts those that arrive.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_netlink::Rtnetlink;

use crate::Error;
use crate::flow_order::{self, Tuple};
use crate::live::LiveSender;
use crate::raw::{RawReceiver, RawSender};
use crate::state::StateTable;
use crate::transfer::{Engine, Inject, Link, Received, Sending, Sent, Stop, Way};
use crate::xdp_receiver::XdpReceiver;

/// One end of the path. All is done in the network namespace of the calling thread, which must be the same for every call.
///
/// Sending and counting do not wait for each other: one thread may be in [`Endpoint::send`] while another asks what was
/// [`received`](Endpoint::received).
#[derive(Debug)]
pub struct Endpoint {
    link: Link,
    engine: Engine,
    /// XDP was asked for, so that nothing else may take over.
    strict: bool,
    /// Why it is not the better engine, where that was not asked for.
    reason: Option<String>,
    sender: Mutex<Sender>,
    /// Opened when something is first expected: an endpoint that only sends leaves its interface as it is.
    receiver: Mutex<Option<Receiver>>,
}

/// The sending side.
#[derive(Debug)]
struct Sender {
    /// `None` if the engine is the other.
    live: Option<LiveSender>,
    raw: RawSender,
    /// The order of the last transfer's flows, which the next often has too.
    order: Option<(crate::Tuples, Vec<u32>)>,
}

/// The counting side.
#[derive(Debug)]
enum Receiver {
    Xdp(Box<XdpReceiver>),
    Raw(RawReceiver),
}

impl Endpoint {
    /// An endpoint on a link, by the engine that is asked for, or by the best that can be had here: live frames and XDP, else packet
    /// sockets, with the reason in [`Endpoint::describe`]. Frames longer than live frames carry go by packet sockets unless XDP is asked for.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Bpf`] if the privilege or the kernel's part is missing; [`Error::Unfit`] for a link without
    /// cores, or with more than 16.
    pub fn open(link: &Link, engine: Option<Engine>) -> Result<Self, Error> {
        if link.cpus.is_empty() || link.cpus.len() > crate::shared::WEIR_STREAMS as usize {
            return Err(Error::Unfit(format!(
                "{} sending cores: there must be 1 to {}",
                link.cpus.len(),
                crate::shared::WEIR_STREAMS
            )));
        }
        let (live, raw) = (LiveSender::new(link), RawSender::new(link));
        let strict = engine == Some(Engine::Xdp);
        let (engine, reason) = match engine {
            Some(Engine::Xdp) => (live.probe().map(|()| Engine::Xdp)?, None),
            Some(Engine::AfPacket) => (raw.probe().map(|()| Engine::AfPacket)?, None),
            None => match live.probe() {
                Ok(()) => (Engine::Xdp, None),
                // Only live frames enter without a link.
                Err(e) if link.inject == Inject::Gateway => return Err(e),
                Err(e) => (raw.probe().map(|()| Engine::AfPacket)?, Some(e.to_string())),
            },
        };
        let live = (engine == Engine::Xdp).then_some(live);
        Ok(Endpoint {
            link: link.clone(),
            engine,
            strict,
            reason,
            sender: Mutex::new(Sender { live, raw, order: None }),
            receiver: Mutex::new(None),
        })
    }

    /// By which mechanism frames are sent and counted here.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The same in words, for the record.
    pub fn describe(&self) -> String {
        let cores: Vec<String> = self.link.cpus.iter().map(ToString::to_string).collect();
        let mut words = match self.engine {
            Engine::Xdp => format!("sends live frames from core {}", cores.join(", ")),
            Engine::AfPacket => format!("sends by packet sockets from core {}", cores.join(", ")),
        };
        if let Some(reason) = &self.reason {
            words += &format!(" (live frames cannot be had here: {reason})");
        } else if self.engine == Engine::Xdp && !self.strict {
            words += &format!(" (by packet sockets beyond {} bytes)", LiveSender::LONGEST);
        }
        match &*locked(&self.receiver) {
            Some(Receiver::Xdp(receiver)) => words += &format!("; counts by {}", receiver.describe()),
            Some(Receiver::Raw(receiver)) => words += &format!("; counts by {}", receiver.describe()),
            None => {}
        }
        words
    }

    /// Begins a transfer: from now on frames with this cookie are counted, if any are to come. `forget` empties the table of
    /// flows that were learnt.
    ///
    /// # Errors
    /// If the receiver cannot be opened.
    pub fn expect(&self, cookie: u32, incoming: Option<&Sending>, forget: bool) -> Result<(), Error> {
        self.begin(cookie, incoming, forget, false)
    }

    /// The same, and stamped frames are sent back where they came from once they are counted. Their sender expects its own
    /// sending with the same cookie: what it receives as delay is then the round trip, by one clock (RFC 2681).
    ///
    /// # Errors
    /// [`Error::Unfit`] with packet sockets; as [`Endpoint::expect`].
    pub fn reflect(&self, cookie: u32, incoming: &Sending, forget: bool) -> Result<(), Error> {
        if self.engine != Engine::Xdp {
            return Err(Error::Unfit(format!(
                "stamped frames are sent back by XDP only, and this endpoint {}",
                self.describe()
            )));
        }
        self.begin(cookie, Some(incoming), forget, true)
    }

    fn begin(
        &self,
        cookie: u32,
        incoming: Option<&Sending>,
        forget: bool,
        reflect: bool,
    ) -> Result<(), Error> {
        let mut receiver = locked(&self.receiver);
        let receiver = match &mut *receiver {
            Some(receiver) => receiver,
            None if incoming.is_none() => return Ok(()),
            none => {
                let index = Rtnetlink::open()?.interface(&self.link.interface)?.index;
                none.insert(match self.engine {
                    Engine::Xdp => Receiver::Xdp(Box::new(XdpReceiver::open(index, &self.link)?)),
                    Engine::AfPacket => Receiver::Raw(RawReceiver::open(index, &self.link)?),
                })
            }
        };
        match receiver {
            Receiver::Xdp(receiver) => {
                receiver.reflect(reflect);
                receiver.expect(cookie, incoming, forget)
            }
            Receiver::Raw(receiver) => receiver.expect(cookie, incoming, forget),
        }
    }

    /// Sends, and returns when all has left, the time is over, or `stop` is raised (within some milliseconds).
    ///
    /// # Errors
    /// [`Error::Unfit`] for what cannot be sent here: no way to the target, frames too long for the link or for the engine that was
    /// asked for, a responder that has seen no flow yet.
    pub fn send(&self, cookie: u32, sending: &Sending, stop: &Stop) -> Result<Sent, Error> {
        let mut sender = locked(&self.sender);
        let order = match sender.order.take() {
            Some((tuples, order)) if tuples == sending.tuples => order,
            _ => flow_order::order(&sending.tuples)?,
        };
        let flows = self.flows(&order, sending);
        sender.order = Some((sending.tuples.clone(), order));
        match &mut sender.live {
            Some(live) if self.strict || LiveSender::carries(sending.frame.bytes) => {
                live.send(cookie, sending, flows, stop)
            }
            _ => sender.raw.send(cookie, sending, &flows, stop),
        }
    }

    /// The flows as they are sent from here, in the order given.
    fn flows(&self, order: &[u32], sending: &Sending) -> Vec<(u32, Tuple)> {
        match self.link.way {
            Way::Egress => order
                .iter()
                .map(|flow| {
                    (*flow, flow_order::outgoing(&sending.tuples, self.link.address, self.link.target, *flow))
                })
                .collect(),
            Way::Ingress => match &*locked(&self.receiver) {
                Some(Receiver::Xdp(receiver)) => answers(order, receiver.learnt()),
                Some(Receiver::Raw(receiver)) => receiver.with_learnt(|state| answers(order, state)),
                None => Vec::new(),
            },
        }
    }

    /// Returns the counts so far of the transfer that was last expected.
    ///
    /// # Errors
    /// If the receiver cannot be read.
    pub fn received(&self) -> Result<Received, Error> {
        match &mut *locked(&self.receiver) {
            Some(Receiver::Xdp(receiver)) => Ok(receiver.received()),
            Some(Receiver::Raw(receiver)) => receiver.received(),
            None => Ok(Received::default()),
        }
    }
}

/// The flows that have come through, answered: from where they arrived to where they came from.
fn answers(order: &[u32], state: &StateTable) -> Vec<(u32, Tuple)> {
    order.iter().filter_map(|flow| Some((*flow, state.get(*flow)?.reversed()))).collect()
}

/// A panic elsewhere leaves nothing half done here that the next transfer does not set anew.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
