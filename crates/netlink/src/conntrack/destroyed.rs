//! Events of connections that connection tracking has forgotten.

use super::{Entry, NFGENMSG};
use crate::Socket;
use crate::message::messages;
use weir_sys::error::{Context, Result};

/// NFNLGRP_CONNTRACK_DESTROY (include/uapi/linux/netfilter/nfnetlink.h).
const GROUP: u32 = 3;
/// Room for events, bytes. An event takes about a kilobyte of it with the kernel's own overhead.
const ROOM: usize = 8 << 20;

/// Listens for connections that end: expired, deleted by hand, evicted.
#[derive(Debug)]
pub struct Destroyed {
    socket: Socket,
}

impl Destroyed {
    /// Listens in the calling thread's namespace.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_ADMIN.
    pub fn open() -> Result<Self> {
        let what = || "listen for connections that end".into();
        let mut socket = Socket::open(libc::NETLINK_NETFILTER).context(what)?;
        socket.set_receive_buffer(ROOM).context(what)?;
        socket.join(GROUP).context(what)?;
        Ok(Destroyed { socket })
    }

    /// Hands over all entries until now, without waiting. True if some were lost for want of room.
    ///
    /// # Errors
    /// If the socket cannot be read.
    pub fn drain(&mut self, mut each: impl FnMut(&Entry)) -> Result<bool> {
        let (mut lost, mut entry) = (false, Entry::default());
        loop {
            match self.socket.receive_now() {
                Ok(Some(datagram)) => {
                    for received in messages(datagram) {
                        if received.payload.get(NFGENMSG..).is_some_and(|bytes| entry.read(bytes)) {
                            each(&entry);
                        }
                    }
                }
                Ok(None) => return Ok(lost),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => lost = true,
                Err(e) => return Err(e).context(|| "read connections that end".into()),
            }
        }
    }
}
