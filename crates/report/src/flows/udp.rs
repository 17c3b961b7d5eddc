//! UDP and ICMP errors of a recording: sentences, and rows of their tables.

use weir_record::flows::{FlowsRecording, RecordedDns, RecordedIcmp, RecordedUdpFlow, RecordedUdpSide};
use weir_text::escape::line;
use weir_text::units::{self, Unit};

/// Heads of the table of flows behind the name.
pub(super) const FLOW: [&str; 6] = ["kind", "bytes", "rate c", "rate s", "silence c", "silence s"];
/// Heads of the table of DNS behind the name.
pub(super) const DNS: [&str; 6] = ["queries", "half", "95 %", "no answer", "SERVFAIL", "NXDOMAIN"];

/// Heads of the table of ICMP errors behind the sender.
pub(super) const ICMP: [&str; 3] = ["meaning", "MTU", "number"];

/// ICMP errors by sender.
pub(super) fn icmp_rows(recording: &FlowsRecording) -> Vec<(String, Vec<String>)> {
    let row = |one: &RecordedIcmp| {
        let mtu = one.smallest_mtu.map_or("–".to_owned(), |mtu| mtu.to_string());
        (line(&one.from), vec![line(&one.meaning).replace('-', " "), mtu, units::count(one.packets)])
    };
    recording.last.icmp_errors.iter().map(row).collect()
}

/// The whole in sentences; none if no UDP passed.
pub(super) fn sentences(recording: &FlowsRecording) -> Vec<String> {
    let (last, udp) = (&recording.last, &recording.last.all.udp);
    let mut sentences = Vec::new();
    if udp.flows == 0 {
        return sentences;
    }
    sentences.push(format!(
        "{} of UDP passed in {} flows, {} of it QUIC.",
        units::bytes(udp.client_side.bytes + udp.server_side.bytes),
        units::count(last.udp_flows_now + last.udp_flows_over),
        units::bytes(udp.quic_bytes)
    ));
    let dns = &udp.dns;
    if dns.queries > 0 {
        sentences.push(format!(
            "DNS: {} queries, half of the answers within {}, 95 % within {}.",
            units::count(dns.queries),
            time(dns.times.median_ns),
            time(dns.times.p95_ns)
        ));
    }
    for (number, words) in [
        (udp.unanswered_flows, "Flows of UDP without an answer"),
        (udp.silent_flows, "Flows of UDP with a silent side"),
        (dns.unanswered, "Queries of DNS without an answer"),
        (dns.servfail, "Answers of DNS with SERVFAIL"),
        (dns.refused, "Answers of DNS with REFUSED"),
        (dns.other_failures, "Answers of DNS with another failure"),
    ] {
        if number > 0 {
            sentences.push(format!("{words}: {}.", units::count(number)));
        }
    }
    sentences
}

fn time(ns: Option<u64>) -> String {
    ns.map_or("–".to_owned(), |ns| units::quantity(Unit::Ns, ns as f64, None))
}

/// Names and figures of UDP other than DNS.
pub(super) fn flow_rows(recording: &FlowsRecording) -> Vec<(String, Vec<String>)> {
    let flows = recording.last.udp_flows.iter().filter(|flow| flow.dns.is_none());
    flows.map(|flow| (name(flow), flow_cells(flow))).collect()
}

/// Names and figures of DNS.
pub(super) fn dns_rows(recording: &FlowsRecording) -> Vec<(String, Vec<String>)> {
    let flows = recording.last.udp_flows.iter();
    flows.filter_map(|flow| Some((name(flow), dns_cells(flow.dns.as_ref()?)))).collect()
}

/// Its ends. DNS has no ports: those of the client are many.
fn name(flow: &RecordedUdpFlow) -> String {
    let (mut client, mut server) = (flow.client.as_str(), flow.server.as_str());
    if flow.dns.is_some() {
        client = client.strip_suffix(":0").unwrap_or(client);
        server = server.strip_suffix(":53").unwrap_or(server);
    }
    line(&format!("{client} > {server}, {}", flow.state))
}

fn flow_cells(flow: &RecordedUdpFlow) -> Vec<String> {
    let (client, server) = (&flow.client_side, &flow.server_side);
    // The rate of a single packet says nothing.
    let rate = |side: &RecordedUdpSide| match flow.age_seconds {
        age if age >= 1.0 => units::quantity(Unit::Bps, side.bytes as f64 * 8.0 / age, None),
        _ => "–".to_owned(),
    };
    let silence = |side: &RecordedUdpSide| match side.longest_silence_seconds {
        seconds if seconds > 0.0 => units::quantity(Unit::Ns, seconds * 1e9, None),
        _ => "–".to_owned(),
    };
    let kind = if flow.kind == "quic" { "QUIC" } else { "other" };
    vec![
        kind.to_owned(),
        units::bytes(client.bytes + server.bytes),
        rate(client),
        rate(server),
        silence(client),
        silence(server),
    ]
}

fn dns_cells(dns: &RecordedDns) -> Vec<String> {
    vec![
        units::count(dns.queries),
        time(dns.times.median_ns),
        time(dns.times.p95_ns),
        units::count(dns.unanswered),
        units::count(dns.servfail),
        units::count(dns.nxdomain),
    ]
}
