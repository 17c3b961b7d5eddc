//! The messages between runner and agent.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_gateway::{Carried, Place, Role, VariantKind};
use weir_load::{Part, TrialSettings, Workload};
use weir_record::{Diagnosed, HostFacts, HostSample, Profile, VariantFact};

pub use crate::error::TaskError;
use crate::gateway_side::{GatewayAnswer, GatewayTask};
use crate::packets::{PacketsAnswer, PacketsTask};
use crate::run::{Ran, RunTask};

/// Version of these messages. Both ends must have the same.
pub const PROTOCOL: u32 = 7;

/// Precedes the agent's first frame, so that whatever a login shell prints before it can be skipped.
pub const MARKER: &[u8] = b"\n#weir-agent#\n";

/// The agent's first message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the agent.
    pub protocol: u32,
    /// Version of weir.
    pub version: String,
    /// Its process number on its host.
    pub pid: u32,
}

/// A task with the number under which it will be answered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the runner, unique in the session.
    pub id: u64,
    /// The task to perform.
    pub task: Task,
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Response {
    /// The request's number.
    pub id: u64,
    /// The agent's clock when this was written, ns (CLOCK_MONOTONIC of its host).
    pub clock_ns: u64,
    /// The outcome.
    pub answer: Result<Answer, TaskError>,
}

/// The agent's tasks. They run side by side; the agent answers each one when it is done.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Are you there? Answered at once, whatever else is going on.
    Ping,
    /// Describe the host.
    Facts {
        /// Its role, for the record.
        role: Role,
        /// How it is reached, for the record.
        transport: String,
        /// Interfaces on the measured path; empty for all.
        interfaces: Vec<String>,
    },
    /// Which of these programs are not installed?
    Missing {
        /// Names.
        programs: Vec<String>,
    },
    /// Put a variant into effect and verify what can be verified on the host alone.
    Apply {
        /// Which.
        variant: VariantKind,
        /// As whom.
        role: Role,
        /// The place to apply it.
        place: Place,
        /// Whether the changes must survive a `kill -9` of the agent as an undo list on disk: true on real hosts, whose
        /// network namespace outlives the agent.
        journal: bool,
    },
    /// Take back what [`Task::Apply`] did.
    Remove,
    /// The variant's own counter on the gateway.
    Counter {
        /// Which variant.
        variant: VariantKind,
        /// The place of the variant.
        place: Place,
    },
    /// The counts of the variant's fast path so far, on the host that counts.
    Carried {
        /// Which variant.
        variant: VariantKind,
        /// The place of the variant.
        place: Place,
    },
    /// Packets that the variant has refused so far, on the host that counts.
    Refused {
        /// Which variant.
        variant: VariantKind,
        /// The place of the variant.
        place: Place,
    },
    /// Measure the cost of the variant in effect on this host: memory, time to load.
    VariantFacts {
        /// Which variant.
        variant: VariantKind,
        /// The place of the variant.
        place: Place,
    },
    /// Answer [`Task::Reach`] on this port, TCP and UDP, with the address that asks, until [`Task::CloseEcho`].
    OpenEcho {
        /// Address to listen on.
        bind: SocketAddr,
    },
    /// Stop answering.
    CloseEcho,
    /// Ask the far end's echo who it thinks is asking.
    Reach {
        /// The echo.
        target: SocketAddr,
        /// How long to try.
        timeout: Duration,
    },
    /// Send to the far end's echo from another address, which need not be this host's, and wait for no answer.
    SendFrom {
        /// The source address to send from.
        source: IpAddr,
        /// The echo.
        target: SocketAddr,
        /// Datagrams.
        count: u32,
    },
    /// How many datagrams the open echo has had from that address.
    Heard {
        /// Whose.
        source: IpAddr,
    },
    /// Prepare, restore, flush or count on the gateway, for single frames.
    Gateway(GatewayTask),
    /// Single frames.
    Packets(PacketsTask),
    /// Set kernel settings of the whole machine, until this agent ends, however the runner ends.
    HostSysctls {
        /// Values by dotted name.
        values: BTreeMap<String, String>,
    },
    /// Open a workload's far end.
    Open {
        /// Names the end in [`Task::Finish`].
        session: u64,
        /// Which workload.
        workload: Workload,
        /// With which settings.
        setting: TrialSettings,
        /// Address and port.
        bind: SocketAddr,
    },
    /// Close a workload's far end and tell what it saw.
    Finish {
        /// The session of [`Task::Open`].
        session: u64,
    },
    /// Drive a workload to its end.
    Drive {
        /// Which workload.
        workload: Workload,
        /// With which settings.
        setting: TrialSettings,
        /// Address on which the far end listens, as this host sees it.
        target: SocketAddr,
    },
    /// Sample the host.
    Sample {
        /// Time until the window begins.
        after: Duration,
        /// Length of the window.
        duration: Duration,
        /// Interfaces on the measured path.
        interfaces: Vec<String>,
    },
    /// End the windows of all samplers, profiles and diagnoses now.
    EndSample,
    /// Sample the call stacks of this machine's kernel.
    Profile {
        /// Time until the window begins.
        after: Duration,
        /// Length of the window.
        duration: Duration,
        /// Samples a second and core.
        hz: u32,
        /// True where initiator or responder run on this machine too: their work is then told apart from the gateway's.
        shared: bool,
    },
    /// Watch this host's namespace and say what loses or delays packets. Nothing is changed.
    Diagnose {
        /// Time until the window begins.
        after: Duration,
        /// Length of the window.
        duration: Duration,
    },
    /// Run a command of weir itself, as a child that ends with this agent.
    Run(RunTask),
    /// Stop every workload and command as soon as possible.
    Stop,
}

impl Task {
    /// True if what it does to the host would stay there when the agent is killed.
    pub(crate) fn outlives_agent(&self) -> bool {
        match self {
            Task::Gateway(task) => task.outlives_agent(),
            task => matches!(task, Task::HostSysctls { .. } | Task::Apply { journal: true, .. }),
        }
    }

    /// Names the task in progress, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Task::Ping => "a sign of life",
            Task::Facts { .. } => "describing the host",
            Task::Missing { .. } => "looking for programs",
            Task::Apply { .. } => "applying the variant",
            Task::Remove => "removing the variant",
            Task::Counter { .. } => "reading the variant's counter",
            Task::Carried { .. } => "reading what the fast path carried",
            Task::Refused { .. } => "reading what the variant refused",
            Task::VariantFacts { .. } => "measuring what the variant takes",
            Task::OpenEcho { .. } | Task::CloseEcho | Task::Heard { .. } => "the echo",
            Task::SendFrom { .. } => "sending from another address",
            Task::Reach { .. } => "reaching the far end",
            Task::Gateway(task) => task.name(),
            Task::Packets(task) => task.name(),
            Task::HostSysctls { .. } => "setting the host's sysctls",
            Task::Open { .. } => "opening the workload's far end",
            Task::Finish { .. } => "closing the workload's far end",
            Task::Drive { .. } => "the workload",
            Task::Sample { .. } | Task::EndSample => "sampling",
            Task::Profile { .. } => "profiling the kernel",
            Task::Diagnose { .. } => "the diagnosis",
            Task::Run(_) => "a command of weir",
            Task::Stop => "stopping",
        }
    }
}

/// Outcome of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Done; nothing to tell.
    Done,
    /// [`Task::Facts`].
    Facts(Box<HostFacts>),
    /// [`Task::Missing`].
    Missing(Vec<String>),
    /// [`Task::Counter`], [`Task::Refused`] and [`Task::Heard`].
    Counter(Option<u64>),
    /// [`Task::Carried`].
    Carried(Option<Carried>),
    /// [`Task::VariantFacts`].
    VariantFacts(Vec<VariantFact>),
    /// [`Task::OpenEcho`] and [`Task::Open`]: the port.
    Port(u16),
    /// [`Task::Reach`].
    Reached(Reached),
    /// [`Task::Drive`] and [`Task::Finish`].
    Part(Box<Part>),
    /// [`Task::Gateway`].
    Gateway(GatewayAnswer),
    /// [`Task::Packets`].
    Packets(Box<PacketsAnswer>),
    /// [`Task::Sample`].
    Sample(Box<HostSample>),
    /// [`Task::Profile`].
    Profile(Box<Profile>),
    /// [`Task::Diagnose`].
    Diagnosed(Box<Diagnosed>),
    /// [`Task::Run`].
    Ran(Box<Ran>),
}

/// The reply of the far end's echo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// The source address that the far end saw over TCP.
    pub tcp_source: IpAddr,
    /// The source address that the far end saw over UDP.
    pub udp_source: IpAddr,
}
