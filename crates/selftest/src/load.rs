//! Whether a healthy load really happened: that nothing was found where nothing was sent says nothing of the doctor.

use weir_doctor::evidence::{Evidence, Namespace};
use weir_doctor::recipe::{LabHost, Traffic};

use crate::lab::name;

/// Share of what was promised that must have arrived. A machine that is slow and busy does half of it; one that does less than a
/// tenth did not carry the load that the case is about.
const LEAST: f64 = 0.1;
/// The least of streams that promise to send as fast as they can, packets/s as TCP gets them: about ten Mbit/s where each is put
/// together of many.
const STREAM: f64 = 20.0;

/// Loads of which far less arrived than was promised, in words. Read from the kernel's counters of the receiver, not of the
/// sender.
pub(crate) fn missed(traffic: &[Traffic], evidence: &Evidence) -> Vec<String> {
    traffic.iter().filter_map(|load| missed_of(load, evidence)).collect()
}

fn missed_of(load: &Traffic, evidence: &Evidence) -> Option<String> {
    // Every healthy load goes to the responder, but frames, which the gateway sees first.
    let (place, what, promised, counter): (_, _, f64, &str) = match load {
        Traffic::Connects { rate, .. } => {
            (LabHost::Responder, "connections", f64::from(*rate), "tcp.PassiveOpens")
        }
        Traffic::Udp { rate, .. } => (LabHost::Responder, "datagrams", f64::from(*rate), "udp.InDatagrams"),
        Traffic::Exchange { rate, .. } => (LabHost::Responder, "messages", f64::from(*rate), "tcp.InSegs"),
        Traffic::Bulk { .. } => (LabHost::Responder, "segments", STREAM / LEAST, "tcp.InSegs"),
        Traffic::Frames { rate, .. } => (LabHost::Gateway, "frames", f64::from(*rate), ""),
        Traffic::UdpServer { .. } | Traffic::TcpServer { .. } | Traffic::Script(..) => return None,
    };
    let at = evidence.namespaces.iter().find(|n| n.name == name(place));
    let came = at.map_or(0, |n| if counter.is_empty() { received(n) } else { n.grew(counter) });
    let rate = came as f64 / evidence.window_s.max(f64::MIN_POSITIVE);
    let least = LEAST * promised;
    (rate < least).then(|| {
        format!(
            "the load did not happen: {rate:.0} {what}/s came to the {}, and {least:.0} are the least",
            name(place)
        )
    })
}

/// Packets that came in through interfaces.
fn received(namespace: &Namespace) -> u64 {
    let links = namespace.interfaces.iter().filter(|i| i.name != "lo");
    links.filter_map(|i| i.counters.get("rx_packets")).map(|d| d.change()).sum()
}

#[cfg(test)]
mod tests {
    use weir_doctor::evidence::Interface;

    use super::*;
    use crate::case::Kind;

    /// The counts of a responder and a gateway in two seconds.
    fn evidence(counters: &[(&str, u64)], frames: u64) -> Evidence {
        let counters = counters.iter().map(|(n, v)| ((*n).to_owned(), (7, 7 + v).into())).collect();
        let responder = Namespace { name: "responder".into(), counters, ..Namespace::default() };
        let link = |name: &str, packets: u64| Interface {
            name: name.into(),
            counters: [("rx_packets".to_owned(), (5, 5 + packets).into())].into(),
            ..Interface::default()
        };
        let interfaces = vec![link("inside", frames), link("lo", 1_000_000)];
        let gateway = Namespace { name: "gateway".into(), interfaces, ..Namespace::default() };
        Evidence { window_s: 2.0, namespaces: vec![gateway, responder], ..Evidence::default() }
    }

    /// The loads as they are, on a machine that does a fifth of them, and on one that does a fortieth.
    #[test]
    fn a_slow_machine_is_forgiven_and_one_that_does_nothing_is_not() {
        let promised = [("tcp.PassiveOpens", 10_000), ("udp.InDatagrams", 20_000), ("tcp.InSegs", 1_000)];
        let part = |of: u64| evidence(&promised.map(|(n, v)| (n, v / of)), 400 / of);
        let loads = crate::healthy::loads();
        assert!(loads.iter().all(|case| case.kind == Kind::Healthy));
        for case in &loads {
            let traffic = &case.recipes[0].traffic;
            for fast_enough in [part(1), part(2), part(5)] {
                assert_eq!(missed(traffic, &fast_enough), [""; 0], "{}", case.name);
            }
            let none = missed(traffic, &part(40));
            assert_eq!(none.len(), usize::from(!traffic.is_empty()), "{} {none:?}", case.name);
            assert_eq!(missed(traffic, &Evidence::default()).len(), none.len(), "{}", case.name);
        }
        let connects = loads.iter().find(|c| c.name == "healthy-connections/routed").unwrap();
        assert_eq!(
            missed(&connects.recipes[0].traffic, &part(100)),
            ["the load did not happen: 50 connections/s came to the responder, and 500 are the least"]
        );
    }
}
