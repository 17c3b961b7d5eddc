//! The causes that are known, one file each. A new one is a file with a `pub(super) const CAUSE: Cause` in its group's folder, and a line in
//! the group's `CAUSES`.
//!
//! A cause is identified by evidence that must, should and must not be present. If two causes explain the same loss, the choice
//! is not random. Each cause names in [`Cause::yields_to`] the more special ones that take precedence, and takes only the losses
//! that they leave.

#[cfg(test)]
mod collected;
mod conntrack;
mod fastpath;
mod firewall;
#[cfg(test)]
mod hostile;
mod lost_here;
mod nat;
mod network;
#[cfg(test)]
mod pasted;
mod queues;
mod sockets;
mod transit;
mod view;
#[cfg(test)]
mod whole;

use crate::evidence::Evidence;
use crate::finding::Finding;
use crate::recipe::Recipe;

pub use nat::limits as nat_limits;
pub use view::{EvidenceView, Taken, is_noise};

/// The part of the system that a cause belongs to.
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
    /// The fast path of weir.
    FastPath,
    /// TCP that passes through, and what happens to it beyond this host.
    Transit,
    /// A table of `weir nat`.
    Nat,
    /// Everything else.
    Rest,
}

/// A cause of lost or delayed packets.
#[derive(Debug)]
pub struct Cause {
    /// Stable id: lower case, digits and hyphens. Never reused for something else.
    pub id: &'static str,
    /// Its group.
    pub group: Group,
    /// A heading of a few words.
    pub title: &'static str,
    /// Its mechanism, and why it loses packets: one to three paragraphs for its page.
    pub about: &'static str,
    /// Signs of every case of it.
    pub must: &'static [&'static str],
    /// Signs that make it surer.
    pub should: &'static [&'static str],
    /// Signs against it.
    pub must_not: &'static [&'static str],
    /// Causes that look alike, with what tells them apart: (id, words).
    pub lookalikes: &'static [(&'static str, &'static str)],
    /// More special causes: where they explain the same packets, this one takes only what they leave.
    pub yields_to: &'static [&'static str],
    /// The remedy in words, for its page; the finding has the commands.
    pub remedy: &'static str,
    /// The sources of this knowledge: kernel files, RFCs, papers.
    pub sources: &'static [&'static str],
    /// Looks for it in the evidence: one finding for each place and object.
    pub examine: fn(&EvidenceView<'_>) -> Vec<Finding>,
    /// Ways to make it on purpose. Empty, with [`Cause::not_injected`] saying why, where no lab of namespaces can show it.
    pub recipes: fn() -> Vec<Recipe>,
    /// Why there is no recipe.
    pub not_injected: Option<&'static str>,
}

impl Cause {
    /// A cause without anything but its group and how it is looked for. A test demands the texts.
    const fn of(group: Group, examine: fn(&EvidenceView<'_>) -> Vec<Finding>) -> Cause {
        Cause {
            id: "",
            group,
            title: "",
            about: "",
            must: &[],
            should: &[],
            must_not: &[],
            lookalikes: &[],
            yields_to: &[],
            remedy: "",
            sources: &[],
            examine,
            recipes: Vec::new,
            not_injected: None,
        }
    }
}

/// All of them, by group.
pub fn all() -> impl Iterator<Item = &'static Cause> {
    let groups = [
        conntrack::CAUSES,
        firewall::CAUSES,
        network::CAUSES,
        queues::CAUSES,
        sockets::CAUSES,
        fastpath::CAUSES,
        transit::CAUSES,
        nat::CAUSES,
    ];
    groups.into_iter().flatten().copied()
}

/// The cause of that id.
pub fn by_id(id: &str) -> Option<&'static Cause> {
    all().find(|c| c.id == id)
}

/// The view that all causes have of the evidence, before it is weighed.
pub(crate) fn examine(evidence: &Evidence) -> Vec<Finding> {
    let view = EvidenceView::of(evidence);
    all().flat_map(|cause| (cause.examine)(&view)).collect()
}

/// All stored evidence: what was recorded of hosts while each cause was made in them, and what was made by hand for those of
/// which nothing was recorded.
#[cfg(test)]
fn evidences() -> Vec<(String, Evidence)> {
    let folders = [
        "conntrack/recorded",
        "fastpath/recorded",
        "firewall/recorded",
        "network/recorded",
        "queues/recorded",
        "transit/recorded",
        "examples",
    ]
    .map(|folder| format!("{}/src/causes/{folder}", env!("CARGO_MANIFEST_DIR")));
    let files =
        folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()).map(|e| e.unwrap().path());
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.display().to_string(), serde_json::from_str(&text).unwrap())
    };
    files.map(read).collect()
}

/// The sources of all causes, without their tests.
#[cfg(test)]
fn sources() -> Vec<(String, String)> {
    const TESTS: &[&str] =
        &["hostile", "pasted", "whole", "recorded", "collected", "fixture", "given", "mod"];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/causes");
    let folders = std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir());
    let files = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap()).map(|e| e.unwrap().path());
    let code = files.filter(|p| p.extension().is_some_and(|e| e == "rs"));
    let code = code.filter(|p| !TESTS.contains(&p.file_stem().unwrap().to_str().unwrap()));
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap();
        (path.display().to_string(), code.to_owned())
    };
    code.map(read).collect()
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
        "kill",
        "modprobe",
        "nft",
        "ping",
        "prlimit",
        "renice",
        "rm",
        "sed",
        "sysctl",
        "systemctl",
        "tc",
        "weir",
        "wg",
        // A subshell, and a loop.
        "(echo",
        "for",
    ];

    /// True of a command that changes nothing.
    fn only_shows(command: &str) -> bool {
        const SHOW: &[&str] = &[
            "#",
            "ausearch ",
            "bpftool cgroup tree",
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
            "ip -d -s link show",
            "ip -s xfrm state",
            "ip monitor ",
            "ip xfrm monitor",
            "ip neigh show",
            "ip route get",
            "ip rule show",
            "ip xfrm policy",
            "iptables-save | grep",
            "ls ",
            "mtr ",
            "nft -a list",
            "nft -a -t list",
            "nft list",
            "nft monitor",
            "ping ",
            "ps ",
            "slabtop",
            "ss ",
            "systemctl show ",
            "tcpdump ",
            "top ",
            "tc -s ",
            "vmstat ",
            "weir fastpath exclude",
            "weir fastpath plan",
            "weir fastpath status",
        ];
        let lists = command.starts_with("ip") && command.contains("tables") && command.contains(" -L ");
        !command.contains("> /root") && (lists || SHOW.iter().any(|begins| command.starts_with(begins)))
    }

    /// Every change of a fix can be reverted by commands, not only in words.
    #[test]
    fn every_fix_that_changes_something_has_its_way_back() {
        let all = evidences();
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
