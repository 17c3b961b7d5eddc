//! Sending whole Ethernet frames on an interface.
#![allow(unsafe_code, reason = "addresses of packet(7), which no safe crate offers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::error::{Context, Result};

/// A packet socket that only sends. Needs CAP_NET_RAW over its namespace.
#[derive(Debug)]
pub struct FrameSender {
    socket: OwnedFd,
}

impl FrameSender {
    /// For the interface of that number in the calling thread's namespace.
    pub fn open(interface: u32) -> Result<Self> {
        let what = || "open a packet socket".to_owned();
        // Protocol 0: nothing is taken in (packet(7)).
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error()).context(what);
        }
        // SAFETY: a new descriptor, without another owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: sockaddr_ll is plain numbers, for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = interface.cast_signed();
        // SAFETY: an address of the length given.
        let bound = unsafe {
            let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length)
        };
        if bound < 0 {
            return Err(io::Error::last_os_error()).context(what);
        }
        Ok(FrameSender { socket })
    }

    /// Sends one frame, from its Ethernet header on.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(self.socket.as_fd(), frame, rustix::net::SendFlags::empty())?;
        Ok(())
    }
}
