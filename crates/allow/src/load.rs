//! Loading, by whichever back end, and taking away.

use std::time::Instant;

use weir_guard::unix_s;
use weir_text::order;

use crate::kernel::Held;
use crate::policy::{Backend, Policy};
use crate::store::{Loaded, Store};
use crate::{Error, bpf, command, ipset, nft, tracking};

/// The kernel ends a trial so much later than the guards, s: they are first unless they were killed.
const MARGIN_S: u64 = 1;

/// How long a policy is in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term {
    /// Until it is replaced or removed.
    Lasting,
    /// For that many seconds and one more, unless [`keep`] comes before. Then the kernel itself goes back to the policy before, which
    /// stays loaded beside it.
    Trial {
        /// Seconds.
        seconds: u64,
    },
}

impl Term {
    /// A trial, where a time is given.
    pub fn of(seconds: Option<u64>) -> Self {
        seconds.map_or(Term::Lasting, |seconds| Term::Trial { seconds })
    }
}

/// Puts a policy ([`Policy::id`]) into effect, in place of the current one: every packet meets the old or the new policy. Before
/// it returns, it checks addresses in and beside the lists. It then unloads the policy of another back end, or suspends it for
/// the time of a trial. A running trial ends first.
///
/// # Errors
/// If a requirement is missing here, or the kernel refuses. The previous policy stays loaded, unless the kernel did not do what
/// it should: then both policies may be loaded in part, and the caller restores the old one.
pub fn load(policy: &Policy, id: &str, store: &Store, term: Term) -> Result<(), Error> {
    let begun = Instant::now();
    policy.check().map_err(Error::Unfit)?;
    requirements(policy)?;
    end_trial()?;
    let is_loaded = loaded_id()? == Some((policy.backend, id.to_owned())) && is_whole(policy)?;
    let trial_s = match term {
        // The policy from before the trial that just ended: it was only suspended.
        Term::Lasting
            if is_loaded
                && others(policy.backend).all(|other| held(other).is_ok_and(|h| h.lasting.is_none())) =>
        {
            return Ok(());
        }
        Term::Lasting => None,
        Term::Trial { seconds } => Some(seconds + MARGIN_S),
    };
    match policy.backend {
        Backend::Bpf => bpf::load(policy, id, trial_s)?,
        Backend::Nft => nft::load(policy, id, trial_s)?,
        Backend::Ipset => ipset::load(policy, id, trial_s)?,
    }
    let loaded = Instant::now();
    for other in others(policy.backend) {
        match trial_s {
            None => unload_one(other)?,
            // Rounded up: it must not be later than the end of the trial that the policy before is in effect again.
            Some(seconds) => suspend(other, seconds.saturating_sub(loaded.elapsed().as_secs() + 1).max(1))?,
        }
    }
    let took_ms = begun.elapsed().as_millis() as u64;
    store.note(Loaded { unix_s: unix_s(), took_ms })
}

fn others(backend: Backend) -> impl Iterator<Item = Backend> {
    Backend::ALL.into_iter().filter(move |other| *other != backend)
}

/// Has the policy on trial last, and removes the one before. Does nothing where nothing is on trial.
///
/// # Errors
/// If the kernel refuses.
pub fn keep() -> Result<(), Error> {
    // First the back end that has it: the others only have what was out of effect.
    let mut backends = Backend::ALL;
    order::by_key(&mut backends, |b| !held(*b).is_ok_and(|h| h.trial.is_some_and(|t| t.policy.is_some())));
    for backend in backends {
        match backend {
            Backend::Bpf => bpf::keep()?,
            Backend::Nft => nft::keep()?,
            Backend::Ipset => ipset::keep()?,
        }
    }
    Ok(())
}

/// Has the policy before a trial in effect again, and removes the one on trial.
fn end_trial() -> Result<(), Error> {
    // Suspended policies come back before the trial ends.
    let mut backends = Backend::ALL;
    order::by_key(&mut backends, |b| held(*b).is_ok_and(|h| h.trial.is_some_and(|t| t.policy.is_some())));
    for backend in backends {
        match backend {
            Backend::Bpf => bpf::end_trial()?,
            Backend::Nft => nft::end_trial()?,
            Backend::Ipset => ipset::end_trial()?,
        }
    }
    Ok(())
}

fn held(backend: Backend) -> Result<Held, Error> {
    match backend {
        Backend::Bpf => bpf::held(),
        Backend::Nft => nft::held(),
        Backend::Ipset => ipset::held(),
    }
}

fn suspend(backend: Backend, seconds: u64) -> Result<(), Error> {
    match backend {
        Backend::Bpf => bpf::suspend(seconds),
        Backend::Nft => nft::suspend(seconds),
        Backend::Ipset => ipset::suspend(seconds),
    }
}

/// Takes everything of ours out of the kernel, whatever there is of it. Does nothing where there is nothing.
///
/// # Errors
/// The first refusal; the rest is removed nevertheless.
pub fn unload() -> Result<(), Error> {
    Backend::ALL.into_iter().map(unload_one).fold(Ok(()), Result::and)
}

/// Removes what is in the kernel of ours and has no effect: what a killed process or an interface that is gone left.
///
/// # Errors
/// If the kernel refuses.
pub fn tidy() -> Result<(), Error> {
    bpf::tidy()?;
    nft::tidy()?;
    ipset::tidy()
}

fn unload_one(backend: Backend) -> Result<(), Error> {
    match backend {
        Backend::Bpf => bpf::unload(),
        Backend::Nft => nft::unload(),
        Backend::Ipset => ipset::unload(),
    }
}

/// Describes everything that weir has in the kernel, in words that do not change by themselves. Empty if it has nothing there.
///
/// # Errors
/// If the kernel does not tell.
pub fn state() -> Result<String, Error> {
    Ok([bpf::state()?, nft::state()?, ipset::state()?].concat())
}

/// The policy that is in effect, with its back end, if one is. When the time of a trial is over, that is the one before.
///
/// # Errors
/// If the kernel does not tell.
pub fn loaded_id() -> Result<Option<(Backend, String)>, Error> {
    let mut lasting = None;
    for backend in Backend::ALL {
        let held = held(backend)?;
        let (trial, runs) = held.trial.map_or((None, false), |trial| (trial.policy, trial.runs));
        match trial.filter(|_| runs) {
            Some(id) => return Ok(Some((backend, id))),
            None if runs => {}
            None => lasting = lasting.or(held.lasting.map(|id| (backend, id))),
        }
    }
    Ok(lasting)
}

/// Whether a policy that is loaded is so on all of its interfaces.
///
/// # Errors
/// If the kernel does not tell.
pub fn is_whole(policy: &Policy) -> Result<bool, Error> {
    // Rules name an interface; a program is attached to it.
    let attached = if policy.backend == Backend::Bpf { bpf::attached()? } else { policy.interfaces.len() };
    Ok(attached == policy.interfaces.len())
}

/// Whether everything is here that a policy needs; changes nothing.
///
/// # Errors
/// The missing requirement, with what provides it; or an interface that the back end cannot filter.
pub fn requirements(policy: &Policy) -> Result<(), Error> {
    if policy.backend == Backend::Bpf {
        bpf::interfaces(policy)?;
    }
    let programs: &[&str] = match policy.backend {
        Backend::Bpf => &[],
        Backend::Nft => &[nft::PROGRAM],
        Backend::Ipset => &ipset::PROGRAMS,
    };
    programs.iter().try_for_each(|program| command::require(program).map(drop))?;
    if policy.backend == Backend::Bpf && policy.established_first && !tracking::is_tracking()? {
        return Err(Error::Lacking(
            "--established-first with bpf: nothing here has connections tracked, so none would be found (a rule such as \
             `ct state established accept`, or NAT, begins it; nft and ipset bring such a rule themselves)"
                .into(),
        ));
    }
    Ok(())
}
