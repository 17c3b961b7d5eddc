//! Reading the forwarding tables of bridges: behind which port an Ethernet address is (bridge(8), `bridge fdb`).

use std::io;

use super::message::{Attributes, Message, Received, u32_ne};
use super::rtnetlink::{Mac, Rtnetlink};
use weir_sys::error::{Context, Result};

/// Bytes of `struct ndmsg`.
const HEADER: usize = 12;
/// NDA_MASTER (include/uapi/linux/neighbour.h).
const MASTER: u16 = 9;

/// An Ethernet address that a bridge knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarding {
    /// The address.
    pub mac: Mac,
    /// The bridge.
    pub bridge: u32,
    /// The port behind which it is; the bridge itself for its own.
    pub port: u32,
}

impl Rtnetlink {
    /// Returns every address that the bridges of the namespace know, learned or set. If a table changes while it is read, some
    /// may be missing.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forwarding(&mut self) -> Result<Vec<Forwarding>> {
        let message = Message::dump(libc::RTM_GETNEIGH, libc::AF_BRIDGE, HEADER);
        let mut all = Vec::new();
        match self.socket.request_with(message, |received| all.extend(read(received))) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => other.context(|| "read the forwarding tables of bridges".into())?,
        }
        Ok(all)
    }
}

fn read(received: Received<'_>) -> Option<Forwarding> {
    let header = received.payload;
    if received.kind != libc::RTM_NEWNEIGH || header.len() < HEADER || i32::from(header[0]) != libc::AF_BRIDGE
    {
        return None;
    }
    let attributes = Attributes::after(header, HEADER);
    Some(Forwarding {
        mac: attributes.get(libc::NDA_LLADDR)?.try_into().ok()?,
        // Cards keep such tables, too; those belong to no bridge.
        bridge: attributes.get(MASTER).and_then(u32_ne)?,
        port: u32_ne(&header[4..8])?,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    #[test]
    fn root_addresses_are_behind_the_ports_that_bridge_was_told() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        let script = "ip link add b0 type bridge && ip link add v0 type veth peer name k0 && \
                      ip link add v1 type veth peer name k1 && ip link set v0 master b0 up && ip link set v1 master b0 up && \
                      bridge fdb add 02:00:00:00:00:09 dev v0 master static && \
                      bridge fdb add 02:00:00:00:00:0a dev v1 master static";
        let mut command = Command::new("sh");
        command.args(["-euc", script]);
        ns.enter_on_spawn(&mut command);
        assert!(command.status().unwrap().success());
        let mut net = Rtnetlink::open_in(&ns).unwrap();
        let bridge = net.interface("b0").unwrap().index;
        let known = net.forwarding().unwrap();
        for (last, port) in [(9, "v0"), (10, "v1")] {
            let port = net.interface(port).unwrap().index;
            let wanted = Forwarding { mac: [2, 0, 0, 0, 0, last], bridge, port };
            assert_eq!(known.iter().filter(|f| f.mac == wanted.mac).collect::<Vec<_>>(), [&wanted]);
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(payload in prop::collection::vec(any::<u8>(), 0..80)) {
            let received = Received { kind: libc::RTM_NEWNEIGH, flags: 0, sequence: 0, payload: &payload };
            prop_assert!(read(received).is_none() || payload.len() >= HEADER);
        }
    }
}
