//! Flows that fall silent: conntrack waits as long for the next packet as without the fast path. For TCP it has one timeout for connections
//! whose data are acknowledged (five days), and a short one for the others.

mod world;

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use weir_fastpath::Options;
use weir_netlink::conntrack::{Conntrack, Tuple};
use weir_sys::privilege::test_needs_root;
use world::{Carried, NatWorld, passes, sh, until};

/// A flow enters with its second packet, and shows conntrack one each second.
const OFTEN: Options = Options {
    connections: 1024,
    connections6: 1024,
    packets: 2,
    refresh: Duration::from_secs(1),
    ..Options::DEFAULT
};
/// A flow enters with its second packet, and shows conntrack one each quarter of its timeout.
const SELDOM: Options = Options { refresh: Options::DEFAULT.refresh, ..OFTEN };
/// The same as the first one on a kernel without conntrack's functions for BPF.
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

/// With a timeout of eight seconds, a flow that pauses for six and a half lives on, however long before the pause conntrack saw its
/// last packet.
#[test]
fn root_a_pause_shorter_than_the_timeout_ends_no_flow() {
    if !test_needs_root() {
        [SELDOM, Options { without_functions: true, ..SELDOM }]
            .into_iter()
            .for_each(pause_shorter_than_the_timeout);
    }
}

fn pause_shorter_than_the_timeout(options: Options) {
    let world = NatWorld::new(false);
    for name in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
        sh(&world.gateway, &format!("sysctl -q net.netfilter.{name}=8"));
    }
    let carried = world.carried(options);
    let flows: Vec<_> = (0..8_u16)
        .map(|n| {
            let client = world.udp(&world.inside[0], world.inside_addresses[0], 4000 + n);
            (client, world.server_udp(5000 + n))
        })
        .collect();
    let both = |client: &UdpSocket, server: &UdpSocket| {
        let from = passes(client, server.local_addr().unwrap(), server, b"begin");
        passes(server, from, client, b"begun");
        from
    };
    // Without conntrack's functions only streams are carried.
    let begun = Instant::now();
    while options.without_functions && begun.elapsed() < Duration::from_millis(2300) {
        flows.iter().for_each(|(client, server)| _ = both(client, server));
        std::thread::sleep(Duration::from_millis(50));
    }
    // They are carried one after the other, and stop at the same time: some moments after conntrack saw the last packet of each.
    let mut seen = Vec::new();
    for (client, server) in &flows {
        seen.push(until("it is carried", || {
            let (packets, from) = carried.during(|| both(client, server));
            (packets == 2).then_some(from)
        }));
        std::thread::sleep(Duration::from_millis(250));
    }
    let began = Instant::now();
    let (packets, ()) = carried.during(|| {
        for ((client, server), from) in flows.iter().zip(&seen) {
            assert_eq!(passes(client, server.local_addr().unwrap(), server, b"last"), *from);
        }
    });
    assert!(packets >= 4, "{packets} of the last packets were carried: {:?}", carried.status());
    std::thread::sleep(Duration::from_millis(6500));
    if began.elapsed() > Duration::from_millis(7500) {
        println!("DISTURBED: too slow for a pause of six and a half seconds");
        return;
    }
    for ((client, server), from) in flows.iter().zip(&seen) {
        passes(server, *from, client, b"still there");
    }
}
