//! Single runs on given pages.

use std::net::IpAddr;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use weir_bpf::test_run;
use weir_packets::flow_order::{self, Tuple};
use weir_packets::frame::{self, Marked, Tag, Template};
use weir_packets::live::{Make, Program};
use weir_packets::shared::{self, WeirSender};
use weir_packets::{Family, Frame, Inject, Order, Protocol, Tuples};
use weir_sys::clock::now_ns;
use weir_sys::privilege::test_needs_root;

/// `enum xdp_action` (include/uapi/linux/bpf.h).
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

const SOURCE: [u8; 6] = [0x02, 0x11, 0x22, 0x33, 0x44, 0x55];
const DESTINATION: [u8; 6] = [0x02, 0xaa, 0xbb, 0xcc, 0xdd, 0xee];
const COOKIE: u32 = 0x89ab_cdef;

fn make(frame: Frame, inject: Inject, paced: bool) -> Make {
    let template = Template::new(frame, SOURCE, DESTINATION).unwrap();
    Make { template, interface: 1, inject, paced, batch: 64, reference: None }
}

fn udp4() -> Frame {
    Frame { family: Family::Ipv4, protocol: Protocol::Udp, bytes: 64 }
}

/// A state that allows frames at any time, the first of every `stamp_every` stamped.
fn state(program: &Program, stamp_every: u32) -> WeirSender {
    WeirSender { frames: u64::MAX, duration_ns: u64::MAX, stamp_every, ..program.fresh(COOKIE) }
}

/// The state when that many frames have left.
fn after(mut state: WeirSender, sent: u32) -> WeirSender {
    state.counts[shared::WEIR_SENT as usize] = sent.into();
    state
}

fn tuple(family: Family, flow: u32) -> Tuple {
    let (source, destination): (IpAddr, IpAddr) = match family {
        Family::Ipv4 => ("198.18.0.1".parse().unwrap(), "198.19.255.254".parse().unwrap()),
        Family::Ipv6 => ("2001:2::1".parse().unwrap(), "2001:2:0:ffff:fedc:ba98:7654:3210".parse().unwrap()),
    };
    let tuples = Tuples {
        flows: u32::MAX,
        source_ports: 1024..=65535,
        destination_ports: 1..=49151,
        order: Order::Permutation,
        seed: 0,
    };
    flow_order::outgoing(&tuples, source, destination, flow)
}

/// A page as a forwarder gives it back: the headers are anything, the bytes behind them are as they were.
fn scribbled(template: &Template, with: u8) -> Vec<u8> {
    let mut page = template.bytes().to_vec();
    // The longest that a header with our mark is, behind IP: TCP's 20 bytes and 4, or UDP's 8 and 16.
    page[..template.transport() + 24].fill(with);
    page
}

/// The oracle's frame.
fn expected(template: &Template, tuple: &Tuple, tag: Tag) -> Vec<u8> {
    let mut bytes = template.bytes().to_vec();
    let protocol = template.frame().protocol;
    let Tuple { source, source_port, destination, destination_port } = *tuple;
    template.mark(&mut bytes, &Marked { tag, protocol, source, source_port, destination, destination_port });
    bytes
}

#[test]
fn root_frames_are_the_oracles_bit_for_bit_whatever_the_page_held() {
    if test_needs_root() {
        return;
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        for protocol in [Protocol::Udp, Protocol::TcpSyn] {
            for bytes in [64, 84, 85, 128, 512, 1518, 3400] {
                if family == Family::Ipv6 && bytes < frame::LEAST_IPV6 {
                    continue;
                }
                let frame = Frame { family, protocol, bytes };
                let flows = [0, 1, 64511, 64512, 1 << 31].map(|flow| (flow, tuple(family, flow)));
                let program = Program::load(make(frame, Inject::Wire, false), &flows).unwrap();
                program.set_state(state(&program, 2));
                // The deck is cyclic: twice through it, and a bit.
                for seq in 0..12u32 {
                    let page = scribbled(&program.make().template, [0x00, 0xff, 0xa5][seq as usize % 3]);
                    let run = test_run(program.fd(), &page, 0, 1).unwrap();
                    assert_eq!(run.verdict, XDP_TX, "{frame:?}");
                    let (flow, tuple) = flows[seq as usize % flows.len()];
                    // The time is the only part that the test does not know beforehand.
                    let sent_ns = frame::read(&run.packet).expect("one of ours").tag.sent_ns;
                    assert_eq!(sent_ns != 0, seq % 2 == 0, "every second frame is stamped");
                    let tag = Tag { cookie: COOKIE, seq, flow, sent_ns };
                    let expected = expected(&program.make().template, &tuple, tag);
                    assert_eq!(run.packet, expected, "{frame:?} number {seq}");
                }
                assert_eq!(program.state().counts[shared::WEIR_SENT as usize], 12);
            }
        }
    }
}

/// Addresses, ports, numbers and cookies of any value: what sums to 0 or carries more than once is among them.
#[test]
fn root_checksums_hold_for_any_values() {
    if test_needs_root() {
        return;
    }
    let word = || prop_oneof![Just(0u32), Just(u32::MAX), Just(0xffff_0000), any::<u32>()];
    let port = || prop_oneof![Just(0u16), Just(0xffff), any::<u16>()];
    let wide = || prop_oneof![Just(0u128), Just(u128::MAX), any::<u128>()];
    let values =
        ((any::<bool>(), any::<bool>()), (wide(), wide()), (port(), port()), (word(), word(), word()));
    let mut runner = TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    runner
        .run(
            &values,
            |((v6, tcp), (source, destination), (source_port, destination_port), (cookie, seq, flow))| {
                let family = if v6 { Family::Ipv6 } else { Family::Ipv4 };
                let protocol = if tcp { Protocol::TcpSyn } else { Protocol::Udp };
                let address = |bits: u128| -> IpAddr {
                    if v6 {
                        std::net::Ipv6Addr::from_bits(bits).into()
                    } else {
                        std::net::Ipv4Addr::from_bits(bits as u32).into()
                    }
                };
                let (source, destination) = (address(source), address(destination));
                let tuple = Tuple { source, source_port, destination, destination_port };
                let frame = Frame { family, protocol, bytes: 84 };
                let program = Program::load(make(frame, Inject::Wire, false), &[(flow, tuple)]).unwrap();
                let seq = seq & ((1 << shared::WEIR_SEQ_BITS) - 1);
                let all = WeirSender { frames: u64::MAX, duration_ns: u64::MAX, ..program.fresh(cookie) };
                program.set_state(after(all, seq));
                let run = test_run(program.fd(), &scribbled(&program.make().template, 0xee), 0, 1).unwrap();
                let tag = Tag { cookie, seq, flow, sent_ns: 0 };
                prop_assert_eq!(run.packet, expected(&program.make().template, &tuple, tag));
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn root_each_flow_of_a_permutation_leaves_once_in_its_order() {
    if test_needs_root() {
        return;
    }
    let tuples = Tuples {
        flows: 1000,
        source_ports: 1024..=1123,
        destination_ports: 1..=5,
        order: Order::Permutation,
        seed: 42,
    };
    let (own, target) = ("198.18.0.1".parse().unwrap(), "198.19.0.1".parse().unwrap());
    let order = flow_order::order(&tuples).unwrap();
    let flows: Vec<_> =
        order.iter().map(|flow| (*flow, flow_order::outgoing(&tuples, own, target, *flow))).collect();
    let program = Program::load(make(udp4(), Inject::Wire, false), &flows).unwrap();
    program.set_state(state(&program, 0));
    let page = program.make().template.bytes().to_vec();
    let mut seen: Vec<_> = (0..1000)
        .map(|_| frame::read(&test_run(program.fd(), &page, 0, 1).unwrap().packet).unwrap())
        .map(|m| (m.tag.flow, (m.source, m.source_port, m.destination_port)))
        .collect();
    assert!(seen.iter().map(|(flow, _)| *flow).eq(order), "in the order that was drawn");
    seen.sort_unstable_by_key(|(_, tuple)| *tuple);
    seen.dedup_by_key(|(_, tuple)| *tuple);
    assert_eq!(seen.len(), 1000, "100 source ports, 5 destination ports and 2 source addresses");
}

#[test]
fn root_the_limit_of_frames_is_exact_and_the_last_run_says_so() {
    if test_needs_root() {
        return;
    }
    let program =
        Program::load(make(udp4(), Inject::Gateway, false), &[(0, tuple(Family::Ipv4, 0))]).unwrap();
    program.set_state(WeirSender { frames: 3, ..state(&program, 0) });
    let page = program.make().template.bytes().to_vec();
    let verdicts: Vec<u32> = (0..5).map(|_| test_run(program.fd(), &page, 0, 1).unwrap().verdict).collect();
    assert_eq!(verdicts, [XDP_PASS, XDP_PASS, XDP_PASS, XDP_DROP, XDP_DROP]);
    let state = program.state();
    assert_eq!(state.counts[shared::WEIR_SENT as usize], 3);
    assert_eq!(state.counts[shared::WEIR_ALL_SENT as usize], 2);
    assert_eq!(u64::from(state.closed), shared::WEIR_ALL_SENT);
    assert!(state.first_ns > 0 && state.last_ns >= state.first_ns);
}

#[test]
fn root_no_frame_leaves_before_it_is_due_or_after_the_time() {
    if test_needs_root() {
        return;
    }
    const SECOND: u64 = 1_000_000_000;
    let program = Program::load(make(udp4(), Inject::Wire, true), &[(0, tuple(Family::Ipv4, 0))]).unwrap();
    let page = program.make().template.bytes().to_vec();
    let run = |state: WeirSender| {
        program.set_state(state);
        (test_run(program.fd(), &page, 0, 1).unwrap().verdict, program.state())
    };
    let hour = (3600 * SECOND) << shared::WEIR_INTERVAL_BITS;
    // Due in an hour: the run waits for a moment and makes nothing.
    let (verdict, after) = run(WeirSender { due: hour, interval: hour, ..state(&program, 0) });
    assert_eq!((verdict, after.counts[shared::WEIR_EARLY as usize]), (XDP_DROP, 1));
    assert_eq!((after.due, after.closed, after.next), (hour, 0, 0), "it is still to come");
    // Due at once, and the next an hour later.
    let (verdict, after) = run(WeirSender { interval: hour, ..state(&program, 0) });
    assert_eq!((verdict, after.due), (XDP_TX, hour));
    // Ten seconds late, which the program counts. The machine may have started only a minute ago.
    let start_ns = now_ns() - 10 * SECOND;
    let (verdict, after) = run(WeirSender { start_ns, interval: 1, ..state(&program, 0) });
    assert_eq!(verdict, XDP_TX);
    assert!((10 * SECOND..400 * SECOND).contains(&after.late_max_ns), "{}", after.late_max_ns);
    // A second that ended nine seconds ago.
    let (verdict, after) = run(WeirSender { start_ns, duration_ns: SECOND, ..state(&program, 0) });
    assert_eq!((verdict, u64::from(after.closed)), (XDP_DROP, shared::WEIR_TIME_UP));
}

#[test]
fn root_a_frame_that_waits_in_its_batch_is_not_kept_by_the_schedule() {
    if test_needs_root() {
        return;
    }
    let program = Program::load(make(udp4(), Inject::Wire, true), &[(0, tuple(Family::Ipv4, 0))]).unwrap();
    let page = program.make().template.bytes().to_vec();
    let hour = (3_600_000_000_000) << shared::WEIR_INTERVAL_BITS;
    program.set_state(WeirSender { interval: hour, ..state(&program, 0) });
    let batch = program.make().batch;
    let verdicts: Vec<u32> =
        (0..batch).map(|_| test_run(program.fd(), &page, 0, 1).unwrap().verdict).collect();
    assert_eq!(verdicts.iter().filter(|v| **v == XDP_TX).count(), 1);
    let state = program.state();
    assert_eq!((state.run, state.waiting), (0, 0), "the batch is through, so nothing waits in the next one");
}

#[test]
fn root_the_number_wraps_below_that_of_the_thread() {
    if test_needs_root() {
        return;
    }
    let program = Program::load(make(udp4(), Inject::Wire, false), &[(0, tuple(Family::Ipv4, 0))]).unwrap();
    let (last, stream) = ((1 << shared::WEIR_SEQ_BITS) - 1, 15 << shared::WEIR_SEQ_BITS);
    program.set_state(after(WeirSender { stream, ..state(&program, 0) }, last));
    let page = program.make().template.bytes().to_vec();
    let seqs: Vec<u32> = (0..2)
        .map(|_| frame::read(&test_run(program.fd(), &page, 0, 1).unwrap().packet).unwrap().tag.seq)
        .collect();
    assert_eq!(seqs, [stream | last, stream]);
}

#[test]
fn root_a_page_too_short_is_told_and_nothing_leaves() {
    if test_needs_root() {
        return;
    }
    for (family, least) in [(Family::Ipv4, 58), (Family::Ipv6, 78)] {
        let frame = Frame { family, protocol: Protocol::Udp, bytes: 84 };
        let program = Program::load(make(frame, Inject::Wire, false), &[(0, tuple(family, 0))]).unwrap();
        program.set_state(state(&program, 0));
        // Ethernet, IP, and the longest headers behind it: 14 + 20 + 24, 14 + 40 + 24.
        for (length, verdict) in [(least, XDP_TX), (least - 1, XDP_DROP), (14, XDP_DROP)] {
            assert_eq!(test_run(program.fd(), &vec![0; length], 0, 1).unwrap().verdict, verdict);
        }
        assert_eq!(program.state().counts[shared::WEIR_UNFIT as usize], 2);
    }
}
