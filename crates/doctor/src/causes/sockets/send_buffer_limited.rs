//! The sender's own buffer holds it back.

use super::flows::{limits, named, rate_mbps, share, worth};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, TcpFlow};
use crate::finding::{Confidence, Finding, Fix, Setting, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "send-buffer-limited",
    title: "the sender's own buffer is too small",
    about: "Sent data stays in the send buffer until it is acknowledged, so a connection carries at most one buffer in a \
            round trip. Linux lets the buffer grow by itself up to the third number of net.ipv4.tcp_wmem; a program that \
            sets SO_SNDBUF switches that off. Nothing is lost; the transfer is only slow, and slower on longer paths.",
    must: &[
        "most of its time with something to send went to waiting for room in its buffer (`sndbuf_limited` of `ss -ti`)",
        "one round trip uses up the buffer, on a path whose delay comes from no queue",
    ],
    should: &["the buffer is at the third number of net.ipv4.tcp_wmem"],
    must_not: &["the other side's window is used up"],
    lookalikes: &[
        ("receive-window-limited", "rwnd_limited instead of sndbuf_limited"),
        (
            "bufferbloat",
            "a queue on the way makes the round trip long: a larger buffer would only make the queue longer",
        ),
    ],
    yields_to: &["tcp-memory", "cgroup-memory"],
    remedy: "Raise the third number of net.ipv4.tcp_wmem, and let the program not set SO_SNDBUF.",
    sources: &[
        "net/ipv4/tcp.c: tcp_sendmsg_locked; net/ipv4/tcp_input.c: tcp_sndbuf_expand; net/ipv4/tcp_output.c: tcp_chrono_start",
    ],
    not_injected: Some(
        "it needs a path with a delay of its own: between namespaces an acknowledgement is back before the sender's next write, \
         and even 4 KB of buffer limit nothing",
    ),
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

/// No larger buffer is proposed, bytes: 2.7 Gbit/s over 100 ms.
const MOST: u32 = 32 << 20;

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let is_held = |f: &&TcpFlow| {
        let waited = f.buffer_limited_us.change() as f64;
        waited >= 0.4 * f.busy_us.change() as f64 && worth(view, f) && limits(f, f.send_limit)
    };
    let flows: Vec<&TcpFlow> = namespace.sockets.iter().flat_map(|s| &s.tcp).filter(is_held).collect();
    let worst = flows.iter().max_by_key(|f| f.buffer_limited_us.change())?;
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Warning;
    finding.impact = share(namespace, flows.len());
    finding.object = named(worst);
    finding.summary = format!(
        "{} waits for its own send buffer of {} bytes: {:.1} Mbit/s over a round trip of {:.1} ms.",
        finding.object,
        worst.send_limit,
        rate_mbps(view, worst.bytes_acked),
        f64::from(worst.rtt_us) / 1e3
    );
    for flow in flows.iter().take(5) {
        let text = format!(
            "{} to {}: {:.0} % of its busy time waiting for room in {} bytes",
            named(flow),
            flow.remote,
            100.0 * flow.buffer_limited_us.change() as f64 / flow.busy_us.change().max(1) as f64,
            flow.send_limit
        );
        finding.seen(EvidenceSource::Sockets, text);
    }
    finding.not.push("not the other side's window, and not loss".into());
    let most = namespace
        .settings
        .get("net.ipv4.tcp_wmem")
        .and_then(|v| v.split_ascii_whitespace().last()?.parse().ok());
    if let Some(most) = most {
        finding.seen(EvidenceSource::Settings, format!("net.ipv4.tcp_wmem allows {most} bytes"));
    }
    // One byte of the setting is one of the buffer; at the setting's end it can grow no more.
    let at_end = most.is_some_and(|most: u64| u64::from(worst.send_limit) >= most);
    finding.confidence = if at_end { Confidence::High } else { Confidence::Medium };
    finding.fixes = fixes(namespace, worst, at_end);
    Some(finding)
}

fn fixes(namespace: &Namespace, flow: &TcpFlow, at_end: bool) -> Vec<Fix> {
    let filter = sh!("ss -timnp 'src {} and sport = :{}'", flow.local.ip(), flow.local.port());
    let show = Fix::look(
        "see its buffer (tb) and what it waits for; if the program sets SO_SNDBUF, change it there",
        [filter],
    );
    let Some(now) = namespace.settings.get("net.ipv4.tcp_wmem").filter(|_| at_end && flow.send_limit < MOST)
    else {
        return vec![show];
    };
    let why = format!("{} waited for room in {} bytes", flow.local, flow.send_limit);
    let larger = Fix::set(
        "let send buffers grow larger",
        "memory of connections that fill it",
        vec![Setting::new("net.ipv4.tcp_wmem", now.clone(), format!("4096 16384 {MOST}"), why)],
    );
    vec![larger, show]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{flow, grew, host, seen};
    use super::*;

    fn found(flow: TcpFlow, wmem: &str) -> Vec<Finding> {
        let mut host = host(&[]);
        host.settings.insert("net.ipv4.tcp_wmem".into(), wmem.into());
        host.sockets.as_mut().unwrap().tcp = vec![flow];
        (CAUSE.examine)(&EvidenceView::of(&seen(host, Vec::new())))
    }

    fn held() -> TcpFlow {
        TcpFlow { buffer_limited_us: grew(8_000_000), send_limit: 212_992, ..flow() }
    }

    #[test]
    fn a_buffer_at_its_limit_is_a_setting() {
        let found = &found(held(), "4096\t16384\t212992")[0];
        assert_eq!((found.severity, found.confidence), (Severity::Warning, Confidence::High));
        assert_eq!(found.fixes[0].tune[0].name, "net.ipv4.tcp_wmem");
        // 10 MB in 10 s.
        assert!(found.summary.contains("8.0 Mbit/s over a round trip of 20.0 ms"), "{}", found.summary);
    }

    #[test]
    fn a_buffer_that_the_program_chose_is_the_programs() {
        let found = &found(held(), "4096\t16384\t4194304")[0];
        assert!(found.confidence == Confidence::Medium && found.fixes.iter().all(|f| f.tune.is_empty()));
    }

    #[test]
    fn a_fast_path_and_a_long_queue_are_not() {
        let wmem = "4096\t16384\t212992";
        assert_eq!(found(TcpFlow { rtt_us: 100, min_rtt_us: 40, ..held() }, wmem), []);
        assert_eq!(found(TcpFlow { rtt_us: 300_000, ..held() }, wmem), []);
        assert_eq!(found(flow(), wmem), []);
        // A keystroke now and then needs no buffer.
        assert_eq!(found(TcpFlow { bytes_acked: grew(400), ..held() }, wmem), []);
    }
}
