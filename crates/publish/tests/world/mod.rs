//! Four hosts in unnamed network namespaces: client -- router -- host (bridge) -- container. The host publishes ports of the
//! container by rules, as a container engine does.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::{Duration, Instant};

use weir_publish::{Direction, Links, Mapping, Protocol, Publish, Reason};
use weir_sys::NetNs;
use weir_testkit::bound;

/// Nothing here takes this long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Published port and the container's, of TCP and of UDP: one that stays and one that changes.
pub const SAME: u16 = 5001;
pub const PUBLISHED: u16 = 80;
pub const INNER: u16 = 8080;

pub struct PublishWorld {
    pub client: NetNs,
    pub router: NetNs,
    pub host: NetNs,
    pub container: NetNs,
    pub client_address: IpAddr,
    pub published: IpAddr,
    pub inner: IpAddr,
}

impl PublishWorld {
    pub fn new(ipv6: bool) -> PublishWorld {
        let [client, router, host, container] = [(); 4].map(|()| NetNs::create().unwrap());
        let addresses = if ipv6 {
            ["2001:2:0:9::2", "2001:2:0:9::1", "2001:2::2", "2001:2::1", "2001:2:0:1::1", "2001:2:0:1::2"]
        } else {
            ["198.18.9.2", "198.18.9.1", "198.18.0.2", "198.18.0.1", "198.18.1.1", "198.18.1.2"]
        };
        let handle = |ns: &NetNs| format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
        sh(&router, &format!("ip link add r0 type veth peer name c0 netns {}", handle(&client)));
        sh(&host, &format!("ip link add in0 type veth peer name r1 netns {}", handle(&router)));
        sh(&host, &format!("ip link add v0 type veth peer name k0 netns {}", handle(&container)));
        sh(&host, "ip link add br0 type bridge && ip link set v0 master br0 up");
        let length = if ipv6 { 64 } else { 24 };
        let ends = [
            (&client, "c0"),
            (&router, "r0"),
            (&router, "r1"),
            (&host, "in0"),
            (&host, "br0"),
            (&container, "k0"),
        ];
        for ((ns, link), address) in ends.into_iter().zip(addresses) {
            let nodad = if ipv6 { "nodad" } else { "" };
            sh(ns, &format!("ip addr add {address}/{length} dev {link} {nodad}; ip link set {link} up"));
        }
        for ns in [&client, &router, &host, &container] {
            sh(ns, "ip link set lo up");
            // Errors are what is looked at here: none is to be missing because there were six a moment ago.
            sh(ns, "sysctl -q net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0");
        }
        let (version, any) = if ipv6 { (6, "::/0") } else { (4, "0.0.0.0/0") };
        for (ns, via) in [(&client, 1), (&host, 2), (&container, 4), (&router, 3)] {
            sh(ns, &format!("ip route add {any} via {}", addresses[via]));
        }
        for ns in [&router, &host] {
            sh(ns, &format!("sysctl -q net.ipv{version}.conf.all.forwarding=1"));
        }
        let [client_address, _, _, published, _, inner] = addresses.map(|a| a.parse::<IpAddr>().unwrap());
        let world = PublishWorld { client, router, host, container, client_address, published, inner };
        world.rules(if ipv6 { "ip6" } else { "ip" });
        world.wait_until_there_is_a_way();
        world
    }

    /// A bridge's port forwards only some time after its link is there, and a neighbour must be found first: a single datagram
    /// that is lost by that would look like one that the programs lost.
    fn wait_until_there_is_a_way(&self) {
        let client = self.udp_socket(&self.client, self.client_address, 7777);
        let container = self.udp_socket(&self.container, self.inner, 7778);
        container.connect((self.client_address, 7777)).unwrap();
        client.set_nonblocking(true).unwrap();
        container.set_nonblocking(true).unwrap();
        let mut byte = [0];
        let (_, peer) = until("the container reaches the client", || {
            let _ = container.send(b"?");
            client.recv_from(&mut byte).ok()
        });
        until("the client reaches the container", || {
            let _ = client.send_to(b"!", peer);
            container.recv(&mut byte).ok()
        });
        // Hundreds may still be on their way, from queues in which they waited for a neighbour. They are not to come to closed ports
        // later: what answers them would be counted, or use up what the kernel answers in a second.
        arrives_last(&client, |mark| container.send(mark));
        arrives_last(&container, |mark| client.send_to(mark, peer));
    }

    /// Those of a container engine, which also say what becomes of answers that were never seen to begin.
    fn rules(&self, ip: &str) {
        let (published, inner) = (self.published, self.inner);
        let bracketed = if inner.is_ipv6() { format!("[{inner}]") } else { inner.to_string() };
        let mut dnat = String::new();
        let mut snat = String::new();
        for protocol in ["tcp", "udp"] {
            for (from, to) in [(SAME, SAME), (PUBLISHED, INNER)] {
                dnat.push_str(&format!(
                    "{ip} daddr {published} {protocol} dport {from} dnat to {bracketed}:{to}\n"
                ));
            }
        }
        snat.push_str(&format!("oifname != \"br0\" {ip} saddr {inner} masquerade\n"));
        snat.push_str(&format!("{ip} saddr {inner} {ip} daddr {inner} masquerade\n"));
        let script = format!(
            "table {ip} engine {{
                chain prerouting {{ type nat hook prerouting priority dstnat; {dnat} }}
                chain output {{ type nat hook output priority -100; {dnat} }}
                chain postrouting {{ type nat hook postrouting priority srcnat; {snat} }}
                chain forward {{ type filter hook forward priority 0; counter; }}
            }}"
        );
        sh(&self.host, &format!("nft '{script}'"));
        // A container that talks to itself comes back to the port that it came from.
        sh(&self.host, "ip link set v0 type bridge_slave hairpin on");
    }

    pub fn mappings(&self) -> Vec<Mapping> {
        let ports = [(SAME, SAME), (PUBLISHED, INNER)];
        let both = ports.into_iter().flat_map(|p| [(Protocol::Tcp, p), (Protocol::Udp, p)]);
        both.map(|(protocol, (from, to))| Mapping {
            protocol,
            published: (self.published, from).into(),
            container: (self.inner, to).into(),
        })
        .collect()
    }

    /// Loaded, and attached to nothing.
    pub fn load(&self) -> Publish {
        self.host.run(|| Publish::load(&self.mappings(), Links::find("in0", "v0").unwrap()).unwrap()).unwrap()
    }

    pub fn publish(&self) -> Publish {
        let mut publish = self.load();
        self.host.run(|| publish.attach().unwrap()).unwrap();
        assert!(publish.is_attached().unwrap());
        publish
    }

    pub fn udp_socket(&self, ns: &NetNs, address: IpAddr, port: u16) -> UdpSocket {
        let socket = ns.run(|| bound(|| UdpSocket::bind((address, port)))).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// A datagram of that length and its answer of the same, by the container's socket.
    pub fn udp_exchange(&self, client: &UdpSocket, server: &UdpSocket, length: usize) -> SocketAddr {
        let sent = noise(length, length as u32);
        client.send(&sent).unwrap();
        let mut got = vec![0; 65536];
        let (n, from) = server.recv_from(&mut got).expect("the request arrives");
        assert!(got[..n] == sent[..]);
        server.send_to(&sent, from).unwrap();
        let n = client.recv(&mut got).expect("the answer arrives from where it was asked");
        assert!(got[..n] == sent[..]);
        from
    }

    /// Sends so many bytes there and back, all at once, and compares them. Returns whom the container saw.
    pub fn tcp_echo(&self, from: &NetNs, target: SocketAddr, port: u16, length: usize) -> SocketAddr {
        let listener = self.container.run(|| bound(|| TcpListener::bind((self.inner, port)))).unwrap();
        listener.set_nonblocking(true).unwrap();
        let client = from.run(|| TcpStream::connect_timeout(&target, PATIENCE)).unwrap();
        let mut client = client.unwrap_or_else(|e| panic!("connect to {target}: {e}"));
        let (mut server, peer) = until("the connection is accepted", || listener.accept().ok());
        server.set_nonblocking(false).unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        let sent = noise(length, 7);
        let (mut there, mut back) = (vec![0; length], vec![0; length]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                server.read_exact(&mut there).unwrap();
                server.write_all(&there).unwrap();
            });
            client.write_all(&sent).unwrap();
            client.read_exact(&mut back).unwrap();
        });
        assert!(there == sent && back == sent, "{length} bytes");
        peer
    }
}

/// Sends marks until one of them arrives: what was sent before it has arrived then, or is lost.
fn arrives_last(to: &UdpSocket, send: impl Fn(&[u8]) -> std::io::Result<usize>) {
    let mut bytes = [0; 16];
    let mut at = 0_u64;
    until("what was sent last arrives", || {
        at += 1;
        let mark = at.to_be_bytes();
        let _ = send(&mark);
        let deadline = Instant::now() + Duration::from_millis(100);
        while Instant::now() < deadline {
            match to.recv(&mut bytes) {
                Ok(n) if bytes[..n] == mark => return Some(()),
                Ok(_) => {}
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        None
    });
}

/// Bytes that no two places have alike (xorshift).
pub fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 11) as u8
    };
    (0..length).map(|_| next()).collect()
}

pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn packets(publish: &Publish, direction: Direction, reason: Reason) -> u64 {
    publish.status().unwrap().packets(direction, reason)
}

/// Runs a shell command there, which must succeed, and returns what it printed.
pub fn sh(ns: &NetNs, command: &str) -> String {
    let output = ns.run(|| Command::new("sh").arg("-c").arg(command).output()).unwrap().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
