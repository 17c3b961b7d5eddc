//! The `packets` procedures find the known properties of a gateway: a loss, a rate, a delay, the size of a table,
//! and connections that it forgot.

mod measure;

use std::collections::BTreeMap;
use std::time::Duration;

use measure::{Measured, Resident, bench, turn, world};
use weir_lab::impair::{Impairment, Way};
use weir_lab::{Lab, LabOptions, Role, SiteSpec, Topology};
use weir_netlink::ethtool::Ethtool;
use weir_record::{FaultCode, Trial, Unit};
use weir_testkit::{World, holds, measured};

const NFT: &str = "nft";
const TC: &str = "tc";
const IPTABLES: &str = "iptables";
const ETHTOOL: &str = "ethtool";

/// A machine that is busy with other things loses frames itself now and then, but not each time. A procedure that finds
/// the wrong value does so each time.
const NEEDED: usize = 2;
const ATTEMPTS: usize = 4;

/// A scenario in the lab. Nothing is void because a hypervisor takes time: an attempt that it spoils is made again.
fn scenario(testbed: &str, rounds: u32, duration: &str, entries: &str) -> String {
    format!(
        "name = \"truth\"\ntitle = \"A test\"\n[testbed]\nkind = \"lab\"\n{testbed}\n[plan]\nbudget = \"60s\"\n\
         max-steal = 1.0\ntwin = false\nmin-rounds = {rounds}\nmax-rounds = {rounds}\nwarmup = \"0ms\"\n\
         duration = \"{duration}\"\n{entries}"
    )
}

/// The hop without translation, with something done to it on top.
fn routed_with(apply: &str, remove: &str) -> String {
    format!(
        "[[variant]]\nname = \"hop\"\nkind = \"custom\"\nseen-source = \"inside\"\n\
         apply.gateway = [\"sysctl -qw net.ipv4.ip_forward=1\", \"{apply}\"]\n\
         remove.gateway = [\"{remove}\", \"sysctl -qw net.ipv4.ip_forward=0\"]\n"
    )
}

fn workload(options: &str) -> String {
    format!("[[workload]]\nname = \"w\"\nkind = \"packets\"\n{options}\n")
}

/// The values of a metric, trial by trial.
fn values(measured: &Measured, metric: &str) -> Vec<f64> {
    measured.by_trial("w", metric, &measured.run.variants[0].name)
}

/// Runs a scenario until a value is right, a few times at most.
#[track_caller]
fn is_right(world: &World, text: &str, metric: &str, right: impl Fn(f64) -> bool) {
    measured(NEEDED, ATTEMPTS, |attempt| {
        let measured = bench(world, text);
        let value = values(&measured, metric)[0];
        println!("attempt {attempt}: {metric} = {value}");
        right(value)
    });
}

#[test]
fn root_measured_every_hundredth_frame_lost_is_one_percent() {
    let Some(world) = world(&[NFT]) else { return };
    let _turn = turn();
    measured(NEEDED, ATTEMPTS, |_| holds(|| one_percent_is_lost(&world)));
}

fn one_percent_is_lost(world: &World) {
    // A frame of 64 bytes has 18 of payload behind 8 of UDP: nothing else here has that length.
    let hop = routed_with(
        "nft 'table ip truth { chain c { type filter hook forward priority 0; udp length 26 numgen inc mod 100 == 0 drop; }; }'",
        "nft delete table ip truth",
    );
    let entries = format!("{hop}{}", workload("rate = 50000"));
    let measured = bench(world, &scenario("", 7, "200ms", &entries));
    let lost = measured.value("w", "loss_ratio", "hop");
    let (low, high) = lost.interval.unwrap_or_else(|| panic!("{lost:?}"));
    println!("{lost:?}");
    assert!(low <= 0.01 + 1e-9 && 0.01 - 1e-9 <= high && high - low < 0.002, "{lost:?}");
    for metric in ["duplicated", "reordered", "mistranslated"] {
        assert!(values(&measured, metric).iter().all(|n| *n == 0.0), "{metric}");
    }
}

/// Runs a scenario until the first trial of its first variant is right, a few times at most. A trial that a disturbed machine
/// spoilt lacks values, and is not right.
#[track_caller]
fn trial_is_right(world: &World, text: &str, right: impl Fn(&Trial) -> bool) -> Measured {
    let mut last = None;
    measured(NEEDED, ATTEMPTS, |attempt| {
        let measured = bench(world, text);
        let trial = &measured.run.trials[0];
        println!("attempt {attempt}: {:?} {:?}", trial.metrics, trial.faults);
        let holds = right(trial);
        last = Some(measured);
        holds
    });
    last.expect("at least one attempt")
}

/// A value of a trial; not a number if it is not there.
fn value(trial: &Trial, metric: &str) -> f64 {
    trial.metrics.get(metric).copied().unwrap_or(f64::NAN)
}

/// The unit of a metric of the one workload.
#[track_caller]
fn unit(measured: &Measured, metric: &str) -> Unit {
    let metrics = &measured.run.workloads[0].metrics;
    metrics.iter().find(|m| m.name == metric).unwrap_or_else(|| panic!("no {metric} in {metrics:?}")).unit
}

#[test]
fn root_measured_every_hundredth_frame_lost_is_the_frame_loss_at_every_rate() {
    let Some(world) = world(&[NFT]) else { return };
    let _turn = turn();
    let hop = routed_with(
        "nft 'table ip truth { chain c { type filter hook forward priority 0; udp length 26 numgen inc mod 100 == 0 drop; }; }'",
        "nft delete table ip truth",
    );
    let options = "procedure = \"frame-loss\"\nsearch = \"quick\"\nmax-rate = 50000";
    let entries = format!("{hop}{}", workload(options));
    // A fifth of a second at the greatest rate is 10,000 frames, at a tenth of it 1,000; the count of a hundred begins anywhere.
    let found = |trial: &Trial, percent: u32| {
        let frames = 100.0 * f64::from(percent);
        (value(trial, &format!("loss_ratio_at_{percent}")) - 0.01).abs() <= 1.0 / frames + 1e-9
    };
    let measured = trial_is_right(&world, &scenario("", 1, "1s", &entries), |trial| {
        value(trial, "offered_pps") == 50_000.0
            && value(trial, "loss_ratio") == value(trial, "loss_ratio_at_100")
            && (10..=100).step_by(10).all(|percent| found(trial, percent))
    });
    assert_eq!((unit(&measured, "offered_pps"), unit(&measured, "loss_ratio")), (Unit::Pps, Unit::Ratio));
}

#[test]
fn root_measured_the_queue_of_a_bucket_is_the_longest_burst() {
    let Some(world) = world(&[TC]) else { return };
    let _turn = turn();
    let hop = routed_with(
        "tc qdisc add dev outside root tbf rate 100mbit burst 4kb limit 100kb",
        "tc qdisc del dev outside root",
    );
    // At 200,000 frames a second the core of a slow machine's gateway falls behind, and its own backlog holds part of the burst.
    // tbf counts frames with Ethernet's header and without the check sequence. A burst finds the bucket and the queue, and what
    // leaves meanwhile.
    let (frame, rate, offered) = (508.0, 100e6 / 8.0 / 508.0, 100_000.0);
    let truth = 104.0 * 1024.0 / frame / (1.0 - rate / offered);
    let options =
        "procedure = \"back-to-back\"\nsearch = \"quick\"\nflows = 100\nframe-bytes = 512\nmax-rate = 100000";
    let entries = format!("{hop}{}", workload(options));
    let measured = trial_is_right(&world, &scenario("", 1, "1s", &entries), |trial| {
        let frames = value(trial, "back_to_back_frames");
        // The gateway's core takes frames in batches, and so finds the queue fuller or emptier than a steady stream would.
        (frames / truth - 1.0).abs() < 0.2
            && (value(trial, "buffer_time_ns") / (frames / offered * 1e9) - 1.0).abs() < 0.05
    });
    let units = ["back_to_back_frames", "buffer_time_ns"].map(|metric| unit(&measured, metric));
    assert_eq!(units, [Unit::Count, Unit::Ns]);
}

#[test]
fn root_measured_in_both_directions_what_is_lost_in_one_counts() {
    let Some(world) = world(&[NFT]) else { return };
    let _turn = turn();
    // Only of what comes back, every hundredth: half a percent of all. A little more is borne, so that all that is tried is carried,
    // of each direction, and half a percent less comes through.
    let hop = routed_with(
        "nft 'table ip truth { chain c { type filter hook forward priority 0; iifname outside udp length 26 numgen inc mod 100 == 0 drop; }; }'",
        "nft delete table ip truth",
    );
    let options = "procedure = \"throughput-bidirectional\"\nsearch = \"quick\"\nflows = 100\nmax-rate = 5000\nloss-ratio = 0.006";
    let entries = format!("{hop}{}", workload(options));
    trial_is_right(&world, &scenario("", 1, "1s", &entries), |trial| {
        let through = value(trial, "conditional_throughput_pps");
        value(trial, "throughput_pps") == 5000.0
            && (through / (5000.0 * 0.995) - 1.0).abs() < 0.001
            && value(trial, "mistranslated") == 0.0
    });
}

#[test]
fn root_measured_connections_of_a_nat_are_torn_down() {
    let Some(world) = world(&[NFT]) else { return };
    let _turn = turn();
    let options = "procedure = \"tear-down\"\nsearch = \"quick\"\nflows = 20000";
    let entries = format!("[[variant]]\nkind = \"nft-masquerade\"\n{}", workload(options));
    let measured = trial_is_right(&world, &scenario("", 1, "1s", &entries), |trial| {
        // From the medians of both times follows nearly the median of the rates.
        let net_s = (value(trial, "flush_full_ns") - value(trial, "flush_empty_ns")) / 1e9;
        value(trial, "tracked_connections") == 20_000.0
            && (0.2..5.0).contains(&(value(trial, "teardown_per_s") / (20_000.0 / net_s)))
    });
    assert_eq!(unit(&measured, "teardown_per_s"), Unit::PerSecond);
}

#[test]
fn root_measured_one_way_delay_and_its_variation_are_those_of_the_frames_that_were_stamped() {
    let Some(world) = world(&[NFT]) else { return };
    let _turn = turn();
    // 20,000 tagged frames are asked for, so that all 2,500 of this stream are.
    for procedure in ["latency", "pdv"] {
        let options = format!("procedure = \"{procedure}\"\nsearch = \"quick\"\nrate = 5000");
        let entries = format!("[[variant]]\nkind = \"nft-masquerade\"\n{}", workload(&options));
        let measured = trial_is_right(&world, &scenario("", 1, "500ms", &entries), |trial| {
            let Some(delay) = trial.histograms.get("delay").map(|all| all.answered()) else { return false };
            let quantile = |q| delay.quantile(q).unwrap_or(0);
            let variation = (quantile(0.999) - delay.min()) as f64;
            let all = delay.len() == 2500 && value(trial, "loss_ratio") == 0.0;
            // Less the least, a delay may fall into a bucket of another width: 0.1 % of it.
            let varies = trial.histograms.get("pdv").and_then(|all| all.quantile(0.999)).map(|pdv| pdv.value);
            let near = varies.is_some_and(|pdv| (pdv - variation).abs() <= 0.002 * variation);
            all && 0 < quantile(0.5) && quantile(0.5) <= quantile(0.999) && (procedure == "latency" || near)
        });
        let headline = if procedure == "latency" { "delay_p50_ns" } else { "pdv_ns" };
        assert_eq!(measured.run.workloads[0].metrics[0].name, headline);
        assert_eq!(unit(&measured, headline), Unit::Ns);
    }
}

#[test]
fn root_measured_every_second_frame_lost_is_a_result_and_no_delay() {
    let Some(world) = world(&[NFT]) else { return };
    let _turn = turn();
    let hop = routed_with(
        "nft 'table ip truth { chain c { type filter hook forward priority 0; udp length 26 numgen inc mod 2 == 0 drop; }; }'",
        "nft delete table ip truth",
    );
    for procedure in ["latency", "pdv"] {
        let options = format!("procedure = \"{procedure}\"\nsearch = \"quick\"\nrate = 20000\nflows = 100");
        let entries = format!("{hop}{}", workload(&options));
        let measured = trial_is_right(&world, &scenario("", 1, "500ms", &entries), |trial| {
            let Some(delay) = trial.histograms.get("delay") else { return false };
            !trial.is_void()
                && (delay.len(), delay.failed()) == (10_000, 5_000)
                && (value(trial, "sent"), value(trial, "lost")) == (10_000.0, 5_000.0)
                // Four frames of a flow are all lost once in 16.
                && value(trial, "unopened_ratio") < 0.2
        });
        let failed = |metric: &str| measured.value("w", metric, "hop").center == f64::INFINITY;
        assert!(failed("delay_p999_ns") && failed("delay_p99_ns"), "{procedure}");
        assert!(procedure == "latency" || failed("pdv_ns"), "{procedure}");
    }
}

#[test]
fn root_measured_a_hop_that_refuses_flows_is_measured_with_what_it_loses() {
    let Some(world) = world(&[NFT]) else { return };
    let _turn = turn();
    // Flows with an odd source port do not pass. The proof's flow has the first port.
    let hop = routed_with(
        "nft 'table ip truth { chain c { type filter hook forward priority 0; udp length 26 udp sport & 1 == 1 drop; }; }'",
        "nft delete table ip truth",
    );
    let options = "rate = 20000\nflows = 100\nsource-ports = [1024, 1123]\ndestination-ports = [5000, 5000]";
    let entries = format!("{hop}{}", workload(options));
    trial_is_right(&world, &scenario("", 1, "500ms", &entries), |trial| {
        !trial.is_void()
            && value(trial, "unopened_ratio") == 0.5
            && (value(trial, "loss_ratio") - 0.5).abs() < 0.05
            && (value(trial, "forwarding_rate_pps") / 10_000.0 - 1.0).abs() < 0.1
            && trial.faults.iter().any(|fault| fault.detail.contains("50 of 100 flows could not be opened"))
    });
}

#[test]
fn root_measured_the_rate_of_a_bucket_is_the_throughput() {
    let Some(world) = world(&[TC]) else { return };
    let _turn = turn();
    let hop = routed_with(
        "tc qdisc add dev outside root tbf rate 100mbit burst 4kb limit 128kb",
        "tc qdisc del dev outside root",
    );
    // tbf counts frames with Ethernet's header and without the check sequence. Bucket and queue pass what they hold beyond the rate,
    // in each trial of 0.2 s; they take what a sender sends at once after a pause of 5 ms. A little loss is borne, since otherwise
    // every longer pause of the machine would decide. The rate is one that a debug build sends on time on slow machines, too: at twice
    // this one such a machine was 4 ms late in a trial, and its bucket passed 2 % more.
    let (frame, trial_s) = (512.0 - 4.0, 0.2);
    let truth = (100e6 / 8.0 + 132.0 * 1024.0 / trial_s) / frame;
    let options = "procedure = \"throughput\"\nsearch = \"quick\"\nframe-bytes = 512\nloss-ratio = 0.003\nmax-rate = 200000";
    let entries = format!("{hop}{}", workload(options));
    // The search ends with an interval and reports its lower end. The middle is compared.
    measured(NEEDED, ATTEMPTS, |attempt| {
        let trial = bench(&world, &scenario("", 1, "1s", &entries));
        let [lower, upper] =
            ["throughput_pps", "throughput_upper_pps"].map(|metric| values(&trial, metric)[0]);
        let drained_s = values(&trial, "queue_drain_ns")[0] / 1e9;
        println!("attempt {attempt}: {lower} to {upper} packets a second, truth {truth}; {drained_s} s");
        let middle = lower.midpoint(upper);
        // The bucket's own rate is what is left without what its queue held.
        let own = middle / (1.0 + drained_s / trial_s) / (100e6 / 8.0 / frame);
        let told =
            trial.run.trials[0].faults.iter().any(|fault| fault.code == FaultCode::ShortTrial && !fault.void);
        (middle / truth - 1.0).abs() < 0.01 && (own - 1.0).abs() < 0.02 && told
    });
}

#[test]
fn root_measured_a_table_of_5000_connections_is_found_and_put_back() {
    let Some(world) = World::machine(env!("CARGO_BIN_EXE_weir")) else { return };
    if World::lacks(&[NFT]) {
        return;
    }
    let _turn = turn();
    let settings = || {
        world.sh("cat /proc/sys/net/netfilter/nf_conntrack_max /proc/sys/net/netfilter/nf_conntrack_buckets")
    };
    let before = settings();
    // The kernel rounds the second one up to whole pages.
    let testbed = "host-sysctls = { \"net.netfilter.nf_conntrack_max\" = \"5000\", \"net.netfilter.nf_conntrack_buckets\" = \"9999\" }";
    let options = "procedure = \"capacity\"\nsearch = \"quick\"\nflows = 20000\nmax-rate = 50000";
    let entries = format!("[[variant]]\nkind = \"nft-masquerade\"\n{}", workload(options));
    is_right(&world, &scenario(testbed, 1, "1s", &entries), "capacity_connections", |found| {
        (found / 5000.0 - 1.0).abs() <= 0.01
    });
    assert_eq!(settings(), before);
    assert!(world.undo_lists().is_empty());
}

#[test]
fn root_alone_a_gateway_that_forgets_connections_fails_validation() {
    let Some(world) = world(&[NFT]) else { return };
    let _turn = turn();
    // Entries live for a second: 2,000 connections, at most 1,500 a second, take longer, so that the first are always gone
    // when they are asked for.
    let testbed = "[testbed.sysctls.gateway]\n\"net.netfilter.nf_conntrack_udp_timeout\" = \"1\"";
    let options =
        "procedure = \"establishment-validated\"\nsearch = \"quick\"\nflows = 2000\nmax-rate = 1500";
    let entries = format!("[[variant]]\nkind = \"nft-masquerade\"\n{}", workload(options));
    let measured = bench(&world, &scenario(testbed, 1, "1s", &entries));
    let (plain, validated) =
        (values(&measured, "establishment_per_s")[0], values(&measured, "validated_establishment_per_s")[0]);
    println!("{plain} connections a second, validated {validated}");
    assert!(plain > 0.0);
    assert_eq!(validated, 0.0);
}

/// The round trip through a relay, in a host of its own, that holds every packet there for that long.
fn round_trip_ns(world: &World, run: &str, delay: Duration) -> (f64, f64) {
    let spec = SiteSpec { name: "s".into(), topology: Topology::Direct, return_route: false, wan: true };
    let lab = Lab::build(run, &LabOptions::default(), &[spec]).unwrap();
    let site = lab.site("s").unwrap();
    let ends = [("initiator", Role::Initiator), ("responder", Role::Responder)]
        .map(|(name, role)| Resident::named(world, name, site.host(role).unwrap()));
    let egress = Way { delay, ..Way::default() };
    let impairment = Impairment::start(site, egress, Way::default()).unwrap();
    // The relay's drivers take in the frames that the initiator's and the responder's send.
    site.wan()
        .unwrap()
        .run(|| {
            let ethtool = Ethtool::open().unwrap();
            for name in ["near", "far"] {
                ethtool.set(name, &BTreeMap::from([("gro".to_owned(), true)])).unwrap();
            }
        })
        .unwrap();
    let addresses = site.addresses();
    let text = format!(
        "name = \"truth\"\ntitle = \"A test\"\n[testbed]\nkind = \"hosts\"\n\
         [testbed.initiator]\nhost = \"netns:initiator\"\naddress = \"{}\"\n\
         [testbed.responder]\nhost = \"netns:responder\"\naddress = \"{}\"\n\
         [plan]\ntwin = false\nmax-steal = 1.0\nmin-rounds = 1\nmax-rounds = 1\nwarmup = \"100ms\"\nduration = \"2s\"\n\
         [[variant]]\nkind = \"path\"\n\
         [[workload]]\nname = \"w\"\nkind = \"packets\"\nrate = 2000\n",
        addresses.initiator, addresses.responder
    );
    let measured = bench(world, &text);
    let (passed, _) = impairment.finish().unwrap();
    drop(ends);
    assert_eq!(passed.overflows, 0, "the relay was too slow");
    let late = passed.lateness.quantile(0.5).unwrap_or(0) as f64;
    let trial = &measured.run.trials[0];
    let histogram = trial.histograms["rtt"].answered();
    let median = histogram.reportable_quantile(0.5).unwrap_or_else(|| panic!("{} samples", histogram.len()));
    (median as f64, late)
}

#[test]
fn root_measured_a_millisecond_of_a_relay_is_measured() {
    let Some(world) = world(&[IPTABLES, ETHTOOL]) else { return };
    let _turn = turn();
    let delay = Duration::from_millis(1);
    measured(NEEDED, ATTEMPTS, |attempt| {
        let run = |part| format!("test-packets-delay-{}-{attempt}-{part}", std::process::id());
        let (without, late_before) = round_trip_ns(&world, &run("a"), delay);
        let (with, late) = round_trip_ns(&world, &run("b"), 2 * delay);
        // The lateness of the relay itself is delay that the frames really had.
        let share = (with - without) / (delay.as_nanos() as f64 + late - late_before);
        println!(
            "{without} ns, then a millisecond more and {late} ns late: {with} ns, {share:.4} of the truth"
        );
        (share - 1.0).abs() < 0.05
    });
}
