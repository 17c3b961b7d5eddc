//! The resident part: the work that the programs cannot do themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_bpf::Ring;
use weir_netlink::conntrack::{Conntrack, Destroyed};
use weir_netlink::{PathChange, PathEvents};

use crate::direction::tuple;
use crate::idle::Walk;
use crate::options::RENEWALS_PER_SECOND;
use crate::room::Room;
use crate::settle::{keep_idle, settle};
use crate::shared::{WEIR_REMOVED_AT_ONCE, WeirDirection};
use crate::{Change, Fastpath, Result};

const RENEWAL: Duration = Duration::from_millis(1000 / RENEWALS_PER_SECOND as u64);
/// Time between two looks at the events.
const TICK: Duration = Duration::from_millis(5);

/// A thread that renews the lease of a [`Fastpath`], loosens the windows of TCP connections that are to be carried, and removes what
/// has become wrong. Dropping it ends the thread; the lease then ends within 2 s.
#[derive(Debug)]
pub struct Keeper {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// The event sources of the thread, opened in the namespace of the programs' interfaces.
struct Work {
    fastpath: Arc<Fastpath>,
    conntrack: Conntrack,
    destroyed: Destroyed,
    path: PathEvents,
}

impl Keeper {
    /// Starts the thread for programs of the calling thread's network namespace. The lease is renewed before this returns.
    ///
    /// # Errors
    /// If an event source cannot be opened, or no thread can be started.
    pub fn start(fastpath: &Arc<Fastpath>) -> Result<Self> {
        let work = Work {
            fastpath: Arc::clone(fastpath),
            conntrack: Conntrack::open()?,
            destroyed: Destroyed::open()?,
            path: PathEvents::open()?,
        };
        fastpath.renew()?;
        let ends = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&ends);
        let thread = std::thread::Builder::new()
            .name("fastpath".into())
            .spawn(move || work.run(&stop))
            .map_err(|e| weir_sys::Error::other("start the fast path's thread", e.to_string()))?;
        Ok(Keeper { ends, thread: Some(thread) })
    }

    /// False if the thread has ended by an error: nothing is carried any more, or soon.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its error has ended the lease already, and nothing else depends on it.
            let _ = thread.join();
        }
    }
}

impl Work {
    fn run(mut self, ends: &AtomicBool) -> Result<()> {
        // Made here: a ring's reader stays on its thread.
        let mut wishes = self.fastpath.wishes()?;
        let mut proposals = self.fastpath.proposals()?;
        let mut renewed = Instant::now();
        let mut walk = Walk::new(&self.fastpath)?;
        let mut room = Room::new(&self.fastpath)?;
        let mut chains_changed = false;
        while !ends.load(Ordering::Relaxed) {
            // Changes first: a lease that is renewed promises that they were heard.
            let changes = self.path.drain()?;
            chains_changed |=
                changes.iter().any(|c| matches!(c, PathChange::PacketFilter | PathChange::Unknown));
            if !changes.is_empty() {
                self.fastpath.forget_ways(changes.into_iter().map(Change::from));
            }
            self.remove_ended()?;
            if renewed.elapsed() >= RENEWAL {
                self.fastpath.renew()?;
                room.fit(&self.fastpath)?;
                self.fastpath.look_at_drivers(chains_changed);
                chains_changed = false;
                renewed = Instant::now();
            }
            self.loosen(&mut wishes)?;
            for proposal in proposals.read()? {
                settle(&self.fastpath, &mut self.conntrack, &proposal)?;
            }
            let (fastpath, conntrack) = (&self.fastpath, &mut self.conntrack);
            walk.go_on(&fastpath.control(), |flow| match fastpath.keep_idle(flow)? {
                Some(idle) => keep_idle(conntrack, &idle, fastpath.control().hz),
                None => Ok(()),
            })?;
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Removes the entries of connections that conntrack has forgotten. If events were lost, every entry is stale.
    fn remove_ended(&mut self) -> Result<()> {
        // Many at once: after a flood, a call for each would keep a core from forwarding for longer than the flood did.
        let (mut ended, mut failed) = (Vec::with_capacity(WEIR_REMOVED_AT_ONCE as usize), None);
        let lost = self.destroyed.drain(|entry| {
            ended.extend([entry.original, entry.reply]);
            if ended.len() >= WEIR_REMOVED_AT_ONCE as usize {
                failed = self.fastpath.remove(&ended).err().or(failed.take());
                ended.clear();
            }
        })?;
        self.fastpath.remove(&ended)?;
        if lost {
            self.fastpath.forget_ways([Change::EventsLost]);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Has conntrack check the sequence numbers of those connections no more: it will not see all of their packets.
    fn loosen(&mut self, wishes: &mut Ring<WeirDirection>) -> Result<()> {
        for wish in wishes.read()? {
            if let Some(entry) = self.conntrack.get(&tuple(&wish))? {
                self.conntrack.be_liberal(&entry)?;
            }
        }
        Ok(())
    }
}
