//! The events that a run reports while it works.

use weir_record::{Run, Trial};

/// One piece of news.
#[derive(Debug)]
pub enum Event<'a> {
    /// The plan is made: trials in each round, and the least and most seconds that it will probably take.
    Planned {
        /// The record so far.
        run: &'a Run,
        /// Trials per round.
        trials: usize,
        /// Seconds, least and most.
        seconds: (f64, f64),
    },
    /// The hosts are up.
    HostsUp {
        /// The testbed in words.
        testbed: &'a str,
        /// Seconds it took.
        seconds: f64,
    },
    /// A variant was proved.
    Proved {
        /// Which.
        variant: &'a str,
        /// One line per check.
        proof: &'a [String],
    },
    /// A trial begins.
    Trial {
        /// Round, from 0.
        round: u32,
        /// Position in the round, from 0.
        position: usize,
        /// Trials in the round.
        of: usize,
        /// Variant.
        variant: &'a str,
        /// Workload.
        workload: &'a str,
    },
    /// A trial ended.
    Measured {
        /// The trial.
        trial: &'a Trial,
    },
    /// A round ended; the record's results are up to date.
    Round {
        /// The record so far.
        run: &'a Run,
        /// Rounds made.
        rounds: u32,
        /// Seconds that the rest will take at most.
        remaining_s: f64,
    },
    /// Something that the user should know.
    Note(&'a str),
}

/// A listener for the events of a run.
pub trait Progress {
    /// Takes a piece of news. It must return soon: the run waits.
    fn tell(&mut self, event: Event<'_>);
}
