//! Places, streams, memory and bit rates, given and given back.

use super::*;

fn limits() -> Arc<Limits> {
    Arc::new(Limits { sessions: 3, sessions_per_client: 2, memory_bytes: 100, ..Limits::default() })
}

fn client(n: u8) -> IpAddr {
    [192, 0, 2, n].into()
}

#[test]
fn places_are_given_and_come_back() {
    let limits = limits();
    let admit = |a: &str| limits.admit(a.parse().unwrap());
    let first = admit("192.0.2.1").unwrap();
    let second = admit("::ffff:192.0.2.1").unwrap();
    assert_eq!(admit("192.0.2.1").unwrap_err(), Refused::ClientFull(2), "the same address, written so or so");
    let third = admit("192.0.2.2").unwrap();
    assert_eq!(admit("192.0.2.3").unwrap_err(), Refused::Full(3));
    assert_eq!(admit("192.0.2.1").unwrap_err(), Refused::ClientFull(2), "nobody need make room for it");
    drop((first, third));
    assert_eq!(limits.admitted(), 1);
    drop(second);
    assert!(limits.guests().by_client.is_empty(), "nothing is left of who has gone");
}

#[test]
fn clients_of_one_address_may_not_begin_and_end_all_the_time() {
    let limits = limits();
    let begun = Instant::now();
    let admit =
        |address: &str, ms| limits.admit_at(address.parse().unwrap(), begun + Duration::from_millis(ms));
    // Two at once: eight, and two a second.
    for _ in 0..8 {
        drop(admit("192.0.2.1", 0).unwrap());
    }
    assert_eq!(admit("192.0.2.1", 499).unwrap_err(), Refused::ClientOften(2));
    drop(admit("192.0.2.2", 499).unwrap());
    drop(admit("192.0.2.1", 500).unwrap());
    assert!(admit("192.0.2.1", 500).is_err());
    // Who has been quiet has all of it again, and is not remembered for ever.
    for _ in 0..8 {
        drop(admit("192.0.2.1", 10_000).unwrap());
    }
    for n in 0..2 * REMEMBERED as u64 {
        let other = IpAddr::from(0x0a00_0000u32.wrapping_add(n as u32).to_be_bytes());
        drop(limits.admit_at(other, begun + Duration::from_secs(20 + n)).unwrap());
    }
    assert!(limits.guests().begun.len() <= REMEMBERED, "{}", limits.guests().begun.len());
}

#[test]
fn a_64_of_ipv6_is_one_client() {
    let limits = limits();
    let admit = |a: &str| limits.admit(a.parse().unwrap());
    let _one = admit("2001:db8:0:1::1").unwrap();
    let _two = admit("2001:db8:0:1:ffff::2").unwrap();
    assert_eq!(admit("2001:db8:0:1::3").unwrap_err(), Refused::ClientFull(2));
    assert!(admit("2001:db8:0:2::1").is_ok());
}

#[test]
fn bit_rates_are_bounded_over_all() {
    let limits = Arc::new(Limits { total_rate_bps: Some(1e9), ..Limits::default() });
    let most = limits.reserve_rate(client(1), 8e8).unwrap();
    for n in [1, 2] {
        assert_eq!(limits.reserve_rate(client(n), 3e8).unwrap_err(), Refused::Rate(1_000_000_000));
    }
    drop(most);
    let _all = limits.reserve_rate(client(1), 1e9).unwrap();
    assert!(limits.reserve_rate(client(2), 1.0).is_err());
    assert_eq!((limits.most_bps(), Limits::default().most_bps()), (Some(1e9), None));
    let unlimited = Arc::new(Limits::default());
    assert!(unlimited.reserve_rate(client(1), 1e18).is_ok());
    assert!(unlimited.reserve_rate_left(client(1)).unwrap().is_none());
}

#[test]
fn who_names_no_rate_has_what_is_left() {
    let limits = Arc::new(Limits { total_rate_bps: Some(1e9), rate_bps: Some(7e8), ..Limits::default() });
    let left = |n| limits.reserve_rate_left(client(n)).map(|r| r.unwrap());
    let (one, two) = (left(1).unwrap(), left(2).unwrap());
    assert_eq!((one.rate_bps(), two.rate_bps()), (7e8, 3e8));
    assert_eq!(left(3).unwrap_err(), Refused::Rate(1_000_000_000));
    drop((one, two));
    let _one = limits.reserve_rate(client(1), 0.1 + 0.2 + 689_999_998.0).unwrap();
    let _two = limits.reserve_rate(client(2), 3e8).unwrap();
    assert_eq!(left(3).unwrap().rate_bps(), 10_000_001.0, "rounded in favour of who was first");
    let _more = limits.reserve_rate(client(3), 2e6).unwrap();
    assert!(left(4).is_err(), "less than a hundredth");
    // Nothing is left over of fractions.
    drop((_one, _two, _more));
    assert!(limits.guests().by_client.is_empty() && limits.guests().all == Held::default());
    // The share of one may be less than a hundredth of what all may.
    let small = Arc::new(Limits { total_rate_bps: Some(1e9), rate_bps: Some(1e6), ..Limits::default() });
    assert_eq!(small.reserve_rate_left(client(1)).unwrap().unwrap().rate_bps(), 1e6);
}

#[test]
fn the_rate_of_one_client_is_that_of_all_its_measurements() {
    let limits = Arc::new(Limits { rate_bps: Some(5e6), ..Limits::default() });
    let named = limits.reserve_rate(client(1), 3e6).unwrap();
    let rest = limits.reserve_rate_left(client(1)).unwrap().unwrap();
    assert_eq!(rest.rate_bps(), 2e6);
    assert_eq!(limits.reserve_rate(client(1), 1.0).unwrap_err(), Refused::ClientRate(5_000_000));
    assert_eq!(limits.reserve_rate_left(client(1)).unwrap_err(), Refused::ClientRate(5_000_000));
    assert_eq!(limits.reserve_rate_left(client(2)).unwrap().unwrap().rate_bps(), 5e6);
    drop(rest);
    assert!(limits.reserve_rate(client(1), 2e6).is_ok());
    drop(named);
}

#[test]
fn streams_of_one_client_are_those_of_all_its_measurements() {
    let limits = Arc::new(Limits { streams: 10, ..Limits::default() });
    let most = limits.reserve(client(1), 8, 0).unwrap();
    assert_eq!(limits.reserve(client(1), 3, 0).unwrap_err(), Refused::ClientStreams(10));
    assert_eq!(limits.reserve(client(1), u32::MAX, 0).unwrap_err(), Refused::ClientStreams(10));
    let rest = limits.reserve(client(1), 2, 0).unwrap();
    assert!(limits.reserve(client(2), 10, 0).is_ok());
    // All addresses of a /64 are one client.
    let of = |text: &str| text.parse().unwrap();
    let _six = limits.reserve(of("2001:db8::1"), 6, 0).unwrap();
    assert!(limits.reserve(of("2001:db8::2"), 6, 0).is_err());
    drop((most, rest));
    assert!(limits.reserve(client(1), 10, 0).is_ok());
}

#[test]
fn memory_is_bounded_over_all() {
    let limits = limits();
    let most = limits.reserve(client(1), 1, 60).unwrap();
    assert_eq!(limits.reserve(client(2), 1, 41).unwrap_err(), Refused::Memory(100));
    let rest = limits.reserve(client(2), 1, 40).unwrap();
    assert_eq!(limits.reserve(client(2), 1, u64::MAX).unwrap_err(), Refused::ClientMemory(100));
    drop((most, rest));
    assert!(limits.reserve(client(1), 1, 100).is_ok());
}

#[test]
fn one_client_does_not_take_the_memory_of_all() {
    let share = |memory_bytes| Limits { memory_bytes, ..Limits::default() }.memory_per_client();
    assert_eq!([100, 4 << 20, 6 << 20, 256 << 20].map(share), [100, 4 << 20, 4 << 20, 128 << 20]);
    let limits = Arc::new(Limits::default());
    let _all: Vec<_> = (0..16).map(|_| limits.reserve(client(1), 1, 8 << 20).unwrap()).collect();
    assert_eq!(limits.reserve(client(1), 1, 1).unwrap_err(), Refused::ClientMemory(128 << 20));
    assert!(limits.reserve(client(2), 1, 128 << 20).is_ok());
}
