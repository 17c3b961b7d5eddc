//! The whole table, entry by entry, as the kernel hands it over: nothing is kept.

use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::{Entry, Filter, NFGENMSG};
use crate::{BUFFER, End, Received, Socket, answers, messages};
use weir_sys::error::{Context, Result};

/// Datagrams on their way between the two threads of a dump.
const BUFFERS: usize = 4;

/// The counts of a dump.
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
    let what = || "read the conntrack table".into();
    let sequence = socket.ask(filter.request(tuples)).context(what)?;
    let mut dumped = Dumped::default();
    let mut end = End::default();
    let mut entry = Entry::default();
    // Most tables fit into one datagram, with the end in one of its own: a second thread would only be waited for.
    let mut buffer = vec![0; BUFFER];
    for _ in 0..2 {
        let length = socket.receive_into(&mut buffer).context(what)?;
        let take = &mut |received: Received<'_>| dumped.take(filter, received, &mut entry, each);
        if answers(&buffer[..length], |number| number == sequence, &mut end, take).context(what)? {
            (dumped.interrupted, dumped.stopped) = (end.interrupted, end.stopped);
            return Ok(dumped);
        }
    }
    // Three quarters of the time the kernel works within the system call that asks for more, on the core of its caller. So
    // one thread does only that, and this one goes through what is there.
    thread::scope(|scope| {
        let (back, empty) = channel();
        let (full, datagrams) = channel();
        for _ in 0..BUFFERS {
            // The other end is in this scope.
            let _ = back.send(vec![0; BUFFER]);
        }
        thread::Builder::new()
            .name("conntrack".into())
            .spawn_scoped(scope, move || read_all(&socket, &empty, &full))?;
        for datagram in datagrams {
            let (buffer, length): (Vec<u8>, usize) = datagram?;
            let take = &mut |received: Received<'_>| dumped.take(filter, received, &mut entry, each);
            if answers(&buffer[..length], |number| number == sequence, &mut end, take)? {
                break;
            }
            // The reader may have come to its end, and then needs no more buffers.
            let _ = back.send(buffer);
        }
        Ok::<(), io::Error>(())
    })
    .context(what)?;
    dumped.interrupted = end.interrupted;
    dumped.stopped = end.stopped;
    Ok(dumped)
}

/// Receives datagrams until one has the end of the dump in it, or the reader wants no more.
fn read_all(socket: &Socket, empty: &Receiver<Vec<u8>>, full: &Sender<io::Result<(Vec<u8>, usize)>>) {
    for mut buffer in empty {
        let received = socket.receive_into(&mut buffer);
        let is_end = |kind: u16| matches!(i32::from(kind), libc::NLMSG_DONE | libc::NLMSG_ERROR);
        let last =
            received.as_ref().map_or(true, |length| messages(&buffer[..*length]).any(|m| is_end(m.kind)));
        if full.send(received.map(|length| (buffer, length))).is_err() || last {
            return;
        }
    }
}

impl Dumped {
    fn take(
        &mut self,
        filter: &Filter,
        received: Received<'_>,
        entry: &mut Entry,
        each: &mut impl FnMut(&Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.received += 1;
        if !received.payload.get(NFGENMSG..).is_some_and(|attributes| entry.read(attributes)) {
            self.malformed += 1;
        } else if filter.matches(entry) {
            self.matched += 1;
            return each(entry);
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever bytes come in a datagram, each message is either an entry or counted as none.
        #[test]
        fn a_hostile_stream_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut dumped = Dumped::default();
            let mut seen = 0;
            let mut entry = Entry::default();
            for received in messages(&bytes) {
                let step = dumped.take(&Filter::default(), received, &mut entry, &mut |_| {
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
