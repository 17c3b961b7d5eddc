//! The agent's work on its host.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use weir_gateway::{Journal, Place, Role, VariantKind};
use weir_load::{Responder, Stop, TrialSettings};
use weir_sys::clock::sleep_unless;
use weir_sys::process::{Process, which};

use crate::diagnosis::diagnose;
use crate::error::lock;
use crate::facts::host_facts;
use crate::gateway_side::Gateway;
use crate::packets::Endpoints;
use crate::profiler;
use crate::protocol::{Answer, Task, TaskError};
use crate::reach::{Echo, reach, send_from};
use crate::run::{self, RunTask};
use crate::sampler::{Sampler, Window};
use crate::undo;

type TaskResult = Result<Answer, TaskError>;

/// The state of an agent: what is open and what was changed.
#[derive(Default)]
pub(crate) struct Host {
    stop: Mutex<Stop>,
    ends: Mutex<HashMap<u64, Box<dyn Responder>>>,
    echo: Mutex<Option<Echo>>,
    journal: Mutex<Journal>,
    /// Locked as long as this agent answers for an undo list on disk.
    held: Mutex<Option<File>>,
    gateway: Gateway,
    packets: Endpoints,
    /// Ends the windows of the samplers.
    sampled: Mutex<Stop>,
    /// Commands of weir that serve; dropping one kills it.
    serving: Mutex<Vec<Process>>,
}

impl Host {
    /// Performs one task; long ones return when they are done.
    pub(crate) fn perform(&self, task: Task) -> TaskResult {
        match task {
            Task::Ping => Ok(Answer::Done),
            Task::Facts { role, transport, interfaces } => {
                Ok(Answer::Facts(Box::new(host_facts(role.name(), &transport, &interfaces)?)))
            }
            Task::Missing { programs } => {
                Ok(Answer::Missing(programs.into_iter().filter(|p| which(p).is_none()).collect()))
            }
            Task::Apply { variant, role, place, journal } => self.apply(&variant, role, &place, journal),
            Task::Remove => self.remove(),
            Task::Counter { variant, place } => Ok(Answer::Counter(variant.counter(&place)?)),
            Task::Carried { variant, place } => Ok(Answer::Carried(variant.carried(&place)?)),
            Task::Refused { variant, place } => Ok(Answer::Counter(variant.refused(&place)?)),
            Task::VariantFacts { variant, place } => Ok(Answer::VariantFacts(variant.facts(&place)?)),
            Task::OpenEcho { bind } => self.open_echo(bind),
            Task::CloseEcho => {
                *lock(&self.echo) = None;
                Ok(Answer::Done)
            }
            Task::Reach { target, timeout } => {
                reach(target, timeout).map(Answer::Reached).map_err(TaskError::failed)
            }
            Task::SendFrom { source, target, count } => {
                send_from(source, target, count).map_err(TaskError::failed)?;
                Ok(Answer::Done)
            }
            Task::Heard { source } => self.heard(source),
            Task::Gateway(task) => self.gateway.perform(task).map(Answer::Gateway),
            Task::Packets(task) => self.packets.perform(task).map(|a| Answer::Packets(Box::new(a))),
            Task::HostSysctls { values } => self.set_sysctls(values),
            Task::Open { session, workload, setting, bind } => {
                let end = workload.engine().open(&self.own(setting), bind)?;
                let port = end.port();
                lock(&self.ends).insert(session, end);
                Ok(Answer::Port(port))
            }
            Task::Finish { session } => self.finish(session),
            Task::Drive { workload, setting, target } => {
                Ok(Answer::Part(Box::new(workload.engine().drive(&self.own(setting), target)?)))
            }
            Task::Sample { after, duration, interfaces } => {
                let sampler = Sampler::start(Window::new(after, duration), interfaces)?;
                sleep_unless(&self.ended(), after + duration);
                Ok(Answer::Sample(Box::new(sampler.finish()?)))
            }
            Task::EndSample => {
                // Later samplers get a new one.
                std::mem::take(&mut *lock(&self.sampled)).raise();
                Ok(Answer::Done)
            }
            Task::Profile { after, duration, hz, shared } => {
                let profile = profiler::profile(after, duration, hz, shared, &self.ended());
                Ok(Answer::Profile(Box::new(profile.map_err(profiler::refused)?)))
            }
            Task::Diagnose { after, duration } => {
                diagnose(after, duration, &self.ended()).map(|d| Answer::Diagnosed(Box::new(d)))
            }
            Task::Run(task) => self.run(task),
            Task::Stop => {
                // Later tasks get a new one.
                std::mem::take(&mut *lock(&self.stop)).raise();
                self.packets.stop();
                Ok(Answer::Done)
            }
        }
    }

    fn run(&self, task: RunTask) -> TaskResult {
        let stop = lock(&self.stop).clone();
        if task.serves.is_none() {
            return Ok(Answer::Ran(Box::new(run::run(task, &stop)?)));
        }
        let (process, ran) = run::serve(task, &stop)?;
        lock(&self.serving).push(process);
        Ok(Answer::Ran(Box::new(ran)))
    }

    fn open_echo(&self, bind: SocketAddr) -> TaskResult {
        let echo =
            Echo::open(bind).map_err(|e| TaskError::failed(format!("cannot listen on {bind}: {e}")))?;
        let port = echo.port();
        *lock(&self.echo) = Some(echo);
        Ok(Answer::Port(port))
    }

    fn heard(&self, source: IpAddr) -> TaskResult {
        let echo = lock(&self.echo);
        let echo = echo.as_ref().ok_or_else(|| TaskError::failed("no echo is open"))?;
        Ok(Answer::Counter(Some(echo.heard(source))))
    }

    fn set_sysctls(&self, values: BTreeMap<String, String>) -> TaskResult {
        let mut journal = lock(&self.journal);
        *journal = self.stored("host-sysctls")?;
        for (name, value) in values {
            journal.sysctl(&name, &value)?;
        }
        Ok(Answer::Done)
    }

    fn finish(&self, session: u64) -> TaskResult {
        let end = lock(&self.ends).remove(&session);
        let end = end.ok_or_else(|| TaskError::failed(format!("no open session {session}")))?;
        Ok(Answer::Part(Box::new(end.finish()?)))
    }

    /// Returns a check: true if sampling has ended, or if everything must stop.
    fn ended(&self) -> impl Fn() -> bool + use<> {
        let (stop, sampled) = (lock(&self.stop).clone(), lock(&self.sampled).clone());
        move || stop.raised() || sampled.raised()
    }

    /// The setting with this process' own way to stop.
    fn own(&self, setting: TrialSettings) -> TrialSettings {
        TrialSettings { stop: lock(&self.stop).clone(), ..setting }
    }

    fn apply(&self, variant: &VariantKind, role: Role, place: &Place, on_disk: bool) -> TaskResult {
        let mut journal = lock(&self.journal);
        if !journal.is_empty() {
            return Err(TaskError::failed("a variant is in effect on this host already"));
        }
        *journal = if on_disk { self.stored(role.name())? } else { Journal::new() };
        weir_gateway::apply(&**variant, role, place, &mut journal)?;
        if let Err(cause) = variant.verify(role, place) {
            let mut words = vec![cause.to_string()];
            words.extend(journal.undo().iter().map(ToString::to_string));
            return Err(TaskError::failed(words.join("; ")));
        }
        Ok(Answer::Done)
    }

    fn stored(&self, owner: &str) -> Result<Journal, TaskError> {
        // Dropped first: applying again on this host must not find its own lock taken.
        *lock(&self.held) = None;
        let (journal, held) = undo::open(owner)?;
        *lock(&self.held) = Some(held);
        Ok(journal)
    }

    fn remove(&self) -> TaskResult {
        let errors = lock(&self.journal).undo();
        if errors.is_empty() {
            return Ok(Answer::Done);
        }
        Err(TaskError::failed(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))
    }

    /// Ends everything; returns what could not be undone.
    pub(crate) fn leave(&self) -> Vec<String> {
        lock(&self.stop).raise();
        self.packets.close();
        lock(&self.ends).clear();
        lock(&self.serving).clear();
        *lock(&self.echo) = None;
        let mut left = self.gateway.restore();
        left.extend(lock(&self.journal).undo().iter().map(ToString::to_string));
        left
    }
}
