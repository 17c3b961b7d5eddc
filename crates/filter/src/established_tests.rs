//! Established connections first, against entries of the table that are made by hand.

use std::process::Command;

use weir_bpf::test_run;
use weir_netlink::conntrack::{Conntrack, NewEntry, Status};
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;

use crate::probe::SHOT;
use crate::test_packets::{ACK, SYN, TCP, UDP, error_about, is_shot, packet, refuses_all, socket};
use crate::{Direction, Options, Reason};

const ESTABLISHED_FIRST: Options = Options { sample: 0, established_first: true };

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

#[test]
fn root_answers_pass_and_what_is_new_or_unanswered_is_looked_up() {
    if test_needs_root() {
        return;
    }
    tracking()
        .run(|| {
            let filter = refuses_all(ESTABLISHED_FIRST);
            for (us, them, router) in [
                ("198.18.0.1:40000", "198.18.9.9:443", "198.18.7.7:0"),
                ("[2001:2::1]:40000", "[2001:2:9::9]:443", "[2001:2:7::7]:0"),
            ] {
                let (us, them, router) = (socket(us), socket(them), socket(router));
                let mut table = Conntrack::open().unwrap();
                let answer = packet(TCP, them, us, ACK);
                assert!(is_shot(&filter, &answer), "nothing is known of it yet");
                // We began it, and there is no answer yet: what comes from there is the answer.
                table.insert([NewEntry { status: Status(0), ..NewEntry::tcp(us, them, 2) }]).unwrap();
                assert!(!is_shot(&filter, &answer));
                // With the same ports a connection of theirs is a new one.
                assert!(is_shot(&filter, &packet(TCP, them, us, SYN)));
                // An error about what we sent, from a router that is in no list; about anything else it is refused.
                let ours = packet(TCP, us, them, SYN);
                assert!(!is_shot(&filter, &error_about(router, us, &ours)));
                let mut other = us;
                other.set_port(40_001);
                assert!(is_shot(&filter, &error_about(router, us, &packet(TCP, other, them, SYN))));
                // They began it: until there was an answer, each packet is looked up.
                let mut theirs = them;
                theirs.set_port(5000);
                let mut service = us;
                service.set_port(53);
                let question = packet(UDP, theirs, service, 0);
                table.insert([NewEntry { status: Status(0), ..NewEntry::udp(theirs, service) }]).unwrap();
                assert!(is_shot(&filter, &question));
                table.flush().unwrap();
                let answered = NewEntry { status: Status::SEEN_REPLY, ..NewEntry::udp(theirs, service) };
                table.insert([answered]).unwrap();
                assert!(!is_shot(&filter, &question));
            }
            // Fragments have no ports to look up.
            let (us, them) = (socket("198.18.0.1:53"), socket("198.18.9.9:5000"));
            Conntrack::open().unwrap().insert([NewEntry::udp(them, us)]).unwrap();
            let mut fragment = packet(UDP, them, us, 0);
            assert!(!is_shot(&filter, &fragment));
            fragment[14 + 6] = 0x20;
            assert!(is_shot(&filter, &fragment));
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
            let filter = refuses_all(ESTABLISHED_FIRST);
            let (inside, public, them) =
                (socket("198.18.0.5:40000"), socket("198.18.1.1:1025"), socket("198.18.9.9:443"));
            let status = Status(0);
            let entry = NewEntry { source_nat: Some(public), status, ..NewEntry::tcp(inside, them, 2) };
            Conntrack::open().unwrap().insert([entry]).unwrap();
            assert!(!is_shot(&filter, &packet(TCP, them, public, ACK)));
            assert!(is_shot(&filter, &packet(TCP, them, inside, ACK)), "this is not how it comes in");
            // The error quotes the packet as it went out.
            let quoted = packet(TCP, public, them, ACK);
            assert!(!is_shot(&filter, &error_about(socket("198.18.7.7:0"), public, &quoted)));
            // Outgoing packets belong to it as well.
            let out = test_run(filter.program("allow_egress"), &quoted, 0, 1).unwrap().verdict;
            // We speak, and no answer has come: looked up, as conntrack would call it new.
            assert_eq!(out, SHOT);
        })
        .unwrap();
}
