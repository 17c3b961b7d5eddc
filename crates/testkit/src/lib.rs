//! Tests only: a built `weir` in a world of its own.
//!
//! A [`World`] is a folder with everything that weir reads and writes (home, list of labs, runs), and for tests that need root
//! a mount and a network namespace with an empty `/run`. Everything that is started in it carries the folder's name in its
//! environment, so that a process that was left behind is found whoever its parent is now.
//!
//! These functions panic when something is wrong with the test itself: that is what fails a test.
#![allow(clippy::missing_panics_doc, reason = "see above: a panic is how a test fails")]

mod background;
mod folder;
mod quiet;
mod record;
pub mod scenario;
mod watch;
mod world;

use std::time::{Duration, Instant};

pub use background::Background;
pub use quiet::{holds_in_quiet, wait_for_quiet};
pub use record::Record;
pub use watch::Watch;
pub use world::{Outcome, World};

/// Nothing takes this long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(40);

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
