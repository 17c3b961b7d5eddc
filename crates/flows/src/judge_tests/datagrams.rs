//! UDP: queries that wait, and silence.

use weir_bpf::Plain;

use super::judge;
use crate::shared::{self, WeirDatagram, WeirUdpFlow};

const SECOND: u64 = 1_000_000_000;
const PLACES: u16 = shared::WEIR_QUERIES as u16;

fn datagram(now: u64, side: u8) -> WeirDatagram {
    WeirDatagram { now: SECOND + now, bytes: 100, segments: 1, side, ..WeirDatagram::zeroed() }
}

fn dns(now: u64, side: u8, id: u16, port: u16) -> WeirDatagram {
    let flags = if side == 1 { 0x8180 } else { 0x0100 };
    WeirDatagram { id, port, dns: flags, has: shared::WEIR_IS_DNS as u8, ..datagram(now, side) }
}

fn judged(datagrams: &[WeirDatagram]) -> WeirUdpFlow {
    judge(&["udp"], datagrams)
}

/// Queries, answers, unanswered, not judged, without a query, and how many wait.
fn counts(datagrams: &[WeirDatagram]) -> [u64; 6] {
    let dns = judged(datagrams).dns;
    let waiting = dns.waiting.iter().filter(|q| q.at > 0).count() as u64;
    [dns.queries, dns.answers, dns.unanswered, dns.unjudged, dns.unasked, waiting]
}

#[test]
fn an_answer_finds_the_query_of_its_port_and_number() {
    let asked = [dns(0, 0, 7, 1000), dns(1, 0, 7, 2000), dns(2, 0, 8, 1000)];
    let with = |answers: &[WeirDatagram]| counts(&[&asked[..], answers].concat());
    assert_eq!(with(&[]), [3, 0, 0, 0, 0, 3]);
    assert_eq!(with(&[dns(10, 1, 7, 2000), dns(20, 1, 8, 1000)]), [3, 2, 0, 0, 0, 1]);
    assert_eq!(with(&[dns(10, 1, 8, 2000), dns(20, 1, 9, 1000)]), [3, 0, 0, 0, 2, 3]);
    assert_eq!(with(&[dns(10, 1, 7, 1000), dns(20, 1, 7, 1000)]), [3, 1, 0, 0, 1, 2], "one answer each");
    let times = judged(&[asked[0], dns(3_000_000, 1, 7, 1000)]).dns.times;
    assert_eq!((times.smallest, times.total, times.count), (3_000_000, 3_000_000, 1));
}

#[test]
fn an_answer_within_five_seconds_is_one_and_a_later_one_is_none() {
    let after = |ns: u64| counts(&[dns(0, 0, 7, 1000), dns(ns, 1, 7, 1000)]);
    assert_eq!(after(5 * SECOND), [1, 1, 0, 0, 0, 0]);
    assert_eq!(after(5 * SECOND + 1), [1, 0, 1, 0, 1, 0]);
    // The same question again: within the time it is the same query, afterwards another one.
    assert_eq!(
        counts(&[dns(0, 0, 7, 1), dns(SECOND, 0, 7, 1), dns(2 * SECOND, 1, 7, 1)]),
        [1, 1, 0, 0, 0, 0]
    );
    assert_eq!(counts(&[dns(0, 0, 7, 1), dns(6 * SECOND, 0, 7, 1)]), [2, 0, 1, 0, 0, 1]);
}

#[test]
fn more_queries_than_places_are_not_judged_and_say_so() {
    let many: Vec<WeirDatagram> = (0..PLACES + 3).map(|id| dns(u64::from(id), 0, id, 1000)).collect();
    let all = u64::from(PLACES);
    assert_eq!(counts(&many), [all + 3, 0, 0, 3, 0, all]);
    // The first ones were pushed out, so that their answers find no query.
    let answers: Vec<WeirDatagram> = (0..PLACES + 3).map(|id| dns(1000, 1, id, 1000)).collect();
    assert_eq!(counts(&[many.clone(), answers].concat()), [all + 3, all, 0, 3, 3, 0]);
    // Those that wait for too long make room, and count as unanswered.
    let later: Vec<WeirDatagram> = (100..100 + PLACES).map(|id| dns(9 * SECOND, 0, id, 1000)).collect();
    assert_eq!(counts(&[many, later].concat()), [2 * all + 3, 0, all, 3, 0, all]);
}

#[test]
fn silence_is_from_the_first_to_the_last_datagram_without_an_answer() {
    let (client, server) = (0, 1);
    let mut all = vec![datagram(0, client), datagram(4 * SECOND, client), datagram(9 * SECOND, client)];
    let sides = |all: &[WeirDatagram]| judged(all).sides.map(|s| (s.silence / SECOND, s.unanswered));
    assert_eq!(sides(&all), [(9, 3), (0, 0)]);
    all.push(datagram(20 * SECOND, server));
    assert_eq!(sides(&all), [(9, 0), (0, 1)], "the wait for an answer is no silence of who asked");
    all.extend([datagram(22 * SECOND, server), datagram(23 * SECOND, client), datagram(29 * SECOND, client)]);
    assert_eq!(sides(&all), [(9, 2), (2, 0)], "the longest one stays");
    let flow = judged(&all);
    assert_eq!((flow.sides[0].packets, flow.sides[0].bytes), (5, 500));
    // Two cores may judge two packets in another order than they took their times.
    assert_eq!(sides(&[datagram(5, client), datagram(4, client)]), [(0, 2), (0, 0)]);
    let turned = judged(&[dns(5, 0, 7, 1), dns(4, 1, 7, 1)]).dns;
    assert_eq!((turned.answers, turned.times.total), (1, 0));
}
