//! From what the streams saw to the trial's metrics.

use weir_record::{Better, Fault, FaultCode, MetricDef, Unit};
use weir_stats::Histogram;

use super::controls;
use super::receive::Received;
use super::send::Sent;
use super::{Batch, UdpStream};
use crate::part::{merged, sum};
use crate::series::{renamed, summed};
use crate::streams::{Outcomes, Sorted, StreamEnd, missing_streams, trial_of};
use crate::window::{Tally, Window};
use crate::{Direction, Error, Part};

/// Lateness from which a sender may itself be the cause of loss: Linux's default queues on the way (net.core.netdev_max_backlog
/// and txqueuelen, 1000 packets each) hold what a stall of 1 ms sets free at once, up to a million datagrams a second.
const LATE_NS: u64 = 1_000_000;

/// Share of datagrams that may be late before the trial is void: one in a hundred moves no quantile up to p99, and bursts
/// of a hypervisor's steal stay below it.
const LATE_SHARE: f64 = 0.01;

/// Least share of the wanted datagrams that must have left in the window for the trial to be one of that rate.
const RATE_KEPT: f64 = 0.999;

/// Share of the datagrams that the receiver's own buffer may drop before the trial is void. They are subtracted from the
/// loss, so only the rate is understated, and by no more than this.
const DROPS_SHARE: f64 = 0.001;

/// What one end reports. Fails if no stream at all could be run.
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
    let cut = sent.iter().map(|s| s.cut_short && !s.refused).chain(received.iter().map(|r| r.cut_short));
    let cut = cut.filter(|&c| c).count();
    if cut > 0 {
        let why = if end.setting.stop.raised() { "were stopped" } else { "found the other end done" };
        let detail =
            format!("{cut} of {} streams {why} before their window was over", sent.len() + received.len());
        part.faults.push(Fault::void(FaultCode::Interrupted, host, detail));
    }
    part.faults.extend(streams.faults(end.side));
    Ok(part)
}

fn lateness(sent: &[Sent]) -> Histogram {
    let mut all = Histogram::new();
    sent.iter().for_each(|s| all.merge(&s.lateness));
    all
}

fn sender_part(part: &mut Part, way: Direction, window: &Window, sent: &[Sent]) {
    let mut datagrams = Tally::new(window);
    sent.iter().for_each(|s| datagrams.merge(&s.datagrams));
    part.set(&format!("{way}_offered"), datagrams.total() as f64);
    sent.iter().for_each(|s| s.controls.tell(part, &way.to_string()));
    part.set(&format!("{way}_sent_pps"), datagrams.total() as f64 / window.seconds());
    part.set(&format!("{way}_queue_full"), sent.iter().map(|s| s.queue_full + s.blocked).sum::<u64>() as f64);
    if sent.iter().any(|s| s.wanted.is_some()) {
        part.histograms.insert(format!("{way}_lateness"), lateness(sent));
    }
    part.series.push(window.rate_series(&format!("{way}_sent_pps"), &datagrams.steps, 1.0));
}

fn sender_faults(sent: &[Sent], host: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let refused = sent.iter().filter(|s| s.refused).count();
    if refused > 0 {
        let detail = format!("{refused} of {} streams were refused (ICMP port unreachable)", sent.len());
        faults.push(Fault::void(FaultCode::ConnectionFailed, host, detail));
    }
    let full: u64 = sent.iter().map(|s| s.queue_full + s.blocked).sum();
    if full > 0 {
        // Nothing is lost by it: what was refused was offered again. With a rate, what it costs shows as lateness.
        let detail = format!("the sender's own queue was full {full} times (ENOBUFS or a full send buffer)");
        faults.push(Fault::noted(FaultCode::SendBufferFull, host, detail));
    }
    let wanted: f64 = sent.iter().filter_map(|s| s.wanted).sum();
    if wanted > 0.0 && sent.iter().all(|s| !s.cut_short) {
        let left: u64 = sent.iter().map(|s| s.datagrams.total()).sum();
        faults.extend(late_fault(&lateness(sent), left as f64 / wanted, host));
    }
    faults
}

fn late_fault(lateness: &Histogram, kept: f64, host: &str) -> Option<Fault> {
    let late: u64 = lateness.buckets().filter(|(ns, _)| *ns > LATE_NS).map(|(_, n)| n).sum();
    let share = late as f64 / lateness.len().max(1) as f64;
    let detail = format!(
        "{:.3} % of the set rate left, {:.2} % of it more than 1 ms late, the latest by {:.1} ms",
        kept * 100.0,
        share * 100.0,
        lateness.max() as f64 / 1e6
    );
    if kept < RATE_KEPT || share > LATE_SHARE {
        return Some(Fault::void(FaultCode::LateSends, host, detail));
    }
    (late > 0).then(|| Fault::noted(FaultCode::LateSends, host, detail))
}

fn receiver_part(part: &mut Part, way: Direction, window: &Window, received: &[Received]) {
    let (mut datagrams, mut bytes) = (Tally::new(window), Tally::new(window));
    let mut pdv = Histogram::new();
    for r in received {
        datagrams.merge(&r.counts.datagrams);
        bytes.merge(&r.counts.bytes);
        pdv.merge(&r.counts.pdv);
    }
    let total = |of: fn(&Received) -> u64| received.iter().map(of).sum::<u64>() as f64;
    let mut set = |name: &str, value: f64| part.set(&format!("{way}_{name}"), value);
    set("streams", received.len() as f64);
    set("sent", total(|r| r.counts.sent));
    set("received", total(|r| r.counts.received));
    set("reordered", total(|r| r.counts.reordered));
    set("duplicated", total(|r| r.counts.duplicated));
    set("receiver_drops", total(|r| r.counts.receiver_drops));
    set("ends_unseen", total(|r| u64::from(!r.counts.end_seen)));
    set("strangers", total(|r| r.strangers));
    set("delivered", datagrams.total() as f64);
    set("delivered_pps", datagrams.total() as f64 / window.seconds());
    set("goodput_bps", bytes.total() as f64 * 8.0 / window.seconds());
    // iperf3 averages over its streams too.
    set("jitter_ns", received.iter().map(|r| r.counts.jitter_ns).sum::<f64>() / received.len() as f64);
    received.iter().for_each(|r| controls::tell_received(&r.controls, part, &way.to_string()));
    part.histograms.insert(format!("{way}_pdv"), pdv);
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

/// Definitions of the metrics.
pub(super) fn metrics(work: &UdpStream) -> Vec<MetricDef> {
    use Better::{Higher, Lower, Neither};
    let value = MetricDef::value;
    let gso = if work.batch == Batch::Gso { ", in GSO super-packets that cross the link whole" } else { "" };
    let with = |help: &str| format!("{help}{gso}");
    let mut all = vec![
        value("delivered_pps", "delivered", Unit::Pps, Higher, &with("different datagrams per second that reached the receiving program in its window (RFC 2285 section 3.6.1, forwarding rate)")),
        value("goodput_bps", "goodput", Unit::Bps, Higher, &with("payload bits per second of these (RFC 2647 section 3.17)")),
        value("loss_ratio", "loss", Unit::Ratio, Lower, "share of the datagrams numbered within the window that never came, without those that the receiver's own buffer dropped (RFC 7680)").by_difference(),
    ];
    let count = |name: &str, label: &str, better, help: &str| {
        value(name, label, Unit::Count, better, help).by_difference().detail()
    };
    if work.direction == Direction::Both {
        all.extend(work.direction.ways().iter().flat_map(|way| of_direction(*way)));
    }
    all.extend([
        count("sent", "sent", Neither, "datagrams numbered within the receivers' windows"),
        count("lost", "lost", Lower, "of these, never came (those that the receiver's own buffer dropped left out)"),
        count("reordered", "reordered", Lower, "of these, came after one with a greater number (RFC 4737)"),
        count("duplicated", "duplicated", Lower, "further copies of datagrams that had come (RFC 5560)"),
        count("receiver_drops", "receiver drops", Neither, "of these, dropped by the receiving socket's own full buffer (SO_RXQ_OVFL)"),
        value("sent_pps", "sent", Unit::Pps, Neither, &with("datagrams per second that the senders handed to their kernels in their windows")).detail(),
        value("jitter_ns", "RFC 3550 jitter", Unit::Ns, Lower, "the estimator of RFC 3550 section 6.4.1 at the end of the window, mean of the streams").by_difference().detail(),
        MetricDef::quantile("pdv_p50_ns", "PDV p50", "pdv", 0.5, "packet delay variation: delay above the least one so far (RFC 5481 section 4.2), median").detail(),
        MetricDef::quantile("pdv_p99_ns", "PDV p99", "pdv", 0.99, "packet delay variation: delay above the least one so far (RFC 5481 section 4.2), 99th percentile").detail(),
        value("tester_cpu_ns_per_datagram", "tester CPU", Unit::CpuNs, Lower, "CPU time of the sending and receiving threads per delivered datagram").detail(),
    ]);
    if work.rate_bps.or(work.rate_pps).is_some() {
        all.push(
            MetricDef::quantile(
                "lateness_p99_ns",
                "send lateness p99",
                "lateness",
                0.99,
                "how long after its scheduled time a datagram was handed to the kernel, 99th percentile",
            )
            .detail(),
        );
    }
    all
}

/// Sent and lost datagrams of one direction.
fn loss(parts: &[Part], way: Direction) -> (f64, f64) {
    let get = |name: &str| sum(parts, &format!("{way}_{name}"));
    let mut sent = get("sent");
    // Nothing came after the window of some stream, so the last number seen need not be the last one sent. What the
    // senders counted in windows of the same length is then the better figure.
    if get("ends_unseen") > 0.0 {
        sent = sent.max(get("offered"));
    }
    (sent, (sent - get("received") - get("receiver_drops")).max(0.0))
}

/// The trial out of the parts.
pub(super) fn combine(work: &UdpStream, initiators: &[Part], responders: &[Part]) -> Part {
    let parts: Vec<Part> = initiators.iter().chain(responders).cloned().collect();
    let ways = work.direction.ways();
    let wanted = f64::from(work.streams) * initiators.len() as f64;
    let total = |name: &str| ways.iter().map(|way| sum(&parts, &format!("{way}_{name}"))).sum::<f64>();
    let mut trial = trial_of(&parts);
    for name in ["delivered_pps", "goodput_bps", "reordered", "duplicated", "receiver_drops", "sent_pps"] {
        trial.set(name, total(name));
    }
    let (mut all_sent, mut all_lost) = (0.0, 0.0);
    for way in ways {
        let (sent, lost) = loss(&parts, *way);
        all_sent += sent;
        all_lost += lost;
        if ways.len() > 1 {
            let goodput = format!("{way}_goodput_bps");
            trial.set(&goodput, sum(&parts, &goodput));
            if sent > 0.0 {
                trial.set(&format!("{way}_loss_ratio"), lost / sent);
            }
        }
        trial.faults.extend(missing_streams(&parts, *way, wanted, "have a receiver"));
        let came = sum(&parts, &format!("{way}_received")) + sum(&parts, &format!("{way}_delivered"));
        if sent > 0.0 && came == 0.0 {
            trial.path.extend(controls::finding(&parts, &way.to_string()));
        }
    }
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
    trial
}

fn add_distributions(trial: &mut Part, parts: &[Part], ways: &[Direction]) {
    for name in ["pdv", "lateness"] {
        let mut all = Histogram::new();
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
