//! Sources of metrics, each read at its own pace by a thread of its own: a slow one keeps no other waiting, and no scrape.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weir_sys::Stop;
use weir_sys::clock::sleep_unless;

use crate::page::{Group, Metric, Page, yes};

/// Shortest wait after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

static UP: Metric =
    Metric::gauge("source_up", &["source"], "1 if the last reading of the source succeeded, else 0.");
static TOOK: Metric =
    Metric::gauge("source_read_seconds", &["source"], "How long the last reading of the source took.");
static AGE: Metric = Metric::gauge("source_age_seconds", &["source"], "Time since the last reading ended.");

/// For the reference.
pub(crate) static GROUP: Group = Group {
    title: "Sources",
    about: "Each figure has a source. One that fails has no series but these, and weir prints the reason once.",
    metrics: &[&UP, &TOOK, &AGE],
};

/// A source of metrics.
pub trait Source: Send {
    /// Its name, a label.
    fn name(&self) -> &'static str;

    /// Time from the beginning of one reading to the next.
    fn every(&self) -> Duration;

    /// Reads it once. One that takes long returns soon after `stop` is raised.
    ///
    /// # Errors
    /// Why there are no figures, for people.
    fn read(&mut self, page: &mut Page, stop: &Stop) -> Result<(), String>;
}

/// The result of a source's last reading.
#[derive(Default)]
struct Latest {
    text: String,
    failure: Option<String>,
    took: Duration,
    /// When it ended; none before the first one.
    ended: Option<Instant>,
    /// The failure, or its end, was not reported yet.
    is_news: bool,
}

struct Slot {
    name: &'static str,
    latest: Arc<Mutex<Latest>>,
    thread: Option<JoinHandle<()>>,
}

/// Sources that are read. Dropping it ends their threads.
pub struct Board {
    slots: Vec<Slot>,
    stop: Stop,
}

fn lock(latest: &Mutex<Latest>) -> MutexGuard<'_, Latest> {
    latest.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    /// Starts to read, in the calling thread's network namespace.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(sources: Vec<Box<dyn Source>>) -> std::io::Result<Self> {
        let mut board = Board { slots: Vec::new(), stop: Stop::default() };
        for source in sources {
            let (name, latest) = (source.name(), Arc::<Mutex<Latest>>::default());
            let (shared, stop) = (Arc::clone(&latest), board.stop.clone());
            let thread =
                thread::Builder::new().name(name.into()).spawn(move || follow(source, &shared, &stop))?;
            board.slots.push(Slot { name, latest, thread: Some(thread) });
        }
        Ok(board)
    }

    /// Writes the latest figures of all.
    pub fn write(&self, page: &mut Page) {
        let read: Vec<(&Slot, MutexGuard<'_, Latest>)> = self
            .slots
            .iter()
            .map(|slot| (slot, lock(&slot.latest)))
            .filter(|s| s.1.ended.is_some())
            .collect();
        let up = |(slot, latest): &(&Slot, MutexGuard<'_, Latest>)| ([slot.name], yes(slot.is_fine(latest)));
        page.series(&UP, read.iter().map(up));
        page.series(&TOOK, read.iter().map(|(slot, latest)| ([slot.name], latest.took.as_secs_f64())));
        let age = |ended: Option<Instant>| ended.map_or(0.0, |ended| ended.elapsed().as_secs_f64());
        page.series(&AGE, read.iter().map(|(slot, latest)| ([slot.name], age(latest.ended))));
        for (slot, latest) in &read {
            if slot.is_fine(latest) {
                page.append(&latest.text);
            }
        }
    }

    /// Failures that are new, and those that are over, for people; each once.
    pub fn news(&self) -> Vec<String> {
        let mut news = Vec::new();
        for slot in &self.slots {
            let mut latest = lock(&slot.latest);
            if std::mem::take(&mut latest.is_news) {
                news.push(match &latest.failure {
                    Some(why) => format!("no figures of {}: {why}", slot.name),
                    None => format!("figures of {} again", slot.name),
                });
            }
        }
        news
    }
}

impl Slot {
    /// Whether its figures are of now: a thread that panicked reads no more.
    fn is_fine(&self, latest: &Latest) -> bool {
        latest.failure.is_none() && self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.stop.raise();
        for slot in &mut self.slots {
            // One that panicked has ended, too.
            let _ = slot.thread.take().map(JoinHandle::join);
        }
    }
}

fn follow(mut source: Box<dyn Source>, latest: &Mutex<Latest>, stop: &Stop) {
    while !stop.raised() {
        let began = Instant::now();
        let mut page = Page::default();
        let read = source.read(&mut page, stop);
        if stop.raised() {
            return;
        }
        let wait = if read.is_ok() { source.every() } else { source.every().max(AFTER_FAILURE) };
        {
            let mut latest = lock(latest);
            let failure = read.err();
            if failure.is_some() != latest.failure.is_some() {
                latest.is_news = true;
            }
            latest.text = page.into_text();
            (latest.failure, latest.took, latest.ended) = (failure, began.elapsed(), Some(Instant::now()));
        }
        sleep_unless(&|| stop.raised(), wait.saturating_sub(began.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static SEEN: Metric = Metric::gauge("seen", &[], "A test.");

    /// Fails every second time.
    struct Moody(Arc<AtomicUsize>);

    impl Source for Moody {
        fn name(&self) -> &'static str {
            "moody"
        }

        fn every(&self) -> Duration {
            Duration::from_secs(3600)
        }

        fn read(&mut self, page: &mut Page, _stop: &Stop) -> Result<(), String> {
            page.single(&SEEN, 7.0);
            if self.0.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                Err("in a mood".into())
            } else {
                Ok(())
            }
        }
    }

    fn text(board: &Board) -> String {
        let mut page = Page::default();
        board.write(&mut page);
        page.into_text()
    }

    /// The board after its source was read once.
    fn read_once(reads: usize) -> Board {
        let count = Arc::new(AtomicUsize::new(reads));
        let board = Board::start(vec![Box::new(Moody(count))]).unwrap();
        while !text(&board).contains("weir_source_up{") {
            thread::sleep(Duration::from_millis(5));
        }
        board
    }

    #[test]
    fn figures_of_a_source_that_fails_are_left_out_and_the_reason_comes_once() {
        let board = read_once(0);
        let page = text(&board);
        assert!(
            page.contains("weir_source_up{source=\"moody\"} 0\n") && !page.contains("weir_seen"),
            "{page}"
        );
        assert_eq!(board.news(), ["no figures of moody: in a mood"]);
        assert!(board.news().is_empty());
    }

    #[test]
    fn figures_of_a_source_that_succeeds_are_shown() {
        let board = read_once(1);
        let page = text(&board);
        assert!(
            page.contains("weir_source_up{source=\"moody\"} 1\n") && page.contains("weir_seen 7\n"),
            "{page}"
        );
        assert!(board.news().is_empty());
    }

    #[test]
    fn a_source_that_panics_is_down() {
        struct Panics(usize);
        impl Source for Panics {
            fn name(&self) -> &'static str {
                "panics"
            }
            fn every(&self) -> Duration {
                Duration::ZERO
            }
            fn read(&mut self, page: &mut Page, _stop: &Stop) -> Result<(), String> {
                self.0 += 1;
                assert!(self.0 < 2, "on purpose");
                page.single(&SEEN, 1.0);
                Ok(())
            }
        }
        let board = Board::start(vec![Box::new(Panics(0))]).unwrap();
        while !text(&board).contains("weir_source_up{source=\"panics\"} 0\n") {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!text(&board).contains("weir_seen"));
    }
}
