//! Request and response over TCP: one thread and one connection each, blocking in the closed loop so that a
//! transaction costs two system calls at each end and no more.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, recv, send, shutdown, sockopt};
use weir_record::{Fault, FaultCode};
use weir_sys::clock::now_ns;
use weir_sys::sched::thread_cpu_time;

use super::open::{self, Limits, Wire};
use super::tally::{FlowCounts, Gone};
use crate::incoming::{Closer, TcpIncoming};
use crate::latency::dial::{Dialer, wait_for};
use crate::latency::kernel::own_descriptors;
use crate::latency::schedule::Schedule;
use crate::latency::{pin, preamble};
use crate::{Error, Part, Responder, Stop, TrialSettings};

/// The first byte of a request: whether the responder should count it.
const MEASURED: u8 = 1;
/// The value of all other bytes of a payload.
const FILL: u8 = 0x5a;

/// Time to open and prove one connection.
const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// Sizes of one transaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) request: usize,
    pub(super) response: usize,
}

/// Open and prove one connection. It is non-blocking.
pub(super) fn dial(target: SocketAddr, setting: &TrialSettings) -> io::Result<OwnedFd> {
    let dialer = Dialer::new(OPEN_LIMIT, &setting.stop);
    let fd = dialer.tcp(target)?;
    preamble::prove(&fd, setting.cookie, &dialer)?;
    Ok(fd)
}

/// The next transaction begins when the last one ends: a ping-pong.
pub(super) fn closed_loop(
    fd: BorrowedFd<'_>,
    sizes: Sizes,
    stop: &Stop,
    mut tally: FlowCounts,
) -> Result<FlowCounts, Error> {
    ioctl_fionbio(fd, false).map_err(|e| Error::io("make a socket block")(e.into()))?;
    let span = tally.span;
    let mut request = vec![FILL; sizes.request];
    let (mut response, expected) = (vec![0; sizes.response], vec![FILL; sizes.response]);
    // The last transaction is put on the books after the next request has left, while the path is at work on it.
    let mut last: Option<(u64, u64)> = None;
    let mut start = now_ns();
    while start < span.end_ns && !stop.raised() {
        tally.look(start);
        let measured = start >= span.window_ns;
        request[0] = u8::from(measured) * MEASURED;
        let sent = send_all(fd, &request);
        if let Some((start, rtt)) = last.take() {
            tally.answered(start, rtt);
        }
        tally.attempted += u64::from(measured);
        let outcome = sent.and_then(|()| recv_all(fd, &mut response));
        let end = now_ns();
        match outcome {
            // Somewhere on the way its bytes were changed, or those of the request.
            Ok(()) if response != expected => {
                if measured {
                    tally.refused();
                }
            }
            Ok(()) if !measured && end >= span.end_ns => tally.outlasted(end - start),
            Ok(()) => last = measured.then_some((start, end - start)),
            Err(_) if stop.raised() => {
                if measured {
                    tally.cut(end - start);
                }
                break;
            }
            Err(ended) => {
                if measured {
                    tally.unanswered(end - start);
                }
                tally.dead_ns = Some(start);
                // After the drain the socket is shut down by our own hand.
                tally.gone = (end < span.end_ns).then(|| ended.to_string());
                start = end;
                break;
            }
        }
        start = end;
    }
    if let Some((start, rtt)) = last {
        tally.answered(start, rtt);
    }
    tally.look(start);
    tally.left_ns = start;
    Ok(tally)
}

/// Requests on a schedule, several under way if need be; the responder answers in order.
pub(super) fn open_loop(
    fd: BorrowedFd<'_>,
    sizes: Sizes,
    schedule: &Schedule,
    limits: Limits<'_>,
    tally: FlowCounts,
) -> Result<FlowCounts, Error> {
    let wire = Pipeline {
        fd,
        sizes,
        request: vec![FILL; sizes.request],
        measured_from: u64::MAX,
        due: 0,
        sent: 0,
        offset: 0,
        buffer: vec![0; 64 * 1024],
        expected: vec![FILL; 64 * 1024],
        answered: 0,
        partial: 0,
        is_altered: false,
    };
    open::run(wire, schedule, limits, tally)
}

struct Pipeline<'a> {
    fd: BorrowedFd<'a>,
    sizes: Sizes,
    request: Vec<u8>,
    /// The first request that counts.
    measured_from: u64,
    /// Requests that should have left.
    due: u64,
    /// Requests that the kernel took whole, and bytes of the next.
    sent: u64,
    offset: usize,
    buffer: Vec<u8>,
    /// The expected contents of the buffer.
    expected: Vec<u8>,
    /// Responses that came whole, and bytes of the next.
    answered: u64,
    partial: usize,
    /// Bytes of that next one were changed on the way.
    is_altered: bool,
}

impl Pipeline<'_> {
    /// Takes what was received. A response that was changed on the way is none.
    fn take(&mut self, received: usize, answered: &mut Vec<u64>) {
        let mut at = 0;
        while at < received {
            let end = received.min(at + self.sizes.response - self.partial);
            self.is_altered |= self.buffer[at..end] != self.expected[at..end];
            self.partial += end - at;
            at = end;
            if self.partial == self.sizes.response {
                self.partial = 0;
                if !std::mem::take(&mut self.is_altered) {
                    answered.push(self.answered);
                }
                self.answered += 1;
            }
        }
    }
}

impl Wire for Pipeline<'_> {
    fn send(&mut self, seq: u64, measured: bool) -> Result<bool, Gone> {
        self.due = seq + 1;
        if measured {
            self.measured_from = self.measured_from.min(seq);
        }
        self.flush()?;
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, Gone> {
        while self.sent < self.due {
            self.request[0] = u8::from(self.sent >= self.measured_from) * MEASURED;
            match send(self.fd, &self.request[self.offset..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => self.offset += n,
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(e) => return Err(format!("send: {e}")),
            }
            if self.offset == self.sizes.request {
                self.offset = 0;
                self.sent += 1;
            }
        }
        Ok(false)
    }

    fn receive(&mut self, answered: &mut Vec<u64>) -> Result<bool, Gone> {
        match recv(self.fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Ended::Closed.to_string()),
            Ok((n, _)) => {
                self.take(n, answered);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(e) => Err(format!("recv: {e}")),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd
    }
}

/// Why no more bytes came or went.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the far end closed it")]
    Closed,
    #[error("{0}")]
    Failed(#[from] io::Error),
}

fn send_all(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Ended> {
    let mut sent = 0;
    while sent < bytes.len() {
        match send(fd, &bytes[sent..], SendFlags::NOSIGNAL) {
            Ok(n) => sent += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(Ended::Failed(e.into())),
        }
    }
    Ok(())
}

fn recv_all(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<(), Ended> {
    let mut got = 0;
    while got < buffer.len() {
        match recv(fd, &mut buffer[got..], RecvFlags::WAITALL) {
            Ok((0, _)) => return Err(Ended::Closed),
            Ok((n, _)) => got += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(Ended::Failed(e.into())),
        }
    }
    Ok(())
}

/// Connections that one responder serves at the same time; a thread each, so that nothing but the path is between a
/// request and its response. More are closed at once.
const MOST_CONNECTIONS: usize = 1024;

/// The connections of a responder, so that closing can wake the threads that wait on them.
#[derive(Debug, Default)]
struct Connections {
    closing: bool,
    open: Vec<Weak<OwnedFd>>,
}

/// The results of the responder's threads.
#[derive(Debug, Default)]
struct Served {
    requests: u64,
    cpu_s: f64,
    foreign: u64,
    error: Option<String>,
}

/// The responder's end of `tcp-rr`.
#[derive(Debug)]
pub(super) struct TcpResponder {
    port: u16,
    closer: Closer,
    connections: Arc<Mutex<Connections>>,
    acceptor: Option<JoinHandle<Vec<Served>>>,
}

impl TcpResponder {
    pub(super) fn open(setting: &TrialSettings, bind: SocketAddr, sizes: Sizes) -> Result<Self, Error> {
        let incoming = TcpIncoming::own(bind).map_err(|source| Error::Listen { address: bind, source })?;
        Self::serve(setting, incoming, sizes)
    }

    pub(super) fn serve(setting: &TrialSettings, incoming: TcpIncoming, sizes: Sizes) -> Result<Self, Error> {
        let own = Error::io("look up the own port");
        let port = incoming.port().map_err(&own)?;
        let closer = Closer::of(&incoming).map_err(&own)?;
        let connections = Arc::new(Mutex::new(Connections::default()));
        let acceptor = {
            let (connections, setting) = (connections.clone(), setting.clone());
            std::thread::Builder::new()
                .name("tcp-rr accept".into())
                .spawn(move || accept_all(&incoming, &connections, &setting, sizes))
                .map_err(Error::io("start a thread"))?
        };
        Ok(TcpResponder { port, closer, connections, acceptor: Some(acceptor) })
    }

    fn close(&mut self) -> Option<Vec<Served>> {
        let acceptor = self.acceptor.take()?;
        {
            let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.closing = true;
            for fd in connections.open.iter().filter_map(Weak::upgrade) {
                // One that the initiator closed before is not connected any more: nothing to wake.
                let _ = shutdown(&fd, Shutdown::Both);
            }
        }
        self.closer.wake();
        acceptor.join().ok()
    }
}

impl Drop for TcpResponder {
    fn drop(&mut self) {
        self.close();
    }
}

impl Responder for TcpResponder {
    fn port(&self) -> u16 {
        self.port
    }

    fn finish(mut self: Box<Self>) -> Result<Part, Error> {
        let served = self
            .close()
            .ok_or_else(|| Error::io("end the responder")(io::Error::other("a thread panicked")))?;
        let mut part = Part { cpu_s: served.iter().map(|s| s.cpu_s).sum(), ..Part::default() };
        part.set("requests", served.iter().map(|s| s.requests).sum::<u64>() as f64);
        part.set("foreign_connections", served.iter().map(|s| s.foreign).sum::<u64>() as f64);
        for error in served.into_iter().filter_map(|s| s.error) {
            part.faults.push(Fault::void(FaultCode::TesterResources, "responder", error));
        }
        Ok(part)
    }
}

fn accept_all(
    incoming: &TcpIncoming,
    connections: &Mutex<Connections>,
    setting: &TrialSettings,
    sizes: Sizes,
) -> Vec<Served> {
    // The acceptor owns every connection until its thread is joined: that has a descriptor table of its own and could
    // not close it for all.
    let mut servers: Vec<(JoinHandle<Served>, Arc<OwnedFd>)> = Vec::new();
    let mut served = Vec::new();
    loop {
        if let Err(e) = wait_for(incoming.as_fd(), PollFlags::IN, u64::MAX / 4) {
            served.push(failed(format!("wait for a connection: {e}")));
            break;
        }
        let accepted = incoming.accept(SocketFlags::empty());
        // Joins only those that are done, so that a port scan does not pile up threads.
        for (done, _fd) in servers.extract_if(.., |(server, _)| server.is_finished()) {
            served.extend(done.join());
        }
        let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
        if connections.closing {
            break;
        }
        connections.open.retain(|fd| fd.strong_count() > 0);
        match accepted {
            Ok(stream) if servers.len() < MOST_CONNECTIONS => {
                let fd = Arc::new(stream);
                connections.open.push(Arc::downgrade(&fd));
                let (setting, nth, for_server) = (setting.clone(), servers.len(), fd.clone());
                let server = std::thread::Builder::new().name(format!("tcp-rr {nth}")).spawn(move || {
                    let fd = for_server.as_fd();
                    own_descriptors(Some(fd));
                    let served = serve(fd, &setting, nth, sizes);
                    // The far end need not wait for the acceptor to close it. It may have closed before.
                    let _ = shutdown(fd, Shutdown::Both);
                    served
                });
                match server {
                    Ok(server) => servers.push((server, fd)),
                    Err(e) => served.push(failed(format!("start a thread: {e}"))),
                }
            }
            Ok(_) => served.push(failed(format!("more than {MOST_CONNECTIONS} connections at a time"))),
            // The connection was gone before it was taken (accept(2), "Error handling"), or a signal came.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
            // The owner of the shared port is gone.
            Err(Errno::INVAL) => break,
            Err(e) => {
                served.push(failed(format!("accept: {e}")));
                break;
            }
        }
    }
    for (server, _fd) in servers {
        served.extend(server.join());
    }
    served
}

fn failed(error: String) -> Served {
    Served { error: Some(error), ..Served::default() }
}

/// One connection, from its preamble to its end.
fn serve(fd: BorrowedFd<'_>, setting: &TrialSettings, nth: usize, sizes: Sizes) -> Served {
    if let Err(e) = pin(setting, nth) {
        return failed(e.to_string());
    }
    let expected = preamble::of(setting.cookie);
    let mut got = [0; preamble::LEN];
    let prepared = sockopt::set_tcp_nodelay(fd, true)
        .and_then(|()| sockopt::set_socket_timeout(fd, sockopt::Timeout::Recv, Some(OPEN_LIMIT)));
    if prepared.is_err() || recv_all(fd, &mut got).is_err() || got != expected {
        return Served { foreign: 1, ..Served::default() };
    }
    // Without a time limit again: a blocked receive then arms no timer. Closing wakes it by shutdown(2).
    if send_all(fd, &expected).is_err()
        || sockopt::set_socket_timeout(fd, sockopt::Timeout::Recv, None).is_err()
    {
        return Served { foreign: 1, ..Served::default() };
    }
    answer(fd, sizes)
}

fn answer(fd: BorrowedFd<'_>, sizes: Sizes) -> Served {
    let mut request = vec![0; sizes.request];
    let (mut response, expected) = (vec![FILL; sizes.response], vec![FILL; sizes.request]);
    let mut served = Served::default();
    let mut from = None;
    // Ends with the connection: the initiator closes it when the window is over.
    while recv_all(fd, &mut request).is_ok() {
        if request[0] == MEASURED {
            if from.is_none() {
                from = Some(thread_cpu_time());
            }
            served.requests += 1;
        }
        // The initiator learns of a request that was changed on the way by an answer that it does not expect.
        let is_whole = request[0] <= MEASURED && request[1..] == expected[1..];
        response[0] = if is_whole { FILL } else { !FILL };
        if send_all(fd, &response).is_err() {
            break;
        }
    }
    served.cpu_s = from.map_or(0.0, |from| thread_cpu_time().saturating_sub(from).as_secs_f64());
    served
}

/// Number of bytes of a size option, checked by `validate` to fit.
pub(super) fn sizes(request_bytes: u32, response_bytes: u32) -> Sizes {
    Sizes { request: request_bytes as usize, response: response_bytes as usize }
}
