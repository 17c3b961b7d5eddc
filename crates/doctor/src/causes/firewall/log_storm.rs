//! A rule writes a line to the kernel's log for every packet.

use super::commands::remove;
use super::nft_rule_drop::{datagrams, gateway};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft;
use crate::evidence::{Backend, EvidenceSource, Namespace, Rule};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::Recipe;

/// Lines a second that cost more than they tell. A line takes some 10 µs, more by far where a serial console is served.
const LINES_PER_SECOND: f64 = 50.0;

pub(super) const CAUSE: Cause = Cause {
    id: "log-storm",
    title: "a rule logs every packet",
    about: "A rule with `log` (or the target LOG) and without a limit writes a line to the kernel's log for each packet \
            that it matches, and the packet waits meanwhile. A few hundred a second fill the log, and with a serial \
            console they stop the machine: each line is sent at its 115,200 bit/s with interrupts off.",
    must: &["a rule that logs without a limit, whose counter moved by more than 50 packets a second"],
    should: &["lines of that rule in the kernel's log"],
    must_not: &[
        "the namespace's lines are not written at all (net.netfilter.nf_log_all_netns = 0 outside the first one)",
    ],
    lookalikes: &[("hot-core", "a core is busy, with any kind of work")],
    remedy: "Put a limit before the log statement, or send the packets to a group that a program listens to (`log group 1`, \
             ulogd), or count instead of logging.",
    sources: &["net/netfilter/nf_log_syslog.c", "kernel/printk/printk.c", "nft(8), log statement"],
    recipes,
    ..Cause::of(Group::Firewall, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let rules = view
        .namespaces()
        .flat_map(|n| n.rules.iter().flat_map(move |r| r.rules.iter().map(move |rule| (n, rule))));
    rules.filter_map(|(namespace, rule)| of_rule(view, namespace, rule)).collect()
}

fn of_rule(view: &EvidenceView<'_>, namespace: &Namespace, rule: &Rule) -> Option<Finding> {
    if !rule.logs {
        return None;
    }
    // A rule that does not count is known by its prefix in the log.
    let lines =
        prefix(&rule.text).map_or(0, |p| view.evidence.machine.log.iter().filter(|l| l.contains(p)).count());
    let packets = rule.packets.map_or(lines as u64, |p| p.change());
    let per_second = packets as f64 / view.evidence.window_s.max(0.1);
    if per_second < LINES_PER_SECOND {
        return None;
    }
    // Outside the first namespace, the kernel logs nothing unless a setting enables it.
    let told = view.evidence.machine.setting("net.netfilter.nf_log_all_netns") == Some(1);
    if !(namespace.own || told || lines > 0) {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Warning;
    finding.confidence = if lines > 0 { Confidence::High } else { Confidence::Medium };
    finding.missing = view.missing(namespace, &[EvidenceSource::Log]);
    finding.impact = (packets as f64 / view.passed(namespace).max(1) as f64).min(1.0);
    let place = format!("{} {} {} handle {}", rule.family, rule.table, rule.chain, rule.handle);
    finding.object = format!("rule {place}: {}", rule.text);
    finding.summary = format!(
        "A rule writes {per_second:.0} lines a second to the kernel's log, one for each packet it meets: {}.",
        rule.text
    );
    if let Some(counter) = rule.packets {
        let text = format!("{packets} packets logged in the window");
        finding.counter(EvidenceSource::Rules, &format!("rule {place}"), counter, text);
    }
    if lines > 0 {
        finding.seen(EvidenceSource::Log, format!("{lines} lines of it were seen in the kernel's log"));
    }
    finding.not.push("not lost packets: the rule costs time and does not drop".into());
    finding.fixes = fixes(rule);
    Some(finding)
}

/// The prefix of the log statement, if it is long enough to know it by.
fn prefix(text: &str) -> Option<&str> {
    let prefix = text.split_once("prefix \"")?.1.split('"').next()?;
    (prefix.len() >= 3).then_some(prefix)
}

fn fixes(rule: &Rule) -> Vec<Fix> {
    let mut fixes = Vec::new();
    if rule.backend == Backend::Nft {
        let (commands, undo) = nft::edit(rule, "RULE_AS_LISTED_WITH_limit_rate_5/second_BEFORE_log");
        let title = "log a few a second; a rule that also drops or accepts needs a rule of its own for that";
        fixes.push(Fix::new(title, "most packets are no longer in the log", commands, undo));
    }
    fixes.push(Fix {
        title: "delete the rule; if it also drops or accepts, add it again without `log`".into(),
        ..remove(rule)
    });
    fixes
}

fn recipes() -> Vec<Recipe> {
    let rules = "nft 'add table inet f; add chain inet f forward { type filter hook forward priority 0; }'\n\
                 nft 'add rule inet f forward udp dport 7001 counter log prefix \"weir-selftest \" level debug'";
    vec![Recipe {
        setup: gateway(rules),
        traffic: datagrams(7001, 4),
        machine: vec![("net.netfilter.nf_log_all_netns", "1".into())],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Firewall;
    use super::*;
    use crate::evidence::Evidence;

    fn logging(text: &str, packets: u64, own: bool) -> Evidence {
        let mut firewall = Firewall::new().rule(text).counted(packets);
        firewall.here().own = own;
        firewall.evidence()
    }

    #[test]
    fn a_rule_that_logs_much_is_told() {
        let found = examine(&EvidenceView::of(&logging("udp dport 53 log prefix \"dns \"", 5000, true)));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
        assert!(
            found[0].fixes[0].commands[1]
                .contains("replace rule inet filter forward handle 11 RULE_AS_LISTED")
        );
        assert_eq!(examine(&EvidenceView::of(&logging("log", 400, true))), [], "40 a second are no storm");
    }

    #[test]
    fn a_namespace_whose_lines_are_not_written_is_silent() {
        let mut evidence = logging("log prefix \"dns \"", 5000, false);
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
        evidence.machine.settings.insert("net.netfilter.nf_log_all_netns".into(), "1".into());
        assert_eq!(examine(&EvidenceView::of(&evidence)).len(), 1);
    }
}
