//! The whole table, entry by entry, as the kernel hands it over: nothing is kept.

use std::ops::ControlFlow;

use super::{Entry, Filter, NFGENMSG};
use crate::error::{Context, Result};
use crate::netlink::{Received, Socket};

/// What a dump went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dumped {
    /// Messages from the kernel, whether or not they passed the filter.
    pub received: u64,
    /// Entries that passed the filter.
    pub matched: u64,
    /// Messages that were no entry: a direction missing or cut short.
    pub malformed: u64,
    /// The kernel said that the table changed in a way that may have hidden entries or shown them twice
    /// (NLM_F_DUMP_INTR).
    pub interrupted: bool,
    /// The caller had enough before the end.
    pub stopped: bool,
}

/// Reads the table of the calling thread's namespace and hands over each entry that passes the filter, until `each` has
/// enough. Memory does not grow with the table. The kernel walks its buckets one by one, so entries that come and go
/// meanwhile may or may not be among them.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN over the namespace; also where the kernel has no ctnetlink.
pub fn dump(filter: &Filter, mut each: impl FnMut(&Entry) -> ControlFlow<()>) -> Result<Dumped> {
    match attempt(filter, true, &mut each) {
        // Before 5.8 a filter by tuple is ignored; kernels in between refuse parts of it. It can only be refused before
        // the first entry.
        Err(e) if filter.has_tuple() && matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
            attempt(filter, false, &mut each)
        }
        outcome => outcome,
    }
}

fn attempt(
    filter: &Filter,
    tuples: bool,
    each: &mut impl FnMut(&Entry) -> ControlFlow<()>,
) -> Result<Dumped> {
    // Its own socket: a dump that is left early goes on blocking other requests on the socket that asked for it.
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).context(|| "open ctnetlink".into())?;
    let mut dumped = Dumped::default();
    let end = socket
        .dump(filter.request(tuples), |received| dumped.take(filter, received, each))
        .context(|| "read the conntrack table".into())?;
    dumped.interrupted = end.interrupted;
    dumped.stopped = end.stopped;
    Ok(dumped)
}

impl Dumped {
    fn take(
        &mut self,
        filter: &Filter,
        received: Received<'_>,
        each: &mut impl FnMut(&Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.received += 1;
        let entry = received.payload.get(NFGENMSG..).and_then(Entry::read);
        match entry {
            None => self.malformed += 1,
            Some(entry) if filter.matches(&entry) => {
                self.matched += 1;
                return each(&entry);
            }
            Some(_) => {}
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::messages;

    proptest! {
        /// Whatever bytes come in a datagram, each message is either an entry or counted as none.
        #[test]
        fn a_hostile_stream_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut dumped = Dumped::default();
            let mut seen = 0;
            for received in messages(&bytes) {
                let step = dumped.take(&Filter::default(), received, &mut |_| {
                    seen += 1;
                    ControlFlow::Continue(())
                });
                prop_assert!(step.is_continue());
            }
            prop_assert_eq!(dumped.received, dumped.malformed + dumped.matched);
            prop_assert_eq!(seen, dumped.matched);
        }
    }
}
