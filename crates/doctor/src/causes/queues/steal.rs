//! The hypervisor takes time away from this machine's cores.

use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{Core, EvidenceSource};
use crate::finding::{Confidence, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "steal",
    title: "the hypervisor takes the cores away",
    about: "A virtual machine's core runs only when the hypervisor lets it. `steal` is the time in which it could have run \
            and the hypervisor did not let it. Packets wait meanwhile, in the card and in queues, for whole milliseconds, \
            and are lost if the queues overflow. On small cloud machines the provider also throttles a machine in this way \
            when its CPU credits are used up.",
    must: &["`steal` of a core in /proc/stat grows by 5 % of the window or more"],
    should: &["backlog or ring of the same core lose packets"],
    lookalikes: &[
        ("cpu-throttled", "a limit of a control group on this very machine"),
        ("hot-core", "the core is busy with packets, not away"),
    ],
    remedy: "Ask for a machine with dedicated cores, or a larger one; on burstable kinds look at the CPU credits. Inside the \
             machine, longer queues bridge short absences.",
    sources: &["proc_stat(5)", "Documentation/virt/kvm/x86/msr.rst: MSR_KVM_STEAL_TIME"],
    not_injected: Some("only a hypervisor can take CPU time"),
    ..Cause::of(Group::Queues, examine)
};

/// Share of a core's time from which on it is worth a word.
const WORTH: f64 = 0.05;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let machine = &view.evidence.machine;
    let hit: Vec<&Core> = machine.cores.iter().filter(|c| c.share("steal") >= WORTH).collect();
    let Some(worst) = hit.iter().max_by(|a, b| a.share("steal").total_cmp(&b.share("steal"))) else {
        return Vec::new();
    };
    // By itself it is how the machine is; a fault it is where packets were lost on a core that was away.
    let lost: u64 = hit.iter().map(|c| c.dropped.change()).sum();
    let severity = if lost > 0 && worst.share("steal") >= 0.1 { Severity::Warning } else { Severity::Note };
    let mut finding = view.machine_finding(CAUSE.id, severity);
    finding.confidence = if lost > 0 { Confidence::Medium } else { Confidence::Low };
    finding.summary = format!(
        "The hypervisor took up to {:.0} % of a core's time; packets wait meanwhile{}.",
        worst.share("steal") * 100.0,
        if lost > 0 { ", and the backlog of that core lost some" } else { "" }
    );
    for core in hit {
        let ticks = core.ticks.get("steal").copied().unwrap_or_default();
        let text = format!(
            "core {}: {:.0} % stolen, {} packets dropped by its backlog",
            core.number,
            core.share("steal") * 100.0,
            core.dropped.change()
        );
        finding.counter(EvidenceSource::Cores, "steal", ticks, text);
    }
    if lost == 0 {
        finding.not.push("no loss on the cores that were away".into());
    }
    finding.fixes.push(Fix::look(
        "see when it happens, then move to dedicated cores or a larger machine",
        [sh!("vmstat 1 60")],
    ));
    vec![finding]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Delta, Evidence};

    fn host(steal: u64, dropped: u64) -> Evidence {
        let ticks = [("steal", steal), ("idle", 1000 - steal)];
        let ticks = ticks.map(|(n, v)| (n.to_owned(), Delta { before: 3, after: 3 + v })).into();
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.machine.cores =
            vec![Core { ticks, dropped: Delta { before: 0, after: dropped }, ..Core::default() }];
        evidence
    }

    #[test]
    fn heavy_steal_without_loss_is_a_note_and_with_loss_a_warning() {
        assert_eq!(examine(&EvidenceView::of(&host(600, 0)))[0].severity, Severity::Note);
        assert_eq!(examine(&EvidenceView::of(&host(600, 20)))[0].severity, Severity::Warning);
        assert_eq!(examine(&EvidenceView::of(&host(60, 20)))[0].severity, Severity::Note);
        assert_eq!(examine(&EvidenceView::of(&host(40, 20))), []);
    }
}
