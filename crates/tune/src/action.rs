//! Changes of a plan that are no settings: a change that another part of weir knows how to make, and when a plan has a place for
//! it.
//!
//! This crate knows settings only. The caller first checks whether the request wants ports led by BPF ([`wish`]), and then brings
//! the change with the request.

use schemars::JsonSchema;
use serde::Serialize;
use weir_guard::Change;

use super::budget;
use super::findings;
use super::plan::{Request, Row};
use super::profile::Profile;
use super::{Error, TunedHost};

/// Causes that go away with the entries of published ports.
const HEALED: [&str; 3] = ["conntrack-full", "conntrack-early-drop", "conntrack-hash-small"];

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

/// A proposal of published ports without connection tracking, for a request that has a place for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Who proposes it.
    pub why: Vec<String>,
    /// Why it is an offer only; `None` if it was asked for.
    pub held: Option<String>,
}

/// Whether published ports without connection tracking have a place in a plan for this request: they were asked for by
/// [`Profile::PublishedPorts`], or one of its findings would be healed by them.
///
/// # Errors
/// If the findings cannot be read.
pub fn wish(place: &TunedHost, request: &Request) -> Result<Option<Wish>, Error> {
    let mut why = Vec::new();
    let asked = request.profiles.contains(&Profile::PublishedPorts);
    if asked {
        why.push("published ports take no entries of the connection-tracking table, and its limit does not hold for them".into());
    }
    if let Some((name, text)) = &request.findings {
        let found = findings::parse(text).map_err(|reason| Error::Findings { name: name.clone(), reason })?;
        let here = place.namespace.as_ref().map(|n| n.inode);
        for finding in found.iter().filter(|f| HEALED.contains(&f.cause.as_str())) {
            let elsewhere = finding.namespace != 0 && here.is_some_and(|inode| inode != finding.namespace);
            if !elsewhere && !finding.is_doubtful() {
                let words =
                    format!("finding {}: connections to published ports fill the table", finding.cause);
                // Two namespaces, or a list of the same findings, say it once.
                if !why.contains(&words) {
                    why.push(words);
                }
            }
        }
    }
    let held = "it replaces the way that packets take, a bigger step than a setting: --profile published-ports asks for it";
    Ok((!why.is_empty()).then(|| Wish { why, held: (!asked).then(|| held.to_owned()) }))
}

/// Returns the additional memory that the applied part of a plan takes at most, bytes.
pub(super) fn memory_bytes(rows: &[Row], actions: &[Action]) -> i64 {
    let rows = rows.iter().filter(|r| r.held.is_none()).map(|r| r.memory_bytes);
    let actions = actions.iter().filter(|a| a.held.is_none()).map(|a| a.memory_bytes);
    rows.chain(actions).sum()
}

/// An action takes what it takes: there is no smaller one. Settings come first.
pub(super) fn hold_what_is_too_large(actions: &mut [Action], rows: &[Row], budget_bytes: u64) {
    let mut room = budget::room(budget_bytes, rows, "");
    for action in actions.iter_mut().filter(|a| a.held.is_none()) {
        if action.memory_bytes > room {
            action.held = Some(format!(
                "it takes {} bytes, and of the memory budget of {budget_bytes} bytes (--memory) {room} are left",
                action.memory_bytes
            ));
        } else {
            room -= action.memory_bytes;
        }
    }
}

#[cfg(test)]
#[path = "action_tests.rs"]
mod tests;
