//! Events of connections that connection tracking has forgotten.

use super::{Entry, NFGENMSG};
use crate::{Received, Socket};
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
        let socket = Socket::open(libc::NETLINK_NETFILTER)
            .and_then(|socket| socket.listening(ROOM, &[GROUP]))
            .context(|| "listen for connections that end".into())?;
        Ok(Destroyed { socket })
    }

    /// Hands over all entries until now, without waiting. True if some were lost for want of room.
    ///
    /// # Errors
    /// If the socket cannot be read.
    pub fn drain(&mut self, mut each: impl FnMut(&Entry)) -> Result<bool> {
        let mut entry = Entry::default();
        let ended = |received: Received<'_>| {
            if received.payload.get(NFGENMSG..).is_some_and(|bytes| entry.read(bytes)) {
                each(&entry);
            }
        };
        self.socket.drain(ended).context(|| "read connections that end".into())
    }
}
