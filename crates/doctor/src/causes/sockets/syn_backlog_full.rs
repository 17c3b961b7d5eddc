//! Too many connections are half made.

use weir_text::order;

use super::accept_queue_full::named;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Listener, Namespace};
use crate::finding::{Confidence, Finding, Fix, Setting, Severity};
use crate::recipe::{LabHost, Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "syn-backlog-full",
    title: "SYN backlog full",
    about: "The listening socket keeps a connection as a request from its first packet (SYN) to its third one. It keeps as \
            many requests as the accept queue is long, and without SYN cookies no more than three quarters of \
            net.ipv4.tcp_max_syn_backlog. A SYN flood fills that, and so do clients that the answer does not reach. With \
            cookies the kernel then answers without keeping anything: connections still succeed, though some of their \
            options are lost. Without cookies it drops new SYNs, and gives no drop event for it.",
    must: &[
        "TcpExt ListenDrops grows by more than ListenOverflows, or TCPReqQFullDrop or TCPReqQFullDoCookies grows",
    ],
    should: &["a listening socket with many connections that are half made (`ss -tn state syn-recv`)"],
    must_not: &[
        "ListenOverflows grows as much as ListenDrops: then complete connections fill the accept queue",
    ],
    lookalikes: &[
        ("accept-queue-full", "complete connections wait, and ListenOverflows grows"),
        (
            "masquerade-missing",
            "the SYN-ACK goes out and does not reach the client; the requests are few and old",
        ),
    ],
    remedy: "Switch SYN cookies on: they are made for this. If the half-made connections are no attack, allow more of \
             them, and find out why the third packet does not come.",
    sources: &[
        "net/ipv4/tcp_input.c: tcp_conn_request, tcp_syn_flood_action; include/net/inet_connection_sock.h: inet_csk_reqsk_queue_is_full",
        "RFC 4987",
    ],
    recipes,
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

/// Cookies sent, per second, from which on it is more than a burst.
const MANY_COOKIES: f64 = 10.0;

/// No more half-made connections are proposed: beyond that only cookies help.
const MOST_REQUESTS: u64 = 65_536;

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let grew = |name: &str| namespace.grew(name);
    let refused = grew("tcpext.ListenDrops").saturating_sub(grew("tcpext.ListenOverflows"));
    let cookies = grew("tcpext.TCPReqQFullDoCookies");
    let mut crowded: Vec<&Listener> =
        namespace.sockets.iter().flat_map(|s| &s.listeners).filter(|l| l.half_open > 0).collect();
    order::by_key(&mut crowded, |l| std::cmp::Reverse(l.half_open));
    // A handful of refusals without a half-made connection in sight has other reasons (no route back, no memory).
    let known = grew("tcpext.TCPReqQFullDrop") > 0 || !crowded.is_empty();
    if cookies == 0 && (refused == 0 || !known) {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, refused);
    if refused > 0 {
        finding.claims = vec![view.counted(namespace, "tcpext.ListenDrops", refused)];
    } else if cookies as f64 >= MANY_COOKIES * view.evidence.window_s {
        finding.severity = Severity::Warning;
    }
    finding.missing = view.missing(namespace, &[EvidenceSource::Sockets]);
    finding.object = crowded.first().map(|l| named(l)).unwrap_or_default();
    finding.summary = if refused > 0 {
        format!("Too many connections are half made: {refused} new ones were dropped.")
    } else {
        format!(
            "Too many connections are half made: {cookies} were answered with SYN cookies, none was lost."
        )
    };
    describe(namespace, &crowded, &mut finding);
    finding.confidence = if crowded.is_empty() { Confidence::Medium } else { Confidence::High };
    finding.fixes = fixes(namespace, crowded.first().copied());
    Some(finding)
}

fn describe(namespace: &Namespace, crowded: &[&Listener], finding: &mut Finding) {
    for (name, words) in [
        ("tcpext.ListenDrops", "packets of new connections dropped"),
        ("tcpext.ListenOverflows", "of these because complete connections waited"),
        ("tcpext.TCPReqQFullDrop", "dropped with the queue of requests full"),
        ("tcpext.TCPReqQFullDoCookies", "answered with SYN cookies"),
        ("tcpext.SyncookiesFailed", "cookies that came back wrong or too late"),
    ] {
        finding.grew(namespace, name, words);
    }
    for listener in crowded.iter().take(3) {
        let text = format!(
            "{}: {} half made, {} complete wait of {}",
            named(listener),
            listener.half_open,
            listener.queued,
            listener.limit
        );
        finding.seen(EvidenceSource::Sockets, text);
    }
    for name in ["net.ipv4.tcp_syncookies", "net.ipv4.tcp_max_syn_backlog"] {
        if let Some(value) = namespace.settings.get(name) {
            finding.seen(EvidenceSource::Settings, format!("{name} = {value}"));
        }
    }
}

fn fixes(namespace: &Namespace, listener: Option<&Listener>) -> Vec<Fix> {
    let mut fixes = Vec::new();
    if namespace.setting("net.ipv4.tcp_syncookies") == Some(0) {
        let why = "new connections were dropped in the window";
        fixes.push(Fix::set(
            "answer with SYN cookies when the backlog is full",
            "connections made by cookies without timestamps have no window scaling",
            vec![Setting::new("net.ipv4.tcp_syncookies", "0", "1", why)],
        ));
    }
    if let Some(now) = namespace.setting("net.ipv4.tcp_max_syn_backlog").filter(|now| *now < MOST_REQUESTS) {
        fixes.push(Fix::set(
            "keep more half-made connections (the program's own backlog limits them, too)",
            "some 300 bytes for each",
            vec![Setting::new(
                "net.ipv4.tcp_max_syn_backlog",
                now,
                (now * 8).clamp(1024, MOST_REQUESTS).to_string(),
                "the backlog was full in the window",
            )],
        ));
    }
    if let Some(listener) = listener {
        let port = listener.local.port();
        fixes.push(Fix::look(
            "see whose connections are half made: one network is an attack or a broken path back",
            [sh!("ss -tn state syn-recv 'sport = :{}'", port)],
        ));
    }
    fixes
}

/// SYNs from an address that never answers, each from another port.
fn flood(own: [u8; 6], peer: [u8; 6]) -> Vec<Vec<u8>> {
    (0..2000)
        .map(|n| {
            let from = ([198, 18, 0, 77].into(), 10_000 + n);
            crate::recipe::frames::syn(own, peer, from, ([198, 19, 0, 2].into(), 7082))
        })
        .collect()
}

fn recipes() -> Vec<Recipe> {
    // The answers go to an address that no host has.
    let unanswered = "ip neigh replace 198.18.0.77 lladdr 02:00:00:00:00:99 nud permanent dev inside";
    let setup = |cookies: u8| {
        vec![
            Step::gateway(unanswered),
            Step::responder(format!(
                "sysctl -qw net.ipv4.tcp_syncookies={cookies} net.ipv4.tcp_max_syn_backlog=64"
            )),
        ]
    };
    let traffic = vec![
        Traffic::TcpServer { port: 7082, backlog: 1024, mode: TcpMode::Echo },
        Traffic::Frames { from: LabHost::Initiator, rate: 500, frames: flood },
        Traffic::Connects { to: "198.19.0.2:7082".into(), rate: 50, bytes: 100, hold: false },
    ];
    let mut short = traffic.clone();
    short[0] = Traffic::TcpServer { port: 7082, backlog: 32, mode: TcpMode::Echo };
    vec![
        Recipe { at: LabHost::Responder, setup: setup(0), traffic, ..Recipe::default() },
        Recipe {
            name: "cookies",
            at: LabHost::Responder,
            setup: setup(1),
            traffic: short,
            ..Recipe::default()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{host, listener, seen};
    use super::*;

    fn found(counters: &[(&str, u64)], half_open: u32) -> Vec<Finding> {
        let mut host = host(counters);
        host.settings.insert("net.ipv4.tcp_syncookies".into(), "0".into());
        host.settings.insert("net.ipv4.tcp_max_syn_backlog".into(), "512".into());
        host.sockets.as_mut().unwrap().listeners = vec![listener(22), Listener { half_open, ..listener(80) }];
        (CAUSE.examine)(&EvidenceView::of(&seen(host, Vec::new())))
    }

    #[test]
    fn drops_without_overflows_are_the_backlog() {
        let found = &found(&[("tcpext.ListenDrops", 700), ("tcpext.ListenOverflows", 100)], 384)[0];
        assert_eq!(
            (found.object.as_str(), found.confidence),
            ("0.0.0.0:80 of web (pid 7)", Confidence::High)
        );
        assert_eq!(found.severity, Severity::Critical);
        assert!(matches!(&found.claims[..], [crate::finding::Claim::Counter { packets: 600, .. }]));
        let settings: Vec<_> = found
            .fixes
            .iter()
            .flat_map(|f| &f.tune)
            .map(|s| (s.name.as_str(), s.proposed.as_str()))
            .collect();
        assert_eq!(settings, [("net.ipv4.tcp_syncookies", "1"), ("net.ipv4.tcp_max_syn_backlog", "4096")]);
    }

    #[test]
    fn cookies_lose_nothing_and_are_a_warning_only_when_many() {
        let burst = &found(&[("tcpext.TCPReqQFullDoCookies", 50)], 128)[0];
        assert_eq!((burst.severity, burst.claims.len()), (Severity::Note, 0));
        assert_eq!(found(&[("tcpext.TCPReqQFullDoCookies", 5000)], 128)[0].severity, Severity::Warning);
    }

    #[test]
    fn overflows_of_complete_connections_are_not() {
        assert_eq!(found(&[("tcpext.ListenDrops", 700), ("tcpext.ListenOverflows", 700)], 3), []);
        assert_eq!(found(&[("tcpext.ListenDrops", 2)], 0), []);
    }
}
