//! A server in a thread, for tests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_load::{Stop, Workload};
use weir_probe::client::{Span, Visit};
use weir_probe::{Config, Key, Limits, NatPorts, Note, Server};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A server that ends with the test.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: Stop,
    notes: Arc<Mutex<Vec<Note>>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn on(address: &str, limits: Limits, key: Option<Key>) -> Running {
        Running::begin(address, limits, key, |server| server)
    }

    /// The same, which serves NAT checks too.
    #[allow(dead_code, reason = "not every test that shares this file asks for one")]
    pub(crate) fn with_nat(address: &str, limits: Limits, key: Option<Key>, ports: NatPorts) -> Running {
        Running::begin(address, limits, key, |server| server.with_nat(ports))
    }

    fn begin(
        address: &str,
        limits: Limits,
        key: Option<Key>,
        prepare: impl FnOnce(Server) -> Server,
    ) -> Running {
        let notes = Arc::<Mutex<Vec<Note>>>::default();
        let log = {
            let notes = notes.clone();
            Arc::new(move |note: &Note| notes.lock().unwrap().push(note.clone()))
        };
        let config = Config { iperf3: key.is_none(), iperf3_json: false, key, log };
        let server = prepare(Server::open(address.parse().unwrap(), limits, config).unwrap());
        let (address, stop) = (server.address(), Stop::default());
        let thread = {
            let stop = stop.clone();
            std::thread::spawn(move || server.run(&stop).unwrap())
        };
        Running { address, stop, notes, thread: Some(thread) }
    }

    pub(crate) fn start(limits: Limits) -> Running {
        Running::on("127.0.0.1:0", limits, None)
    }

    pub(crate) fn visit(&self) -> Visit {
        Visit::begin(self.address, None, &Stop::default()).unwrap()
    }

    /// The first line of the log with these words in its end, waited for.
    pub(crate) fn note(&self, end: &str) -> Note {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let notes = self.notes();
            if let Some(note) = notes.iter().find(|n| n.end.contains(end)).cloned() {
                return note;
            }
            assert!(Instant::now() < deadline, "{end:?}: {notes:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The log so far.
    pub(crate) fn notes(&self) -> Vec<Note> {
        self.notes.lock().unwrap().clone()
    }

    pub(crate) fn end(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

pub(crate) fn workload(value: serde_json::Value) -> Workload {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn span(milliseconds: u64) -> Span {
    Span { warmup: Duration::from_millis(100), duration: Duration::from_millis(milliseconds) }
}
