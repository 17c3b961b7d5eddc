//! The flows in the table, for people.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::direction::{ends, protocol, tuple};
use crate::idle::ticks_since;
use crate::options::RENEWALS_PER_SECOND;
use crate::shared::{
    WEIR_GENERATION_SHIFT, WEIR_PHASE_MASK, WEIR_UDP, WEIR_VALID, WeirBucket4, WeirBucket6, WeirControl,
    WeirDirection, WeirEntry, WeirWay,
};
use crate::{Fastpath, Protocol, Result, WayOut};

/// One direction of a flow in the table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Flow {
    /// Protocol.
    pub protocol: Protocol,
    /// Source with which its packets come in.
    pub source: SocketAddr,
    /// Destination with which its packets come in.
    pub destination: SocketAddr,
    /// How they leave.
    pub out: WayOut,
    /// Something has changed since it was learnt: its next packet takes the kernel's way.
    pub stale: bool,
    /// Seconds since a packet was carried, to half a second and at most 127; `None` if none was since the kernel renewed its timeout.
    pub idle_s: Option<f64>,
}

/// Calls a function with every valid entry; false ends it. Entries that change meanwhile may be missing or doubled.
fn each(fastpath: &Fastpath, mut f: impl FnMut(WeirDirection, WeirEntry) -> bool) -> Result<()> {
    let mut visit = |way: WeirWay,
                     [source, destination, to_source, to_destination]: [[u32; 4]; 4],
                     ports,
                     to_ports,
                     version| {
        // Without a timeout it waits for what conntrack says, and carries nothing.
        if u64::from(way.state) & WEIR_PHASE_MASK != WEIR_VALID || way.timeout == 0 {
            return true;
        }
        let protocol = if u64::from(way.state) & WEIR_UDP == 0 { Protocol::Tcp } else { Protocol::Udp };
        let direction =
            WeirDirection { source, destination, ports, version, protocol: protocol.number().into() };
        f(direction, WeirEntry { way, source: to_source, destination: to_destination, ports: to_ports })
    };
    let word = |word| [word, 0, 0, 0];
    let control = fastpath.control();
    let v4 = fastpath.table::<WeirBucket4>("flows4")?;
    for at in 0..=control.mask4 as usize {
        for flow in v4.get(at).flows {
            let addresses = [flow.source, flow.destination, flow.to_source, flow.to_destination].map(word);
            if !visit(flow.way, addresses, flow.ports, flow.to_ports, 4) {
                return Ok(());
            }
        }
    }
    let v6 = fastpath.table::<WeirBucket6>("flows6")?;
    for at in 0..=control.mask6 as usize {
        for flow in v6.get(at).flows {
            let addresses = [flow.source, flow.destination, flow.to_source, flow.to_destination];
            if !visit(flow.way, addresses, flow.ports, flow.to_ports, 6) {
                return Ok(());
            }
        }
    }
    Ok(())
}

impl Fastpath {
    /// Number of directions in the table that are not stale.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn live(&self) -> Result<u64> {
        let (control, mut live) = (self.control(), 0);
        each(self, |_, entry| {
            live += u64::from(!is_stale(&entry.way, &control));
            true
        })?;
        Ok(live)
    }

    /// Directions of flows in the table, at most so many.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn flows(&self, most: usize) -> Result<Vec<Flow>> {
        let (control, mut flows) = (self.control(), Vec::new());
        each(self, |direction, entry| {
            if flows.len() == most {
                return false;
            }
            let (source, destination) = ends(&tuple(&direction));
            flows.push(Flow {
                protocol: protocol(&direction),
                source,
                destination,
                out: WayOut::of(&entry, direction.version, direction.protocol),
                stale: is_stale(&entry.way, &control),
                idle_s: ticks_since(&entry.way, &control)
                    .map(|ticks| f64::from(ticks) / f64::from(RENEWALS_PER_SECOND)),
            });
            true
        })?;
        Ok(flows)
    }
}

/// Whether it is valid and not stale.
pub(crate) fn is_live(way: &WeirWay, control: &WeirControl) -> bool {
    u64::from(way.state) & WEIR_PHASE_MASK == WEIR_VALID && !is_stale(way, control)
}

fn is_stale(way: &WeirWay, control: &WeirControl) -> bool {
    way.state >> WEIR_GENERATION_SHIFT != control.generation & 0xffff
}
