//! A netlink socket that waits for its answers.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_sys::SocketAddr;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};

use super::message::{Attributes, HEADER, Message, Received, messages, text};
use weir_sys::error::KernelError;

/// The kernel fills at most 32 KiB per datagram of a dump (net/netlink/af_netlink.c, netlink_recvmsg).
pub(crate) const BUFFER: usize = 64 << 10;
/// NLMSGERR_ATTR_MSG: the kernel's explanation.
const ERROR_TEXT: u16 = 1;
/// NLM_F_CAPPED: the answer does not repeat the request's payload.
const CAPPED: u16 = 0x100;
/// NLM_F_ACK_TLVS: attributes follow in the answer.
const ACK_ATTRIBUTES: u16 = 0x200;

/// How an exchange ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct End {
    /// The kernel said that the table changed while it was read (NLM_F_DUMP_INTR).
    pub(crate) interrupted: bool,
    /// The caller had enough.
    pub(crate) stopped: bool,
}

/// A socket of one netlink protocol, bound to the network namespace of the thread that opened it.
pub(crate) struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("fd", &self.socket.as_raw_fd()).finish_non_exhaustive()
    }
}

impl Socket {
    /// Opens a socket of that protocol (NETLINK_ROUTE, NETLINK_NETFILTER).
    pub(crate) fn open(protocol: i32) -> io::Result<Self> {
        let mut socket = netlink_sys::Socket::new(isize::try_from(protocol).map_err(io::Error::other)?)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Both came in 4.x kernels; without them a refusal has no words but is still a refusal.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        Ok(Socket { socket, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Sends a request and waits until the kernel has done it.
    pub(crate) fn request(&mut self, message: Message) -> io::Result<()> {
        self.request_with(message, |_| {})
    }

    /// As [`Self::request`], handing over the messages that come before the end (dumps, replies). The message must carry
    /// NLM_F_ACK or NLM_F_DUMP: otherwise there is no end to wait for.
    pub(crate) fn request_with(
        &mut self,
        message: Message,
        mut each: impl FnMut(Received<'_>),
    ) -> io::Result<()> {
        let end = self.exchange(&[], message, |received| {
            each(received);
            ControlFlow::Continue(())
        })?;
        // The table changed while it was read, so it may be incomplete.
        if end.interrupted { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }

    /// Sends whole messages, numbered 0 and without NLM_F_ACK, and after them a last one that has it, in one call. A refusal
    /// of any of them is an error.
    pub(crate) fn request_after(&mut self, before: &[u8], message: Message) -> io::Result<()> {
        self.exchange(before, message, |_| ControlFlow::Continue(())).map(drop)
    }

    /// Sends a request and leaves its answers to [`Self::receive_into`] and [`answers`]; its number. A dump that is left
    /// early makes the kernel refuse further ones on this socket.
    pub(crate) fn ask(&mut self, message: Message) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.send(&message.finish(self.sequence))?;
        Ok(self.sequence)
    }

    fn exchange(
        &mut self,
        before: &[u8],
        message: Message,
        mut each: impl FnMut(Received<'_>) -> ControlFlow<()>,
    ) -> io::Result<End> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        if before.is_empty() {
            self.send(&message.finish(self.sequence))?;
        } else {
            self.send(&[before, &message.finish(self.sequence)].concat())?;
        }
        let mut end = End::default();
        loop {
            let length = self.receive()?;
            let ours = |number| number == self.sequence || number == 0 && !before.is_empty();
            if answers(&self.buffer[..length], ours, &mut end, &mut each)? {
                return Ok(end);
            }
        }
    }

    /// Sends bytes that are whole messages.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = self.socket.send(bytes, 0)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Makes room for that many bytes of datagrams, beyond the machine's limit where the process may (CAP_NET_ADMIN in the
    /// first user namespace), up to it elsewhere.
    pub(crate) fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        if set_socket_recv_buffer_size_force(&self.socket, bytes).is_err() {
            set_socket_recv_buffer_size(&self.socket, bytes)?;
        }
        Ok(())
    }

    /// Hears what the kernel tells those groups, too, with room for that many bytes of it.
    pub(crate) fn listening(self, room: usize, groups: &[u32]) -> io::Result<Self> {
        self.set_receive_buffer(room)?;
        groups.iter().try_for_each(|group| self.socket.add_membership(*group))?;
        Ok(self)
    }

    /// Hands over all messages until now, without waiting. True if some were lost for want of room.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(Received<'_>)) -> io::Result<bool> {
        let mut lost = false;
        loop {
            match self.receive_now() {
                Ok(Some(datagram)) => messages(datagram).for_each(&mut each),
                Ok(None) => return Ok(lost),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => lost = true,
                Err(e) => return Err(e),
            }
        }
    }

    /// A datagram if one is there.
    pub(crate) fn receive_now(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            let mut room = &mut self.buffer[..];
            match self.socket.recv(&mut room, libc::MSG_DONTWAIT) {
                Ok(length) => return Ok(Some(&self.buffer[..length])),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Waits for a datagram; its length in the buffer.
    fn receive(&mut self) -> io::Result<usize> {
        receive(&self.socket, &mut self.buffer)
    }

    /// Waits for a datagram in a buffer of [`BUFFER`] bytes; its length.
    pub(crate) fn receive_into(&self, buffer: &mut [u8]) -> io::Result<usize> {
        receive(&self.socket, buffer)
    }
}

fn receive(socket: &netlink_sys::Socket, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut room = &mut buffer[..];
        match socket.recv(&mut room, 0) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Goes through the messages of a datagram that answer a request of `ours`. True if they were the last ones.
pub(crate) fn answers(
    datagram: &[u8],
    ours: impl Fn(u32) -> bool,
    end: &mut End,
    each: &mut impl FnMut(Received<'_>) -> ControlFlow<()>,
) -> io::Result<bool> {
    for received in messages(datagram) {
        if !ours(received.sequence) {
            continue;
        }
        end.interrupted |= i32::from(received.flags) & libc::NLM_F_DUMP_INTR != 0;
        match i32::from(received.kind) {
            libc::NLMSG_ERROR | libc::NLMSG_DONE => return outcome(received).map(|()| true),
            _ if each(received).is_break() => {
                end.stopped = true;
                return Ok(true);
            }
            _ => {}
        }
    }
    Ok(false)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads the result in an NLMSG_ERROR or NLMSG_DONE: both begin with an error number, 0 for done.
fn outcome(received: Received<'_>) -> io::Result<()> {
    let Some(code) = received.payload.get(0..4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes)
    else {
        // A NLMSG_DONE without a body ends a dump without an error.
        return Ok(());
    };
    if code == 0 {
        return Ok(());
    }
    Err(KernelError { errno: code.saturating_neg(), text: explanation(received).unwrap_or_default() }.into())
}

/// The extended ack's text.
fn explanation(received: Received<'_>) -> Option<String> {
    if received.flags & ACK_ATTRIBUTES == 0 {
        return None;
    }
    let skip = if i32::from(received.kind) == libc::NLMSG_DONE {
        4
    } else if received.flags & CAPPED != 0 {
        4 + HEADER
    } else {
        let echoed = u32::from_ne_bytes(received.payload.get(4..8)?.try_into().ok()?) as usize;
        4 + echoed.next_multiple_of(4)
    };
    Attributes::after(received.payload, skip).get(ERROR_TEXT).map(text)
}
