//! Talking to the process that keeps the fast path of this network namespace.
//!
//! It listens at an abstract Unix socket (unix(7)). The kernel keeps such names per network namespace, gives each to one process, and
//! forgets it with that process: so there is one fast path per namespace, nothing is left on disk, and a look from another mount
//! namespace (`ip netns exec`) finds it, too.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{
    AttachedBy, ChangeCount, Error, Exclusion, Flow, Learns, Lesson, Protocol, Reason, Result, Times, Top,
    Wanted, WayOut, XdpInterface,
};

const NAME: &str = "weir-fastpath";
/// Longest time for a question and its answer: the resident process does nothing that takes longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest question, bytes: 64 exclusions are far less.
const LONGEST: u64 = 1 << 16;

/// A question to the resident process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Question {
    Now,
    Flows { most: usize },
    Count,
    Top { most: usize },
    Explain { protocol: Protocol, source: SocketAddr, destination: SocketAddr },
    Keep,
    Pause { pause: bool },
    Exclude { kept: Vec<Exclusion> },
    End,
}

/// Packets with a reason.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ReasonCount {
    /// Why they were carried or not.
    pub reason: Reason,
    /// Packets; a super-packet (GSO) is one.
    pub packets: u64,
    /// Bytes, from the Ethernet header on.
    pub bytes: u64,
}

/// Attempts to learn a flow, by result.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct LessonCount {
    /// The result.
    pub result: Lesson,
    /// Attempts.
    pub attempts: u64,
}

/// The fast path of this namespace.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Now {
    /// Name of what was applied: the same wish has the same one.
    pub id: String,
    /// The process that keeps it.
    pub pid: u32,
    /// Seconds since it began.
    pub since_s: u64,
    /// Seconds until it ends, unless it is confirmed.
    pub trial_left_s: Option<u64>,
    /// The wish in effect.
    pub wanted: Wanted,
    /// Exclusions that are kept, and in effect beside those of the wish. One that began with an earlier version does not tell.
    #[serde(default)]
    pub kept: Vec<Exclusion>,
    /// Interfaces that the programs are attached to.
    pub interfaces: Vec<String>,
    /// True if that is all of them.
    pub attached: bool,
    /// How they are attached. A process of an earlier version does not tell: it knows TCX only.
    #[serde(default)]
    pub attached_by: AttachedBy,
    /// The part that asks conntrack about a flow. A process of an earlier version does not tell: there the programs do.
    #[serde(default)]
    pub learns: Learns,
    /// True while everything takes the kernel's way at the user's wish.
    pub paused: bool,
    /// True if IPv6 is carried.
    pub carries_ipv6: bool,
    /// Number of changes of rules, routes, neighbours and interfaces, after which all was learnt anew; modulo 65536.
    pub generation: u32,
    /// The same by kind, not modulo anything; those that never happened are left out.
    #[serde(default)]
    pub changes: Vec<ChangeCount>,
    /// Directions of flows in the table that are not stale. A connection has two.
    pub directions: u64,
    /// Packets that came in, by reason; those with none are left out.
    pub reasons: Vec<ReasonCount>,
    /// Packets that XDP saw, by its verdict; those with none are left out. It left all but the carried ones to tc.
    #[serde(default)]
    pub by_xdp: Vec<ReasonCount>,
    /// The interfaces with XDP.
    #[serde(default)]
    pub drivers: Vec<XdpInterface>,
    /// Attempts to learn a flow, by result; those with none are left out.
    pub lessons: Vec<LessonCount>,
    /// The time that carrying saves. A process of an earlier version does not tell.
    #[serde(default)]
    pub times: Times,
}

/// The process that keeps a fast path, for a look that must not wait for it.
#[derive(Debug, Clone)]
pub enum Presence {
    /// There is none.
    None,
    /// It answers.
    Answers(Box<Now>),
    /// It does not answer in time.
    Silent {
        /// The process.
        pid: u32,
    },
}

/// The fate of the packets of one direction.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Explained {
    /// Source with which they come in.
    pub source: SocketAddr,
    /// Destination with which they come in.
    pub destination: SocketAddr,
    /// Verdict on a usual packet.
    pub reason: Reason,
    /// The same in words, with what conntrack says.
    pub why: String,
    /// How they leave, if they are in the table.
    pub out: Option<WayOut>,
}

/// The resident process, seen from another one.
#[derive(Debug)]
pub struct Visit {
    pid: u32,
}

fn address() -> Result<UnixAddress> {
    UnixAddress::from_abstract_name(NAME).map_err(|e| failed(&e))
}

fn failed(error: &std::io::Error) -> Error {
    Error::State(format!("the process that keeps the fast path does not answer: {error}"))
}

/// Takes the name of this namespace.
pub(crate) fn listen() -> Result<UnixListener> {
    let listener = UnixListener::bind_addr(&address()?).map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => Error::State("a fast path is in effect here already".into()),
        _ => failed(&e),
    })?;
    listener.set_nonblocking(true).map_err(|e| failed(&e))?;
    Ok(listener)
}

/// Whether the other end is this user's, or root's; its process.
fn trusted(stream: &UnixStream) -> Result<u32> {
    let peer = rustix::net::sockopt::socket_peercred(stream).map_err(|e| failed(&e.into()))?;
    if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
        return Ok(peer.pid.as_raw_nonzero().get().unsigned_abs());
    }
    Err(Error::State(format!("a process of user {} holds the name of the fast path", peer.uid.as_raw())))
}

/// Reads a question and answers it. A caller that is not trusted, or breaks off, gets none.
/// The answer is JSON.
pub(crate) fn answer(stream: UnixStream, reply: impl FnOnce(Question) -> Result<String>) {
    let talk = || -> Result<()> {
        trusted(&stream)?;
        stream.set_nonblocking(false).map_err(|e| failed(&e))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(|e| failed(&e))?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(|e| failed(&e))?;
        let mut line = String::new();
        BufReader::new((&stream).take(LONGEST)).read_line(&mut line).map_err(|e| failed(&e))?;
        let question = serde_json::from_str(&line).map_err(|e| Error::State(e.to_string()))?;
        // As serde writes a `Result`, which `read_answer` reads.
        let text = match reply(question) {
            Ok(said) => format!("{{\"Ok\":{said}}}\n"),
            Err(e) => format!("{{\"Err\":{}}}\n", serde_json::Value::from(e.to_string())),
        };
        (&stream).write_all(text.as_bytes()).map_err(|e| failed(&e))
    };
    // The caller sees that it got no answer; nothing else waits for this.
    let _ = talk();
}

impl Visit {
    /// The resident process of the calling thread's network namespace; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::State`] if another user's process holds its name.
    pub fn find() -> Result<Option<Self>> {
        Ok(connect()?.map(|(_, pid)| Visit { pid }))
    }

    /// Returns how things are; `None` if no fast path is in effect.
    ///
    /// # Errors
    /// If the process does not answer.
    pub fn look() -> Result<Option<Now>> {
        match Visit::find()?.map(|visit| visit.now()).transpose() {
            Err(Error::Gone) => Ok(None),
            now => now,
        }
    }

    /// Returns how things are, or that the process does not answer in time. Changes nothing.
    ///
    /// # Errors
    /// [`Error::State`] if this user is not trusted by the process, or another user's process holds the name.
    pub fn presence(patience: Duration) -> Result<Presence> {
        let Some((stream, pid)) = connect()? else { return Ok(Presence::None) };
        if !rustix::process::geteuid().is_root() && !is_own(&stream)? {
            return Err(Error::State("a fast path is in effect, and its state needs root".into()));
        }
        let line = match exchange(&stream, &Question::Now, patience) {
            Ok(line) => line,
            Err(Asked::Gone) => return Ok(Presence::None),
            Err(Asked::Silent) => return Ok(Presence::Silent { pid }),
            Err(Asked::Failed(e)) => return Err(e),
        };
        read_answer(&line).map(|now| Presence::Answers(Box::new(now)))
    }

    fn ask<T: DeserializeOwned>(&self, question: &Question) -> Result<T> {
        let (stream, _) = connect()?.ok_or(Error::Gone)?;
        match exchange(&stream, question, PATIENCE) {
            Ok(line) => read_answer(&line),
            Err(Asked::Gone) => Err(Error::Gone),
            Err(Asked::Silent) => Err(failed(&ErrorKind::TimedOut.into())),
            Err(Asked::Failed(e)) => Err(e),
        }
    }

    /// Returns how things are.
    ///
    /// # Errors
    /// If the process does not answer, as of every question.
    pub fn now(&self) -> Result<Now> {
        self.ask(&Question::Now)
    }

    /// Directions of flows in the table, at most so many.
    ///
    /// # Errors
    /// If the process does not answer.
    pub fn flows(&self, most: usize) -> Result<Vec<Flow>> {
        self.ask(&Question::Flows { most })
    }

    /// Begins to count the packets of each direction of a flow, until [`Visit::top`], for a minute at most.
    ///
    /// # Errors
    /// If the process does not answer, or another user looks at the same time.
    pub fn begin_count(&self) -> Result<()> {
        self.ask(&Question::Count)
    }

    /// Ends that: the directions of flows with most bytes since, at most so many.
    ///
    /// # Errors
    /// If the process does not answer, or the count was not begun or took too long.
    pub fn top(&self, most: usize) -> Result<Top> {
        self.ask(&Question::Top { most })
    }

    /// The fate of packets that come in with these addresses and ports, and of the answers to them, if conntrack knows those.
    ///
    /// # Errors
    /// If the process does not answer.
    pub fn explain(
        &self,
        protocol: Protocol,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Result<Vec<Explained>> {
        self.ask(&Question::Explain { protocol, source, destination })
    }

    /// Ends its trial: it stays.
    ///
    /// # Errors
    /// If the process does not answer.
    pub fn keep(&self) -> Result<()> {
        self.ask(&Question::Keep)
    }

    /// Leaves everything to the kernel, or goes on.
    ///
    /// # Errors
    /// If the process does not answer.
    pub fn pause(&self, pause: bool) -> Result<()> {
        self.ask(&Question::Pause { pause })
    }

    /// Leaves these flows and those of the wish to the kernel, and no others, until it ends: [`crate::ExclusionStore`] keeps them.
    ///
    /// # Errors
    /// If there are more than 64, or the process does not answer.
    pub fn exclude(&self, kept: Vec<Exclusion>) -> Result<()> {
        self.ask(&Question::Exclude { kept })
    }

    /// Ends it, and returns when its programs are detached. A process that does not answer is killed: then they are, too.
    ///
    /// # Errors
    /// If it cannot be killed.
    pub fn end(&self) -> Result<()> {
        let answered = self.ask::<()>(&Question::End);
        let deadline = Instant::now() + PATIENCE;
        while answered.is_ok() && Instant::now() < deadline {
            match connect()? {
                Some((_, pid)) if pid == self.pid => std::thread::sleep(Duration::from_millis(10)),
                _ => return Ok(()),
            }
        }
        if connect()?.is_none_or(|(_, pid)| pid != self.pid) {
            return Ok(());
        }
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        let killed = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
        match killed {
            Some(Ok(())) => Ok(()),
            _ => Err(Error::State(format!("process {} keeps the fast path and does not end", self.pid))),
        }
    }
}

/// Whether the other end is this user's.
fn is_own(stream: &UnixStream) -> Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(stream).map_err(|e| failed(&e.into()))?;
    Ok(peer.uid == rustix::process::geteuid())
}

/// Why there is no answer.
enum Asked {
    /// The process has ended.
    Gone,
    /// It does not answer in time.
    Silent,
    /// The system refused.
    Failed(Error),
}

impl From<std::io::Error> for Asked {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            // A process that breaks off on the way has been killed.
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected => Asked::Gone,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Asked::Silent,
            _ => Asked::Failed(failed(&error)),
        }
    }
}

/// Asks, and returns the line that comes back.
fn exchange(
    mut stream: &UnixStream,
    question: &Question,
    patience: Duration,
) -> std::result::Result<String, Asked> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let mut text = serde_json::to_string(question).map_err(|e| Asked::Failed(Error::State(e.to_string())))?;
    text.push('\n');
    stream.write_all(text.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if line.is_empty() { Err(Asked::Gone) } else { Ok(line) }
}

fn read_answer<T: DeserializeOwned>(line: &str) -> Result<T> {
    let said: std::result::Result<T, String> = serde_json::from_str(line)
        .map_err(|e| Error::State(format!("another version of weir keeps it: {e}")))?;
    said.map_err(Error::State)
}

fn connect() -> Result<Option<(UnixStream, u32)>> {
    match UnixStream::connect_addr(&address()?) {
        Ok(stream) => {
            let pid = trusted(&stream)?;
            Ok(Some((stream, pid)))
        }
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Ok(None),
        Err(e) => Err(failed(&e)),
    }
}
