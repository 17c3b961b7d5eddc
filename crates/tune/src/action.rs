//! Changes of a plan that are no settings: a change that another part of weir knows how to make.
//!
//! This crate knows settings only. The caller first checks whether the request wants ports led by BPF ([`super::wish`]), and then
//! brings the change with the request.

use schemars::JsonSchema;
use serde::Serialize;
use weir_guard::Change;

/// A change that is no setting.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Action {
    /// The change, in a few words.
    pub name: String,
    /// How it is now.
    pub now: String,
    /// How it would be.
    pub proposed: String,
    /// The items that it concerns, one by one; text from outside.
    pub items: Vec<String>,
    /// Why, by each who proposes it.
    pub why: Vec<String>,
    /// Memory that it takes, bytes.
    pub memory_bytes: i64,
    /// Risk of the change.
    pub risk: String,
    /// The command that rolls it back by hand.
    pub undo: String,
    /// Why it is shown only, and `apply` leaves it out.
    pub held: Option<String>,
    /// How it is made.
    #[serde(skip)]
    pub change: Change,
}
