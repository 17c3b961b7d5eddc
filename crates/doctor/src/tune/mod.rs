//! `weir tune`: what to set on this host, why, at what price, and how it is taken back.
//!
//! | part | what it knows |
//! |---|---|
//! | [`knobs`](self) | every setting that may be changed: bounds, cost, risk |
//! | need | what was measured |
//! | profile, findings | who proposes |
//! | action | a change that is no setting, which the caller brings |
//! | budget | what all of it may take together, and what each takes |
//! | [`plan`](fn@plan) | bounds, order: a [`Plan`] |
//! | persist | the files that make it last |
//! | [`metric`](fn@metric) | numbers that must not get worse |
//! | watched | which of them for which setting |
//! | [`prove`](mod@prove) | before and after in alternating windows |
//!
//! Planning reads only. Changes are made, confirmed and taken back by `weir-guard`.

mod action;
mod budget;
mod findings;
mod knobs;
mod metric;
mod need;
mod persist;
mod plan;
mod profile;
pub mod prove;
mod render;
mod watched;

pub use action::{Action, Wish, wish};
pub use budget::Budget;
pub use findings::LARGEST as LARGEST_FINDINGS;
pub use knobs::Scope;
pub use metric::{Counter, metric};
pub use need::{Lost, Need, View};
pub use plan::{Place, Plan, Request, Row, plan};
pub use profile::Profile;
pub use render::{plan as render_plan, set as render_set, status as render_status};
pub use watched::{Watched, watches};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be met.
    #[error("{0}")]
    Unfit(String),
    /// The file of findings is none.
    #[error("{name}: {reason}")]
    Findings {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// The system refused.
    #[error(transparent)]
    System(#[from] weir_sys::Error),
}

/// Path below `/proc/sys` of a name; a slash in it stands for a dot in a part, as in sysctl(8), and a name whose first separator
/// is a slash is a path already.
pub(crate) fn path_of(name: &str) -> String {
    if name.find(['.', '/']).is_some_and(|at| name.as_bytes()[at] == b'/') {
        return name.to_owned();
    }
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    name.chars().map(swap).collect()
}

/// Text from outside without what a terminal would obey.
fn display(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_paths() {
        for (name, path) in [
            ("net.core.somaxconn", "net/core/somaxconn"),
            ("net/core/somaxconn", "net/core/somaxconn"),
            ("net.ipv4.conf.eth0/100.rp_filter", "net/ipv4/conf/eth0.100/rp_filter"),
            ("net/ipv4/conf/eth0.100/rp_filter", "net/ipv4/conf/eth0.100/rp_filter"),
        ] {
            assert_eq!(path_of(name), path);
        }
    }
}
