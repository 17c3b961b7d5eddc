//! The meaning of each procedure's findings.

use weir_record::{Better, MetricDef, Unit};

use super::Delay;
use super::delay::{VARIATION, WORST};
use crate::workload::{Packets, Procedure};

impl Packets {
    /// The metrics that the procedure's [`super::Findings`] hold, headline ones first, where delay is measured like that.
    pub fn metrics(&self, delay: Delay) -> Vec<MetricDef> {
        let mut all = match self.procedure {
            Procedure::Rate => rate(self, delay),
            Procedure::Throughput => throughput(
                "Greatest rate from initiator to responder that is carried whole (RFC 1242, RFC 2544 section 26.1): the relevant lower bound of the search.",
            ),
            Procedure::ThroughputBidirectional => throughput(
                "Greatest rate, of each direction, that is carried whole with frames both ways over existing connections (RFC 9693).",
            ),
            Procedure::FrameLoss => frame_loss(),
            Procedure::BackToBack => back_to_back(),
            Procedure::Latency => latency(self, delay),
            Procedure::Pdv => pdv(self, delay),
            Procedure::Establishment => establishment(false),
            Procedure::EstablishmentValidated => establishment(true),
            Procedure::TearDown => tear_down(),
            Procedure::Capacity => capacity(),
        };
        all.extend(common(self.procedure));
        all
    }
}

fn pps(name: &str, label: &str, help: &str) -> MetricDef {
    MetricDef::value(name, label, Unit::Pps, Better::Higher, help)
}

fn per_second(name: &str, label: &str, help: &str) -> MetricDef {
    MetricDef::value(name, label, Unit::PerSecond, Better::Higher, help)
}

fn ns(name: &str, label: &str, help: &str) -> MetricDef {
    MetricDef::value(name, label, Unit::Ns, Better::Lower, help)
}

fn neither(name: &str, label: &str, unit: Unit, help: &str) -> MetricDef {
    MetricDef::value(name, label, unit, Better::Neither, help).by_difference().detail()
}

fn loss(help: &str) -> MetricDef {
    MetricDef::failure("loss_ratio", "loss", ("lost", "sent"), help)
}

fn rate(packets: &Packets, delay: Delay) -> Vec<MetricDef> {
    let mut all = vec![
        pps("forwarding_rate_pps", "forwarding rate", "Frames that arrived once and unaltered, per second of all the time in which frames were sent or arrived (RFC 2285 section 3.6.1)."),
        ns("ns_per_packet", "time per packet", "1e9 by the forwarding rate: what each frame costs where the path is busy all the time. It adds up along a path. All of the time if nothing arrived.").by_difference(),
        pps(
            "adjusted_rate_pps",
            "speed-adjusted rate",
            "Forwarding rate as it would be on an uninterrupted core of a set speed, by the time that the same frames take through a router that only forwards, in slices of 2 ms in turn with the gateway: it varies less, and is not what was forwarded. 400 ns a frame there is the set speed. Only in the lab, by XDP, from one core, without a rate.",
        )
        .detail(),
        neither(
            "core_speed_ratio",
            "core's speed",
            Unit::Ratio,
            "How fast the sender's core took frames through that router, by the set speed: where it varies between trials, the machine does.",
        ),
        loss("Share of the frames sent that did not arrive."),
        pps(
            "delivered_pps",
            "delivered",
            "The forwarding rate by the name that datagrams through sockets have, so that both can be compared.",
        )
        .detail(),
        neither("offered_pps", "offered", Unit::Pps, "Frames sent per second (RFC 2285 section 3.5.2)."),
    ];
    if packets.stamps() {
        let quantiles = delays(delay, "frames at the offered rate");
        all.extend(quantiles.into_iter().map(MetricDef::detail));
    }
    all
}

fn throughput(help: &str) -> Vec<MetricDef> {
    let mut all = vec![pps("throughput_pps", "throughput", help)];
    all.extend(bounds());
    all
}

/// Metrics reported with every throughput.
fn bounds() -> Vec<MetricDef> {
    vec![
        pps(
            "throughput_upper_pps",
            "upper bound",
            "Least rate that was found to be too high; absent if none was.",
        )
        .detail(),
        pps(
            "conditional_throughput_pps",
            "conditional throughput",
            "The rate typically forwarded at the throughput rate (RFC 9971): less only if loss-ratio allows losses.",
        )
        .detail(),
        ns(
            "queue_drain_ns",
            "queues drained",
            "How long frames still arrived after the last one was sent, beyond the path's delay: median of the trials at the throughput. Queues of the hop held that part of a trial's frames.",
        )
        .by_difference()
        .detail(),
        neither(
            "offered_max_pps",
            "greatest rate tried",
            Unit::Pps,
            "Start of the search: max-rate, or the rate that the sender keeps up.",
        ),
    ]
}

fn frame_loss() -> Vec<MetricDef> {
    let mut all = vec![
        MetricDef {
            headline: true,
            ..loss("Share of the frames that was lost at the greatest rate (RFC 2544 section 26.3).")
        },
        pps(
            "forwarding_rate_pps",
            "forwarding rate",
            "Frames that arrived per second at the greatest rate (RFC 2285 section 3.6.2).",
        )
        .detail(),
        neither(
            "offered_pps",
            "offered",
            Unit::Pps,
            "The greatest rate: max-rate, or what the sender keeps up.",
        ),
    ];
    all.extend((10..=100).rev().step_by(10).map(|percent| {
        let help =
            format!("Share lost at {percent} % of the greatest rate; absent below two steps without loss.");
        let name = format!("loss_ratio_at_{percent}");
        let label = format!("loss at {percent} %");
        let (lost, sent) = (format!("lost_at_{percent}"), format!("sent_at_{percent}"));
        MetricDef::failure(&name, &label, (&lost, &sent), &help)
    }));
    all
}

fn back_to_back() -> Vec<MetricDef> {
    let higher =
        |name: &str, label: &str, unit, help: &str| MetricDef::value(name, label, unit, Better::Higher, help);
    let mut all = vec![
        higher(
            "back_to_back_frames",
            "back-to-back",
            Unit::Count,
            "Longest burst at the greatest rate that is carried whole (RFC 2544 section 26.4, RFC 9004), mean of all searches.",
        ),
        higher(
            "corrected_buffer_time_ns",
            "buffer time",
            Unit::Ns,
            "The burst's length in time, less what went out while it came in (RFC 9004 section 5).",
        ),
        higher("buffer_time_ns", "implied buffer time", Unit::Ns, "The burst's length in time.").detail(),
        neither("burst_pps", "burst rate", Unit::Pps, "Rate within the bursts."),
        pps("throughput_pps", "throughput", "Greatest rate that is carried whole, found first.").detail(),
    ];
    all.extend(bounds());
    all
}

fn delays(of: Delay, what: &str) -> Vec<MetricDef> {
    let (name, label, meaning) = match of {
        Delay::OneWay => ("delay", "delay", "one-way delay"),
        Delay::RoundTrip => {
            ("rtt", "round trip", "round-trip delay (RFC 2681; the hosts' clocks differ), there and back,")
        }
    };
    let quantile = |short: &str, q: f64, which: &str| {
        let help = format!("{which} of the {meaning} of {what}; lost ones count as infinite.");
        let (name, label) = (format!("{name}_{}_ns", short.replace('.', "")), format!("{label} {short}"));
        MetricDef::quantile(&name, &label, of.histogram(), q, &help)
    };
    vec![
        quantile("p50", 0.5, "Median"),
        quantile("p99.9", WORST, "99.9th percentile"),
        quantile("p99", 0.99, "99th percentile").detail(),
    ]
}

/// Metrics reported with the rate at which delay was measured.
fn at_rate(packets: &Packets) -> Vec<MetricDef> {
    let mut all = vec![
        loss("Share of the frames lost while delay was measured."),
        neither("offered_pps", "offered", Unit::Pps, "Rate at which delay was measured."),
    ];
    if packets.rate.is_none() {
        all.push(
            pps("throughput_pps", "throughput", "Greatest rate that is carried whole, found first.").detail(),
        );
        all.extend(bounds());
    }
    all
}

fn latency(packets: &Packets, delay: Delay) -> Vec<MetricDef> {
    let what = "tagged frames at the throughput rate (RFC 8219 section 7.2: typical and worst-case latency)";
    let mut all = delays(delay, what);
    all.extend(at_rate(packets));
    all
}

fn pdv(packets: &Packets, delay: Delay) -> Vec<MetricDef> {
    let (label, help) = match delay {
        Delay::OneWay => (
            "PDV",
            "Packet delay variation: 99.9th percentile less the least of the delay of all frames at the throughput rate (RFC 8219 section 7.3.1); infinite if more than 0.1 % of them were lost.",
        ),
        Delay::RoundTrip => (
            "round-trip PDV",
            "Variation of the round trip, of both ways together: 99.9th percentile less the least of all frames at the throughput rate (as RFC 8219 section 7.3.1 has it for one way); infinite if more than 0.1 % of them were lost.",
        ),
    };
    let mut all = vec![MetricDef::quantile("pdv_ns", label, VARIATION, WORST, help)];
    all.extend(delays(delay, "frames at the throughput rate").into_iter().map(MetricDef::detail));
    all.extend(at_rate(packets));
    all
}

fn establishment(validated: bool) -> Vec<MetricDef> {
    let plain = per_second(
        "establishment_per_s",
        "connections",
        "Greatest rate of new connections whose first frames all arrive, from an empty table (RFC 9693).",
    );
    let mut all = if validated {
        let help = "The same, if afterwards a frame comes back over every one of them (RFC 9693).";
        vec![per_second("validated_establishment_per_s", "validated", help), plain.detail()]
    } else {
        vec![plain]
    };
    all.extend([
        per_second(
            "establishment_upper_per_s",
            "upper bound",
            "Least rate, not validated, that was found to be too high; absent if none was.",
        )
        .detail(),
        neither(
            "offered_max_per_s",
            "greatest rate tried",
            Unit::PerSecond,
            "Start of the search: max-rate, or the rate that the sender keeps up.",
        ),
    ]);
    all
}

fn tear_down() -> Vec<MetricDef> {
    vec![
        per_second(
            "teardown_per_s",
            "torn down",
            "Connections by the time that emptying the table takes longer than emptying an empty one (RFC 9693), median; 0 if the table did not hold all of them.",
        ),
        MetricDef::failure(
            "lacking_ratio",
            "not held",
            ("connections_lacking", "connections_tried"),
            "Share of the connections made that the table did not hold when it was emptied.",
        ),
        ns("flush_full_ns", "flush, full", "Time to empty the full table, median.").detail(),
        ns("flush_empty_ns", "flush, empty", "Time to empty the empty table, median.").detail(),
    ]
}

fn capacity() -> Vec<MetricDef> {
    vec![
        MetricDef::value(
            "capacity_connections",
            "capacity",
            Unit::Count,
            Better::Higher,
            "Most connections that can be made and validated without the rate breaking down (RFC 9693).",
        ),
        per_second(
            "capacity_establishment_per_s",
            "connections",
            "Rate at which so many connections were offered, and validated.",
        )
        .detail(),
    ]
}

/// Metrics counted in every procedure.
fn common(procedure: Procedure) -> Vec<MetricDef> {
    let count = |name: &str, label: &str, help: &str| {
        MetricDef::value(name, label, Unit::Count, Better::Lower, help).by_difference().detail()
    };
    let mut all = Vec::new();
    if procedure.fills() {
        all.push(MetricDef::failure(
            "unopened_ratio",
            "not opened",
            ("flows_unopened", "flows_tried"),
            "Share of the flows that could not be opened at any rate, by four frames each, before frames of existing ones were sent.",
        ));
    }
    all.extend([
        neither(
            "tracked_connections",
            "tracked",
            Unit::Count,
            "Entries of the gateway's table after all flows had been opened.",
        ),
        count(
            "mistranslated",
            "mistranslated",
            "Frames whose addresses or ports were not those of their flow.",
        ),
        count("reordered", "reordered", "Frames that came after a later one (RFC 4737), in all transfers."),
        count("duplicated", "duplicated", "Further copies of frames (RFC 5560), in all transfers."),
        neither("transfers", "transfers", Unit::Count, "Transfers made."),
        count(
            "void_transfers",
            "void transfers",
            "Transfers made anew, because the sender did not keep up its rate.",
        ),
        count("refused", "refused", "Frames that the sender's own kernel refused."),
        ns("late_max_ns", "sender late", "Greatest distance of the sender behind its schedule.")
            .by_difference()
            .detail(),
    ]);
    let help = "CPU time of the sending threads per frame sent. In the lab it holds what their core does for the gateway.";
    all.push(
        MetricDef::value("tester_cpu_ns_per_packet", "sender CPU", Unit::CpuNs, Better::Neither, help)
            .detail(),
    );
    all
}
