//! Losses drawn at random, and the same packets as `tshark` reads them at both ends. `make soak` runs these.

mod world;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_flows::Fraction;
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;
use weir_testkit::{PATIENCE, World, holds, until};
use world::PathWorld;
use world::planted::{Planted, Seen, holds_truth, see, see_in};

/// Cases, and how many of them must have both shares and sides right: the printed intervals are of 95 %.
const CASES: usize = 200;
const RIGHT: usize = 190;

/// Cases in which a core's queue dropped packets, which no rule has planted: they show nothing. So many at most.
const VOID: usize = 20;

/// A rule that drops this share of the segments with data, one by one at random or so many in a row.
fn rule(share: f64, in_a_row: u32) -> String {
    let drawn = if in_a_row < 2 {
        format!("random mod 10000 < {:.0}", share * 1e4)
    } else {
        format!("inc mod {:.0} < {in_a_row}", f64::from(in_a_row) / share)
    };
    format!("meta length > 200 numgen {drawn} counter drop")
}

/// Lets everything pass.
fn none() -> String {
    rule(0.0, 1)
}

struct Case {
    ipv6: bool,
    before: String,
    behind: String,
    connections: usize,
    by_server: bool,
}

impl Case {
    /// 0.1 to 10 %, before, behind or on both sides, single or in bursts; 1 to 500 connections, from either end.
    fn draw(random: &mut ChaCha8Rng) -> Case {
        let evenly =
            |random: &mut ChaCha8Rng, from: f64, to: f64| (random.random_range(from.ln()..to.ln())).exp();
        let mut side = |is_lossy: bool| {
            let share = evenly(random, 0.001, 0.1);
            let in_a_row = if random.random_bool(0.5) { 1 } else { random.random_range(2..8) };
            if is_lossy { rule(share, in_a_row) } else { none() }
        };
        let both = [side(true), side(true)];
        let sides = [[true, false], [false, true], [true, true]];
        let lossy = sides.choose(random).copied().unwrap_or([true; 2]);
        let [before, behind] = std::array::from_fn(|n| if lossy[n] { both[n].clone() } else { none() });
        Case {
            ipv6: random.random_bool(0.3),
            before,
            behind,
            connections: evenly(random, 1.0, 500.0).round() as usize,
            by_server: random.random_bool(0.5),
        }
    }

    fn planted(&self) -> Planted<'_> {
        Planted {
            ipv6: self.ipv6,
            before: &self.before,
            behind: &self.behind,
            connections: self.connections,
            by_server: self.by_server,
        }
    }
}

/// Packets that the queues of the cores have dropped since the machine started (net/core/net-procfs.c: the second column).
fn dropped_by_cores() -> u64 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let column = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
    text.lines().map(column).sum()
}

#[test]
fn root_soak_drawn_losses_are_on_their_side_and_within_the_interval() {
    if test_needs_root() {
        return;
    }
    let seed = std::env::var("WEIR_LOSS_SEED").map_or(1, |text| text.parse().unwrap());
    println!("seed {seed} (WEIR_LOSS_SEED)");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut right, mut void) = (0, 0);
    for number in 0..CASES {
        let case = Case::draw(&mut random);
        println!("{number}: {:?}", case.planted());
        let cores = dropped_by_cores();
        let seen = see(case.planted());
        if dropped_by_cores() > cores {
            println!("VOID: a core's queue dropped packets");
            void += 1;
            continue;
        }
        right += usize::from(holds(|| {
            seen.sides().iter().for_each(holds_truth);
        }));
    }
    println!("{right} of {} right, {void} void", CASES - void);
    assert!(void <= VOID, "{void} of {CASES} show nothing");
    assert!(right * CASES >= RIGHT * (CASES - void), "{right} of {} right", CASES - void);
}

/// tcpdump reads what has come at least this often (its time limit of a packet buffer is a second).
const UNREAD: Duration = Duration::from_millis(1500);

/// Packets of an interface in a file, headers only, until it is ended.
struct Recording {
    tcpdump: Child,
    file: std::path::PathBuf,
}

impl Recording {
    fn start(ns: &NetNs, interface: &str, file: &Path) -> Recording {
        let mut command = Command::new("tcpdump");
        command.args(["-i", interface, "-s", "128", "-B", "16384", "-U", "-w"]).arg(file);
        command.arg("tcp").stderr(Stdio::null());
        ns.enter_on_spawn(&mut command);
        let tcpdump = command.spawn().unwrap();
        // It writes the head of the file when it listens.
        until("a recording", PATIENCE, || std::fs::metadata(file).is_ok_and(|m| m.len() > 0).then_some(()));
        Recording { tcpdump, file: file.to_owned() }
    }

    /// All frames that went by until now are in the file: tcpdump leaves those that it has not read when it is ended.
    fn end(mut self) -> std::path::PathBuf {
        let mut last = 0;
        until("a recording that grows no more", PATIENCE, || {
            std::thread::sleep(UNREAD);
            let size = std::fs::metadata(&self.file).unwrap().len();
            let rests = size == last;
            last = size;
            rests.then_some(())
        });
        let pid = rustix::process::Pid::from_child(&self.tcpdump);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert!(self.tcpdump.wait().unwrap().success());
        self.file
    }
}

/// Frames of a recording that match a filter of tshark's.
fn frames(file: &Path, filter: &str) -> u64 {
    let output = Command::new("tshark").arg("-r").arg(file).args(["-Y", filter]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// A segment with data, or the end of them, that the sender sent before. At its own link nothing overtakes, so what tshark takes for that
/// is one too.
const AGAIN: &str = "tcp.dstport == 5001 && (tcp.len > 0 || tcp.flags.fin == 1) && \
                     (tcp.analysis.retransmission || tcp.analysis.out_of_order)";

#[test]
fn root_soak_tshark_at_both_ends_sees_the_same_losses() {
    if test_needs_root() || World::lacks(&["tcpdump", "tshark"]) {
        return;
    }
    let folder = World::plain("weir");
    let lossy = [("none", none(), none())].into_iter().chain([
        ("2 % behind", none(), rule(0.02, 1)),
        ("2 % behind, five in a row", none(), rule(0.02, 5)),
        ("2 % before", rule(0.02, 1), none()),
        ("8 % before, three in a row", rule(0.08, 3), none()),
        ("1 % before and 3 % behind", rule(0.01, 1), rule(0.03, 1)),
    ]);
    for (name, before, behind) in lossy {
        for connections in [1, 20] {
            println!("{name}, {connections} connections");
            let planted =
                Planted { ipv6: false, before: &before, behind: &behind, connections, by_server: false };
            let world = PathWorld::new(false, true);
            let file = |end: &str| folder.work().join(format!("{end}.pcap"));
            let near = Recording::start(&world.client, "c0", &file("near"));
            let far = Recording::start(&world.server, "s0", &file("far"));
            let seen = see_in(&world, planted);
            let (near, far) = (near.end(), far.end());
            agree(&seen, &near, &far);
            std::fs::remove_file(near).unwrap();
            std::fs::remove_file(far).unwrap();
        }
    }
}

/// The gateway between the two ends says what tshark counts there: exactly where every segment that was sent again passed it, within its
/// intervals where some were lost before.
fn agree(seen: &Seen, near: &Path, far: &Path) {
    let data = "tcp.len > 0 && tcp.dstport == 5001";
    let (sent, arrived) = (frames(near, data), frames(far, data));
    let again = frames(near, AGAIN);
    let lost: u64 = seen.dropped.iter().sum();
    println!("tshark: {sent} sent, {again} of them again, {arrived} arrived; {lost} were dropped");
    // The recordings have every frame, and tshark names each that the sender's own counter has.
    assert_eq!((sent - arrived, again), (lost, seen.again));
    let needless = seen.network.client_side.needless;
    let [from, to] = seen.sides();
    println!("weir: {from:?}, {to:?}, {needless} needless");
    if from.dropped == 0 {
        assert_eq!((from.said.segments, to.said.segments + needless), (0, again));
    }
    let bound = |end: fn(&Fraction) -> Option<f64>| -> f64 {
        [&from, &to].iter().map(|side| end(&side.said).unwrap() * side.of as f64).sum()
    };
    let (low, high, lost) = (bound(|said| said.low), bound(|said| said.high), (sent - arrived) as f64);
    // Half a segment for the rounding of the sums.
    assert!(low - 0.5 <= lost && lost <= high + 0.5, "{lost} is not within {low} to {high}");
}
