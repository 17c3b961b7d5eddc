//! Messages on standard error in addition to warnings and failures: notes, which `--quiet` omits, and steps, which `--verbose`
//! adds.

use std::sync::OnceLock;
use std::time::Instant;

/// How much is printed, and since when. Unset, as in tests: notes only.
static TALK: OnceLock<(Level, Instant)> = OnceLock::new();

/// How much a command says on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Warnings and failures.
    Quiet,
    /// Notes and progress, too.
    Usual,
    /// Each step, too.
    Verbose,
}

impl Level {
    /// Returns the level for the two flags, which exclude each other.
    pub(crate) fn of(quiet: bool, verbose: bool) -> Self {
        match (quiet, verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Usual,
        }
    }
}

/// Sets the level, once.
pub(crate) fn begin(level: Level) {
    TALK.get_or_init(|| (level, Instant::now()));
}

fn level() -> Level {
    TALK.get().map_or(Level::Usual, |(level, _)| *level)
}

/// `--quiet`.
pub(crate) fn is_quiet() -> bool {
    level() == Level::Quiet
}

/// `--verbose`.
pub(crate) fn is_verbose() -> bool {
    level() == Level::Verbose
}

/// A note or a piece of progress.
pub(crate) fn note(text: &str) {
    if !is_quiet() {
        eprintln!("{text}");
    }
}

/// A step of the work, with the time since the start. `text` may come from outside; it is made only for --verbose.
pub(crate) fn step(text: impl FnOnce() -> String) {
    if let Some((Level::Verbose, begun)) = TALK.get() {
        eprintln!("[{:.3} s] {}", begun.elapsed().as_secs_f64(), crate::output::printable(&text()));
    }
}
