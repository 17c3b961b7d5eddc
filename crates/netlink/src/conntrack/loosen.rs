//! Connections whose sequence numbers are not checked any more.

use std::io;

use super::entry::{
    Entry, LIBERAL, MAXACK_SET, PROTOINFO, PROTOINFO_FLAGS_ORIGINAL, PROTOINFO_FLAGS_REPLY, PROTOINFO_TCP,
    TUPLE_ORIG, ZONE,
};
use super::{Conntrack, NEW, family, request_for};
use weir_sys::error::{Context, Result};

impl Conntrack {
    /// Lets a TCP connection go on whatever its sequence numbers are, in both directions, as `nf_conntrack_tcp_be_liberal` does for
    /// all of them: for one whose packets do not all pass connection tracking. The last acknowledgement is forgotten, because resets are
    /// compared with it in any case. False if there is no such entry any more.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_ADMIN.
    pub fn be_liberal(&mut self, entry: &Entry) -> Result<bool> {
        // struct nf_ct_tcp_flags: value and mask. Without NLM_F_CREATE an entry that is gone stays gone.
        let flags = [LIBERAL, LIBERAL | MAXACK_SET];
        let mut message = request_for(family(entry.original.source.ip()), NEW, libc::NLM_F_ACK)
            .nest(TUPLE_ORIG, |m| entry.original.write(m))
            .nest(PROTOINFO, |m| {
                m.nest(PROTOINFO_TCP, |m| {
                    m.attr(PROTOINFO_FLAGS_ORIGINAL, &flags).attr(PROTOINFO_FLAGS_REPLY, &flags)
                })
            });
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
