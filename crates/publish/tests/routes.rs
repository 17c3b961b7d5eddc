//! The ways out that are remembered: when the kernel is asked, and when it is not. The clock goes on while a test runs, so a
//! test asks for a way again until it is known, each time by a packet that has not been there before.

mod packet;
mod world;

use std::net::IpAddr;

use packet::{Ends, LEFT, Packet, REDIRECTED, for_each_family, reason_of, run};
use weir_publish::{Direction, Publish, Reason};
use weir_wire::protocol;
use world::{INNER, PUBLISHED, PublishWorld, SAME};

/// How often the kernel was asked because of that packet, which must be translated.
fn asked(world: &PublishWorld, publish: &Publish, datagram: &[u8]) -> u64 {
    let before = publish.status().unwrap().asked.packets;
    assert_eq!(reason_of(world, publish, Direction::Out, datagram), (REDIRECTED, Reason::Translated));
    publish.status().unwrap().asked.packets - before
}

/// Until its way is known, and on the core on which the rest of the test runs.
fn learn(world: &PublishWorld, publish: &Publish, datagram: &[u8]) {
    world::until("the way is known", || (asked(world, publish, datagram) == 0).then_some(()));
}

/// Whether some packet goes the way that was learnt from another one, without a question.
fn goes_along(world: &PublishWorld, publish: &Publish, first: &[u8], other: impl Fn(u16) -> Packet) -> bool {
    (0..40).any(|attempt| {
        learn(world, publish, first);
        asked(world, publish, &other(attempt).datagram()) == 0
    })
}

fn answer(world: &PublishWorld, protocol: u8) -> (Packet, Packet) {
    Ends::of(world, PUBLISHED, INNER).packet(Direction::Out, protocol, b"an answer")
}

fn for_each_world(test: impl Fn(&PublishWorld, &Publish)) {
    for_each_family(|world, publish| {
        let core = weir_sys::sched::allowed_cpus().unwrap()[0];
        weir_sys::sched::pin_current_thread(&[core]).unwrap();
        test(world, publish);
    });
}

#[test]
fn root_the_kernel_is_asked_once_and_the_packet_is_the_same() {
    for_each_world(|world, publish| {
        for protocol in [protocol::TCP, protocol::UDP] {
            let (sent, expected) = answer(world, protocol);
            assert_eq!(asked(world, publish, &sent.datagram()), 1);
            learn(world, publish, &sent.datagram());
            let got = run(world, publish, Direction::Out, &sent.datagram());
            assert_eq!(got, (REDIRECTED, expected.datagram()));
        }
    });
}

#[test]
fn root_what_the_way_depends_on_is_asked_for_again() {
    for_each_world(|world, publish| {
        let (first, _) = answer(world, protocol::TCP);
        let (datagram, _) = answer(world, protocol::UDP);
        let mut elsewhere = first.clone();
        elsewhere.destination.set_ip(if world.published.is_ipv4() {
            IpAddr::from([198, 18, 9, 3])
        } else {
            "2001:2:0:9::3".parse().unwrap()
        });
        let (other_port, _) = Ends::of(world, SAME, SAME).packet(Direction::Out, protocol::TCP, b"");
        // The class stands in the second byte (IPv4), or begins in the first and ends in the second (IPv6).
        let mut other_class = first.datagram();
        other_class[1] ^= 0x40;
        for other in [datagram.datagram(), elsewhere.datagram(), other_port.datagram(), other_class] {
            learn(world, publish, &first.datagram());
            assert_eq!(asked(world, publish, &other), 1);
        }
    });
}

#[test]
fn root_other_connections_of_a_client_go_along() {
    for_each_world(|world, publish| {
        let (first, _) = answer(world, protocol::TCP);
        let from = |attempt: u16| {
            let mut packet = first.clone();
            packet.destination.set_port(50_000 + attempt);
            packet
        };
        assert!(goes_along(world, publish, &first.datagram(), from));
        if world.published.is_ipv6() {
            // Another connection has another flow label, whose lowest bits are in the fourth byte.
            let mut attempt = 0;
            world::until("a packet with another flow label goes along", || {
                learn(world, publish, &first.datagram());
                attempt += 1;
                let mut other = first.datagram();
                other[3] ^= attempt;
                (asked(world, publish, &other) == 0).then_some(())
            });
        }
    });
}

#[test]
fn root_what_is_known_is_forgotten() {
    for_each_world(|world, publish| {
        let (packet, _) = answer(world, protocol::TCP);
        learn(world, publish, &packet.datagram());
        world::until("the kernel is asked again", || {
            (asked(world, publish, &packet.datagram()) == 1).then_some(())
        });
    });
}

#[test]
fn root_what_is_longer_than_the_way_takes_is_the_kernels() {
    for_each_world(|world, publish| {
        let client = world.client_address;
        let via = if world.published.is_ipv4() { "198.18.0.2" } else { "2001:2::2" };
        world::sh(&world.host, &format!("ip route add {client} via {via} mtu lock 1300"));
        let (short, _) = answer(world, protocol::TCP);
        let headers = short.datagram().len() - short.payload.len();
        let of_length = |length: usize| Packet { payload: vec![7; length - headers], ..short.clone() };
        learn(world, publish, &short.datagram());
        let got = reason_of(world, publish, Direction::Out, &of_length(1301).datagram());
        assert_eq!(got, (LEFT, Reason::TooBig));
        // How much the way takes came with the short one. A later attempt is longer than the earlier ones, so that it does not go
        // along with them.
        assert!(goes_along(world, publish, &short.datagram(), |attempt| of_length(
            1261 + usize::from(attempt)
        )));
        learn(world, publish, &of_length(1300).datagram());
        let got = reason_of(world, publish, Direction::Out, &of_length(1301).datagram());
        assert_eq!(got, (LEFT, Reason::TooBig));
    });
}

#[test]
fn root_a_route_that_changes_is_heeded() {
    for_each_world(|world, publish| {
        let (packet, _) = answer(world, protocol::TCP);
        learn(world, publish, &packet.datagram());
        world::sh(&world.host, &format!("ip route add blackhole {}", world.client_address));
        world::until("the host sends nothing there", || {
            let got = reason_of(world, publish, Direction::Out, &packet.datagram());
            (got == (LEFT, Reason::OtherWay)).then_some(())
        });
        // A refusal is not remembered: each packet asks, and the first that may goes.
        let before = publish.status().unwrap().asked.packets;
        for _ in 0..3 {
            let got = reason_of(world, publish, Direction::Out, &packet.datagram());
            assert_eq!(got, (LEFT, Reason::OtherWay));
        }
        assert_eq!(publish.status().unwrap().asked.packets, before + 3);
        world::sh(&world.host, &format!("ip route del blackhole {}", world.client_address));
        assert_eq!(asked(world, publish, &packet.datagram()), 1);
    });
}

#[test]
fn root_a_host_that_stops_forwarding_is_heeded() {
    for_each_world(|world, publish| {
        let (packet, _) = answer(world, protocol::UDP);
        learn(world, publish, &packet.datagram());
        let version = if world.published.is_ipv4() { 4 } else { 6 };
        world::sh(&world.host, &format!("sysctl -q net.ipv{version}.conf.br0.forwarding=0"));
        world::until("the host forwards nothing", || {
            let got = reason_of(world, publish, Direction::Out, &packet.datagram());
            (got == (LEFT, Reason::NoForwarding)).then_some(())
        });
    });
}

#[test]
fn root_more_clients_than_are_remembered_each_get_their_own_answer() {
    for_each_world(|world, publish| {
        // Twice through a thousand clients of two networks, most of which have another one's place.
        for _ in 0..2 {
            for at in 0..1000_u16 {
                let (mut sent, mut expected) = answer(world, protocol::UDP);
                let client: IpAddr = match world.client_address {
                    IpAddr::V4(_) => [198, 18, 9 + (at >> 8) as u8, at as u8].into(),
                    IpAddr::V6(a) => {
                        let mut words = a.segments();
                        words[usize::from(4 + at % 4)] ^= at + 1;
                        words.into()
                    }
                };
                sent.destination.set_ip(client);
                expected.destination.set_ip(client);
                let got = run(world, publish, Direction::Out, &sent.datagram());
                assert_eq!(got, (REDIRECTED, expected.datagram()), "{client}");
            }
        }
    });
}
