//! Address lists put into effect on a host.
//!
//! A [`Policy`] says who may come in where: classes, each a list with an action, and what becomes of the rest. It is loaded by one
//! of three back ends ([`Backend`]), each of which replaces what is loaded in one step: every packet meets the old lists or
//! the new ones. One policy is in effect at a time. [`Store`] keeps policies on disk, so that one can be put back, and
//! loaded again after a reboot. [`lockout`] finds who would be shut out that must not be.
//!
//! | back end | what it leaves in the kernel | how it is replaced |
//! |---|---|---|
//! | nft | table `inet weir_allow` | new sets beside the old ones, then all rules in one transaction |
//! | ipset | sets `weir0-*` or `weir1-*`, chain `weir-allow` | new sets beside the old ones, then the whole chain in one commit |
//! | bpf | programs and tables below `/sys/fs/bpf/weir/allow` | new programs take the place of the old ones (BPF_LINK_UPDATE) |
#![forbid(unsafe_code)]

mod bpf;
mod card;
mod command;
mod error;
mod follow;
mod ipset;
mod load;
pub mod lockout;
mod nft;
mod policy;
mod status;
mod store;
mod tracking;
mod verify;

pub use card::hint;
pub use error::Error;
pub use follow::{Follow, Refused};
pub use load::{is_whole, load, loaded_id, requirements, state, tidy, unload};
pub use policy::{Action, Backend, Class, Hook, LINK_V4, Policy, Port, Verdict, Xdp};
pub use status::{ClassCount, Counted, Denied, Events, Status, status};
pub use store::{Loaded, Store};
pub use tracking::is_tracking;
