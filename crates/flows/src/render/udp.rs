//! Tables of UDP.

use weir_text::page::{Page, Tone};
use weir_text::units::{self, Unit};

use super::{fitted, time};
use crate::reading::Reading;
use crate::udp::{Dns, Udp, UdpFlow, UdpKind, UdpSide, UdpState};

const FLOW: [&str; 6] = ["UDP flow", "kind", "client", "server", "silence c", "silence s"];
const DNS: [&str; 7] = ["DNS", "queries", "half", "95 %", "no answer", "SERVFAIL", "NXDOMAIN"];

/// UDP other than DNS, and DNS.
pub(super) fn tables(page: &mut Page, reading: &Reading, width: usize) {
    let (dns, others): (Vec<_>, Vec<_>) = reading.udp_flows.iter().partition(|f| f.kind == UdpKind::Dns);
    fitted(page, &FLOW, others.into_iter().map(flow_row).collect(), width);
    let rows = dns.into_iter().filter_map(|flow| Some(dns_row(flow, flow.dns.as_ref()?)));
    fitted(page, &DNS, rows.collect(), width);
}

/// Rates are those since its first packet.
fn flow_row(flow: &UdpFlow) -> Vec<String> {
    let state = if flow.state == UdpState::Open { "" } else { flow.state.words() };
    let rate = |side: &UdpSide| match flow.age_seconds {
        // The rate of a single packet says nothing.
        age if age >= 1.0 => units::quantity(Unit::Bps, side.bytes as f64 * 8.0 / age, None),
        _ => "-".to_owned(),
    };
    let silence = |side: &UdpSide| match side.longest_silence_seconds {
        seconds if seconds > 0.0 => units::quantity(Unit::Ns, seconds * 1e9, None),
        _ => "-".to_owned(),
    };
    let (client, server) = (&flow.client_side, &flow.server_side);
    vec![
        format!("{} > {} {state}", flow.client, flow.server).trim_end().to_owned(),
        flow.kind.words().to_owned(),
        rate(client),
        rate(server),
        silence(client),
        silence(server),
    ]
}

fn dns_row(flow: &UdpFlow, dns: &Dns) -> Vec<String> {
    let way = if flow.state == UdpState::OneWay { " one way" } else { "" };
    let ns = |value: Option<u64>| value.map_or("-".to_owned(), time);
    vec![
        format!("{} > {}{way}", flow.client.ip(), flow.server.ip()),
        units::count(dns.queries),
        ns(dns.times.median_ns),
        ns(dns.times.p95_ns),
        units::count(dns.unanswered),
        units::count(dns.servfail),
        units::count(dns.nxdomain),
    ]
}

/// One line on each thing of UDP beyond the tables.
pub(super) fn remarks(udp: &Udp, say: &mut impl FnMut(u64, &str, Option<Tone>)) {
    let (dns, warning) = (&udp.dns, Some(Tone::Warning));
    say(udp.unanswered_flows, "flows of UDP without an answer for 3 s", warning);
    say(udp.silent_flows, "flows of UDP in which one side has sent for 3 s and more without an answer", None);
    say(dns.unanswered, "queries of DNS without an answer within 5 s", warning);
    say(dns.servfail, "answers of DNS with SERVFAIL", warning);
    say(dns.refused, "answers of DNS with REFUSED", warning);
    say(dns.other_failures, "answers of DNS with another failure", warning);
    say(dns.truncated, "answers of DNS were cut: the client asks again by TCP", None);
    say(dns.unjudged, "queries of DNS not judged: too many waited at once, or one way is another one", None);
}
