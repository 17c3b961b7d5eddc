//! A host with an open endpoint for single frames.

use std::time::Duration;

use weir_agent::packets::{Described, PacketsAnswer, PacketsTask};
use weir_agent::{Answer, Task};
use weir_packets::live::LiveSender;
use weir_packets::workload::Packets;
use weir_packets::{Engine, Link, Received, Sending};

use crate::SHORT;
use crate::error::Error;
use crate::error::unexpected;
use crate::packets_path::Path;
use crate::site::Member;

/// Loading and attaching BPF programs takes a moment, more so on a machine under full load.
const OPEN: Duration = Duration::from_secs(20);

/// A host with an open endpoint.
#[derive(Clone, Copy)]
pub(crate) struct End<'a>(pub(crate) &'a Member);

impl<'a> End<'a> {
    /// Opens its endpoint, by the mechanism that the workload asks for.
    pub(crate) fn open(path: Path<'_>, member: &'a Member, link: Link) -> Result<Self, Error> {
        let engine = path.packets.engine.engine();
        let pending = member.agent.begin(Task::Packets(PacketsTask::Open { link, engine }))?;
        pending.wait(OPEN, path.watch)?;
        Ok(End(member))
    }

    /// Gets it ready to count what comes in.
    pub(crate) fn expect(&self, cookie: u32, incoming: Option<&Sending>, forget: bool) -> Result<(), Error> {
        let task = PacketsTask::Expect { cookie, incoming: incoming.cloned(), forget };
        self.0.agent.call(Task::Packets(task), OPEN)?;
        Ok(())
    }

    /// The same, and sends stamped frames back.
    pub(crate) fn reflect(&self, cookie: u32, incoming: &Sending, forget: bool) -> Result<(), Error> {
        let task = PacketsTask::Reflect { cookie, incoming: incoming.clone(), forget };
        self.0.agent.call(Task::Packets(task), OPEN)?;
        Ok(())
    }

    /// Describes how the endpoint works.
    pub(crate) fn described(&self) -> Result<Described, Error> {
        match self.ask(PacketsTask::Describe)? {
            PacketsAnswer::Described(described) => Ok(described),
            other => Err(unexpected(&other)),
        }
    }

    /// Describes why the endpoint fell back from the best mechanism, if it did; `sends`: this end sends the frames.
    pub(crate) fn fallback(&self, packets: &Packets, sends: bool) -> Result<Option<String>, Error> {
        if packets.engine.engine().is_some() {
            return Ok(None);
        }
        let (described, role) = (self.described()?, self.0.role.name());
        Ok(if described.engine != Engine::Xdp {
            Some(format!("single frames at the {role}: {}", described.words))
        } else if sends && packets.outgrows_live_frames() {
            let bytes = packets.frame_bytes.unwrap_or_default();
            Some(format!(
                "single frames at the {role}: those of {bytes} bytes are sent by packet sockets (AF_PACKET), since live frames (XDP) have at \
                 most {}",
                LiveSender::LONGEST
            ))
        } else {
            None
        })
    }

    /// Returns the frames received so far.
    pub(crate) fn received(&self) -> Result<Received, Error> {
        match self.ask(PacketsTask::Received)? {
            PacketsAnswer::Received(received) => Ok(received),
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&self, task: PacketsTask) -> Result<PacketsAnswer, Error> {
        match self.0.agent.call(Task::Packets(task), SHORT)? {
            Answer::Packets(answer) => Ok(*answer),
            other => Err(unexpected(&other)),
        }
    }
}

/// The interface on the path where it is known; an empty name where the host must look for its address.
pub(crate) fn only(member: &Member) -> String {
    member.interfaces.first().cloned().unwrap_or_default()
}
