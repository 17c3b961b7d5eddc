//! Where a responder's connections come from: a port of its own, or somebody who owns a port and hands over what belongs
//! to this trial, so that many trials share one port.

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
pub struct Usher {
    guests: Sender<Guest>,
    bell: Arc<OwnedFd>,
}

/// The responder's side: see [`Usher`].
#[derive(Debug)]
pub struct Inlet {
    guests: Receiver<Guest>,
    bell: Arc<OwnedFd>,
    port: u16,
}

/// The two sides of a door behind that shared port.
///
/// # Errors
/// No descriptor is left.
pub fn inlet(port: u16) -> io::Result<(Usher, Inlet)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = channel();
    Ok((Usher { guests: sender, bell: bell.clone() }, Inlet { guests: receiver, bell, port }))
}

impl Usher {
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

impl Inlet {
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

/// Where TCP connections come from.
#[derive(Debug)]
pub(crate) enum TcpDoor {
    Own(TcpListener),
    Handed(Inlet),
}

impl TcpDoor {
    /// Listen on a port of one's own.
    pub(crate) fn own(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(TcpDoor::Own(listener))
    }

    /// The listening socket, if it is one's own: what is set on it is inherited by what is accepted.
    pub(crate) fn listener(&self) -> Option<&TcpListener> {
        match self {
            TcpDoor::Own(listener) => Some(listener),
            TcpDoor::Handed(_) => None,
        }
    }

    /// The port that the initiator connects to.
    pub(crate) fn port(&self) -> io::Result<u16> {
        match self {
            TcpDoor::Own(listener) => Ok(listener.local_addr()?.port()),
            TcpDoor::Handed(inlet) => Ok(inlet.port),
        }
    }

    /// The next connection, with SOCK_CLOEXEC and these flags, without waiting.
    ///
    /// # Errors
    /// EAGAIN if none is there, EINVAL after [`TcpDoor::close`], and those of accept(2).
    pub(crate) fn accept(&self, flags: SocketFlags) -> Result<OwnedFd, Errno> {
        match self {
            TcpDoor::Own(listener) => accept_with(listener, flags | SocketFlags::CLOEXEC),
            TcpDoor::Handed(inlet) => {
                let pick = |guest| if let Guest::Tcp(connection) = guest { Some(connection) } else { None };
                let connection = inlet.take(pick).map_err(|e| match e.kind() {
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
impl AsFd for TcpDoor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            TcpDoor::Own(listener) => listener.as_fd(),
            TcpDoor::Handed(inlet) => inlet.bell.as_fd(),
        }
    }
}

/// Wakes whoever waits at a door, from another thread.
#[derive(Debug)]
pub(crate) enum Closer {
    Listener(OwnedFd),
    Bell(Arc<OwnedFd>),
}

impl Closer {
    /// For that door.
    pub(crate) fn of(door: &TcpDoor) -> io::Result<Self> {
        match door {
            TcpDoor::Own(listener) => Ok(Closer::Listener(listener.as_fd().try_clone_to_owned()?)),
            TcpDoor::Handed(inlet) => Ok(Closer::Bell(inlet.bell.clone())),
        }
    }

    /// Wake them. They look then whether they should end.
    pub(crate) fn wake(&self) {
        match self {
            // Wakes accept(2) with EINVAL, and epoll with a hang-up; one that is shut down already has nobody waiting.
            Closer::Listener(listener) => drop(shutdown(listener, Shutdown::Both)),
            Closer::Bell(bell) => ring(bell),
        }
    }
}

/// Where UDP flows come from, where they are handed over: each as a socket connected to its peer.
#[derive(Debug)]
pub(crate) struct UdpDoor(Inlet);

impl UdpDoor {
    pub(crate) fn new(inlet: Inlet) -> Self {
        UdpDoor(inlet)
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
impl AsFd for UdpDoor {
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
        let (usher, inlet) = inlet(7).unwrap();
        let door = TcpDoor::Handed(inlet);
        assert_eq!(door.accept(SocketFlags::empty()).unwrap_err(), Errno::AGAIN);
        assert!(!wait_readable(&door, Duration::ZERO).unwrap());
        let (mut near, far) = pair();
        let (mut near2, far2) = pair();
        assert!(usher.tcp(far) && usher.tcp(far2));
        assert!(usher.udp(UdpSocket::bind("127.0.0.1:0").unwrap()), "taken, although of no use here");
        assert!(wait_readable(&door, Duration::ZERO).unwrap());
        for near in [&mut near, &mut near2] {
            let mut far = TcpStream::from(door.accept(SocketFlags::empty()).unwrap());
            near.write_all(b"x").unwrap();
            far.read_exact(&mut [0]).unwrap();
        }
        assert_eq!(door.accept(SocketFlags::empty()).unwrap_err(), Errno::AGAIN);
        assert!(!wait_readable(&door, Duration::ZERO).unwrap(), "silent again");
        drop(usher);
        assert_eq!(door.accept(SocketFlags::empty()).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn a_responder_that_is_gone_takes_nothing() {
        let (usher, inlet) = inlet(7).unwrap();
        drop(inlet);
        let (mut near, far) = pair();
        assert!(!usher.tcp(far));
        assert_eq!(near.read(&mut [0]).unwrap(), 0);
    }
}
