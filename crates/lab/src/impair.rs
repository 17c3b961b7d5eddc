//! Delay and reordering on the way to the responder, in a router of its own (the wan of a [`Site`]), never in the gateway
//! under test.
//!
//! Packets wait in the kernel (NFQUEUE) for a verdict from a thread here: it needs no netem, which many kernels lack, and carries
//! some hundred thousand packets a second. A super-packet (GSO) counts as one. The delay of the thread itself is measured and
//! reported with every run.

use std::io::{self, PipeWriter};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_netlink::nfqueue::{self, Queue};
use weir_sys::process::{install, run_captured, which};
use weir_sys::{Error as SysError, NetNs};

use crate::options::Family;
use crate::plan::{FAR, NEAR};
use crate::relay::{Common, Relay};
use crate::{Error, Site};

pub use crate::link::Reorder;
pub use crate::relay::{Passed, Way};

/// A running impairment. Dropping it lets all waiting packets go on and takes its rules away.
#[derive(Debug)]
pub struct Impairment {
    wan: NetNs,
    rules: Vec<Rule>,
    common: Arc<Common>,
    /// Closed to wake the threads.
    bell: Option<PipeWriter>,
    egress: Direction,
    ingress: Direction,
}

/// One direction: its thread, if it has one, and what it counted.
#[derive(Debug, Default)]
struct Direction {
    thread: Option<JoinHandle<Result<(), SysError>>>,
    passed: Arc<Mutex<Passed>>,
    /// Packets that its queue had dropped when the counters were last set to nothing.
    dropped_before: u64,
}

/// The queues of the two directions.
const EGRESS: u16 = 0;
const INGRESS: u16 = 1;

/// A rule that sends one direction to a queue.
#[derive(Debug)]
struct Rule {
    program: &'static str,
    interface: &'static str,
    queue: u16,
}

impl Impairment {
    /// Begins to impair a site that was made with a wan. Egress is towards the responder.
    ///
    /// # Errors
    /// A site without a wan, values out of range, a kernel without NFQUEUE, no iptables.
    pub fn start(site: &Site, egress: Way, ingress: Way) -> Result<Self, Error> {
        let Some(wan) = site.wan() else {
            return Err(Error::Unknown(format!("site `{}` has no wan to impair", site.name())));
        };
        let failed = |source| Error::Build { site: site.name().to_owned(), source };
        let program = if site.addresses().family == Family::Ipv4 { "iptables" } else { "ip6tables" };
        let broken = |e| failed(SysError::new("make a pipe", e));
        let (heard, bell) = io::pipe().map_err(broken)?;
        let mut impairment = Impairment {
            wan: wan.clone(),
            rules: Vec::new(),
            common: Arc::default(),
            bell: Some(bell),
            egress: Direction::default(),
            ingress: Direction::default(),
        };
        for (queue, interface, way) in [(EGRESS, NEAR, egress), (INGRESS, FAR, ingress)] {
            if way == Way::default() {
                continue;
            }
            way.reorder.map_or(Ok(()), Reorder::validate).map_err(Error::Option)?;
            let opened =
                wan.run(|| Queue::open(queue, way.reads())).and_then(|queue| queue).map_err(failed)?;
            let direction = if queue == EGRESS { &mut impairment.egress } else { &mut impairment.ingress };
            let heard = heard.try_clone().map_err(broken)?;
            let (common, passed) = (Arc::clone(&impairment.common), Arc::clone(&direction.passed));
            let relay = Relay::new(opened, heard, way, common, passed);
            let thread = std::thread::Builder::new()
                .name("impair".into())
                .spawn(move || relay.run())
                .map_err(|e| failed(SysError::new("start a thread", e)))?;
            direction.thread = Some(thread);
            let rule = Rule { program, interface, queue };
            rule.change(wan, "-A").map_err(failed)?;
            impairment.rules.push(rule);
        }
        Ok(impairment)
    }

    /// Sets the counters to nothing, and with another seed lets connections choose their gateways anew.
    ///
    /// # Errors
    /// If the kernel's counters cannot be read.
    pub fn begin(&mut self, seed: u64) -> Result<(), Error> {
        let dropped = self.dropped()?;
        self.common.begin(seed);
        for (direction, dropped) in [&mut self.egress, &mut self.ingress].into_iter().zip(dropped) {
            *direction.passed.lock().unwrap_or_else(PoisonError::into_inner) = Passed::default();
            direction.dropped_before = dropped;
        }
        Ok(())
    }

    /// Returns the counters of egress and ingress since the start.
    ///
    /// # Errors
    /// If the kernel's counters cannot be read, or a thread ended by itself.
    pub fn passed(&mut self) -> Result<(Passed, Passed), Error> {
        let [egress, ingress] = self.dropped()?;
        if let Some(ended) = [&mut self.egress, &mut self.ingress]
            .into_iter()
            .find(|direction| direction.thread.as_ref().is_some_and(JoinHandle::is_finished))
        {
            join(ended.thread.take()).map_err(wan_failed)?;
            return Err(wan_failed(SysError::other("hold packets", "the thread that does has ended")));
        }
        Ok((self.egress.passed(egress), self.ingress.passed(ingress)))
    }

    /// Ends the impairment; waiting packets are forwarded. Returns the counters of egress and ingress.
    ///
    /// # Errors
    /// As [`Impairment::passed`], or if a rule cannot be taken away.
    pub fn finish(mut self) -> Result<(Passed, Passed), Error> {
        // While its sockets are open the kernel lists the queues.
        let [egress, ingress] = self.dropped()?;
        self.take_rules().map_err(wan_failed)?;
        for direction in [&mut self.egress, &mut self.ingress] {
            join(direction.thread.take()).map_err(wan_failed)?;
        }
        Ok((self.egress.passed(egress), self.ingress.passed(ingress)))
    }

    /// Packets that the kernel dropped for want of room so far.
    fn dropped(&self) -> Result<[u64; 2], Error> {
        let dropped = self.wan.run(nfqueue::dropped).and_then(|dropped| dropped).map_err(wan_failed)?;
        let of = |queue| dropped.iter().find(|(number, _)| *number == queue).map_or(0, |(_, n)| *n);
        Ok([of(EGRESS), of(INGRESS)])
    }

    /// New packets no longer wait; then the threads let the waiting ones go.
    fn take_rules(&mut self) -> Result<(), SysError> {
        let mut result = Ok(());
        for rule in self.rules.drain(..) {
            result = result.and(rule.change(&self.wan, "-D"));
        }
        self.common.stop.store(true, Ordering::Relaxed);
        drop(self.bell.take());
        result
    }
}

impl Direction {
    fn passed(&self, dropped: u64) -> Passed {
        let counted = self.passed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Passed { overflows: dropped.saturating_sub(self.dropped_before), ..counted }
    }
}

impl Drop for Impairment {
    fn drop(&mut self) {
        // Errors cannot be reported here; the rules disappear with their namespace.
        let _ = self.take_rules();
        let _ = join(self.egress.thread.take());
        let _ = join(self.ingress.thread.take());
    }
}

fn wan_failed(source: SysError) -> Error {
    Error::Build { site: "wan".into(), source }
}

fn join(thread: Option<JoinHandle<Result<(), SysError>>>) -> Result<(), SysError> {
    match thread.map(JoinHandle::join) {
        None => Ok(()),
        Some(Ok(ended)) => ended,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
    }
}

impl Rule {
    fn change(&self, wan: &NetNs, action: &str) -> Result<(), SysError> {
        let what = || format!("send packets to NFQUEUE {}", self.queue);
        let path = which(self.program).ok_or_else(|| {
            SysError::other(what(), format!("{} is not installed; {}", self.program, install(self.program)))
        })?;
        let mut command = Command::new(path);
        let queue = self.queue.to_string();
        command.args(["-w", "-t", "mangle", action, "FORWARD", "-i", self.interface]);
        // Bypass: should this process be killed, connections that then end can still say so to each other, which lets their
        // namespaces go at once.
        command.args(["-j", "NFQUEUE", "--queue-num", &queue, "--queue-bypass"]);
        wan.enter_on_spawn(&mut command);
        let output = run_captured(command, Duration::from_secs(10))?;
        if output.status.success() { Ok(()) } else { Err(SysError::other(what(), output.message())) }
    }
}
