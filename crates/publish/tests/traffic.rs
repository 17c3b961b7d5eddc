//! Real traffic between namespaces through the programs.

mod world;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use weir_publish::{Direction, Links, Reason};
use weir_sys::privilege::test_needs_root;
use world::{INNER, PATIENCE, PUBLISHED, PublishWorld, SAME, packets, sh};

const FAMILIES: [bool; 2] = [false, true];

fn for_each_family(test: impl Fn(&PublishWorld)) {
    if test_needs_root() {
        return;
    }
    for ipv6 in FAMILIES {
        test(&PublishWorld::new(ipv6));
    }
}

/// Entries of connections to or from the container's ports.
fn tracked(world: &PublishWorld) -> Vec<String> {
    let ports = [SAME, PUBLISHED, INNER].map(|p| format!("port={p} "));
    let family = if world.published.is_ipv6() { "ipv6" } else { "ipv4" };
    let list = sh(&world.host, &format!("conntrack -L -f {family} 2>/dev/null"));
    list.lines().filter(|l| ports.iter().any(|p| l.contains(p))).map(str::to_owned).collect()
}

#[test]
fn root_both_protocols_both_ports_and_nothing_is_tracked() {
    for_each_family(|world| {
        let publish = world.publish();
        for (published, inner) in [(SAME, SAME), (PUBLISHED, INNER)] {
            let target = SocketAddr::new(world.published, published);
            let peer = world.tcp_echo(&world.client, target, inner, 100);
            assert_eq!(peer.ip(), world.client_address);
            let server = world.udp_socket(&world.container, world.inner, inner);
            let client = world.udp_socket(&world.client, world.client_address, 0);
            client.connect(target).unwrap();
            for length in [0, 1, 17, 1400] {
                assert_eq!(world.udp_exchange(&client, &server, length), client.local_addr().unwrap());
            }
        }
        assert_eq!(tracked(world), Vec::<String>::new());
        let status = publish.status().unwrap();
        for direction in [Direction::In, Direction::Out] {
            // Four datagrams and at least SYN, data and FIN of TCP, for two ports.
            assert!(status.packets(direction, Reason::Translated) >= 2 * (4 + 3), "{status:?}");
            assert_eq!(status.packets(direction, Reason::Failed), 0, "{status:?}");
        }
        assert_eq!(status.packets(Direction::Out, Reason::OtherWay), 0, "{status:?}");
    });
}

#[test]
fn root_segments_that_travel_as_one_arrive_whole() {
    for_each_family(|world| {
        let publish = world.publish();
        let target = SocketAddr::new(world.published, PUBLISHED);
        world.tcp_echo(&world.client, target, INNER, 8 << 20);
        let status = publish.status().unwrap();
        for direction in [Direction::In, Direction::Out] {
            let all =
                status.reasons.iter().find(|r| (r.0, r.1) == (direction, Reason::Translated)).unwrap().2;
            assert!(all.bytes > 8 << 20, "{status:?}");
            // Acknowledgements among them: more than a link's frame each means that there were longer ones.
            assert!(all.bytes / all.packets > 1514, "{status:?}");
        }
        // Most ways were known.
        assert!(status.asked.packets > 0, "{status:?}");
        assert!(
            status.asked.packets < packets(&publish, Direction::Out, Reason::Translated) / 2,
            "{status:?}"
        );
        assert_eq!(tracked(world), Vec::<String>::new());

        // Without offloads, where each packet's checksum is computed by the sender.
        for (ns, link) in [(&world.client, "c0"), (&world.container, "k0")] {
            sh(ns, &format!("ethtool -K {link} tx off tso off gso off"));
        }
        world.tcp_echo(&world.client, target, INNER, 1 << 20);
    });
}

#[test]
fn root_a_router_behind_tells_the_container_how_much_its_link_takes() {
    for_each_family(|world| {
        let publish = world.publish();
        let client = world.client_address;
        sh(&world.router, &format!("ip route add {client} dev r0 mtu lock 1300"));
        let target = SocketAddr::new(world.published, PUBLISHED);
        world.tcp_echo(&world.client, target, INNER, 1 << 20);
        assert!(packets(&publish, Direction::In, Reason::TranslatedError) > 0, "{:?}", publish.status());
        let route = sh(&world.container, &format!("ip route get {client}"));
        assert!(route.contains("mtu 1300"), "{route}");
    });
}

#[test]
fn root_the_hosts_own_link_is_told_about_by_the_kernel() {
    for_each_family(|world| {
        let publish = world.publish();
        // The client's packets come whole; the way back takes less.
        let (client, next) =
            (world.client_address, if world.published.is_ipv6() { "2001:2::2" } else { "198.18.0.2" });
        sh(&world.host, &format!("ip route add {client} via {next} mtu lock 1300"));
        let target = SocketAddr::new(world.published, SAME);
        world.tcp_echo(&world.client, target, SAME, 1 << 20);
        assert!(packets(&publish, Direction::Out, Reason::TooBig) > 0, "{:?}", publish.status());
        let route = sh(&world.container, &format!("ip route get {client}"));
        assert!(route.contains("mtu 1300"), "{route}");
    });
}

#[test]
fn root_a_smaller_link_of_the_container_is_told_to_the_client() {
    for_each_family(|world| {
        // Both ends, so that the container announces it in nothing: a datagram does not ask.
        sh(&world.host, "ip link set br0 mtu 1300; ip link set v0 mtu 1300");
        let publish = world.publish();
        let server = world.udp_socket(&world.container, world.inner, INNER);
        let client = world.udp_socket(&world.client, world.client_address, 0);
        client.connect((world.published, PUBLISHED)).unwrap();
        client.send(&[1; 1400]).unwrap();
        let route = world::until("the client is told", || {
            let route = sh(&world.client, &format!("ip route get {}", world.published));
            route.contains("mtu 1300").then_some(route)
        });
        assert!(packets(&publish, Direction::In, Reason::TooBig) > 0, "{route}");
        // Its fragments then go the kernel's way.
        world::until("the socket has handed out what it was told", || client.send(&[2; 1400]).ok());
        let mut bytes = [0; 2000];
        let (n, from) = server.recv_from(&mut bytes).unwrap();
        assert_eq!((n, bytes[0], from), (1400, 2, client.local_addr().unwrap()));
        assert!(packets(&publish, Direction::In, Reason::Fragment) > 0);
    });
}

#[test]
fn root_a_closed_port_is_told_in_both_directions() {
    for_each_family(|world| {
        let publish = world.publish();
        let client = world.udp_socket(&world.client, world.client_address, 0);
        client.connect((world.published, PUBLISHED)).unwrap();
        // The client's socket takes the message only if it quotes what the client sent.
        refused(&client);
        assert!(packets(&publish, Direction::Out, Reason::TranslatedError) > 0);

        let server = world.udp_socket(&world.container, world.inner, INNER);
        world.udp_exchange(&client, &server, 10);
        let gone = client.local_addr().unwrap();
        drop(client);
        server.connect(gone).unwrap();
        refused(&server);
        assert!(packets(&publish, Direction::In, Reason::TranslatedError) > 0);
    });
}

/// Sends to a closed port until that is reported: a busy kernel omits ICMP messages (`icmp_xmit_lock` of net/ipv4/icmp.c).
fn refused(socket: &UdpSocket) {
    let mut bytes = [0; 16];
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    world::until("the closed port is reported", || {
        // The report of the one before may come with the next call.
        let told = socket.send(b"anybody?").and_then(|_| socket.recv(&mut bytes));
        (told.unwrap_err().kind() == ErrorKind::ConnectionRefused).then_some(())
    });
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
}

#[test]
fn root_fragments_go_the_kernels_way_and_arrive_all_the_same() {
    for_each_family(|world| {
        let publish = world.publish();
        for (published, inner) in [(SAME, SAME), (PUBLISHED, INNER)] {
            let server = world.udp_socket(&world.container, world.inner, inner);
            let client = world.udp_socket(&world.client, world.client_address, 0);
            client.connect((world.published, published)).unwrap();
            world.udp_exchange(&client, &server, 4000);
            // The rules and the programs say the same, so both kinds can be mixed on one connection.
            world.udp_exchange(&client, &server, 40);
            world.udp_exchange(&client, &server, 5000);
        }
        for direction in [Direction::In, Direction::Out] {
            assert!(packets(&publish, direction, Reason::Fragment) >= 6);
            assert_eq!(packets(&publish, direction, Reason::Translated), 2);
        }
    });
}

#[test]
fn root_the_last_hop_is_the_kernels_answer() {
    for_each_family(|world| {
        let publish = world.publish();
        let server = world.udp_socket(&world.container, world.inner, SAME);
        let client = world.udp_socket(&world.client, world.client_address, 0);
        client.connect((world.published, SAME)).unwrap();
        weir_sys::icmp_errors::keep(&client, world.published.is_ipv6()).unwrap();
        let hops = |hops: u32| {
            let option = if world.published.is_ipv6() { "-6" } else { "-4" };
            let (name, net) = (if world.published.is_ipv6() { "hop_limit" } else { "default_ttl" }, option);
            match net {
                "-6" => sh(&world.client, &format!("sysctl -q net.ipv6.conf.c0.{name}={hops}")),
                _ => sh(&world.client, &format!("sysctl -q net.ipv4.ip_{name}={hops}")),
            }
        };
        // One for the router, and the last one for the host.
        hops(2);
        let late = world.udp_socket(&world.client, world.client_address, 0);
        weir_sys::icmp_errors::keep(&late, world.published.is_ipv6()).unwrap();
        late.connect((world.published, SAME)).unwrap();
        late.send(b"far").unwrap();
        let notice = world::until("the host says that the hops are used up", || {
            weir_sys::icmp_errors::read(&late, &mut [0; 64]).unwrap()
        });
        assert_eq!(notice.reason, weir_sys::icmp_errors::Reason::HopsUsedUp);
        assert_eq!(packets(&publish, Direction::In, Reason::LastHop), 1);
        assert_eq!(packets(&publish, Direction::In, Reason::Translated), 0);
        hops(3);
        let enough = world.udp_socket(&world.client, world.client_address, 0);
        enough.connect((world.published, SAME)).unwrap();
        world.udp_exchange(&enough, &server, 3);
    });
}

#[test]
fn root_the_host_and_the_container_itself_reach_the_port_by_the_rules() {
    for_each_family(|world| {
        let publish = world.publish();
        let target = SocketAddr::new(world.published, PUBLISHED);
        world.tcp_echo(&world.host, target, INNER, 1000);
        world.tcp_echo(&world.container, target, INNER, 1000);
        let status = publish.status().unwrap();
        assert_eq!(status.translated(), 0, "{status:?}");
        assert!(status.packets(Direction::Out, Reason::OtherWay) > 0, "{status:?}");
        assert!(!tracked(world).is_empty());
    });
}

#[test]
fn root_the_containers_own_address_is_closed_from_outside() {
    for_each_family(|world| {
        let publish = world.publish();
        let server = world.udp_socket(&world.container, world.inner, INNER);
        let client = world.udp_socket(&world.client, world.client_address, 0);
        client.connect((world.inner, INNER)).unwrap();
        client.send(b"direct").unwrap();
        client.connect((world.published, PUBLISHED)).unwrap();
        client.send(b"by the published port").unwrap();
        let mut bytes = [0; 64];
        // Both take the same way, so the first would have come first.
        let n = server.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..n], b"by the published port");
        let direct = SocketAddr::new(world.inner, INNER);
        let refused =
            world.client.run(|| TcpStream::connect_timeout(&direct, Duration::from_millis(300))).unwrap();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(packets(&publish, Direction::In, Reason::Direct) >= 2);
        // Other ports of it are not ours to close.
        let other = world.udp_socket(&world.container, world.inner, 9);
        client.connect((world.inner, 9)).unwrap();
        client.send(b"other").unwrap();
        assert_eq!(other.recv(&mut bytes).unwrap(), 5);
    });
}

#[test]
fn root_what_the_container_opens_itself_is_left_alone() {
    for_each_family(|world| {
        let publish = world.publish();
        let server = world.udp_socket(&world.client, world.client_address, 7000);
        let client = world.udp_socket(&world.container, world.inner, 0);
        client.connect((world.client_address, 7000)).unwrap();
        let peer = world.udp_exchange(&client, &server, 100);
        assert_eq!(peer.ip(), world.published, "masqueraded by the rules");
        let status = publish.status().unwrap();
        assert_eq!(status.translated(), 0, "{status:?}");
        assert_eq!(status.packets(Direction::Out, Reason::NotMapped), 1, "{status:?}");
    });
}

#[test]
fn root_rules_about_what_the_container_may_open_hold_for_its_published_ports_too() {
    for_each_family(|world| {
        let family = if world.published.is_ipv6() { "ip6" } else { "ip" };
        sh(
            &world.host,
            &format!(
                "nft 'table {family} own {{ chain c {{ type filter hook forward priority 0;
                    iifname br0 ct state new counter reject with tcp reset; }}; }}'"
            ),
        );
        let publish = world.publish();
        // Answers go on.
        world.tcp_echo(&world.client, SocketAddr::new(world.published, SAME), SAME, 1000);
        let server = world.client.run(|| TcpListener::bind((world.client_address, 7000))).unwrap().unwrap();
        let target = server.local_addr().unwrap();
        let open = format!(
            "import socket; s = socket.socket(socket.{}); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); \
             s.bind(('{}', {SAME})); s.settimeout(5); print(s.connect_ex(('{}', 7000)))",
            if family == "ip6" { "AF_INET6" } else { "AF_INET" },
            world.inner,
            target.ip()
        );
        let code = sh(&world.container, &format!("python3 -c \"{open}\""));
        // ECONNREFUSED of Linux.
        assert_eq!(code.trim(), "111");
        assert_eq!(packets(&publish, Direction::Out, Reason::Opens), 1);
    });
}

#[test]
fn root_when_it_ends_nothing_is_left_and_the_rules_go_on() {
    for_each_family(|world| {
        let programs = || {
            world
                .host
                .run(|| {
                    ["in0", "v0"].map(|name| {
                        let index = weir_netlink::Rtnetlink::open().unwrap().interface(name).unwrap().index;
                        weir_bpf::tcx_programs(index, weir_bpf::Direction::Ingress).unwrap().len()
                    })
                })
                .unwrap()
        };
        let target = SocketAddr::new(world.published, PUBLISHED);
        let publish = world.publish();
        assert_eq!(programs(), [1, 1]);
        world.tcp_echo(&world.client, target, INNER, 1000);
        assert_eq!(tracked(world).len(), 0);
        drop(publish);
        assert_eq!(programs(), [0, 0]);
        world.tcp_echo(&world.client, target, INNER, 1000);
        assert_eq!(tracked(world).len(), 1);
    });
}

#[test]
fn root_interfaces_that_cannot_be_used_are_told_with_the_reason() {
    if test_needs_root() {
        return;
    }
    let world = PublishWorld::new(false);
    sh(&world.host, "ip link add x0 type veth peer name x1");
    // A link without Ethernet headers, where the kernel can have one.
    let tunnel = std::path::Path::new("/dev/net/tun").exists();
    if tunnel {
        sh(&world.host, "ip tuntap add t0 mode tun");
    }
    let find = |outer: &str, container: &str| {
        world.host.run(|| Links::find(outer, container).unwrap_err().to_string()).unwrap()
    };
    assert!(find("none0", "v0").contains("no interface `none0`"));
    assert!(find("in0", "none\u{1b}0").contains("none\\u{1b}0"));
    assert!(find("in0", "br0").contains("no veth pair"));
    assert!(find("in0", "x0").contains("other end in this network namespace"));
    assert!(find("v0", "v0").contains("must be two"));
    assert!(find("br0", "v0").contains("must be two"));
    if tunnel {
        assert!(find("t0", "v0").contains("none with an Ethernet header"));
    }
}

#[test]
fn root_a_link_that_is_gone_is_noticed() {
    for_each_family(|world| {
        let publish = world.publish();
        sh(&world.host, "ip link del v0");
        assert!(!publish.is_attached().unwrap());
        let client = world.udp_socket(&world.client, world.client_address, 0);
        client.connect((world.published, SAME)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        for length in [0, 1000] {
            client.send(&vec![0; length]).unwrap();
        }
        world::until("both are left to the kernel, however long they are", || {
            (packets(&publish, Direction::In, Reason::OtherWay) == 2).then_some(())
        });
    });
}

#[test]
fn root_more_containers_than_an_interface_takes_are_told_and_those_before_stay() {
    if test_needs_root() {
        return;
    }
    let world = PublishWorld::new(false);
    let mut publish: Vec<_> = (0..63).map(|_| world.publish()).collect();
    let mut one_more = world.load();
    let refused = world.host.run(|| one_more.attach().unwrap_err().to_string()).unwrap();
    assert!(refused.contains("has 63 programs, and the kernel takes no more"), "{refused}");
    assert!(!one_more.is_attached().unwrap());
    publish.truncate(1);
    world.tcp_echo(&world.client, SocketAddr::new(world.published, PUBLISHED), INNER, 1000);
    assert!(packets(&publish[0], Direction::In, Reason::Translated) > 0);
}
