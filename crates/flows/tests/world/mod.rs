//! A client and a server, and between them three routers in unnamed network namespaces: one before the gateway, the gateway, and one behind
//! it. The outer routers drop what a test has them drop; the gateway is watched.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod planted;
pub mod relay;

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use weir_flows::{Options, Watch};
use weir_sys::NetNs;
use weir_testkit::PATIENCE;

pub struct PathWorld {
    pub client: NetNs,
    pub before: NetNs,
    pub gateway: NetNs,
    pub behind: NetNs,
    pub server: NetNs,
    pub client_address: IpAddr,
    pub gateway_outside: IpAddr,
    pub server_address: IpAddr,
    ipv6: bool,
}

/// Names of the links' ends, from left to right.
const LINKS: [(&str, &str); 4] = [("c0", "b0"), ("b1", "g0"), ("g1", "h0"), ("h1", "s0")];

impl PathWorld {
    /// The gateway masquerades if asked. All offloads are off: a packet is a segment.
    pub fn new(ipv6: bool, masquerades: bool) -> PathWorld {
        let hosts = [(); 5].map(|()| NetNs::create().unwrap());
        let handle = |ns: &NetNs| format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
        // Even without a look for another host that has it, an address of IPv6 waits for a worker of the kernel, unless it says so.
        let (version, length, any, at_once) =
            if ipv6 { (6, 64, "::/0", "nodad") } else { (4, 24, "0.0.0.0/0", "") };
        let address = |network: usize, host: usize| {
            if ipv6 { format!("2001:2:0:{network}::{host}") } else { format!("198.18.{network}.{host}") }
        };
        for ns in &hosts {
            // Before its links: each takes it over when it is made.
            sh(ns, "sysctl -q net.ipv6.conf.default.accept_dad=0");
        }
        // The rest of a host in one script: a process for each command takes longer than the commands.
        let mut scripts: [String; 5] = std::array::from_fn(|_| {
            format!("sysctl -q net.ipv{version}.conf.all.forwarding=1; ip link set lo up; ")
        });
        for (n, (left, right)) in LINKS.iter().enumerate() {
            let there = handle(&hosts[n + 1]);
            sh(&hosts[n], &format!("ip link add {left} type veth peer name {right} netns {there}"));
            for (script, link, host) in [(n, left, 1), (n + 1, right, 2)] {
                scripts[script] += &format!(
                    "ethtool -K {link} tso off gso off gro off tx off rx off >/dev/null 2>&1 || true; \
                     ip addr add {}/{length} dev {link} {at_once}; ip link set {link} up; ",
                    address(n, host)
                );
            }
        }
        // Every host knows the ways to both ends.
        for (n, script) in scripts.iter_mut().enumerate() {
            if n < 4 {
                *script += &format!("ip route add {any} via {}; ", address(n, 2));
            }
            for network in 0..n.saturating_sub(1) {
                *script +=
                    &format!("ip route add {}/{length} via {}; ", address(network, 0), address(n - 1, 1));
            }
        }
        if masquerades {
            let family = if ipv6 { "ip6" } else { "ip" };
            scripts[2] += &format!(
                "nft 'add table {family} nat; add chain {family} nat p {{ type nat hook postrouting priority srcnat; }}; \
                 add rule {family} nat p oifname g1 masquerade'"
            );
        }
        for (host, script) in hosts.iter().zip(scripts) {
            sh(host, &format!("set -e; {script}"));
        }
        let ip = |network, host| address(network, host).parse::<IpAddr>().unwrap();
        let [client, before, gateway, behind, server] = hosts;
        PathWorld {
            client,
            before,
            gateway,
            behind,
            server,
            client_address: ip(0, 1),
            gateway_outside: ip(2, 1),
            server_address: ip(3, 2),
            ipv6,
        }
    }

    /// A rule for packets that a router forwards; its counter is read by [`PathWorld::dropped`].
    pub fn rule(&self, ns: &NetNs, rule: &str) {
        sh(
            ns,
            &format!(
                "nft 'add table inet loss; add chain inet loss f {{ type filter hook forward priority 0; }}; \
                 add rule inet loss f {rule}'"
            ),
        );
    }

    /// Packets that the rules of a router have counted, which drop them unless a test says otherwise.
    pub fn dropped(&self, ns: &NetNs) -> u64 {
        let text = sh(ns, "nft list table inet loss");
        let words: Vec<&str> = text.split_whitespace().collect();
        words.windows(2).filter(|w| w[0] == "packets").map(|w| w[1].parse::<u64>().unwrap()).sum()
    }

    pub fn watch(&self, options: Options) -> Watch {
        self.gateway.run(|| Watch::start(options).unwrap()).unwrap()
    }

    pub fn listen(&self, port: u16) -> TcpListener {
        self.server.run(|| weir_testkit::bound(|| TcpListener::bind((self.server_address, port)))).unwrap()
    }

    pub fn try_connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        self.client.run(|| TcpStream::connect(to)).unwrap()
    }

    /// Both ends of a connection.
    pub fn connect(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let near = self.try_connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        for end in [&near, &far] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
            end.set_nodelay(true).unwrap();
            // BBR, the default of some machines, sends more needlessly: at 8 % loss 3 of 13 attempts counted some of it as lost.
            rustix::net::sockopt::set_tcp_congestion(end, "cubic").unwrap();
        }
        (near, far)
    }
}

/// Sends that many bytes, all of which must arrive, and the end.
pub fn send(from: &mut TcpStream, to: &mut TcpStream, bytes: usize) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let piece = vec![7; 64 << 10];
            let mut left = bytes;
            while left > 0 {
                let now = left.min(piece.len());
                from.write_all(&piece[..now]).unwrap();
                left -= now;
            }
            from.shutdown(Shutdown::Write).unwrap();
        });
        let mut piece = vec![0; 64 << 10];
        let mut got = 0;
        loop {
            match to.read(&mut piece).unwrap() {
                0 => break,
                n => got += n,
            }
        }
        assert_eq!(got, bytes);
    });
}

#[track_caller]
pub fn sh(ns: &NetNs, script: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    ns.enter_on_spawn(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
