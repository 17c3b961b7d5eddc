//! Request and response over UDP. Every datagram carries the cookie and a number, so a late answer is never taken
//! for the one that is waited for.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, connect, ipproto, recv, recvfrom, send, sendto,
    shutdown, socket_with, sockopt,
};
use weir_record::{Fault, FaultCode};
use weir_sys::clock::now_ns;
use weir_sys::sched::thread_cpu_time;

use super::open::{self, Limits, Wire};
use super::tally::{FlowCounts, Gone};
use super::tcp::Sizes;
use crate::latency::dial::{Dialer, family};
use crate::latency::kernel::{own_descriptors, socket_drops};
use crate::latency::schedule::Schedule;
use crate::latency::{nanos, pin};
use crate::udp_handshake::{self, Handshake};
use crate::{Error, Part, Responder, Stop, TrialSettings};

/// Bytes of the header: cookie and number, most significant byte first. With UDP, IPv4 and Ethernet headers it still
/// fits the least Ethernet frame (60 bytes), so on a wire it is no larger than one byte would be.
pub(super) const HEADER: usize = 16;

/// Bit of the number that says whether the responder should count the request.
const MEASURED: u64 = 1 << 63;

/// Greetings until the first answer, and the wait for each.
const GREETINGS: u32 = 20;
const GREETING_WAIT: Duration = Duration::from_millis(100);

/// Receive buffer asked for at the responder, to which all connections send: a burst of several thousand requests.
const RESPONDER_BUFFER: usize = 4 << 20;

fn write_header(datagram: &mut [u8], cookie: u64, number: u64) {
    datagram[..8].copy_from_slice(&cookie.to_be_bytes());
    datagram[8..HEADER].copy_from_slice(&number.to_be_bytes());
}

/// The number, if the datagram belongs to the trial.
fn read_header(datagram: &[u8], cookie: u64) -> Option<u64> {
    let (mine, rest) = datagram.split_first_chunk::<8>()?;
    let number = rest.first_chunk::<8>()?;
    (u64::from_be_bytes(*mine) == cookie).then(|| u64::from_be_bytes(*number))
}

/// A connected socket whose far end has answered a greeting.
pub(super) fn dial(target: SocketAddr, setting: &TrialSettings, sizes: Sizes) -> io::Result<OwnedFd> {
    let fd = socket_with(family(target), SocketType::DGRAM, SocketFlags::CLOEXEC, Some(ipproto::UDP))?;
    connect(&fd, &target)?;
    greet(fd.as_fd(), setting, sizes)?;
    Ok(fd)
}

fn greet(fd: BorrowedFd<'_>, setting: &TrialSettings, sizes: Sizes) -> io::Result<()> {
    let mut request = vec![0; sizes.request];
    write_header(&mut request, setting.cookie, 0);
    let mut handshake = Handshake::new(setting.cookie, setting.handshake);
    let mut bytes = vec![0; sizes.response.max(udp_handshake::BYTES) + 1];
    let mut left = GREETINGS;
    let mut refusal = None;
    while left > 0 {
        left -= 1;
        if handshake.request(fd)? {
            match send(fd, &request, SendFlags::NOSIGNAL) {
                Err(e) if !is_refusal(e) => return Err(e.into()),
                _ => {}
            }
        }
        let dialer = Dialer::new(GREETING_WAIT, &setting.stop);
        match dialer.wait_readable(fd) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::TimedOut => continue,
            Err(e) => return Err(e),
        }
        let n = match recv(fd, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((n, _)) => n,
            // A hop that refuses some lets the next one through, perhaps.
            Err(e) if is_refusal(e) => {
                refusal = Some(e);
                std::thread::sleep(GREETING_WAIT / 10);
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        if !handshake.hears(&bytes[..n]) && read_header(&bytes[..n], setting.cookie) == Some(0) {
            return Ok(());
        }
    }
    Err(refusal.map_or_else(|| io::ErrorKind::TimedOut.into(), io::Error::from))
}

/// The next request leaves when the last one was answered or given up.
pub(super) fn closed_loop(
    fd: BorrowedFd<'_>,
    sizes: Sizes,
    cookie: u64,
    timeout: Duration,
    stop: &Stop,
    mut tally: FlowCounts,
) -> Result<FlowCounts, Error> {
    sockopt::set_socket_timeout(fd, sockopt::Timeout::Recv, Some(timeout))
        .map_err(|e| Error::io("set a receive time limit")(e.into()))?;
    let mut echo =
        Echo { fd, cookie, request: vec![0; sizes.request], response: vec![0; sizes.response], stray: 0 };
    let span = tally.span;
    let mut number = 0;
    let mut last: Option<(u64, u64)> = None;
    let mut start = now_ns();
    while start < span.end_ns && !stop.raised() {
        tally.look(start);
        let measured = start >= span.window_ns;
        number += 1;
        let tagged = if measured { number | MEASURED } else { number };
        let sent = echo.send(tagged);
        if let Some((start, rtt)) = last.take() {
            tally.answered(start, rtt);
        }
        let answer = match sent {
            Ok(true) => echo.wait(tagged, start.saturating_add(nanos(timeout))),
            Ok(false) => {
                tally.refused_by_kernel += u64::from(measured);
                start = now_ns();
                continue;
            }
            Err(gone) => Err(gone),
        };
        tally.attempted += u64::from(measured);
        let end = now_ns();
        match &answer {
            Ok(Answer::Came) if !measured && end >= span.end_ns => tally.outlasted(end - start),
            Ok(Answer::Came) => last = measured.then_some((start, end - start)),
            _ if !measured => {}
            _ if stop.raised() => tally.cut(end - start),
            Ok(Answer::TimedOut) => tally.unanswered(end - start),
            Ok(Answer::Refused) => tally.refused(),
            Err(_) => tally.refused(),
        }
        // Waited for through the whole window, without one that counts.
        if !measured && end >= span.end_ns && !matches!(answer, Ok(Answer::Came)) {
            tally.dead_ns = Some(start);
        }
        if let Err(gone) = answer {
            tally.gone = Some(gone).filter(|_| !stop.raised());
            tally.dead_ns = Some(start);
        }
        start = end;
        if tally.dead_ns.is_some() {
            break;
        }
    }
    if let Some((start, rtt)) = last {
        tally.answered(start, rtt);
    }
    tally.look(start);
    tally.left_ns = start;
    tally.stray = echo.stray;
    tally.receiver_drops = socket_drops(fd).map_err(Error::io("read the socket's drops"))?;
    Ok(tally)
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Came,
    TimedOut,
    /// An ICMP error came in its place.
    Refused,
}

/// An error of a connected socket that an ICMP message brought (icmp(7)): of one datagram, and not of the socket.
fn is_refusal(error: Errno) -> bool {
    matches!(
        error,
        Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::ACCESS | Errno::HOSTDOWN
    )
}

struct Echo<'a> {
    fd: BorrowedFd<'a>,
    cookie: u64,
    request: Vec<u8>,
    response: Vec<u8>,
    stray: u64,
}

impl Echo<'_> {
    /// False if the own kernel had no room.
    fn send(&mut self, number: u64) -> Result<bool, Gone> {
        write_header(&mut self.request, self.cookie, number);
        match send(self.fd, &self.request, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(true),
            Err(Errno::NOBUFS | Errno::AGAIN | Errno::INTR) => Ok(false),
            // The refusal of an earlier one, which this call did not send: the next call does.
            Err(e) if is_refusal(e) => self.send_once_more(),
            Err(e) => Err(format!("send: {e}")),
        }
    }

    fn send_once_more(&mut self) -> Result<bool, Gone> {
        match send(self.fd, &self.request, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(true),
            Err(e) if is_refusal(e) => Ok(true),
            Err(Errno::NOBUFS | Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(e) => Err(format!("send: {e}")),
        }
    }

    /// Until the answer of that number comes, its time is over, or the socket is shut down.
    fn wait(&mut self, number: u64, deadline_ns: u64) -> Result<Answer, Gone> {
        loop {
            match recv(self.fd, &mut self.response[..], RecvFlags::empty()) {
                // A datagram of no bytes is never an answer; after shutdown(2) every receive returns this.
                Ok((0, _)) => return Ok(Answer::TimedOut),
                Ok((n, _)) => match read_header(&self.response[..n], self.cookie) {
                    Some(got) if got == number => return Ok(Answer::Came),
                    Some(_) => self.stray += 1,
                    None => {}
                },
                Err(Errno::AGAIN) => return Ok(Answer::TimedOut),
                Err(e) if is_refusal(e) => return Ok(Answer::Refused),
                Err(Errno::INTR) => {}
                Err(e) => return Err(format!("recv: {e}")),
            }
            // Only reached after something that was not the answer: the receive's own limit began anew.
            if now_ns() >= deadline_ns {
                return Ok(Answer::TimedOut);
            }
        }
    }
}

/// Requests on a schedule.
pub(super) fn open_loop(
    fd: BorrowedFd<'_>,
    sizes: Sizes,
    cookie: u64,
    schedule: &Schedule,
    limits: Limits<'_>,
    tally: FlowCounts,
) -> Result<FlowCounts, Error> {
    let wire = Datagrams { fd, cookie, request: vec![0; sizes.request], response: vec![0; sizes.response] };
    let mut tally = open::run(wire, schedule, limits, tally)?;
    tally.receiver_drops = socket_drops(fd).map_err(Error::io("read the socket's drops"))?;
    Ok(tally)
}

struct Datagrams<'a> {
    fd: BorrowedFd<'a>,
    cookie: u64,
    request: Vec<u8>,
    response: Vec<u8>,
}

impl Wire for Datagrams<'_> {
    fn send(&mut self, seq: u64, measured: bool) -> Result<bool, Gone> {
        // Number 0 is the greeting's.
        let number = if measured { (seq + 1) | MEASURED } else { seq + 1 };
        write_header(&mut self.request, self.cookie, number);
        let send = || send(self.fd, &self.request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        // A refusal of an earlier one is returned once, and takes the place of this send.
        match send().or_else(|e| if is_refusal(e) { send() } else { Err(e) }) {
            Ok(_) => Ok(true),
            Err(e) if is_refusal(e) => Ok(true),
            Err(Errno::NOBUFS | Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(e) => Err(format!("send: {e}")),
        }
    }

    fn flush(&mut self) -> Result<bool, Gone> {
        Ok(false)
    }

    fn receive(&mut self, answered: &mut Vec<u64>) -> Result<bool, Gone> {
        match recv(self.fd, &mut self.response[..], RecvFlags::DONTWAIT) {
            Ok((n, _)) => {
                if let Some(number) = read_header(&self.response[..n], self.cookie) {
                    answered.extend((number & !MEASURED).checked_sub(1));
                }
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            // Which one was refused it does not say: that one will run into its time limit.
            Err(e) if is_refusal(e) => Ok(true),
            Err(e) => Err(format!("recv: {e}")),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd
    }
}

#[derive(Debug, Default)]
pub(super) struct Served {
    pub(super) requests: u64,
    pub(super) foreign: u64,
    pub(super) refused: u64,
    pub(super) cpu_s: f64,
    pub(super) error: Option<String>,
}

/// The responder's end of `udp-rr`: one thread on one socket, since all connections come to one port.
#[derive(Debug)]
pub(super) struct UdpResponder {
    port: u16,
    socket: Arc<UdpSocket>,
    closing: Arc<AtomicBool>,
    server: Option<JoinHandle<Served>>,
}

impl UdpResponder {
    pub(super) fn open(setting: &TrialSettings, bind: SocketAddr, sizes: Sizes) -> Result<Self, Error> {
        let listen = |source| Error::Listen { address: bind, source };
        let socket = Arc::new(UdpSocket::bind(bind).map_err(listen)?);
        let port = socket.local_addr().map_err(listen)?.port();
        // Beyond net.core.rmem_max only with privilege; without it, what the limit allows. Drops are counted in any case.
        if sockopt::set_socket_recv_buffer_size_force(&socket, RESPONDER_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, RESPONDER_BUFFER).map_err(|e| listen(e.into()))?;
        }
        let closing = Arc::new(AtomicBool::new(false));
        let server = {
            let (socket, closing, setting) = (socket.clone(), closing.clone(), setting.clone());
            std::thread::Builder::new()
                .name("udp-rr".into())
                .spawn(move || serve(&socket, &closing, &setting, 0, sizes))
                .map_err(Error::io("start a thread"))?
        };
        Ok(UdpResponder { port, socket, closing, server: Some(server) })
    }

    fn close(&mut self) -> Option<Served> {
        let server = self.server.take()?;
        self.closing.store(true, Ordering::Release);
        // Reports ENOTCONN for a socket without a peer, but still wakes its receivers (af_inet.c, inet_shutdown: "Hack to wake up
        // other listeners").
        let _ = shutdown(self.socket.as_ref(), Shutdown::Both);
        server.join().ok()
    }
}

impl Drop for UdpResponder {
    fn drop(&mut self) {
        self.close();
    }
}

impl Responder for UdpResponder {
    fn port(&self) -> u16 {
        self.port
    }

    fn finish(mut self: Box<Self>) -> Result<Part, Error> {
        let drops = socket_drops(self.socket.as_fd()).map_err(Error::io("read the socket's drops"))?;
        let served = self
            .close()
            .ok_or_else(|| Error::io("end the responder")(io::Error::other("a thread panicked")))?;
        Ok(responder_part(vec![served], drops))
    }
}

/// The responder's part out of what its threads saw, and the datagrams that its sockets dropped.
pub(super) fn responder_part(all: Vec<Served>, drops: u64) -> Part {
    let total = |of: fn(&Served) -> u64| all.iter().map(of).sum::<u64>();
    let (requests, refused) = (total(|s| s.requests), total(|s| s.refused));
    let mut part = Part { cpu_s: all.iter().map(|s| s.cpu_s).sum(), ..Part::default() };
    part.set("requests", requests as f64);
    part.set("foreign_datagrams", total(|s| s.foreign) as f64);
    for (n, code, what) in [
        (drops, FaultCode::ReceiverDrops, "requests arrived and found the socket's buffer full"),
        (refused, FaultCode::SendBufferFull, "replies were refused by the own kernel"),
    ] {
        if n > 0 {
            let void = n as f64 > requests as f64 / 1000.0;
            part.faults.push(Fault { void, ..Fault::noted(code, "responder", format!("{n} {what}")) });
        }
    }
    for error in all.into_iter().filter_map(|s| s.error) {
        part.faults.push(Fault::void(FaultCode::TesterResources, "responder", error));
    }
    part
}

/// Answer what comes to the socket until it is shut down.
pub(super) fn serve(
    socket: &UdpSocket,
    closing: &AtomicBool,
    setting: &TrialSettings,
    nth: usize,
    sizes: Sizes,
) -> Served {
    let mut served = Served::default();
    own_descriptors(Some(socket.as_fd()));
    if let Err(e) = pin(setting, nth) {
        served.error = Some(e.to_string());
        return served;
    }
    let mut request = vec![0; sizes.request];
    let mut response = vec![0; sizes.response];
    let mut from = None;
    loop {
        let (n, peer) = match recvfrom(socket, &mut request[..], RecvFlags::empty()) {
            Ok((n, _, Some(peer))) if n > 0 => (n, peer),
            // Nothing: an empty datagram of a stranger, or what every receive returns after shutdown(2).
            Ok(_) if closing.load(Ordering::Acquire) => break,
            Ok(_) => {
                served.foreign += 1;
                continue;
            }
            Err(Errno::INTR) => continue,
            // An ICMP error of an earlier reply (its initiator is gone) is not this request's.
            Err(Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => continue,
            Err(e) => {
                served.error = Some(format!("recvfrom: {e}"));
                break;
            }
        };
        let Some(number) = read_header(&request[..n], setting.cookie) else {
            served.foreign += 1;
            continue;
        };
        if number & MEASURED != 0 {
            if from.is_none() {
                from = Some(thread_cpu_time());
            }
            served.requests += 1;
        }
        write_header(&mut response, setting.cookie, number);
        if sendto(socket, &response, SendFlags::NOSIGNAL, &peer).is_err() {
            served.refused += 1;
        }
    }
    served.cpu_s = from.map_or(0.0, |from| thread_cpu_time().saturating_sub(from).as_secs_f64());
    served
}
