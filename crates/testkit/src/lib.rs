//! Tests only: a built `weir` in a world of its own.
//!
//! A [`World`] is a folder with everything that weir reads and writes (home, list of labs, runs). For tests that need root, it
//! also has a mount and a network namespace with an empty `/run`. Every process started in it carries the folder's name in its
//! environment. So a process that was left behind can be found, whatever its parent is now.
//!
//! These functions panic when something is wrong with the test itself: that is what fails a test.
#![allow(clippy::missing_panics_doc, reason = "see above: a panic is how a test fails")]

mod awake;
mod background;
mod files;
mod folder;
mod quiet;
mod record;
pub mod scenario;
mod watch;
mod world;

use std::time::{Duration, Instant};

pub use awake::AwakeCores;
pub use background::Background;
pub use files::Files;
pub use quiet::{holds, measured};
pub use record::Record;
pub use watch::NamespaceWatch;
pub use world::{CommandOutput, World};

/// Binds a socket to a port that an earlier socket of the test had. A process that another test just started may still hold
/// that socket: it inherits every file until it executes its program.
pub fn bound<T>(mut bind: impl FnMut() -> std::io::Result<T>) -> T {
    until("the port is free", PATIENCE, || match bind() {
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => None,
        other => Some(other.unwrap()),
    })
}

/// Nothing takes this long unless it is broken, also on a machine whose cores are mostly taken away.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Asks until the answer is there, at most `limit`; `what` is what a failure calls it.
pub fn until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
