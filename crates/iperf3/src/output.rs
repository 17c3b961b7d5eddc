//! The server's own output, for clients that ask for it: as text, or as `iperf3 -s -J` writes it.

use std::fmt::Write;
use std::net::SocketAddr;

use serde_json::{Map, Value, json};

use super::ledger::{Interval, Ledger, StreamInterval, StreamTotal};
use super::parameters::{Parameters, Way};
use super::results::{Cpu, ServerOutput};
use super::streams::Stream;
use super::text::{Lines, Row};
use weir_netlink::Protocol;

/// Who is at the ends.
#[derive(Debug)]
pub(super) struct Ends {
    /// The client's control connection.
    pub(super) client: SocketAddr,
    /// Number, own address and far end's address of each stream.
    pub(super) streams: Vec<(i64, SocketAddr, SocketAddr)>,
}

pub(super) fn addresses(streams: &[Stream]) -> Vec<(i64, SocketAddr, SocketAddr)> {
    streams.iter().map(|s| (s.id, s.local, s.peer)).collect()
}

/// After the test, the book being closed.
pub(super) fn output(p: &Parameters, ends: &Ends, ledger: &Ledger, cpu: Cpu, as_json: bool) -> ServerOutput {
    if as_json {
        ServerOutput::Json(json(p, ends, ledger, cpu))
    } else {
        ServerOutput::Text(text(p, ends, ledger))
    }
}

fn text(p: &Parameters, ends: &Ends, ledger: &Ledger) -> String {
    let lines =
        Lines { protocol: p.protocol, both: p.way == Way::Both, client: false, title: p.title.clone() };
    let mut out = String::new();
    // Writing into a string does not fail.
    let _ = writeln!(out, "Accepted connection from {}, port {}", ends.client.ip(), ends.client.port());
    for (id, local, peer) in &ends.streams {
        let _ = writeln!(
            out,
            "[{id:>3}] local {} port {} connected to {} port {}",
            local.ip(),
            local.port(),
            peer.ip(),
            peer.port()
        );
    }
    out += &lines.interval_header(p.way == Way::Ingress);
    for interval in ledger.intervals() {
        out += &lines.interval(interval);
    }
    if ledger.left_out() > 0 {
        let _ = writeln!(out, "({} further intervals are left out)", ledger.left_out());
    }
    let rows: Vec<Row> = ledger.totals().iter().map(|t| row(p, t)).collect();
    out + &lines.summary(&rows)
}

fn row(p: &Parameters, t: &StreamTotal) -> Row {
    let udp = p.protocol == Protocol::Udp;
    let packets = t.counts.packets.saturating_sub(t.omitted.packets);
    let lost = t.counts.lost.saturating_sub(t.omitted.lost);
    Row {
        id: Some(t.id),
        sends: t.sends,
        sender: t.sends,
        seconds: t.seconds,
        bytes: t.bytes,
        retransmits: t.retransmits,
        datagrams: udp.then_some((t.counts.jitter_s, lost, packets)),
    }
}

fn json(p: &Parameters, ends: &Ends, ledger: &Ledger, cpu: Cpu) -> Value {
    let connected = |(id, local, peer): &(i64, SocketAddr, SocketAddr)| {
        json!({
            "socket": id,
            "local_host": local.ip().to_string(),
            "local_port": local.port(),
            "remote_host": peer.ip().to_string(),
            "remote_port": peer.port(),
        })
    };
    let start = json!({
        "connected": ends.streams.iter().map(connected).collect::<Vec<_>>(),
        "version": concat!("weir ", env!("CARGO_PKG_VERSION")),
        "accepted_connection": { "host": ends.client.ip().to_string(), "port": ends.client.port() },
        "test_start": {
            "protocol": if p.protocol == Protocol::Udp { "UDP" } else { "TCP" },
            "num_streams": p.streams,
            "blksize": p.length,
            "omit": p.omit_s,
            "duration": p.time_s,
            "bytes": p.bytes,
            "blocks": p.blocks,
            "reverse": u8::from(p.way == Way::Ingress),
            "bidir": u8::from(p.way == Way::Both),
            "tos": p.tos,
            "target_bitrate": p.rate_bps,
        },
    });
    let intervals: Vec<Value> = ledger.intervals().iter().map(|i| json_interval(p, i)).collect();
    json!({ "start": start, "intervals": intervals, "end": json_end(p, ledger, cpu) })
}

fn json_interval(p: &Parameters, interval: &Interval) -> Value {
    let seconds = interval.end_s - interval.start_s;
    let figures = |s: &StreamInterval| {
        let mut map = span(interval.start_s, interval.end_s, s.bytes, s.sends);
        map.insert("omitted".into(), json!(interval.omitted));
        map.insert("seconds".into(), json!(seconds));
        match (p.protocol, s.sends) {
            (Protocol::Tcp, true) => {
                map.insert("retransmits".into(), json!(s.retransmits.unwrap_or(0)));
                map.insert("snd_cwnd".into(), json!(s.cwnd_bytes.unwrap_or(0)));
                map.insert("rtt".into(), json!(s.rtt_us.unwrap_or(0)));
            }
            (Protocol::Tcp, false) => {}
            (Protocol::Udp, true) => drop(map.insert("packets".into(), json!(s.packets))),
            (Protocol::Udp, false) => losses(&mut map, s.jitter_s, s.lost, s.packets),
        }
        map
    };
    let streams: Vec<Value> = interval
        .streams
        .iter()
        .map(|s| {
            let mut map = figures(s);
            map.insert("socket".into(), json!(s.id));
            Value::Object(map)
        })
        .collect();
    let mut out = Map::new();
    out.insert("streams".into(), Value::Array(streams));
    // iperf3 calls the sum of the second direction of --bidir so.
    let names = if p.way == Way::Both {
        [(false, "sum"), (true, "sum_bidir_reverse")]
    } else {
        [(true, "sum"), (false, "sum")]
    };
    for (sends, name) in names {
        let own: Vec<_> = interval.streams.iter().filter(|s| s.sends == sends).collect();
        if !own.is_empty() {
            out.insert(name.into(), Value::Object(figures(&super::text::sum(&own))));
        }
    }
    Value::Object(out)
}

fn span(start_s: f64, end_s: f64, bytes: u64, sender: bool) -> Map<String, Value> {
    let seconds = end_s - start_s;
    let bps = if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 };
    let Value::Object(map) = json!({
        "start": start_s,
        "end": end_s,
        "seconds": seconds,
        "bytes": bytes,
        "bits_per_second": bps,
        "sender": sender,
    }) else {
        // The macro makes an object out of braces.
        return Map::new();
    };
    map
}

fn losses(map: &mut Map<String, Value>, jitter_s: f64, lost: i64, packets: u64) {
    let percent = if packets > 0 { 100.0 * lost as f64 / packets as f64 } else { 0.0 };
    map.insert("jitter_ms".into(), json!(jitter_s * 1000.0));
    map.insert("lost_packets".into(), json!(lost));
    map.insert("packets".into(), json!(packets));
    map.insert("lost_percent".into(), json!(percent));
}

fn json_end(p: &Parameters, ledger: &Ledger, cpu: Cpu) -> Value {
    let udp = p.protocol == Protocol::Udp;
    let rows: Vec<Row> = ledger.totals().iter().map(|t| row(p, t)).collect();
    let figures = |r: &Row| {
        let mut map = span(0.0, r.seconds, r.bytes, r.sender);
        if let Some(n) = r.retransmits {
            map.insert("retransmits".into(), json!(n));
        }
        if let Some((jitter_s, lost, packets)) = r.datagrams {
            losses(&mut map, jitter_s, lost as i64, packets);
        }
        map
    };
    let stream = |r: &Row| {
        let mut map = figures(r);
        map.insert("socket".into(), json!(r.id));
        let name = match (udp, r.sender) {
            (true, _) => "udp",
            (false, true) => "sender",
            (false, false) => "receiver",
        };
        json!({ name: map })
    };
    let mut end = Map::new();
    end.insert("streams".into(), rows.iter().map(stream).collect());
    for (sender, name) in [(true, "sum_sent"), (false, "sum_received")] {
        let own: Vec<&Row> = rows.iter().filter(|r| r.sender == sender).collect();
        if !own.is_empty() {
            end.insert(name.into(), Value::Object(figures(&super::text::sum_rows(&own))));
        }
    }
    end.insert(
        "cpu_utilization_percent".into(),
        json!({ "host_total": cpu.total_percent, "host_user": cpu.user_percent, "host_system": cpu.system_percent }),
    );
    Value::Object(end)
}
