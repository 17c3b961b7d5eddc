//! There are no local ports left towards one destination.

use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, PortsInUse};
use crate::finding::{Confidence, Finding, Fix, Setting, Severity};
use crate::recipe::{LabHost, Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "ephemeral-ports-exhausted",
    title: "no local ports left towards a destination",
    about: "Every connection from one address to one destination (address and port) takes a local port of its own, out of \
            net.ipv4.ip_local_port_range: 28,232 with the usual range. Closed connections keep theirs for a minute \
            (TIME_WAIT) if this side closed first. When all are taken, connect(2) fails at once with EADDRNOTAVAIL, \
            `Cannot assign requested address`: no packet leaves, no counter moves, and only connections to this \
            destination fail. Proxies and load generators in front of one backend meet it, at 470 new connections a second \
            already.",
    must: &["nearly as many ports are in use towards one destination as there are"],
    should: &["the program's log says EADDRNOTAVAIL or `Cannot assign requested address`"],
    must_not: &["connections to other destinations fail as well"],
    lookalikes: &[
        ("snat-ports-exhausted", "the ports of a NAT gateway; on the host itself plenty are free"),
        ("time-wait-full", "the table of TIME_WAIT is full, which forgets connections and refuses none"),
    ],
    remedy: "Keep connections open and reuse them: this is the best fix. Otherwise use a wider range, a second address \
             here or there, or net.ipv4.tcp_tw_reuse=1, which lets a new connection take the port of one in TIME_WAIT \
             after a second (with timestamps, RFC 6191).",
    sources: &[
        "net/ipv4/inet_hashtables.c: __inet_hash_connect; net/ipv4/tcp_ipv4.c: tcp_twsk_unique",
        "RFC 6056, RFC 6191",
    ],
    recipes,
    ..Cause::of(Group::Sockets, examine)
};

/// Share of the ports in use from which on some connections fail: the kernel looks for a free one in an order of its own, and
/// between two looks at the sockets some are closed.
const USED_UP: f64 = 0.98;
/// Share from which on it is near.
const NEAR: f64 = 0.85;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let each = |namespace: &'_ Namespace| {
        let ports = namespace.sockets.iter().flat_map(|s| &s.ports);
        ports.filter_map(|p| towards(view, namespace, p)).collect::<Vec<_>>()
    };
    view.namespaces().flat_map(each).collect()
}

fn towards(view: &EvidenceView<'_>, namespace: &Namespace, ports: &PortsInUse) -> Option<Finding> {
    // 1: TIME_WAIT may be taken over, 2: on loopback only (Documentation/networking/ip-sysctl.rst, tcp_tw_reuse).
    let reuse = match namespace.setting("net.ipv4.tcp_tw_reuse") {
        Some(1) => true,
        Some(2) => ports.remote.ip().is_loopback(),
        _ => false,
    } && namespace.setting("net.ipv4.tcp_timestamps") != Some(0);
    let held = if reuse { ports.used - ports.time_wait.min(ports.used) } else { ports.used };
    let share = held as f64 / ports.available.max(1) as f64;
    if share < NEAR {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    let gone = share >= USED_UP;
    finding.severity = if gone { Severity::Critical } else { Severity::Warning };
    finding.confidence = if gone { Confidence::High } else { Confidence::Medium };
    // All new connections there fail; what share of all that is, no counter says.
    finding.impact = if gone { 1.0 } else { 0.0 };
    finding.object = format!("{} to {}", ports.local, ports.remote);
    finding.summary = if gone {
        format!(
            "{} of {} local ports are taken from {}: connect() fails.",
            held, ports.available, finding.object
        )
    } else {
        format!("{} of {} local ports are taken from {}.", held, ports.available, finding.object)
    };
    let text = format!(
        "{} ports in use, {} of them in TIME_WAIT, {} there are",
        ports.used, ports.time_wait, ports.available
    );
    finding.seen(EvidenceSource::Sockets, text);
    for name in ["net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_tw_reuse"]
    {
        if let Some(value) = namespace.settings.get(name).filter(|v| !v.is_empty()) {
            finding.seen(EvidenceSource::Settings, format!("{name} = {value}"));
        }
    }
    finding.not.push("not a lost packet: none is sent, so no counter and no drop shows it".into());
    finding.fixes = fixes(namespace, ports);
    Some(finding)
}

fn fixes(namespace: &Namespace, ports: &PortsInUse) -> Vec<Fix> {
    let mut fixes = Vec::new();
    let why = format!("{} of {} ports were taken towards {}", ports.used, ports.available, ports.remote);
    if let Some(now) = namespace.settings.get("net.ipv4.ip_local_port_range")
        && ports.available < 50_000
    {
        fixes.push(Fix::set(
            "use more ports",
            "a server that wants a port from the range may find it taken: list such ports in ip_local_reserved_ports",
            vec![Setting::new("net.ipv4.ip_local_port_range", now.clone(), "10240 65535", why.clone())],
        ));
    }
    if ports.time_wait * 2 > ports.used
        && let Some(now) = namespace.setting("net.ipv4.tcp_tw_reuse").filter(|now| *now != 1)
    {
        fixes.push(Fix::set(
            "let new connections take the ports of closed ones",
            "needs timestamps on both sides; a NAT on the way that keeps its own states may refuse",
            vec![Setting::new("net.ipv4.tcp_tw_reuse", now, "1", why)],
        ));
    }
    let filter = sh!("ss -tanp 'dst {} and dport = :{}'", ports.remote.ip(), ports.remote.port());
    fixes.push(Fix::look("see who holds them", [filter]));
    fixes
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        at: LabHost::Initiator,
        setup: vec![Step::initiator("sysctl -qw net.ipv4.ip_local_port_range='50000 50099'")],
        traffic: vec![
            Traffic::TcpServer { port: 7086, backlog: 512, mode: TcpMode::Echo },
            Traffic::Connects { to: "198.19.0.2:7086".into(), rate: 200, bytes: 64, hold: true },
        ],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{host, seen};
    use super::*;

    fn found(used: u64, time_wait: u64, reuse: &str) -> Vec<Finding> {
        let mut host = host(&[]);
        host.settings.insert("net.ipv4.tcp_tw_reuse".into(), reuse.into());
        host.settings.insert("net.ipv4.ip_local_port_range".into(), "32768\t60999".into());
        host.sockets.as_mut().unwrap().ports = vec![PortsInUse {
            local: "198.18.0.1".parse().unwrap(),
            remote: "198.19.0.2:443".parse().unwrap(),
            used,
            available: 28_232,
            time_wait,
        }];
        examine(&EvidenceView::of(&seen(host, Vec::new())))
    }

    #[test]
    fn a_range_that_is_used_up_is_critical() {
        let found = &found(28_232, 28_000, "2")[0];
        assert_eq!((found.severity, found.confidence), (Severity::Critical, Confidence::High));
        assert_eq!(found.object, "198.18.0.1 to 198.19.0.2:443");
        let tuned: Vec<_> = found.fixes.iter().flat_map(|f| &f.tune).map(|s| s.name.as_str()).collect();
        assert_eq!(tuned, ["net.ipv4.ip_local_port_range", "net.ipv4.tcp_tw_reuse"]);
        assert_eq!(found.fixes[0].undo, ["sysctl -w net.ipv4.ip_local_port_range='32768 60999'"]);
    }

    #[test]
    fn ports_that_may_be_taken_over_are_free() {
        assert_eq!(found(28_232, 28_000, "1"), []);
        assert_eq!(found(26_000, 0, "1")[0].severity, Severity::Warning);
    }

    #[test]
    fn a_busy_destination_is_not() {
        assert_eq!(found(20_000, 0, "2"), []);
    }
}
