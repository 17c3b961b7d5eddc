//! The containers and processes of this machine, looked up beside the watch: with many of them it takes longer than a reading may.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use weir_doctor::collect::LocalSockets;
use weir_flows::{Processes, SocketEnds, Watch};
use weir_sys::ProcRoot;
use weir_sys::procfs::Holder;

/// Least time between two looks for network namespaces; then all sockets are looked up again.
const EVERY: Duration = Duration::from_secs(10);
/// Least time between two looks for the processes of new sockets.
const SOON: Duration = Duration::from_millis(200);
/// A look takes at most one part of so many of a core: it reads the descriptors of processes.
const SPARED: u32 = 200;

/// A thread that looks for them until this is dropped.
pub(super) struct Local {
    found: Receiver<Found>,
    /// The sockets at the ends of flows. Its end ends the thread.
    sockets: Sender<BTreeSet<SocketEnds>>,
}

/// The result of the looks so far.
#[derive(Default)]
struct Found {
    containers: BTreeMap<IpAddr, String>,
    processes: Processes,
}

impl Local {
    /// In the calling thread's network namespace; without privilege to enter others, their addresses and sockets are not found.
    pub(super) fn begin(watch: &mut Watch) -> Self {
        watch.name_processes(Processes {
            missing: Some("not looked for yet".to_owned()),
            ..Processes::default()
        });
        let (sockets, wanted) = mpsc::channel();
        let (tell, found) = mpsc::channel();
        // A new thread is in the namespace of the one that starts it.
        std::thread::spawn(move || {
            let mut look = Look::default();
            // Containers have names before the first flow.
            let mut sockets = Some(BTreeSet::new());
            while let Some(wanted_now) = sockets {
                let pause = look.at(&wanted_now);
                if tell.send(look.found()).is_err() {
                    return;
                }
                sockets = latest(&wanted, pause);
            }
        });
        Local { found, sockets }
    }

    /// Tells the watch of what was found since the last call.
    pub(super) fn tell(&self, watch: &mut Watch) {
        if let Some(found) = self.found.try_iter().last() {
            watch.name_containers(found.containers);
            watch.name_processes(found.processes);
        }
    }

    /// Asks for the processes of the flows of the latest reading.
    pub(super) fn ask(&self, watch: &Watch) {
        // Its thread goes on as long as this is there.
        let _ = self.sockets.send(watch.sockets().clone());
    }
}

/// The latest sockets that came within the pause, else the next ones. `None` at the end.
fn latest(wanted: &Receiver<BTreeSet<SocketEnds>>, pause: Duration) -> Option<BTreeSet<SocketEnds>> {
    let until = Instant::now() + pause;
    let mut last = None;
    loop {
        match wanted.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(sockets) => last = Some(sockets),
            Err(RecvTimeoutError::Timeout) => return last.or_else(|| wanted.recv().ok()),
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// The results of the looks so far, for the next one.
#[derive(Default)]
struct Look {
    namespaces: Option<LocalSockets>,
    /// When to look for namespaces, and for all sockets, again.
    due: Option<Instant>,
    found: BTreeMap<SocketEnds, Holder>,
    /// Sockets whose process was not found: not looked for before the next look for namespaces.
    unheld: BTreeSet<SocketEnds>,
    missing: Option<String>,
}

impl Look {
    /// Looks for the processes of these sockets; the pause after it.
    fn at(&mut self, wanted: &BTreeSet<SocketEnds>) -> Duration {
        let begun = Instant::now();
        let is_due = self.due.is_none_or(|due| due <= begun);
        if is_due {
            (self.namespaces, self.missing) = match LocalSockets::look(ProcRoot::default()) {
                Ok(namespaces) => (Some(namespaces), None),
                Err(e) => (None, Some(e.to_string())),
            };
            self.due = Some(Instant::now() + EVERY.max(begun.elapsed() * SPARED));
            self.unheld.clear();
        }
        let begun = Instant::now();
        self.found.retain(|socket, _| wanted.contains(socket));
        let is_new = |socket: &&SocketEnds| !self.found.contains_key(socket) && !self.unheld.contains(socket);
        let asked = wanted.iter().filter(|socket| is_due || is_new(socket)).copied().collect();
        if let Some(looked) = self.namespaces.as_ref().map(|namespaces| namespaces.processes(&asked)) {
            // A socket that is gone keeps the process that it had.
            self.found.extend(looked.found);
            self.unheld.extend(looked.unheld);
            self.missing = looked.missing.or(self.missing.take());
        }
        SOON.max(begun.elapsed() * SPARED)
    }

    fn found(&self) -> Found {
        let namespaces = self.namespaces.as_ref();
        Found {
            containers: namespaces.map(LocalSockets::containers).unwrap_or_default(),
            processes: Processes {
                addresses: namespaces.map(LocalSockets::addresses).unwrap_or_default(),
                found: self.found.clone(),
                missing: self.missing.clone(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use weir_netlink::Protocol;

    use super::*;

    #[test]
    fn the_latest_sockets_count_and_the_end_ends_the_wait() {
        let (sockets, wanted) = mpsc::channel();
        let end = "192.0.2.1:1".parse().unwrap();
        let some = BTreeSet::from([SocketEnds { protocol: Protocol::Udp, local: end, remote: end }]);
        sockets.send(BTreeSet::new()).unwrap();
        sockets.send(some.clone()).unwrap();
        assert_eq!(latest(&wanted, Duration::from_millis(1)), Some(some));
        drop(sockets);
        assert_eq!(latest(&wanted, EVERY), None);
    }

    #[test]
    fn a_socket_that_is_gone_keeps_its_process_as_long_as_its_flow_is_there() {
        let socket = |port| {
            let local = format!("192.0.2.1:{port}").parse().unwrap();
            SocketEnds { protocol: Protocol::Tcp, local, remote: "192.0.2.9:443".parse().unwrap() }
        };
        let holder = |pid| Holder { pid, name: "curl".to_owned() };
        let mut look =
            Look { found: [(socket(1), holder(1)), (socket(2), holder(2))].into(), ..Look::default() };
        look.at(&[socket(1), socket(3)].into());
        assert_eq!(look.found().processes.found, [(socket(1), holder(1))].into());
        // Addresses of the loopback are of no flow, and not looked for.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (local, remote) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        look.at(&[SocketEnds { protocol: Protocol::Tcp, local, remote }].into());
        assert_eq!(look.found().processes.found, BTreeMap::new());
    }
}
