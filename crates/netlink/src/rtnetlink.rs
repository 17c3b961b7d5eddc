//! The connection to the network configuration of one namespace, to which the other files add what can be asked and changed.

use weir_sys::NetNs;
use weir_sys::error::{Context, Result};

use super::socket::Socket;

/// Ethernet address.
pub type Mac = [u8; 6];

/// A connection to the network configuration of one namespace.
#[derive(Debug)]
pub struct Rtnetlink {
    pub(super) socket: Socket,
}

impl Rtnetlink {
    /// To the calling thread's namespace. The connection stays with that namespace in every thread.
    pub fn open() -> Result<Self> {
        let socket = Socket::open(libc::NETLINK_ROUTE).context(|| "open rtnetlink".into())?;
        Ok(Rtnetlink { socket })
    }

    /// To a namespace.
    pub fn open_in(namespace: &NetNs) -> Result<Self> {
        namespace.run(Rtnetlink::open)?
    }
}
