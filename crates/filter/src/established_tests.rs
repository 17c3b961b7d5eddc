//! Established connections first, against entries of the table that are made by hand.

use std::net::SocketAddr;
use std::process::Command;

use weir_bpf::test_run;
use weir_sys::NetNs;
use weir_sys::conntrack::{Conntrack, NewEntry, Status};
use weir_sys::privilege::test_needs_root;

use crate::probe::{SHOT, frame};
use crate::{Action, Class, Compiled, Direction, Filter, Options, Reason};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ACK: u8 = 0x10;
const SYN: u8 = 0x02;

/// A packet with ports; of TCP with these flags.
fn packet(protocol: u8, from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let mut bytes = frame(from.ip(), to.ip());
    // The protocol, and for IPv4 a length that holds what follows.
    if from.is_ipv4() {
        bytes[14 + 3] = 40;
        bytes[14 + 9] = protocol;
    } else {
        bytes[14 + 6] = protocol;
    }
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// An ICMP error from that router about a packet.
fn error_about(router: SocketAddr, to: SocketAddr, about: &[u8]) -> Vec<u8> {
    let mut bytes = frame(router.ip(), to.ip());
    let (protocol_at, protocol, kind) = if router.is_ipv4() { (14 + 9, 1, 3) } else { (14 + 6, 58, 2) };
    bytes[protocol_at] = protocol;
    bytes.extend([kind, 4, 0, 0, 0, 0, 0, 0]);
    bytes.extend(&about[14..]);
    bytes
}

fn is_dropped(filter: &Filter, packet: &[u8]) -> bool {
    test_run(filter.program("allow_ingress"), packet, 0, 1).unwrap().verdict == SHOT
}

/// A namespace in which connections are tracked.
fn tracking() -> NetNs {
    let ns = NetNs::create().unwrap();
    ns.run(|| {
        let rules = "add table inet t; add chain inet t c { type filter hook input priority 0; }; \
                     add rule inet t c ct state established accept";
        assert!(Command::new("nft").arg(rules).status().unwrap().success());
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
    })
    .unwrap();
    ns
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn root_answers_pass_and_what_is_new_or_unanswered_is_looked_up() {
    if test_needs_root() {
        return;
    }
    tracking()
        .run(|| {
            let tables = Compiled::of(&[Class::default()]).unwrap();
            let options = Options { sample: 0, established_first: true };
            let filter = Filter::load_with(&tables, &[Action::Drop, Action::Allow], options).unwrap();
            for (us, them, router) in [
                ("198.18.0.1:40000", "198.18.9.9:443", "198.18.7.7:0"),
                ("[2001:2::1]:40000", "[2001:2:9::9]:443", "[2001:2:7::7]:0"),
            ] {
                let (us, them, router) = (socket(us), socket(them), socket(router));
                let mut table = Conntrack::open().unwrap();
                let answer = packet(TCP, them, us, ACK);
                assert!(is_dropped(&filter, &answer), "nothing is known of it yet");
                // We began it, and there is no answer yet: what comes from there is the answer.
                table.insert([NewEntry { status: Status(0), ..NewEntry::tcp(us, them, 2) }]).unwrap();
                assert!(!is_dropped(&filter, &answer));
                // With the same ports a connection of theirs is a new one.
                assert!(is_dropped(&filter, &packet(TCP, them, us, SYN)));
                // An error about what we sent, from a router that is in no list; about anything else it is refused.
                let ours = packet(TCP, us, them, SYN);
                assert!(!is_dropped(&filter, &error_about(router, us, &ours)));
                let mut other = us;
                other.set_port(40_001);
                assert!(is_dropped(&filter, &error_about(router, us, &packet(TCP, other, them, SYN))));
                // They began it: until there was an answer, each packet is looked up.
                let mut theirs = them;
                theirs.set_port(5000);
                let mut service = us;
                service.set_port(53);
                let question = packet(UDP, theirs, service, 0);
                table.insert([NewEntry { status: Status(0), ..NewEntry::udp(theirs, service) }]).unwrap();
                assert!(is_dropped(&filter, &question));
                table.flush().unwrap();
                let answered = NewEntry { status: Status::SEEN_REPLY, ..NewEntry::udp(theirs, service) };
                table.insert([answered]).unwrap();
                assert!(!is_dropped(&filter, &question));
            }
            // Fragments have no ports to look up.
            let (us, them) = (socket("198.18.0.1:53"), socket("198.18.9.9:5000"));
            Conntrack::open().unwrap().insert([NewEntry::udp(them, us)]).unwrap();
            let mut fragment = packet(UDP, them, us, 0);
            assert!(!is_dropped(&filter, &fragment));
            fragment[14 + 6] = 0x20;
            assert!(is_dropped(&filter, &fragment));
            let status = filter.status().unwrap();
            let established: u64 =
                status.reasons.iter().filter(|r| r.1 == Reason::Established).map(|r| r.2.packets).sum();
            assert_eq!(established, 2 * 3 + 1);
            assert!(status.reasons.iter().all(|r| r.0 == Direction::Ingress));
        })
        .unwrap();
}

#[test]
fn root_where_addresses_are_translated_the_outside_sees_answers() {
    if test_needs_root() {
        return;
    }
    tracking()
        .run(|| {
            let tables = Compiled::of(&[Class::default()]).unwrap();
            let options = Options { sample: 0, established_first: true };
            let filter = Filter::load_with(&tables, &[Action::Drop, Action::Allow], options).unwrap();
            let (inside, public, them) =
                (socket("198.18.0.5:40000"), socket("198.18.1.1:1025"), socket("198.18.9.9:443"));
            let status = Status(0);
            let entry = NewEntry { source_nat: Some(public), status, ..NewEntry::tcp(inside, them, 2) };
            Conntrack::open().unwrap().insert([entry]).unwrap();
            assert!(!is_dropped(&filter, &packet(TCP, them, public, ACK)));
            assert!(is_dropped(&filter, &packet(TCP, them, inside, ACK)), "this is not how it comes in");
            // The error quotes the packet as it went out.
            let quoted = packet(TCP, public, them, ACK);
            assert!(!is_dropped(&filter, &error_about(socket("198.18.7.7:0"), public, &quoted)));
            // What goes out belongs to it as well.
            let out = test_run(filter.program("allow_egress"), &quoted, 0, 1).unwrap().verdict;
            // It is we who speak, and nobody has answered: looked up, as conntrack would call it new.
            assert_eq!(out, SHOT);
        })
        .unwrap();
}
