//! The meaning of the presets of `search`: lengths of trials, how many of them, how narrow.

use std::time::Duration;

use weir_stats::mlrsearch::Goal;

use crate::workload::{Packets, Procedure, Search};

/// How a rate is searched for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Method {
    /// MLRsearch for a goal, RFC 9971.
    Mlr(Goal),
    /// Bisection by trials of one length, to that many a second.
    Bisect { trial: Duration, error: f64 },
}

/// The figures of one preset.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PresetFigures {
    pub method: Method,
    /// How many trials decide a rate of establishment, whose trials have the length that the number of connections gives them: more
    /// than half of them.
    pub votes: u32,
    /// The longest that opening all connections may take: sets the least rate of establishment that is tried.
    pub longest_opening: Duration,
    /// Wait for stragglers after each transfer.
    pub drain: Duration,
    /// Latency: traffic before the first tagged frame.
    pub settle: Duration,
    /// Latency and PDV: length of the tagged stream; `None`: the trial's measuring window.
    pub stream: Option<Duration>,
    /// Longest burst of back-to-back frames.
    pub burst: Duration,
    /// How often the longest burst is searched for.
    pub bursts: u32,
    /// How often the table is torn down.
    pub tear_downs: u32,
    /// Share of the capacity to which it is searched; 0: to a single connection.
    pub capacity_error: f64,
}

/// Rate that is assumed for estimates, frames or connections a second.
pub(super) const ASSUMED_RATE: f64 = 500e3;

/// Rate of a fill to begin with, flows a second: a fill must not be what is measured. It is halved when flows are lost.
const FILL_RATE: f64 = 200e3;

/// The same for a workload: what bounds its frames bounds those of its fills.
pub(super) fn fill_rate(packets: &Packets) -> f64 {
    packets.bound().map_or(FILL_RATE, |bound| bound.min(FILL_RATE))
}

impl Packets {
    pub(crate) fn plan(&self) -> PresetFigures {
        PresetFigures::of(self.search, self.loss_ratio)
    }
}

impl PresetFigures {
    /// The preset's figures.
    fn of(search: Search, loss_ratio: f64) -> PresetFigures {
        let ms = Duration::from_millis;
        let s = Duration::from_secs;
        let goal = |final_duration, duration_sum, exceed_ratio, width, initial_duration| {
            Method::Mlr(Goal {
                final_duration,
                duration_sum,
                loss_ratio,
                exceed_ratio,
                width,
                initial_duration,
            })
        };
        // RFC 2544 section 23: two seconds for stragglers. RFC 8219 section 7.2: 120 s, tagged frames after 60 s; 7.3.1: 60 s.
        let thorough = PresetFigures {
            method: goal(s(60), s(60), 0.0, 0.005, s(1)),
            votes: 1,
            longest_opening: s(60),
            drain: s(2),
            settle: s(60),
            stream: Some(s(60)),
            // RFC 9004 section 5: up to 30 s. RFC 2544 section 26.4: 50 times.
            burst: s(30),
            bursts: 50,
            tear_downs: 10,
            capacity_error: 0.0,
        };
        let brief = PresetFigures {
            method: goal(ms(200), ms(600), 0.5, 0.01, ms(100)),
            votes: 3,
            longest_opening: s(5),
            drain: ms(50),
            settle: Duration::ZERO,
            stream: None,
            burst: s(2),
            bursts: 1,
            tear_downs: 3,
            capacity_error: 0.005,
        };
        match search {
            Search::Quick => brief,
            Search::Mlr => PresetFigures {
                method: goal(s(1), s(21), 0.5, 0.005, s(1)),
                votes: 5,
                longest_opening: s(20),
                drain: ms(100),
                bursts: 3,
                tear_downs: 5,
                capacity_error: 0.002,
                ..brief
            },
            Search::Rfc2544 => thorough,
            Search::Rfc9693 => {
                PresetFigures { method: Method::Bisect { trial: s(60), error: 1000.0 }, ..thorough }
            }
        }
    }

    /// Length of the trials that decide.
    pub(crate) fn trial(&self) -> Duration {
        match &self.method {
            Method::Mlr(goal) => goal.final_duration,
            Method::Bisect { trial, .. } => *trial,
        }
    }

    /// Length of a look at what the sender can do.
    pub(crate) fn probe(&self) -> Duration {
        match &self.method {
            Method::Mlr(goal) => goal.initial_duration,
            Method::Bisect { .. } => Duration::from_secs(1),
        }
    }

    /// The width of the result, relative.
    pub(crate) fn width(&self) -> f64 {
        match &self.method {
            Method::Mlr(goal) => goal.width,
            Method::Bisect { error, .. } => error / ASSUMED_RATE,
        }
    }

    /// How rates of establishment are searched for. RFC 9971 leaves it to the tester what it counts as a trial's duration:
    /// here each trial counts as a second, so that the number of trials decides.
    pub(crate) fn establishment(&self) -> Method {
        let one = Duration::from_secs(1);
        match &self.method {
            Method::Mlr(goal) => Method::Mlr(Goal {
                final_duration: one,
                duration_sum: one * self.votes,
                initial_duration: one,
                loss_ratio: 0.0,
                ..goal.clone()
            }),
            bisect @ Method::Bisect { .. } => bisect.clone(),
        }
    }

    /// How a procedure searches, in words for people.
    pub(crate) fn describe(&self, procedure: Procedure) -> String {
        match (procedure, &self.method) {
            (Procedure::Capacity, _) if self.capacity_error > 0.0 => {
                format!("bisection to {} %", self.capacity_error * 100.0)
            }
            (Procedure::Capacity, _) => "bisection to one connection".to_owned(),
            (Procedure::Establishment | Procedure::EstablishmentValidated, Method::Mlr(goal)) => {
                let percent = goal.width * 100.0;
                match self.votes {
                    1 => format!("MLRsearch with one trial a rate, to {percent} %"),
                    votes => format!("MLRsearch with up to {votes} trials a rate, to {percent} %"),
                }
            }
            (Procedure::Establishment | Procedure::EstablishmentValidated, Method::Bisect { error, .. }) => {
                format!("bisection to {error}/s")
            }
            (_, Method::Mlr(goal)) => format!(
                "MLRsearch with trials of {} s, {} s a load, to {} %",
                goal.final_duration.as_secs_f64(),
                goal.duration_sum.as_secs_f64(),
                goal.width * 100.0
            ),
            (_, Method::Bisect { trial, error }) => {
                format!("bisection with trials of {} s, to {error}/s", trial.as_secs_f64())
            }
        }
    }
}
