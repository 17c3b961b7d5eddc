//! Changes of an entry that is there.

use std::io;

use super::entry::{
    Entry, LIBERAL, MAXACK_SET, PROTOINFO, PROTOINFO_FLAGS_ORIGINAL, PROTOINFO_FLAGS_REPLY, PROTOINFO_TCP,
    TIMEOUT, TUPLE_ORIG, ZONE,
};
use super::{Conntrack, NEW, family, request_for};
use crate::Message;
use weir_sys::error::{Context, Result};

impl Conntrack {
    /// Lets a TCP connection go on whatever its sequence numbers are, in both directions, as `nf_conntrack_tcp_be_liberal` does for
    /// all of them: for one whose packets do not all pass connection tracking. The last acknowledgement is forgotten, because resets are
    /// compared with it in any case. False if there is no such entry any more.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_ADMIN.
    pub fn be_liberal(&mut self, entry: &Entry) -> Result<bool> {
        // struct nf_ct_tcp_flags: value and mask.
        let flags = [LIBERAL, LIBERAL | MAXACK_SET];
        self.change(entry, |m| {
            m.nest(PROTOINFO, |m| {
                m.nest(PROTOINFO_TCP, |m| {
                    m.attr(PROTOINFO_FLAGS_ORIGINAL, &flags).attr(PROTOINFO_FLAGS_REPLY, &flags)
                })
            })
        })
    }

    /// Has an entry wait for the next packet for that many seconds from now. False if there is no such entry any more.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_ADMIN, and for entries whose timeout is fixed.
    pub fn set_timeout(&mut self, entry: &Entry, seconds: u32) -> Result<bool> {
        self.change(entry, |m| m.attr(TIMEOUT, &seconds.to_be_bytes()))
    }

    fn change(&mut self, entry: &Entry, what: impl FnOnce(Message) -> Message) -> Result<bool> {
        // Without NLM_F_CREATE an entry that is gone stays gone.
        let message = request_for(family(entry.original.source.ip()), NEW, libc::NLM_F_ACK)
            .nest(TUPLE_ORIG, |m| entry.original.write(m));
        let mut message = what(message);
        if entry.zone != 0 {
            message = message.attr(ZONE, &entry.zone.to_be_bytes());
        }
        match self.socket.request(message) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e).context(|| "change a conntrack entry".into()),
        }
    }
}
