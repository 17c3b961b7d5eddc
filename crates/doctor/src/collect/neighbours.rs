//! Neighbours.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use weir_netlink::{Mac, NeighbourEvents, Rtnetlink};
use weir_sys::Result;

use super::Found;
use crate::evidence::{Moved, Namespace, Neighbour, Neighbours};

/// Neighbours without an answer that are listed one by one.
const UNANSWERED: usize = 100;
/// Addresses whose Ethernet address is followed through the window, in one namespace. The kernel keeps 1,024 by default.
const FOLLOWED: usize = 16_384;

/// Those of the calling thread's namespace.
pub(super) fn read() -> Result<Neighbours> {
    let mut neighbours = Neighbours::default();
    Rtnetlink::open()?.each_neighbour(|n| {
        // Multicast groups and loopback have no neighbours behind them.
        if n.state == "noarp" {
            return;
        }
        *neighbours.states.entry(n.state.to_owned()).or_default() += 1;
        if matches!(n.state, "incomplete" | "failed") && neighbours.unanswered.len() < UNANSWERED {
            let state = n.state.to_owned();
            neighbours.unanswered.push(Neighbour {
                address: n.address,
                interface: n.interface,
                state,
                answered: false,
            });
        }
    })?;
    Ok(neighbours)
}

/// Hears which addresses change from one Ethernet address to another in the window: two readings would miss one that changes
/// back.
#[derive(Debug)]
pub(super) struct Listener {
    events: Result<NeighbourEvents>,
    known: BTreeMap<(u32, IpAddr), Mac>,
}

impl Listener {
    /// Begins to listen in a namespace.
    pub(super) fn begin(found: &Found) -> Self {
        let open = || -> Result<_> {
            // Before the reading, so that nothing changes between the two.
            let events = NeighbourEvents::open()?;
            let mut known = BTreeMap::new();
            Rtnetlink::open()?.each_neighbour(|n| {
                if let Some(mac) = n.mac.filter(|_| n.state != "noarp" && known.len() < FOLLOWED) {
                    known.insert((n.interface, n.address), mac);
                }
            })?;
            Ok((events, known))
        };
        match found.inside(open).and_then(|inside| inside) {
            Ok((events, known)) => Listener { events: Ok(events), known },
            Err(e) => Listener { events: Err(e), known: BTreeMap::new() },
        }
    }

    /// Ends it and writes down what was heard.
    pub(super) fn end(self, namespace: &mut Namespace) {
        let Some(neighbours) = &mut namespace.neighbours else { return };
        let mut follower = Follower { known: self.known, ..Follower::default() };
        let heard = self.events.and_then(|mut events| events.drain(|n| follower.hear(n)));
        neighbours.unheard = match heard {
            Ok(false) => None,
            Ok(true) => Some("more changed than there was room to hear of".into()),
            Err(e) => Some(e.to_string()),
        };
        for neighbour in &mut neighbours.unanswered {
            neighbour.answered = follower.answered.contains(&(neighbour.interface, neighbour.address));
        }
        neighbours.moved = follower.moved.into_values().collect();
    }
}

/// Which address is where.
#[derive(Debug, Default)]
struct Follower {
    known: BTreeMap<(u32, IpAddr), Mac>,
    moved: BTreeMap<(u32, IpAddr), Moved>,
    /// Those that answered while it was listened.
    answered: BTreeSet<(u32, IpAddr)>,
}

impl Follower {
    fn hear(&mut self, neighbour: weir_netlink::Neighbour) {
        let key = (neighbour.interface, neighbour.address);
        // One that fails, or is asked for, still shows the address that it had, or none.
        let answered = !matches!(neighbour.state, "failed" | "incomplete" | "none" | "noarp");
        let Some(mac) = neighbour.mac.filter(|_| answered) else { return };
        if neighbour.state == "reachable" && self.answered.len() < FOLLOWED {
            self.answered.insert(key);
        }
        let room = self.known.len() < FOLLOWED;
        let before = match self.known.entry(key) {
            Entry::Occupied(mut known) => known.insert(mac),
            Entry::Vacant(new) => {
                if room {
                    new.insert(mac);
                }
                return;
            }
        };
        if before == mac {
            return;
        }
        let (interface, address) = key;
        let moved = self.moved.entry(key).or_insert_with(|| Moved {
            address,
            interface,
            seen: vec![written(before)],
            times: 0,
        });
        moved.times += 1;
        let now = written(mac);
        // More than a handful is a scan or an attack, and says no more.
        if !moved.seen.contains(&now) && moved.seen.len() < 8 {
            moved.seen.push(now);
        }
    }
}

fn written(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    use super::*;

    fn heard(state: &'static str, last: u8) -> weir_netlink::Neighbour {
        let mac = Some([2, 0, 0, 0, 0, last]);
        weir_netlink::Neighbour { address: [198, 18, 0, 2].into(), interface: 3, mac, state }
    }

    #[test]
    fn an_address_that_goes_back_and_forth_is_followed() {
        let mut follower = Follower::default();
        for (state, last) in
            [("reachable", 1), ("stale", 1), ("reachable", 2), ("failed", 9), ("reachable", 1), ("probe", 2)]
        {
            follower.hear(heard(state, last));
        }
        let moved: Vec<_> = follower.moved.into_values().collect();
        assert_eq!(moved.len(), 1);
        assert_eq!(moved[0].times, 3);
        assert_eq!(follower.answered.len(), 1);
        assert_eq!(moved[0].seen, ["02:00:00:00:00:01", "02:00:00:00:00:02"]);
    }

    #[test]
    fn root_changes_are_heard_in_a_namespace_that_one_is_not_in() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        let ip = |arguments: &str| {
            let mut command = Command::new("ip");
            command.args(arguments.split(' '));
            ns.enter_on_spawn(&mut command);
            assert!(command.status().unwrap().success(), "ip {arguments}");
        };
        for step in ["link add d0 type veth peer name d1", "link set d0 up", "link set d1 up"] {
            ip(step);
        }
        ip("neigh add 198.18.0.9 lladdr 02:00:00:00:00:01 dev d0 nud permanent");
        ip("neigh add 198.18.0.8 dev d0 nud failed");
        let found =
            Found { id: 1, name: "x".into(), own: false, handle: Some(ns.clone()), path: None, shut: None };
        let listener = Listener::begin(&found);
        for last in ["02", "01"] {
            ip(&format!("neigh change 198.18.0.9 lladdr 02:00:00:00:00:{last} dev d0 nud permanent"));
        }
        let neighbours = Some(ns.run(read).unwrap().unwrap());
        let mut namespace = Namespace { neighbours, ..Namespace::default() };
        listener.end(&mut namespace);
        let neighbours = namespace.neighbours.unwrap();
        assert_eq!(neighbours.unheard, None);
        let moved: Vec<_> = neighbours.moved.iter().map(|m| (m.times, m.seen.len())).collect();
        assert_eq!(moved, [(2, 2)]);
        assert_eq!((neighbours.unanswered.len(), neighbours.unanswered[0].state.as_str()), (1, "failed"));
        assert_eq!(neighbours.states["permanent"], 1);
    }
}
