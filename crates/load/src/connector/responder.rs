//! The responder: one thread, one epoll, accepts, answers and closes.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, listen, recv, send, sockopt};
use weir_record::{Fault, FaultCode};

use super::slab::Slab;
use super::{Close, Exchange};
use crate::incoming::{Closer, TcpIncoming};
use crate::latency::dial::wait_ready;
use crate::latency::kernel::own_descriptors;
use crate::latency::{STOP_LOOK_NS, Span, pin, preamble};
use crate::socket::{abort_on_close, set_int};
use crate::window::CpuMeter;
use crate::{Error, Part, Responder, TrialSettings};

/// Connections that wait to be accepted; the kernel allows no more than net.core.somaxconn.
const BACKLOG: i32 = 65_535;

/// Seconds that the kernel holds back a connection without a request (TCP_DEFER_ACCEPT, tcp(7)): then one receive follows the
/// accept and nothing needs to be waited for. Purely local, nothing changes on the wire.
const DEFER_S: i32 = 5;

const EVENTS: usize = 256;

/// Most connections at a time that may be handed over, so that one client of a shared port does not get all descriptors.
const MOST_HANDED: usize = 4096;

/// Token of the listening socket; a connection's has a slot of at most 2^31.
const LISTENER: u64 = u64::MAX;

/// The responder's end of `tcp-connect` and `tcp-crr`.
#[derive(Debug)]
pub(crate) struct ConnectionResponder {
    port: u16,
    closer: Closer,
    closing: Arc<AtomicBool>,
    server: Option<JoinHandle<Result<Part, Error>>>,
}

impl ConnectionResponder {
    /// Listen. Without an exchange, connections are taken and held until the initiator resets them.
    pub(crate) fn open(
        setting: &TrialSettings,
        bind: SocketAddr,
        exchange: Option<Exchange>,
    ) -> Result<Self, Error> {
        let failed = |source| Error::Listen { address: bind, source };
        let incoming = TcpIncoming::own(bind).map_err(failed)?;
        if let Some(listener) = incoming.listener() {
            listen(listener, BACKLOG).map_err(|e| failed(e.into()))?;
            if exchange.is_some() {
                set_int(listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, DEFER_S).map_err(failed)?;
            }
            // Inherited by what is accepted.
            prepare(listener, exchange).map_err(failed)?;
        }
        Self::serve(setting, incoming, exchange)
    }

    /// The same for what comes in at that incoming.
    pub(crate) fn serve(
        setting: &TrialSettings,
        incoming: TcpIncoming,
        exchange: Option<Exchange>,
    ) -> Result<Self, Error> {
        weir_sys::process::raise_descriptor_limit();
        let own = Error::io("look up the own port");
        let port = incoming.port().map_err(&own)?;
        let closer = Closer::of(&incoming).map_err(&own)?;
        let closing = Arc::new(AtomicBool::new(false));
        let server = {
            let (closing, setting) = (closing.clone(), setting.clone());
            std::thread::Builder::new()
                .name("connections".into())
                .spawn(move || {
                    // Connections that are handed over belong to the table of descriptors that all threads share.
                    if let Some(listener) = incoming.listener() {
                        own_descriptors(Some(listener.as_fd()));
                    }
                    pin(&setting, 0)?;
                    Server::new(&incoming, &setting, exchange)?.run(&closing)
                })
                .map_err(Error::io("start a thread"))?
        };
        Ok(ConnectionResponder { port, closer, closing, server: Some(server) })
    }

    fn close(&mut self) -> Option<Result<Part, Error>> {
        let server = self.server.take()?;
        self.closing.store(true, Ordering::Release);
        self.closer.wake();
        Some(server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for ConnectionResponder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.close();
        }
    }
}

impl Responder for ConnectionResponder {
    fn port(&self) -> u16 {
        self.port
    }

    fn finish(mut self: Box<Self>) -> Result<Part, Error> {
        self.close().unwrap_or_else(|| Ok(Part::default()))
    }
}

/// Sets the options of each connection, or of the socket that they come from.
fn prepare(socket: impl AsFd, exchange: Option<Exchange>) -> std::io::Result<()> {
    let socket = socket.as_fd();
    if exchange.is_some() {
        sockopt::set_tcp_nodelay(socket, true)?;
    }
    // Without an exchange, nothing is left behind by those still open at the end.
    if exchange.is_none_or(|e| e.close == Close::Reset) {
        abort_on_close(socket)?;
    }
    Ok(())
}

#[derive(Debug)]
struct Connection {
    fd: OwnedFd,
    received: usize,
    sent: usize,
}

enum Next {
    Wait,
    Close,
}

struct Server<'a> {
    incoming: &'a TcpIncoming,
    exchange: Option<Exchange>,
    epoll: OwnedFd,
    connections: Slab<Connection>,
    service: Service<'a>,
    accepted: u64,
    error: Option<Errno>,
}

/// The handling of each connection.
struct Service<'a> {
    setting: &'a TrialSettings,
    expected: [u8; preamble::LEN],
    request_bytes: usize,
    response: Vec<u8>,
    /// The responder closes behind its response.
    close_first: bool,
    buffer: Vec<u8>,
    /// Begins with the first proven request.
    window: Option<(Span, CpuMeter)>,
    answered: u64,
    foreign: u64,
}

impl<'a> Server<'a> {
    fn new(
        incoming: &'a TcpIncoming,
        setting: &'a TrialSettings,
        exchange: Option<Exchange>,
    ) -> Result<Self, Error> {
        let error = |e: Errno| Error::io("set up epoll")(e.into());
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(error)?;
        let what = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, incoming, EventData::new_u64(LISTENER), what).map_err(error)?;
        let expected = preamble::of(setting.cookie);
        let mut response = expected.to_vec();
        response.resize(exchange.map_or(preamble::LEN, |e| e.response_bytes), 0x5a);
        let service = Service {
            setting,
            expected,
            request_bytes: exchange.map_or(preamble::LEN, |e| e.request_bytes),
            response,
            close_first: exchange.is_some_and(|e| e.close == Close::Fin),
            buffer: vec![0; 64 * 1024],
            window: None,
            answered: 0,
            foreign: 0,
        };
        Ok(Server { incoming, exchange, epoll, connections: Slab::new(), service, accepted: 0, error: None })
    }

    fn run(mut self, closing: &AtomicBool) -> Result<Part, Error> {
        let look = Timespec { tv_sec: 0, tv_nsec: STOP_LOOK_NS as i64 };
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        let mut starved = false;
        while !closing.load(Ordering::Acquire) && !self.service.setting.stop.raised() {
            let now = wait_ready(&self.epoll, &mut events, &look)?;
            if let Some((span, cpu)) = &mut self.service.window {
                cpu.look(span.phase(now));
            }
            // Descriptors ran out: the listener's event came and will not come again.
            if starved {
                starved = self.accept_all()?;
            }
            for event in &events {
                if event.data.u64() == LISTENER {
                    starved = self.accept_all()?;
                } else {
                    self.proceed(event.data.u64());
                }
            }
        }
        Ok(self.finish())
    }

    /// Accept what is there. True if it could not be taken for lack of descriptors or memory.
    fn accept_all(&mut self) -> Result<bool, Error> {
        loop {
            match self.incoming.accept(SocketFlags::NONBLOCK) {
                // One too many is closed, and one that is gone already cannot be prepared.
                Ok(fd)
                    if self.incoming.listener().is_none()
                        && (self.connections.len() >= MOST_HANDED
                            || prepare(&fd, self.exchange).is_err()) => {}
                Ok(fd) => {
                    self.accepted += 1;
                    self.take(Connection { fd, received: 0, sent: 0 })?;
                }
                // Invalid: this end shut the socket down, or the owner of the shared port is gone.
                Err(Errno::AGAIN | Errno::INVAL) => return Ok(false),
                Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    self.error = Some(e);
                    return Ok(true);
                }
                // Errors of the connection that was to be accepted (accept(2), "Error handling").
                Err(_) => {}
            }
        }
    }

    fn take(&mut self, mut connection: Connection) -> Result<(), Error> {
        if matches!(self.service.advance(&mut connection), Next::Close) {
            return Ok(());
        }
        let token = self.connections.insert(connection);
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        let what = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &connection.fd, EventData::new_u64(token), what)
            .map_err(|e| Error::io("epoll_ctl")(e.into()))
    }

    fn proceed(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if matches!(self.service.advance(connection), Next::Close) {
            self.connections.remove(token);
        }
    }

    fn finish(self) -> Part {
        let cpu_s = self.service.window.as_ref().map_or(0.0, |(_, cpu)| cpu.seconds());
        let mut part = Part { cpu_s, ..Part::default() };
        part.set("accepted", self.accepted as f64);
        part.set("served", self.service.answered as f64);
        part.set("foreign_connections", self.service.foreign as f64);
        if let Some(error) = self.error {
            let detail = format!("connections could not be accepted: {error}");
            part.faults.push(Fault::void(FaultCode::TesterResources, "responder", detail));
        }
        part
    }
}

impl Service<'_> {
    /// Read the request, send the response, as far as it goes.
    fn advance(&mut self, connection: &mut Connection) -> Next {
        while connection.received < self.request_bytes {
            let most = self.buffer.len().min(self.request_bytes - connection.received);
            match recv(&connection.fd, &mut self.buffer[..most], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Next::Close,
                Ok((n, _)) => {
                    let rest = self.expected.get(connection.received..).unwrap_or_default();
                    if !rest.iter().zip(&self.buffer[..n]).all(|(a, b)| a == b) {
                        self.foreign += 1;
                        return Next::Close;
                    }
                    connection.received += n;
                }
                Err(Errno::AGAIN) => return Next::Wait,
                Err(Errno::INTR) => {}
                Err(_) => return Next::Close,
            }
        }
        if self.window.is_none() {
            self.window = Some((Span::starting_now(self.setting), CpuMeter::default()));
        }
        while connection.sent < self.response.len() {
            match send(
                &connection.fd,
                &self.response[connection.sent..],
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(n) => connection.sent += n,
                Err(Errno::AGAIN) => return Next::Wait,
                Err(Errno::INTR) => {}
                Err(_) => return Next::Close,
            }
            if connection.sent == self.response.len() {
                self.answered += 1;
                if self.close_first {
                    return Next::Close;
                }
            }
        }
        // The exchange is complete; the initiator's close comes next.
        match recv(&connection.fd, &mut self.buffer[..1], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => Next::Wait,
            _ => Next::Close,
        }
    }
}
