//! Delay and reordering on the way to the responder, in a router of its own (the wan of a [`Site`]), never in the gateway
//! under test.
//!
//! Packets wait in the kernel (NFQUEUE) for a verdict from a thread here: it needs no netem, which many kernels lack, and
//! carries some hundred thousand packets a second. A super-packet (GSO) counts as one. What the thread itself is late is
//! measured and reported with every run.

use std::collections::VecDeque;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_stats::Histogram;
use weir_sys::clock::now_ns;
use weir_sys::nfqueue::Queue;
use weir_sys::process::{run_captured, which};
use weir_sys::{Error as SysError, NetNs, sched};

use crate::options::Family;
use crate::plan::{FAR, NEAR};
use crate::{Error, Site};

/// Longest wait of a packet that is held for reordering when no later ones come, ns.
const HELD_AT_MOST_NS: u64 = 100_000_000;
/// How often the thread looks whether it shall end, when nothing else happens.
const LOOK: Duration = Duration::from_millis(20);

/// Every `every`th packet lets the next `behind` ones overtake it. It waits 100 ms at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reorder {
    /// Distance of the packets that are held back, at least 2.
    pub every: u32,
    /// How many later packets pass, at least 1 and below `every`.
    pub behind: u32,
}

/// What happens to the packets of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Way {
    /// How long each packet waits.
    pub delay: Duration,
    /// Which packets are overtaken.
    pub reorder: Option<Reorder>,
}

/// What one direction went through.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Passed {
    /// Packets that went on.
    pub packets: u64,
    /// Of these, packets that were overtaken on purpose.
    pub reordered: u64,
    /// How much later than due each packet was let go, ns.
    pub lateness: Histogram,
    /// How often announcements of packets were lost because this thread was too slow: a fault of the tester.
    pub overflows: u64,
}

/// A running impairment. Dropping it lets all waiting packets go on and takes its rules away.
#[derive(Debug)]
pub struct Impairment {
    wan: NetNs,
    rules: Vec<Rule>,
    stop: Arc<AtomicBool>,
    egress: Option<JoinHandle<Result<Passed, SysError>>>,
    ingress: Option<JoinHandle<Result<Passed, SysError>>>,
}

/// A rule that sends one direction to a queue.
#[derive(Debug)]
struct Rule {
    program: &'static str,
    interface: &'static str,
    queue: u16,
}

impl Impairment {
    /// Begins to impair a site that was made with a wan. Egress is towards the responder.
    pub fn start(site: &Site, egress: Way, ingress: Way) -> Result<Self, Error> {
        let Some(wan) = site.wan() else {
            return Err(Error::Unknown(format!("site `{}` has no wan to impair", site.name())));
        };
        let failed = |source| Error::Build { site: site.name().to_owned(), source };
        let program = if site.addresses().family == Family::Ipv4 { "iptables" } else { "ip6tables" };
        let mut impairment = Impairment {
            wan: wan.clone(),
            rules: Vec::new(),
            stop: Arc::default(),
            egress: None,
            ingress: None,
        };
        for (queue, interface, way) in [(0, NEAR, egress), (1, FAR, ingress)] {
            if way == Way::default() {
                continue;
            }
            if let Some(r) = way.reorder.filter(|r| r.every < 2 || r.behind < 1 || r.behind >= r.every) {
                return Err(Error::Option(format!(
                    "reorder: every {} behind {}; valid are every >= 2, 1 <= behind < every",
                    r.every, r.behind
                )));
            }
            let opened = wan.run(|| Queue::open(queue)).and_then(|queue| queue).map_err(failed)?;
            let stop = Arc::clone(&impairment.stop);
            let thread = std::thread::Builder::new()
                .name("impair".into())
                .spawn(move || Holder::new(opened, way).run(&stop))
                .map_err(|e| failed(SysError::new("start a thread", e)))?;
            *(if queue == 0 { &mut impairment.egress } else { &mut impairment.ingress }) = Some(thread);
            let rule = Rule { program, interface, queue };
            rule.change(wan, "-A").map_err(failed)?;
            impairment.rules.push(rule);
        }
        Ok(impairment)
    }

    /// Ends it: waiting packets go on. What egress and ingress went through.
    pub fn finish(mut self) -> Result<(Passed, Passed), Error> {
        let failed = |source| Error::Build { site: "wan".into(), source };
        self.take_rules().map_err(failed)?;
        let egress = join(self.egress.take()).map_err(failed)?;
        let ingress = join(self.ingress.take()).map_err(failed)?;
        Ok((egress, ingress))
    }

    /// New packets no longer wait; then the threads let the waiting ones go.
    fn take_rules(&mut self) -> Result<(), SysError> {
        let mut result = Ok(());
        for rule in self.rules.drain(..) {
            result = result.and(rule.change(&self.wan, "-D"));
        }
        self.stop.store(true, Ordering::Relaxed);
        result
    }
}

impl Drop for Impairment {
    fn drop(&mut self) {
        // Nobody is left to tell; the namespace takes its rules along when it goes.
        let _ = self.take_rules();
        let _ = join(self.egress.take());
        let _ = join(self.ingress.take());
    }
}

fn join(thread: Option<JoinHandle<Result<Passed, SysError>>>) -> Result<Passed, SysError> {
    match thread.map(JoinHandle::join) {
        None => Ok(Passed::default()),
        Some(Ok(passed)) => passed,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
    }
}

impl Rule {
    fn change(&self, wan: &NetNs, action: &str) -> Result<(), SysError> {
        let what = || format!("send packets to NFQUEUE {}", self.queue);
        let path = which(self.program).ok_or_else(|| {
            SysError::other(what(), format!("{} is not installed; apt install iptables", self.program))
        })?;
        let mut command = Command::new(path);
        let queue = self.queue.to_string();
        command.args(["-w", "-t", "mangle", action, "FORWARD", "-i", self.interface]);
        command.args(["-j", "NFQUEUE", "--queue-num", &queue]);
        wan.enter_on_spawn(&mut command);
        let output = run_captured(command, Duration::from_secs(10))?;
        if output.status.success() { Ok(()) } else { Err(SysError::other(what(), output.message())) }
    }
}

/// The thread's state: packets in the order of their arrival, which is that of their numbers.
struct Holder {
    queue: Queue,
    way: Way,
    waiting: VecDeque<(u32, u64)>,
    held: Option<Held>,
    passed: Passed,
}

/// The packet that lets others overtake it.
struct Held {
    number: u32,
    /// Later packets that still have to pass.
    behind: u32,
    /// When it goes on in any case.
    until_ns: u64,
}

impl Holder {
    fn new(queue: Queue, way: Way) -> Self {
        Holder { queue, way, waiting: VecDeque::new(), held: None, passed: Passed::default() }
    }

    fn run(mut self, stop: &AtomicBool) -> Result<Passed, SysError> {
        // Timers of an ordinary thread are up to 50 us late by design.
        sched::set_timer_slack_ns(1)?;
        let delay = u64::try_from(self.way.delay.as_nanos()).unwrap_or(u64::MAX);
        let waiting = &mut self.waiting;
        loop {
            let ending = stop.load(Ordering::Relaxed);
            let now = now_ns();
            let next = waiting
                .front()
                .map(|(_, due)| *due)
                .into_iter()
                .chain(self.held.as_ref().map(|h| h.until_ns))
                .min();
            let wait = next.map_or(LOOK, |due| Duration::from_nanos(due.saturating_sub(now)).min(LOOK));
            let wait = if ending { Duration::ZERO } else { wait };
            self.queue
                .receive(Some(wait), |number| waiting.push_back((number, now_ns().saturating_add(delay))))?;
            let now = now_ns();
            let due = if ending {
                waiting.len()
            } else {
                waiting.iter().take_while(|(_, due)| *due <= now).count()
            };
            let release: Vec<(u32, u64)> = waiting.drain(..due).collect();
            for (_, due) in &release {
                self.passed.lateness.record(now.saturating_sub(*due));
            }
            self.passed.packets += release.len() as u64;
            let accepted = match (self.way.reorder, release.last()) {
                (None, None) => Ok(()),
                (None, Some((last, _))) => self.queue.accept_up_to(*last),
                (Some(reorder), _) => {
                    let order = reordered(&release, reorder, &mut self.held, &mut self.passed, now, ending);
                    self.queue.accept_each(&order)
                }
            };
            accepted.map_err(|e| SysError::new("let packets go on", e))?;
            if ending {
                self.passed.overflows = self.queue.overflows();
                return Ok(self.passed);
            }
        }
    }
}

/// The order in which due packets go on, given the one that is held; `all` lets that one go too.
fn reordered(
    release: &[(u32, u64)],
    reorder: Reorder,
    held: &mut Option<Held>,
    passed: &mut Passed,
    now: u64,
    all: bool,
) -> Vec<u32> {
    let mut order = Vec::with_capacity(release.len() + 1);
    let first = passed.packets - release.len() as u64;
    for (i, (number, _)) in release.iter().enumerate() {
        let count = first + i as u64 + 1;
        if held.is_none() && count.is_multiple_of(reorder.every.into()) {
            *held = Some(Held { number: *number, behind: reorder.behind, until_ns: now + HELD_AT_MOST_NS });
            continue;
        }
        order.push(*number);
        if let Some(h) = held.as_mut() {
            h.behind -= 1;
            if h.behind == 0 {
                order.push(h.number);
                passed.reordered += 1;
                *held = None;
            }
        }
    }
    if let Some(h) = held.take_if(|h| all || h.until_ns <= now) {
        // It counts as overtaken if anything passed it.
        passed.reordered += u64::from(h.behind < reorder.behind);
        order.push(h.number);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which packets (first..last) go on that come in batches.
    fn order(batches: &[(u32, u32)], every: u32, behind: u32) -> (Vec<u32>, u64) {
        let (mut held, mut passed, mut all) = (None, Passed::default(), Vec::new());
        for (i, (first, last)) in batches.iter().enumerate() {
            let release: Vec<(u32, u64)> = (*first..*last).map(|n| (n, 0)).collect();
            passed.packets += release.len() as u64;
            let last = i + 1 == batches.len();
            all.extend(reordered(&release, Reorder { every, behind }, &mut held, &mut passed, 0, last));
        }
        (all, passed.reordered)
    }

    #[test]
    fn every_nth_packet_is_overtaken_by_k() {
        assert_eq!(order(&[(1, 9)], 4, 2), (vec![1, 2, 3, 5, 6, 4, 7, 8], 1));
        // The same however the packets come in.
        assert_eq!(order(&[(1, 3), (3, 5), (5, 6), (6, 9)], 4, 2), (vec![1, 2, 3, 5, 6, 4, 7, 8], 1));
        assert_eq!(order(&[(1, 7)], 2, 1), (vec![1, 3, 2, 5, 4, 6], 2));
    }

    #[test]
    fn a_held_packet_goes_on_when_nothing_follows() {
        let (mut held, mut passed) = (None, Passed { packets: 2, ..Passed::default() });
        let reorder = Reorder { every: 2, behind: 1 };
        assert_eq!(reordered(&[(1, 0), (2, 0)], reorder, &mut held, &mut passed, 1000, false), [1]);
        assert!(
            reordered(&[], reorder, &mut held, &mut passed, 1000 + HELD_AT_MOST_NS - 1, false).is_empty()
        );
        assert_eq!(reordered(&[], reorder, &mut held, &mut passed, 1000 + HELD_AT_MOST_NS, false), [2]);
        assert_eq!(passed.reordered, 0);
    }
}
