//! The process that keeps the fast path is gone, or hangs.

use super::commands::weir;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, FastPath, FastPathProcess, Namespace};
use crate::finding::{Confidence, Fact, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "fastpath-gone",
    title: "process of the fast path gone or hanging",
    about: "One process keeps the fast path. Its programs carry packets only while it renews a lease, for two seconds each \
            time. If it ends, its programs end with it; if it is stopped or gets no processor time, the lease ends. In either \
            case every packet takes the kernel's way: nothing is lost, and nothing is faster.",
    must: &[
        "a fast path was confirmed here, and no process keeps one; or the process does not answer for two seconds; or packets \
         are counted as `no-lease` though it is not paused",
    ],
    should: &["the process is stopped (T in `ps`)"],
    must_not: &["it was removed or paused by a user"],
    lookalikes: &[(
        "cpu-throttled",
        "a control group that gets no more processor time stops this process, too",
    )],
    remedy: "Start it again (`weir fastpath apply`). For a fast path that is to come back by itself after a crash and a reboot, \
             use its unit: `systemctl enable --now weir-fastpath`.",
    sources: &[
        "crates/fastpath/src/keeper.rs",
        "crates/fastpath/src/resident.rs",
        "docs/explanation/fastpath.md",
    ],
    not_injected: Some(
        "it takes a process of weir that is stopped or killed: the test `fastpath_doctor` does that with the built binary",
    ),
    ..Cause::of(Group::FastPath, |view| view.each_fastpath(of))
};

/// Share of the packets that came without a lease.
const SHARE: f64 = 0.1;
/// The same, where most of the window was without one.
const GRAVE: f64 = 0.5;

fn of(view: &EvidenceView<'_>, namespace: &Namespace, fastpath: &FastPath) -> Option<Finding> {
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Warning;
    finding.confidence = Confidence::High;
    match fastpath.process {
        FastPathProcess::Gone => {
            finding.summary =
                "The fast path that was confirmed has no process any more: every packet takes the kernel's way.".into();
            gone(
                &mut finding,
                namespace,
                "it was confirmed since the machine was started, and was not removed",
            );
        }
        FastPathProcess::Rebooted => {
            finding.summary =
                "The fast path that was confirmed did not come back after the machine was started again."
                    .into();
            gone(
                &mut finding,
                namespace,
                "it was confirmed before the machine was started again, and not removed",
            );
        }
        FastPathProcess::Silent { pid, stopped } => silent(&mut finding, namespace, pid, stopped),
        FastPathProcess::Answers { pid } => late(&mut finding, fastpath, pid)?,
    }
    Some(finding)
}

fn gone(finding: &mut Finding, namespace: &Namespace, text: &str) {
    finding.seen(EvidenceSource::FastPath, text);
    finding.seen(EvidenceSource::FastPath, "no process answers at the name of the fast path");
    finding.fixes.push(start(namespace));
}

/// It takes the place of one that hangs.
fn start(namespace: &Namespace) -> Fix {
    Fix::new(
        "start it, on trial until `weir fastpath confirm`",
        "rules that decide packet by packet are bypassed: it refuses where there are any; repeat the options of the last apply",
        [weir(namespace, "apply")],
        [weir(namespace, "remove")],
    )
}

fn silent(finding: &mut Finding, namespace: &Namespace, pid: u32, stopped: bool) {
    finding.object = format!("process {pid}");
    let state = if stopped { "is stopped" } else { "does not answer" };
    finding.summary =
        format!("Process {pid}, which keeps the fast path, {state}: every packet takes the kernel's way.");
    finding.seen(EvidenceSource::FastPath, format!("process {pid} did not answer for two seconds"));
    if stopped {
        finding.seen(EvidenceSource::FastPath, format!("its state in /proc/{pid}/stat is T"));
        finding.fixes.push(Fix::new(
            "let it go on",
            "none",
            [sh!("kill -CONT {}", pid)],
            [sh!("kill -STOP {}", pid)],
        ));
    } else {
        finding.confidence = Confidence::Medium;
        finding
            .fixes
            .push(Fix::look("see what it waits for", [sh!("ps -o pid,stat,wchan:32,args -p {}", pid)]));
    }
    finding.fixes.push(start(namespace));
}

/// The process works, and too late.
fn late(finding: &mut Finding, fastpath: &FastPath, pid: u32) -> Option<()> {
    let (late, came) = (fastpath.packets("no-lease"), fastpath.came_in());
    let share = late as f64 / came.max(1) as f64;
    if fastpath.paused || share < SHARE {
        return None;
    }
    finding.object = format!("process {pid}");
    finding.severity = if share >= GRAVE { Severity::Warning } else { Severity::Note };
    finding.confidence = Confidence::Medium;
    finding.impact = share;
    finding.summary = format!(
        "Process {pid}, which keeps the fast path, works too late: {:.0} % of the packets came without its lease.",
        100.0 * share
    );
    finding.evidence.extend(fastpath.packets.get("no-lease").map(|delta| {
        Fact::counter(
            EvidenceSource::FastPath,
            "no-lease",
            *delta,
            format!("{late} of {came} packets came without a lease"),
        )
    }));
    finding.not.push("it is not paused".into());
    finding.fixes.push(Fix::new(
        "let it go before other processes",
        "none: it needs little",
        [sh!("renice -n -10 -p {}", pid)],
        [sh!("renice -n 0 -p {}", pid)],
    ));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{count, healthy, host};
    use super::*;

    fn found(fastpath: FastPath) -> Vec<Finding> {
        (CAUSE.examine)(&EvidenceView::of(&host(fastpath)))
    }

    #[test]
    fn one_that_was_confirmed_and_is_gone_is_started_again() {
        for process in [FastPathProcess::Gone, FastPathProcess::Rebooted] {
            let [finding] = &found(FastPath { process, ..FastPath::default() })[..] else { panic!() };
            assert_eq!((finding.severity, finding.confidence), (Severity::Warning, Confidence::High));
            assert_eq!(finding.fixes[0].commands, ["weir fastpath apply"]);
        }
    }

    #[test]
    fn one_that_is_stopped_goes_on_and_one_that_hangs_is_looked_at() {
        let silent = |stopped| {
            let process = FastPathProcess::Silent { pid: 31, stopped };
            found(FastPath { process, ..FastPath::default() }).remove(0)
        };
        let stopped = silent(true);
        assert_eq!(
            (stopped.confidence, &stopped.fixes[0].commands[..]),
            (Confidence::High, &["kill -CONT 31".into()][..])
        );
        let hangs = silent(false);
        assert_eq!((hangs.confidence, hangs.object.as_str()), (Confidence::Medium, "process 31"));
        assert!(
            hangs.fixes[0].undo.is_empty() && hangs.remedy().unwrap().commands == ["weir fastpath apply"]
        );
    }

    #[test]
    fn a_lease_that_ends_for_a_moment_or_by_a_pause_is_none() {
        let with = |late, paused| {
            let packets = [count("no-lease", late), count("carried", 1000 - late)].into();
            found(FastPath { packets, paused, ..healthy() })
        };
        assert_eq!((with(50, false), with(800, true), found(healthy())), (vec![], vec![], vec![]));
        assert_eq!(with(200, false)[0].severity, Severity::Note);
        assert_eq!((with(800, false)[0].severity, with(800, false)[0].impact), (Severity::Warning, 0.8));
    }
}
