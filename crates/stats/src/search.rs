//! Plain binary search for the greatest load that passes, as RFC 2544 section 24 and RFC 9693 use it.

/// A search under way: [`Bisection::ask`] for a trial, make it, [`Bisection::tell`] whether it passed.
#[derive(Debug, Clone, PartialEq)]
pub struct Bisection {
    low: f64,
    high: f64,
    error: f64,
    relative_error: f64,
    repeats: u32,
    state: State,
    passed: bool,
    failed: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum State {
    /// This load is to be tried; it failed that many times already.
    At(f64, u32),
    Done,
}

impl Bisection {
    /// Among the loads above `low`, which is taken to pass, up to `high`, which is tried first: if it passes, nothing else is
    /// tried. It ends when the bounds are no more than `error` apart.
    pub fn new(low: f64, high: f64, error: f64) -> Bisection {
        let state = if high > low { State::At(high, 0) } else { State::Done };
        Bisection { low, high, error, relative_error: 0.0, repeats: 0, state, passed: false, failed: false }
    }

    /// End also when the bounds are no more than this share of the upper one apart.
    #[must_use]
    pub fn relative_error(self, share: f64) -> Bisection {
        Bisection { relative_error: share, ..self }
    }

    /// Try a load that failed up to so many times again before it counts (ETSI GS NFV-TST 009 section 12.3.3, "binary search
    /// with loss verification", which RFC 9004 asks for).
    #[must_use]
    pub fn repeats(self, repeats: u32) -> Bisection {
        Bisection { repeats, ..self }
    }

    /// The load to try next; `None` when the search is over.
    pub fn ask(&self) -> Option<f64> {
        match self.state {
            State::At(load, _) => Some(load),
            State::Done => None,
        }
    }

    /// Whether the load asked for passed.
    pub fn tell(&mut self, passed: bool) {
        let State::At(load, failures) = self.state else { return };
        if !passed && failures < self.repeats {
            self.state = State::At(load, failures + 1);
            return;
        }
        if passed {
            self.low = load;
            self.passed = true;
        } else {
            self.high = load;
            self.failed = true;
        }
        let near = self.high - self.low <= self.error.max(self.relative_error * self.high);
        let middle = self.low + (self.high - self.low) / 2.0;
        // A distance of zero error ends where numbers do.
        let between = middle > self.low && middle < self.high;
        self.state = if near || !between { State::Done } else { State::At(middle, 0) };
    }

    /// The greatest load that passed, if one did.
    pub fn lower(&self) -> Option<f64> {
        self.passed.then_some(self.low)
    }

    /// The least load that failed, if one did.
    pub fn upper(&self) -> Option<f64> {
        self.failed.then_some(self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(search: &mut Bisection, mut passes: impl FnMut(f64) -> bool) -> u32 {
        let mut trials = 0;
        while let Some(load) = search.ask() {
            trials += 1;
            assert!(trials < 1000, "the search does not end");
            search.tell(passes(load));
        }
        trials
    }

    #[test]
    fn finds_the_edge_within_the_error() {
        for edge in [3.0, 999.0, 123_456.0, 999_999.0] {
            let mut search = Bisection::new(0.0, 1e6, 1000.0);
            // The first trial at the top, and ten halvings of a million to under a thousand.
            assert_eq!(run(&mut search, |load| load <= edge), 11);
            let (lower, upper) = (search.lower(), search.upper().unwrap());
            assert!(lower.is_none_or(|l| l <= edge) && upper > edge, "{lower:?} {upper} {edge}");
            assert!(upper - lower.unwrap_or(0.0) <= 1000.0);
        }
    }

    #[test]
    fn all_pass_and_none_passes() {
        let mut search = Bisection::new(0.0, 1e6, 1000.0);
        assert_eq!(run(&mut search, |_| true), 1);
        assert_eq!((search.lower(), search.upper()), (Some(1e6), None));
        let mut search = Bisection::new(0.0, 1e6, 1000.0);
        run(&mut search, |_| false);
        assert_eq!(search.lower(), None);
        assert!(search.upper().unwrap() <= 1000.0);
    }

    #[test]
    fn relative_error() {
        let mut search = Bisection::new(0.0, 1e6, 0.0).relative_error(0.01);
        run(&mut search, |load| load <= 5000.0);
        let (lower, upper) = (search.lower().unwrap(), search.upper().unwrap());
        assert!(lower <= 5000.0 && upper > 5000.0 && upper - lower <= 0.01 * upper, "{lower} {upper}");
    }

    #[test]
    fn an_error_of_nothing_ends_all_the_same() {
        let mut search = Bisection::new(0.0, 1.0, 0.0);
        run(&mut search, |load| load <= 0.3);
        assert_eq!(search.lower(), Some(0.3));
        // The middle of neighbours is one of them: the lower one here, the upper one there.
        let next = 1.0_f64.next_up();
        for (low, high) in [(1.0, next), (next, next.next_up())] {
            assert_eq!(run(&mut Bisection::new(low, high, 0.0), |_| false), 1);
        }
    }

    #[test]
    fn a_failure_is_verified() {
        // Every second trial fails whatever the load: with one repetition that hides nothing and costs nothing in the result.
        let mut nth = 0;
        let mut flaky = |load: f64| {
            nth += 1;
            nth % 2 == 0 && load <= 300.0
        };
        let mut search = Bisection::new(0.0, 1024.0, 1.0).repeats(1);
        run(&mut search, &mut flaky);
        let (lower, upper) = (search.lower().unwrap(), search.upper().unwrap());
        assert!(lower <= 300.0 && upper > 300.0 && upper - lower <= 1.0, "{lower} {upper}");
    }

    #[test]
    fn loads_are_halved_and_failures_repeated_in_this_order() {
        let mut search = Bisection::new(100.0, 500.0, 50.0).repeats(2);
        let mut asked = Vec::new();
        run(&mut search, |load| {
            asked.push(load);
            load <= 260.0
        });
        // 400 apart, 200, 100, and 50 is near enough.
        assert_eq!(asked, [500.0, 500.0, 500.0, 300.0, 300.0, 300.0, 200.0, 250.0]);
        assert_eq!((search.lower(), search.upper()), (Some(250.0), Some(300.0)));
        assert_eq!(search.ask(), None);
        // The share is that of the upper bound: 4 of 80 are 5 %, 8 of 84 are more.
        let mut search = Bisection::new(68.0, 100.0, 1.0).relative_error(0.05);
        let mut asked = Vec::new();
        run(&mut search, |load| {
            asked.push(load);
            load <= 76.0
        });
        assert_eq!(asked, [100.0, 84.0, 76.0, 80.0]);
        // Results after the end change nothing.
        search.tell(true);
        assert_eq!((search.lower(), search.upper()), (Some(76.0), Some(80.0)));
    }

    #[test]
    fn nothing_to_search() {
        assert_eq!(Bisection::new(5.0, 5.0, 1.0).ask(), None);
    }
}
