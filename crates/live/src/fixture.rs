//! Readings of these tests.

use weir_flows::{Doubts, Flow, Fraction, Limits, Network, Reading};

pub(crate) fn flow(client: &str, server: &str) -> Flow {
    Flow { client: client.parse().unwrap(), server: server.parse().unwrap(), ..Flow::empty() }
}

pub(crate) fn reading(flows: Vec<Flow>) -> Reading {
    let mut reading = Reading::empty();
    reading.interfaces = vec!["in0".to_owned(), "out0".to_owned()];
    reading.flows_now = flows.len() as u64;
    reading.flows = flows;
    reading
}

/// A network with figures of many digits.
pub(crate) fn network(name: &str) -> Network {
    let mut network = Network { network: Some(name.to_owned()), flows: 123_456, ..Reading::empty().all };
    for side in [&mut network.client_side, &mut network.server_side] {
        side.bytes = 1 << 50;
        side.round_trips.smallest_ns = Some(123_456_789);
        side.limits = limits(9000.0, 1000.0);
        for part in [&mut side.lost_from, &mut side.lost_to] {
            *part = loss(1234, 99_999);
        }
    }
    network
}

/// Time that the receiver and the network limited a sender, seconds.
pub(crate) fn limits(receiver: f64, network: f64) -> Limits {
    Limits::sum([&Limits { receiver_seconds: receiver, network_seconds: network, ..Limits::default() }])
}

pub(crate) fn loss(segments: u64, of: u64) -> Fraction {
    let counts = Fraction { segments, of, share: None, low: None, high: None, doubts: Doubts::default() };
    Fraction::sum([&counts])
}
