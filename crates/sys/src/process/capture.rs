//! Running a program to its end and keeping what it printed.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::{Process, command_line, spawn, timespec};
use crate::error::{Context, Error, Result};

/// Bytes kept of each of standard output and standard error; a program may print more, which is read and dropped.
pub const OUTPUT_LIMIT: usize = 4 << 20;

/// Result of a program that ran to its end.
#[derive(Debug, Clone)]
pub struct Output {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// Standard output, at most [`OUTPUT_LIMIT`] bytes.
    pub stdout: Vec<u8>,
    /// Standard error, at most [`OUTPUT_LIMIT`] bytes.
    pub stderr: Vec<u8>,
    /// True if more was printed than was kept.
    pub truncated: bool,
    /// CPU time (user and system) it used.
    pub cpu: Duration,
}

impl Output {
    /// Standard output as text.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns the text to show for a failure: standard error, or standard output if that is empty, or the exit status.
    pub fn message(&self) -> String {
        for bytes in [&self.stderr, &self.stdout] {
            let text = String::from_utf8_lossy(bytes);
            if !text.trim().is_empty() {
                return text.trim().to_owned();
            }
        }
        self.status.to_string()
    }
}

/// Runs a command to its end without input. It ends with this process (see the module).
///
/// # Errors
/// `NotFound` if there is no such program; `TimedOut` if it ran longer than `timeout`, in which case its process group was
/// killed and the error carries the last of what it printed. An exit code other than 0 is not an error here.
pub fn run_captured(command: Command, timeout: Duration) -> Result<Output> {
    run_with_input(command, b"", timeout)
}

/// As [`run_captured`], with `input` on standard input.
pub fn run_with_input(mut command: Command, input: &[u8], timeout: Duration) -> Result<Output> {
    let what = format!("run {}", command_line(&command));
    command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = spawn(command)?;
    let deadline = Instant::now() + timeout;
    let mut pipes = Pipes::new(&mut process, input).context(|| what.clone())?;
    while process.ended.is_none() {
        if Instant::now() >= deadline {
            process.kill()?;
            pipes.drain().context(|| what.clone())?;
            let words = pipes.last_words();
            let why = format!("still running after {:.1} s, stopped{words}", timeout.as_secs_f64());
            return Err(Error::new(what, io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        pipes.turn(process.as_fd(), deadline).context(|| what.clone())?;
        process.try_wait()?;
    }
    // The program's own output is in the pipes now. One of its children may hold them open for ever (a daemon): do not wait for
    // it.
    pipes.drain().context(|| what.clone())?;
    let ended = process.ended.ok_or_else(|| Error::other(what, "it did not end"))?;
    Ok(Output {
        status: ended.status,
        stdout: pipes.stdout.kept,
        stderr: pipes.stderr.kept,
        truncated: pipes.stdout.truncated || pipes.stderr.truncated,
        cpu: ended.cpu,
    })
}

/// One output of the program.
struct Stream<R> {
    pipe: Option<R>,
    kept: Vec<u8>,
    truncated: bool,
}

impl<R: Read + AsFd> Stream<R> {
    fn new(pipe: Option<R>) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            set_nonblocking(pipe.as_fd())?;
        }
        Ok(Stream { pipe, kept: Vec::new(), truncated: false })
    }

    /// Reads what is there.
    fn drain(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(n) => {
                    let room = (OUTPUT_LIMIT - self.kept.len()).min(n);
                    self.kept.extend_from_slice(&buffer[..room]);
                    self.truncated |= room < n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// The program's standard streams, all served by one thread.
struct Pipes<'a> {
    stdin: Option<std::process::ChildStdin>,
    input: &'a [u8],
    stdout: Stream<std::process::ChildStdout>,
    stderr: Stream<std::process::ChildStderr>,
}

impl<'a> Pipes<'a> {
    fn new(process: &mut Process, input: &'a [u8]) -> io::Result<Self> {
        let stdin = process.stdin.take();
        if let Some(pipe) = &stdin {
            set_nonblocking(pipe.as_fd())?;
        }
        let (stdout, stderr) = (Stream::new(process.stdout.take())?, Stream::new(process.stderr.take())?);
        Ok(Pipes { stdin, input, stdout, stderr })
    }

    /// Waits until something can be read or written, the program ends, or the deadline comes; then does it.
    fn turn(&mut self, ended: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
        let mut fds = vec![PollFd::from_borrowed_fd(ended, PollFlags::IN)];
        fds.extend(self.stdout.pipe.as_ref().map(|p| PollFd::new(p, PollFlags::IN)));
        fds.extend(self.stderr.pipe.as_ref().map(|p| PollFd::new(p, PollFlags::IN)));
        fds.extend(self.stdin.as_ref().map(|p| PollFd::new(p, PollFlags::OUT)));
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        self.feed()?;
        self.drain()
    }

    fn drain(&mut self) -> io::Result<()> {
        self.stdout.drain()?;
        self.stderr.drain()
    }

    fn feed(&mut self) -> io::Result<()> {
        while let Some(pipe) = &mut self.stdin {
            if self.input.is_empty() {
                self.stdin = None;
                break;
            }
            match pipe.write(self.input) {
                Ok(n) => self.input = &self.input[n..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A program may end or close its input before it has read all of it; its exit status says the rest.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => self.stdin = None,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// The end of what was printed, for a message.
    fn last_words(&self) -> String {
        let bytes = if self.stderr.kept.is_empty() { &self.stdout.kept } else { &self.stderr.kept };
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(400)..]).trim().to_owned();
        if text.is_empty() { text } else { format!("; it printed: {text}") }
    }
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}
