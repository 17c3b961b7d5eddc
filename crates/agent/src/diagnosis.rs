//! The doctor's word on this host during a trial.

use std::time::Duration;

use weir_doctor::collect::{OpenWindow, Options, Scope};
use weir_doctor::diagnosis::{Diagnosis, diagnose as weigh};
use weir_doctor::evidence::{EvidenceSource, Sight};
use weir_doctor::finding::{Finding, Severity};
use weir_record::{Diagnosed, DiagnosedFinding};

use crate::error::TaskError;
use weir_sys::clock::sleep_unless;

/// Watches the namespace of the calling thread, and nothing else: what other hosts of a lab lose is not this gateway's.
pub(crate) fn diagnose(
    after: Duration,
    duration: Duration,
    ended: &dyn Fn() -> bool,
) -> Result<Diagnosed, TaskError> {
    sleep_unless(ended, after);
    let options = Options { scope: Scope::Own, ..Options::default() };
    let watch = OpenWindow::begin(options).map_err(|e| TaskError::failed(e.to_string()))?;
    sleep_unless(ended, duration.saturating_sub(watch.elapsed()));
    Ok(recorded(&weigh(&watch.end())))
}

/// Extracts the parts of a diagnosis that a trial records.
fn recorded(diagnosis: &Diagnosis) -> Diagnosed {
    let worth = |f: &&Finding| f.severity >= Severity::Warning;
    let blind = |(source, sight): (&EvidenceSource, &Sight)| match sight {
        Sight::Blind(why) => Some(format!("{}: {why}", source.words())),
        _ => None,
    };
    Diagnosed {
        findings: diagnosis.findings.iter().filter(worth).map(told).collect(),
        lost_packets: diagnosis.lost.packets,
        explained_packets: diagnosis.lost.explained,
        not_in_sight: diagnosis.evidence_sources.iter().filter_map(blind).collect(),
    }
}

fn told(finding: &Finding) -> DiagnosedFinding {
    let fix = finding.remedy().cloned().unwrap_or_default();
    DiagnosedFinding {
        cause: finding.cause.clone(),
        critical: finding.severity == Severity::Critical,
        summary: finding.summary.clone(),
        explains_packets: finding.explains_packets,
        commands: fix.commands,
        risk: fix.risk,
        undo: fix.undo,
    }
}

#[cfg(test)]
mod tests {
    use weir_doctor::evidence::Evidence;
    use weir_doctor::finding::Fix;

    use super::*;

    /// A firewall's first fix only looks; the fix that changes something is kept, with risk and undo.
    #[test]
    fn what_helps_is_kept_with_its_way_back_and_what_was_not_seen_with_its_reason() {
        let sources =
            [(EvidenceSource::Drops, Sight::Blind("no BTF".into())), (EvidenceSource::Counters, Sight::Seen)]
                .into();
        let mut diagnosis = weigh(&Evidence { evidence_sources: sources, ..Evidence::default() });
        let look = Fix { commands: vec!["nft list ruleset".into()], ..Fix::default() };
        let accept = Fix {
            commands: vec!["nft insert rule".into()],
            risk: "it passes unchecked".into(),
            undo: vec!["nft delete rule".into()],
            ..look.clone()
        };
        let finding = |fixes| {
            let finding = serde_json::json!({
                "cause": "nft-rule-drop", "namespace": 1, "place": "host", "severity": "critical", "confidence": "high",
                "object": "", "summary": "", "evidence": [], "not": [], "missing": [], "claims": [], "impact": 0.0, "fixes": [],
            });
            Finding { fixes, ..serde_json::from_value(finding).unwrap() }
        };
        diagnosis.findings = vec![finding(vec![look.clone(), accept]), finding(vec![look])];
        let kept = recorded(&diagnosis);
        assert_eq!(kept.not_in_sight, ["dropped packets: no BTF"]);
        let [changes, looks] = &kept.findings[..] else { panic!("{kept:?}") };
        assert_eq!((&changes.commands[0][..], &changes.undo[0][..]), ("nft insert rule", "nft delete rule"));
        assert_eq!((&changes.risk[..], &looks.commands[0][..]), ("it passes unchecked", "nft list ruleset"));
        assert!(looks.undo.is_empty());
    }
}
