//! All metrics, for the page of the reference.

use std::fmt::Write;

use weir_text::layout::wrap;

use crate::page::{Group, Metric, Page};
use crate::sources::{allow, conntrack, doctor, fastpath, lists, probes, publish, snat};
use crate::{board, flows};

static BUILD: Metric = Metric::gauge("build_info", &["version"], "1; the label is the version of weir.");

static OF_WEIR: Group = Group { title: "weir", about: "The program itself.", metrics: &[&BUILD] };

/// All metrics by subject.
pub static GROUPS: [&Group; 11] = [
    &OF_WEIR,
    &board::GROUP,
    &flows::GROUP,
    &conntrack::GROUP,
    &snat::GROUP,
    &doctor::GROUP,
    &fastpath::GROUP,
    &publish::GROUP,
    &allow::GROUP,
    &lists::GROUP,
    &probes::GROUP,
];

/// Begins a page, with the version of weir.
pub fn begin(version: &str) -> Page {
    let mut page = Page::default();
    page.family(&BUILD).value(&[version], 1.0);
    page
}

const HEAD: &str = "# Metrics

`weir export` ([guide](../guides/export.md)) serves these metrics in the text format 0.0.4 of
Prometheus. Generated from the definitions in `crates/export` by `scripts/docs`.

Names follow Prometheus' rules: base units (seconds, bytes, ratios of 0 to 1), `_total` for
counters, `_timestamp_seconds` for seconds since 1970. Histograms are classic ones. No label holds a
whole address of people unless `--prefix`, `--prefix6` or `--names` asks for it; labels of probes
are the targets of the command line.
";

/// The page of the docs, in Markdown.
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    for group in GROUPS {
        let _ = writeln!(text, "\n## {}\n\n{}\n", group.title, wrap(group.about, 100, 100).join("\n"));
        text.push_str("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
        for metric in group.metrics {
            let labels: Vec<String> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
            let _ = writeln!(
                text,
                "| `weir_{}` | {} | {} | {} |",
                metric.name,
                metric.kind.name(),
                labels.join(", "),
                metric.help
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Kind;

    #[test]
    fn the_page_of_the_docs_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        let kept = std::fs::read_to_string(path).unwrap();
        assert!(kept == reference(), "docs/reference/metrics.md is not up to date: run scripts/docs");
    }

    /// https://prometheus.io/docs/practices/naming/
    #[test]
    fn names_follow_the_rules_and_are_unique() {
        let mut names = BTreeSet::new();
        for metric in GROUPS.iter().flat_map(|g| g.metrics) {
            let name = metric.name;
            assert!(names.insert(name), "{name} twice");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
            assert!(metric.help.ends_with('.') && !metric.help.contains('\n'), "{name}");
            assert!(metric.labels.iter().all(|l| !["le", "job", "instance"].contains(l)), "{name}");
        }
    }
}
