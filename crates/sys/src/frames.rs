//! Whole Ethernet frames on an interface.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::SocketType;

use crate::error::{Context, Result};
use crate::packet_socket;
use crate::socket_option::set_int;

/// Receive buffer, bytes; the kernel counts some 800 for each short frame.
const BUFFER: i32 = 8 << 20;

/// A packet socket that only sends. Needs CAP_NET_RAW over its namespace.
#[derive(Debug)]
pub struct FrameSender {
    socket: OwnedFd,
}

impl FrameSender {
    /// For the interface of that number in the calling thread's namespace.
    pub fn open(interface: u32) -> Result<Self> {
        // Protocol 0: nothing is taken in (packet(7)).
        open(interface, 0).context(|| "open a packet socket".into()).map(|socket| FrameSender { socket })
    }

    /// Sends one frame, from its Ethernet header on.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(self.socket.as_fd(), frame, rustix::net::SendFlags::empty())?;
        Ok(())
    }
}

/// A packet socket that sends frames, and receives those that reach its interface, for whichever host. It does not see frames
/// that this host sends. Needs CAP_NET_RAW over its namespace.
#[derive(Debug)]
pub struct FrameSocket {
    socket: OwnedFd,
}

impl FrameSocket {
    /// For the interface of that number in the calling thread's namespace.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; kernels before 4.20 cannot leave out what this host sends.
    pub fn open(interface: u32) -> Result<Self> {
        let what = || "open a packet socket".to_owned();
        let socket = open(interface, libc::ETH_P_ALL as u16).context(what)?;
        set_int(&socket, libc::SOL_PACKET, packet_socket::IGNORE_OUTGOING, 1).context(what)?;
        packet_socket::set_receive_buffer(&socket, BUFFER).context(what)?;
        Ok(FrameSocket { socket })
    }

    /// As [`open`](Self::open), but what is sent and received begins with `struct virtio_net_hdr` (10 bytes, in the order of
    /// this machine; include/uapi/linux/virtio_net.h), then the Ethernet header. It names the checksum that an interface has
    /// yet to write, and the segments into which it has yet to cut the frame.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_offloads(interface: u32) -> Result<Self> {
        let socket = FrameSocket::open(interface)?;
        set_int(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)
            .context(|| "ask for offloads of frames".into())?;
        Ok(socket)
    }

    /// Sends one frame, from its Ethernet header on.
    ///
    /// # Errors
    /// EMSGSIZE if it is longer than the interface carries; EINVAL if offloads do not fit the frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(self.socket.as_fd(), frame, rustix::net::SendFlags::empty())?;
        Ok(())
    }

    /// The next frame, from its Ethernet header on; `None` if there is none. The end of a frame that does not fit the buffer is cut off.
    ///
    /// # Errors
    /// If the interface is gone.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(self.socket.as_fd(), buffer, rustix::net::RecvFlags::DONTWAIT) {
            Ok((n, _)) => Ok(Some(n)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A packet socket on an interface, for one protocol or none.
fn open(interface: u32, protocol: u16) -> io::Result<OwnedFd> {
    let socket = packet_socket::open(SocketType::RAW)?;
    packet_socket::bind(&socket, interface, protocol)?;
    Ok(socket)
}
