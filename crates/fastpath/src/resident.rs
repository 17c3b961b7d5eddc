//! The process that keeps a fast path. Its programs are held by it alone: with its end, in whatever way, every packet takes the kernel's
//! way again, and nothing is left.

use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_netlink::conntrack::{Conntrack, Entry, Status, Tuple};

use crate::direction::ends;
use crate::shared::WEIR_ENDED_S;
use crate::store::{ExclusionStore, joined};
use crate::top::{Counting, another};
use crate::visit::{Explained, LessonCount, Now, Question, ReasonCount, answer, listen};
use crate::{Error, Exclusion, Fastpath, Keeper, Protocol, Reason, Result, Wanted, remove_leftovers};

/// Longest time between two looks at the time, at signals and at the interfaces.
const TICK: Duration = Duration::from_millis(100);
/// Time between two looks at the interfaces.
const LOOK: Duration = Duration::from_millis(500);
/// A trial ends here so much later than by its guards: they are first unless they were killed.
const MARGIN: Duration = Duration::from_secs(1);
/// The answer that tells nothing but success, as JSON.
const NOTHING: &str = "null";
/// `enum tcp_conntrack`: ESTABLISHED.
pub(crate) const ESTABLISHED: u8 = 3;

/// A wish, and the time for which it is fulfilled.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The wish.
    pub wanted: Wanted,
    /// Time of the trial; `None`: for good.
    pub trial: Option<Duration>,
    /// Exclusions that are kept and count beside those of the wish.
    pub kept: ExclusionStore,
}

/// A fast path in effect, and the socket at which it can be asked.
#[derive(Debug)]
pub struct Resident {
    wanted: Wanted,
    kept: Vec<Exclusion>,
    id: String,
    fastpath: Arc<Fastpath>,
    keeper: Keeper,
    listener: UnixListener,
    begun: Instant,
    until: Option<Instant>,
    paused: bool,
    counting: Option<Counting>,
    asked_to_end: bool,
}

impl Resident {
    /// Puts it into effect in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::State`] if one is in effect there, or kept exclusions cannot be read; else if an interface does not fit, or the kernel
    /// refuses.
    pub fn begin(setup: Setup) -> Result<Self> {
        let Setup { wanted, trial, kept } = setup;
        let listener = listen()?;
        // After the name is taken: a later change finds this process, and tells it.
        let kept = kept.read()?;
        // The name is ours: whatever is attached by clsact was left by a process that was killed.
        remove_leftovers()?;
        let fastpath = Fastpath::load(wanted.options())?;
        fastpath.exclude(&joined(&wanted.excluded, &kept))?;
        for interface in &wanted.interfaces {
            fastpath.attach(interface)?;
        }
        for interface in &wanted.xdp {
            fastpath.attach_xdp(interface)?;
        }
        let fastpath = Arc::new(fastpath);
        let keeper = Keeper::start(&fastpath)?;
        let begun = Instant::now();
        let until = trial.map(|time| begun + time + MARGIN);
        let id = wanted.id();
        Ok(Resident {
            wanted,
            kept,
            id,
            fastpath,
            keeper,
            listener,
            begun,
            until,
            paused: false,
            counting: None,
            asked_to_end: false,
        })
    }

    /// Works until it is asked to end, `ends` is set, or its trial is over.
    ///
    /// # Errors
    /// If the thread that renews the lease has ended by an error, or the kernel refuses.
    pub fn serve(mut self, ends: &AtomicBool) -> Result<()> {
        let mut looked = Instant::now();
        while !ends.load(Ordering::Relaxed) && !self.asked_to_end {
            if self.until.is_some_and(|until| until <= Instant::now()) {
                return Ok(());
            }
            if !self.keeper.is_alive() {
                return Err(Error::State("the thread that keeps the fast path has ended".into()));
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.mend()?;
            }
            if self.counting.take_if(|counting| counting.is_forgotten()).is_some() {
                Counting::stop(&self.fastpath);
            }
            self.wait();
            while let Ok((stream, _)) = self.listener.accept() {
                answer(stream, |question| self.reply(question));
            }
        }
        Ok(())
    }

    /// An interface may go while it is looked at: it is looked at again.
    fn mend(&self) -> Result<()> {
        match self.fastpath.mend() {
            Err(Error::Bpf(_) | Error::System(_)) | Ok(()) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn wait(&self) {
        let time = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
        // A signal ends it early; another failure makes the next look come at once.
        let _ = poll(&mut fds, Some(&time));
    }

    /// The answer as JSON.
    fn reply(&mut self, question: Question) -> Result<String> {
        let said = match question {
            Question::Now => serde_json::to_string(&self.now()?),
            Question::Flows { most } => serde_json::to_string(&self.fastpath.flows(most)?),
            Question::Count => {
                if self.counting.is_some() {
                    return Err(another());
                }
                self.counting = Some(Counting::begin(&self.fastpath)?);
                Ok(NOTHING.to_owned())
            }
            Question::Top { most } => match self.counting.take() {
                Some(counting) => serde_json::to_string(&counting.end(&self.fastpath, most)?),
                None => {
                    return Err(Error::State("nothing is counted, or not any more: it took too long".into()));
                }
            },
            Question::Explain { protocol, source, destination } => {
                serde_json::to_string(&self.explain(protocol, source, destination)?)
            }
            Question::Keep => {
                self.until = None;
                Ok(NOTHING.to_owned())
            }
            Question::Pause { pause } => {
                self.fastpath.set_paused(pause)?;
                self.paused = pause;
                Ok(NOTHING.to_owned())
            }
            Question::Exclude { kept } => {
                self.fastpath.exclude(&joined(&self.wanted.excluded, &kept))?;
                self.kept = kept;
                Ok(NOTHING.to_owned())
            }
            Question::End => {
                self.asked_to_end = true;
                Ok(NOTHING.to_owned())
            }
        };
        said.map_err(|e| Error::State(e.to_string()))
    }

    fn now(&self) -> Result<Now> {
        let status = self.fastpath.status()?;
        let reason = |&(reason, count): &(Reason, crate::Count)| ReasonCount {
            reason,
            packets: count.packets,
            bytes: count.bytes,
        };
        let lesson = |&(result, attempts)| LessonCount { result, attempts };
        Ok(Now {
            id: self.id.clone(),
            pid: std::process::id(),
            since_s: self.begun.elapsed().as_secs(),
            trial_left_s: self.until.map(|until| until.saturating_duration_since(Instant::now()).as_secs()),
            wanted: self.wanted.clone(),
            kept: self.kept.clone(),
            interfaces: self.fastpath.interfaces(),
            attached: self.fastpath.is_attached()?,
            attached_by: self.fastpath.attached_by().unwrap_or_default(),
            learns: self.fastpath.learns(),
            paused: self.paused,
            carries_ipv6: self.fastpath.carries_ipv6(),
            generation: self.fastpath.control().generation & 0xffff,
            changes: self.fastpath.changes(),
            directions: self.fastpath.live()?,
            reasons: status.reasons.iter().map(reason).collect(),
            by_xdp: status.by_xdp.iter().map(reason).collect(),
            drivers: self.fastpath.xdp_interfaces(),
            lessons: status.lessons.iter().map(lesson).collect(),
            times: status.times,
        })
    }

    /// This direction; and the other one, if conntrack knows it.
    fn explain(
        &self,
        protocol: Protocol,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Result<Vec<Explained>> {
        if source.is_ipv6() != destination.is_ipv6() {
            return Err(Error::Options("source and destination are of different versions of IP".into()));
        }
        let tuple = Tuple {
            source: source.ip().into(),
            destination: destination.ip().into(),
            protocol: protocol.number(),
            source_port: source.port(),
            destination_port: destination.port(),
        };
        let entry = Conntrack::open()?.get(&tuple)?;
        let mut all = vec![self.explain_one(protocol, &tuple, entry.as_ref())?];
        if let Some(entry) = &entry {
            let other = if entry.original == tuple { entry.reply } else { entry.original };
            all.push(self.explain_one(protocol, &other, Some(entry))?);
        }
        Ok(all)
    }

    fn explain_one(&self, protocol: Protocol, tuple: &Tuple, entry: Option<&Entry>) -> Result<Explained> {
        let (reason, out) = self.fastpath.explain(tuple)?;
        let why = match reason {
            Reason::Carried => "they are carried".into(),
            Reason::NoLease if self.paused => "the fast path is paused".into(),
            Reason::Unknown => self.why_unknown(protocol, tuple, entry),
            Reason::Control => format!(
                "FIN or RST ended it less than {WEIR_ENDED_S} s ago: it is not learnt again before that time or a SYN"
            ),
            other => other.words().into(),
        };
        let (source, destination) = ends(tuple);
        Ok(Explained { source, destination, reason, why, out })
    }

    /// Why a flow is not in the table.
    fn why_unknown(&self, protocol: Protocol, tuple: &Tuple, entry: Option<&Entry>) -> String {
        let tuples = entry.map_or(vec![*tuple], |entry| vec![*tuple, entry.original, entry.reply]);
        let excluded = |exclusion: &&Exclusion| tuples.iter().any(|tuple| exclusion.covers(protocol, tuple));
        if let Some(exclusion) = self.wanted.excluded.iter().chain(&self.kept).find(excluded) {
            return format!("it is excluded: {exclusion}");
        }
        let Some(entry) = entry else {
            return "conntrack does not know such a connection: its first packets take the kernel's way"
                .into();
        };
        let has = |status| entry.status.has(status);
        if has(Status::HELPER) || has(Status::EXPECTED) {
            return "conntrack has a helper for it, which must see each packet".into();
        }
        if has(Status::OFFLOAD) || has(Status::HARDWARE_OFFLOAD) {
            return "a flow table of nftables carries it".into();
        }
        if entry.zone != 0 {
            return format!("it is in zone {} of conntrack: not supported", entry.zone);
        }
        if protocol == Protocol::Tcp && (entry.state != Some(ESTABLISHED) || !has(Status::ASSURED)) {
            return "conntrack does not call it established".into();
        }
        let packets = self.wanted.packets;
        format!(
            "it has not been learnt: that is done with packet {packets} of a direction, if that packet leaves by an interface named here"
        )
    }
}
