//! Every setting, counter and gauge that a cause names is one that a collector reads: a name with a mistake in it reads as zero, and
//! the cause is silent for ever.

use std::collections::BTreeSet;

use super::{evidences, sources};
use crate::collect::names;
use crate::evidence::asked;

/// Prefixes of the names of counters and gauges, as [`crate::evidence::Namespace::counters`] describes.
const COUNTERS: &[&str] = &[
    "ip",
    "ip6",
    "ipext",
    "tcp",
    "tcpext",
    "mptcpext",
    "udp",
    "udp6",
    "udplite",
    "udplite6",
    "icmp",
    "icmp6",
    "conntrack",
    "xfrm",
    "nfqueue",
    "sockstat",
    "sockstat6",
    "rt_cache",
    "arp_cache",
    "ndisc_cache",
];

/// Settings that only a command names, of which every value is given before and after.
const WRITTEN_ONLY: &[&str] = &[
    // On the clients, whose settings are not in sight.
    "net.ipv4.tcp_keepalive_time",
];

/// The string literals of a source that are names, with `{...}` for what is filled in.
fn literals(code: &str) -> BTreeSet<String> {
    let code = code.split("\nfn recipes").next().unwrap_or_default();
    let quoted = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split('"').skip(1).step_by(2));
    let shaped = |text: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-{}/".contains(c);
        text.contains('.') && !text.ends_with('.') && text.chars().all(plain)
    };
    quoted.filter(shaped).map(str::to_owned).collect()
}

fn is_setting(name: &str) -> bool {
    ["net.", "vm.", "kernel.", "fs."].iter().any(|begins| name.starts_with(begins))
}

fn is_counter(name: &str) -> bool {
    name.split_once('.').is_some_and(|(group, _)| COUNTERS.contains(&group))
}

/// True if the name is `pattern` with something in the place of each `{...}`.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern
        .split('{')
        .enumerate()
        .map(|(n, part)| if n == 0 { part } else { part.split_once('}').unwrap().1 });
    let first = parts.next().unwrap();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    for (n, part) in parts.iter().enumerate() {
        // The last part ends the name; what fills a hole is one part of a name or more.
        let at = if n + 1 == parts.len() {
            rest.len().checked_sub(part.len()).filter(|at| rest[*at..] == **part)
        } else {
            rest.find(part)
        };
        let Some(at) = at.filter(|at| *at > 0) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty()
}

/// Counters and gauges that collectors read: those of files whose names are ours, and those that kernels gave.
fn counters() -> BTreeSet<String> {
    let mut names = names::counters();
    for (file, evidence) in evidences().into_iter().filter(|(file, _)| file.contains("/recorded/")) {
        assert!(!file.contains("/examples/"));
        for namespace in &evidence.namespaces {
            names.extend(namespace.counters.keys().chain(namespace.gauges.keys()).cloned());
        }
        names.extend(evidence.machine.counters.keys().cloned());
    }
    names
}

#[test]
fn what_a_cause_reads_is_collected() {
    let (settings, counters) = (names::settings("eth0"), counters());
    let mut wrong = Vec::new();
    for (file, code) in sources() {
        for name in literals(&code) {
            let known = match (is_setting(&name), is_counter(&name)) {
                (true, _) => WRITTEN_ONLY.contains(&name.as_str()) || settings.iter().any(|s| fits(&name, s)),
                (_, true) => counters.iter().any(|c| fits(&name, c)),
                _ => continue,
            };
            if !known {
                wrong.push(format!("{file}: no collector reads {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names that are put together when a cause runs, such as those of an interface's settings.
#[test]
fn what_a_cause_asks_for_is_collected() {
    let counters = counters();
    let mut wrong = BTreeSet::new();
    for (file, evidence) in evidences() {
        let interfaces = evidence.namespaces.iter().flat_map(|n| &n.interfaces).map(|i| i.name.as_str());
        let mut settings = names::settings("eth0");
        settings.extend(interfaces.flat_map(names::settings));
        for cause in super::all() {
            asked::take();
            (cause.examine)(&super::EvidenceView::of(&evidence));
            let unknown = |name: &String| !settings.contains(name) && !counters.contains(name);
            wrong
                .extend(asked::take().into_iter().filter(unknown).map(|name| (cause.id, name, file.clone())));
        }
    }
    assert!(wrong.is_empty(), "no collector reads: {wrong:#?}");
}

#[test]
fn names_with_holes_fit_names() {
    assert!(fits("net.ipv4.conf.{}.rp_filter", "net.ipv4.conf.eth0.rp_filter"));
    assert!(fits("net.{family}.neigh.default.{mark}", "net.ipv4.neigh.default.gc_thresh1"));
    assert!(!fits("net.ipv4.conf.{}.rp_filter", "net.ipv4.conf.eth0.rp_filters"));
    assert!(!fits("net.ipv4.ip_forward", "net.ipv4.ip_forward_use_pmtu") && fits("a.b", "a.b"));
    let found = literals("f(\"net.ipv4.ip_forward\", \"a sentence. with\", format!(\"conntrack.{name}\"))");
    assert_eq!(Vec::from_iter(found), ["conntrack.{name}", "net.ipv4.ip_forward"]);
}
