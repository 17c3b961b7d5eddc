//! Reading neighbours, and hearing of those that change (rtnetlink(7), include/uapi/linux/neighbour.h).

use std::io;
use std::net::IpAddr;

use super::message::{Attributes, Message, Received, address, u32_ne};
use super::rtnetlink::{Mac, Rtnetlink};
use super::socket::Socket;
use weir_sys::error::{Context, Result};

/// Bytes of `struct ndmsg`.
const HEADER: usize = 12;
/// Room for events, bytes. An event takes about a kilobyte of it with the kernel's own overhead.
const ROOM: usize = 1 << 20;
/// RTNLGRP_NEIGH, as a bit of the address that a socket is bound to.
const GROUP: u32 = 3;

/// A neighbour as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Its address.
    pub address: IpAddr,
    /// Interface whose link it is on.
    pub interface: u32,
    /// Its Ethernet address, if the kernel has one of six bytes.
    pub mac: Option<Mac>,
    /// `reachable`, `stale`, `delay`, `probe`, `incomplete`, `failed`, `noarp`, `permanent` or `none`.
    pub state: &'static str,
}

impl Rtnetlink {
    /// Hands over every neighbour of both families. If a table changes while it is read, some may be missing.
    pub fn each_neighbour(&mut self, mut each: impl FnMut(Neighbour)) -> Result<()> {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let message = Message::dump(libc::RTM_GETNEIGH, family, HEADER);
            let read = self.socket.request_with(message, |received| {
                if let Some(neighbour) = read_neighbour(received) {
                    each(neighbour);
                }
            });
            match read {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => other.context(|| "read neighbours".into())?,
            }
        }
        Ok(())
    }
}

/// Hears of neighbours that change, from when it is opened on.
#[derive(Debug)]
pub struct NeighbourEvents {
    socket: Socket,
}

impl NeighbourEvents {
    /// Listens in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        let socket = Socket::open(libc::NETLINK_ROUTE)
            .and_then(|socket| socket.listening(ROOM, &[GROUP]))
            .context(|| "listen for changes of neighbours".into())?;
        Ok(NeighbourEvents { socket })
    }

    /// Hands over what has come until now, without waiting. True if there was more than the kernel had room for.
    pub fn drain(&mut self, mut each: impl FnMut(Neighbour)) -> Result<bool> {
        let changed = |received: Received<'_>| {
            let is_new = received.kind == libc::RTM_NEWNEIGH;
            is_new.then(|| read_neighbour(received)).flatten().into_iter().for_each(&mut each);
        };
        self.socket.drain(changed).context(|| "read changes of neighbours".into())
    }
}

/// The neighbour of a message that tells of one, new or gone.
pub(super) fn read_neighbour(received: Received<'_>) -> Option<Neighbour> {
    if !matches!(received.kind, libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH) || received.payload.len() < HEADER {
        return None;
    }
    // struct ndmsg: family, padding, index, state, flags, type.
    let header = received.payload;
    // Bridges tell of their own addresses in the same way, without an IP address.
    if !matches!(i32::from(header[0]), libc::AF_INET | libc::AF_INET6) {
        return None;
    }
    let attributes = Attributes::after(header, HEADER);
    Some(Neighbour {
        address: attributes.get(libc::NDA_DST).and_then(address)?,
        interface: u32_ne(&header[4..8])?,
        mac: attributes.get(libc::NDA_LLADDR).and_then(|bytes| bytes.try_into().ok()),
        state: state(u16::from_ne_bytes([header[8], header[9]])),
    })
}

fn state(bits: u16) -> &'static str {
    match bits {
        libc::NUD_INCOMPLETE => "incomplete",
        libc::NUD_REACHABLE => "reachable",
        libc::NUD_STALE => "stale",
        libc::NUD_DELAY => "delay",
        libc::NUD_PROBE => "probe",
        libc::NUD_FAILED => "failed",
        libc::NUD_NOARP => "noarp",
        libc::NUD_PERMANENT => "permanent",
        _ => "none",
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    fn ip(ns: &NetNs, arguments: &str) -> String {
        let mut command = Command::new("ip");
        command.args(arguments.split_whitespace());
        ns.enter_on_spawn(&mut command);
        let output = command.output().unwrap();
        assert!(output.status.success(), "ip {arguments}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn root_neighbours_and_their_changes_are_those_that_were_made() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        for command in ["link add d0 type veth peer name d1", "link set d0 up", "link set d1 up"] {
            ip(&ns, command);
        }
        ip(&ns, "neigh add 198.18.0.9 lladdr 02:00:00:00:00:09 dev d0 nud permanent");
        ip(&ns, "neigh add 2001:2::9 lladdr 02:00:00:00:00:0a dev d0 nud stale");
        ip(&ns, "neigh add 198.18.0.8 dev d0 nud failed");
        let mut net = Rtnetlink::open_in(&ns).unwrap();
        let index = net.interface("d0").unwrap().index;
        let mut found = Vec::new();
        net.each_neighbour(|n| found.push(n)).unwrap();
        found.retain(|n| n.state != "noarp");
        found.sort_by_key(|n| n.address);
        let expected = |address: &str, mac, state| Neighbour {
            address: address.parse().unwrap(),
            interface: index,
            mac,
            state,
        };
        let mac = |last| Some([2, 0, 0, 0, 0, last]);
        let expected = [
            expected("198.18.0.8", None, "failed"),
            expected("198.18.0.9", mac(9), "permanent"),
            expected("2001:2::9", mac(10), "stale"),
        ];
        assert_eq!(found, expected);

        let mut events = ns.run(NeighbourEvents::open).unwrap().unwrap();
        assert!(!events.drain(|_| panic!("nothing has changed yet")).unwrap());
        ip(&ns, "neigh change 198.18.0.9 lladdr 02:00:00:00:00:0b dev d0 nud permanent");
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut heard = None;
        while heard.is_none() && Instant::now() < deadline {
            events.drain(|n| heard = Some(n)).unwrap();
        }
        assert_eq!(heard.map(|n| (n.address, n.mac)), Some((expected[1].address, mac(11))));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(payload in prop::collection::vec(any::<u8>(), 0..80)) {
            let received = Received { kind: libc::RTM_NEWNEIGH, flags: 0, sequence: 0, payload: &payload };
            prop_assert!(read_neighbour(received).is_none() || payload.len() >= HEADER);
        }
    }
}
