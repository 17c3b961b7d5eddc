//! Loading, by whichever back end, and taking away.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::policy::{Backend, Policy};
use crate::store::{Loaded, Store};
use crate::{Error, bpf, command, ipset, nft, tracking};

/// Puts a policy ([`Policy::id`]) into effect, in the place of the one that is: no packet meets neither. It was asked about addresses in and
/// beside the lists before this returns. What another back end had loaded goes afterwards.
///
/// # Errors
/// If something is missing here, or the kernel refuses. What was loaded before stays, unless the kernel was found not to do what it
/// should: then both may be there in part, and whoever called puts the old policy back.
pub fn load(policy: &Policy, id: &str, store: &Store) -> Result<(), Error> {
    let begun = Instant::now();
    policy.check().map_err(Error::Unfit)?;
    requirements(policy)?;
    match policy.backend {
        Backend::Bpf => bpf::load(policy, id)?,
        Backend::Nft => nft::load(policy, id)?,
        Backend::Ipset => ipset::load(policy, id)?,
    }
    let took_ms = begun.elapsed().as_millis() as u64;
    for other in Backend::ALL.into_iter().filter(|other| *other != policy.backend) {
        unload_one(other)?;
    }
    // A clock before 1970 was never set.
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    store.note(Loaded { unix_s, took_ms })
}

/// Takes everything of ours out of the kernel, whatever there is of it. Does nothing where there is nothing.
///
/// # Errors
/// The first refusal; everything that can be taken away was, all the same.
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

/// What there is of ours in the kernel, in words that do not change by themselves. Empty: nothing.
///
/// # Errors
/// If the kernel does not tell.
pub fn state() -> Result<String, Error> {
    Ok([bpf::state()?, nft::state()?, ipset::state()?].concat())
}

/// The policy that is in effect, with its back end, if one is.
///
/// # Errors
/// If the kernel does not tell.
pub fn loaded_id() -> Result<Option<(Backend, String)>, Error> {
    for backend in Backend::ALL {
        let id = match backend {
            Backend::Bpf => bpf::loaded_id()?,
            Backend::Nft => nft::loaded_id()?,
            Backend::Ipset => ipset::loaded_id()?,
        };
        if let Some(id) = id {
            return Ok(Some((backend, id)));
        }
    }
    Ok(None)
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
/// What is missing, with what provides it; or an interface that the back end cannot filter.
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
