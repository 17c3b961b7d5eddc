//! Whether connections are tracked here.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use weir_netlink::conntrack::{Conntrack, Tuple};
use weir_sys::{ProcRoot, modules};

use crate::Error;

/// Whether this network namespace has its connections tracked, found out by doing: a datagram is sent over the loopback
/// interface, and looked for in the table.
///
/// # Errors
/// If the loopback interface is down, or the right to ask is missing.
pub fn is_tracking() -> Result<bool, Error> {
    // Asking would load it.
    if !modules::is_loaded(&ProcRoot::default(), "nf_conntrack") {
        return Ok(false);
    }
    let tried = |e: std::io::Error| weir_sys::Error::new("send a datagram over the loopback interface", e);
    let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let (from, to) = (bind().map_err(tried)?, bind().map_err(tried)?);
    let target = to.local_addr().map_err(tried)?;
    from.send_to(b"weir", target).map_err(tried)?;
    let own = from.local_addr().map_err(tried)?;
    let packet = Tuple {
        source: IpAddr::from(Ipv4Addr::LOCALHOST).into(),
        destination: IpAddr::from(Ipv4Addr::LOCALHOST).into(),
        protocol: 17,
        source_port: own.port(),
        destination_port: target.port(),
    };
    Ok(Conntrack::open()?.get(&packet)?.is_some())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    use super::*;

    #[test]
    fn root_a_rule_that_asks_for_connections_has_them_tracked() {
        if test_needs_root() {
            return;
        }
        NetNs::create()
            .unwrap()
            .run(|| {
                assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
                assert!(!is_tracking().unwrap());
                let rules = "add table inet t; add chain inet t c { type filter hook input priority 0; }; \
                             add rule inet t c ct state established accept";
                assert!(Command::new("nft").arg(rules).status().unwrap().success());
                assert!(is_tracking().unwrap());
            })
            .unwrap();
    }
}
