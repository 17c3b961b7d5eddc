//! The containers of this machine, looked up beside the watch: with hundreds of them it takes longer than a reading may.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use weir_sys::ProcRoot;

/// Least time between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// A look takes at most one part of so many of a core: it reads the descriptors of all processes.
const SPARED: u32 = 200;

/// A thread that looks for them until this is dropped.
pub(super) struct Containers {
    found: Receiver<BTreeMap<IpAddr, String>>,
    /// Its end ends the thread.
    _alive: Sender<()>,
}

impl Containers {
    /// In the calling thread's network namespace; without privilege to enter others, none is found.
    pub(super) fn begin() -> Self {
        let (alive, ends) = mpsc::channel::<()>();
        let (tell, found) = mpsc::channel();
        // A new thread is in the namespace of the one that starts it.
        std::thread::spawn(move || {
            loop {
                let begun = Instant::now();
                // Flows have no names if these cannot be listed.
                let names = weir_doctor::collect::containers(&ProcRoot::default()).unwrap_or_default();
                let pause = EVERY.max(begun.elapsed() * SPARED);
                if tell.send(names).is_err() || ends.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Containers { found, _alive: alive }
    }

    /// The latest ones, if there was a look since the last call.
    pub(super) fn latest(&self) -> Option<BTreeMap<IpAddr, String>> {
        self.found.try_iter().last()
    }
}
