//! The runner's end of one agent.

mod error;
mod pulse;

use std::collections::HashMap;
use std::io::{self, BufReader, Read};
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_sys::clock::now_ns;
use weir_sys::process::{self, Process, run_with_input};

pub use error::Error;
use error::failed;
use pulse::Pulse;

use crate::frame;
use crate::protocol::{Answer, Hello, MARKER, PROTOCOL, Request, Response, Task, TaskError};
use crate::transport::{ABSENT, Options, Transport, own_bytes};

/// An agent must show itself within this time after its start, its host's login included.
const START: Duration = Duration::from_secs(10);

/// A host that has not answered for this long, though asked every [`TICK`], is given up. With what is left to do then (other
/// hosts end, the record is written) the user hears of it within ten seconds.
const SILENCE: Duration = Duration::from_secs(6);

/// How long a host that answers may take to undo what was done to it.
const LEAVE: Duration = Duration::from_secs(8);

/// How often a waiting runner asks whether the agent is there.
const TICK: Duration = Duration::from_secs(1);

/// A runner that has not asked for this long was stopped itself, or its machine was: it has not read what the host said, either.
const AWAY: Duration = Duration::from_secs(3);

/// Longest copy of the binary to a host.
const COPY: Duration = Duration::from_secs(60);

/// Most that is kept of what a host prints before the agent's first word.
const NOISE: usize = 64 << 10;

/// The number of every [`Task::Ping`] of [`Remote::check`]; no caller waits for its answer.
const SIGN_OF_LIFE: u64 = 0;

type Waiting = HashMap<u64, Sender<Result<Answer, TaskError>>>;

/// State that the reading thread shares with the callers.
#[derive(Debug)]
struct Shared {
    waiting: Mutex<Option<Waiting>>,
    /// When the agent was asked for a sign of life and has not answered since; and when it was asked last.
    asked: Mutex<Option<Instant>>,
    nudged: Mutex<Option<Instant>>,
    pulse: Mutex<Pulse>,
    said: Mutex<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running agent. Dropping it ends the agent, which undoes what it did.
#[derive(Debug)]
pub struct Remote {
    name: String,
    transport: String,
    outlives_agent: bool,
    process: Mutex<Process>,
    input: Mutex<Option<ChildStdin>>,
    next: Mutex<u64>,
    shared: Arc<Shared>,
    /// Closes when nothing more can come on its standard error.
    all_said: Mutex<Receiver<()>>,
}

/// A task that was begun and not yet answered.
#[derive(Debug)]
pub struct Pending<'a> {
    remote: &'a Remote,
    what: &'static str,
    answer: Receiver<Result<Answer, TaskError>>,
}

impl Remote {
    /// Starts an agent; `name` is what messages call the host.
    ///
    /// # Errors
    /// Within ten seconds (a first copy of the binary may take longer), with what the host said.
    pub fn start(name: &str, transport: &Transport, options: &Options) -> Result<Self, Error> {
        match Self::try_start(name, transport, options)? {
            Started::Running(remote) => Ok(*remote),
            Started::Absent(kind) => {
                install(name, transport, &kind)?;
                match Self::try_start(name, transport, options)? {
                    Started::Running(remote) => Ok(*remote),
                    Started::Absent(_) => {
                        Err(failed(name, "this binary was copied there, but the copy cannot be executed"))
                    }
                }
            }
        }
    }

    fn try_start(name: &str, transport: &Transport, options: &Options) -> Result<Started, Error> {
        let command = transport.start_command(options).map_err(|e| failed(name, e))?;
        let program = command.get_program().to_string_lossy().into_owned();
        let mut process = process::spawn(command).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound if transport.is_remote() => {
                Error::NoProgram { host: name.to_owned(), program }
            }
            _ => failed(name, e),
        })?;
        let (Some(input), Some(output), Some(errors)) =
            (process.stdin.take(), process.stdout.take(), process.stderr.take())
        else {
            return Err(failed(name, "no pipes"));
        };
        let shared = Arc::new(Shared {
            waiting: Mutex::new(Some(HashMap::new())),
            asked: Mutex::new(None),
            nudged: Mutex::new(None),
            pulse: Mutex::new(Pulse::default()),
            said: Mutex::new(String::new()),
        });
        let listener = shared.clone();
        let (still_talking, all_said) = channel();
        thread("agent-stderr", move || {
            keep_last_words(errors, &listener);
            drop(still_talking);
        })?;
        let (first, greeting) = channel();
        let reader = shared.clone();
        thread("agent-reader", move || read_answers(BufReader::new(output), &first, &reader))?;
        let remote = Remote {
            name: name.to_owned(),
            transport: transport.to_string(),
            outlives_agent: transport.outlives_agent(),
            process: Mutex::new(process),
            input: Mutex::new(Some(input)),
            next: Mutex::new(1),
            shared,
            all_said: Mutex::new(all_said),
        };
        match greeting.recv_timeout(START) {
            Ok(First::Hello(hello)) if hello.protocol == PROTOCOL => Ok(Started::Running(Box::new(remote))),
            Ok(First::Hello(hello)) => {
                Err(Error::Version { host: name.to_owned(), theirs: hello.version, protocol: hello.protocol })
            }
            Ok(First::Absent(kind)) => Ok(Started::Absent(kind)),
            Ok(First::Noise(noise)) => {
                let ended = remote.how_it_ended();
                let hint = if options.program.is_none() { remote.why_not_executed() } else { "" };
                Err(failed(name, join(&[&ended, &noise, hint])))
            }
            Err(_) => Err(failed(name, format!("no word from it within {} s", START.as_secs()))),
        }
    }

    /// Returns the host's name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it is reached.
    pub fn transport(&self) -> &str {
        &self.transport
    }

    /// True if changes to the host outlive the agent.
    pub fn outlives_agent(&self) -> bool {
        self.outlives_agent
    }

    /// The process here: the agent itself, or the program that reaches it.
    pub fn pid(&self) -> u32 {
        lock(&self.process).pid()
    }

    /// Begins a task.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn begin(&self, task: Task) -> Result<Pending<'_>, Error> {
        let what = task.name();
        let (answer, receiver) = channel();
        let id = {
            let mut next = lock(&self.next);
            *next += 1;
            *next
        };
        match lock(&self.shared.waiting).as_mut() {
            Some(waiting) => waiting.insert(id, answer),
            None => return Err(self.lost()),
        };
        self.send(&Request { id, task })?;
        Ok(Pending { remote: self, what, answer: receiver })
    }

    /// Performs a task that takes less than `limit`.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn call(&self, task: Task, limit: Duration) -> Result<Answer, Error> {
        self.begin(task)?.wait(limit, &|| Ok(()))
    }

    fn send(&self, request: &Request) -> Result<(), Error> {
        match lock(&self.input).as_mut() {
            Some(input) => frame::write(input, request).map_err(|_| self.lost()),
            None => Err(self.lost()),
        }
    }

    /// Whether the agent is there: asks it for a sign of life once a second, and does not wait for the answer. Call it
    /// again and again while waiting for something else.
    ///
    /// # Errors
    /// [`Error::Lost`] once it has ended, [`Error::Hung`] after six seconds without an answer in which this was called all the time.
    pub fn check(&self) -> Result<(), Error> {
        if lock(&self.shared.waiting).is_none() {
            return Err(self.lost());
        }
        if self.is_silent() {
            if !was_away(*lock(&self.shared.nudged)) {
                return Err(Error::Hung { host: self.name.clone() });
            }
            *lock(&self.shared.asked) = None;
        }
        let due = {
            let mut nudged = lock(&self.shared.nudged);
            let due = nudged.is_none_or(|at| at.elapsed() > TICK);
            if due {
                *nudged = Some(Instant::now());
            }
            due
        };
        if due {
            // Before it is sent: the answer may be here at once.
            lock(&self.shared.asked).get_or_insert_with(Instant::now);
            lock(&self.shared.pulse).ask(now_ns());
            self.send(&Request { id: SIGN_OF_LIFE, task: Task::Ping })?;
        }
        Ok(())
    }

    /// True if the agent got a request and has not answered for too long. Silence without a request proves nothing.
    fn is_silent(&self) -> bool {
        lock(&self.shared.asked).is_some_and(|at| at.elapsed() > SILENCE)
    }

    /// How fast the agent's clock has run since `since_ns` (CLOCK_MONOTONIC of this machine), 1 being this machine's, if it
    /// differs by more than 1 % for certain. Times and rates of that host are then wrong. It is seen from the answers to
    /// [`Remote::check`], so not before there are two.
    pub fn clock_drift(&self, since_ns: u64) -> Option<f64> {
        lock(&self.shared.pulse).drift(since_ns)
    }

    fn lost(&self) -> Error {
        Error::Lost { host: self.name.clone(), reason: self.how_it_ended() }
    }

    /// How the process ended, with its last words.
    fn how_it_ended(&self) -> String {
        let ended = lock(&self.process).wait(Duration::from_millis(500));
        let ended = match ended {
            Ok(Some(ended)) => format!("it ended with {}", ended.status),
            Ok(None) => "its connection broke".to_owned(),
            Err(e) => e.to_string(),
        };
        join(&[&ended, &self.last_words()])
    }

    /// Returns the agent's last output. A process may end before this side has read all its output, so this waits for the end of
    /// its standard error. The wait is short, since another process may keep it open.
    fn last_words(&self) -> String {
        let _ = lock(&self.all_said).recv_timeout(Duration::from_millis(500));
        lock(&self.shared.said).trim().to_owned()
    }

    /// Returns advice if the host's shell could not execute the copy (POSIX.1-2017, XCU 2.8.2: 126 and 127).
    fn why_not_executed(&self) -> &'static str {
        match lock(&self.process).try_wait() {
            Ok(Some(ended)) if matches!(ended.status.code(), Some(126 | 127)) => {
                "the copy of this binary cannot run there, perhaps for want of the C library that it was built with: install \
                 a weir that runs there, and set `program`"
            }
            _ => "",
        }
    }

    /// Ends the agent in order: it undoes what it did. Returns what it said that went wrong.
    pub fn end(&self) -> Option<String> {
        // The end of its input is the sign.
        *lock(&self.input) = None;
        let mut process = lock(&self.process);
        match process.wait(self.patience()) {
            Ok(Some(ended)) if ended.status.success() => None,
            Ok(Some(ended)) => {
                let ended = format!("the agent on {} ended with {}", self.name, ended.status);
                Some(join(&[&ended, &self.last_words()]))
            }
            Ok(None) => {
                let _ = process.kill();
                Some(format!("the agent on {} did not end within {} s", self.name, self.patience().as_secs()))
            }
            Err(e) => Some(e.to_string()),
        }
    }

    /// How long its end is worth waiting for.
    fn patience(&self) -> Duration {
        if self.is_silent() { Duration::ZERO } else { LEAVE }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        *lock(&self.input) = None;
        let mut process = lock(&self.process);
        if !matches!(process.wait(self.patience()), Ok(Some(_))) {
            // Its host undoes what it can from the list on disk.
            let _ = process.kill();
        }
    }
}

impl Pending<'_> {
    /// Waits for the answer, at most `limit`, while making sure that the agent is there, and of whatever else `watch` does.
    ///
    /// # Errors
    /// As [`Remote::check`], [`Error::Slow`] after the limit, what `watch` says, and what the host says.
    pub fn wait(self, limit: Duration, watch: &dyn Fn() -> Result<(), Error>) -> Result<Answer, Error> {
        let start = Instant::now();
        loop {
            match self.answer.recv_timeout(Duration::from_millis(100)) {
                Ok(answer) => {
                    return answer.map_err(|source| Error::Task { host: self.remote.name.clone(), source });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.remote.lost()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            watch()?;
            self.remote.check()?;
            if start.elapsed() > limit {
                return Err(Error::Slow { host: self.remote.name.clone(), what: self.what, limit });
            }
        }
    }
}

/// Whether this process, which asked an agent last at that time, had no time itself since.
fn was_away(nudged: Option<Instant>) -> bool {
    nudged.is_some_and(|at| at.elapsed() > AWAY)
}

enum Started {
    Running(Box<Remote>),
    /// The host has no copy; what it is (`uname -sm`).
    Absent(String),
}

/// The first output of a started agent.
enum First {
    Hello(Hello),
    Absent(String),
    Noise(String),
}

fn join(parts: &[&str]) -> String {
    parts.iter().copied().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(": ")
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
    spawned.map(drop).map_err(|e| failed("this machine", e))
}

/// Copies this binary to the host.
fn install(name: &str, transport: &Transport, kind: &str) -> Result<(), Error> {
    let own = weir_sys::uname::Uname::current();
    let own = format!("Linux {}", own.machine);
    if kind != own {
        return Err(failed(
            name,
            format!("it is `{kind}` and this machine is `{own}`: install weir there and set `program`"),
        ));
    }
    let bytes = own_bytes().map_err(|e| failed(name, format!("read this binary: {e}")))?;
    let command = transport.install_command(bytes.len()).map_err(|e| failed(name, e))?;
    let output =
        run_with_input(command, &bytes, COPY).map_err(|e| failed(name, format!("copy this binary: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(name, format!("copy this binary: {}", output.message())))
}

/// Reads the greeting, then answers, until the stream ends; then releases all waiting callers.
fn read_answers(mut stream: impl Read, first: &Sender<First>, shared: &Shared) {
    let greeting = greet(&mut stream);
    let is_agent = matches!(greeting, First::Hello(_));
    // If no caller waits for the greeting any more, weir is already ending the process.
    let _ = first.send(greeting);
    if is_agent {
        while let Ok(Some(Response { id, clock_ns, answer })) = frame::read(&mut stream) {
            *lock(&shared.asked) = None;
            if id == SIGN_OF_LIFE {
                lock(&shared.pulse).hear(clock_ns, now_ns());
            }
            if let Some(waiting) = lock(&shared.waiting).as_mut().and_then(|w| w.remove(&id)) {
                let _ = waiting.send(answer);
            }
        }
    }
    *lock(&shared.waiting) = None;
}

/// Skips what the login prints until the agent's marker.
fn greet(stream: &mut impl Read) -> First {
    let mut noise = Vec::new();
    let mut byte = [0u8];
    while noise.len() < NOISE {
        match stream.read(&mut byte) {
            Ok(1) => noise.push(byte[0]),
            _ => break,
        }
        if noise.ends_with(MARKER) {
            return match frame::read::<Hello>(stream) {
                Ok(Some(hello)) => First::Hello(hello),
                other => First::Noise(format!("a broken greeting: {other:?}")),
            };
        }
    }
    let text = String::from_utf8_lossy(&noise).into_owned();
    match text.lines().find_map(|line| line.split_once(ABSENT)) {
        Some((_, kind)) => First::Absent(kind.trim().to_owned()),
        None => First::Noise(text.trim().chars().take(500).collect()),
    }
}

/// Keeps the last 2,000 bytes of standard error for messages.
fn keep_last_words(mut errors: impl Read, shared: &Shared) {
    let mut buffer = [0u8; 1024];
    while let Ok(n @ 1..) = errors.read(&mut buffer) {
        let mut said = lock(&shared.said);
        said.push_str(&String::from_utf8_lossy(&buffer[..n]));
        if said.len() > 2000 {
            let cut = said.char_indices().map(|(i, _)| i).find(|i| said.len() - i <= 2000);
            said.drain(..cut.unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent that says nothing. It was asked for a sign of life first and last that many seconds ago.
    fn mute(first: u64, last: u64) -> Remote {
        let ago = |seconds| Mutex::new(Instant::now().checked_sub(Duration::from_secs(seconds)));
        let mut command = std::process::Command::new("cat");
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
        let mut process = process::spawn(command).unwrap();
        Remote {
            name: "mute".to_owned(),
            transport: "local".to_owned(),
            outlives_agent: false,
            input: Mutex::new(process.stdin.take()),
            process: Mutex::new(process),
            next: Mutex::new(1),
            shared: Arc::new(Shared {
                waiting: Mutex::new(Some(HashMap::new())),
                asked: ago(first),
                nudged: ago(last),
                pulse: Mutex::new(Pulse::default()),
                said: Mutex::new(String::new()),
            }),
            all_said: Mutex::new(channel().1),
        }
    }

    #[test]
    fn a_runner_that_had_no_time_itself_asks_again() {
        let hangs = |first, last| matches!(mute(first, last).check(), Err(Error::Hung { .. }));
        assert_eq!([hangs(7, 1), hangs(5, 1), hangs(7, 4)], [true, false, false]);
        // The silence counts from the new question on.
        let remote = mute(60, 60);
        remote.check().unwrap();
        assert!(!remote.is_silent());
        *lock(&remote.shared.asked) = Instant::now().checked_sub(Duration::from_secs(7));
        assert!(matches!(remote.check(), Err(Error::Hung { .. })));
    }
}
