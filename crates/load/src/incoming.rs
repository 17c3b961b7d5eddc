//! Sources of a responder's connections: a port of its own, or the owner of a shared port. The owner hands over the connections
//! of this trial, so that many trials share one port.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

/// Something for the trial that came over the shared port.
#[derive(Debug)]
enum Guest {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

/// Hands connections over to a responder. When all clones are gone, nothing more comes.
#[derive(Debug, Clone)]
pub struct HandoverSender {
    guests: Sender<Guest>,
    bell: Arc<OwnedFd>,
}

/// The responder's side: see [`HandoverSender`].
#[derive(Debug)]
pub struct HandoverQueue {
    guests: Receiver<Guest>,
    bell: Arc<OwnedFd>,
    port: u16,
}

/// Makes both sides of a handover from that shared port.
///
/// # Errors
/// No descriptor is left.
pub fn handover(port: u16) -> io::Result<(HandoverSender, HandoverQueue)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = channel();
    Ok((
        HandoverSender { guests: sender, bell: bell.clone() },
        HandoverQueue { guests: receiver, bell, port },
    ))
}

impl HandoverSender {
    /// Hand over a connection from which nothing was read. False if the responder is gone; the connection is closed then.
    pub fn tcp(&self, connection: TcpStream) -> bool {
        self.hand_over(Guest::Tcp(connection))
    }

    /// Hand over a socket that is connected to a peer which has proved to own its address. False if the responder is gone.
    pub fn udp(&self, socket: UdpSocket) -> bool {
        self.hand_over(Guest::Udp(socket))
    }

    fn hand_over(&self, guest: Guest) -> bool {
        self.guests.send(guest).is_ok() && {
            ring(&self.bell);
            true
        }
    }
}

/// Make the descriptor readable.
fn ring(bell: &OwnedFd) {
    // Fails only when the counter is full: then it rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

impl HandoverQueue {
    /// The next one that `pick` takes; others are closed, since they are of no use to this workload.
    fn take<T>(&self, pick: impl Fn(Guest) -> Option<T>) -> io::Result<T> {
        loop {
            match self.guests.try_recv() {
                Ok(guest) => {
                    if let Some(picked) = pick(guest) {
                        return Ok(picked);
                    }
                }
                Err(TryRecvError::Disconnected) => return Err(closed()),
                Err(TryRecvError::Empty) => {
                    // Silenced first and looked at again then, so that what comes in between is not left unheard.
                    let mut count = [0; 8];
                    match rustix::io::read(&self.bell, &mut count) {
                        Ok(_) => {}
                        Err(Errno::AGAIN) => return Err(io::ErrorKind::WouldBlock.into()),
                        Err(e) => return Err(e.into()),
                    }
                }
            }
        }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "nothing more comes")
}

/// The source of TCP connections.
#[derive(Debug)]
pub(crate) enum TcpIncoming {
    Own(TcpListener),
    Handed(HandoverQueue),
}

impl TcpIncoming {
    /// Listen on a port of one's own.
    pub(crate) fn own(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(TcpIncoming::Own(listener))
    }

    /// The listening socket, if the port is its own; accepted connections inherit the options set on it.
    pub(crate) fn listener(&self) -> Option<&TcpListener> {
        match self {
            TcpIncoming::Own(listener) => Some(listener),
            TcpIncoming::Handed(_) => None,
        }
    }

    /// The port that the initiator connects to.
    pub(crate) fn port(&self) -> io::Result<u16> {
        match self {
            TcpIncoming::Own(listener) => Ok(listener.local_addr()?.port()),
            TcpIncoming::Handed(queue) => Ok(queue.port),
        }
    }

    /// The next connection, with SOCK_CLOEXEC and these flags, without waiting.
    ///
    /// # Errors
    /// EAGAIN if none is there, EINVAL after [`TcpIncoming::close`], and those of accept(2).
    pub(crate) fn accept(&self, flags: SocketFlags) -> Result<OwnedFd, Errno> {
        match self {
            TcpIncoming::Own(listener) => accept_with(listener, flags | SocketFlags::CLOEXEC),
            TcpIncoming::Handed(queue) => {
                let pick = |guest| if let Guest::Tcp(connection) = guest { Some(connection) } else { None };
                let connection = queue.take(pick).map_err(|e| match e.kind() {
                    io::ErrorKind::WouldBlock => Errno::AGAIN,
                    io::ErrorKind::InvalidInput => Errno::INVAL,
                    _ => Errno::from_io_error(&e).unwrap_or(Errno::IO),
                })?;
                ioctl_fionbio(&connection, flags.contains(SocketFlags::NONBLOCK))?;
                Ok(connection.into())
            }
        }
    }
}

/// Readable when a connection is there, and after [`Closer::close`].
impl AsFd for TcpIncoming {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            TcpIncoming::Own(listener) => listener.as_fd(),
            TcpIncoming::Handed(queue) => queue.bell.as_fd(),
        }
    }
}

/// Wakes the threads that wait at a incoming, from another thread.
#[derive(Debug)]
pub(crate) enum Closer {
    Listener(OwnedFd),
    Bell(Arc<OwnedFd>),
}

impl Closer {
    /// For that incoming.
    pub(crate) fn of(incoming: &TcpIncoming) -> io::Result<Self> {
        match incoming {
            TcpIncoming::Own(listener) => Ok(Closer::Listener(listener.as_fd().try_clone_to_owned()?)),
            TcpIncoming::Handed(queue) => Ok(Closer::Bell(queue.bell.clone())),
        }
    }

    /// Wake them. They look then whether they should end.
    pub(crate) fn wake(&self) {
        match self {
            // Wakes accept(2) with EINVAL, and epoll with a hang-up. If the socket is already shut down, no thread waits on it.
            Closer::Listener(listener) => drop(shutdown(listener, Shutdown::Both)),
            Closer::Bell(bell) => ring(bell),
        }
    }
}

/// The source of UDP flows that are handed over, each as a socket connected to its peer.
#[derive(Debug)]
pub(crate) struct UdpIncoming(HandoverQueue);

impl UdpIncoming {
    pub(crate) fn new(queue: HandoverQueue) -> Self {
        UdpIncoming(queue)
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.port
    }

    /// For [`Closer::wake`].
    pub(crate) fn closer(&self) -> Closer {
        Closer::Bell(self.0.bell.clone())
    }

    /// The next socket, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if none is there, `InvalidInput` when none will come any more.
    pub(crate) fn take(&self) -> io::Result<UdpSocket> {
        self.0.take(|guest| if let Guest::Udp(socket) = guest { Some(socket) } else { None })
    }
}

/// Readable when a socket is there, and after [`Closer::wake`].
impl AsFd for UdpIncoming {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::time::Duration;

    use crate::socket::wait_readable;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn what_is_handed_over_arrives_in_order_and_rings() {
        let (handover, queue) = handover(7).unwrap();
        let incoming = TcpIncoming::Handed(queue);
        assert_eq!(incoming.accept(SocketFlags::empty()).unwrap_err(), Errno::AGAIN);
        assert!(!wait_readable(&incoming, Duration::ZERO).unwrap());
        let (mut near, far) = pair();
        let (mut near2, far2) = pair();
        assert!(handover.tcp(far) && handover.tcp(far2));
        assert!(handover.udp(UdpSocket::bind("127.0.0.1:0").unwrap()), "taken, although of no use here");
        assert!(wait_readable(&incoming, Duration::ZERO).unwrap());
        for near in [&mut near, &mut near2] {
            let mut far = TcpStream::from(incoming.accept(SocketFlags::empty()).unwrap());
            near.write_all(b"x").unwrap();
            far.read_exact(&mut [0]).unwrap();
        }
        assert_eq!(incoming.accept(SocketFlags::empty()).unwrap_err(), Errno::AGAIN);
        assert!(!wait_readable(&incoming, Duration::ZERO).unwrap(), "silent again");
        drop(handover);
        assert_eq!(incoming.accept(SocketFlags::empty()).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn a_responder_that_is_gone_takes_nothing() {
        let (handover, queue) = handover(7).unwrap();
        drop(queue);
        let (mut near, far) = pair();
        assert!(!handover.tcp(far));
        assert_eq!(near.read(&mut [0]).unwrap(), 0);
    }
}
