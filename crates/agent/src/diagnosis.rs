//! The doctor's word on this host during a trial.

use std::time::Duration;

use weir_doctor::collect::{Options, Scope, Watch};
use weir_doctor::diagnosis::diagnose as weigh;
use weir_doctor::evidence::Sight;
use weir_doctor::finding::{Finding, Severity};
use weir_record::{Diagnosed, DiagnosedFinding};

use crate::perform::sleep_unless;
use crate::protocol::TaskError;

/// Watches the namespace of the calling thread, and nothing else: what other hosts of a lab lose is not this gateway's.
pub(crate) fn diagnose(
    after: Duration,
    duration: Duration,
    ended: &dyn Fn() -> bool,
) -> Result<Diagnosed, TaskError> {
    sleep_unless(ended, after);
    let options = Options { scope: Scope::Own, ..Options::default() };
    let watch = Watch::begin(options).map_err(|e| TaskError::failed(e.to_string()))?;
    sleep_unless(ended, duration.saturating_sub(watch.elapsed()));
    let diagnosis = weigh(&watch.end());
    let worth = |f: &&Finding| f.severity >= Severity::Warning;
    let blind = |(plane, sight): (&_, &Sight)| match sight {
        Sight::Blind(why) => Some(format!("{plane:?}: {why}")),
        _ => None,
    };
    Ok(Diagnosed {
        findings: diagnosis.findings.iter().filter(worth).map(told).collect(),
        lost_packets: diagnosis.lost.packets,
        explained_packets: diagnosis.lost.explained,
        not_in_sight: diagnosis.planes.iter().filter_map(blind).collect(),
    })
}

fn told(finding: &Finding) -> DiagnosedFinding {
    DiagnosedFinding {
        cause: finding.cause.clone(),
        critical: finding.severity == Severity::Critical,
        summary: finding.summary.clone(),
        explains_packets: finding.explains_packets,
        commands: finding.fixes.first().map_or(Vec::new(), |fix| fix.commands.clone()),
    }
}
