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

    /// Programs that an undo may begin with.
    const PROGRAMS: &[&str] = &[
        "bridge",
        "conntrack",
        "echo",
        "ethtool",
        "ip",
        "ip6tables",
        "ip6tables-legacy",
        "ip6tables-restore",
        "ip6tables-legacy-restore",
        "iptables",
        "iptables-legacy",
        "iptables-legacy-restore",
        "iptables-restore",
        "modprobe",
        "nft",
        "ping",
        "rm",
        "sed",
        "sysctl",
        "systemctl",
        "tc",
        "wg",
        // A subshell, and a loop.
        "(echo",
        "for",
    ];

    /// True of a command that changes nothing.
    fn only_shows(command: &str) -> bool {
        const SHOW: &[&str] = &[
            "#",
            "bpftool net show",
            "bpftool prog show",
            "bpftool prog dump",
            "cat ",
            "conntrack -E",
            "conntrack -L",
            "conntrack -S",
            "dmesg",
            "ethtool -S ",
            "ethtool -g ",
            "ethtool -i ",
            "ethtool -k ",
            "ethtool -l ",
            "grep ",
            "ip -6 neigh show",
            "ip -6 route get",
            "ip neigh show",
            "ip route get",
            "ip rule show",
            "nft -a list",
            "nft -a -t list",
            "nft list",
            "ping ",
            "ps ",
            "slabtop",
            "ss ",
            "tcpdump ",
            "top ",
            "tc -s ",
            "vmstat ",
        ];
        let lists = command.starts_with("ip") && command.contains("tables") && command.contains(" -L ");
        !command.contains("> /root") && (lists || SHOW.iter().any(|begins| command.starts_with(begins)))
    }

    /// What was recorded of hosts while each cause was made in them.
    fn recorded() -> Vec<(String, Evidence)> {
        let groups = ["conntrack", "firewall", "network", "queues"]
            .map(|group| format!("{}/src/causes/{group}/recorded", env!("CARGO_MANIFEST_DIR")));
        let files =
            groups.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()).map(|e| e.unwrap().path());
        files
            .map(|path| {
                let text = std::fs::read_to_string(&path).unwrap();
                (path.display().to_string(), serde_json::from_str(&text).unwrap())
            })
            .collect()
    }

    /// Whatever a fix changes can be taken back, by commands and not by words.
    #[test]
    fn every_fix_that_changes_something_has_its_way_back() {
        let all = recorded();
        assert!(all.len() >= 50, "{}", all.len());
        let mut wrong = Vec::new();
        for (name, evidence) in &all {
            for finding in examine(evidence) {
                for fix in &finding.fixes {
                    let back = !fix.undo.is_empty() || fix.commands.iter().all(|c| only_shows(c));
                    let program = |c: &String| PROGRAMS.contains(&c.split(' ').next().unwrap_or_default());
                    if !back || !fix.undo.iter().all(program) {
                        wrong.push(format!("{name}: {}: {fix:#?}", finding.cause));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
