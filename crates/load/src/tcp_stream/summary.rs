//! From what the streams saw to the trial's metrics.

use weir_record::{Better, MetricDef, PathFinding, Unit};

use super::TcpStreamWork;
use super::controls;
use super::receive::Received;
use super::send::{End, Sent};
use crate::part::sum;
use crate::series::{averaged, renamed, summed};
use crate::streams::{
    Outcomes, Sorted, StreamEnd, failure_metrics, marked, of_stream, pairs, set_failed, trial_of,
};
use crate::window::{Mean, StepCounts, Window};
use crate::{Direction, Error, Part};

/// Returns the report of one end. Fails if no stream at all could be run.
pub(super) fn part(end: &StreamEnd, outcomes: Outcomes<Sent, Received>) -> Result<Part, Error> {
    let streams = Sorted::new(outcomes)?;
    let (sent, received) = (&streams.sent, &streams.received);
    let (sends, receives) = end.side.directions();
    let mut part = Part::default();
    if !sent.is_empty() {
        sender_part(&mut part, sends, &end.sending, sent);
    }
    if !received.is_empty() {
        receiver_part(&mut part, receives, &end.receiving, received);
    }
    part.cpu_s = sent.iter().map(|s| s.cpu_s).chain(received.iter().map(|r| r.cpu_s)).sum();
    part.faults.extend(streams.faults(end.side));
    let ends = sent.iter().map(|s| s.end).chain(received.iter().map(|r| r.end));
    part.faults.extend(end.stopped(ends.map(|end| end != End::Complete)));
    Ok(part)
}

/// True if no stream of the direction got anything through, of those that this end began.
pub(super) fn all_stuck(part: &Part, way: Direction) -> bool {
    let begun = part.value(&format!("{way}_begun"));
    begun > 0.0 && part.value(&format!("{way}_stuck")) == begun
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
    for s in sent.iter().filter(|s| s.end != End::Complete) {
        part.set(&of_stream(way, "broken", s.stream), 1.0);
    }
    part.set(&format!("{way}_begun"), sent.len() as f64);
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
    let mut bytes = StepCounts::new(window);
    let mut rtt = vec![Mean::default(); window.steps()];
    for r in received {
        bytes.merge(&r.bytes);
        merge(&mut rtt, &r.info.rtt);
    }
    let per_stream = || received.iter().map(|r| r.bytes.total() as f64 * 8.0 / window.seconds());
    for r in received.iter().filter(|r| r.end == End::Complete && r.bytes.total() > 0) {
        part.set(&of_stream(way, "carried", r.stream), 1.0);
    }
    part.set(&format!("{way}_begun"), received.len() as f64);
    part.set(&format!("{way}_stuck"), received.iter().filter(|r| r.stuck).count() as f64);
    part.set(&format!("{way}_receivers"), received.len() as f64);
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
            "segments that the senders sent again in their windows (tcpi_total_retrans of TCP_INFO); of streams that fail, as long as they \
             live",
        )
        .by_difference(),
        lower(
            "rtt_mean_ns",
            "smoothed RTT, mean",
            Unit::Ns,
            "mean over the window of the senders' smoothed RTT (RFC 6298, TCP_INFO), sampled in every step; of streams that \
             fail, as long as they live",
        ),
        lower("rtt_min_ns", "RTT, min", Unit::Ns, "least RTT that the senders' kernels saw (tcpi_min_rtt)"),
        lower(
            "tester_cpu_s_per_gbit",
            "tester CPU",
            Unit::CpuSecondsPerGbit,
            "CPU time of the sending and receiving threads, those of failed streams too, per 1e9 payload bits delivered",
        ),
        stream("stream_min_bps", "slowest stream", Higher, "goodput of the slowest stream; 0 if one did not begin"),
        stream("stream_max_bps", "fastest stream", Better::Neither, "goodput of the fastest stream"),
        lower(
            "out_of_order",
            "out of order",
            Unit::Count,
            "segments that reached the receivers out of order, from connecting to the end (tcpi_rcv_ooopack)",
        )
        .by_difference(),
    ]);
    all.extend(failure_metrics(
        "failed streams",
        "streams that were refused, reset, closed or not answered, moved nothing in their window, or did not live to its end; what they \
         delivered counts, over the whole window",
    ));
    if work.verify {
        let help = "payload bytes that differ from what was sent, although TCP's checksum let them pass; goodput leaves them out";
        all.push(
            MetricDef::value("corrupt_bytes", "corrupt bytes", Unit::Count, Lower, help).by_difference(),
        );
    }
    all
}

/// Counts the failed streams of a direction. A stream is good if its receiver had it to the end of its window and its sender saw
/// it closed after the window; all others failed. A stream that an end does not know did not reach it.
fn failed_streams(work: &TcpStreamWork, initiators: &[Part], responders: &[Part], way: Direction) -> f64 {
    let failed = |ends: Vec<&Part>| {
        let carried = marked(&ends, way, "carried", work.streams);
        let broken = marked(&ends, way, "broken", work.streams);
        f64::from(work.streams) - carried.difference(&broken).count() as f64
    };
    pairs(initiators, responders).map(failed).sum()
}

/// Whether the path swallows full segments, where nothing else got through.
fn black_hole(initiators: &[Part], way: Direction) -> Option<PathFinding> {
    let explained: Vec<Part> = initiators
        .iter()
        .filter(|part| controls::finding(std::slice::from_ref(part), way).is_some())
        .cloned()
        .collect();
    controls::finding(&explained, way)
}

/// The trial out of the parts.
pub(super) fn combine(work: &TcpStreamWork, initiators: &[Part], responders: &[Part]) -> Part {
    let parts: Vec<Part> = initiators.iter().chain(responders).cloned().collect();
    let ways = work.direction.ways();
    let wanted = f64::from(work.streams) * initiators.len() as f64;
    let mut failed = 0.0;
    let total = |name: &str| ways.iter().map(|way| sum(&parts, &format!("{way}_{name}"))).sum::<f64>();
    let each = |name: &str| {
        let of = |way: &Direction| {
            parts.iter().filter_map(|p| p.values.get(&format!("{way}_{name}")).copied()).collect::<Vec<_>>()
        };
        ways.iter().flat_map(of).collect::<Vec<f64>>()
    };
    let mut trial = trial_of(&parts);
    for way in ways {
        failed += failed_streams(work, initiators, responders, *way);
        trial.path.extend(black_hole(initiators, *way));
        if ways.len() > 1 {
            let name = format!("{way}_goodput_bps");
            trial.set(&name, sum(&parts, &name));
        }
    }
    set_failed(&mut trial, wanted * ways.len() as f64, failed);
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
    // A stream that did not reach its receiver is the slowest.
    let all_came = total("receivers") >= wanted * ways.len() as f64;
    let slowest = each("stream_min_bps").into_iter().reduce(f64::min).filter(|_| all_came);
    set_some("stream_min_bps", Some(slowest.unwrap_or(0.0)));
    set_some("stream_max_bps", Some(each("stream_max_bps").into_iter().fold(0.0, f64::max)));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn part(values: &[(&str, f64)]) -> Part {
        let mut part = Part::default();
        values.iter().for_each(|(name, value)| part.set(name, *value));
        part
    }

    /// Four streams: one ends well at both ends; one breaks at its sender, one moves nothing, one does not reach its receiver.
    fn ends() -> (Part, Part) {
        let near = part(&[("egress_begun", 3.0), ("egress_stuck", 0.0), ("egress_broken_1", 1.0)]);
        let far = part(&[
            ("egress_receivers", 3.0),
            ("egress_carried_0", 1.0),
            ("egress_carried_1", 1.0),
            ("egress_goodput_bps", 8e6),
            ("egress_bits", 8e6),
            ("egress_stream_min_bps", 1e6),
            ("egress_stream_max_bps", 5e6),
        ]);
        (near, far)
    }

    #[test]
    fn a_stream_counts_only_if_both_ends_had_it_to_the_end() {
        let work = TcpStreamWork { streams: 4, ..TcpStreamWork::default() };
        let (near, far) = ends();
        let trial = combine(&work, std::slice::from_ref(&near), std::slice::from_ref(&far));
        assert_eq!(trial.faults, []);
        assert_eq!((trial.value("streams"), trial.value("failed_streams")), (4.0, 3.0));
        assert_eq!((trial.value("failed_ratio"), trial.value("goodput_bps")), (0.75, 8e6));
        assert_eq!((trial.values["stream_min_bps"], trial.value("stream_max_bps")), (0.0, 5e6));
        // The numbers of another initiator's streams are its own.
        let well: Vec<(String, f64)> = (0..4).map(|n| (format!("egress_carried_{n}"), 1.0)).collect();
        let well: Vec<(&str, f64)> = well.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let trial = combine(&work, &[near, Part::default()], &[far, part(&well)]);
        assert_eq!((trial.value("streams"), trial.value("failed_streams")), (8.0, 3.0));
    }

    #[test]
    fn nothing_seen_at_all_is_a_result_of_nothing() {
        let work = TcpStreamWork { streams: 2, direction: Direction::Both, ..TcpStreamWork::default() };
        let trial = combine(&work, &[Part::default()], &[Part::default()]);
        assert_eq!(trial.faults, []);
        assert_eq!((trial.value("streams"), trial.value("failed_ratio")), (4.0, 1.0));
        for name in ["goodput_bps", "egress_goodput_bps", "stream_min_bps", "stream_max_bps"] {
            assert_eq!(trial.values.get(name), Some(&0.0), "{name}");
        }
        for name in ["tester_cpu_s_per_gbit", "rtt_mean_ns"] {
            assert!(!trial.values.contains_key(name), "{name} of nothing");
        }
    }
}
