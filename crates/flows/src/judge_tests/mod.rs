//! The judge of the BPF program, compiled for this host, on connections of a model whose every loss is known.

mod datagrams;
mod limits;
mod model;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use model::{Path as PathModel, Truth};
use weir_bpf::Plain;

use crate::shared::{WEIR_HAS_SACK, WeirFlow, WeirPacket};

/// The compiled judge.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let own = env!("CARGO_MANIFEST_DIR");
        let program = Path::new(env!("OUT_DIR")).join("judge");
        let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
        let output = Command::new(clang)
            .args([
                "-O1",
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsanitize=undefined",
                "-fsanitize-trap=undefined",
            ])
            .args([
                "-I",
                env!("OUT_DIR"),
                "-I",
                &format!("{own}/src/bpf"),
                "-I",
                &format!("{own}/../bpf-build/include"),
            ])
            .arg(format!("{own}/src/judge_tests/judge.c"))
            .arg("-o")
            .arg(&program)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    })
}

/// Has it judge packets, of UDP with an argument.
fn judge<P: Plain, F: Plain>(arguments: &[&str], packets: &[P]) -> F {
    let mut command = Command::new(program());
    let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let bytes: Vec<u8> = packets.iter().flat_map(|p| p.bytes().to_vec()).collect();
    // The judge prints once at its end, so that it cannot wait for a reader.
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout.len(), size_of::<F>());
    F::from_bytes(&output.stdout)
}

fn judged(packets: &[WeirPacket]) -> WeirFlow {
    judge(&[], packets)
}

fn run(path: &PathModel) -> (WeirFlow, Truth) {
    let (packets, truth) = path.run();
    let flow = judged(&packets);
    assert_eq!((flow.connections, flow.sides[0].unjudged, flow.sides[0].bypassed), (1, 0, 0), "{path:?}");
    (flow, truth)
}

const PATH: PathModel = PathModel {
    seed: 0,
    segments: 3000,
    window: 30,
    receive_window: u16::MAX,
    before_us: 3000,
    behind_us: 8000,
    lost_before: 0.0,
    lost_behind: 0.0,
    burst: 1,
    lost_answers: 0.0,
    late_before: 0.0,
    late_behind: 0.0,
    late_us: 0,
    late_run: 1,
    stamps: true,
    first_number: 0,
};

#[test]
fn each_loss_is_counted_on_its_side() {
    for seed in 0..60 {
        let path = PathModel {
            seed,
            lost_before: [0.0, 0.001, 0.01, 0.05][(seed % 4) as usize],
            lost_behind: [0.0, 0.001, 0.02, 0.1][(seed / 4 % 4) as usize],
            burst: [1, 1, 4][(seed % 3) as usize],
            stamps: !seed.is_multiple_of(5),
            // Sequence numbers wrap around.
            first_number: if seed.is_multiple_of(2) { u32::MAX - 500_000 } else { 0 },
            ..PATH
        };
        let (flow, truth) = run(&path);
        let client = &flow.sides[0];
        let counted = (client.lost_before, client.lost_behind, client.reordered, client.needless);
        assert_eq!(counted, (truth.lost_before, truth.lost_behind, 0, truth.needless), "{path:?}");
        assert_eq!((client.fresh, client.segments), (3000, truth.passed), "{path:?}");
    }
}

#[test]
fn reordering_is_no_loss() {
    for seed in 0..48 {
        let path = PathModel {
            seed,
            late_before: [0.05, 0.0, 0.02, 0.1][(seed % 4) as usize],
            late_behind: [0.0, 0.05, 0.02, 0.0][(seed % 4) as usize],
            // Up to several round trips.
            late_us: [300, 2000, 10_000, 40_000][(seed / 4 % 4) as usize],
            ..PATH
        };
        let (flow, truth) = run(&path);
        let client = &flow.sides[0];
        assert_eq!((client.lost_before, client.lost_behind), (0, 0), "{path:?}: {truth:?}");
        assert_eq!(client.needless + client.reordered > 0, truth.overtaken, "{path:?}: {truth:?}");
        assert_eq!(client.fresh, 3000, "{path:?}");
    }
}

/// A path that is shorter than a tick of the sender's clock, on which a core that has no time holds a few segments.
fn held(seed: u64) -> PathModel {
    PathModel {
        seed,
        before_us: [5, 20, 60][(seed % 3) as usize],
        behind_us: [5, 20, 60][(seed / 3 % 3) as usize],
        late_before: 0.02,
        late_run: [1, 3, 5, 8][(seed / 2 % 4) as usize],
        // Up to many round trips: the sender sends again by then.
        late_us: [15, 40, 80, 200, 500][(seed % 5) as usize],
        ..PATH
    }
}

#[test]
fn segments_that_a_core_holds_are_no_loss() {
    for seed in 0..90 {
        let path = held(seed);
        let (flow, truth) = run(&path);
        let client = &flow.sides[0];
        assert_eq!((client.lost_before, client.lost_behind), (0, 0), "{path:?}: {truth:?}");
        assert!(truth.overtaken, "{path:?}");
    }
}

/// A packet at that time, us. Those before `opened` begin the connection.
fn packet(us: u64, opened: u64, side: u8, seq: u32, ack: u32, length: u32) -> WeirPacket {
    let answers = if side == 1 { 16 } else { 0 };
    WeirPacket {
        now: 1_000_000_000 + us * 1000,
        seq,
        ack,
        length,
        bytes: length + 40,
        segments: 1,
        window: 1000,
        flags: if us < opened { 2 | answers } else { 16 },
        side,
        ..WeirPacket::zeroed()
    }
}

/// Two cores take the times of two packets, and judge them the other way round.
#[test]
fn times_that_go_back_make_neither_losses_nor_long_times() {
    let packet = |us, side, seq, ack, length| packet(us, 100, side, seq, ack, length);
    let shows = WeirPacket {
        sack: [3000, 4000, 0, 0],
        has: WEIR_HAS_SACK as u32,
        window: 0,
        ..packet(460, 1, 500, 2000, 0)
    };
    let packets = [
        packet(0, 0, 999, 0, 0),
        packet(50, 1, 499, 1000, 0),
        packet(100, 0, 1000, 500, 0),
        packet(300, 0, 1000, 500, 1000),
        packet(350, 1, 500, 2000, 0),
        packet(400, 0, 3000, 500, 1000),
        shows,
        // Its core took its time before the answer's.
        packet(458, 0, 2000, 500, 1000),
        packet(456, 1, 500, 4000, 0),
    ];
    let flow = judged(&packets);
    let [client, server] = &flow.sides;
    assert_eq!((client.lost_before, client.reordered), (0, 1));
    assert_eq!((server.zero_windows, server.shut), (1, 0));
    assert!(client.trips.total + server.trips.total < 1_000_000, "{:?} {:?}", client.trips, server.trips);
    assert_eq!(flow.last, packets[6].now);
}

/// After 200 ms a sender without an answer sends again, then after 400, 800 ms: of copies that were lost before the host, nothing came here.
#[test]
fn a_silence_hides_the_copies_that_time_outs_sent() {
    const MS: u64 = 1000;
    let packet = |us, side, seq, ack, length| packet(us, 100, side, seq, ack, length);
    let begun = [
        packet(0, 0, 999, 0, 0),
        packet(50, 1, 499, 1000, 0),
        packet(100, 0, 1000, 500, 0),
        packet(300, 0, 1000, 500, 1000),
    ];
    let answer = |us, ack| packet(us, 1, 500, ack, 0);
    let data = |us, seq| packet(us, 0, seq, 500, 1000);
    let doubtful = |packets: &[WeirPacket]| {
        let packets: Vec<_> = begun.iter().chain(packets).copied().collect();
        let client = judged(&packets).sides[0];
        (client.lost_before, client.lost_behind, client.doubtful)
    };
    // Goes alone, as after a time-out: the first copy, and those of 200 and 600 ms. The next one is sent with it.
    let lone = [answer(400, 2000), data(1500 * MS, 2000), answer(1501 * MS, 3000)];
    assert_eq!(doubtful(&lone), (0, 0, 3));
    assert_eq!(doubtful(&[lone[0], lone[1], data(1500 * MS + 1, 3000), lone[2]]), (0, 0, 1));
    assert_eq!(doubtful(&[lone[0], lone[1], data(1500 * MS + 1, 4000), lone[2]]), (0, 0, 1));
    assert_eq!(doubtful(&[lone[0], data(210 * MS, 2000), answer(211 * MS, 3000)]), (0, 0, 1));
    // Fills a hole, or was here before: the copy of 200 ms.
    let hole = data(500, 3000);
    assert_eq!(doubtful(&[hole, answer(600, 2000), data(601 * MS, 2000)]), (1, 0, 1));
    assert_eq!(doubtful(&[hole, answer(600, 2000), data(210 * MS, 2000)]), (1, 0, 0));
    assert_eq!(doubtful(&[data(601 * MS, 1000)]), (0, 1, 1));
    assert_eq!(doubtful(&[data(210 * MS, 1000)]), (0, 1, 0));
}

/// With losses beside them no rule can be right about each segment.
#[test]
fn losses_beside_segments_that_a_core_holds_are_counted() {
    let (mut off, mut lost) = (0, 0);
    for seed in 0..90 {
        let path = PathModel {
            lost_before: [0.001, 0.01, 0.05][(seed / 5 % 3) as usize],
            lost_behind: [0.0, 0.001, 0.01, 0.05][(seed / 2 % 4) as usize],
            burst: [1, 1, 4][(seed % 3) as usize],
            ..held(seed)
        };
        let (flow, truth) = run(&path);
        off += flow.sides[0].lost_before.abs_diff(truth.lost_before);
        lost += truth.lost_before;
    }
    println!("{off} off of {lost}");
    assert!(off * 25 < lost, "{off} of {lost}");
}

/// Segments that were under way when the watch began may have passed, or been lost, before it: their second copies count on neither side.
#[test]
fn losses_from_before_the_watch_count_on_neither_side() {
    for seed in 0..60_u64 {
        let is_behind = seed.is_multiple_of(2);
        let share = [0.02, 0.05, 0.15][(seed / 2 % 3) as usize];
        let path = PathModel {
            seed,
            lost_before: if is_behind { 0.0 } else { share },
            lost_behind: if is_behind { share } else { 0.0 },
            burst: [1, 1, 4][(seed % 3) as usize],
            stamps: !seed.is_multiple_of(5),
            segments: 8000,
            ..PATH
        };
        let (packets, _) = path.run();
        let begins = packets.len() * (10 + seed as usize / 2) / 100;
        let counted = |packets: &[WeirPacket]| {
            let client = judged(packets).sides[0];
            if is_behind {
                (client.lost_behind, client.lost_before, client.bypassed)
            } else {
                (client.lost_before, client.lost_behind, client.bypassed)
            }
        };
        // Two round trips and the shortest time-out of a sender; a second where timestamps do not show both parts of a round trip.
        // Segments that are under way by then take other time-outs.
        let settled = packets[begins].now + if path.stamps { 800_000_000 } else { 1_600_000_000 };
        let settles = packets.iter().position(|p| p.now >= settled).unwrap();
        let (all, later) = (counted(&packets).0, counted(&packets[begins..]));
        let least = all - counted(&packets[..settles]).0;
        let most = all - counted(&packets[..begins]).0;
        assert!((least..=most).contains(&later.0), "{path:?}: {later:?} of {least} to {most}");
        assert_eq!((later.1, later.2), (0, 0), "{path:?}");
        assert!(least > 0, "{path:?}");
    }
}

/// Lost acknowledgements make senders wait and send again; the receiver reports what it has twice.
#[test]
fn lost_answers_are_no_loss_of_segments() {
    for seed in 0..40 {
        let path = PathModel { seed, lost_answers: 0.2, lost_behind: 0.01, ..PATH };
        let (flow, truth) = run(&path);
        let client = &flow.sides[0];
        // A report may be lost, too.
        let again = client.lost_behind + client.needless;
        assert_eq!(again, truth.lost_behind + truth.needless, "{path:?}: {truth:?}");
        assert!(client.lost_behind >= truth.lost_behind, "{path:?}: {truth:?}");
        assert_eq!(client.lost_before, 0, "{path:?}");
    }
}

#[test]
fn round_trips_are_those_of_the_path() {
    for (before_us, behind_us) in [(20, 50), (3000, 8000), (100_000, 40)] {
        let (flow, _) = run(&PathModel { before_us, behind_us, ..PATH });
        for (side, us) in [(0, before_us), (1, behind_us)] {
            let trips = &flow.sides[side].trips;
            assert_eq!(trips.smallest, 2000 * us, "{before_us} {behind_us}: {trips:?}");
            // Nothing waits in the model.
            assert_eq!(trips.total, trips.count * trips.smallest);
            assert_eq!(trips.smoothed / 1000, 2 * us);
            assert_eq!(trips.buckets.iter().map(|n| u64::from(*n)).sum::<u64>(), trips.count);
            let bucket = trips.buckets.iter().position(|n| *n > 0).unwrap();
            let (start, end) = (
                bucket.checked_sub(1).map_or(0, crate::side::end_of_bucket),
                crate::side::end_of_bucket(bucket),
            );
            assert!(start <= trips.smallest && trips.smallest < end, "{trips:?}");
        }
        assert!(flow.sides[1].trips.count > 50);
    }
}

/// A client that sends a short segment, then long ones that vanish behind the gateway, and then a part that arrives.
#[test]
fn a_segment_that_is_stuck_is_counted_until_it_arrives() {
    let (client, server) = (0, 1);
    let packet = |ms: u64, side, seq, ack, length| packet(ms * 1000, 2000, side, seq, ack, length);
    let mut packets = vec![
        packet(0, client, 99, 0, 0),
        packet(1, server, 499, 100, 0),
        packet(2, client, 100, 500, 200),
        packet(3, server, 500, 300, 0),
        packet(4, client, 300, 500, 1448),
        packet(5, client, 1748, 500, 1448),
    ];
    let side = |packets: &[WeirPacket]| {
        let side = judged(packets).sides[0];
        (side.stuck, side.stuck_bytes, side.longest, side.carried, side.lost_behind)
    };
    assert_eq!(side(&packets), (0, 0, 1448, 200, 0));
    packets.extend([400, 800, 1600].map(|ms| packet(ms, client, 300, 500, 1448)));
    // The last copy is of another segment than the one that is awaited.
    packets.push(packet(1700, client, 1748, 500, 1448));
    assert_eq!(side(&packets), (3, 1448, 1448, 200, 4));
    // A sender that found the MTU sends less of it.
    packets.push(packet(3200, client, 300, 500, 600));
    assert_eq!(side(&packets), (4, 600, 1448, 200, 5));
    packets.push(packet(3201, server, 500, 900, 0));
    assert_eq!(side(&packets), (0, 0, 1448, 200, 5), "less than a long one has arrived");
    packets.push(packet(3300, server, 500, 3196, 0));
    assert_eq!(side(&packets), (0, 0, 1448, 1448, 5));
}
