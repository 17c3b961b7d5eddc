//! When streams begin: together, without waiting long for those that the path keeps from beginning.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{TrialSettings, window::Window};

/// How long the opening of a stream may take: connecting, greeting and the answer.
pub(crate) const OPENING: Duration = Duration::from_secs(5);

/// Once a first stream stands, the others have as long as it took, and this.
const GRACE: Duration = Duration::from_millis(200);

/// Time between two looks at the stop flag.
const LOOK: Duration = Duration::from_millis(40);

/// The common start of an end's streams. All begin when each of them stands or has failed, or at the latest when the first one's
/// time has passed twice, and [`GRACE`]. One that stands later begins at once, within the window that has begun without it.
pub(crate) struct Starts<'a> {
    setting: &'a TrialSettings,
    begun: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Streams that neither stand nor have failed.
    missing: usize,
    /// When the wait is over, known once the first one stands.
    until: Option<Instant>,
    open: bool,
}

/// One stream's part in it. Dropped before it stands, the stream has failed.
pub(crate) struct Start<'a> {
    starts: &'a Starts<'a>,
    waits: bool,
}

impl<'a> Starts<'a> {
    /// For that many streams, from now on.
    pub(crate) fn new(setting: &'a TrialSettings, streams: usize) -> Self {
        let state = State { missing: streams, until: None, open: false };
        Starts { setting, begun: Instant::now(), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// One stream begins to open.
    pub(crate) fn one(&'a self) -> Start<'a> {
        Start { starts: self, waits: true }
    }

    /// How long a stream may still take to stand.
    pub(crate) fn left(&self) -> Duration {
        (self.begun + OPENING).saturating_duration_since(Instant::now())
    }

    /// True if a stream that does not stand yet will not any more: the trial was stopped, or the others' window is over.
    pub(crate) fn too_late(&self, window: &Window) -> bool {
        self.setting.stop.raised() || window.end_ns().is_some_and(|end| weir_sys::clock::now_ns() >= end)
    }
}

impl<'a> Start<'a> {
    /// All of them.
    pub(crate) fn starts(&self) -> &'a Starts<'a> {
        self.starts
    }

    /// The stream stands: wait for the common start. True if the others did not wait for it.
    pub(crate) fn stands(mut self) -> bool {
        self.waits = false;
        let starts = self.starts;
        let mut state = starts.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.open {
            return true;
        }
        state.missing -= 1;
        let now = Instant::now();
        let until = *state.until.get_or_insert(now + (now - starts.begun) + GRACE);
        loop {
            let now = Instant::now();
            if state.open || state.missing == 0 || now >= until || starts.setting.stop.raised() {
                state.open = true;
                starts.changed.notify_all();
                return false;
            }
            let wait = LOOK.min(until - now);
            (state, _) = starts.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        if self.waits {
            let mut state = self.starts.state.lock().unwrap_or_else(PoisonError::into_inner);
            // Once open, no thread waits for it.
            state.missing = state.missing.saturating_sub(1);
            self.starts.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting() -> TrialSettings {
        TrialSettings::new(Duration::ZERO, Duration::from_secs(1), 1)
    }

    #[test]
    fn streams_begin_when_each_stands_or_has_failed() {
        let setting = setting();
        let starts = Starts::new(&setting, 3);
        let late = std::thread::scope(|scope| {
            let standing: Vec<_> = (0..2).map(|_| scope.spawn(|| starts.one().stands())).collect();
            drop(starts.one());
            standing.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(late, [false, false]);
    }

    #[test]
    fn one_that_does_not_stand_is_not_waited_for_and_is_late_when_it_does() {
        let setting = setting();
        let starts = Starts::new(&setting, 2);
        let slow = starts.one();
        assert!(!starts.one().stands(), "begins by itself");
        assert!(slow.stands(), "begins late");
        assert!(!starts.too_late(&Window::new(&setting)), "no window has begun");
        setting.stop.raise();
        assert!(starts.too_late(&Window::new(&setting)));
    }
}
