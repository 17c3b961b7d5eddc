//! State and results that the server and its sessions have in common.

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_load::limits::Limits;
use weir_load::port::Port;
use weir_sys::Stop;

use super::ended::Ended;
use super::turns::Turns;
use super::wire::Cookie;

/// The callback for sessions that are over.
pub(super) type Log = Box<dyn Fn(&Ended) + Send + Sync>;

/// The state that all sessions share.
pub(super) struct Shared {
    pub(super) limits: Arc<Limits>,
    pub(super) port: Arc<Port>,
    pub(super) stop: Stop,
    pub(super) json_output: bool,
    pub(super) log: Option<Log>,
    pub(super) turns: Turns,
    pub(super) sessions: Mutex<HashMap<Cookie, Arc<Entry>>>,
    /// A session has gone.
    pub(super) changed: Condvar,
}

/// The server's outside view of a session.
#[derive(Debug)]
pub(super) struct Entry {
    /// It waits for TCP streams.
    pub(super) opening_tcp: AtomicBool,
    pub(super) connections: SyncSender<(u64, TcpStream)>,
}

/// A session's TCP streams, with their place in the order of acceptance.
pub(super) type Connections = Receiver<(u64, TcpStream)>;

impl Shared {
    pub(super) fn sessions(&self) -> MutexGuard<'_, HashMap<Cookie, Arc<Entry>>> {
        // Nothing that holds the lock can panic half-way.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(
        &self,
        sessions: MutexGuard<'a, HashMap<Cookie, Arc<Entry>>>,
        left: Duration,
    ) -> MutexGuard<'a, HashMap<Cookie, Arc<Entry>>> {
        self.changed.wait_timeout(sessions, left).unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn leave(&self, cookie: &Cookie) {
        self.sessions().remove(cookie);
        self.changed.notify_all();
    }
}
