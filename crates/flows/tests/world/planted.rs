//! Planted losses, and what the gateway and the senders say of them.

use std::net::TcpListener;

use weir_flows::{Fraction, Network, Options};

use super::{PathWorld, send, sh};

/// Sends over that many connections at once, by the client or by the server; segments that the senders sent again (tcpi_total_retrans).
pub fn traffic(
    world: &PathWorld,
    listener: &TcpListener,
    connections: usize,
    bytes: usize,
    by_server: bool,
) -> u64 {
    // A window of a few packets: bursts of thousands would overflow the queue of a core (net.core.netdev_max_backlog), which all namespaces
    // share, and be lost where no test has planted anything.
    let window = (500_000 / connections).clamp(16_384, 100_000);
    for ns in [&world.client, &world.server] {
        sh(ns, &format!("sysctl -q net.ipv4.tcp_rmem='4096 {window} {window}'"));
    }
    let mut pairs: Vec<_> = (0..connections).map(|_| world.connect(listener)).collect();
    std::thread::scope(|scope| {
        for (near, far) in &mut pairs {
            scope.spawn(move || if by_server { send(far, near, bytes) } else { send(near, far, bytes) });
        }
    });
    let ns = if by_server { &world.server } else { &world.client };
    let text = sh(ns, "ss -tanHi");
    // `retrans:0/12`: in flight and in all.
    let all = text.split_whitespace().filter_map(|w| w.strip_prefix("retrans:")?.split_once('/'));
    all.map(|(_, n)| n.parse::<u64>().unwrap()).sum()
}

/// Planted losses: rules of the routers before and behind the gateway.
#[derive(Debug, Clone, Copy)]
pub struct Planted<'a> {
    pub ipv6: bool,
    pub before: &'a str,
    pub behind: &'a str,
    pub connections: usize,
    pub by_server: bool,
}

/// The gateway's account, and the truth: the packets that the two routers dropped, and the segments that were sent again.
pub struct Seen {
    pub network: Network,
    pub dropped: [u64; 2],
    pub again: u64,
    by_server: bool,
}

/// One of the two ways to the gateway and from it.
#[derive(Debug)]
pub struct Side {
    pub what: &'static str,
    pub said: Fraction,
    /// The truth, and all segments that went this way.
    pub dropped: u64,
    pub of: u64,
}

impl Seen {
    /// Losses on the way to the gateway, and behind it.
    pub fn sides(&self) -> [Side; 2] {
        let (client, server) = (&self.network.client_side, &self.network.server_side);
        let [before, behind] = self.dropped;
        let side = |what, said, dropped, of| Side { what, said, dropped, of };
        if self.by_server {
            // The router behind the gateway is the one before it now.
            [
                side("from the server", server.lost_from, behind, server.segments + behind),
                side("to the client", client.lost_to, before, server.segments),
            ]
        } else {
            [
                side("from the client", client.lost_from, before, client.segments + before),
                side("to the server", server.lost_to, behind, client.segments),
            ]
        }
    }
}

pub fn see(planted: Planted<'_>) -> Seen {
    see_in(&PathWorld::new(planted.ipv6, true), planted)
}

pub fn see_in(world: &PathWorld, planted: Planted<'_>) -> Seen {
    world.rule(&world.before, planted.before);
    world.rule(&world.behind, planted.behind);
    for ns in [&world.client, &world.server] {
        // Bursts are counted in packets: a sender that is alone meets all of one with its repetitions, each after twice the time. Sockets
        // take the longest time over when they are made. An older kernel has no such setting. With it, a
        // sender would give up a recovery that takes longer than 27 s (tcp_retries2 = 15).
        sh(ns, "f=/proc/sys/net/ipv4/tcp_rto_max_ms; test ! -e $f || echo 2000 >$f");
        sh(ns, "sysctl -q net.ipv4.tcp_retries2=100");
    }
    let mut watch = world.watch(Options::default());
    let listener = world.listen(5001);
    let again =
        traffic(world, &listener, planted.connections, 6_000_000 / planted.connections, planted.by_server);
    let dropped = [world.dropped(&world.before), world.dropped(&world.behind)];
    let reading = watch.read().unwrap();
    assert_eq!(reading.networks.len(), 1);
    Seen { network: reading.networks[0].clone(), dropped, again, by_server: planted.by_server }
}

/// The share that was dropped is in the interval; where none was, none is reported.
#[track_caller]
pub fn holds_truth(side: &Side) {
    let Side { what, said, dropped, of } = side;
    let truth = *dropped as f64 / *of as f64;
    println!("{what}: {dropped} of {of} dropped, {truth:.4}; reported {said:?}");
    let (low, high) = (said.low.unwrap(), said.high.unwrap());
    assert!(low <= truth && truth <= high, "{what}: {truth} is not within {low} to {high}");
    if *dropped == 0 {
        assert_eq!(said.segments, 0, "{what}: none was dropped");
    }
}
