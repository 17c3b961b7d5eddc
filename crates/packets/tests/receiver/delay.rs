//! The delay histogram against the clock that the frames are stamped with.

use weir_packets::frame::Tag;
use weir_packets::{Family, Protocol, Way};
use weir_sys::clock::now_ns;

use crate::fixture::*;

#[test]
fn root_a_delay_is_measured_within_one_percent_over_the_whole_range() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let pair = Pair::new(1500);
    for (family, protocol, least) in KINDS {
        let mut receiver = pair.open(&link(family, Way::Egress));
        let s = sending(family, protocol, least, 1);
        // Each a little more than the last, from 1 us to just below 2^32 ns, with a second of room for this test's own delays.
        let mut delay_ns = 1000u64;
        while delay_ns < (1 << 32) - 1_000_000_000 {
            receiver.expect(COOKIE, Some(&s), true).unwrap();
            let before = now_ns();
            // A stamp of 0 would be none.
            let sent_ns = ((before - delay_ns) as u32).max(1);
            run(&receiver, &frame(&s, Way::Egress, Tag { sent_ns, ..tag(0, 0) }));
            let most_ns = delay_ns + (now_ns() - before);
            let measured = receiver.received().delay;
            assert_eq!(measured.len(), 1, "{delay_ns}");
            let (low, high) = (delay_ns as f64 * 0.99, most_ns as f64 * 1.01);
            let value = measured.max() as f64;
            assert!((low..=high).contains(&value), "{value} for a delay of {delay_ns} to {most_ns} ns");
            delay_ns = delay_ns * 107 / 100;
        }
    }
}

#[test]
fn root_only_stamped_frames_that_count_are_timed() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let mut receiver = Pair::new(1500).open(&link(Family::Ipv4, Way::Egress));
    let s = sending(Family::Ipv4, Protocol::Udp, 64, 4);
    receiver.expect(COOKIE, Some(&s), true).unwrap();
    let before = now_ns();
    for seq in 0..10 {
        let sent_ns = if seq % 2 == 0 { (now_ns() as u32).max(1) } else { 0 };
        run(&receiver, &frame(&s, Way::Egress, Tag { sent_ns, ..tag(seq, 0) }));
    }
    run(&receiver, &frame(&s, Way::Egress, Tag { sent_ns: now_ns() as u32, ..tag(0, 0) }));
    let received = receiver.received();
    assert_eq!(counts(&received), [10, 1, 0, 0, 0, 0]);
    assert_eq!(received.delay.len(), 5);
    let took = now_ns() - before;
    assert!((1..took).contains(&received.duration_ns), "{} of {took} ns", received.duration_ns);
    // The next transfer begins from nothing.
    receiver.expect(COOKIE + 1, Some(&s), true).unwrap();
    assert_eq!(receiver.received(), weir_packets::Received::default());
}
