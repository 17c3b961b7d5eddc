//! Routes, and what the kernel answers about the packets that were lost.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_netlink::{Asking, RouteEntry, RouteKind, Rtnetlink};
use weir_sys::Result;
use weir_text::order;

use super::Asked;
use crate::evidence::{Lookup, RememberedMtu, RouteOutcome, Routes, UnusualRoute};

/// Tables that the kernel fills by itself with this host's own addresses.
const LOCAL: u32 = 255;
/// Path MTUs that are listed one by one.
const REMEMBERED: usize = 100;
/// Routes that drop packets and are listed one by one: a longer list is a blocklist of networks.
const UNUSUAL: usize = 1_000;
/// Packets about which the kernel is asked, in one namespace.
const LOOKUPS: usize = 200;

/// Those of the calling thread's namespace.
pub(super) fn read(asked: &Asked<'_>) -> Result<Routes> {
    let mut net = Rtnetlink::open()?;
    let routes = std::cell::RefCell::new(Routes::default());
    net.each_route(
        || *routes.borrow_mut() = Routes::default(),
        |route| note(&mut routes.borrow_mut(), route),
    )?;
    let mut routes = routes.into_inner();
    order::by_key(&mut routes.remembered, |r| (r.mtu, r.destination));
    routes.remembered.truncate(REMEMBERED);
    let policies = net.policies()?;
    routes.policies = policies.iter().filter(|p| !p.is_usual()).map(ToString::to_string).collect();
    let by_port = policies.iter().any(|p| p.text.contains("port "));
    for question in questions(asked, by_port) {
        routes.lookups.push(ask(&mut net, &question));
    }
    Ok(routes)
}

fn note(routes: &mut Routes, route: RouteEntry) {
    if route.remembered {
        let Some(mtu) = route.mtu.filter(|_| route.expires_s > 0) else { return };
        routes.remembered_total += 1;
        let RouteEntry { destination, interface, expires_s, .. } = route;
        routes.remembered.push(RememberedMtu { destination, mtu, interface, expires_s });
        if routes.remembered.len() >= 8 * REMEMBERED {
            order::by_key(&mut routes.remembered, |r| r.mtu);
            routes.remembered.truncate(REMEMBERED);
        }
        return;
    }
    if route.table == LOCAL || route.kind == RouteKind::Local {
        return;
    }
    routes.total += 1;
    let kind = match route.kind {
        RouteKind::Unicast if route.prefix == 0 => {
            let default =
                if route.destination.is_ipv4() { &mut routes.default4 } else { &mut routes.default6 };
            *default = true;
            return;
        }
        RouteKind::Blackhole => "blackhole",
        RouteKind::Unreachable => "unreachable",
        RouteKind::Prohibit => "prohibit",
        RouteKind::Throw => "throw",
        _ => return,
    };
    if routes.unusual.len() < UNUSUAL {
        let RouteEntry { destination, prefix, table, .. } = route;
        routes.unusual.push(UnusualRoute { kind: kind.into(), destination, prefix, table });
    }
}

/// Builds the route lookups: each path once. Ports matter only if a rule matches them.
fn questions(asked: &Asked<'_>, by_port: bool) -> Vec<Asking> {
    let samples = asked.drops.iter().flat_map(|d| &d.samples);
    let dropped = samples.filter_map(|s| Some((s.tuple()?, s.came_in, s.mark)));
    let flows = asked.flows.iter().filter_map(|f| Some((f.tuple?, 0, 0)));
    let mut seen = BTreeSet::new();
    for (tuple, came_in, mark) in dropped.chain(flows) {
        if seen.len() == LOOKUPS {
            break;
        }
        if is_one_host(tuple.destination) {
            let ports = (tuple.protocol, tuple.source_port, tuple.destination_port);
            seen.insert((tuple.source, tuple.destination, came_in, mark, by_port.then_some(ports)));
        }
    }
    let asking = |(source, destination, came_in, mark, ports)| {
        let source = Some(source).filter(|s: &IpAddr| !s.is_unspecified());
        Asking { destination, source, came_in, mark, ports }
    };
    seen.into_iter().map(asking).collect()
}

fn is_one_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(a) if a.is_broadcast());
    !address.is_multicast() && !address.is_unspecified() && !broadcast
}

fn ask(net: &mut Rtnetlink, asking: &Asking) -> Lookup {
    let plainly = |net: &mut Rtnetlink, to: IpAddr| answer(net.resolve(&Asking::to(to)));
    let mut given = answer(net.resolve(asking));
    if given.0 == RouteOutcome::Blackhole && asking.came_in == 0 && asking.source.is_some() {
        // A source that is not this host's own is refused with the same error as a blackhole.
        given = match answer(net.resolve(&Asking { source: None, ..*asking })) {
            (RouteOutcome::Blackhole, route) => (RouteOutcome::Blackhole, route),
            (_, route) => (RouteOutcome::Refused, route),
        };
    }
    let (plain, _) = plainly(net, asking.destination);
    // So is one that may not come in through that interface (net/ipv4/route.c, ip_route_input_slow).
    if given.0 == RouteOutcome::Blackhole && plain != RouteOutcome::Blackhole && !is_policy(net, asking) {
        given.0 = RouteOutcome::Refused;
    }
    let back = asking.source.filter(|s| is_one_host(*s)).and_then(|s| plainly(net, s).1);
    let (outcome, route) = given;
    Lookup {
        source: asking.source.unwrap_or(match asking.destination {
            IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        }),
        destination: asking.destination,
        came_in: asking.came_in,
        mark: asking.mark,
        outcome,
        interface: route.map_or(0, |r| r.interface),
        next_hop: route.and_then(|r| r.next_hop),
        table: route.map_or(0, |r| r.table),
        plain: Some(plain),
        cached_mtu: route.filter(|r| r.expires_s > 0).and_then(|r| r.mtu),
        return_interface: back.map_or(0, |r| r.interface),
    }
}

/// True if a packet made here with the same mark finds the blackhole, too: then a rule that asks for the mark leads there.
fn is_policy(net: &mut Rtnetlink, asking: &Asking) -> bool {
    let marked = Asking { source: None, came_in: 0, ..*asking };
    asking.mark != 0 && answer(net.resolve(&marked)).0 == RouteOutcome::Blackhole
}

fn answer(result: Result<RouteEntry>) -> (RouteOutcome, Option<RouteEntry>) {
    match result {
        Ok(route) => match route.kind {
            RouteKind::Local => (RouteOutcome::Local, Some(route)),
            // A kernel that answers with the route instead of an error.
            RouteKind::Blackhole => (RouteOutcome::Blackhole, None),
            RouteKind::Unreachable => (RouteOutcome::Unreachable, None),
            RouteKind::Prohibit => (RouteOutcome::Prohibited, None),
            _ => (RouteOutcome::Forwarded, Some(route)),
        },
        Err(e) => {
            let outcome = match e.raw_os_error() {
                Some(libc::ENETUNREACH) => RouteOutcome::NoRoute,
                Some(libc::EHOSTUNREACH) => RouteOutcome::Unreachable,
                Some(libc::EACCES) => RouteOutcome::Prohibited,
                Some(libc::EINVAL) => RouteOutcome::Blackhole,
                _ => RouteOutcome::Refused,
            };
            (outcome, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;
    use weir_sys::process::run_with_input;

    use super::*;
    use crate::evidence::{DropGroup, Sample};

    fn shell(ns: &NetNs, script: &str) {
        let mut command = Command::new("sh");
        command.args(["-euc", script]);
        ns.enter_on_spawn(&mut command);
        let output = run_with_input(command, b"", Duration::from_secs(20)).unwrap();
        assert!(output.status.success(), "{script}: {}", output.message());
    }

    /// A UDP datagram (RFC 791, RFC 768) that came in through an interface.
    fn sample(source: [u8; 4], destination: [u8; 4], came_in: u32, mark: u32) -> Sample {
        let mut header = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
        header.extend(source);
        header.extend(destination);
        header.extend([0x90, 0, 0, 53, 0, 8, 0, 0]);
        Sample { came_in, mark, header, ..Sample::default() }
    }

    #[test]
    fn root_the_kernels_answers_tell_refusals_apart() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        shell(
            &ns,
            "ip link set lo up; ip link add in0 type veth peer name in1; ip link add out0 type veth peer name out1
             for i in in0 in1 out0 out1; do ip link set $i up; done
             ip addr add 198.18.0.1/24 dev in0; ip addr add 198.19.0.1/24 dev out0
             sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.in0.rp_filter=1
             ip route add blackhole 198.18.10.0/24; ip route add prohibit 198.18.12.0/24
             ip route add default via 198.19.0.9
             ip rule add priority 50 fwmark 7 lookup 100; ip route add unreachable default table 100",
        );
        let index = |name: &str| Rtnetlink::open_in(&ns).unwrap().interface(name).unwrap().index;
        let (inside, outside) = (index("in0"), index("out0"));
        let host = [198, 18, 0, 2];
        let group = DropGroup {
            samples: vec![
                sample(host, [198, 18, 10, 1], inside, 0),
                sample(host, [198, 18, 12, 1], inside, 0),
                sample(host, [203, 0, 113, 1], inside, 0),
                sample(host, [203, 0, 113, 1], inside, 7),
                // The way back to this source is another one than it came by.
                sample([203, 0, 113, 5], [198, 19, 0, 2], inside, 0),
                sample(host, [224, 0, 0, 1], inside, 0),
            ],
            ..DropGroup::default()
        };
        let asked = Asked { drops: vec![&group], ..Asked::default() };
        let routes = ns.run(|| read(&asked).unwrap()).unwrap();
        assert!(routes.default4 && !routes.default6);
        assert_eq!(routes.policies, ["ip rule 50: from all fwmark 0x7 lookup 100"]);
        let mut kinds: Vec<_> = routes.unusual.iter().map(|r| (r.kind.as_str(), r.table)).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, [("blackhole", 254), ("prohibit", 254), ("unreachable", 100)]);
        let find = |destination: [u8; 4], mark| {
            let to = IpAddr::from(destination);
            routes.lookups.iter().find(|l| l.destination == to && l.mark == mark).unwrap()
        };
        assert_eq!(find([198, 18, 10, 1], 0).outcome, RouteOutcome::Blackhole);
        assert_eq!(find([198, 18, 12, 1], 0).outcome, RouteOutcome::Prohibited);
        let on = find([203, 0, 113, 1], 0);
        assert_eq!(
            (on.outcome, on.interface, on.return_interface),
            (RouteOutcome::Forwarded, outside, inside)
        );
        assert_eq!(on.next_hop, Some([198, 19, 0, 9].into()));
        let marked = find([203, 0, 113, 1], 7);
        assert_eq!(
            (marked.outcome, marked.plain),
            (RouteOutcome::Unreachable, Some(RouteOutcome::Forwarded))
        );
        let filtered = find([198, 19, 0, 2], 0);
        assert_eq!((filtered.outcome, filtered.return_interface), (RouteOutcome::Refused, outside));
        assert_eq!(routes.lookups.len(), 5, "a group of hosts has no way that could be asked for");
    }

    #[test]
    fn the_smallest_path_mtus_are_kept_and_all_are_counted() {
        let mut routes = Routes::default();
        for number in 0..5000_u32 {
            let route = RouteEntry {
                destination: std::net::Ipv4Addr::from_bits(0xc612_0000 + number).into(),
                prefix: 32,
                kind: RouteKind::Unicast,
                table: 254,
                interface: 2,
                next_hop: None,
                mtu: Some(600 + (number * 7919) % 5000),
                remembered: true,
                expires_s: 500,
            };
            note(&mut routes, route);
        }
        order::by_key(&mut routes.remembered, |r| r.mtu);
        routes.remembered.truncate(REMEMBERED);
        // 7919 and 5000 have no common divisor, so each remainder comes once.
        assert_eq!(routes.remembered_total, 5000);
        assert!(routes.remembered.iter().map(|r| r.mtu).eq(600..700));
    }
}
