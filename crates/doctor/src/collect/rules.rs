//! Rules of nftables and iptables.

use weir_sys::{Error, ProcRoot, Result};

use crate::evidence::{DropGroup, Interface, Ruleset};

/// Those of the calling thread's namespace.
pub(super) fn read(_root: &ProcRoot) -> Result<Ruleset> {
    Err(Error::other("read rules", "not built yet"))
}

/// Makes a reading the end of a window.
pub(super) fn since(_now: &mut Ruleset, _earlier: &Ruleset) {}

/// Asks the rules about the samples of what netfilter threw away (see [`crate::evidence::Rule::decided`]).
pub(super) fn decide(_rules: &mut Ruleset, _drops: &[&DropGroup], _interfaces: &[Interface]) {}
