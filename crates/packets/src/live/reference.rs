//! A router that does nothing but forward, for the measure of the core that forwards: see [`crate::pace`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use weir_netlink::ethtool::Ethtool;
use weir_netlink::{Mac, Route, Rtnetlink, VethEnd};
use weir_sys::{NetNs, ProcRoot, sysctl};

use super::LiveSender;
use crate::Error;
use crate::transfer::Family;

/// The sender's end of the way there.
const INTERFACE: &str = "weir-ref";
/// The router's interfaces. At the second everything ends.
const IN: &str = "in0";
const OUT: &str = "out0";
/// How long the last frames may take.
const SETTLE: Duration = Duration::from_millis(50);
/// Divisor of the frames sent: if more than that share of them is lost, the core's speed is not reported.
const MOST_LOST: u64 = 20;
/// The router's address, and one that no host has: the router only needs somewhere to send frames to.
const OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 253);
const NEXT_V4: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 254);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0xffff, 0, 0, 0, 1);
const NEXT_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0xffff, 0, 0, 0, 2);

/// The router, in a namespace of its own, which goes with it.
#[derive(Debug)]
pub(super) struct Reference {
    router: Router,
    interface: u32,
    made: (Mac, Family),
}

#[derive(Debug)]
struct Router(NetNs);

impl Drop for Router {
    /// At once: the namespace may outlive its descriptor by a while, and with it the name of the sender's interface.
    fn drop(&mut self) {
        let gone = Rtnetlink::open_in(&self.0).and_then(|mut net| net.delete(IN));
        // The rest goes with the namespace.
        drop(gone);
    }
}

impl Reference {
    /// Builds one beside the calling thread's namespace, from which frames go to it that are addressed to `mac`.
    ///
    /// # Errors
    /// The kernel's refusals: it needs the right to make network namespaces, and interfaces of kind `dummy` or `ifb`.
    pub(super) fn build(mac: Mac, family: Family) -> Result<Self, Error> {
        let router = Router(NetNs::create()?);
        let (mut here, mut there) = (Rtnetlink::open()?, Rtnetlink::open_in(&router.0)?);
        let mtu = LiveSender::LONGEST.into();
        here.create_veth(
            VethEnd { name: INTERFACE, namespace: None, mtu, mac: None },
            VethEnd { name: IN, namespace: Some(&router.0), mtu, mac: Some(mac) },
        )?;
        there.create_end(OUT, mtu)?;
        router.0.run(|| forward(family))??;
        here.set_up(INTERFACE)?;
        there.set_up(IN)?;
        there.set_up(OUT)?;
        let (own, next, prefix): (IpAddr, IpAddr, u8) = match family {
            Family::Ipv4 => (OWN_V4.into(), NEXT_V4.into(), 30),
            Family::Ipv6 => (OWN_V6.into(), NEXT_V6.into(), 64),
        };
        there.add_address(OUT, own, prefix)?;
        there.add_route(Route { destination: None, via: Some(next), interface: OUT, onlink: false })?;
        let interface = here.interface(INTERFACE)?.index;
        Ok(Reference { router, interface, made: (mac, family) })
    }

    /// Number of the interface, in the namespace it was built beside, that leads there.
    pub(super) fn interface(&self) -> u32 {
        self.interface
    }

    /// True if it was built so.
    pub(super) fn is(&self, mac: Mac, family: Family) -> bool {
        self.made == (mac, family)
    }

    /// Frames that have come through so far.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub(super) fn come_through(&self) -> Result<u64, Error> {
        let counters = Rtnetlink::open_in(&self.router.0)?.interface(OUT)?.counters;
        Ok(counters.tx_packets + counters.rx_dropped)
    }

    /// True if nearly all of the frames that were sent since `before` of them had come through have done so, too: what is lost on the
    /// way costs less than what arrives.
    ///
    /// # Errors
    /// As [`Reference::come_through`].
    pub(super) fn took(&self, sent: u64, before: u64) -> Result<bool, Error> {
        let deadline = Instant::now() + SETTLE;
        loop {
            let lost = sent.saturating_sub(self.come_through()?.saturating_sub(before));
            if lost * MOST_LOST <= sent || Instant::now() >= deadline {
                return Ok(lost * MOST_LOST <= sent);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Makes the calling thread's namespace forward whatever comes, and its veth take frames that were redirected to it.
fn forward(family: Family) -> Result<(), Error> {
    let in_filter = format!("net.ipv4.conf.{IN}.rp_filter");
    // A new namespace has its machine's filter of sources that the way back is not to.
    let settings: &[(&str, &str)] = match family {
        Family::Ipv4 => {
            &[("net.ipv4.ip_forward", "1"), ("net.ipv4.conf.all.rp_filter", "0"), (&in_filter, "0")]
        }
        Family::Ipv6 => &[("net.ipv6.conf.all.forwarding", "1")],
    };
    for (name, value) in settings {
        sysctl::set(&ProcRoot::default(), name, value)?;
    }
    Ethtool::open()?.set(IN, &BTreeMap::from([("gro".to_owned(), true)]))?;
    Ok(())
}
