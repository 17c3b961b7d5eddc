//! The one entry that a packet belongs to.

use std::io;

use super::entry::{Entry, TUPLE_ORIG, Tuple};
use super::{Conntrack, GET, NFGENMSG, family, request_for};
use weir_sys::error::{Context, Error, Result};

impl Conntrack {
    /// The entry of the default zone in which a packet with these addresses and ports would be found, whichever of its two
    /// directions they are. Only for protocols with ports.
    ///
    /// # Errors
    /// If the addresses differ in family, and without CAP_NET_ADMIN. A missing entry is no error.
    pub fn get(&mut self, packet: &Tuple) -> Result<Option<Entry>> {
        let (source, destination) = (packet.source.ip(), packet.destination.ip());
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(Error::other("ask for a conntrack entry", "source and destination differ in family"));
        }
        // The kernel looks in a hash that holds both directions (nf_conntrack_find_get), so one question is enough.
        let message = request_for(family(source), GET, libc::NLM_F_ACK).nest(TUPLE_ORIG, |m| packet.write(m));
        let mut found = None;
        let outcome = self.socket.request_with(message, |received| {
            let mut entry = Entry::default();
            if received.payload.get(NFGENMSG..).is_some_and(|attributes| entry.read(attributes)) {
                found = Some(entry);
            }
        });
        match outcome {
            Ok(()) => Ok(found),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).context(|| "ask for a conntrack entry".into()),
        }
    }
}
