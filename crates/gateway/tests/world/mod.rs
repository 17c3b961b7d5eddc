//! Three hosts in unnamed network namespaces, joined by veth: initiator -- gateway -- responder.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use weir_gateway::{Family, Journal, Place, Role, VariantKind};
use weir_sys::NetNs;
use weir_testkit::{bound, until};

/// Nothing here takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// A tag names one variant of a process: tests that run at the same time must not find the programs of each other.
static WORLDS: AtomicU32 = AtomicU32::new(1);

pub struct GatewayWorld {
    pub initiator: NetNs,
    pub gateway: NetNs,
    pub responder: NetNs,
    pub place: Place,
}

/// The result of one exchange.
pub struct Seen {
    pub source: SocketAddr,
}

impl GatewayWorld {
    pub fn routed(family: Family) -> GatewayWorld {
        GatewayWorld::new(family, false)
    }

    /// The responder behind a bridge, like a container.
    pub fn bridged(family: Family) -> GatewayWorld {
        GatewayWorld::new(family, true)
    }

    fn new(family: Family, bridged: bool) -> GatewayWorld {
        let [initiator, gateway, responder] = [(); 3].map(|()| NetNs::create().unwrap());
        let addresses = match family {
            Family::Ipv4 => ["198.18.0.2", "198.18.0.1", "198.18.1.1", "198.18.1.2", "198.18.2.1"],
            Family::Ipv6 => ["2001:2::2", "2001:2::1", "2001:2:0:1::1", "2001:2:0:1::2", "2001:2:0:2::1"],
        };
        let [i, gi, go, r, spare] = addresses.map(|a| a.parse::<IpAddr>().unwrap());
        let outside = if bridged { "br0" } else { "out0" };
        let place = Place {
            family,
            inside_interface: "in0".into(),
            outside_interface: outside.into(),
            initiator: i,
            gateway_inside: gi,
            gateway_outside: go,
            spare_outside: Some(spare),
            responder: r,
            ports: 5001..=5004,
            tag: format!("a{}", WORLDS.fetch_add(1, Ordering::Relaxed)),
        };
        let handle = |ns: &NetNs| format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
        let (to_initiator, to_responder) = (handle(&initiator), handle(&responder));
        let (length, any, nodad) = match family {
            Family::Ipv4 => (24, "0.0.0.0/0", ""),
            Family::Ipv6 => (64, "::/0", "nodad"),
        };
        in_ns(&gateway, &format!("ip link add in0 type veth peer name i0 netns {to_initiator}"));
        in_ns(&gateway, &format!("ip link add out0 type veth peer name r0 netns {to_responder}"));
        if bridged {
            in_ns(&gateway, "ip link add br0 type bridge && ip link set out0 master br0 up");
        }
        let up = |ns: &NetNs, interface: &str, address: IpAddr| {
            in_ns(
                ns,
                &format!(
                    "ip addr add {address}/{length} dev {interface} {nodad}; ip link set {interface} up"
                ),
            );
        };
        for ns in [&initiator, &gateway, &responder] {
            in_ns(ns, "ip link set lo up");
        }
        up(&initiator, "i0", i);
        up(&gateway, "in0", gi);
        up(&gateway, outside, go);
        up(&responder, "r0", r);
        in_ns(&initiator, &format!("ip route add {any} via {gi}"));
        // To the initiator only: the spare address has no route unless a variant makes one.
        let host = if family == Family::Ipv4 { 32 } else { 128 };
        in_ns(&responder, &format!("ip route add {i}/{host} via {go}"));
        wait_until_settled(&initiator, i);
        wait_until_settled(&gateway, gi);
        wait_until_settled(&gateway, go);
        wait_until_settled(&responder, r);
        GatewayWorld { initiator, gateway, responder, place }
    }

    pub fn ns(&self, role: Role) -> &NetNs {
        match role {
            Role::Initiator => &self.initiator,
            Role::Gateway => &self.gateway,
            Role::Responder => &self.responder,
        }
    }

    /// Applies on every host, as the agents do.
    pub fn apply(&self, variant: &VariantKind) -> Vec<(Role, Journal)> {
        [Role::Initiator, Role::Gateway, Role::Responder]
            .map(|role| (role, self.apply_on(role, &self.place, variant).unwrap()))
            .into()
    }

    pub fn apply_on(
        &self,
        role: Role,
        place: &Place,
        variant: &VariantKind,
    ) -> Result<Journal, weir_gateway::Error> {
        self.ns(role)
            .run(|| {
                let mut journal = Journal::new();
                weir_gateway::apply(&**variant, role, place, &mut journal)?;
                variant.verify(role, place)?;
                Ok(journal)
            })
            .unwrap()
    }

    pub fn undo(&self, role: Role, journal: &mut Journal) {
        let errors = self.ns(role).run(|| journal.undo()).unwrap();
        assert!(errors.is_empty(), "{}: {errors:#?}", role.name());
        assert!(journal.is_empty());
    }

    pub fn counter(&self, place: &Place, variant: &VariantKind) -> Option<u64> {
        self.gateway.run(|| variant.counter(place)).unwrap().unwrap()
    }

    /// Everything that a variant may touch, by other means than the crate's own.
    pub fn facts(&self) -> String {
        [&self.initiator, &self.gateway, &self.responder].map(facts).join("\n======\n")
    }

    /// One TCP exchange with a reply.
    pub fn tcp(&self, target: IpAddr, port: u16) -> Seen {
        let listen = SocketAddr::new(self.place.responder, port);
        let listener = self.responder.run(|| bound(|| TcpListener::bind(listen))).unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                let (mut stream, peer) = accept_in_time(&listener);
                let mut bytes = [0; 4];
                stream.read_exact(&mut bytes).unwrap();
                assert_eq!(&bytes, b"ping");
                stream.write_all(b"pong").unwrap();
                peer
            });
            let target = SocketAddr::new(target, port);
            let stream = self.initiator.run(|| TcpStream::connect_timeout(&target, PATIENCE)).unwrap();
            // The server's thread gives up by itself.
            let mut stream = stream.unwrap_or_else(|e| panic!("cannot connect to {target}: {e}"));
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(b"ping").unwrap();
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"pong");
            Seen { source: server.join().unwrap() }
        })
    }

    /// Segment size that the responder's end of a connection uses, from `ss`.
    pub fn mss_at_responder(&self, port: u16) -> u32 {
        let listen = SocketAddr::new(self.place.responder, port);
        let listener = self.responder.run(|| bound(|| TcpListener::bind(listen))).unwrap();
        let _client = self.initiator.run(|| TcpStream::connect_timeout(&listen, PATIENCE)).unwrap().unwrap();
        let _server = listener.accept().unwrap();
        let shown = in_ns(&self.responder, &format!("ss -tinH state established sport = :{port}"));
        let mss = shown.split_whitespace().find_map(|w| w.strip_prefix("mss:")).unwrap();
        mss.parse().unwrap()
    }

    /// The counters and neighbours of each host: they show the place of a loss.
    fn counts(&self) -> String {
        let look = "ip -s link; ip -s neigh; ip -s -6 neigh; nft list ruleset; grep -v ' 0$' /proc/net/snmp6; cat /proc/net/snmp";
        let hosts =
            [("initiator", &self.initiator), ("gateway", &self.gateway), ("responder", &self.responder)];
        hosts.map(|(name, ns)| format!("{name}:\n{}", in_ns(ns, look))).join("\n")
    }

    /// One UDP exchange with a reply.
    pub fn udp(&self, target: IpAddr, port: u16) -> Seen {
        let socket = |ns: &NetNs, address: IpAddr, port| {
            let socket = ns.run(|| bound(|| UdpSocket::bind((address, port)))).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        let server = socket(&self.responder, self.place.responder, port);
        let client = socket(&self.initiator, self.place.initiator, 0);
        client.connect((target, port)).unwrap();
        client.send(b"ping").unwrap();
        let mut bytes = [0; 16];
        let arrived = server.recv_from(&mut bytes);
        let (n, source) =
            arrived.unwrap_or_else(|e| panic!("nothing comes from {target}: {e}\n{}", self.counts()));
        assert_eq!(&bytes[..n], b"ping");
        server.send_to(b"pong", source).unwrap();
        let n = client.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..n], b"pong");
        Seen { source }
    }
}

/// The next connection, within twice the time that its other end may take to be there.
fn accept_in_time(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let deadline = Instant::now() + 2 * PATIENCE;
    listener.set_nonblocking(true).unwrap();
    let (stream, peer) = loop {
        match listener.accept() {
            Ok(accepted) => break accepted,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                assert!(Instant::now() < deadline, "nobody has come to {:?}", listener.local_addr());
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => panic!("{e}"),
        }
    };
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    (stream, peer)
}

/// Says why where a real container engine cannot run.
pub fn lacks_docker() -> bool {
    let missing =
        ["dockerd", "docker", "busybox"].into_iter().find(|p| weir_sys::process::which(p).is_none());
    if let Some(program) = missing {
        println!("SKIP: needs {program} (apt-get install docker.io busybox-static)");
        return true;
    }
    let privilege = weir_sys::privilege::Privilege::current(&weir_sys::ProcRoot::new("/")).unwrap();
    if !privilege.initial_user_namespace {
        println!("SKIP: a container engine needs the machine's root");
    }
    !privilege.initial_user_namespace
}

pub fn variant(json: &str) -> VariantKind {
    serde_json::from_str(json).unwrap()
}

/// Runs a shell command there, which must succeed, and returns what it printed.
pub fn in_ns(ns: &NetNs, command: &str) -> String {
    let output = ns.run(|| Command::new("sh").arg("-c").arg(command).output()).unwrap().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until the address has its route. The kernel does what a link's new carrier means for its routes a moment later, up to a second
/// (net/core/link_watch.c): facts from before it would differ from those from behind it.
fn wait_until_settled(ns: &NetNs, address: IpAddr) {
    until("routes of links with a carrier", PATIENCE, || {
        let routes = in_ns(ns, "ip -4 route show table all; ip -6 route show table all");
        let is_local = routes.contains(&format!("local {address} "));
        (is_local && !routes.contains("linkdown")).then_some(())
    });
}

pub fn facts(ns: &NetNs) -> String {
    // Legacy tables stay registered when they are empty; counters move with traffic.
    let text = in_ns(
        ns,
        "export LC_ALL=C
         nft -s list ruleset 2>/dev/null
         for p in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do
           echo $p; $p-save 2>/dev/null | grep -v -e '^#' -e '^[*]' -e '^COMMIT' -e '^:[A-Z]* ACCEPT '
         done
         sysctl -a 2>/dev/null | grep -e 'forward' -e '^net.netfilter.*timeout'
         ip -4 route show table all; ip -6 route show table all | grep -v -e fe80 -e multicast -e anycast
         ip -o addr | grep -v fe80",
    );
    text + &programs(ns)
}

/// BPF programs at the interfaces there, which no listing of rules shows.
pub fn programs(ns: &NetNs) -> String {
    ns.run(|| {
        let mut text = String::new();
        for link in weir_netlink::Rtnetlink::open().unwrap().interfaces().unwrap() {
            for direction in [weir_bpf::Direction::Ingress, weir_bpf::Direction::Egress] {
                for id in weir_bpf::tcx_programs(link.index, direction).unwrap() {
                    let program = weir_bpf::program_name(id).unwrap();
                    text.push_str(&format!("{} {direction:?} {program}\n", link.name));
                }
            }
        }
        text
    })
    .unwrap()
}
