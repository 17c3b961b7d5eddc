//! The two ends of a tunnel do not agree.

use weir_text::order;

use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{DropGroup, EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::{LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "tunnel-mismatch",
    title: "packets of a tunnel that this end does not accept",
    about: "A tunnel's packets carry a number: the VNI of VXLAN, the key of GRE. The receiving end drops packets whose \
            number none of its interfaces has, packets with header flags that it is not configured for, and packets that \
            were marked as congested outside while the packet inside may not be (ECN). Overlay networks show it when two \
            hosts disagree about who is in which network.",
    must: &["packets dropped as VXLAN_VNI_NOT_FOUND, VXLAN_INVALID_HDR, IP_TUNNEL_ECN or TUNNEL_TXINFO"],
    should: &["receive errors of the tunnel's interface grow"],
    lookalikes: &[
        ("mtu-mismatch", "large packets only are lost"),
        ("no-listener", "no socket has the tunnel's port open at all: NO_SOCKET"),
    ],
    remedy: "Compare number, port and flags of the two ends (`ip -d link show type vxlan`), and whether the interface is up.",
    sources: &[
        "drivers/net/vxlan/vxlan_core.c: vxlan_rcv; net/ipv4/ip_tunnel.c: ip_tunnel_rcv; RFC 6040, RFC 7348",
    ],
    recipes,
    ..Cause::of(Group::Sockets, examine)
};

/// The meaning of each reason.
const REASONS: [(&str, &str); 4] = [
    ("VXLAN_VNI_NOT_FOUND", "no VXLAN interface that is up here has their network number (VNI)"),
    ("VXLAN_INVALID_HDR", "their VXLAN header has flags that this end is not configured for"),
    ("IP_TUNNEL_ECN", "they were marked as congested outside, and the packet inside may not be (RFC 6040)"),
    ("TUNNEL_TXINFO", "an interface without a tunnel of its own got a packet without one"),
];

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let each =
        |namespace| REASONS.iter().filter_map(move |(reason, words)| by(view, namespace, reason, words));
    view.namespaces().flat_map(each).collect()
}

fn by(view: &EvidenceView<'_>, namespace: &Namespace, reason: &str, words: &str) -> Option<Finding> {
    let taken = view.take(namespace, |d| d.reason == reason);
    if taken.is_empty() {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, taken.packets);
    finding.claims = taken.claims.clone();
    finding.confidence = Confidence::High;
    finding.summary = format!("{} packets of a tunnel were lost: {words}.", taken.packets);
    finding.seen(EvidenceSource::Drops, format!("{} packets dropped as {reason}", taken.packets));
    let numbers = vnis(&taken.groups);
    if !numbers.is_empty() {
        let list = numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        finding.object = format!("VNI {list}");
        finding.seen(EvidenceSource::Drops, format!("network numbers seen: {list}"));
    }
    finding.evidence.extend(taken.example_as_fact());
    let tunnels: Vec<&str> = namespace
        .interfaces
        .iter()
        .filter(|i| ["vxlan", "geneve", "gre", "gretap", "ipip", "sit", "ip6tnl"].contains(&i.kind.as_str()))
        .map(|i| i.name.as_str())
        .collect();
    let mut shown: Vec<_> =
        tunnels.iter().take(4).map(|name| sh!("ip -d -s link show dev {}", name)).collect();
    if shown.is_empty() {
        shown.push(sh!("ip -d -s link show type vxlan"));
    }
    finding.fixes.push(Fix::look("compare with the other end", shown));
    Some(finding)
}

/// Network numbers in the VXLAN headers of samples that begin with the outer one (RFC 7348: after the UDP header one byte of
/// flags, of which 8 says that the number counts, three reserved, and three of the number).
fn vnis(groups: &[&DropGroup]) -> Vec<u32> {
    let of = |header: &Vec<u8>| {
        let (ip, rest) = weir_wire::Ipv4::read_quoted(header).ok()?;
        let vxlan = rest.get(8..16).filter(|v| ip.protocol == 17 && v[0] & 8 != 0)?;
        Some(u32::from_be_bytes([0, vxlan[4], vxlan[5], vxlan[6]]))
    };
    let found = order::set(groups.iter().flat_map(|g| &g.samples).filter_map(|s| of(&s.header)));
    found.into_iter().take(8).collect()
}

fn recipes() -> Vec<Recipe> {
    // The same tunnel but for the number. Frames for the other end need no ARP.
    let vxlan = |vni: u32, remote: &str, dev: &str, address: &str| {
        format!(
            "ip link add vx0 type vxlan id {vni} remote {remote} dstport 4789 dev {dev}; \
             ip addr add {address}/24 dev vx0; ip link set vx0 up"
        )
    };
    let neighbour = "ip neigh replace 198.18.9.1 lladdr 02:00:00:00:09:01 nud permanent dev vx0";
    vec![Recipe {
        at: LabHost::Gateway,
        setup: vec![
            Step::gateway(vxlan(10, "198.18.0.2", "inside", "198.18.9.1")),
            Step::initiator(vxlan(11, "198.18.0.1", "eth0", "198.18.9.2")),
            Step::initiator(neighbour),
        ],
        traffic: vec![Traffic::udp("198.18.9.1:7500", 200, 300, 4)],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{dropped, host, packet, seen};
    use super::*;

    #[test]
    fn the_number_that_came_is_named() {
        let mut lost = dropped("VXLAN_VNI_NOT_FOUND", "vxlan_rcv", 17, 300);
        let mut sample = packet(17, "198.18.0.2:50000", "198.18.0.1:4789", 0);
        sample.header.truncate(28);
        sample.header.extend([8, 0, 0, 0, 0, 0, 11, 0]);
        lost.samples = vec![sample];
        let found = &examine(&EvidenceView::of(&seen(host(&[]), vec![lost])))[0];
        assert_eq!((found.object.as_str(), found.confidence), ("VNI 11", Confidence::High));
    }

    #[test]
    fn a_tunnel_port_that_nobody_has_open_is_not() {
        let drops = vec![dropped("NO_SOCKET", "__udp4_lib_rcv", 17, 300)];
        assert_eq!(examine(&EvidenceView::of(&seen(host(&[]), drops))), []);
    }
}
