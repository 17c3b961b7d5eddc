//! Real traffic, at rates that any machine can keep up.
//!
//! Every sender and server is a thread that has entered its host. Servers listen before the first client starts.

mod bulk;
mod connects;
mod tcp_server;
mod udp;

use std::io;
use std::net::SocketAddr;
use std::process::Stdio;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_doctor::recipe::{LabHost, Traffic};
use weir_sys::frames::FrameSender;
use weir_sys::process::{Process, spawn};
use weir_sys::{NetNs, Stop};

use crate::Error;
use crate::lab::Hosts;

/// How often a blocked call looks whether it is to end.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// Tick of what is sent at a rate.
const TICK: Duration = Duration::from_millis(2);
/// How long a script may take to end.
const GRACE: Duration = Duration::from_secs(1);

type WorkResult = io::Result<()>;

/// Traffic that runs. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Running {
    stop: Stop,
    threads: Vec<(String, JoinHandle<WorkResult>)>,
    scripts: Vec<Process>,
}

impl Running {
    /// Starts all of it: first servers, then clients.
    pub(crate) fn start(hosts: &Hosts, traffic: &[Traffic]) -> Result<Self, Error> {
        // Many connections may want more files than a shell gives; without them there are fewer connections.
        weir_sys::process::raise_descriptor_limit();
        let mut running = Running { stop: Stop::default(), threads: Vec::new(), scripts: Vec::new() };
        for what in traffic {
            running.serve(hosts, what)?;
        }
        for what in traffic {
            running.send(hosts, what)?;
        }
        Ok(running)
    }

    /// Ends it, and returns what went wrong.
    pub(crate) fn end(mut self) -> Vec<String> {
        self.stop.raise();
        let mut troubles = Vec::new();
        for (name, thread) in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(e)) => troubles.push(format!("{name}: {e}")),
                Err(_) => troubles.push(format!("{name}: panicked")),
            }
        }
        for mut script in self.scripts.drain(..) {
            if let Err(e) = script.stop(GRACE) {
                troubles.push(e.to_string());
            }
        }
        troubles
    }

    fn thread(&mut self, host: &NetNs, name: String, work: impl FnOnce(Stop) -> WorkResult + Send + 'static) {
        let (host, stop) = (host.clone(), self.stop.clone());
        let thread = std::thread::spawn(move || {
            host.enter()?;
            work(stop)
        });
        self.threads.push((name, thread));
    }

    fn serve(&mut self, hosts: &Hosts, what: &Traffic) -> Result<(), Error> {
        match *what {
            Traffic::UdpServer { on, port, buffer, mode } => {
                let host = hosts.host(on)?;
                let name = format!("UDP server on port {port}");
                let socket = host.run(|| udp::open(port, buffer))?.map_err(|e| failed(&name, &e))?;
                self.thread(host, name, move |stop| udp::serve(&socket, mode, &stop));
            }
            Traffic::TcpServer { port, backlog, mode } => {
                let host = hosts.host(LabHost::Responder)?;
                let name = format!("TCP server on port {port}");
                let socket = host.run(|| tcp_server::open(port, backlog))?.map_err(|e| failed(&name, &e))?;
                self.thread(host, name, move |stop| tcp_server::serve(&socket, mode, &stop));
            }
            _ => {}
        }
        Ok(())
    }

    fn send(&mut self, hosts: &Hosts, what: &Traffic) -> Result<(), Error> {
        match what {
            Traffic::UdpServer { .. } | Traffic::TcpServer { .. } => {}
            Traffic::Udp { from, to, size, rate, flows, dont_fragment } => {
                let to = address(to)?;
                let flow =
                    udp::Flow { to, size: *size, rate: *rate, flows: *flows, dont_fragment: *dont_fragment };
                self.client(hosts, *from, format!("UDP to {to}"), move |stop| udp::send(&flow, &stop))?;
            }
            Traffic::Connects { to, rate, bytes, hold } => {
                let to = address(to)?;
                let plan = connects::ConnectTraffic { to, rate: *rate, bytes: *bytes, hold: *hold };
                let name = format!("connections to {to}");
                self.client(hosts, LabHost::Initiator, name, move |stop| connects::run(&plan, &stop))?;
            }
            Traffic::Bulk { to, streams, rate_bps } => {
                let to = address(to)?;
                let each = rate_bps.map(|r| r / u64::from(*streams).max(1));
                for _ in 0..*streams {
                    let name = format!("stream to {to}");
                    self.client(hosts, LabHost::Initiator, name, move |stop| bulk::stream(to, each, &stop))?;
                }
            }
            Traffic::Exchange { to, rate, bytes } => {
                let (to, rate, bytes) = (address(to)?, *rate, *bytes);
                let name = format!("messages to {to}");
                self.client(hosts, LabHost::Initiator, name, move |stop| {
                    bulk::exchange(to, rate, bytes, &stop)
                })?;
            }
            Traffic::Frames { from, rate, frames } => {
                let (index, own, peer) = hosts.macs(*from)?;
                let (frames, rate) = (frames(own, peer), *rate);
                self.client(hosts, *from, "frames on eth0".into(), move |stop| {
                    send_frames(index, &frames, rate, &stop)
                })?;
            }
            Traffic::Script(place, script) => {
                let mut command = hosts.command(hosts.host(*place)?, script);
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                self.scripts.push(spawn(command)?);
            }
        }
        Ok(())
    }

    fn client(
        &mut self,
        hosts: &Hosts,
        from: LabHost,
        name: String,
        work: impl FnOnce(Stop) -> WorkResult + Send + 'static,
    ) -> Result<(), Error> {
        let host = hosts.host(from)?.clone();
        self.thread(&host, name, work);
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.raise();
        for (_, thread) in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn address(text: &str) -> Result<SocketAddr, Error> {
    text.parse().map_err(|_| Error::Recipe(format!("`{text}` is not ADDRESS:PORT")))
}

fn failed(what: &str, error: &io::Error) -> Error {
    Error::Step { what: what.to_owned(), words: error.to_string() }
}

/// Calls `each` so many times a second, until it is asked to stop. Calls that are missed are left out, not caught up: a
/// machine that was away for a while must not be hit by a burst.
pub(super) fn at_rate(rate: u32, stop: &Stop, mut each: impl FnMut() -> WorkResult) -> WorkResult {
    let began = Instant::now();
    let mut done = 0_u64;
    while !stop.raised() {
        let due = (began.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        let most = u64::from(rate / 20).max(1);
        done = done.max(due.saturating_sub(most));
        while done < due {
            each()?;
            done += 1;
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

fn send_frames(interface: u32, frames: &[Vec<u8>], rate: u32, stop: &Stop) -> WorkResult {
    let sender = FrameSender::open(interface).map_err(io::Error::other)?;
    let mut turn = frames.iter().cycle();
    at_rate(rate, stop, || {
        // A full queue is what some recipes are about.
        turn.next().map_or(Ok(()), |frame| forgive(sender.send(frame)))
    })
}

/// Errors that are the point of a recipe, or that its network answers with.
pub(super) fn forgive(result: WorkResult) -> WorkResult {
    const EXPECTED: &[i32] = &[
        // EPERM: a rule of the output hook. ENOBUFS, EAGAIN: queues. ENETUNREACH, EHOSTUNREACH, ECONNREFUSED, EACCES,
        // EINVAL: routes and what ICMP told. EMSGSIZE: path MTU. EADDRNOTAVAIL: ports.
        1, 11, 13, 22, 90, 99, 101, 104, 105, 110, 111, 113, 32,
    ];
    match result {
        Err(e) if e.raw_os_error().is_some_and(|n| EXPECTED.contains(&n)) => Ok(()),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(()),
        other => other,
    }
}
