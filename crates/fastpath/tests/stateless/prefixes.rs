//! Prefixes of several lengths, single packets by BPF_PROG_TEST_RUN.

use std::net::{IpAddr, Ipv6Addr};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_fastpath::{PrefixPair, Side, Stateless, Step};
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;
use weir_wire::checksum::{Sum, transport};

use crate::packet::{Header, ICMPV6, TCP, UDP, octets, seal};

/// TC_ACT_UNSPEC and TC_ACT_REDIRECT (linux/pkt_cls.h).
const LEFT: u32 = u32::MAX;
const REDIRECTED: u32 = 7;

/// A router between two dummy links: every inside prefix by one, all else by the other.
fn router(inside: &[&str]) -> NetNs {
    let ns = NetNs::create().unwrap();
    let mut script = String::from(
        "ip link add in0 type veth peer name in1; ip link add out0 type veth peer name out1
         for l in in0 in1 out0 out1; do ip link set $l up; done
         sysctl -q net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.forwarding=1
         ip route add default dev out0; ip -6 route add default dev out0\n",
    );
    for prefix in inside {
        script += &format!("ip route add {prefix} dev in0\n");
    }
    let mut command = std::process::Command::new("sh");
    command.args(["-ec", &script]);
    ns.enter_on_spawn(&mut command);
    assert!(command.status().unwrap().success());
    ns
}

fn load(ns: &NetNs, inside: &str, outside: &str, length: u8) -> Stateless {
    let pair = PrefixPair::new(inside.parse().unwrap(), outside.parse().unwrap(), length).unwrap();
    ns.run(|| Stateless::load(pair, "in0", "out0").unwrap()).unwrap()
}

/// The interface that the programs are run with has an address of zeros.
fn frame(packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 6];
    frame.extend([2; 6]);
    frame.extend(if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] });
    frame.extend(packet);
    frame
}

/// Runs a program on a packet; the verdict, and the packet that comes out.
fn run(ns: &NetNs, stateless: &Stateless, side: Side, packet: &[u8]) -> (u32, Vec<u8>) {
    let run = ns.run(|| stateless.run(side, &frame(packet), 1).unwrap()).unwrap();
    (run.verdict, run.packet[14..].to_vec())
}

fn datagram(source: IpAddr, destination: IpAddr, protocol: u8, ttl: u8) -> Vec<u8> {
    let mut header = Header::new(source, destination, protocol, 5);
    header.ttl = ttl;
    let (mut upper, at) = match protocol {
        TCP => (vec![0; 24], 16),
        UDP => (vec![7, 7, 8, 8, 0, 12, 0, 0, 1, 2, 3, 4], 6),
        _ => (vec![128, 0, 0, 0, 1, 2, 3, 4], 2),
    };
    if protocol == TCP {
        upper[12] = 0x50;
    }
    header.packet(&seal(&header, upper, at))
}

/// RFC 6296 appendix B: FD01:0203:0405:0001::1234 is 2001:0DB8:0001:D550::1234 outside.
#[test]
fn root_the_example_of_rfc_6296_both_ways() {
    if test_needs_root() {
        return;
    }
    let ns = router(&["fd01:203:405::/48"]);
    let stateless = load(&ns, "fd01:203:405::", "2001:db8:1::", 48);
    let inside: IpAddr = "fd01:203:405:1::1234".parse().unwrap();
    let outside: IpAddr = "2001:db8:1:d550::1234".parse().unwrap();
    let peer: IpAddr = "2001:2::9".parse().unwrap();
    for protocol in [TCP, UDP, ICMPV6] {
        let sent = datagram(inside, peer, protocol, 64);
        // The checksum that the sender computed holds for the new address too: the whole packet is as if it were sent with it.
        assert_eq!(
            run(&ns, &stateless, Side::Inside, &sent),
            (REDIRECTED, datagram(outside, peer, protocol, 63))
        );
        let sent = datagram(peer, outside, protocol, 64);
        assert_eq!(
            run(&ns, &stateless, Side::Outside, &sent),
            (REDIRECTED, datagram(peer, inside, protocol, 63))
        );
    }
    // Subnet 0xffff has no image (section 3.4).
    let sent = datagram("fd01:203:405:ffff::1".parse().unwrap(), peer, UDP, 64);
    assert_eq!(run(&ns, &stateless, Side::Inside, &sent), (LEFT, sent));
    assert_eq!(stateless.status().unwrap().packets(Side::Inside, Step::NoImage), 1);
}

#[test]
fn root_prefixes_of_any_length_lead_back_and_keep_checksums() {
    if test_needs_root() {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let peer: IpAddr = "2001:2::9".parse().unwrap();
    for length in [7_u8, 20, 47, 48, 49, 56, 63, 64, 65, 96, 127, 128] {
        let mask = u128::MAX << (128 - u32::from(length));
        let base = "fd01:203:405:700:8000:1:2:3".parse::<Ipv6Addr>().unwrap().to_bits() & mask;
        let image = "2a0b:db8:1:ff00:7000:4:5:7".parse::<Ipv6Addr>().unwrap().to_bits() & mask;
        let (base, image) = (Ipv6Addr::from_bits(base), Ipv6Addr::from_bits(image));
        if base == image {
            continue;
        }
        let ns = router(&[&format!("{base}/{length}")]);
        let stateless = load(&ns, &base.to_string(), &image.to_string(), length);
        for _ in 0..100 {
            // Words of all ones and of zeros are drawn often.
            let host = (0..8).fold(0_u128, |bits, _| {
                bits << 16
                    | u128::from(*[0, 0xffff, random.random::<u16>()].get(random.random_range(0..3)).unwrap())
            });
            let inside = IpAddr::from(Ipv6Addr::from_bits(base.to_bits() | (host & !mask)));
            let sent = datagram(inside, peer, UDP, 64);
            let (verdict, there) = run(&ns, &stateless, Side::Inside, &sent);
            if verdict == LEFT {
                assert_eq!(there, sent);
                continue;
            }
            let outside = IpAddr::from(<[u8; 16]>::try_from(&there[8..24]).unwrap());
            assert_eq!(
                octets(outside)[..usize::from(length / 8)],
                octets(image.into())[..usize::from(length / 8)]
            );
            assert_eq!(transport(outside, peer, UDP, &there[40..]), 0, "{inside} to {outside}");
            assert_eq!(there[40..] == sent[40..], length <= 64, "{length}: {inside} to {outside}");
            let answer = datagram(peer, outside, UDP, 64);
            let back = run(&ns, &stateless, Side::Outside, &answer);
            assert_eq!(back, (REDIRECTED, datagram(peer, inside, UDP, 63)), "{inside} to {outside}");
        }
        let status = stateless.status().unwrap();
        assert!(status.packets(Side::Outside, Step::Translated) > 60, "{length}: {status:?}");
    }
}

#[test]
fn root_ipv4_prefixes_keep_the_host_part() {
    if test_needs_root() {
        return;
    }
    let ns = router(&["10.16.0.0/12"]);
    let stateless = load(&ns, "10.16.0.0", "198.32.0.0", 12);
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let peer = address("198.18.0.9");
    let sent = datagram(address("10.31.2.3"), peer, TCP, 64);
    let expected = datagram(address("198.47.2.3"), peer, TCP, 63);
    assert_eq!(run(&ns, &stateless, Side::Inside, &sent), (REDIRECTED, expected));
    let sent = datagram(peer, address("198.47.2.3"), UDP, 64);
    let expected = datagram(peer, address("10.31.2.3"), UDP, 63);
    assert_eq!(run(&ns, &stateless, Side::Outside, &sent), (REDIRECTED, expected));
    for (side, source, destination, step) in [
        (Side::Inside, "10.32.0.1", "198.18.0.9", Step::NotMapped),
        (Side::Outside, "198.18.0.9", "198.48.0.1", Step::NotMapped),
        (Side::Outside, "10.16.0.7", "198.47.2.3", Step::FalseAddress),
        (Side::Outside, "127.0.0.1", "198.47.2.3", Step::FalseAddress),
        (Side::Inside, "10.31.2.3", "224.0.0.5", Step::FalseAddress),
        // The inside, which is not out of the other interface.
        (Side::Inside, "10.31.2.3", "10.31.2.4", Step::OtherWay),
    ] {
        let before = stateless.status().unwrap().packets(side, step);
        let sent = datagram(address(source), address(destination), UDP, 64);
        assert_eq!(run(&ns, &stateless, side, &sent), (LEFT, sent), "{source} to {destination}");
        assert_eq!(stateless.status().unwrap().packets(side, step), before + 1, "{source} to {destination}");
    }
}

/// The kernel cuts a packet to its length field, super-packets too, and drops one that says more. Only TCP of IPv4 may say 0.
#[test]
fn root_super_packets_are_translated_if_their_length_is_what_is_there() {
    if test_needs_root() {
        return;
    }
    for (prefix, image, length, inside, peer) in [
        ("10.16.0.0", "198.32.0.0", 12, "10.16.0.9", "198.18.0.9"),
        ("fd01:203:405::", "2001:db8:1::", 48, "fd01:203:405:1::9", "2001:2::9"),
    ] {
        let (inside, peer) = (inside.parse::<IpAddr>().unwrap(), peer.parse().unwrap());
        let is_ipv4 = inside.is_ipv4();
        let ns = router(&[&format!("{prefix}/{length}")]);
        let stateless = load(&ns, prefix, image, length);
        for protocol in [TCP, UDP] {
            let verdict = |packet: &[u8]| {
                let run = ns.run(|| stateless.run_super(Side::Inside, &frame(packet), 2).unwrap()).unwrap();
                assert!(run.verdict != LEFT || run.packet[14..] == *packet, "what is left stays as it is");
                run.verdict
            };
            let sent = datagram(inside, peer, protocol, 64);
            assert_eq!(verdict(&sent), REDIRECTED);
            // More is there than it says.
            assert_eq!(verdict(&[&sent[..], &[9; 6]].concat()), LEFT);
            assert_eq!(verdict(&sent[..sent.len() - 1]), LEFT);
            let empty = says_nothing(sent);
            assert_eq!(verdict(&empty), if is_ipv4 && protocol == TCP { REDIRECTED } else { LEFT });
        }
    }
}

/// The packet with 0 in its length field.
fn says_nothing(mut packet: Vec<u8>) -> Vec<u8> {
    if packet[0] >> 4 == 6 {
        packet[4..6].fill(0);
        return packet;
    }
    packet[2..4].fill(0);
    packet[10..12].fill(0);
    let sum = Sum::new().bytes(&packet[..20]).checksum();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn root_interfaces_that_cannot_be_used_are_named() {
    if test_needs_root() {
        return;
    }
    let ns = router(&[]);
    let pair = PrefixPair::new("10.0.0.0".parse().unwrap(), "198.18.0.0".parse().unwrap(), 24).unwrap();
    for (inside, outside, why) in
        [("none0", "out0", "no interface"), ("in0", "in0", "both the inside and the outside")]
    {
        let error = ns.run(|| Stateless::load(pair, inside, outside).unwrap_err()).unwrap();
        assert!(error.is_usage() && error.to_string().contains(why), "{error}");
    }
}

/// The verifier's work: far below its limit of a million instructions (BPF_COMPLEXITY_LIMIT_INSNS). It knows the prefixes as constants,
/// so that the other version costs nothing.
#[test]
fn root_programs_of_each_kind_stay_within_the_verifiers_budget() {
    if test_needs_root() {
        return;
    }
    const MOST: u32 = 10_000;
    let ns = router(&[]);
    for (inside, outside, length) in [
        ("10.0.0.0", "198.18.0.0", 24),
        ("10.0.0.1", "198.18.0.1", 32),
        ("fd01::", "2001:2::", 48),
        ("fd01::", "2001:2::", 64),
        ("fd01::1", "2001:2::1", 128),
    ] {
        let stateless = load(&ns, inside, outside, length);
        for side in [Side::Inside, Side::Outside] {
            let spent = stateless.verified_instructions(side).unwrap();
            println!("{inside}/{length} {side:?}: {spent} of {MOST}");
            assert!((100..=MOST).contains(&spent), "{inside}/{length} {side:?}: {spent} of {MOST}");
        }
    }
}
