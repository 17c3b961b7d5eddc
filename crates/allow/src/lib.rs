//! Address lists put into effect on a host.
//!
//! A [`Policy`] says who may come in where: classes, each a list with an action, and what becomes of the rest. It is loaded by one
//! of three back ends ([`Backend`]), each of which replaces what is loaded in one step: every packet meets the old lists or
//! the new ones. One policy is in effect at a time. On trial ([`Term::Trial`])
//! it is so for a time that the kernel itself ends: the policy before stays loaded beside it. [`Store`] keeps policies on disk, so that one can be restored, and
//! loaded again after a reboot. [`lockout`] finds who would be shut out that must not be.
//!
//! | back end | what it leaves in the kernel | how it is replaced | what ends a trial |
//! |---|---|---|---|
//! | nft | table `inet weir_allow` | new sets beside the old ones, then all rules in one transaction | timeouts of the elements of a set that rules ask first |
//! | ipset | sets and chains `weir0-*` or `weir1-*` | new sets beside the old ones, then the chain and the ways to it in one commit | likewise |
//! | bpf | programs and tables in the BPF file system | new programs take the place of the old ones (BPF_LINK_UPDATE) | a program in front of both that looks at the clock ([`weir_gate`]) |
#![forbid(unsafe_code)]

mod bpf;
mod card;
mod command;
mod error;
mod follow;
mod ipset;
mod kernel;
mod load;
pub mod lockout;
mod nft;
mod policy;
mod status;
mod store;
mod tracking;
mod verify;

pub use bpf::strangers;
pub use card::hint;
pub use error::Error;
pub use follow::{Follow, Refused};
pub use load::{Term, is_whole, keep, load, loaded_id, requirements, state, tidy, unload};
pub use policy::{Action, Backend, Class, Hook, LINK_V4, Policy, PolicyVerdict, Port, Xdp};
pub use status::{ClassCount, Counted, Denied, Events, Status, status};
pub use store::{Loaded, Store};
pub use tracking::is_tracking;
