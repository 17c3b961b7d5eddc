//! Duplicates, reordering and lateness, against a model that remembers everything.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use weir_packets::xdp_receiver::XdpReceiver;
use weir_packets::{Family, Protocol, Sending, Way};

use crate::fixture::*;

/// Frames that the window holds at a time, and where numbers begin again.
const WINDOW: u64 = 65_536 * 32;
const CIRCLE: u64 = 1 << 28;

/// The metrics of RFC 4737 and RFC 5560 for a sequence of frames, with true numbers that never begin again.
#[derive(Debug, Default)]
struct Model {
    seen: BTreeMap<u32, BTreeSet<u64>>,
    counted: u64,
    duplicated: u64,
    reordered: u64,
    late: u64,
}

impl Model {
    fn take_in(&mut self, stream: u32, number: u64) {
        let seen = self.seen.entry(stream).or_default();
        // A window of blocks of 32: a block is out of it as soon as one came that is a multiple of the window ahead.
        let block = number / 32;
        let mut ahead = seen.range((block + 1) * 32..).map(|n| n / 32);
        if ahead.any(|b| (b - block).is_multiple_of(WINDOW / 32)) {
            self.late += 1;
        } else if seen.contains(&number) {
            self.duplicated += 1;
        } else {
            self.counted += 1;
            // RFC 4737 section 3.3: less than the next expected one, which is one more than the greatest so far.
            self.reordered += u64::from(seen.last().is_some_and(|greatest| number < *greatest));
            seen.insert(number);
        }
    }
}

fn check(receiver: &mut XdpReceiver, s: &Sending, sequence: &[(u32, u64)]) -> Result<(), TestCaseError> {
    receiver.expect(COOKIE, Some(s), true).unwrap();
    let mut model = Model::default();
    for (stream, number) in sequence {
        let seq = stream << 28 | (number % CIRCLE) as u32;
        prop_assert_eq!(run(receiver, &frame(s, Way::Egress, tag(seq, 0))).0, DROP);
        model.take_in(*stream, *number);
        let expected = [model.counted, model.duplicated, model.reordered, model.late, 0, 0];
        prop_assert_eq!(counts(&receiver.received()), expected, "stream {}, frame {}", stream, number);
    }
    Ok(())
}

/// Numbers around a place: near each other, whole windows apart, and beyond where numbers begin again.
fn sequences() -> impl Strategy<Value = Vec<(u32, u64)>> {
    let start = prop_oneof![Just(3 * WINDOW), Just(CIRCLE - 40), Just(5 * CIRCLE + 1000)];
    let step = (0u64..70, prop_oneof![4 => Just(0u64), 1 => 0u64..3]);
    let frame = (prop_oneof![Just(0u32), Just(1), Just(15)], step);
    (start, prop::collection::vec(frame, 1..80)).prop_map(|(start, frames)| {
        frames.into_iter().map(|(stream, (near, far))| (stream, start + near + far * WINDOW)).collect()
    })
}

#[test]
fn root_any_order_of_frames_is_told_as_the_model_tells_it() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let receiver = RefCell::new(Pair::new(1500).open(&link(Family::Ipv4, Way::Egress)));
    let s = sending(Family::Ipv4, Protocol::Udp, 64, 1);
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(sequence in sequences())| check(&mut receiver.borrow_mut(), &s, &sequence)?);
}

#[test]
fn root_the_edges_of_the_window() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let mut receiver = Pair::new(1500).open(&link(Family::Ipv6, Way::Egress));
    let s = sending(Family::Ipv6, Protocol::TcpSyn, 84, 1);
    let mut told = |numbers: &[u64]| {
        receiver.expect(COOKIE, Some(&s), true).unwrap();
        for number in numbers {
            run(&receiver, &frame(&s, Way::Egress, tag((number % CIRCLE) as u32, 0)));
        }
        let r = receiver.received();
        [r.frames, r.duplicated, r.reordered, r.late]
    };
    // RFC 4737's own example (section 3.4): 1 2 3 5 6 4 7 8 9 10 has one reordered packet.
    assert_eq!(told(&[1, 2, 3, 5, 6, 4, 7, 8, 9, 10]), [10, 0, 1, 0]);
    assert_eq!(told(&[0, 0, 1, 1, 1]), [2, 3, 0, 0]);
    // The last frame that the window still holds beside number 0, and the first that pushes it out.
    assert_eq!(told(&[0, WINDOW - 1, 0]), [2, 1, 0, 0]);
    assert_eq!(told(&[0, WINDOW, 0, 31]), [2, 0, 0, 2]);
    assert_eq!(told(&[WINDOW, 32, 32]), [2, 1, 1, 0]);
    // The wrap of the numbers.
    assert_eq!(told(&[CIRCLE - 1, CIRCLE, CIRCLE - 1, CIRCLE - 2]), [3, 1, 1, 0]);
}

#[test]
fn root_cores_that_count_at_the_same_time_count_each_frame_once() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    const FRAMES: u32 = 4000;
    let mut receiver = Pair::new(1500).open(&link(Family::Ipv4, Way::Egress));
    let s = sending(Family::Ipv4, Protocol::Udp, 64, FRAMES);
    receiver.expect(COOKIE, Some(&s), true).unwrap();
    let cpus = weir_sys::sched::allowed_cpus().unwrap();
    let cores = &cpus[..cpus.len().min(4)];
    std::thread::scope(|scope| {
        for (i, core) in cores.iter().enumerate() {
            let (receiver, s) = (&receiver, &s);
            scope.spawn(move || {
                weir_sys::sched::pin_current_thread(&[*core]).unwrap();
                // All cores work through the same blocks of 32, each frame's bit being set by the core that comes first.
                for n in 0..FRAMES {
                    let seq = n ^ (i as u32 & 1);
                    let frame = frame(s, Way::Egress, tag(seq, seq));
                    run(receiver, &frame);
                }
            });
        }
    });
    let received = receiver.received();
    let all = cores.len() as u64 * u64::from(FRAMES);
    assert_eq!((received.frames, received.flows), (FRAMES.into(), FRAMES.into()));
    assert_eq!((received.duplicated, received.late), (all - u64::from(FRAMES), 0));
}
