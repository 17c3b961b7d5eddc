//! The speed of the sender's core, by a router that is made for it.

use std::time::Duration;

use weir_netlink::Rtnetlink;
use weir_packets::{Endpoint, Engine, Family, Link, Offer, Stop, Way};
use weir_sys::privilege::test_needs_root;

use crate::link::{Hosts, LONG};

/// The initiator's interface to it.
const INTERFACE: &str = "weir-ref";

fn endpoint(hosts: &Hosts, cpus: Vec<usize>) -> Endpoint {
    let link = Link { reference: true, ..hosts.link(Way::Egress, cpus) };
    hosts.initiator.run(|| Endpoint::open(&link, Some(Engine::Xdp)).unwrap()).unwrap()
}

fn is_there(hosts: &Hosts) -> bool {
    let mut net = Rtnetlink::open_in(&hosts.initiator).unwrap();
    net.interfaces().unwrap().iter().any(|i| i.name == INTERFACE)
}

#[test]
fn root_measured_the_speed_of_its_core_measures_a_transfer_without_a_schedule() {
    if test_needs_root() {
        return;
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        let hosts = Hosts::new(family);
        hosts.gro();
        let endpoint = endpoint(&hosts, vec![0]);
        assert!(!is_there(&hosts), "only what is measured needs it");
        let sending = hosts.sending(Offer::Unlimited, u64::MAX, Duration::from_secs(1));
        let before = hosts.arrived();
        let sent = hosts.send(&endpoint, &sending, &Stop::default()).unwrap();
        let pace = sent.pace.expect("slices");
        assert!((50..=500).contains(&pace.slices), "two milliseconds or longer: {pace:?}");
        // Two batches of 64 after each slice, which are in `pace.reference_ns`.
        let turns_ns = pace.reference_ns * 128.0 * pace.slices as f64;
        assert!(sent.elsewhere_ns as f64 > 0.5 * turns_ns, "{sent:?}");
        let lasted = Duration::from_nanos(sent.duration_ns + sent.elsewhere_ns);
        assert!((0.99..5.0).contains(&lasted.as_secs_f64()), "{sent:?}");
        // Nothing that went to the router came here, or counts as sent: each of its batches has 64 frames. The rest is
        // the neighbours' greeting (IPv6).
        assert!(hosts.arrived() - before < sent.frames + 64, "{} of {sent:?}", hosts.arrived() - before);
        // Some factor of ten between what it says and what was: it is no measure of something else.
        let (frame_ns, whole_ns) =
            (pace.frame_ratio * pace.reference_ns, sent.duration_ns as f64 / sent.frames as f64);
        assert!((0.1..10.0).contains(&(frame_ns / whole_ns)), "{pace:?} {sent:?}");
        // The next transfer has slices of its own.
        let again = hosts.send(&endpoint, &sending, &Stop::default()).unwrap();
        assert!((50..=500).contains(&again.pace.expect("slices").slices), "{again:?}");
        assert!(is_there(&hosts));
        drop(endpoint);
        assert!(!is_there(&hosts), "it goes with the endpoint, at once");
    }
}

#[test]
fn root_there_is_no_pace_where_it_would_be_another_cores_or_none() {
    if test_needs_root() {
        return;
    }
    let hosts = Hosts::new(Family::Ipv4);
    hosts.gro();
    // Too short, by a schedule, from two threads, and not asked for.
    let (one, two, unasked) =
        (endpoint(&hosts, vec![0]), endpoint(&hosts, vec![0, 0]), hosts.initiator(vec![0]));
    for (endpoint, offer, frames) in [
        (&one, Offer::Unlimited, 1_000),
        (&one, Offer::Rate(20_000.0), 2_000),
        (&two, Offer::Unlimited, 200_000),
        (&unasked, Offer::Unlimited, 400_000),
    ] {
        let before = hosts.arrived();
        let sent = hosts.send(endpoint, &hosts.sending(offer, frames, LONG), &Stop::default()).unwrap();
        assert_eq!((sent.frames + sent.refused, sent.pace), (frames, None));
        assert!(std::ptr::eq(endpoint, &one) || sent.elsewhere_ns == 0, "{sent:?}");
        assert!(hosts.arrived() - before <= sent.frames);
    }
}
