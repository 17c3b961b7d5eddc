//! XDP: what it carries, what it leaves to tc, and where it is refused.

mod world;

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::time::Duration;

use weir_bpf::{Attached, Direction, Loader, XdpMode, attach_tcx, attach_xdp};
use weir_fastpath::{Fastpath, Options, Reason, Xdp};
use weir_netlink::Rtnetlink;
use weir_netlink::ethtool::Ethtool;
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;
use weir_testkit::Files;
use world::{Carried, Inside, NatWorld, PATIENCE, passes, sh, until};

const EARLY: Options =
    Options { connections: 1024, connections6: 1024, packets: 2, xdp: Xdp::SingleFrames, ..Options::DEFAULT };

/// A flow of UDP of the inside host.
struct UdpFlow {
    client: UdpSocket,
    server: UdpSocket,
}

impl UdpFlow {
    fn new(world: &NatWorld) -> UdpFlow {
        let client = world.udp(&world.inside[0], world.inside_addresses[0], 4000);
        UdpFlow { client, server: world.server_udp(5000) }
    }

    /// Datagrams both ways; packets that the fast path carried, and those of them that XDP carried.
    fn exchange(&self, carried: &Carried, times: u8) -> (u64, u64) {
        let by_xdp = || carried.status().packets_by_xdp(Reason::Carried);
        let before = by_xdp();
        let (packets, ()) = carried.during(|| {
            for n in 0..times {
                let to = self.server.local_addr().unwrap();
                let from = passes(&self.client, to, &self.server, &vec![n; 1 + usize::from(n)]);
                passes(&self.server, from, &self.client, &vec![n; 2 + usize::from(n)]);
            }
        });
        (packets, by_xdp() - before)
    }

    /// Waits until so many of ten exchanges are carried, and so many of them by XDP.
    #[track_caller]
    fn until_carried(&self, carried: &Carried, what: &str, wanted: (u64, u64)) {
        until(what, || (self.exchange(carried, 10) == wanted).then_some(()));
    }
}

/// Numbers of the XDP programs at the gateway's interfaces.
fn programs(world: &NatWorld) -> usize {
    let links = world.gateway.run(|| Rtnetlink::open().unwrap().links().unwrap()).unwrap();
    links.iter().map(|link| link.xdp.len()).sum()
}

fn index(ns: &NetNs, name: &str) -> u32 {
    Rtnetlink::open_in(ns).unwrap().interface(name).unwrap().index
}

/// A program that lets every packet pass, attached.
fn foreign(
    world: &NatWorld,
    section: &str,
    at: impl FnOnce(&weir_bpf::ProgramFd) -> Attached + Send,
) -> Attached {
    // TCX_NEXT is -1, XDP_PASS 2.
    let verdict = if section == "xdp" { 2 } else { -1 };
    let source = format!(
        "__attribute__((section(\"{section}\"), used)) int foreign(void *packet) {{ return {verdict}; }}\n\
         __attribute__((section(\"license\"), used)) char _license[] = \"GPL\";\n"
    );
    let folder = Files::new(&[("foreign.c", &source)]);
    let (from, to) = (folder.path().join("foreign.c"), folder.path().join("foreign.o"));
    sh(&world.gateway, &format!("clang -O2 -target bpf -c {} -o {}", from.display(), to.display()));
    let loaded = Loader::open("foreign", &std::fs::read(to).unwrap()).unwrap().load().unwrap();
    let program = loaded.program("foreign").unwrap();
    world.gateway.run(|| at(&program)).unwrap()
}

fn both_ways(ipv6: bool) {
    let world = NatWorld::with(ipv6, Inside::SingleFrames);
    let mut carried = world.carried(EARLY);
    let flow = UdpFlow::new(&world);
    flow.exchange(&carried, 4);
    flow.until_carried(&carried, "all is carried by XDP", (20, 20));
    assert_eq!(programs(&world), 2);
    // Without the resident thread the lease ends.
    carried.keeper = None;
    flow.until_carried(&carried, "the lease ends", (0, 0));
    assert!(carried.status().packets_by_xdp(Reason::NoLease) > 0);
    drop(carried);
    until("no program is left", || (programs(&world) == 0).then_some(()));
    let to = flow.server.local_addr().unwrap();
    passes(&flow.client, to, &flow.server, b"by the kernel alone");
}

#[test]
fn root_udp_is_carried_both_ways_and_nothing_is_left() {
    if !test_needs_root() {
        both_ways(false);
    }
}

#[test]
fn root_udp_over_ipv6_is_carried_both_ways_and_nothing_is_left() {
    if !test_needs_root() {
        both_ways(true);
    }
}

#[test]
fn root_what_is_unusual_takes_the_kernels_way() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::with(false, Inside::SingleFrames);
    let carried = world.carried(EARLY);
    let flow = UdpFlow::new(&world);
    flow.until_carried(&carried, "all is carried by XDP", (20, 20));
    let by_xdp = |reason| carried.status().packets_by_xdp(reason);
    let to = flow.server.local_addr().unwrap();
    let before = by_xdp(Reason::Carried);
    passes(&flow.client, to, &flow.server, &[7; 4000]);
    assert_eq!((by_xdp(Reason::Fragment), by_xdp(Reason::Carried)), (3, before));
    flow.client.set_ttl(1).unwrap();
    flow.client.send_to(b"x", to).unwrap();
    flow.server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(flow.server.recv_from(&mut [0; 10]).is_err());
    assert_eq!((by_xdp(Reason::LastHop), by_xdp(Reason::Carried)), (1, before));
    flow.client.set_ttl(64).unwrap();
    flow.server.set_read_timeout(Some(PATIENCE)).unwrap();
    let tos = |value| rustix::net::sockopt::set_ip_tos(&flow.client, value).unwrap();
    // The dropped packet and its error change neighbours: an entry may be stale for a packet.
    until("a packet of another DSCP meets a fresh entry", || {
        tos(0);
        flow.until_carried(&carried, "all is carried by XDP again", (20, 20));
        let before = by_xdp(Reason::Carried);
        tos(0x48);
        passes(&flow.client, to, &flow.server, b"x");
        assert_eq!(by_xdp(Reason::Carried), before);
        (by_xdp(Reason::Otherwise) > 0).then_some(())
    });
}

#[test]
fn root_tcp_is_carried_and_its_end_takes_the_kernels_way() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::with(false, Inside::SingleFrames);
    let carried = world.carried(EARLY);
    let listener = world.listen(5001);
    let (mut near, mut far) = world.connect(0, &listener);
    let mut byte = [0];
    // Its window must be loosened first.
    until("TCP is carried by XDP", || {
        let before = carried.status().packets_by_xdp(Reason::Carried);
        for _ in 0..20 {
            near.write_all(b"x").unwrap();
            far.read_exact(&mut byte).unwrap();
            far.write_all(b"y").unwrap();
            near.read_exact(&mut byte).unwrap();
        }
        (carried.status().packets_by_xdp(Reason::Carried) - before >= 40).then_some(())
    });
    let sent: Vec<u8> = (0..4 << 20).map(|n: u32| (n % 251) as u8).collect();
    let mut got = vec![0; sent.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| far.read_exact(&mut got).unwrap());
        near.write_all(&sent).unwrap();
    });
    assert!(got == sent, "the bytes arrive as they were sent");
    drop(near);
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).unwrap();
    drop(far);
    assert!(rest.is_empty());
    let status = carried.status();
    assert!(status.packets_by_xdp(Reason::Control) >= 2, "{status:?}");
    until("conntrack has seen the end", || {
        let text = sh(&world.gateway, "conntrack -L -p tcp 2>/dev/null || true");
        (!text.contains("ESTABLISHED")).then_some(())
    });
}

#[test]
fn root_tc_carries_where_something_at_an_interface_must_see_the_packets() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::with(false, Inside::SingleFrames);
    let carried = world.carried(EARLY);
    let flow = UdpFlow::new(&world);
    flow.until_carried(&carried, "all is carried by XDP", (20, 20));
    let out0 = index(&world.gateway, "out0");
    // At the egress it must see what comes from the inside; answers do not pass there.
    let at = |direction| move |program: &weir_bpf::ProgramFd| attach_tcx(program, out0, direction).unwrap();
    let egress = foreign(&world, "tc", at(Direction::Egress));
    flow.until_carried(&carried, "tc carries to the outside", (20, 10));
    let states = carried.fastpath.xdp_interfaces();
    let outside = states.iter().find(|state| state.name == "out0").unwrap();
    assert!(outside.outgoing.as_ref().is_some_and(|why| why.contains("foreign")), "{outside:?}");
    assert_eq!(outside.incoming, None);
    drop(egress);
    flow.until_carried(&carried, "XDP carries again", (20, 20));
    // One that comes before the fast path at the ingress.
    let ingress = foreign(&world, "tc", at(Direction::Ingress));
    until("XDP leaves the answers to tc", || (flow.exchange(&carried, 10).1 == 10).then_some(()));
    assert!(carried.status().packets_by_xdp(Reason::NotByXdp) > 0);
    drop(ingress);
    flow.until_carried(&carried, "XDP carries the answers again", (20, 20));
    // A mark is left to tc, which can set it.
    sh(
        &world.gateway,
        "nft 'add chain ip nat m { type filter hook forward priority 0; }; add rule ip nat m meta mark set 7'",
    );
    flow.until_carried(&carried, "tc carries what gets a mark", (20, 0));
    sh(&world.gateway, "nft delete chain ip nat m");
    flow.until_carried(&carried, "XDP carries what gets none", (20, 20));
    // The driver sends nothing of XDP while the other end has no GRO. Until that is seen, such packets are lost.
    let off = [("gro".to_owned(), false)].into();
    world.server.run(|| Ethtool::open().unwrap().set("e0", &off).unwrap()).unwrap();
    until("it is seen", || {
        let states = carried.fastpath.xdp_interfaces();
        states.iter().any(|s| s.outgoing.as_ref().is_some_and(|why| why.contains("GRO"))).then_some(())
    });
    flow.until_carried(&carried, "tc carries to an end without GRO", (20, 10));
}

#[test]
fn root_it_is_refused_where_it_would_spoil_packets_or_there_is_no_room_for_it() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    let refused = |options: Options, name: &str| {
        let attach = || Fastpath::load(options).unwrap().attach_xdp(name).unwrap_err().to_string();
        world.gateway.run(attach).unwrap()
    };
    let cards = Options { xdp: Xdp::Cards, ..EARLY };
    let why = refused(cards, "out0");
    assert!(why.contains("out0: no XDP: it is a veth") && why.contains("GSO"), "{why}");
    let why = refused(EARLY, "br0");
    assert!(why.contains("driver bridge has no XDP"), "{why}");
    let why = refused(Options { xdp: Xdp::Off, ..EARLY }, "out0");
    assert!(why.contains("without XDP"), "{why}");
    let out0 = index(&world.gateway, "out0");
    let other = foreign(&world, "xdp", move |program| attach_xdp(program, out0, XdpMode::Native).unwrap());
    let why = refused(EARLY, "out0");
    assert!(why.contains("another XDP program"), "{why}");
    assert_eq!(programs(&world), 1);
    drop(other);
}
