//! The receiver holds the sender back.

use super::fixes::pid;
use super::flows::{limits, named, rate_mbps, share, worth};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, TcpFlow};
use crate::finding::{Confidence, Finding, Fix, Setting, Severity};
use crate::recipe::{LabHost, Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "receive-window-limited",
    title: "the receiver holds the sender back",
    about: "A sender may have no more data in flight than the receiver has room for, which the receiver announces in every \
            segment (the window). Two things make it small: a program that does not read, so that its buffer fills and the \
            window closes; and a buffer too small for the path, since one window a round trip is all that can be sent (64 \
            KB over 20 ms are 26 Mbit/s). No packet is lost and no counter of loss moves; it is only slow, or stands \
            still.",
    must: &[
        "at the receiver: bytes wait unread while the window is closed, or nearly so, and the sender keeps asking",
        "or at the sender: most of its time with something to send went to waiting for the window (`rwnd_limited` of `ss -ti`), \
         with a window that one round trip uses up",
    ],
    should: &["TcpExt TCPToZeroWindowAdv grows at the receiver, or segments are dropped as TCP_ZEROWINDOW"],
    must_not: &[
        "window scaling was not agreed on: then that limits the window to 64 KB",
        "TCP's memory is under pressure anywhere on the machine: then that keeps windows small",
    ],
    lookalikes: &[
        ("window-scaling-stripped", "the window cannot be larger than 65,535 bytes"),
        ("send-buffer-limited", "the sender's own buffer is used up"),
        ("tcp-memory", "all sockets of the machine are held back"),
    ],
    yields_to: &["window-scaling-stripped", "tcp-memory", "cgroup-memory"],
    remedy: "If bytes wait unread, look at the program: it is slow, stuck, or waits for another program. If they do not, \
             the buffer is too small for the path: raise the third number of net.ipv4.tcp_rmem at the receiver, and let \
             the program not set SO_RCVBUF itself, which switches automatic growth off.",
    sources: &[
        "net/ipv4/tcp_output.c: __tcp_select_window, tcp_chrono_start; net/ipv4/tcp_input.c: tcp_rcv_space_adjust",
        "RFC 9293 section 3.8.6, RFC 7323",
    ],
    recipes,
    ..Cause::of(Group::Sockets, examine)
};

/// A program that would need longer than this for what waits does not keep up, s.
const SLOW_READER_S: f64 = 0.5;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    // tcp_mem is one for all namespaces, so the receiver that is short of it may be in another one than the sender.
    if !(super::tcp_memory::CAUSE.examine)(view).is_empty() {
        return Vec::new();
    }
    view.namespaces().flat_map(|n| [unread(view, n), window(view, n)]).flatten().collect()
}

/// Connections of which the program does not read what came while the other side would send more.
fn unread(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let window_s = view.evidence.window_s.max(0.1);
    let is_stuck = |f: &&TcpFlow| {
        // The queue counts bytes, the limit what they take in memory, which is up to twice that and more.
        let full = f.receive_queue > 0 && u64::from(f.receive_queue) * 4 >= u64::from(f.receive_limit);
        let closed = u64::from(f.receive_window) * 4 <= u64::from(f.receive_queue);
        let read_per_s = f.bytes_received.change() as f64 / window_s;
        let slow = f64::from(f.receive_queue) > SLOW_READER_S * read_per_s;
        // A window that was closed is asked for again and again (RFC 9293 section 3.8.6.1).
        full && closed && slow && f.segments_in.change() > 0
    };
    let flows: Vec<&TcpFlow> = namespace.sockets.iter().flat_map(|s| &s.tcp).filter(is_stuck).collect();
    let worst = flows.iter().max_by_key(|f| f.receive_queue)?;
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Warning;
    finding.impact = share(namespace, flows.len());
    finding.object = named(worst);
    finding.summary = format!(
        "{} does not read: {} bytes wait, the window is at {}, and the sender waits.",
        finding.object, worst.receive_queue, worst.receive_window
    );
    for flow in flows.iter().take(5) {
        let text = format!(
            "{}: {} bytes unread of a buffer of {}, {} received in the window",
            named(flow),
            flow.receive_queue,
            flow.receive_limit,
            flow.bytes_received.change()
        );
        finding.seen(EvidenceSource::Sockets, text);
    }
    let zero = view.take(namespace, |d| matches!(d.reason.as_str(), "TCP_ZEROWINDOW" | "TCP_OVERWINDOW"));
    if !zero.is_empty() {
        finding.claims = zero.claims;
        finding.seen(
            EvidenceSource::Drops,
            format!("{} segments came while the window was closed", zero.packets),
        );
    }
    let counters = ["tcpext.TCPToZeroWindowAdv", "tcpext.TCPZeroWindowDrop"];
    if counters.iter().any(|name| namespace.grew(name) > 0) {
        finding.confidence = Confidence::High;
    }
    finding.grew_by(namespace, &counters);
    finding.not.push("not the network: the bytes have arrived".into());
    let filter = sh!("ss -tmnp 'src {} and sport = :{}'", worst.local.ip(), worst.local.port());
    finding.fixes.push(Fix::look(
        "see what the program is waiting for",
        [filter, sh!("top -H -p {}", pid(worst.process.as_ref()))],
    ));
    Some(finding)
}

/// Connections that send as much as the other side's window lets them in a round trip, and could send more.
fn window(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let is_held = |f: &&TcpFlow| {
        let waited = f.window_limited_us.change() as f64;
        f.window_scaling
            && waited >= 0.5 * f.busy_us.change() as f64
            && worth(view, f)
            && limits(f, f.send_window)
    };
    let flows: Vec<&TcpFlow> = namespace.sockets.iter().flat_map(|s| &s.tcp).filter(is_held).collect();
    let worst = flows.iter().max_by_key(|f| f.window_limited_us.change())?;
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Warning;
    finding.impact = share(namespace, flows.len());
    finding.confidence = Confidence::High;
    finding.object = named(worst);
    let rate = rate_mbps(view, worst.bytes_acked);
    let rtt_ms = f64::from(worst.rtt_us) / 1e3;
    finding.summary = format!(
        "{} lets {} send no more than {} bytes in a round trip of {rtt_ms:.1} ms: {rate:.1} Mbit/s.",
        worst.remote, finding.object, worst.send_window
    );
    for flow in flows.iter().take(5) {
        let text = format!(
            "{} to {}: {:.0} % of its busy time waiting for the window of {} bytes",
            named(flow),
            flow.remote,
            100.0 * flow.window_limited_us.change() as f64 / flow.busy_us.change().max(1) as f64,
            flow.send_window
        );
        finding.seen(EvidenceSource::Sockets, text);
    }
    finding.not.push("not congestion and not loss: it waited for the window".into());
    let rmem = namespace.settings.get("net.ipv4.tcp_rmem");
    let now = rmem.map_or("4096 131072 6291456", String::as_str);
    let why = format!("{} waited for a window of {} bytes", finding.object, worst.send_window);
    let larger = Setting::new("net.ipv4.tcp_rmem", now, "4096 131072 33554432", why);
    let risk = "memory of connections that fill it";
    // It belongs to another host.
    finding.fixes.push(Fix::set("at the receiver: let buffers grow larger", risk, vec![larger]).not_tuned());
    Some(finding)
}

fn recipes() -> Vec<Recipe> {
    let bulk = |port, mode| Traffic::bulk(port, mode, 2, None);
    vec![
        Recipe { at: LabHost::Responder, traffic: bulk(7088, TcpMode::Deaf), ..Recipe::default() },
        Recipe {
            name: "small-buffer",
            at: LabHost::Initiator,
            setup: vec![Step::responder("sysctl -qw net.ipv4.tcp_rmem='4096 8192 8192'")],
            traffic: bulk(7089, TcpMode::Sink),
            ..Recipe::default()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{flow, grew, host, seen};
    use super::*;

    fn found(flow: TcpFlow) -> Vec<Finding> {
        let mut host = host(&[("tcpext.TCPToZeroWindowAdv", 3)]);
        let sockets = host.sockets.as_mut().unwrap();
        sockets.totals.active = 1;
        sockets.tcp = vec![flow];
        examine(&EvidenceView::of(&seen(host, Vec::new())))
    }

    fn stuck() -> TcpFlow {
        TcpFlow {
            receive_queue: 3_000_000,
            receive_limit: 6_000_000,
            receive_window: 0,
            bytes_received: grew(0),
            segments_in: grew(4),
            ..flow()
        }
    }

    #[test]
    fn a_program_that_does_not_read_is_named() {
        let found = &found(stuck())[0];
        assert_eq!((found.severity, found.confidence), (Severity::Warning, Confidence::High));
        assert!(found.object.contains("web (pid 7)") && found.impact > 0.9);
    }

    #[test]
    fn a_reader_that_keeps_up_or_a_sender_that_wants_nothing_is_well() {
        let busy = TcpFlow { bytes_received: grew(2_000_000_000), ..stuck() };
        assert_eq!(found(busy), []);
        assert_eq!(found(TcpFlow { segments_in: grew(0), ..stuck() }), []);
        assert_eq!(found(TcpFlow { receive_queue: 1000, ..stuck() }), []);
        assert_eq!(found(flow()), []);
    }

    #[test]
    fn a_window_that_a_round_trip_uses_up_is_told_by_the_sender() {
        let held = TcpFlow { window_limited_us: grew(8_000_000), send_window: 200_000, ..flow() };
        assert!(found(held.clone())[0].summary.contains("198.19.0.2:443 lets"));
        // In a lab or a data centre the receiver's core is the limit, and the window shows that.
        assert_eq!(
            found(TcpFlow { rtt_us: 150, min_rtt_us: 50, send_window: 3_000_000, ..held.clone() }),
            []
        );
        // A queue on the way makes the round trip long; a larger window would only fill it.
        assert_eq!(found(TcpFlow { rtt_us: 200_000, ..held.clone() }), []);
        assert_eq!(found(TcpFlow { window_scaling: false, ..held }), []);
    }
}
