//! A request for a plan, and the place that it is about.

use std::time::Duration;

use weir_guard::Namespace;

use super::action::Action;
use super::beyond::Advice;
use super::budget::Budget;
use super::need::View;
use super::profile::Profile;

/// A request for a plan.
#[derive(Debug, Clone)]
pub struct Request {
    /// Kinds of host; may be none where there are findings or settings.
    pub profiles: Vec<Profile>,
    /// The doctor's JSON, and where it came from.
    pub findings: Option<(String, String)>,
    /// Settings by name and value.
    pub set: Vec<(String, String)>,
    /// Memory that all of it may take.
    pub memory: Budget,
    /// Connections at once that are expected.
    pub peak: Option<u64>,
    /// Longest round trip over which one connection must be able to fill a link, ms.
    pub rtt_ms: u64,
    /// How long counters are watched for what is lost, where a profile asks for that.
    pub window: Duration,
    /// Further changes, which are no settings: answers to [`super::wish`].
    pub actions: Vec<Action>,
    /// Changes of rules that weir does not edit.
    pub advice: Vec<Advice>,
    /// Notes about actions that could not be included.
    pub notes: Vec<String>,
}

/// The place of a plan.
#[derive(Debug, Clone, Default)]
pub struct TunedHost {
    /// The place to read settings from.
    pub view: View,
    /// For people.
    pub name: String,
    /// For the journal.
    pub namespace: Option<Namespace>,
}
