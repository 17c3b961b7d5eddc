//! What a host contributes to a transfer: it sends frames and counts those that arrive.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_sys::netlink::Rtnetlink;

use crate::Error;
use crate::deck::{self, Tuple};
use crate::live::LiveSender;
use crate::state::StateTable;
use crate::transfer::{Engine, Link, Received, Sending, Sent, Stop, Way};
use crate::xdp_receiver::XdpReceiver;

/// One end of the path. All is done in the network namespace of the calling thread, which must be the same for every call.
///
/// Sending and counting do not wait for each other: one thread may be in [`Station::send`] while another asks what was
/// [`received`](Station::received).
#[derive(Debug)]
pub struct Station {
    link: Link,
    engine: Engine,
    sender: Mutex<Sender>,
    /// Opened when something is first expected: a station that only sends leaves its interface as it is.
    receiver: Mutex<Option<XdpReceiver>>,
}

/// What sends.
#[derive(Debug)]
struct Sender {
    live: LiveSender,
    /// The order of the last transfer's flows, which the next often has too.
    order: Option<(crate::Tuples, Vec<u32>)>,
}

impl Station {
    /// A station on a link, by the engine that is asked for, or by the best that can be had here.
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
        if engine == Some(Engine::AfPacket) {
            return Err(Error::Missing("this build has no engine on AF_PACKET".into()));
        }
        let live = LiveSender::new(link);
        live.probe()?;
        Ok(Station {
            link: link.clone(),
            engine: Engine::Xdp,
            sender: Mutex::new(Sender { live, order: None }),
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
        let mut words = format!("sends live frames from core {}", cores.join(", "));
        if let Some(receiver) = &*locked(&self.receiver) {
            words += &format!("; counts by {}", receiver.describe());
        }
        words
    }

    /// Begins a transfer: from now on frames with this cookie are counted, if any are to come. `forget` empties the table of
    /// flows that were learnt.
    ///
    /// # Errors
    /// If the receiver cannot be opened.
    pub fn expect(&self, cookie: u32, incoming: Option<&Sending>, forget: bool) -> Result<(), Error> {
        let mut receiver = locked(&self.receiver);
        let receiver = match &mut *receiver {
            Some(receiver) => receiver,
            None if incoming.is_none() => return Ok(()),
            none => {
                let index = Rtnetlink::open()?.interface(&self.link.interface)?.index;
                none.insert(XdpReceiver::open(index, &self.link)?)
            }
        };
        receiver.expect(cookie, incoming, forget)
    }

    /// Sends, and returns when all has left, the time is over, or `stop` is raised (within some milliseconds).
    ///
    /// # Errors
    /// [`Error::Unfit`] for what cannot be sent here: no way to the target, frames too long, a responder that has seen no flow yet.
    pub fn send(&self, cookie: u32, sending: &Sending, stop: &Stop) -> Result<Sent, Error> {
        let mut sender = locked(&self.sender);
        let order = match sender.order.take() {
            Some((tuples, order)) if tuples == sending.tuples => order,
            _ => deck::order(&sending.tuples)?,
        };
        let flows = match self.link.way {
            Way::Egress => order
                .iter()
                .map(|flow| {
                    (*flow, deck::outgoing(&sending.tuples, self.link.address, self.link.target, *flow))
                })
                .collect(),
            Way::Ingress => match &*locked(&self.receiver) {
                Some(receiver) => answers(&order, receiver.learnt()),
                None => Vec::new(),
            },
        };
        sender.order = Some((sending.tuples.clone(), order));
        sender.live.send(cookie, sending, flows, stop)
    }

    /// What has arrived of the transfer that was last expected.
    ///
    /// # Errors
    /// If the receiver cannot be read.
    pub fn received(&self) -> Result<Received, Error> {
        Ok(locked(&self.receiver).as_ref().map(XdpReceiver::received).unwrap_or_default())
    }
}

/// The flows that have come through, answered: from where they arrived to where they came from.
fn answers(order: &[u32], state: &StateTable) -> Vec<(u32, Tuple)> {
    order
        .iter()
        .filter_map(|flow| {
            let seen = state.get(*flow)?;
            let tuple = Tuple {
                source: seen.destination,
                source_port: seen.destination_port,
                destination: seen.source,
                destination_port: seen.source_port,
            };
            Some((*flow, tuple))
        })
        .collect()
}

/// A panic elsewhere leaves nothing half done here that the next transfer does not set anew.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
