//! What a packet costs in each program by BPF_PROG_TEST_RUN, against a program that does nothing, in the same round: medians, ns.
//! A way out is asked for where no packet of that client came by just before, and known otherwise. Needs root; makes network
//! namespaces of its own.
//!
//!     cargo run --release -p weir-publish --example publish_costs

#[path = "../tests/world/mod.rs"]
mod world;

use std::net::IpAddr;

use weir_bpf::{Loader, test_run};
use weir_publish::Direction;
use world::{INNER, PUBLISHED, PublishWorld, SAME};

const ROUNDS: usize = 9;
const RUNS: u32 = 100_000;

/// A segment without payload, as far as the programs look at it: the checksum is updated and not verified.
fn frame(source: (IpAddr, u16), destination: (IpAddr, u16)) -> Vec<u8> {
    let mut frame = [&[0; 6][..], &[2; 6]].concat();
    match (source.0, destination.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0]);
            frame.extend(from.octets().into_iter().chain(to.octets()));
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
            frame.extend(from.octets().into_iter().chain(to.octets()));
        }
        _ => panic!("two versions"),
    }
    frame.extend(source.1.to_be_bytes().into_iter().chain(destination.1.to_be_bytes()));
    frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0x12, 0x34, 0, 0]);
    frame
}

fn main() {
    let object = Loader::unpack("empty", include_bytes!(concat!(env!("OUT_DIR"), "/empty.bpf.z"))).unwrap();
    let object = object.load().unwrap();
    let empty = object.program("empty").unwrap();
    for ipv6 in [false, true] {
        let world = PublishWorld::new(ipv6);
        let publish = world.load();
        let client = (world.client_address, 40_000);
        // More than are remembered, each at least as long ago as all others took.
        let clients = move |run: usize| match world.client_address {
            IpAddr::V4(_) => IpAddr::from([198, 18, 64 + (run >> 8) as u8 % 64, run as u8]),
            IpAddr::V6(a) => IpAddr::V6((u128::from(a) ^ ((run as u128 + 1) << 16)).into()),
        };
        for (what, direction, source, destination) in [
            ("in", Direction::In, client, (world.published, SAME)),
            ("in, other port", Direction::In, client, (world.published, PUBLISHED)),
            ("in, not mapped", Direction::In, client, (world.published, 22)),
            ("out, way known", Direction::Out, (world.inner, SAME), client),
            ("out, way known, other port", Direction::Out, (world.inner, INNER), client),
            ("out, way asked for", Direction::Out, (world.inner, SAME), client),
            ("out, not mapped", Direction::Out, (world.inner, 22), client),
        ] {
            let asked_for = what.ends_with("asked for");
            // A run changes the packet, which the next one of the same call then meets: only the first is translated. So each is a
            // call of its own, with caches as cold as between other packets, but for the ones that change nothing.
            let repeat = if what.ends_with("not mapped") { RUNS } else { 1 };
            let mut rounds: Vec<(u32, u32)> = (0..ROUNDS * if repeat == 1 { 200 } else { 1 })
                .map(|at| {
                    let to = if asked_for { (clients(at), destination.1) } else { destination };
                    let packet = frame(source, to);
                    let nothing = test_run(&empty, &packet, 0, repeat).unwrap().duration_ns;
                    let run = world.host.run(|| publish.run(direction, &packet, repeat)).unwrap().unwrap();
                    (run.duration_ns, nothing)
                })
                .collect();
            rounds.sort_unstable();
            let (ns, nothing) = rounds[rounds.len() / 2];
            println!("{}, {what}: {ns} ns, nothing {nothing} ns", if ipv6 { "IPv6" } else { "IPv4" });
        }
    }
}
