//! The tables and the programs against a plain search of the lists.

use std::net::{IpAddr, Ipv6Addr};

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_bpf::test_run;
use weir_prefix::{Prefix, Ranges};
use weir_sys::privilege::test_needs_root;

use crate::probe::{SHOT, frame};
use crate::test_packets::{ACK, ICMPV6, TCP, UDP, is_shot, packet, packet_with, socket};
use crate::{Action, Class, Compiled, Count, Direction, Filter, Reason, Width};

/// TC_ACT_UNSPEC (linux/pkt_cls.h), XDP_DROP and XDP_PASS (linux/bpf.h).
const NEXT: u32 = u32::MAX;
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

fn v4(address: u32) -> IpAddr {
    std::net::Ipv4Addr::from(address).into()
}

fn v6(address: u128) -> IpAddr {
    Ipv6Addr::from(address).into()
}

/// The class by looking through the lists.
fn plain(lists: &[Class], address: IpAddr) -> u32 {
    let is_in = |list: &Class| match address {
        IpAddr::V4(a) => list.v4.contains(a.into()),
        IpAddr::V6(a) => list.v6.contains(a.into()),
    };
    lists.iter().position(is_in).map_or(0, |at| at as u32 + 1)
}

fn prefixes4(prefixes: &[(u32, u8)]) -> Ranges<u32> {
    Ranges::new(prefixes.iter().map(|&(address, length)| {
        let first = if length == 0 { 0 } else { address & (u32::MAX << (32 - length)) };
        (first, Prefix::new(first, length).unwrap().last())
    }))
}

fn prefixes6(prefixes: &[(u128, u8)]) -> Ranges<u128> {
    Ranges::new(prefixes.iter().map(|&(address, length)| {
        let first = if length == 0 { 0 } else { address & (u128::MAX << (128 - length)) };
        (first, Prefix::new(first, length).unwrap().last())
    }))
}

/// First and last address of each range, and their neighbours.
fn edges<A: weir_prefix::Address>(ranges: &Ranges<A>) -> Vec<A> {
    let around = |a: A| [a.previous(), Some(a), a.next()];
    ranges.as_slice().iter().flat_map(|(f, l)| [around(*f), around(*l)]).flatten().flatten().collect()
}

/// Prefixes of all lengths, drawn near to each other so that they touch and overlap.
fn draw(random: &mut ChaCha8Rng, count: usize) -> Class {
    let v4: Vec<(u32, u8)> = (0..count)
        .map(|_| {
            (
                random.random::<u32>() & 0xe0ff_ffff,
                [4, 8, 15, 20, 24, 25, 29, 31, 32][random.random_range(0..9)],
            )
        })
        .collect();
    let v6: Vec<(u128, u8)> = (0..count)
        .map(|_| {
            let global = random.random::<u128>() >> 3 | 1 << 125;
            let address = if random.random_range(0..8) == 0 { random.random() } else { global };
            (address, [5, 16, 23, 24, 29, 32, 48, 64, 127, 128][random.random_range(0..10)])
        })
        .collect();
    Class { v4: prefixes4(&v4), v6: prefixes6(&v6) }
}

/// Addresses to ask about: every edge, and as many drawn ones.
fn questions(lists: &[Class], random: &mut ChaCha8Rng, drawn: usize) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> =
        vec![v4(1), v4(u32::MAX), v6(1), v6(u128::MAX), v6(1 << 125), v6((1 << 125) - 1)];
    for list in lists {
        all.extend(edges(&list.v4).into_iter().map(v4));
        all.extend(edges(&list.v6).into_iter().map(v6));
    }
    all.extend((0..drawn).map(|_| v4(random.random())));
    all.extend((0..drawn).map(|_| v6(random.random::<u128>() >> 3 | 1 << 125)));
    // The link's own are not looked up.
    let own = |a: &IpAddr| match a {
        IpAddr::V4(a) => a.is_unspecified(),
        IpAddr::V6(a) => a.is_unspecified() || a.is_unicast_link_local(),
    };
    all.retain(|a| !own(a));
    all
}

#[test]
fn two_lists_fit_into_two_bits_and_254_into_eight() {
    assert_eq!(Width::for_lists(2), Some(Width::Few));
    assert_eq!(Width::for_lists(3), Some(Width::Many));
    assert_eq!(Width::for_lists(255), None);
    assert!(Compiled::of(&vec![Class::default(); 255]).is_err());
}

#[test]
fn prefixes_from_0_to_32_are_where_they_belong() {
    for length in 0..=32 {
        let list = Class { v4: prefixes4(&[(0xc612_00ff, length)]), ..Class::default() };
        let compiled = Compiled::of(std::slice::from_ref(&list)).unwrap();
        for address in edges(&list.v4).into_iter().chain([0, u32::MAX, 0xc612_00ff]) {
            let expected = plain(std::slice::from_ref(&list), v4(address));
            assert_eq!(compiled.class4(address), expected, "/{length}, {}", v4(address));
        }
    }
}

/// Lists in which one /24 behind the other is not all of one class, but for some: each has one address that its number chooses.
fn side_by_side(lists: u32) -> Vec<Class> {
    let one = |list: u32, net: u32| {
        let first = 0x0a00_0000 | net << 8;
        match net % 13 {
            // Members of one class, whichever it is, or of none.
            0 => Some((first, first | 0xff)),
            1 => None,
            _ => Some(first | (net * 37 + list * 11) & 0xff).map(|a| (a, a)),
        }
    };
    let list =
        |list| Class { v4: Ranges::new((0..1024).filter_map(|net| one(list, net))), ..Class::default() };
    (0..lists).map(list).collect()
}

#[test]
fn blocks_are_found_where_one_lies_beside_the_other() {
    for lists in [1, 2, 3] {
        let lists = side_by_side(lists);
        let compiled = Compiled::of(&lists).unwrap();
        // Every entry is nearly full of them, so that no row has room in the gaps of another, and each keeps its own.
        let blocks = (0..1024).filter(|net| !matches!(net % 13, 0 | 1)).count();
        let laid = compiled.blocks.len() / compiled.width.block_words();
        assert!((blocks..=1024).contains(&laid), "{laid} for {blocks}");
        for list in &lists {
            for address in edges(&list.v4) {
                assert_eq!(compiled.class4(address), plain(&lists, v4(address)), "{}", v4(address));
            }
        }
    }
}

#[test]
fn rows_with_few_blocks_lie_in_each_others_gaps() {
    // One address in every fifth /24: three or four rows of sixteen places fit into one.
    let few =
        Class { v4: Ranges::new((0..1 << 16).map(|n| (n * 5) << 8 | 7).map(|a| (a, a))), ..Class::default() };
    for lists in [1, 3] {
        let lists = vec![few.clone(); lists];
        let compiled = Compiled::of(&lists).unwrap();
        let laid = compiled.blocks.len() / compiled.width.block_words();
        assert!((1 << 16..(1 << 16) * 5 / 4).contains(&laid), "{laid}");
        for address in edges(&few.v4) {
            assert_eq!(compiled.class4(address), plain(&lists, v4(address)), "{}", v4(address));
        }
    }
}

#[test]
fn root_the_kernel_finds_blocks_where_one_lies_beside_the_other_and_after_a_swap() {
    if test_needs_root() {
        return;
    }
    for (lists, other) in [(1, 2), (3, 5)] {
        let (lists, other) = (side_by_side(lists), side_by_side(other));
        let mut actions = [Action::Allow; 6];
        actions[1] = Action::Drop;
        // From a list with one block to many, and to other ones.
        let single = Class { v4: prefixes4(&[(0x0a00_0107, 32)]), ..Class::default() };
        let first = Compiled::of(&vec![single.clone(); lists.len()]).unwrap();
        let mut filter = Filter::load(&first, &actions, 0).unwrap();
        assert!(is_dropped(&filter, "allow_ingress", v4(0x0a00_0107)));
        for lists in [lists, other] {
            filter.swap(&Compiled::of(&lists).unwrap(), &actions).unwrap();
            for address in lists.iter().flat_map(|list| edges(&list.v4)) {
                let expected = plain(&lists, v4(address)) == 1;
                assert_eq!(is_dropped(&filter, "allow_ingress", v4(address)), expected, "{}", v4(address));
            }
        }
    }
}

proptest! {
    // Each case fills tables of megabytes.
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn the_first_list_that_has_an_address_wins(seed in any::<u64>(), lists in 1_usize..5) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let lists: Vec<Class> = (0..lists).map(|_| draw(&mut random, 40)).collect();
        let compiled = Compiled::of(&lists).unwrap();
        for address in questions(&lists, &mut random, 100) {
            if let IpAddr::V4(a) = address {
                prop_assert_eq!(compiled.class4(a.into()), plain(&lists, address), "{}", address);
            }
        }
    }
}

/// Asks a program about an address, by its verdict: class 1 is dropped, the others pass.
fn is_dropped(filter: &Filter, program: &str, address: IpAddr) -> bool {
    let other = if address.is_ipv4() { v4(0xc612_0001) } else { v6(0x2001_0002 << 96) };
    let packet = if program == "allow_egress" { frame(other, address) } else { frame(address, other) };
    let verdict = test_run(filter.program(program), &packet, 0, 1).unwrap().verdict;
    match program {
        "allow_xdp" => {
            assert!(matches!(verdict, XDP_DROP | XDP_PASS), "{verdict}");
            verdict == XDP_DROP
        }
        _ => {
            assert!(matches!(verdict, NEXT | SHOT), "{verdict}");
            verdict == SHOT
        }
    }
}

#[test]
fn root_the_kernel_says_what_the_lists_say() {
    if test_needs_root() {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for lists in [1, 2, 5] {
        let lists: Vec<Class> = (0..lists).map(|_| draw(&mut random, 3000)).collect();
        let compiled = Compiled::of(&lists).unwrap();
        let mut actions = vec![Action::Allow; lists.len() + 1];
        actions[1] = Action::Drop;
        let filter = Filter::load(&compiled, &actions, 0).unwrap();
        for (at, address) in questions(&lists, &mut random, 20_000).into_iter().enumerate() {
            let program = ["allow_ingress", "allow_egress", "allow_xdp"][at % 3];
            let expected = plain(&lists, address) == 1;
            assert_eq!(is_dropped(&filter, program, address), expected, "{program} {address}");
        }
    }
}

#[test]
fn root_a_swap_changes_every_answer_at_once_and_what_is_counted_adds_up() {
    if test_needs_root() {
        return;
    }
    let list =
        |length| Class { v4: prefixes4(&[(0x0a00_0000, length)]), v6: prefixes6(&[(0x2001_0db8 << 96, 32)]) };
    let of = |class: &Class| Compiled::of(std::slice::from_ref(class)).unwrap();
    let (wide, narrow) = (list(8), list(28));
    let mut filter = Filter::load(&of(&wide), &[Action::Drop, Action::Allow], 1).unwrap();
    let (near, far, other) = (v4(0x0a00_0005), v4(0x0aff_0005), v6(0x2001_0db8 << 96 | 7));
    let drops = |filter: &Filter| [near, far, other].map(|a| is_dropped(filter, "allow_ingress", a));
    assert_eq!(drops(&filter), [false, false, false]);
    filter.swap(&of(&narrow), &[Action::Drop, Action::Allow]).unwrap();
    assert_eq!(drops(&filter), [false, true, false]);
    filter.swap(&of(&wide), &[Action::Allow, Action::Drop]).unwrap();
    assert_eq!(drops(&filter), [true, true, true]);

    let status = filter.status().unwrap();
    let count = |packets, bytes| Count { packets, bytes };
    // Frames of IPv4 have 34 bytes, of IPv6 54.
    assert_eq!(
        status.classes,
        [
            (Direction::Ingress, 0, "drop", count(1, 34)),
            (Direction::Ingress, 1, "allow", count(5, 34 * 3 + 54 * 2)),
            (Direction::Ingress, 1, "drop", count(3, 34 * 2 + 54)),
        ]
    );
    assert_eq!(status.reasons, [(Direction::Ingress, Reason::LookedUp, count(9, 34 * 6 + 54 * 3))]);
    let mut denied: Vec<(IpAddr, u64)> = status.denied.iter().map(|d| (d.source, d.packets)).collect();
    denied.sort_unstable();
    assert_eq!(denied, [(near, 1), (far, 2), (other, 1)]);
}

#[test]
fn root_what_the_link_needs_passes_and_is_counted_apart() {
    if test_needs_root() {
        return;
    }
    let filter = Filter::load(&Compiled::of(&[]).unwrap(), &[Action::Drop], 0).unwrap();
    assert!(is_dropped(&filter, "allow_ingress", v4(0x0a00_0001)));
    assert!(!is_dropped(&filter, "allow_ingress", v4(0)));
    assert!(!is_dropped(&filter, "allow_ingress", "fe80::1".parse().unwrap()));
    let arp = [vec![2; 12], vec![8, 6], vec![0; 46]].concat();
    assert_eq!(test_run(filter.program("allow_xdp"), &arp, 0, 1).unwrap().verdict, XDP_PASS);
    // A tag in front, as a card without VLAN offload hands it over.
    let mut tagged = frame(v4(0x0a00_0001), v4(1));
    tagged.splice(12..12, [0x81, 0x00, 0, 7]);
    assert_eq!(test_run(filter.program("allow_xdp"), &tagged, 0, 1).unwrap().verdict, XDP_DROP);
    let short = &frame(v4(0x0a00_0001), v4(1))[..30];
    assert_eq!(test_run(filter.program("allow_xdp"), short, 0, 1).unwrap().verdict, XDP_PASS);
    let reasons: Vec<_> =
        filter.status().unwrap().reasons.into_iter().map(|(_, r, c)| (r, c.packets)).collect();
    assert_eq!(
        reasons,
        [(Reason::LookedUp, 2), (Reason::NotIp, 1), (Reason::TooShort, 1), (Reason::LinkLocal, 2)]
    );
}

#[test]
fn root_neighbour_discovery_and_answers_of_dhcp_pass_from_anywhere() {
    if test_needs_root() {
        return;
    }
    let filter = Filter::load(&Compiled::of(&[]).unwrap(), &[Action::Drop], 0).unwrap();
    let dropped = |bytes: &[u8]| is_shot(&filter, bytes);
    // A neighbour solicitation from a global address (RFC 4861 section 4.3): next header, hop limit, type.
    let (them, us) = (socket("[2001:2::9]:0"), socket("[2001:2::1]:0"));
    let mut solicitation = packet_with(ICMPV6, them, us, &[135, 0, 0, 0, 0, 0, 0, 0]);
    solicitation[14 + 7] = 255;
    assert!(!dropped(&solicitation));
    let mut routed = solicitation.clone();
    routed[14 + 7] = 254;
    assert!(dropped(&routed), "it came through a router");
    let mut echo = solicitation.clone();
    echo[14 + 40] = 128;
    assert!(dropped(&echo));
    // DHCP (RFC 2131 section 4.1): from port 67 to 68.
    let answer = packet(UDP, socket("198.18.9.9:67"), socket("198.18.0.1:68"), 0);
    assert!(!dropped(&answer));
    let mut other = answer.clone();
    other[14 + 20 + 3] = 69;
    assert!(dropped(&other));
    let tcp = packet(TCP, socket("198.18.9.9:67"), socket("198.18.0.1:68"), ACK);
    assert!(dropped(&tcp));
    let packets = |reason| {
        let reasons = filter.status().unwrap().reasons;
        reasons.iter().filter(|r| r.1 == reason).map(|r| r.2.packets).sum::<u64>()
    };
    assert_eq!((packets(Reason::LinkLocal), packets(Reason::LookedUp)), (2, 4));
}
