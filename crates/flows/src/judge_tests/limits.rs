//! Who limits a sender.

use super::model::Path as PathModel;
use super::{PATH, judged, run};
use crate::shared::{
    self, WEIR_HAS_SCALE, WEIR_HAS_STAMP, WEIR_IS_ENDED0, WEIR_SCALE_AT, WeirFlow, WeirPacket,
};

const APPLICATION: u64 = shared::WEIR_BY_APPLICATION;
const RECEIVER: u64 = shared::WEIR_BY_RECEIVER;
const NETWORK: u64 = shared::WEIR_BY_NETWORK;
const SENDER: u64 = shared::WEIR_BY_SENDER;
const UNCLEAR: u64 = shared::WEIR_BY_UNCLEAR;
const MS: u64 = 1_000_000;

/// Share of the client's time by limit.
fn share(flow: &WeirFlow, limit: u64) -> f64 {
    let by = &flow.sides[0].wait.by;
    by[limit as usize] as f64 / by.iter().sum::<u64>().max(1) as f64
}

/// The gateway in the middle, beside the sender, and beside the receiver. Round trips in all: 22 and 200 ms.
const PLACES: [(u64, u64); 3] = [(3000, 8000), (20, 100_000), (100_000, 20)];

/// All places, with and without timestamps.
fn everywhere(path: &PathModel, check: impl Fn(&WeirFlow, &PathModel)) {
    for (before_us, behind_us) in PLACES {
        for stamps in [true, false] {
            let path = PathModel { before_us, behind_us, stamps, ..path.clone() };
            check(&run(&path).0, &path);
        }
    }
}

/// As many bytes are under way as the receiver allows, at the sender; at a gateway beside the receiver there are hardly any.
#[test]
fn a_full_receive_window_is_the_receivers_limit() {
    everywhere(&PathModel { receive_window: 30_000, ..PATH }, |flow, path| {
        assert!(share(flow, RECEIVER) > 0.95, "{path:?}: {:?}", flow.sides[0].wait);
    });
}

/// The same bytes under way, and a window of which they are less than two thirds.
#[test]
fn a_sender_that_grows_no_more_and_has_room_limits_itself() {
    everywhere(&PathModel { receive_window: 48_000, ..PATH }, |flow, path| {
        let others = share(flow, SENDER) + share(flow, UNCLEAR);
        assert!(share(flow, SENDER) > 0.7 && others > 0.999, "{path:?}: {:?}", flow.sides[0].wait);
    });
    // A sender that waits for a third of the window to be free leaves that much unused.
    everywhere(&PathModel { receive_window: 40_000, ..PATH }, |flow, path| {
        assert!(share(flow, RECEIVER) > 0.7, "{path:?}: {:?}", flow.sides[0].wait);
    });
}

#[test]
fn losses_on_either_side_are_the_networks_limit() {
    for (lost_before, lost_behind) in [(0.02, 0.0), (0.0, 0.02), (0.01, 0.01)] {
        for seed in 0..5 {
            let path = PathModel { seed, lost_before, lost_behind, ..PATH };
            let flow = run(&path).0;
            assert!(share(&flow, NETWORK) > 0.8, "{path:?}: {:?}", flow.sides[0].wait);
        }
    }
    // One loss in three thousand segments limits some round trips after it, and not all others.
    let rare = PathModel { lost_behind: 0.0004, segments: 12_000, seed: 3, ..PATH };
    let (flow, truth) = run(&rare);
    assert!((1..12).contains(&truth.lost_behind), "{truth:?}");
    assert!(share(&flow, SENDER) > 0.4 && share(&flow, NETWORK) > 0.02, "{:?}", flow.sides[0].wait);
}

/// Without the SYNs the scale of the window is not known: neither the receiver nor the sender is named.
#[test]
fn a_flow_from_before_the_watch_is_unclear() {
    for receive_window in [30_000, 48_000] {
        let (packets, _) = PathModel { receive_window, ..PATH }.run();
        let flow = judged(&packets[3..]);
        let wait = &flow.sides[0].wait;
        assert!(share(&flow, UNCLEAR) > 0.99 && wait.by[UNCLEAR as usize] > 1000 * MS, "{wait:?}");
    }
    let (packets, _) = PathModel { lost_behind: 0.02, ..PATH }.run();
    assert!(share(&judged(&packets[3..]), NETWORK) > 0.8, "losses are seen without it");
}

/// A packet of a connection over a path of 10 ms to the client and 20 ms to the server.
fn packet(us: u64, side: u8, seq: u32, ack: u32, length: u32) -> WeirPacket {
    WeirPacket {
        stamp: (us / 1000) as u32,
        has: WEIR_HAS_STAMP as u32,
        ..super::packet(us, 0, side, seq, ack, length)
    }
}

/// SYN, its answer, and the answer to that, with the scale of both windows; `None`: the client offers none.
fn opening(scales: [Option<u32>; 2]) -> Vec<WeirPacket> {
    let syn = |us: u64, side: u8, flags: u8, (seq, ack): (u32, u32)| {
        let option = scales[usize::from(side)];
        let scale = option.map_or(0, |shift| WEIR_HAS_SCALE as u32 | shift << WEIR_SCALE_AT);
        WeirPacket { flags, has: WEIR_HAS_STAMP as u32 | scale, ..packet(us, side, seq, ack, 0) }
    };
    vec![syn(0, 0, 2, (99, 0)), syn(20_000, 1, 18, (499, 100)), packet(30_000, 0, 100, 500, 0)]
}

/// `rounds` writes of these segments, each acknowledged at once, `pause_us` after the acknowledgement has reached the client.
fn writes(packets: Vec<WeirPacket>, rounds: usize, segments: &[u32], pause_us: u64) -> Vec<WeirPacket> {
    in_turn(packets, std::iter::repeat_n((segments, pause_us), rounds))
}

/// The same where each write has its segments, and the pause after it.
fn in_turn<'a>(
    mut packets: Vec<WeirPacket>,
    writes: impl Iterator<Item = (&'a [u32], u64)>,
) -> Vec<WeirPacket> {
    let (mut us, mut seq, mut echo) = (40_000, 100, 20);
    for (segments, pause_us) in writes {
        let first = seq;
        for (n, length) in segments.iter().enumerate() {
            packets.push(WeirPacket { echo, ..packet(us + 10 * n as u64, 0, seq, 500, *length) });
            seq += length;
        }
        for ack in [first + segments[0], seq] {
            packets.push(packet(us + 20_000, 1, 500, ack, 0));
        }
        echo = (us / 1000) as u32 + 20;
        us += 30_000 + pause_us;
    }
    packets
}

#[test]
fn a_program_that_writes_now_and_then_limits_its_sender() {
    for segments in [&[1000, 1000, 1000, 200][..], &[1000, 1000, 1000], &[50]] {
        let flow = judged(&writes(opening([Some(7), Some(7)]), 50, segments, 100_000));
        assert!(share(&flow, APPLICATION) > 0.9, "{segments:?}: {:?}", flow.sides[0].wait);
        assert_eq!(flow.sides[1].wait.by, [0; 5], "the server sends nothing");
    }
    // Without a pause the short last segment says that there was no more.
    let flow = judged(&writes(opening([Some(7), Some(7)]), 50, &[1000, 1000, 1000, 200], 0));
    assert!(share(&flow, APPLICATION) > 0.9, "{:?}", flow.sides[0].wait);
    let flow = judged(&writes(opening([Some(7), Some(7)]), 50, &[1000, 1000, 1000], 0));
    assert!(share(&flow, APPLICATION) < 0.1 && share(&flow, SENDER) > 0.6, "{:?}", flow.sides[0].wait);
}

/// Writes of six segments on end: what a sender can have under way that limits itself.
const FULL: &[u32] = &[1000; 6];

/// A sender that its host interrupts now and then is still the limit in between. After a long pause its window begins anew.
#[test]
fn short_pauses_of_a_sender_change_nothing_in_between() {
    let paused = |each: usize, pause_us: u64| {
        let pauses = (1..=400).map(|n| (FULL, if n > 40 && n % each == 0 { pause_us } else { 0 }));
        judged(&in_turn(opening([Some(7), Some(7)]), pauses))
    };
    let flow = paused(10, 150_000);
    assert!(share(&flow, UNCLEAR) < 0.06 && share(&flow, SENDER) > 0.6, "{:?}", flow.sides[0].wait);
    assert!(share(&flow, APPLICATION) > 0.25, "{:?}", flow.sides[0].wait);
    let flow = paused(10, 250_000);
    assert!(share(&flow, SENDER) < 0.1 && share(&flow, UNCLEAR) > 0.4, "{:?}", flow.sides[0].wait);
    // Without two whole periods between them, pauses let nothing be known for long.
    let flow = paused(3, 60_000);
    assert!(share(&flow, SENDER) < 0.2, "{:?}", flow.sides[0].wait);
}

/// So many periods of eight round trips of full writes, with periods of smaller ones between them.
fn now_and_then_smaller(smaller: &'static [u32], spoilt: impl Fn(&mut Vec<WeirPacket>)) -> WeirFlow {
    let writes = (0..400).map(|n| (if n > 40 && n % 32 < 10 { smaller } else { FULL }, 0));
    let mut packets = in_turn(opening([Some(7), Some(7)]), writes);
    spoilt(&mut packets);
    judged(&packets)
}

/// A busy sender has less under way at times. Once the network spoke, a smaller window may be the reason.
#[test]
fn less_under_way_is_the_senders_limit_until_the_network_speaks() {
    let flow = now_and_then_smaller(&[1000; 4], |_| ());
    assert!(share(&flow, SENDER) > 0.9, "{:?}", flow.sides[0].wait);
    let flow = now_and_then_smaller(&[1000; 2], |_| ());
    assert!(share(&flow, SENDER) < 0.7, "less than a half is another matter: {:?}", flow.sides[0].wait);
    let told = |packets: &mut Vec<WeirPacket>| {
        let answer = packets.iter_mut().filter(|p| p.side == 1).nth(20).unwrap();
        answer.flags |= 0x40;
    };
    let flow = now_and_then_smaller(&[1000; 4], told);
    assert!(share(&flow, NETWORK) > 0.2 && share(&flow, UNCLEAR) < 0.1, "{:?}", flow.sides[0].wait);
}

/// Both sides must offer the scale: otherwise a window of 1000 is one of 1000 bytes.
#[test]
fn windows_are_scaled_if_both_sides_offer_it() {
    let by_receiver = |scales| {
        let flow = judged(&writes(opening(scales), 50, &[500, 500], 0));
        share(&flow, RECEIVER) > 0.9
    };
    assert!(by_receiver([None, Some(7)]) && by_receiver([Some(7), None]) && by_receiver([Some(0), Some(0)]));
    assert!(!by_receiver([Some(7), Some(7)]) && !by_receiver([Some(0), Some(3)]));
}

#[test]
fn after_its_end_a_sender_waits_for_nothing() {
    let mut packets = writes(opening([Some(7), Some(7)]), 50, &[1000, 200], 0);
    let next = 100 + 50 * 1200;
    let end = |us: u64| WeirPacket { flags: 17, echo: 1600, ..packet(us, 0, next, 500, 0) };
    packets.push(end(1_540_000));
    let before = judged(&packets);
    assert_eq!(u64::from(before.state), shared::WEIR_IS_WHOLE | WEIR_IS_ENDED0);
    packets.push(WeirPacket { flags: 16, echo: 5000, ..packet(9_000_000, 0, next + 1, 501, 0) });
    assert_eq!(judged(&packets).sides[0].wait.by, before.sides[0].wait.by);
}
