//! TCP that falls silent: conntrack waits as long for its next packet as without the fast path. It has one timeout for connections whose
//! data are acknowledged (five days), and a short one for the others.

mod world;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use weir_fastpath::Options;
use weir_netlink::conntrack::{Conntrack, Tuple};
use weir_sys::privilege::test_needs_root;
use world::{Carried, NatWorld, sh, until};

/// A flow enters with its second packet, and shows conntrack one each second.
const OFTEN: Options = Options {
    connections: 1024,
    connections6: 1024,
    packets: 2,
    refresh: Duration::from_secs(1),
    ..Options::DEFAULT
};
/// The same on a kernel without conntrack's functions for BPF.
const BY_NETLINK: Options = Options { without_functions: true, ..OFTEN };

/// Both ends of a connection behind a gateway with these rules, after four seconds of data both ways.
struct Case {
    world: NatWorld,
    carried: Option<Carried>,
    near: TcpStream,
    far: TcpStream,
}

impl Case {
    /// `bytes`: of each exchange.
    fn new(ipv6: bool, options: Option<Options>, rules: &str, bytes: usize) -> Case {
        let world = NatWorld::new(ipv6);
        sh(&world.gateway, &format!("test -z '{rules}' || nft '{rules}'"));
        let carried = options.map(|options| world.carried(options));
        let (near, far) = world.connect(0, &world.listen(5000));
        let mut case = Case { world, carried, near, far };
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) {
            case.exchange(bytes);
            case.exchange(1);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(case.carried.as_ref().is_none_or(|carried| carried.packets() > 500));
        case
    }

    fn exchange(&mut self, bytes: usize) {
        self.near.write_all(&vec![1; bytes]).unwrap();
        self.far.read_exact(&mut vec![0; bytes]).unwrap();
        self.far.write_all(&vec![2; bytes]).unwrap();
        self.near.read_exact(&mut vec![0; bytes]).unwrap();
    }

    fn timeout_s(&self) -> u32 {
        let (from, to) = (self.near.local_addr().unwrap(), self.near.peer_addr().unwrap());
        let tuple = Tuple {
            source: from.ip().into(),
            destination: to.ip().into(),
            protocol: 6,
            source_port: from.port(),
            destination_port: to.port(),
        };
        let look = || Conntrack::open().unwrap().get(&tuple).unwrap();
        self.world.gateway.run(look).unwrap().unwrap().timeout_s.unwrap()
    }
}

/// Runs it without the fast path and with it, over both versions of IP, side by side: all mostly wait.
fn each(learns: &[Options], run: impl Fn(bool, Option<Options>) + Sync) {
    if test_needs_root() {
        return;
    }
    std::thread::scope(|scope| {
        for options in [None].into_iter().chain(learns.iter().copied().map(Some)) {
            for ipv6 in [false, true] {
                let run = &run;
                scope.spawn(move || run(ipv6, options));
            }
        }
    });
}

// The last acknowledgement may be late by a fifth of a second, and a walk over the table takes ten seconds.

#[test]
fn root_paced_a_silent_connection_whose_data_are_acknowledged_is_kept_for_days() {
    each(&[OFTEN, BY_NETLINK], |ipv6, options| {
        let case = Case::new(ipv6, options, "", 3000);
        until("conntrack waits for days", || (case.timeout_s() > 400_000).then_some(()));
    });
}

#[test]
fn root_paced_a_silent_connection_has_the_timeout_of_its_own_policy() {
    // ctnetlink does not tell of a policy.
    each(&[OFTEN], |ipv6, options| {
        let ip = if ipv6 { "ip6" } else { "ip" };
        let policy = format!("protocol tcp; l3proto {ip}; policy = {{ established: 5000, unack: 77 }};");
        let table = format!("add table {ip} t; add ct timeout {ip} t slow {{ {policy} }}");
        let chain = format!("add chain {ip} t p {{ type filter hook prerouting priority 0; }}");
        let rules = format!("{table}; {chain}; add rule {ip} t p ct timeout set \"slow\"");
        let case = Case::new(ipv6, options, &rules, 3000);
        until("conntrack waits for as long as the policy says", || {
            let seconds = case.timeout_s();
            assert!(seconds <= 5000, "{seconds}");
            (seconds > 4900).then_some(())
        });
    });
}

#[test]
fn root_paced_a_connection_whose_data_are_not_acknowledged_keeps_its_short_timeout() {
    each(&[OFTEN, BY_NETLINK], |ipv6, options| {
        // So few that those of a second are within conntrack's window: else it does not notice that the last ones are unacknowledged.
        let mut case = Case::new(ipv6, options, "", 1);
        // Its end is gone, and the other one sends again and again: after 0.2 s, 0.4 s, and so on.
        sh(&case.world.server, "ip link set e0 down");
        case.near.write_all(&[1; 100]).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(16) {
            std::thread::sleep(Duration::from_millis(500));
        }
        let seconds = case.timeout_s();
        assert!(seconds <= 300, "{options:?} {seconds}");
    });
}
