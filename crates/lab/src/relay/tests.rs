use super::*;
use crate::header::tests::udp;
use crate::link::Reorder;

const MS: u64 = 1_000_000;

fn delays(delays: &[u64]) -> Way {
    Way { delays: delays.iter().map(|ms| Duration::from_millis(*ms)).collect(), ..Way::default() }
}

/// The order in which packets (first..last) go on that come in batches.
fn order(batches: &[(u32, u32)], every: u32, behind: u32) -> (Vec<u32>, u64) {
    let mut order = Order::new(Way { reorder: Some(Reorder { every, behind }), ..Way::default() });
    let (mut passed, mut all) = (Passed::default(), Vec::new());
    for (i, (first, last)) in batches.iter().enumerate() {
        (*first..*last).for_each(|number| order.enter(number, 0, None, 0));
        all.extend(order.due(0, i + 1 == batches.len(), &mut passed));
    }
    assert_eq!(passed.packets, all.len() as u64);
    (all, passed.reordered)
}

#[test]
fn every_nth_packet_is_overtaken_by_k() {
    assert_eq!(order(&[(1, 9)], 4, 2), (vec![1, 2, 3, 5, 6, 4, 7, 8], 1));
    // The same however the packets come in.
    assert_eq!(order(&[(1, 3), (3, 5), (5, 6), (6, 9)], 4, 2), (vec![1, 2, 3, 5, 6, 4, 7, 8], 1));
    assert_eq!(order(&[(1, 7)], 2, 1), (vec![1, 3, 2, 5, 4, 6], 2));
}

#[test]
fn a_held_packet_goes_on_when_nothing_follows() {
    let mut order = Order::new(Way { reorder: Some(Reorder { every: 2, behind: 1 }), ..Way::default() });
    let mut passed = Passed::default();
    order.enter(1, 0, None, 0);
    order.enter(2, 0, None, 0);
    assert_eq!(order.due(1000, false, &mut passed), [1]);
    assert_eq!(order.next_due(), Some(1000 + HELD_AT_MOST_NS));
    assert!(order.due(1000 + HELD_AT_MOST_NS - 1, false, &mut passed).is_empty());
    assert_eq!(order.due(1000 + HELD_AT_MOST_NS, false, &mut passed), [2]);
    assert_eq!(passed.reordered, 0);
}

#[test]
fn each_gateway_has_its_own_delay_and_keeps_its_order() {
    let mut order = Order::new(delays(&[3, 1]));
    let mut passed = Passed::default();
    for (number, arrived, gateway) in [(1, 0, 0), (2, 0, 1), (3, MS, 1), (4, MS, 0)] {
        order.enter(number, arrived, None, gateway);
    }
    assert_eq!(order.next_due(), Some(MS));
    assert_eq!(order.due(MS, false, &mut passed), [2]);
    assert_eq!(order.due(2 * MS, false, &mut passed), [3]);
    assert!(order.due(3 * MS - 1, false, &mut passed).is_empty());
    assert_eq!(order.due(4 * MS, false, &mut passed), [1, 4]);
    assert_eq!((passed.packets, passed.gateways.as_slice()), (4, &[2, 2][..]));
    // The last two were late by 1 ms and 0.
    assert!(passed.lateness.max().abs_diff(MS) < MS / 100, "{}", passed.lateness.max());
}

#[test]
fn jitter_is_uniform_and_changes_no_order() {
    let way = Way { delay: Duration::from_millis(1), jitter: Duration::from_micros(500), ..Way::default() };
    let mut order = Order::new(way.clone());
    let drawn: Vec<i64> = (0..20_000).map(|_| order.jitter()).collect();
    let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
    assert!(*least >= -500_000 && *most <= 500_000 && *least < -499_000 && *most > 499_000);
    // For 20,000 draws between -0.5 and 0.5 the mean is within 5 standard errors (1 / sqrt(12 n)) of 0.
    let mean = drawn.iter().sum::<i64>() as f64 / 20_000.0;
    assert!(mean.abs() < 5.0 * 1e6 / (12.0f64 * 20_000.0).sqrt(), "{mean}");
    let mut order = Order::new(way);
    (1..1000).for_each(|number| order.enter(number, u64::from(number) * 1000, None, 0));
    let mut passed = Passed::default();
    let mut all = Vec::new();
    for now in (0..4 * MS).step_by(50_000) {
        all.extend(order.due(now, false, &mut passed));
    }
    assert_eq!(all, (1..1000).collect::<Vec<_>>());
}

#[test]
fn the_first_fragment_goes_last_and_not_for_ever() {
    let mut order = Order::new(Way { first_fragments_last: true, ..Way::default() });
    let mut passed = Passed::default();
    let part = |identification, offset| Head::read(&udp(1, 2, (1, 2), identification, offset));
    // A datagram of three parts with a whole one between them.
    for (number, head) in
        [(1, part(7, 0x2000)), (2, part(7, 0x2000 | 185)), (3, part(8, 0)), (4, part(7, 370))]
    {
        order.enter(number, 0, head, 0);
    }
    assert_eq!(order.due(0, false, &mut passed), [2, 3, 4, 1]);
    assert_eq!(passed.reordered, 1);
    order.enter(5, 0, part(9, 0x2000), 0);
    assert!(order.due(PARKED_AT_MOST_NS - 1, false, &mut passed).is_empty());
    assert_eq!(order.next_due(), Some(PARKED_AT_MOST_NS));
    assert_eq!(order.due(PARKED_AT_MOST_NS, false, &mut passed), [5]);
    assert!(passed.reordered == 1 && passed.lateness.max() <= 1, "{passed:?}");
}

#[test]
fn connections_take_gateways_in_turn_and_keep_them() {
    let common = Common::default();
    let head = |port| Head::read(&udp(1, 2, (port, 443), 0, 0));
    let taken = |ports: std::ops::Range<u16>| {
        ports.map(|port| common.gateway(head(port), Choose::Round, 3)).collect::<Vec<_>>()
    };
    assert_eq!(taken(1..6), [0, 1, 2, 0, 1]);
    assert_eq!(taken(1..6), [0, 1, 2, 0, 1]);
    let back = Head::read(&udp(2, 1, (443, 2), 0, 0));
    assert_eq!(common.gateway(back, Choose::Round, 3), 1);
    // Another trial: the next one's turn.
    common.begin(9);
    assert_eq!(common.gateway(head(1), Choose::Round, 3), 2);
    // By hash, another seed is another choice for some.
    let by_hash = |seed| {
        common.begin(seed);
        (1..50).map(|port| common.gateway(head(port), Choose::Connection, 2)).collect::<Vec<_>>()
    };
    assert_eq!(by_hash(1), by_hash(1));
    assert_ne!(by_hash(1), by_hash(2));
}
