//! Connections without window scaling.

use super::flows::{carried, named, rate_mbps, share_of_bytes};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace, TcpFlow};
use crate::finding::{Confidence, Finding, Fix, Setting, Severity};
use crate::recipe::{LabHost, Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "window-scaling-stripped",
    title: "connections without window scaling",
    about: "The field for the window in TCP's header has 16 bits. For more than 65,535 bytes both sides must say in their SYN that \
            they scale it (RFC 7323), which every system has done for twenty years. A middlebox that removes the option, or a \
            switched off net.ipv4.tcp_window_scaling on either side, limits each connection to 64 KB a round trip: 26 Mbit/s at \
            20 ms, 5 at 100. On the host that strips it nothing is counted; it shows at the two ends only.",
    must: &["connections that carry something without the option agreed on, though this host asks for it"],
    should: &["the sender waits for the window (rwnd_limited), or its rate is 64 KB a round trip"],
    must_not: &["SYN cookies without timestamps made the connection, which lose the option too"],
    lookalikes: &[
        ("receive-window-limited", "scaling was agreed on, and the receiver has no more room"),
        ("syn-backlog-full", "connections that SYN cookies made: SyncookiesRecv grows"),
    ],
    remedy: "Capture a SYN on both sides of each hop in between and see where `wscale` disappears: firewalls and proxies that \
             `normalise` or `scrub` are the usual place. If one end has it switched off, switch it on there.",
    sources: &[
        "RFC 7323 section 2; net/ipv4/tcp_output.c: tcp_syn_options; net/ipv4/syncookies.c: cookie_timestamp_decode",
    ],
    recipes,
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

/// Largest window without scaling, bytes.
const UNSCALED: u32 = 65_535;
/// A share of all bytes from which on it is more than a client from another time.
const GOOD_PART: f64 = 0.1;

/// True if the sender would have more under way if it might: it waited for the window, or it fills the window in every round trip
/// on a path with a delay.
fn is_held(view: &EvidenceView<'_>, flow: &TcpFlow) -> bool {
    let waited = flow.window_limited_us.change() as f64 >= 0.3 * flow.busy_us.change().max(1) as f64;
    let trips = view.evidence.window_s * 1e6 / f64::from(flow.rtt_us.max(1));
    let most = f64::from(UNSCALED) * trips;
    let fills = |bytes: u64| flow.rtt_us >= 2000 && bytes as f64 >= 0.5 * most;
    flow.bytes_acked.change() > 0 && waited
        || fills(flow.bytes_acked.change())
        || fills(flow.bytes_received.change())
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let off = namespace.setting("net.ipv4.tcp_window_scaling") == Some(0);
    // A connection that carries next to nothing needs no window.
    let without = |f: &&TcpFlow| !f.window_scaling && carried(f) > u64::from(UNSCALED);
    let flows: Vec<&TcpFlow> = namespace.sockets.iter().flat_map(|s| &s.tcp).filter(without).collect();
    let worst = flows.iter().max_by_key(|f| (is_held(view, f), carried(f)))?;
    // Connections made by cookies before the window are not told apart from others by anything.
    let cookies =
        namespace.grew("tcpext.SyncookiesRecv") > 0 && flows.iter().all(|f| !f.timestamps && !f.outgoing);
    if cookies {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    let part = share_of_bytes(namespace, &flows);
    let held = flows.iter().any(|f| is_held(view, f)) && part >= GOOD_PART;
    finding.severity = if held { Severity::Warning } else { Severity::Note };
    finding.impact = if held { part } else { 0.0 };
    finding.confidence =
        if flows.iter().all(|f| f.outgoing) || off { Confidence::High } else { Confidence::Medium };
    finding.object = format!("{} to {}", named(worst), worst.remote);
    let why = if off {
        "this host has it switched off"
    } else {
        "a device on the path, or the other side, removed the option"
    };
    finding.summary = format!("{} connections have no window scaling: {why}.", flows.len());
    for flow in flows.iter().take(5) {
        let text = format!(
            "{} to {}: window {} bytes, round trip {:.1} ms, {:.1} Mbit/s, {:.0} % of its busy time waiting for the window",
            named(flow),
            flow.remote,
            flow.send_window,
            f64::from(flow.rtt_us) / 1e3,
            rate_mbps(view, flow.bytes_acked).max(rate_mbps(view, flow.bytes_received)),
            100.0 * flow.window_limited_us.change() as f64 / flow.busy_us.change().max(1) as f64,
        );
        finding.seen(EvidenceSource::Sockets, text);
    }
    if off {
        let why = format!("{} connections were limited to 64 KB a round trip", flows.len());
        finding.fixes.push(Fix::set(
            "scale windows",
            "none known",
            vec![Setting::new("net.ipv4.tcp_window_scaling", "0", "1", why)],
        ));
    } else {
        let capture =
            sh!("tcpdump -nn -v -c 4 'host {} and tcp[tcpflags] & tcp-syn != 0'", worst.remote.ip());
        finding
            .fixes
            .push(Fix::look("compare the options of a SYN here, and on each hop in between", [capture]));
    }
    Some(finding)
}

fn recipes() -> Vec<Recipe> {
    let strip = "nft 'add table ip n; add chain ip n c { type filter hook forward priority 0; }; \
                 add rule ip n c tcp flags syn / syn,rst reset tcp option window'";
    vec![Recipe {
        at: LabHost::Initiator,
        setup: vec![Step::gateway(strip)],
        traffic: Traffic::bulk(7091, TcpMode::Sink, 2, None),
        needs: vec!["nft"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{flow, grew, host, seen};
    use super::*;

    fn found(flows: Vec<TcpFlow>, counters: &[(&str, u64)], all_bytes: u64) -> Vec<Finding> {
        let mut host = host(counters);
        host.settings.insert("net.ipv4.tcp_window_scaling".into(), "1".into());
        let sockets = host.sockets.as_mut().unwrap();
        sockets.totals.bytes = all_bytes;
        sockets.tcp = flows;
        (CAUSE.examine)(&EvidenceView::of(&seen(host, Vec::new())))
    }

    fn stripped() -> TcpFlow {
        // 64 KB every 20 ms for 10 s are 32 MB.
        TcpFlow { window_scaling: false, send_window: UNSCALED, bytes_acked: grew(30_000_000), ..flow() }
    }

    #[test]
    fn a_connection_that_fills_its_window_every_round_trip_is_held_back() {
        let found = &found(vec![stripped(), flow()], &[], 40_000_000)[0];
        assert_eq!((found.severity, found.confidence), (Severity::Warning, Confidence::High));
        assert!(found.impact > 0.7 && found.object.ends_with("to 198.19.0.2:443"));
    }

    #[test]
    fn one_old_client_among_many_is_a_note() {
        let small = TcpFlow { bytes_acked: grew(200_000), ..stripped() };
        assert_eq!(found(vec![small], &[], 1_000_000_000)[0].severity, Severity::Note);
    }

    #[test]
    fn scaled_idle_and_cookie_connections_are_not() {
        assert_eq!(found(vec![flow()], &[], 1), []);
        assert_eq!(found(vec![TcpFlow { bytes_acked: grew(100), ..stripped() }], &[], 1), []);
        let cookie = TcpFlow { timestamps: false, outgoing: false, ..stripped() };
        assert_eq!(found(vec![cookie], &[("tcpext.SyncookiesRecv", 9)], 1), []);
    }
}
