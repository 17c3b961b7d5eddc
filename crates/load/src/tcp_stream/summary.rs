//! From what the streams saw to the trial's metrics.

use weir_record::{Better, Fault, FaultCode, MetricDef, PathFinding, Unit};

use super::TcpStreamWork;
use super::controls;
use super::receive::Received;
use super::send::{End, Sent};
use crate::part::sum;
use crate::series::{averaged, renamed, summed};
use crate::streams::{Outcomes, Sorted, StreamEnd, missing_streams, trial_of};
use crate::window::{Mean, Tally, Window};
use crate::{Direction, Error, Part, Setting};

/// What one end reports. Fails if no stream at all could be run.
pub(super) fn part(end: &StreamEnd, outcomes: Outcomes<Sent, Received>) -> Result<Part, Error> {
    let streams = Sorted::new(outcomes)?;
    let (sent, received) = (&streams.sent, &streams.received);
    let (sends, receives) = end.side.directions();
    let host = end.side.host();
    let mut part = Part::default();
    if !sent.is_empty() {
        sender_part(&mut part, sends, &end.sending, sent);
    }
    if !received.is_empty() {
        receiver_part(&mut part, receives, &end.receiving, received);
    }
    part.cpu_s = sent.iter().map(|s| s.cpu_s).chain(received.iter().map(|r| r.cpu_s)).sum();
    part.faults.extend(streams.faults(end.side));
    let ends = sent.iter().map(|s| (s.end, s.stuck)).chain(received.iter().map(|r| (r.end, r.stuck)));
    let stopped = end.setting.stop.raised();
    // What got nothing through is told by `combine`, which knows whether the path is the reason.
    let ends: Vec<End> = ends.filter(|(_, stuck)| stopped || !stuck).map(|(end, _)| end).collect();
    part.faults.extend(end_faults(&ends, &end.setting, host));
    Ok(part)
}

fn end_faults(ends: &[End], setting: &Setting, host: &str) -> Vec<Fault> {
    let of = |end: End| ends.iter().filter(|&&e| e == end).count();
    let all = ends.len();
    let mut faults = Vec::new();
    let mut add = |n: usize, code, what: &str| {
        if n > 0 {
            faults.push(Fault::void(code, host, format!("{n} of {all} streams {what}")));
        }
    };
    let stopped = if setting.stop.raised() {
        "were stopped before their window was over"
    } else {
        "had not ended their window when the other end was done"
    };
    add(of(End::Stopped), FaultCode::Interrupted, stopped);
    add(
        of(End::Closed),
        FaultCode::ConnectionFailed,
        "were closed by the other end before their window was over",
    );
    add(of(End::Abandoned), FaultCode::Timeout, "got no end from the receiver after its window");
    faults
}

fn merge(into: &mut [Mean], from: &[Mean]) {
    for (a, b) in into.iter_mut().zip(from) {
        a.merge(b);
    }
}

fn over_all(means: &[Mean]) -> Mean {
    let mut all = Mean::default();
    means.iter().for_each(|m| all.merge(m));
    all
}

fn sender_part(part: &mut Part, way: Direction, window: &Window, sent: &[Sent]) {
    let mut rtt = vec![Mean::default(); window.steps()];
    let mut cwnd = rtt.clone();
    for s in sent {
        merge(&mut rtt, &s.info.rtt);
        merge(&mut cwnd, &s.info.cwnd);
    }
    part.set(&format!("{way}_stuck"), sent.iter().filter(|s| s.stuck).count() as f64);
    part.set(&format!("{way}_retransmits"), sent.iter().map(|s| s.info.retransmits()).sum::<u64>() as f64);
    if let Some(mean) = over_all(&rtt).value() {
        part.set(&format!("{way}_rtt_mean_ns"), mean);
    }
    if let Some(min) = sent.iter().filter_map(|s| s.info.min_rtt_ns).min() {
        part.set(&format!("{way}_rtt_min_ns"), min as f64);
    }
    part.series.push(window.mean_series(&format!("{way}_rtt_ns"), &rtt));
    part.series.push(window.mean_series(&format!("{way}_cwnd_segments"), &cwnd));
}

fn receiver_part(part: &mut Part, way: Direction, window: &Window, received: &[Received]) {
    let mut bytes = Tally::new(window);
    let mut rtt = vec![Mean::default(); window.steps()];
    for r in received {
        bytes.merge(&r.bytes);
        merge(&mut rtt, &r.info.rtt);
    }
    let per_stream = || received.iter().map(|r| r.bytes.total() as f64 * 8.0 / window.seconds());
    part.set(&format!("{way}_stuck"), received.iter().filter(|r| r.stuck).count() as f64);
    part.set(&format!("{way}_streams"), received.len() as f64);
    part.set(&format!("{way}_bits"), bytes.total() as f64 * 8.0);
    part.set(&format!("{way}_goodput_bps"), bytes.total() as f64 * 8.0 / window.seconds());
    part.set(&format!("{way}_stream_min_bps"), per_stream().fold(f64::INFINITY, f64::min));
    part.set(&format!("{way}_stream_max_bps"), per_stream().fold(0.0, f64::max));
    part.set(&format!("{way}_corrupt_bytes"), received.iter().map(|r| r.corrupt).sum::<u64>() as f64);
    part.set(&format!("{way}_out_of_order"), received.iter().map(|r| f64::from(r.out_of_order)).sum());
    part.series.push(window.rate_series(&format!("{way}_goodput_bps"), &bytes.steps, 8.0));
    part.series.push(window.mean_series(&format!("{way}_receiver_rtt_ns"), &rtt));
}

/// The part of one direction where both are measured.
fn goodput_of(way: Direction) -> MetricDef {
    let help = format!("the share of goodput that went in the {way} direction");
    let (name, label) = (format!("{way}_goodput_bps"), format!("{way} goodput"));
    MetricDef::value(&name, &label, Unit::Bps, Better::Higher, &help)
}

/// Definitions of the metrics.
pub(super) fn metrics(work: &TcpStreamWork) -> Vec<MetricDef> {
    use Better::{Higher, Lower};
    let goodput =
        "payload bits per second that reached the receiving program in its window (RFC 2647 section 3.17)";
    let mut all = vec![MetricDef::value("goodput_bps", "goodput", Unit::Bps, Higher, goodput)];
    if work.direction == Direction::Both {
        all.extend(work.direction.ways().iter().map(|way| goodput_of(*way)));
    }
    let lower =
        |name: &str, label: &str, unit, help: &str| MetricDef::value(name, label, unit, Lower, help).detail();
    let stream = |name: &str, label: &str, better, help: &str| {
        MetricDef::value(name, label, Unit::Bps, better, help).detail()
    };
    all.extend([
        lower(
            "retransmits",
            "retransmits",
            Unit::Count,
            "segments that the senders sent again in their windows (tcpi_total_retrans of TCP_INFO)",
        )
        .by_difference(),
        lower(
            "rtt_mean_ns",
            "smoothed RTT, mean",
            Unit::Ns,
            "mean over the window of the senders' smoothed RTT (RFC 6298, TCP_INFO), sampled in every step",
        ),
        lower("rtt_min_ns", "RTT, min", Unit::Ns, "least RTT that the senders' kernels saw (tcpi_min_rtt)"),
        lower(
            "tester_cpu_s_per_gbit",
            "tester CPU",
            Unit::CpuSecondsPerGbit,
            "CPU time of the sending and receiving threads per 1e9 payload bits delivered",
        ),
        stream("stream_min_bps", "slowest stream", Higher, "goodput of the slowest stream"),
        stream("stream_max_bps", "fastest stream", Better::Neither, "goodput of the fastest stream"),
        lower(
            "out_of_order",
            "out of order",
            Unit::Count,
            "segments that reached the receivers out of order, from connecting to the end (tcpi_rcv_ooopack)",
        )
        .by_difference(),
    ]);
    if work.verify {
        let help = "payload bytes that differ from what was sent, although TCP's checksum let them pass";
        all.push(
            MetricDef::value("corrupt_bytes", "corrupt bytes", Unit::Count, Lower, help).by_difference(),
        );
    }
    all
}

/// What is said of the streams of a direction that got nothing through: where the path swallows full segments that is its doing, and
/// nothing is what it carries; else the trial is void.
fn stuck(
    initiators: &[Part],
    responders: &[Part],
    way: Direction,
    wanted: f64,
) -> (Option<PathFinding>, Option<Fault>) {
    let of = |parts: &[Part]| sum(parts, &format!("{way}_stuck"));
    // Seen by both ends, or by one of them.
    let all = of(initiators).max(of(responders));
    let explained: Vec<Part> = initiators
        .iter()
        .filter(|part| controls::finding(std::slice::from_ref(part), way).is_some())
        .cloned()
        .collect();
    let fault = (all > of(&explained)).then(|| {
        let detail = format!("{all} of {wanted} {way} streams got nothing through");
        Fault::void(FaultCode::Timeout, "conductor", detail)
    });
    (controls::finding(&explained, way), fault)
}

/// The trial out of the parts.
pub(super) fn combine(work: &TcpStreamWork, initiators: &[Part], responders: &[Part]) -> Part {
    let parts: Vec<Part> = initiators.iter().chain(responders).cloned().collect();
    let ways = work.direction.ways();
    let wanted = f64::from(work.streams) * initiators.len() as f64;
    let total = |name: &str| ways.iter().map(|way| sum(&parts, &format!("{way}_{name}"))).sum::<f64>();
    let each = |name: &str| {
        let of = |way: &Direction| {
            parts.iter().filter_map(|p| p.values.get(&format!("{way}_{name}")).copied()).collect::<Vec<_>>()
        };
        ways.iter().flat_map(of).collect::<Vec<f64>>()
    };
    let mut trial = trial_of(&parts);
    for way in ways {
        trial.faults.extend(missing_streams(&parts, *way, wanted, "reached their receiver"));
        let (finding, fault) = stuck(initiators, responders, *way, wanted);
        trial.path.extend(finding);
        trial.faults.extend(fault);
        if ways.len() > 1 {
            let name = format!("{way}_goodput_bps");
            trial.set(&name, sum(&parts, &name));
        }
    }
    trial.set("goodput_bps", total("goodput_bps"));
    trial.set("retransmits", total("retransmits"));
    trial.set("out_of_order", total("out_of_order"));
    if work.verify {
        trial.set("corrupt_bytes", total("corrupt_bytes"));
    }
    let mut set_some = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            trial.set(name, value);
        }
    };
    let rtts = each("rtt_mean_ns");
    set_some("rtt_mean_ns", (!rtts.is_empty()).then(|| rtts.iter().sum::<f64>() / rtts.len() as f64));
    set_some("rtt_min_ns", each("rtt_min_ns").into_iter().reduce(f64::min));
    set_some("stream_min_bps", each("stream_min_bps").into_iter().reduce(f64::min));
    set_some("stream_max_bps", each("stream_max_bps").into_iter().reduce(f64::max));
    let gbit = total("bits") / 1e9;
    let cpu_s = trial.cpu_s;
    if gbit > 0.0 {
        trial.set("tester_cpu_s_per_gbit", cpu_s / gbit);
    }
    add_series(&mut trial, &parts, ways);
    trial
}

fn add_series(trial: &mut Part, parts: &[Part], ways: &[Direction]) {
    for way in ways {
        let own = |name: &str| if ways.len() == 1 { name.to_owned() } else { format!("{way}_{name}") };
        for name in ["goodput_bps", "rtt_ns", "cwnd_segments", "receiver_rtt_ns"] {
            let key = format!("{way}_{name}");
            let series = if name == "goodput_bps" { summed(parts, &key) } else { averaged(parts, &key) };
            trial.series.extend(series.map(|s| renamed(s, &own(name))));
        }
    }
}
