//! The actions of a filter, and the packets that it looks at.

use crate::shared::WEIR_ACTIONS;

/// The action on the packets of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Let through.
    Allow,
    /// Thrown away.
    Drop,
    /// Let through, and its source remembered as a refused one's would be.
    Log,
    /// Let through with this mark (`skb->mark`); at XDP there is no mark, and it is let through.
    Mark(u32),
}

/// Which packets are looked at, and by which address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Received packets, by their source.
    Ingress,
    /// Sent packets, by their destination.
    Egress,
}

/// Names of the actions, in the order of their numbers.
pub(crate) const ACTIONS: [&str; WEIR_ACTIONS as usize] = ["allow", "drop", "log", "mark"];
