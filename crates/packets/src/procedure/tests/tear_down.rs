//! The time that emptying the table takes.

use super::*;

/// Empties its table in a time that each flush is given.
struct Emptied<F> {
    inner: Simulated,
    flushes: usize,
    took: F,
}

impl<F: FnMut(usize) -> Duration> Testbed for Emptied<F> {
    fn flush(&mut self) -> Result<(Duration, Option<(u64, u64)>), TestbedError> {
        let (_, entries) = self.inner.flush()?;
        self.flushes += 1;
        Ok(((self.took)(self.flushes - 1), entries))
    }

    fn tracked(&mut self) -> Result<Option<u64>, TestbedError> {
        self.inner.tracked()
    }

    fn transfer(&mut self, transfer: &Transfer) -> Result<TransferOutcome, TestbedError> {
        self.inner.transfer(transfer)
    }
}

#[test]
fn tear_down_rate() {
    // 1 ms for the command, 100 ns for an entry.
    let found = measure(&quick(Procedure::TearDown), &mut Simulated::default());
    assert_eq!(found.faults, []);
    near(value(&found, "teardown_per_s"), 1e7, 1e-6);
    near(value(&found, "flush_empty_ns"), 1e6, 1e-6);
    near(value(&found, "flush_full_ns"), 6e6, 1e-6);
    let mut none = Simulated { has_table: false, ..Simulated::default() };
    let found = measure(&quick(Procedure::TearDown), &mut none);
    assert!(found.faults.is_empty() && !found.values.contains_key("teardown_per_s"));
    let instant = (Duration::from_millis(1), Duration::ZERO);
    let found =
        measure(&quick(Procedure::TearDown), &mut Simulated { flush: instant, ..Simulated::default() });
    assert!(found.faults.iter().any(|f| f.void && f.detail.contains("too few")), "{found:?}");
    // Evicted entries are not torn down: no rate, and no fault of the tester.
    let mut evicting = Simulated { holds: 10_000, evicts: true, ..Simulated::default() };
    let found = measure(&quick(Procedure::TearDown), &mut evicting);
    assert!(found.faults.iter().all(|f| !f.void && f.detail.contains("held 10000")), "{found:?}");
    assert_eq!((value(&found, "teardown_per_s"), value(&found, "lacking_ratio")), (0.0, 0.8));
}

#[test]
fn more_than_half_of_the_tear_downs_must_take_longer_than_an_empty_one() {
    // Three flushes in turn are before the connections, with them and without. The first few with them take no longer.
    let told = |search: Search, instant: usize| {
        let took =
            |flush: usize| Duration::from_millis(if flush % 3 == 1 && flush / 3 >= instant { 6 } else { 1 });
        let mut testbed = Emptied { inner: Simulated::default(), flushes: 0, took };
        let packets = Packets { search, ..quick(Procedure::TearDown) };
        let found = run(&packets, &SETTING, &mut testbed).unwrap();
        (found.values.get("teardown_per_s").copied(), found.faults.iter().any(|f| f.void))
    };
    for (search, instant, is_told) in [
        (Search::Quick, 1, true),
        (Search::Quick, 2, false),
        (Search::Mlr, 2, true),
        (Search::Mlr, 3, false),
        (Search::Rfc2544, 4, true),
        (Search::Rfc2544, 5, false),
    ] {
        let (rate, is_void) = told(search, instant);
        assert_eq!((rate.is_some(), is_void), (is_told, !is_told), "{search:?}, {instant}");
        assert!(rate.is_none_or(|rate| (rate - 1e7).abs() < 1.0), "{rate:?}");
    }
}
