//! A program does not accept its connections as fast as they come.

use weir_text::order;

use super::fixes::pid;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Listener, Namespace};
use crate::finding::{Claim, Confidence, Finding, Fix, Setting};
use crate::recipe::{LabHost, Recipe, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "accept-queue-full",
    title: "accept queue full",
    about: "A connection that is complete waits in the accept queue of its listening socket until the program calls \
            accept(2). The queue holds as many as the program asked for with listen(2), and never more than \
            net.core.somaxconn. When it is full, the kernel drops the first packet of new connections, and the last one of \
            those that are half made: the client sends it again after 1, 3 and 7 seconds, which users see as a page that \
            hangs. The kernel gives no drop event for this, only counters.",
    must: &["TcpExt ListenOverflows grows"],
    should: &[
        "a listening socket holds more than it may (`ss -ltn`: Recv-Q above Send-Q), or its own count of drops grew",
    ],
    must_not: &["the program has no file descriptors left: then that is the cause"],
    lookalikes: &[
        ("file-limit", "the program tries to accept and may not open another file"),
        (
            "syn-backlog-full",
            "ListenDrops grows without ListenOverflows: connections that are not complete yet fill the queue",
        ),
        ("conntrack-full", "conntrack's `drop` grows, and no listening socket is at its limit"),
    ],
    yields_to: &["file-limit"],
    remedy: "A full queue says that the program is too slow, or stuck: find out why first. A longer queue helps only against \
             bursts, and needs both the program's backlog and net.core.somaxconn raised, and the program restarted.",
    sources: &[
        "net/ipv4/tcp_input.c: tcp_conn_request; net/ipv4/tcp_ipv4.c: tcp_v4_syn_recv_sock; include/net/sock.h: sk_acceptq_is_full",
        "listen(2)",
    ],
    recipes,
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

/// The kernel refuses when more wait than the limit.
pub(super) fn is_over(listener: &Listener) -> bool {
    listener.queued > listener.limit
}

/// Listening sockets that refused, the worst first. If none of them says so (it may be closed by now), those that are full.
pub(super) fn refusing(namespace: &Namespace) -> Vec<&Listener> {
    let listeners = namespace.sockets.iter().flat_map(|s| &s.listeners);
    let mut found: Vec<&Listener> = listeners.filter(|l| is_over(l) || l.drops.change() > 0).collect();
    order::by_key(&mut found, |l| std::cmp::Reverse((is_over(l), l.drops.change())));
    found
}

/// `0.0.0.0:80 of nginx (pid 7)`.
pub(super) fn named(listener: &Listener) -> String {
    match &listener.process {
        Some(process) => format!("{} of {process}", listener.local),
        None => listener.local.to_string(),
    }
}

/// Claims the losses by overflows: from drop events if this kernel has them, else from the counter.
pub(super) fn claims(view: &EvidenceView<'_>, namespace: &Namespace, overflows: u64) -> Vec<Claim> {
    let taken = view.take(namespace, |d| d.reason == "TCP_LISTEN_OVERFLOW");
    let mut claims = taken.claims;
    if overflows > taken.packets {
        claims.push(view.counted(namespace, "tcpext.ListenOverflows", overflows - taken.packets));
    }
    claims
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let overflows = namespace.grew("tcpext.ListenOverflows");
    if overflows == 0 {
        return None;
    }
    let full = refusing(namespace);
    let mut finding = view.finding(CAUSE.id, namespace, overflows);
    finding.claims = claims(view, namespace, overflows);
    finding.missing = view.missing(namespace, &[EvidenceSource::Sockets]);
    finding.grew(namespace, "tcpext.ListenOverflows", "packets of new connections refused");
    finding.summary =
        format!("{overflows} times a new connection was refused because its program does not accept.");
    if let Some(worst) = full.first() {
        finding.object = named(worst);
        finding.summary = format!(
            "{} does not accept its connections: {} wait where {} may, and {overflows} were refused.",
            finding.object, worst.queued, worst.limit
        );
        finding.fixes = fixes(namespace, worst);
    }
    for listener in full.iter().take(5) {
        let refused = listener.drops.change();
        let text =
            format!("{}: {} wait of {}, {refused} refused", named(listener), listener.queued, listener.limit);
        finding.seen(EvidenceSource::Sockets, text);
    }
    if full.iter().any(|l| is_over(l)) {
        finding.confidence = Confidence::High;
        finding.not.push("not the SYN backlog: it is complete connections that wait".into());
    }
    Some(finding)
}

fn fixes(namespace: &Namespace, listener: &Listener) -> Vec<Fix> {
    let port = listener.local.port();
    let mut fixes = vec![Fix::look(
        "see what the program is waiting for, and how long its queue is",
        [sh!("ss -ltnp 'sport = :{}'", port), sh!("top -H -p {}", pid(listener.process.as_ref()))],
    )];
    let somaxconn = namespace.setting("net.core.somaxconn").unwrap_or(4096);
    let proposed = (u64::from(listener.limit) * 8).clamp(1024, 65_535);
    if u64::from(listener.limit) >= somaxconn && proposed > somaxconn {
        let why = format!("{} held {} connections and refused more", listener.local, listener.queued);
        fixes.push(Fix::set(
            "let more connections wait (the program must be started again to ask for more)",
            "clients wait longer before they see that the program is stuck; some 2.5 KB for each that waits",
            vec![Setting::new("net.core.somaxconn", somaxconn, proposed, why)],
        ));
    } else {
        fixes.push(Fix::new(
            format!("the program itself asks for no more than {}: raise its backlog", listener.limit),
            "clients wait longer before they see that the program is stuck",
            [sh!("# nginx: listen {} backlog={};  systemd socket: Backlog={}", port, proposed, proposed)],
            [],
        ));
    }
    fixes
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        at: LabHost::Responder,
        traffic: vec![
            Traffic::TcpServer { port: 7080, backlog: 16, mode: TcpMode::NeverAccept },
            Traffic::Connects { to: "198.19.0.2:7080".into(), rate: 200, bytes: 100, hold: false },
        ],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{grew, host, listener, seen};
    use super::*;
    use crate::diagnosis::diagnose;
    use crate::evidence::FileLimit;
    use crate::finding::Severity;

    fn full() -> Namespace {
        let mut host = host(&[("tcpext.ListenOverflows", 500), ("tcpext.ListenDrops", 500)]);
        let sockets = host.sockets.as_mut().unwrap();
        sockets.listeners = vec![
            listener(22),
            Listener { queued: 129, drops: grew(500), ..listener(80) },
            Listener { queued: 128, ..listener(81) },
        ];
        host
    }

    #[test]
    fn the_listener_that_refuses_is_named_with_its_process() {
        let diagnosis = diagnose(&seen(full(), Vec::new()));
        let found = &diagnosis.findings[0];
        assert_eq!((found.cause.as_str(), found.object.as_str()), (CAUSE.id, "0.0.0.0:80 of web (pid 7)"));
        assert_eq!((found.severity, found.confidence), (Severity::Critical, Confidence::High));
        assert_eq!((found.explains_packets, found.explains_ratio), (500, 1.0));
        // The program asked for 128 where 4096 may be: its own backlog is the limit.
        assert!(found.fixes[1].tune.is_empty());
    }

    #[test]
    fn the_settings_limit_is_named_where_it_is_the_one_that_was_reached() {
        let mut host = full();
        host.settings.insert("net.core.somaxconn".into(), "128".into());
        let found = &(CAUSE.examine)(&EvidenceView::of(&seen(host, Vec::new())))[0];
        let setting = &found.fixes[1].tune[0];
        assert_eq!((setting.name.as_str(), setting.now.as_str()), ("net.core.somaxconn", "128"));
        assert_eq!(found.fixes[1].commands, ["sysctl -w net.core.somaxconn=1024"]);
        assert_eq!(found.fixes[1].undo, ["sysctl -w net.core.somaxconn=128"]);
    }

    #[test]
    fn a_queue_that_is_just_full_has_refused_nobody() {
        let mut host = full();
        host.counters.clear();
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&seen(host, Vec::new()))), []);
    }

    #[test]
    fn a_program_without_files_left_is_another_cause() {
        let mut host = full();
        let limit = FileLimit { process: "web".into(), pid: 7, open: 1024, limit: 1024 };
        host.sockets.as_mut().unwrap().near_file_limit.push(limit);
        let diagnosis = diagnose(&seen(host, Vec::new()));
        let causes: Vec<_> = diagnosis.findings.iter().map(|f| f.cause.as_str()).collect();
        assert_eq!(causes, ["file-limit"]);
    }
}
