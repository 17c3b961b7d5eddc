//! Packets that the gateway's kernel handled: how many, how large. A rate of datagrams says nothing about the gateway when a GSO
//! super-packet crosses it as one.

use weir_record::results::Results;
use weir_record::{Run, Unit, VariantInfo, WorkloadInfo};

use crate::escape::line;
use crate::units::{number, quantity};
use crate::view::compared;

/// An Ethernet header and one VLAN tag (IEEE 802.3, 802.1Q), which the interface counts and the MTU does not.
const LINK_HEADER_BYTES: f64 = 18.0;

/// Packets that one variant's gateway handled during one workload.
pub(crate) struct Handled<'a> {
    pub(crate) variant: &'a VariantInfo,
    rate: String,
    bytes: String,
    /// On the mean larger than any packet of the link.
    super_packets: bool,
}

impl Handled<'_> {
    /// How many: `280 kpps`.
    pub(crate) fn rate(&self) -> &str {
        &self.rate
    }

    /// How large: `of 1514 bytes each`, with a mark where they are super-packets.
    pub(crate) fn size(&self) -> String {
        format!("of {} bytes each{}", self.bytes, self.mark())
    }

    fn mark(&self) -> &'static str {
        if self.super_packets { ", super-packets (GSO)" } else { "" }
    }
}

/// For a workload that is about a rate of bits or packets: every variant with a gateway.
pub(crate) fn handled<'a>(run: &'a Run, results: &Results, workload: &WorkloadInfo) -> Vec<Handled<'a>> {
    if !workload.metrics.iter().any(|m| m.headline && matches!(m.unit, Unit::Bps | Unit::Pps)) {
        return Vec::new();
    }
    let mtu = mtu(run);
    let of = |variant: &'a VariantInfo| {
        let value = |metric: &str| {
            let center = results.cell(&workload.name, metric, &variant.name)?.estimate?.center;
            center.is_finite().then_some(center)
        };
        let bytes = value("gateway_skb_bytes")?;
        Some(Handled {
            variant,
            rate: quantity(Unit::Pps, value("gateway_skbs_pps")?, None),
            bytes: number(bytes, 0),
            super_packets: mtu.is_some_and(|mtu| bytes > mtu + LINK_HEADER_BYTES),
        })
    };
    compared(run).filter_map(of).collect()
}

/// The greatest MTU of the gateway's links; without a gateway's record nothing is called a super-packet.
fn mtu(run: &Run) -> Option<f64> {
    let gateways = run.hosts.iter().filter(|h| h.role == "gateway");
    let links = gateways.flat_map(|h| &h.interfaces).filter(|i| i.name != "lo");
    links.map(|i| f64::from(i.mtu)).reduce(f64::max)
}

/// One line about all variants of a workload; `None` where no gateway was watched.
pub(crate) fn sentence(all: &[Handled<'_>]) -> Option<String> {
    let first = all.first()?;
    let alike = all.iter().all(|h| h.bytes == first.bytes && h.super_packets == first.super_packets);
    let each: Vec<String> = all
        .iter()
        .map(|h| {
            let name = line(&h.variant.name);
            if alike { format!("{name} {}", h.rate) } else { format!("{name} {} of {} B", h.rate, h.bytes) }
        })
        .collect();
    let super_packets = all.iter().any(|h| h.super_packets);
    Some(match (alike, all.len()) {
        (true, 1) => format!("gateway handled {} of {} B each{}", first.rate, first.bytes, first.mark()),
        (true, _) => {
            format!("gateway handled skbs of {} B{}: {}", first.bytes, first.mark(), each.join(", "))
        }
        (false, _) if super_packets => {
            format!("gateway handled super-packets (GSO): {}", each.join(", "))
        }
        (false, _) => format!("gateway handled {}", each.join(", ")),
    })
}
