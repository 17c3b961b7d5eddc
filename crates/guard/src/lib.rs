//! Changes of a host that roll back unless they are confirmed.
//!
//! A set of changes is written down, with the values before, and is on disk before the first of them is made. Two guard processes
//! roll all of it back when it is not confirmed in time, when a number that they watch gets worse, or when the command that was
//! making the changes dies on the way. Each restarts the other when it dies. Should both die at once, the kernel ends the trial where
//! a change says so ([`Change::ends_by_itself`]), and else a timer of systemd ([`Backstop`]). A confirmed set can still be rolled
//! back later, also after a reboot, until the next set comes.
//!
//! | step | on disk afterwards | if everything is killed here |
//! |---|---|---|
//! | plan | every change with the value before | nothing was changed |
//! | write | "writing change n", before it is written | rolled back by the guard, or by the next command |
//! | applied | what the kernel made of it | likewise |
//! | waiting | until when | likewise, at that time |
//! | confirmed | the decision | the values stay; files that make them last are written by the next `confirm` |
//! | reverted | what became of each change | the rest is rolled back by the next command |
//!
//! Rollback goes in reverse order and touches only values that are still weir's. A value that is neither the one before nor the
//! one that was made belongs to another program: weir leaves it alone and reports it.
//!
//! This crate knows no setting and no rule: callers name what they change, and how it is read back.
#![forbid(unsafe_code)]

mod change;
mod change_guard;
mod error;
mod journal;
pub mod lines;
mod namespace;
mod new_set;
mod partner;
mod revert;
mod sentinel;
mod slot;
mod status;
mod step;
mod step_state;
mod store;
mod time;
mod timer;
mod trial;
mod watch;
mod watchman;

pub use change::{Change, Program};
pub use change_guard::{ChangeGuard, Confirmed};
pub use error::Error;
pub use journal::{Begin, ChangeSet, Phase, Step, When};
pub use namespace::Namespace;
pub use new_set::NewSet;
pub use sentinel::{Role, Sentinel};
pub use status::Status;
pub use step::kill_point;
pub use step_state::{RevertOutcome, StepNow, StepState};
pub use time::unix_s;
pub use timer::Backstop;
pub use trial::ChangeTrial;
pub use watch::{Metric, WatchedNumber, Worse};
pub use watchman::guard;

/// 64-bit FNV-1a of some text, as 16 hexadecimal digits: the name of what has this text. It tells one from another and
/// withstands no one who wants to forge it. Source: Fowler, Noll and Vo, RFC 9923 section 5.
pub fn fingerprint(text: &str) -> String {
    let hash =
        text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}
