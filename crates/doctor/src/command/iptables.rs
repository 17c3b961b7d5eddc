//! Names as iptables takes them: arguments of its own, which the shell's quotes keep whole.

use super::{Argument, Unwritable, word};
use crate::evidence::Backend;

/// The program that speaks for a backend and family.
pub(crate) fn program(backend: Backend, family: &str) -> &'static str {
    match (backend, family) {
        (Backend::IptablesLegacy, "ip6") => "ip6tables-legacy",
        (Backend::IptablesLegacy, _) => "iptables-legacy",
        (_, "ip6") => "ip6tables",
        _ => "iptables",
    }
}

/// A chain or table.
pub(crate) struct Name<'a>(pub(crate) &'a str);

impl Argument for Name<'_> {
    fn quoted(&self) -> Result<String, Unwritable> {
        // iptables takes a name that begins so for an option or a negation, and has no other way to write it. The kernel keeps 28
        // bytes of a chain's name (XT_EXTENSION_MAXNAMELEN, without the final zero).
        let unreadable =
            self.0.is_empty() || self.0.starts_with(['-', '!']) || self.0.contains(' ') || self.0.len() > 28;
        if unreadable {
            let look = "see `iptables-save` and `ip6tables-save`";
            return Err(Unwritable::new("the chain", self.0, "has a name that iptables cannot read", look));
        }
        word(self.0)
    }
}

/// A set of ipset(8).
pub(crate) struct Ipset<'a>(pub(crate) &'a str);

impl Argument for Ipset<'_> {
    fn quoted(&self) -> Result<String, Unwritable> {
        // ipset takes options anywhere.
        if self.0.is_empty() || self.0.starts_with('-') {
            return Err(Unwritable::new(
                "the set",
                self.0,
                "has a name that ipset cannot read",
                "see `ipset save`",
            ));
        }
        word(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_iptables_takes_for_options_make_no_command() {
        assert_eq!(Name("a;b").quoted().unwrap(), "'a;b'");
        for name in ["-F", "!x", "", "a b", "a\u{1b}", "0123456789012345678901234567890"] {
            assert!(Name(name).quoted().is_err(), "{name}");
        }
    }
}
