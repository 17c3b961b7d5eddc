//! The reference NAT with ports that are published by configuration.

mod reference;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use reference::Behaviour;
use reference::memory::Memory;
use weir_nat::{Compliance, Observations, Table, measure};

/// Even and odd ones for all experiments.
const PUBLISHED: RangeInclusive<u16> = 8_000..=8_255;
/// Longer than the times of RFC 4787 and RFC 5508; the second one than that of RFC 5382 REQ-5.
const LIMIT: Duration = Duration::from_secs(400);
const CONNECTIONS: Duration = Duration::from_secs(7_500);

/// By one outside address. The end of ports is looked for without the mappings that are left alone.
fn table(published: Option<RangeInclusive<u16>>) -> Table {
    let behaviour = Behaviour { addresses: [reference::ADDRESSES[0]; 2], published, ..Behaviour::default() };
    let mut ends = Memory::new(behaviour.clone(), LIMIT).with_connections(CONNECTIONS);
    let mut observations = measure(&mut ends, &mut |_| true).unwrap();
    let quick = measure(&mut Memory::new(behaviour, Duration::ZERO), &mut |_| true).unwrap();
    (observations.exhaustion, observations.tcp_exhaustion) = (quick.exhaustion, quick.tcp_exhaustion);
    Table::of(&observations)
}

/// Ports that are published without state have no timer and no choice of ports; and the NAT for everything else, which does not know
/// them, gives one of them to another host.
#[test]
fn published_ports_answer_by_their_design() {
    let [usual, table] = [None, Some(PUBLISHED)].map(table);
    let untestable = [
        // The second host's SYNs keep their port too: the choice of ports does not know of the published ones.
        "tcp-port-randomness",
        "tcp-exhaustion-dropped",
        "tcp-exhaustion-keeps",
        "tcp-exhaustion-told",
        "udp-exhaustion-dropped",
        "udp-exhaustion-keeps",
        "udp-exhaustion-told",
        "tcp-first-syns",
        "udp-first-packets",
        "udp-host-limit",
        "udp-parity",
        "udp-port-contiguity",
        "udp-port-preservation",
        "udp-port-randomness",
        "udp-port-range",
        "tcp-port-reuse",
        "tcp-refresh-reset",
        "udp-after-idle",
        "udp-refresh-error",
        "udp-refresh-in",
        "udp-refresh-out",
    ];
    let mut expected = BTreeMap::from(untestable.map(|id| (id, Compliance::NotTestable)));
    expected.extend([("tcp-overloading", Compliance::Fails), ("udp-overloading", Compliance::Fails)]);
    let changed =
        table.rows.iter().zip(&usual.rows).filter(|(a, b)| a.judgement.verdict != b.judgement.verdict);
    let changed: BTreeMap<_, _> = changed.map(|(line, _)| (line.id, line.judgement.verdict)).collect();
    assert_eq!(changed, expected);
    assert_eq!(table.kind.classic, Some("full cone"));
    let by_design = table.rows.iter().filter(|line| line.judgement.seen.starts_with("by design"));
    // Six about the choice of ports, ten about packets that take one, six about refreshes, ten about timers.
    assert_eq!(by_design.count(), 32);
    let words =
        "by design without a timer: open before the host sends, and still after 7500.0 s without packets";
    assert_eq!(table.line("tcp-idle-established").unwrap().judgement.seen, words);
}

/// Published ports that end, or are not open before their host sends, are judged as mappings are.
#[test]
fn published_ports_with_a_timer_fail_as_others_do() {
    let mut ends = Memory::new(Behaviour { published: Some(PUBLISHED), ..Behaviour::default() }, LIMIT);
    let observations = measure(&mut ends, &mut |_| true).unwrap();
    let verdict = |change: fn(&mut Observations)| {
        let mut observations = observations.clone();
        change(&mut observations);
        Table::of(&observations).line("udp-idle-unanswered").unwrap().judgement.clone()
    };
    fn ending(o: &mut Observations, after_s: f64) {
        let tries = &mut o.idle.as_mut().unwrap().unanswered;
        tries.iter_mut().filter(|t| t.idle_s > after_s).for_each(|t| t.alive = false);
    }
    let judgement = verdict(|o| ending(o, 50.0));
    assert!(judgement.verdict == Compliance::Fails && judgement.seen.starts_with("expires"), "{judgement:?}");
    // Few times are tried: those on both sides of two minutes are far apart.
    assert_eq!(verdict(|o| ending(o, 100.0)).verdict, Compliance::NotSure);
    let judgement = verdict(|o| o.published.as_mut().unwrap().udp.answered = None);
    assert_eq!(judgement.seen, "alive after 400 s");
}
