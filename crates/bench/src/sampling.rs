//! Samplers on every host of a site, over one window, and the profile and diagnosis of its gateway.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_agent::remote::Pending;
use weir_agent::{Answer, PROFILE_HZ, Remote, Task};
use weir_record::{Diagnosed, HostSample, Profile};

use crate::SHORT;
use crate::error::Error;
use crate::site::{Member, Site};

/// Asked again and again while something is being waited for.
pub(crate) type AliveCheck<'a> = &'a dyn Fn() -> Result<(), weir_agent::remote::Error>;

/// Reading a profile's last samples and naming its functions, or reading a large table of connections, takes a while on a
/// busy machine.
const COLLECT: Duration = Duration::from_secs(20);

/// Running samplers.
pub(crate) struct Sampling<'a> {
    site: &'a Site,
    profiled: Option<Profiled<'a>>,
    running: Vec<(&'a Member, Pending<'a>)>,
    profiling: Option<Pending<'a>>,
    diagnose: bool,
    diagnosing: Option<Pending<'a>>,
}

/// Whose kernel is profiled.
#[derive(Clone, Copy)]
pub(crate) struct Profiled<'a> {
    /// The gateway.
    pub(crate) agent: &'a Remote,
    /// True where the tester runs on the same machine.
    pub(crate) shared: bool,
}

impl<'a> Profiled<'a> {
    fn task(&self, after: Duration, duration: Duration) -> Task {
        Task::Profile { after, duration, hz: PROFILE_HZ, shared: self.shared }
    }

    /// Whether it can be had; if not, why.
    pub(crate) fn try_out(&self) -> Result<Option<String>, Error> {
        match self.agent.call(self.task(Duration::ZERO, Duration::from_millis(1)), COLLECT) {
            Ok(_) => Ok(None),
            Err(weir_agent::Error::Task { source, .. }) => Ok(Some(source.message)),
            Err(other) => Err(other.into()),
        }
    }
}

/// The samples of the window.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    /// By host.
    pub(crate) hosts: BTreeMap<String, HostSample>,
    /// The gateway's profile.
    pub(crate) profile: Option<Profile>,
    /// The diagnosis of the gateway.
    pub(crate) diagnosed: Option<Diagnosed>,
}

impl<'a> Sampling<'a> {
    /// A window that only [`Sampling::finish`] ends.
    pub(crate) const UNTIL_FINISHED: Duration = Duration::from_secs(7 * 86_400);

    /// None is running yet.
    pub(crate) fn new(site: &'a Site, profiled: Option<Profiled<'a>>, diagnose: bool) -> Self {
        Sampling { site, profiled, running: Vec::new(), profiling: None, diagnose, diagnosing: None }
    }

    /// True once begun.
    pub(crate) fn runs(&self) -> bool {
        !self.running.is_empty()
    }

    /// Begins a window after some time, in place of an earlier one.
    pub(crate) fn begin(&mut self, after: Duration, duration: Duration) -> Result<(), Error> {
        if self.runs() {
            self.end()?;
        }
        // No caller waits for the earlier samples any more.
        self.running.clear();
        for member in self.site.members() {
            let interfaces = member.interfaces.clone();
            let task = Task::Sample { after, duration, interfaces };
            self.running.push((member, member.agent.begin(task)?));
        }
        let begin = |p: Profiled<'a>| p.agent.begin(p.task(after, duration));
        self.profiling = self.profiled.map(begin).transpose()?;
        let diagnosed = self.site.gateway.as_ref().filter(|_| self.diagnose);
        let begin = |gateway: &'a Member| gateway.agent.begin(Task::Diagnose { after, duration });
        self.diagnosing = diagnosed.map(begin).transpose()?;
        Ok(())
    }

    /// Ends the window.
    pub(crate) fn end(&self) -> Result<(), Error> {
        for (member, _) in &self.running {
            member.agent.call(Task::EndSample, SHORT)?;
        }
        Ok(())
    }

    /// Ends the window, if it has not ended, and returns what was seen.
    pub(crate) fn finish(&mut self, watch: AliveCheck<'_>) -> Result<Sampled, Error> {
        self.end()?;
        self.collect(watch)
    }

    /// Waits for the end of the window. Returns what was seen.
    pub(crate) fn collect(&mut self, watch: AliveCheck<'_>) -> Result<Sampled, Error> {
        let mut sampled = Sampled::default();
        for (member, pending) in self.running.drain(..) {
            let Answer::Sample(sample) = pending.wait(SHORT, watch)? else {
                return Err(Error::Internal("a sampler answered something else".into()));
            };
            sampled.hosts.insert(numbered(member.role.name(), &sampled.hosts), *sample);
        }
        if let Some(pending) = self.profiling.take() {
            sampled.profile = match pending.wait(COLLECT, watch) {
                Ok(Answer::Profile(profile)) => Some(*profile),
                Ok(_) => return Err(Error::Internal("a profiler answered something else".into())),
                // It was tried out before the first trial, and the reason is in the record.
                Err(weir_agent::Error::Task { .. }) => None,
                Err(other) => return Err(other.into()),
            };
        }
        if let Some(pending) = self.diagnosing.take() {
            sampled.diagnosed = match pending.wait(COLLECT, watch)? {
                Answer::Diagnosed(diagnosed) => Some(*diagnosed),
                _ => return Err(Error::Internal("a doctor answered something else".into())),
            };
        }
        Ok(sampled)
    }
}

/// `initiator` for the first host of a role, `initiator-2` for the next.
fn numbered(role: &str, taken: &BTreeMap<String, HostSample>) -> String {
    let same = taken
        .keys()
        .filter(|k| k.strip_prefix(role).is_some_and(|r| r.is_empty() || r.starts_with('-')))
        .count();
    if same == 0 { role.to_owned() } else { format!("{role}-{}", same + 1) }
}
