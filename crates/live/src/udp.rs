//! Words about flows of UDP.

use ratatui_core::style::Style;
use weir_flows::{Dns, UdpFlow, UdpKind, UdpState};
use weir_text::units::{self, Unit};

use crate::paint::{bad, faint, warning};

/// A silence from which on it stands out, seconds: as long as a flow becomes silent.
pub(crate) const LONG: f64 = 3.0;

pub(crate) fn seconds(value: f64) -> String {
    if value > 0.0 { units::quantity(Unit::Ns, value * 1e9, None) } else { "-".to_owned() }
}

pub(crate) fn style(flow: &UdpFlow) -> Style {
    match flow.state {
        UdpState::Unanswered => bad(),
        UdpState::Silent => warning(),
        UdpState::Waiting => faint(),
        UdpState::Open | UdpState::OneWay => Style::new(),
    }
}

/// Its ends. DNS has no ports: those of the client are many.
pub(crate) fn name(flow: &UdpFlow) -> String {
    match flow.kind {
        UdpKind::Dns => format!("{} > {}", flow.client.ip(), flow.server.ip()),
        UdpKind::Quic | UdpKind::Other => format!("{} > {}", flow.client, flow.server),
    }
}

/// Everything about a flow in one line.
pub(crate) fn words(flow: &UdpFlow) -> String {
    let mut text = format!("{}, {}, {}", name(flow), flow.kind.words(), flow.state.words());
    for (side, who) in [(&flow.client_side, "client"), (&flow.server_side, "server")] {
        if side.longest_silence_seconds >= LONG {
            text.push_str(&format!(
                ", {who} sent {} without an answer",
                seconds(side.longest_silence_seconds)
            ));
        }
    }
    for (number, words) in flow.dns.iter().flat_map(failures) {
        text.push_str(&format!(", {} {words}", units::count(number)));
    }
    text
}

/// Counts above zero, with their words.
pub(crate) fn failures(dns: &Dns) -> impl Iterator<Item = (u64, &'static str)> {
    let all = [
        (dns.unanswered, "without an answer"),
        (dns.servfail, "SERVFAIL"),
        (dns.refused, "REFUSED"),
        (dns.other_failures, "other failures"),
        (dns.nxdomain, "NXDOMAIN"),
        (dns.truncated, "cut"),
        (dns.repeated, "asked again"),
        (dns.unasked, "answers without a query"),
        (dns.unjudged, "queries not judged"),
    ];
    all.into_iter().filter(|(number, _)| *number > 0)
}
