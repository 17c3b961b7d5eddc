//! Two inside hosts behind a gateway that masquerades, and a server outside, in unnamed network namespaces.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_fastpath::{Fastpath, Keeper, Options, Reason, Status, Xdp};
use weir_netlink::ethtool::Ethtool;
use weir_sys::NetNs;
use weir_testkit::bound;

/// Nothing here takes this long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How the inside hosts are connected to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// Both by one bridge, `br0`.
    Bridge,
    /// The first one by a veth, `in0`, and the second one not at all. No end of a veth leaves work to its interface, so that XDP is sound.
    SingleFrames,
}

impl Inside {
    /// The gateway's interface.
    pub fn interface(self) -> &'static str {
        if self == Inside::Bridge { "br0" } else { "in0" }
    }

    fn hosts(self) -> usize {
        if self == Inside::Bridge { 2 } else { 1 }
    }
}

pub struct NatWorld {
    pub kind: Inside,
    pub inside: [NetNs; 2],
    pub gateway: NetNs,
    pub server: NetNs,
    pub inside_addresses: [IpAddr; 2],
    pub gateway_outside: IpAddr,
    pub server_address: IpAddr,
}

impl NatWorld {
    /// Both inside hosts are on one bridge, `br0`, of the gateway; `out0` leads to the server.
    pub fn new(ipv6: bool) -> NatWorld {
        NatWorld::with(ipv6, Inside::Bridge)
    }

    pub fn with(ipv6: bool, kind: Inside) -> NatWorld {
        let [first, second, gateway, server] = [(); 4].map(|()| NetNs::create().unwrap());
        let handle = |ns: &NetNs| format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
        let (length, nodad, any, version, ip) =
            if ipv6 { (64, "nodad", "::/0", 6, "ip6") } else { (24, "", "0.0.0.0/0", 4, "ip") };
        let addresses = if ipv6 {
            ["2001:2::2", "2001:2::3", "2001:2::1", "2001:2:0:1::1", "2001:2:0:1::2"]
        } else {
            ["198.18.0.2", "198.18.0.3", "198.18.0.1", "198.18.1.1", "198.18.1.2"]
        };
        // Addresses that come by themselves later would be changes of the way.
        let quiet =
            if ipv6 { "net.ipv6.conf.default.accept_dad=0" } else { "net.ipv6.conf.default.disable_ipv6=1" };
        sh(&gateway, &format!("sysctl -q {quiet}"));
        if kind == Inside::Bridge {
            sh(&gateway, "ip link add br0 type bridge && ip link set br0 up");
        }
        // The bridge would show every packet to conntrack, and put fragments together, before the programs see it.
        for name in ["iptables", "ip6tables"] {
            sh(
                &gateway,
                &format!("f=/proc/sys/net/bridge/bridge-nf-call-{name}; test ! -e $f || echo 0 >$f"),
            );
        }
        let ports: &[_] = match kind {
            Inside::Bridge => &[(&first, "p0"), (&second, "p1")],
            Inside::SingleFrames => &[(&first, "in0")],
        };
        for (ns, port) in ports {
            sh(&gateway, &format!("ip link add {port} type veth peer name e0 netns {}", handle(ns)));
            if kind == Inside::Bridge {
                sh(&gateway, &format!("ip link set {port} master br0 up"));
            }
        }
        sh(&gateway, &format!("ip link add out0 type veth peer name e0 netns {}", handle(&server)));
        let near = kind.interface();
        let ends = [(&first, "e0"), (&second, "e0"), (&gateway, near), (&gateway, "out0"), (&server, "e0")];
        let ends = ends.into_iter().zip(addresses);
        let ends: Vec<_> =
            ends.filter(|((ns, _), _)| kind == Inside::Bridge || !std::ptr::eq(*ns, &second)).collect();
        if kind == Inside::SingleFrames {
            for ((ns, link), _) in &ends {
                let offloads = [("tso", false), ("tx", false), ("gro", true)];
                let offloads = offloads.map(|(name, on)| (name.to_owned(), on)).into();
                ns.run(|| Ethtool::open().unwrap().set(link, &offloads).unwrap()).unwrap();
            }
        }
        for ((ns, link), address) in ends {
            sh(ns, &format!("ip addr add {address}/{length} dev {link} {nodad}; ip link set {link} up"));
        }
        let hosts = [&first, &second];
        for ns in hosts.into_iter().take(kind.hosts()) {
            sh(ns, &format!("ip route add {any} via {}", addresses[2]));
        }
        sh(&gateway, &format!("sysctl -q net.ipv{version}.conf.all.forwarding=1"));
        sh(
            &gateway,
            &format!(
                "nft 'add table {ip} nat; add chain {ip} nat p {{ type nat hook postrouting priority srcnat; }}; \
                 add rule {ip} nat p oifname out0 masquerade'"
            ),
        );
        let [a, b, _, gateway_outside, server_address] = addresses.map(|a| a.parse::<IpAddr>().unwrap());
        let world = NatWorld {
            kind,
            inside: [first, second],
            gateway,
            server,
            inside_addresses: [a, b],
            gateway_outside,
            server_address,
        };
        world.wait_until_there_is_a_way();
        world
    }

    /// A bridge's port forwards only some time after its link is there, and a neighbour must be found first.
    fn wait_until_there_is_a_way(&self) {
        let server = self.server_udp(7777);
        server.set_nonblocking(true).unwrap();
        for n in 0..self.kind.hosts() {
            let client = self.udp(&self.inside[n], self.inside_addresses[n], 7778);
            until("a way", || {
                client.send_to(b"?", server.local_addr().unwrap()).unwrap();
                server.recv_from(&mut [0]).ok()
            });
        }
    }

    /// The programs at both of the gateway's interfaces, and what keeps them.
    pub fn carried(&self, options: Options) -> Carried {
        self.gateway
            .run(|| {
                let fastpath = Fastpath::load(options).unwrap();
                for interface in [self.kind.interface(), "out0"] {
                    fastpath.attach(interface).unwrap();
                    if options.xdp != Xdp::Off {
                        fastpath.attach_xdp(interface).unwrap();
                    }
                }
                let fastpath = Arc::new(fastpath);
                let keeper = Keeper::start(&fastpath).unwrap();
                Carried { fastpath, keeper: Some(keeper) }
            })
            .unwrap()
    }

    pub fn udp(&self, ns: &NetNs, address: IpAddr, port: u16) -> UdpSocket {
        let socket = bound(|| ns.run(|| UdpSocket::bind((address, port))).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    pub fn server_udp(&self, port: u16) -> UdpSocket {
        self.udp(&self.server, self.server_address, port)
    }

    pub fn listen(&self, port: u16) -> TcpListener {
        bound(|| self.server.run(|| TcpListener::bind((self.server_address, port))).unwrap())
    }

    /// Both ends of a connection of an inside host.
    pub fn connect(&self, n: usize, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let to = listener.local_addr().unwrap();
        let near = self.inside[n].run(|| TcpStream::connect(to).unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        for end in [&near, &far] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
            end.set_nodelay(true).unwrap();
        }
        (near, far)
    }
}

pub struct Carried {
    pub fastpath: Arc<Fastpath>,
    pub keeper: Option<Keeper>,
}

impl Carried {
    pub fn status(&self) -> Status {
        self.fastpath.status().unwrap()
    }

    pub fn packets(&self) -> u64 {
        self.status().packets(Reason::Carried)
    }

    /// How many packets were carried meanwhile.
    pub fn during<T>(&self, f: impl FnOnce() -> T) -> (u64, T) {
        let before = self.packets();
        let value = f();
        (self.packets() - before, value)
    }
}

/// Sends a datagram, which must arrive as it is; the address that it came from.
#[track_caller]
pub fn passes(from: &UdpSocket, to: SocketAddr, at: &UdpSocket, bytes: &[u8]) -> SocketAddr {
    from.send_to(bytes, to).unwrap();
    let mut room = vec![0; 65_536];
    let (length, source) = at.recv_from(&mut room).unwrap();
    assert_eq!(&room[..length], bytes);
    source
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

#[track_caller]
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, look)
}

#[track_caller]
pub fn within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
