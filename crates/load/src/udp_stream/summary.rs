//! From what the streams saw to the trial's metrics.

use weir_record::{Better, Fault, FaultCode, MetricDef, Unit};
use weir_stats::{Delays, Histogram};

use super::controls;
use super::lateness;
use super::receive::Received;
use super::send::Sent;
use super::{Batch, UdpStream};
use crate::part::{merged, sum};
use crate::series::{renamed, summed};
use crate::streams::{Outcomes, Sorted, StreamEnd, failure_metrics, of_stream, pairs, set_failed, trial_of};
use crate::window::{StepCounts, Window};
use crate::{Direction, Error, Part};

/// Share of the datagrams that the receiver's own buffer may drop before the trial is void. They are subtracted from the
/// loss, so only the rate is understated, and by no more than this.
const DROPS_SHARE: f64 = 0.001;

/// Returns the report of one end. Fails if no stream at all could be run.
pub(super) fn part(end: &StreamEnd, outcomes: Outcomes<Sent, Received>) -> Result<Part, Error> {
    let streams = Sorted::new(outcomes)?;
    let (sent, received) = (&streams.sent, &streams.received);
    let (sends, receives) = end.side.directions();
    let host = end.side.host();
    let mut part = Part::default();
    if !sent.is_empty() {
        sender_part(&mut part, sends, &end.sending, sent);
        part.faults.extend(sender_faults(sent, host));
    }
    if !received.is_empty() {
        receiver_part(&mut part, receives, &end.receiving, received);
        part.faults.extend(receiver_faults(received, host));
    }
    part.cpu_s = sent.iter().map(|s| s.cpu_s).chain(received.iter().map(|r| r.cpu_s)).sum();
    let cut = sent.iter().map(|s| s.cut_short).chain(received.iter().map(|r| r.cut_short));
    part.faults.extend(end.stopped(cut));
    part.faults.extend(streams.faults(end.side));
    Ok(part)
}

fn sender_part(part: &mut Part, way: Direction, window: &Window, sent: &[Sent]) {
    let mut datagrams = StepCounts::new(window);
    sent.iter().for_each(|s| datagrams.merge(&s.datagrams));
    for s in sent {
        part.set(&of_stream(way, "offered", s.stream), s.datagrams.total() as f64);
        part.set(&of_stream(way, "missed", s.stream), s.missed as f64);
    }
    sent.iter().for_each(|s| s.controls.tell(part, &way.to_string()));
    part.set(&format!("{way}_sent_pps"), datagrams.total() as f64 / window.seconds());
    part.set(&format!("{way}_queue_full"), sent.iter().map(|s| s.queue_full + s.blocked).sum::<u64>() as f64);
    lateness::tell(part, way, sent);
    part.series.push(window.rate_series(&format!("{way}_sent_pps"), &datagrams.steps, 1.0));
}

fn sender_faults(sent: &[Sent], host: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let full: u64 = sent.iter().map(|s| s.queue_full + s.blocked).sum();
    if full > 0 {
        // Nothing is lost by it: what was refused was offered again. With a rate, what it costs shows as lateness.
        let detail = format!("the sender's own queue was full {full} times (ENOBUFS or a full send buffer)");
        faults.push(Fault::noted(FaultCode::SendBufferFull, host, detail));
    }
    faults
}

fn receiver_part(part: &mut Part, way: Direction, window: &Window, received: &[Received]) {
    let (mut datagrams, mut bytes) = (StepCounts::new(window), StepCounts::new(window));
    let mut pdv = Histogram::new();
    for r in received {
        datagrams.merge(&r.counts.datagrams);
        bytes.merge(&r.counts.bytes);
        pdv.merge(&r.counts.pdv);
    }
    let total = |of: fn(&Received) -> u64| received.iter().map(of).sum::<u64>() as f64;
    let mut set = |name: &str, value: f64| part.set(&format!("{way}_{name}"), value);
    set("reordered", total(|r| r.counts.reordered));
    set("duplicated", total(|r| r.counts.duplicated));
    set("receiver_drops", total(|r| r.counts.receiver_drops));
    set("strangers", total(|r| r.strangers));
    set("delivered", datagrams.total() as f64);
    set("delivered_pps", datagrams.total() as f64 / window.seconds());
    set("goodput_bps", bytes.total() as f64 * 8.0 / window.seconds());
    // iperf3 averages over its streams too. One of which nothing came has none.
    let alive = || received.iter().filter(|r| r.counts.received > 0);
    if alive().count() > 0 {
        set("jitter_ns", alive().map(|r| r.counts.jitter_ns).sum::<f64>() / alive().count() as f64);
    }
    for r in received {
        let mut set = |name: &str, n: u64| part.set(&of_stream(way, name, r.stream), n as f64);
        set("numbered", r.counts.sent);
        set("received", r.counts.received);
        set("dropped", r.counts.receiver_drops);
        set("late", r.missed);
        set("end_unseen", u64::from(!r.counts.end_seen));
    }
    received.iter().for_each(|r| controls::tell_received(&r.controls, part, &way.to_string()));
    part.histograms.insert(format!("{way}_pdv"), pdv.into());
    part.series.push(window.rate_series(&format!("{way}_delivered_pps"), &datagrams.steps, 1.0));
    part.series.push(window.rate_series(&format!("{way}_goodput_bps"), &bytes.steps, 8.0));
}

fn receiver_faults(received: &[Received], host: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let drops: u64 = received.iter().map(|r| r.counts.receiver_drops).sum();
    let sent: u64 = received.iter().map(|r| r.counts.sent).sum();
    if drops > 0 {
        let detail = format!(
            "the receiver's own buffer dropped {drops} of {sent} datagrams; they are not counted as lost"
        );
        let void = drops as f64 > DROPS_SHARE * sent as f64;
        faults.push(Fault { void, ..Fault::noted(FaultCode::ReceiverDrops, host, detail) });
    }
    // The kernel gives at least 1152 bytes (SOCK_MIN_RCVBUF / 2) and rounds nothing else.
    if let Some(&(wanted, given)) = received.iter().map(|r| &r.buffer).find(|(wanted, given)| given < wanted)
    {
        let detail = format!(
            "receive buffers of {given} bytes instead of {wanted}: more needs root (CAP_NET_ADMIN) or a higher net.core.rmem_max"
        );
        faults.push(Fault::noted(FaultCode::TesterResources, host, detail));
    }
    faults
}

/// The parts of one direction where both are measured.
fn of_direction(way: Direction) -> [MetricDef; 2] {
    let help = format!("the share of goodput that went in the {way} direction");
    let (name, label) = (format!("{way}_goodput_bps"), format!("{way} goodput"));
    let goodput = MetricDef::value(&name, &label, Unit::Bps, Better::Higher, &help);
    let help = format!("loss ratio of the {way} direction");
    let (name, label) = (format!("{way}_loss_ratio"), format!("{way} loss"));
    let loss = MetricDef::value(&name, &label, Unit::Ratio, Better::Lower, &help);
    [goodput, loss.by_difference().detail()]
}

/// How late a sender with a rate was.
fn lateness_metric() -> MetricDef {
    let help = "how long after its scheduled time a datagram was handed to the kernel, 99th percentile";
    MetricDef::quantile("lateness_p99_ns", "send lateness p99", "lateness", 0.99, help).detail()
}

/// Definitions of the metrics.
pub(super) fn metrics(work: &UdpStream) -> Vec<MetricDef> {
    use Better::{Higher, Lower, Neither};
    let value = MetricDef::value;
    let gso = if work.batch == Batch::Gso { ", in GSO super-packets that cross the link whole" } else { "" };
    let with = |help: &str| format!("{help}{gso}");
    let mut all = vec![
        value(
            "delivered_pps",
            "delivered",
            Unit::Pps,
            Higher,
            &with(
                "different datagrams per second that reached the receiving program in its window (RFC 2285 section 3.6.1, forwarding rate)",
            ),
        ),
        value(
            "goodput_bps",
            "goodput",
            Unit::Bps,
            Higher,
            &with("payload bits per second of these (RFC 2647 section 3.17)"),
        ),
        MetricDef {
            headline: true,
            ..MetricDef::failure(
                "loss_ratio",
                "loss",
                ("lost", "sent"),
                "share of the datagrams sent within the window that never came, without those that the receiver's own buffer dropped (RFC 7680)",
            )
        },
    ];
    let count = |name: &str, label: &str, better, help: &str| {
        value(name, label, Unit::Count, better, help).by_difference().detail()
    };
    if work.direction == Direction::Both {
        all.extend(work.direction.ways().iter().flat_map(|way| of_direction(*way)));
    }
    all.extend([
        count("sent", "sent", Neither, "datagrams numbered within the receivers' windows; of a flow that died, those of its sender's window; of one that could not begin, those that were due"),
        count("lost", "lost", Lower, "of these, never came (those that the receiver's own buffer dropped left out)"),
        count("reordered", "reordered", Lower, "of these, came after one with a greater number (RFC 4737)"),
        count("duplicated", "duplicated", Lower, "further copies of datagrams that had come (RFC 5560)"),
        count("receiver_drops", "receiver drops", Neither, "of these, dropped by the receiving socket's own full buffer (SO_RXQ_OVFL)"),
        value("sent_pps", "sent", Unit::Pps, Neither, &with("datagrams per second that the senders handed to their kernels in their windows")).detail(),
        value("jitter_ns", "RFC 3550 jitter (received)", Unit::Ns, Lower, "the estimator of RFC 3550 section 6.4.1 at the end of the window, of the datagrams received; mean of the streams that received any").by_difference().detail(),
        MetricDef::quantile("pdv_p50_ns", "PDV p50 (received)", "pdv", 0.5, "packet delay variation: delay above the least one so far (RFC 5481 section 4.2), of the datagrams received, median").detail(),
        MetricDef::quantile("pdv_p99_ns", "PDV p99 (received)", "pdv", 0.99, "packet delay variation: delay above the least one so far (RFC 5481 section 4.2), of the datagrams received, 99th percentile").detail(),
        value("tester_cpu_ns_per_datagram", "tester CPU", Unit::CpuNs, Lower, "CPU time of the sending and receiving threads, those of failed flows too, per delivered datagram").detail(),
    ]);
    all.extend(failure_metrics(
        "failed flows",
        "flows whose greeting was refused or not answered, or that delivered no datagram in their window",
    ));
    if work.rate_bps.or(work.rate_pps).is_some() {
        all.push(lateness_metric());
    }
    all
}

/// Datagrams of one direction, and the flows that none of them got through.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Fates {
    sent: f64,
    lost: f64,
    received: f64,
    failed_flows: f64,
}

impl Fates {
    fn add(&mut self, more: Fates) {
        self.sent += more.sent;
        self.lost += more.lost;
        self.received += more.received;
        self.failed_flows += more.failed_flows;
    }
}

/// Returns the fates of the datagrams of a direction between two ends.
fn fates(work: &UdpStream, ends: &[&Part], way: Direction) -> Fates {
    let get = |name: &str, flow: u32| {
        let key = of_stream(way, name, flow);
        ends.iter().find_map(|p| p.values.get(&key)).copied()
    };
    let offered: Vec<f64> = (0..work.streams).filter_map(|flow| get("offered", flow)).collect();
    // Datagrams due on a flow that could not begin: by the rate, else as many as on the others.
    let as_others = if offered.is_empty() { 1.0 } else { offered.iter().sum::<f64>() / offered.len() as f64 };
    let due = ends.iter().find_map(|p| p.values.get("due")).copied().unwrap_or(as_others).max(1.0);
    let mut all = Fates::default();
    for flow in 0..work.streams {
        let count = |name: &str| get(name, flow).unwrap_or(0.0);
        let (numbered, received) = (count("numbered"), count("received"));
        let sent = match get("offered", flow) {
            None => numbered.max(due),
            // No datagram came after the window, so the last number that came need not be the last one sent. The sender's count
            // in a window of the same length is then the better figure.
            Some(offered) if get("end_unseen", flow) != Some(0.0) => numbered.max(offered),
            Some(_) => numbered,
        };
        let sent = sent + count("missed") + count("late");
        all.sent += sent;
        all.lost += (sent - received - count("dropped")).max(0.0);
        all.received += received;
        all.failed_flows += f64::from(u8::from(received == 0.0));
    }
    all
}

/// The trial out of the parts.
pub(super) fn combine(work: &UdpStream, initiators: &[Part], responders: &[Part]) -> Part {
    let parts: Vec<Part> = initiators.iter().chain(responders).cloned().collect();
    let ways = work.direction.ways();
    let wanted = f64::from(work.streams) * (initiators.len() * ways.len()) as f64;
    let total = |name: &str| ways.iter().map(|way| sum(&parts, &format!("{way}_{name}"))).sum::<f64>();
    let mut trial = trial_of(&parts);
    for name in ["delivered_pps", "goodput_bps", "reordered", "duplicated", "receiver_drops", "sent_pps"] {
        trial.set(name, total(name));
    }
    let mut all = Fates::default();
    let mut late_spread = false;
    for way in ways {
        let mut own = Fates::default();
        for ends in pairs(initiators, responders) {
            own.add(fates(work, &ends, *way));
        }
        if ways.len() > 1 {
            let goodput = format!("{way}_goodput_bps");
            trial.set(&goodput, sum(&parts, &goodput));
            if own.sent > 0.0 {
                trial.set(&format!("{way}_loss_ratio"), own.lost / own.sent);
            }
        }
        if own.received + sum(&parts, &format!("{way}_delivered")) == 0.0 {
            trial.path.extend(controls::finding(&parts, &way.to_string()));
        }
        let late = lateness::fault(&parts, *way, own.lost);
        late_spread |= late.as_ref().is_some_and(|f| !f.void) && lateness::spread_is_its_own(&parts, *way);
        trial.faults.extend(late);
        all.add(own);
    }
    set_failed(&mut trial, wanted, all.failed_flows);
    let (all_sent, all_lost) = (all.sent, all.lost);
    trial.set("sent", all_sent);
    trial.set("lost", all_lost);
    if all_sent > 0.0 {
        trial.set("loss_ratio", all_lost / all_sent);
    }
    let receivers = parts
        .iter()
        .filter(|p| ways.iter().any(|way| p.values.contains_key(&format!("{way}_jitter_ns"))))
        .count();
    if receivers > 0 && total("delivered") > 0.0 {
        let jitters = ways
            .iter()
            .flat_map(|way| parts.iter().filter_map(move |p| p.values.get(&format!("{way}_jitter_ns"))));
        let (n, all) = jitters.fold((0, 0.0), |(n, all), j| (n + 1, all + j));
        trial.set("jitter_ns", all / f64::from(n));
        let cpu_s = trial.cpu_s;
        trial.set("tester_cpu_ns_per_datagram", cpu_s * 1e9 / total("delivered"));
    }
    add_distributions(&mut trial, &parts, ways);
    if late_spread {
        trial.values.remove("jitter_ns");
        trial.histograms.remove("pdv");
    }
    trial
}

fn add_distributions(trial: &mut Part, parts: &[Part], ways: &[Direction]) {
    for name in ["pdv", "lateness"] {
        let mut all = Delays::new();
        ways.iter().for_each(|way| all.merge(&merged(parts, &format!("{way}_{name}"))));
        if !all.is_empty() {
            trial.histograms.insert(name.to_owned(), all);
        }
    }
    for way in ways {
        for name in ["delivered_pps", "goodput_bps", "sent_pps"] {
            let key = format!("{way}_{name}");
            let own = if ways.len() == 1 { name } else { &key };
            trial.series.extend(summed(parts, &key).map(|s| renamed(s, own)));
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

    fn flow(part: &mut Part, number: u32, values: [(&str, u64); 4]) {
        values.iter().for_each(|(name, n)| part.set(&of_stream(Direction::Egress, name, number), *n as f64));
    }

    /// Four flows of which 100 datagrams are due in the window each: one loses two, one dies after 40, one is not heard of by the
    /// receiver, one does not begin.
    fn ends() -> (Part, Part) {
        let near =
            part(&[("egress_offered_0", 100.0), ("egress_offered_1", 100.0), ("egress_offered_2", 100.0)]);
        let mut far = part(&[("egress_delivered", 137.0)]);
        flow(&mut far, 0, [("numbered", 99), ("received", 97), ("dropped", 0), ("end_unseen", 0)]);
        flow(&mut far, 1, [("numbered", 40), ("received", 40), ("dropped", 0), ("end_unseen", 1)]);
        (near, far)
    }

    fn counts(trial: &Part) -> [f64; 4] {
        ["sent", "lost", "streams", "failed_streams"].map(|name| trial.value(name))
    }

    #[test]
    fn what_a_dead_flow_would_have_sent_is_lost() {
        let work = UdpStream { streams: 4, ..UdpStream::default() };
        let (mut near, far) = ends();
        // Without a rate a flow that does not begin would have sent as much as the others.
        let trial = combine(&work, std::slice::from_ref(&near), std::slice::from_ref(&far));
        assert_eq!(counts(&trial), [399.0, 262.0, 4.0, 2.0]);
        assert_eq!(trial.faults, []);
        near.set("due", 150.0);
        let trial = combine(&work, &[near], &[far]);
        assert_eq!(counts(&trial), [449.0, 312.0, 4.0, 2.0]);
        assert!(!trial.values.contains_key("jitter_ns"), "no flow has any");
    }

    #[test]
    fn what_was_due_before_a_late_flow_stood_is_lost() {
        let work = UdpStream::default();
        let near = part(&[("egress_offered_0", 70.0), ("egress_missed_0", 30.0)]);
        let mut far = Part::default();
        flow(&mut far, 0, [("numbered", 70), ("received", 60), ("dropped", 10), ("end_unseen", 0)]);
        // Drops of the own buffer are not losses.
        assert_eq!(counts(&combine(&work, &[near], &[far])), [100.0, 30.0, 1.0, 0.0]);
    }

    #[test]
    fn nothing_seen_at_all_is_a_loss_of_everything() {
        let work = UdpStream { streams: 3, direction: Direction::Both, ..UdpStream::default() };
        let trial = combine(&work, &[Part::default()], &[Part::default()]);
        assert_eq!((trial.faults.len(), counts(&trial)), (0, [6.0, 6.0, 6.0, 6.0]));
        for (name, value) in [("loss_ratio", 1.0), ("egress_loss_ratio", 1.0), ("delivered_pps", 0.0)] {
            assert_eq!(trial.values.get(name), Some(&value), "{name}");
        }
    }

    #[test]
    fn flows_that_got_nothing_do_not_lower_the_jitter() {
        let setting =
            crate::TrialSettings::new(std::time::Duration::ZERO, std::time::Duration::from_secs(1), 1);
        let window = Window::new(&setting);
        let received = |stream, received, jitter_ns| {
            let counts = crate::udp_stream::meter::Meter::new(&window).finish();
            let counts = crate::udp_stream::meter::Counts { received, jitter_ns, ..counts };
            Received {
                stream,
                missed: 0,
                counts,
                strangers: 0,
                controls: std::collections::BTreeMap::new(),
                buffer: (0, 0),
                cpu_s: 0.0,
                cut_short: false,
            }
        };
        let mut part = Part::default();
        receiver_part(&mut part, Direction::Egress, &window, &[received(0, 10, 800.0), received(1, 0, 0.0)]);
        assert_eq!(part.value("egress_jitter_ns"), 800.0);
    }
}
