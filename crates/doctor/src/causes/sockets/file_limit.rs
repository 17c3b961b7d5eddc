//! A program may open no more files, and so accepts no connection.

use super::accept_queue_full::{claims, named};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, FileLimit, Listener, Namespace};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "file-limit",
    title: "a program has reached its limit of open files",
    about: "Every connection is an open file of its program. When as many are open as its limit allows (RLIMIT_NOFILE), \
            accept(2) fails with EMFILE and connections stay in the accept queue until that is full; then new ones are refused. \
            From outside it looks like a queue that is too short, and making the queue longer does not help at all. The program's \
            own log usually says `Too many open files`.",
    must: &[
        "the program has as many files open as it may, or is within 1 in 100 of it",
        "connections wait in the accept queue of one of its listening sockets",
    ],
    should: &["TcpExt ListenOverflows grows"],
    lookalikes: &[("accept-queue-full", "the program has files left and still does not accept")],
    remedy: "Raise the limit of the running program at once with prlimit(1), then for good where it is started \
             (LimitNOFILE of its systemd unit, `ulimits` of its container). Then see why it holds so many: idle \
             connections that the program never closes are the usual reason.",
    sources: &["getrlimit(2), accept(2): EMFILE"],
    recipes,
    ..Cause::of(Group::Sockets, examine)
};

/// A program that opens and closes is seen a little below its limit.
const AT_LIMIT: f64 = 0.99;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let in_namespace = |namespace| {
        let limits = sockets_of(namespace).flat_map(|s| &s.near_file_limit);
        limits.filter_map(|limit| of_process(view, namespace, limit)).collect::<Vec<_>>()
    };
    view.namespaces().flat_map(in_namespace).collect()
}

fn sockets_of(namespace: &Namespace) -> impl Iterator<Item = &crate::evidence::Sockets> {
    namespace.sockets.iter()
}

fn of_process(view: &EvidenceView<'_>, namespace: &Namespace, limit: &FileLimit) -> Option<Finding> {
    let suffix = format!("(pid {})", limit.pid);
    let is_its = |l: &&Listener| l.process.as_ref().is_some_and(|p| p.ends_with(&suffix));
    let own: Vec<&Listener> = sockets_of(namespace).flat_map(|s| &s.listeners).filter(is_its).collect();
    let waiting: u32 = own.iter().map(|l| l.queued).sum();
    if waiting == 0 || (limit.open as f64) < AT_LIMIT * limit.limit as f64 {
        return None;
    }
    let overflows = namespace.grew("tcpext.ListenOverflows");
    let refused: u64 = own.iter().map(|l| l.drops.change()).sum::<u64>().min(overflows);
    let mut finding = view.finding(CAUSE.id, namespace, refused);
    // Connections that no program accepts fail, whether or not the queue has room for them.
    finding.severity = finding.severity.max(Severity::Warning);
    finding.impact = 1.0;
    finding.confidence = if limit.open >= limit.limit { Confidence::High } else { Confidence::Medium };
    if refused > 0 {
        finding.claims = claims(view, namespace, refused);
        finding.grew(namespace, "tcpext.ListenOverflows", "packets of new connections refused");
    }
    finding.object = format!("{} {suffix}", limit.process);
    finding.summary = format!(
        "{} has {} files open of the {} it may, so it accepts no connection: {waiting} wait.",
        finding.object, limit.open, limit.limit
    );
    for listener in own.iter().filter(|l| l.queued > 0).take(5) {
        let text = format!("{}: {} wait of {}", named(listener), listener.queued, listener.limit);
        finding.seen(EvidenceSource::Sockets, text);
    }
    let text = format!("{}: {} files open, limit {}", finding.object, limit.open, limit.limit);
    finding.seen(EvidenceSource::Sockets, text);
    finding.not.push("not a queue that is too short: a longer one would fill as well".into());
    finding.fixes = fixes(limit);
    Some(finding)
}

fn fixes(limit: &FileLimit) -> Vec<Fix> {
    let FileLimit { pid, limit: now, .. } = limit;
    // The kernel's own upper bound is fs.nr_open, 1,048,576 by default.
    let proposed = (now * 8).clamp(65_536, 1 << 20).max(*now);
    vec![
        Fix::new(
            "raise the limit of the running program",
            "none known; it ends with the program, so set it where the program is started, too \
                   (systemd: LimitNOFILE=)",
            [sh!("prlimit --pid {} --nofile={}:{}", pid, proposed, proposed)],
            [sh!("prlimit --pid {} --nofile={}", pid, now)],
        ),
        Fix::look(
            "see what it holds",
            [sh!(
                "ls -l /proc/{}/fd | tail -n +2 | awk '{print $NF}' | sort | uniq -c | sort -rn | head",
                pid
            )],
        ),
    ]
}

fn recipes() -> Vec<Recipe> {
    // A server that keeps every connection, and of which the limit leaves room for a dozen.
    let server = "ulimit -n 16; exec perl -MIO::Socket::INET -e '\
                  my $s = IO::Socket::INET->new(LocalPort => 7081, Listen => 64, ReuseAddr => 1) or die; my @held; \
                  while (1) { my $c = $s->accept; if ($c) { push @held, $c } else { select undef, undef, undef, 0.05 } }'";
    vec![Recipe {
        at: LabHost::Responder,
        setup: vec![Step::responder("perl -MIO::Socket::INET -e 1")],
        traffic: vec![
            Traffic::Script(LabHost::Responder, server.into()),
            Traffic::Connects { to: "198.19.0.2:7081".into(), rate: 100, bytes: 0, hold: true },
        ],
        needs: vec!["perl"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{grew, host, listener, seen};
    use super::*;

    fn at_limit(open: u64, queued: u32) -> Vec<Finding> {
        let mut host = host(&[("tcpext.ListenOverflows", 40)]);
        let sockets = host.sockets.as_mut().unwrap();
        sockets.listeners = vec![Listener { queued, drops: grew(30), ..listener(80) }, listener(22)];
        sockets.near_file_limit.push(FileLimit { process: "web".into(), pid: 7, open, limit: 1024 });
        examine(&EvidenceView::of(&seen(host, Vec::new())))
    }

    #[test]
    fn who_is_at_the_limit_with_connections_waiting_is_convicted() {
        let found = &at_limit(1024, 129)[0];
        assert_eq!((found.object.as_str(), found.confidence), ("web (pid 7)", Confidence::High));
        assert_eq!(found.fixes[0].commands, ["prlimit --pid 7 --nofile=65536:65536"]);
        assert_eq!(found.claims.len(), 1);
        assert_eq!(at_limit(1020, 3)[0].confidence, Confidence::Medium);
    }

    #[test]
    fn who_has_files_left_or_nobody_waiting_is_not() {
        assert_eq!(at_limit(980, 129), []);
        assert_eq!(at_limit(1024, 0), []);
    }
}
