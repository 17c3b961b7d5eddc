//! The kernel's receive rounds end before the work is done.

use super::lost::per_second;
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::EvidenceSource;
use crate::finding::{Finding, Fix, Setting, Severity};
use crate::recipe::{Recipe, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "softnet-squeeze",
    title: "receive rounds end before the work is done",
    about: "The kernel receives in rounds, each at most net.core.netdev_budget packets or netdev_budget_usecs long. A round that \
            ends with work left counts as squeezed, and the rest waits for the next one, which may have to wait for other \
            programs. Nothing is lost by that. It is a sign of load, and a cause of delay only where the next round comes late.",
    must: &["column 3 of softnet_stat grows by ten a second or more"],
    should: &["delays of packets grow with it"],
    must_not: &["the backlog loses packets at the same time: then that is the cause"],
    lookalikes: &[
        ("softnet-backlog", "packets are lost: CPU_BACKLOG, column 2"),
        ("steal", "rounds end early by the clock because the hypervisor took the core away"),
    ],
    yields_to: &["softnet-backlog", "hot-core", "ring-overflow"],
    remedy: "Leave it, unless delays matter and grow with it: then larger rounds, or threaded NAPI, so that the scheduler shares \
             the core fairly.",
    sources: &[
        "net/core/dev.c: net_rx_action",
        "Documentation/admin-guide/sysctl/net.rst",
        "Documentation/networking/napi.rst",
    ],
    recipes,
    ..Cause::of(Group::Queues, examine)
};

/// Squeezed rounds in a second that are worth a word.
const WORTH: f64 = 10.0;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let machine = &view.evidence.machine;
    let squeezed: u64 = machine.cores.iter().map(|c| c.squeezed.change()).sum();
    let often = per_second(view, squeezed);
    if often < WORTH {
        return Vec::new();
    }
    let mut finding = view.machine_finding(CAUSE.id, Severity::Note);
    finding.summary = format!(
        "{often:.0} times a second a round of receiving ended with work left; nothing is lost by that, packets may be late."
    );
    for core in machine.cores.iter().filter(|c| c.squeezed.change() > 0) {
        let text = format!(
            "core {}: {} of its rounds, {} packets",
            core.number,
            core.squeezed.change(),
            core.processed.change()
        );
        finding.counter(EvidenceSource::Cores, "softnet.squeezed", core.squeezed, text);
    }
    finding.not.push("no loss: nothing was dropped for it".into());
    finding.fixes.extend(larger(view));
    vec![finding]
}

/// Proposes larger rounds only if an administrator made them smaller than the kernel's default.
fn larger(view: &EvidenceView<'_>) -> Option<Fix> {
    /// The kernel's own (net/core/hotdata.c).
    const BUDGET: u64 = 300;
    const NAME: &str = "net.core.netdev_budget";
    let now = view.evidence.machine.setting(NAME)?;
    if now >= BUDGET {
        return None;
    }
    Some(Fix::set(
        "give rounds the size back that the kernel gives them",
        "programs wait a little longer for the core under load",
        vec![Setting::new(NAME, now, BUDGET, "rounds of receiving ended with work left")],
    ))
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        traffic: Traffic::udp_across(100, 200, 4),
        machine: vec![("net.core.netdev_budget", "1".into())],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Core, Delta, Evidence};

    fn host(squeezed: u64, budget: &str) -> Evidence {
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.machine.cores =
            vec![Core { squeezed: Delta { before: 9, after: 9 + squeezed }, ..Core::default() }];
        evidence.machine.settings.insert("net.core.netdev_budget".into(), budget.into());
        evidence
    }

    #[test]
    fn it_is_a_note_and_never_more() {
        let found = examine(&EvidenceView::of(&host(5000, "300")));
        assert_eq!((found[0].severity, found[0].fixes.len()), (Severity::Note, 0));
        assert_eq!(
            examine(&EvidenceView::of(&host(5000, "20")))[0].fixes[0].undo,
            ["sysctl -w net.core.netdev_budget=20"]
        );
        assert_eq!(examine(&EvidenceView::of(&host(99, "300"))), []);
    }
}
