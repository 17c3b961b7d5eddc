//! More connections are over than may be remembered.

use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix, Setting, Severity};
use crate::recipe::{LabHost, Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "time-wait-full",
    title: "too many connections in TIME_WAIT",
    about: "The side that closes a connection first remembers it for a minute (TIME_WAIT), so that late segments do not \
            reach a new one with the same addresses and ports. Above net.ipv4.tcp_max_tw_buckets the kernel forgets at \
            once: a last segment that comes late, or a FIN that is sent again, is answered with a reset, and the other \
            side may report an error for a connection that was complete. Most of the time it has no effect.",
    must: &["TcpExt TCPTimeWaitOverflow grows"],
    should: &["`TCP: tw` of /proc/net/sockstat is at net.ipv4.tcp_max_tw_buckets"],
    lookalikes: &[(
        "ephemeral-ports-exhausted",
        "the ports towards one destination are used up, by TIME_WAIT among others",
    )],
    remedy: "Let the clients close first, or keep connections open and use them again. The limit itself costs little memory: raise \
             it. Do not shorten TIME_WAIT (RFC 1337).",
    sources: &["net/ipv4/inet_timewait_sock.c: inet_twsk_alloc", "RFC 9293 section 3.6.1, RFC 1337"],
    recipes,
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

/// No more are proposed: 250 MB.
const MOST: u64 = 1 << 20;

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let forgotten = namespace.grew("tcpext.TCPTimeWaitOverflow");
    if forgotten == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    // Resets have many reasons; if they are this few, this cause can do no harm.
    let resets = namespace.grew("tcp.OutRsts");
    finding.severity = if resets * 20 >= forgotten { Severity::Warning } else { Severity::Note };
    finding.summary = format!(
        "{forgotten} connections were forgotten at once when they were closed, because too many are remembered."
    );
    finding.grew(namespace, "tcpext.TCPTimeWaitOverflow", "connections closed without TIME_WAIT");
    let max = namespace.setting("net.ipv4.tcp_max_tw_buckets");
    let now = namespace.gauge("sockstat.TCP.tw");
    if let (Some(max), Some(now)) = (max, now) {
        finding.seen(
            EvidenceSource::Counters,
            format!("{now} connections in TIME_WAIT, tcp_max_tw_buckets = {max}"),
        );
        finding.confidence = if now * 10 >= max * 9 { Confidence::High } else { Confidence::Medium };
    }
    finding.grew(namespace, "tcp.OutRsts", "resets sent");
    if let Some(max) = max.filter(|max| *max < MOST) {
        finding.fixes.push(Fix::set(
            "remember more of them",
            "some 250 bytes for each",
            vec![Setting::new(
                "net.ipv4.tcp_max_tw_buckets",
                max,
                (max * 4).clamp(65_536, MOST).to_string(),
                format!("{forgotten} connections were forgotten in the window"),
            )],
        ));
    }
    finding.fixes.push(Fix::look("see towards whom", [sh!("ss -tn state time-wait")]));
    Some(finding)
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        at: LabHost::Initiator,
        setup: vec![Step::initiator("sysctl -qw net.ipv4.tcp_max_tw_buckets=50")],
        traffic: vec![
            Traffic::TcpServer { port: 7085, backlog: 512, mode: TcpMode::Echo },
            Traffic::Connects { to: "198.19.0.2:7085".into(), rate: 300, bytes: 64, hold: false },
        ],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{host, seen};
    use super::*;

    fn found(counters: &[(&str, u64)]) -> Vec<Finding> {
        let mut host = host(counters);
        host.settings.insert("net.ipv4.tcp_max_tw_buckets".into(), "16384".into());
        host.gauges.insert("sockstat.TCP.tw".into(), 16_384);
        (CAUSE.examine)(&EvidenceView::of(&seen(host, Vec::new())))
    }

    #[test]
    fn it_is_a_note_until_resets_show_that_somebody_is_harmed() {
        let quiet = &found(&[("tcpext.TCPTimeWaitOverflow", 1000), ("tcp.OutRsts", 3)])[0];
        assert_eq!((quiet.severity, quiet.confidence), (Severity::Note, Confidence::High));
        assert_eq!(quiet.fixes[0].commands, ["sysctl -w net.ipv4.tcp_max_tw_buckets=65536"]);
        let harmed = &found(&[("tcpext.TCPTimeWaitOverflow", 1000), ("tcp.OutRsts", 300)])[0];
        assert_eq!(harmed.severity, Severity::Warning);
    }

    #[test]
    fn a_full_table_that_forgot_nobody_is_not() {
        assert_eq!(found(&[("tcp.OutRsts", 300)]), []);
    }
}
