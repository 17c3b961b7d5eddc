//! Single frames: an agent's endpoint, which sends them and counts those that arrive.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use weir_netlink::Rtnetlink;
use weir_packets::{Endpoint, Engine, Link, Received, Sending, Sent, Stop};
use weir_sys::sched;

use crate::error::{TaskError, lock};

/// The tasks of an endpoint. A host has one endpoint at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketsTask {
    /// Open it, in place of an older one.
    Open {
        /// How the host reaches the path. An empty interface stands for the one that has the address, no core for the first one
        /// that this process may use.
        link: Link,
        /// Which mechanism; `None` takes the best that this host has.
        engine: Option<Engine>,
    },
    /// Begin to count, before anybody sends.
    Expect {
        /// Marks the frames of this transfer.
        cookie: u32,
        /// The frames that the far end sends, if it sends any.
        incoming: Option<Sending>,
        /// Forget the flows learnt so far.
        forget: bool,
    },
    /// The same, and send stamped frames back once they are counted: the far end expects its own sending, and measures round
    /// trips.
    Reflect {
        /// Marks the frames of this transfer.
        cookie: u32,
        /// The frames that the far end sends.
        incoming: Sending,
        /// Forget the flows learnt so far.
        forget: bool,
    },
    /// Send. Answered when all is sent.
    Send {
        /// Marks the frames of this transfer.
        cookie: u32,
        /// The frames to send.
        sending: Sending,
    },
    /// Report the frames received so far.
    Received,
    /// How it works: what counts is known once something was expected.
    Describe,
    /// Stop sending and close it.
    Close,
}

impl PacketsTask {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            PacketsTask::Open { .. } => "opening the packet endpoint",
            PacketsTask::Expect { .. } => "getting ready to count frames",
            PacketsTask::Reflect { .. } => "getting ready to count frames and send them back",
            PacketsTask::Send { .. } => "sending frames",
            PacketsTask::Received => "reading what arrived",
            PacketsTask::Describe => "describing the packet endpoint",
            PacketsTask::Close => "closing the packet endpoint",
        }
    }
}

/// Outcome of a [`PacketsTask`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketsAnswer {
    /// Done; nothing to tell.
    Done,
    /// [`PacketsTask::Describe`].
    Described(Described),
    /// [`PacketsTask::Send`].
    Sent(Sent),
    /// [`PacketsTask::Received`].
    Received(Received),
}

/// How an endpoint works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Its mechanism.
    pub engine: Engine,
    /// The same in words, with the reason where it is not the best one.
    pub words: String,
}

/// The endpoint of an agent, if one is open.
#[derive(Default)]
pub(crate) struct Endpoints {
    open: Mutex<Option<Arc<Endpoint>>>,
    stop: Mutex<Stop>,
    /// Held while frames are being sent.
    sending: Mutex<()>,
}

impl Endpoints {
    pub(crate) fn perform(&self, task: PacketsTask) -> Result<PacketsAnswer, TaskError> {
        match task {
            PacketsTask::Open { link, engine } => {
                self.open(link, engine)?;
                Ok(PacketsAnswer::Done)
            }
            PacketsTask::Expect { cookie, incoming, forget } => {
                self.endpoint()?.expect(cookie, incoming.as_ref(), forget)?;
                Ok(PacketsAnswer::Done)
            }
            PacketsTask::Reflect { cookie, incoming, forget } => {
                self.endpoint()?.reflect(cookie, &incoming, forget)?;
                Ok(PacketsAnswer::Done)
            }
            PacketsTask::Send { cookie, sending } => {
                let stop = lock(&self.stop).clone();
                let _sending = lock(&self.sending);
                Ok(PacketsAnswer::Sent(self.endpoint()?.send(cookie, &sending, &stop)?))
            }
            PacketsTask::Received => Ok(PacketsAnswer::Received(self.endpoint()?.received()?)),
            PacketsTask::Describe => {
                let endpoint = self.endpoint()?;
                Ok(PacketsAnswer::Described(Described {
                    engine: endpoint.engine(),
                    words: endpoint.describe(),
                }))
            }
            PacketsTask::Close => {
                self.close();
                Ok(PacketsAnswer::Done)
            }
        }
    }

    fn open(&self, mut link: Link, engine: Option<Engine>) -> Result<(), TaskError> {
        self.close();
        if link.interface.is_empty() {
            link.interface = interface_of(&link)?;
        }
        if link.cpus.is_empty() {
            link.cpus = sched::allowed_cpus()?.into_iter().take(1).collect();
        }
        *lock(&self.open) = Some(Arc::new(Endpoint::open(&link, engine)?));
        Ok(())
    }

    fn endpoint(&self) -> Result<Arc<Endpoint>, TaskError> {
        lock(&self.open).clone().ok_or_else(|| TaskError::failed("no packet endpoint is open"))
    }

    /// Ends a transfer that is under way; later ones are not concerned.
    pub(crate) fn stop(&self) {
        std::mem::take(&mut *lock(&self.stop)).raise();
    }

    /// When this returns, nothing is sent any more and nothing is attached to the interface.
    pub(crate) fn close(&self) {
        self.stop();
        let _sent = lock(&self.sending);
        *lock(&self.open) = None;
    }
}

/// The interface that has the address.
fn interface_of(link: &Link) -> Result<String, TaskError> {
    let interfaces = Rtnetlink::open()?.interfaces()?;
    let has = |i: &&weir_netlink::Interface| i.addresses.iter().any(|(a, _)| *a == link.address);
    interfaces.iter().find(has).map(|i| i.name.clone()).ok_or_else(|| {
        TaskError::failed(format!("no interface of this host has the address {}", link.address))
    })
}

impl From<weir_packets::Error> for TaskError {
    fn from(error: weir_packets::Error) -> Self {
        TaskError { missing: error.is_missing(), message: error.to_string() }
    }
}
