//! Fragments fare as the link's name for it says, seen as they arrive.

use weir_lab::{Family, Role, Site};
use weir_sys::fragment_tap::FragmentTap;
use weir_sys::{ProcRoot, sysctl};

use crate::{bound, cannot_run, ends, lab, start, turn};

/// The fragments of a datagram that arrive, in the order of arrival: the number of each by its place, which a packet socket sees
/// before anything puts them together.
fn fragments(tap: &FragmentTap, family: Family) -> Vec<usize> {
    let (mut places, mut buffer) = (Vec::new(), [0; 256]);
    while let Some(length) = tap.read(&mut buffer).unwrap() {
        let packet = &buffer[..length];
        // RFC 791: offset in units of 8 bytes in the lower 13 bits of bytes 6 and 7; RFC 8200 section 4.5: in the upper 13 bits of
        // bytes 2 and 3 of the fragment header, which follows 40 bytes of IPv6.
        let offset = match family {
            Family::Ipv4 => usize::from(u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff) * 8,
            Family::Ipv6 => usize::from(u16::from_be_bytes([packet[42], packet[43]]) & 0xfff8),
        };
        places.push(offset.div_ceil(1480));
    }
    assert_eq!(tap.missed().unwrap(), 0);
    places
}

/// Sends datagrams of 8,000 bytes, which are six fragments with an MTU of 1500, and says which fragments of each arrived, in
/// their order, and whether it was put together.
fn in_fragments(site: &Site, count: usize) -> Vec<(Vec<usize>, bool)> {
    let family = site.addresses().family;
    let (near, far) = ends(site, 5000);
    let tap = site.host(Role::Responder).unwrap().run(|| FragmentTap::open().unwrap()).unwrap();
    let mut buffer = vec![0; 65_536];
    (0..count)
        .map(|n| {
            near.send(&vec![n as u8; 8000]).unwrap();
            // Datagrams that are not cut pass in any case, and behind those that were sent before.
            near.send(b"small").unwrap();
            let mut whole = false;
            while far.recv(&mut buffer).unwrap() != 5 {
                whole = buffer[0] == n as u8;
            }
            (fragments(&tap, family), whole)
        })
        .collect()
}

#[test]
fn root_fragments_fare_as_named_as_they_arrive() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    for family in [Family::Ipv4, Family::Ipv6] {
        for (kind, arrive, whole, dropped) in [
            (r#"{"delay": "1ms"}"#, vec![0, 1, 2, 3, 4, 5], true, 0),
            (r#"{"egress": {"fragments": "drop-rest"}}"#, vec![0], false, 5),
            (r#"{"egress": {"fragments": "drop-all"}}"#, vec![], false, 6),
            (r#"{"egress": {"fragments": "reorder"}}"#, vec![1, 2, 3, 4, 5, 0], true, 0),
        ] {
            let lab = lab("fragments", family);
            let site = lab.site("s").unwrap();
            let mut link = start(site, kind);
            link.begin(0).unwrap();
            for (places, put_together) in in_fragments(site, 10) {
                assert_eq!((places, put_together), (arrive.clone(), whole), "{family:?} {kind}");
            }
            let [egress, ingress] = link.crossed().unwrap();
            assert_eq!((egress.fragments_dropped, ingress.fragments_dropped), (10 * dropped, 0), "{kind}");
            let reordered = if kind.contains("reorder") { 10 } else { 0 };
            assert_eq!(egress.passed.reordered, reordered, "{kind}");
        }
    }
}

/// The wan cuts what is too large for its own MTU, and what it cuts is dropped as well.
#[test]
fn root_fragments_that_a_tunnel_makes_are_dropped_too() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    for (kind, arrive) in
        [(r#"{"mtu": 1400}"#, vec![0, 1]), (r#"{"mtu": 1400, "fragments": "drop-rest"}"#, vec![0])]
    {
        let lab = lab("cut", Family::Ipv4);
        let site = lab.site("s").unwrap();
        let mut link = start(site, kind);
        link.begin(0).unwrap();
        let (near, _far) = ends(site, 5000);
        let tap = site.host(Role::Responder).unwrap().run(|| FragmentTap::open().unwrap()).unwrap();
        // Without DF (ip(7), IP_MTU_DISCOVER: what the namespace says): a whole packet of 1,500 bytes.
        let namespace = site.host(Role::Initiator).unwrap();
        namespace.run(|| sysctl::set(&ProcRoot::new("/"), "net.ipv4.ip_no_pmtu_disc", "1").unwrap()).unwrap();
        let near = {
            drop(near);
            bound(site, Role::Initiator, 5001)
        };
        near.send_to(&[0; 1472], (site.addresses().responder, 5000)).unwrap();
        assert_eq!(fragments(&tap, Family::Ipv4), arrive, "{kind}");
        let [egress, _] = link.crossed().unwrap();
        assert_eq!(egress.fragments_dropped, 2 - arrive.len() as u64);
    }
}
