//! Changes of a host that are taken back unless somebody confirms them.
//!
//! A set of changes is written down, with the values before, and is on disk before the first of them is made. A process of
//! its own, the guard, takes all of it back when nobody confirms in time, when a number that it watches gets worse, or when
//! the command that was making the changes dies on the way. What was confirmed can still be rolled back later, also after a
//! reboot, until the next set comes.
//!
//! | step | on disk afterwards | if everything is killed here |
//! |---|---|---|
//! | plan | every change with the value before | nothing was changed |
//! | write | "writing change n", before it is written | taken back by the guard, or by the next command |
//! | applied | what the kernel made of it | likewise |
//! | waiting | until when | likewise, at that time |
//! | confirmed | the decision | the values stay; files that make them last are written by the next `confirm` |
//! | reverted | what became of each change | the rest is taken back by the next command |
//!
//! Taking back goes in reverse order and touches only what is still ours: a value that is neither the one before nor the
//! one that was made is somebody else's, is left alone, and is said so.
//!
//! This crate knows no setting and no rule: callers name what they change, and how it is read back.
#![forbid(unsafe_code)]

mod change;
mod error;
mod journal;
mod keeper;
mod namespace;
mod process;
mod revert;
mod status;
mod step;
mod store;
mod trial;
mod watch;

pub use change::{Change, Program};
pub use error::Error;
pub use journal::{Begin, ChangeSet, Phase, Step, StepState, When};
pub use keeper::{Confirmed, Keeper, NewSet};
pub use namespace::Namespace;
pub use process::{Sentinel, guard};
pub use revert::Outcome;
pub use status::{Status, StepNow};
pub use step::kill_point;
pub use trial::Trial;
pub use watch::{Metric, Watch, Worse};

/// 64-bit FNV-1a of some text, as 16 hexadecimal digits: the name of what has this text. It tells one from another and
/// withstands no one who wants to forge it. Source: Fowler, Noll and Vo, RFC 9923 section 5.
pub fn fingerprint(text: &str) -> String {
    let hash =
        text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}
