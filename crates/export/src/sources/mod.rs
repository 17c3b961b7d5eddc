//! One file per source of metrics; each is registered in [`crate::GROUPS`] with what it writes.

pub(crate) mod allow;
pub(crate) mod conntrack;
pub(crate) mod doctor;
pub(crate) mod fastpath;
pub(crate) mod lists;
pub(crate) mod probes;
pub(crate) mod publish;
pub(crate) mod snat;
