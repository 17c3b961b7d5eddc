//! The causes that are known, one file each. A new one is a file with a `pub(super) const CAUSE: Cause` in its group's folder, and a line in
//! the group's `CAUSES`.
//!
//! A cause is told by what must, should and must not be seen. Which of two that explain the same loss is right is not left to
//! chance: a cause names in [`Cause::yields_to`] the more special ones that it gives way to, and takes only what they leave.

mod conntrack;
mod firewall;
mod network;
mod queues;
mod scene;
mod shell;
mod sockets;

use crate::evidence::Evidence;
use crate::finding::Finding;
use crate::recipe::Recipe;

pub use scene::{Scene, Taken, is_noise};
pub(crate) use shell::word;

/// What a cause belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Connection tracking and address translation.
    Conntrack,
    /// Rules.
    Firewall,
    /// Routes, MTU, fragments, neighbours.
    Network,
    /// Queues, drivers, cores.
    Queues,
    /// Sockets and the programs behind them.
    Sockets,
    /// What is left.
    Rest,
}

/// A cause of lost or delayed packets.
#[derive(Debug)]
pub struct Cause {
    /// Stable id: lower case, digits and hyphens. Never reused for something else.
    pub id: &'static str,
    /// Where it belongs.
    pub group: Group,
    /// A heading of a few words.
    pub title: &'static str,
    /// What it is and why it loses packets: one to three paragraphs for its page.
    pub about: &'static str,
    /// What is seen in every case of it.
    pub must: &'static [&'static str],
    /// What makes it surer.
    pub should: &'static [&'static str],
    /// What speaks against it.
    pub must_not: &'static [&'static str],
    /// Causes that look alike, with what tells them apart: (id, words).
    pub lookalikes: &'static [(&'static str, &'static str)],
    /// More special causes: where they explain the same packets, this one takes only what they leave.
    pub yields_to: &'static [&'static str],
    /// What to do about it, in words, for its page; the finding has the commands.
    pub remedy: &'static str,
    /// Where this knowledge comes from: kernel files, RFCs, papers.
    pub sources: &'static [&'static str],
    /// Looks for it in the evidence: one finding for each place and object.
    pub examine: fn(&Scene<'_>) -> Vec<Finding>,
    /// Ways to make it on purpose. Empty, with [`Cause::not_injected`] saying why, where no lab of namespaces can show it.
    pub recipes: fn() -> Vec<Recipe>,
    /// Why there is no recipe.
    pub not_injected: Option<&'static str>,
}

/// All of them, by group.
pub fn all() -> impl Iterator<Item = &'static Cause> {
    [conntrack::CAUSES, firewall::CAUSES, network::CAUSES, queues::CAUSES, sockets::CAUSES]
        .into_iter()
        .flatten()
        .copied()
}

/// The cause of that id.
pub fn by_id(id: &str) -> Option<&'static Cause> {
    all().find(|c| c.id == id)
}

/// What all causes see in the evidence, before it is weighed.
pub(crate) fn examine(evidence: &Evidence) -> Vec<Finding> {
    let scene = Scene::of(evidence);
    all().flat_map(|cause| (cause.examine)(&scene)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_complete_and_ids_are_unique() {
        for cause in all() {
            let id = cause.id;
            assert_eq!(all().filter(|c| c.id == id).count(), 1, "{id}");
            assert!(id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'), "{id}");
            assert!(!cause.title.is_empty() && !cause.about.is_empty() && !cause.remedy.is_empty(), "{id}");
            assert!(!cause.must.is_empty() && !cause.sources.is_empty(), "{id}");
            assert_eq!((cause.recipes)().is_empty(), cause.not_injected.is_some(), "{id}");
        }
    }

    #[test]
    fn causes_that_are_named_exist() {
        for cause in all() {
            let named = cause.lookalikes.iter().map(|(id, _)| id).chain(cause.yields_to);
            for id in named {
                assert!(by_id(id).is_some(), "{} names {id}", cause.id);
                assert_ne!(*id, cause.id);
            }
        }
    }

    #[test]
    fn a_host_without_evidence_has_no_findings() {
        assert_eq!(examine(&Evidence::default()), []);
    }
}
