//! How a cause is made on purpose, for `weir doctor selftest`. Only data: the self-test builds the lab and does it.
//!
//! The lab has an initiator (`198.18.0.2`), a gateway (`198.18.0.1` on `inside`, `198.19.0.1` on `outside`, forwarding) and a
//! responder (`198.19.0.2`), each in a namespace of its own; the ends' interface is `eth0`, and the responder has a route back
//! to the inside. Scripts run by `sh -eu` in the namespace of a place, with `INITIATOR`, `GATEWAY_INSIDE`, `GATEWAY_OUTSIDE`
//! and `RESPONDER` set to those addresses.

pub mod frames;

/// A host of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LabHost {
    /// 198.18.0.2.
    Initiator,
    /// The hop.
    Gateway,
    /// 198.19.0.2.
    Responder,
}

/// One way to make a cause.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// Short name, unique within the cause; `default` if there is one way only.
    pub name: &'static str,
    /// The place where the finding must be.
    pub at: LabHost,
    /// The doctor looks into that place alone: the other two belong to others, as the ends of a path do.
    pub alone: bool,
    /// Done before the window, in order.
    pub setup: Vec<Step>,
    /// Sent through the window, all at once.
    pub traffic: Vec<Traffic>,
    /// Settings of the whole machine, put back in every ending: (name, value). Such recipes run only where the machine's own
    /// settings may be changed.
    pub machine: Vec<(&'static str, String)>,
    /// Programs needed to run it (`iptables-legacy`, `ipset`), by name.
    pub needs: Vec<&'static str>,
    /// Causes beside this one that the recipe shows by nature, and that may be named too, though not first.
    pub also: Vec<&'static str>,
}

impl Default for Recipe {
    fn default() -> Self {
        Recipe {
            name: "default",
            at: LabHost::Gateway,
            alone: false,
            setup: Vec::new(),
            traffic: Vec::new(),
            machine: Vec::new(),
            needs: Vec::new(),
            also: Vec::new(),
        }
    }
}

impl Recipe {
    /// One of several ways, in the gateway and with nothing special.
    pub fn named(name: &'static str, setup: Vec<Step>, traffic: Vec<Traffic>) -> Recipe {
        Recipe { name, setup, traffic, ..Recipe::default() }
    }
}

/// Something done before the window.
#[derive(Debug, Clone)]
pub enum Step {
    /// A script.
    Run(LabHost, String),
    /// A further host, in a namespace of its own, with a veth to a place: name of the host, the place, the names of the two
    /// ends (there, here). Scripts of it run with [`Step::RunOn`].
    Host {
        /// Its name. A host whose name begins with `far-` belongs to another operator: the doctor does not look into it.
        name: &'static str,
        /// Linked to.
        to: LabHost,
        /// Name of the interface there.
        there: &'static str,
        /// Name of its own interface.
        here: &'static str,
    },
    /// A script on a further host.
    RunOn(&'static str, String),
    /// A fast path in a place, kept by this process until the case is over.
    FastPath(LabHost, FastPathSetup),
    /// Entries put into the connection-tracking table of a place.
    Entries(LabHost, fn() -> Vec<weir_netlink::conntrack::NewEntry>),
    /// This much of the traffic runs already before the window begins and is over when it does (a connection that is made
    /// before the fault comes).
    Before(Vec<Traffic>),
}

/// A fast path between all interfaces of a place but its loopback.
#[derive(Debug, Clone)]
pub struct FastPathSetup {
    /// Connections that it has room for, at least 64.
    pub connections: u32,
    /// Packets of one direction before it is learnt, at least 1.
    pub packets: u32,
    /// Interfaces that it leaves out.
    pub without: &'static [&'static str],
    /// Exclusions, as `weir fastpath exclude` reads them.
    pub excluded: &'static [&'static str],
}

impl Default for FastPathSetup {
    fn default() -> Self {
        FastPathSetup { connections: 65_536, packets: 8, without: &[], excluded: &[] }
    }
}

impl Step {
    /// A script of the initiator.
    pub fn initiator(script: impl Into<String>) -> Step {
        Step::Run(LabHost::Initiator, script.into())
    }

    /// A script of the gateway.
    pub fn gateway(script: impl Into<String>) -> Step {
        Step::Run(LabHost::Gateway, script.into())
    }

    /// A script of the responder.
    pub fn responder(script: impl Into<String>) -> Step {
        Step::Run(LabHost::Responder, script.into())
    }

    /// The gateway has a rule that needs connection tracking, which switches it on.
    pub fn tracking() -> Step {
        let rules = "nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; }; \
                     add rule ip t c ct state new accept'";
        Step::gateway(rules)
    }

    /// The gateway masquerades what leaves by `outside`.
    pub fn masquerade() -> Step {
        let rules = "nft 'add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; \
                     add rule ip nat post oifname outside masquerade'";
        Step::gateway(rules)
    }
}

/// Something sent or held through the window.
#[derive(Debug, Clone)]
pub enum Traffic {
    /// UDP datagrams at a rate.
    Udp {
        /// Sender.
        from: LabHost,
        /// `address:port`.
        to: String,
        /// Payload, bytes.
        size: usize,
        /// Datagrams per second.
        rate: u32,
        /// Distinct source ports, taken in turn; 0: a new socket for every datagram.
        flows: u32,
        /// Don't Fragment is set.
        dont_fragment: bool,
    },
    /// A UDP socket.
    UdpServer {
        /// The place where it runs.
        on: LabHost,
        /// Port.
        port: u16,
        /// Receive buffer, bytes; `None`: the kernel's.
        buffer: Option<usize>,
        /// Its behaviour.
        mode: UdpMode,
    },
    /// A listening TCP socket of the responder.
    TcpServer {
        /// Port.
        port: u16,
        /// Backlog of listen(2).
        backlog: u32,
        /// Its behaviour.
        mode: TcpMode,
    },
    /// New TCP connections of the initiator at a rate, each sending one request of `bytes` and waiting for the answer, up to a
    /// second.
    Connects {
        /// `address:port`.
        to: String,
        /// Per second.
        rate: u32,
        /// Payload, bytes; 0: closed when established.
        bytes: usize,
        /// Kept open through the window.
        hold: bool,
    },
    /// TCP streams of the initiator that send as fast as they can.
    Bulk {
        /// `address:port`.
        to: String,
        /// How many.
        streams: u32,
        /// Bits per second of all together; `None`: unlimited.
        rate_bps: Option<u64>,
    },
    /// One TCP connection of the initiator that exchanges small messages, `bytes` each way, at a rate.
    Exchange {
        /// `address:port`.
        to: String,
        /// Messages per second.
        rate: u32,
        /// Bytes each way.
        bytes: usize,
    },
    /// Whole Ethernet frames, in turn, at a rate. `frames` is given the Ethernet addresses (own, the peer's).
    Frames {
        /// From: the initiator or the responder.
        from: LabHost,
        /// Frames per second.
        rate: u32,
        /// The frames.
        frames: fn(own: [u8; 6], peer: [u8; 6]) -> Vec<Vec<u8>>,
    },
    /// A script that runs through the window, and is ended after it.
    Script(LabHost, String),
}

impl Traffic {
    /// Connections from the initiator to a server behind that address, which sends back what it gets. `rate`, `bytes` and
    /// `hold` as in [`Traffic::Connects`].
    pub fn connects(to: &str, rate: u32, bytes: usize, hold: bool) -> Vec<Traffic> {
        vec![
            Traffic::TcpServer { port: 7000, backlog: 1024, mode: TcpMode::Echo },
            Traffic::Connects { to: to.into(), rate, bytes, hold },
        ]
    }

    /// Datagrams from the initiator to that `address:port`; the rest as in [`Traffic::Udp`], and they may be cut into fragments.
    pub fn udp(to: &str, size: usize, rate: u32, flows: u32) -> Traffic {
        Traffic::udp_from(LabHost::Initiator, to, size, rate, flows)
    }

    /// The same from another place.
    pub fn udp_from(from: LabHost, to: &str, size: usize, rate: u32, flows: u32) -> Traffic {
        Traffic::Udp { from, to: to.into(), size, rate, flows, dont_fragment: false }
    }

    /// A UDP socket of the responder with the kernel's buffer.
    pub fn udp_server(port: u16, mode: UdpMode) -> Traffic {
        Traffic::UdpServer { on: LabHost::Responder, port, buffer: None, mode }
    }

    /// Datagrams from the initiator to such a socket; the rest as in [`Traffic::Udp`].
    pub fn datagrams(port: u16, mode: UdpMode, size: usize, rate: u32, flows: u32) -> Vec<Traffic> {
        let to = format!("198.19.0.2:{port}");
        vec![Traffic::udp_server(port, mode), Traffic::udp(&to, size, rate, flows)]
    }

    /// Streams from the initiator to a TCP socket of the responder; the rest as in [`Traffic::Bulk`].
    pub fn bulk(port: u16, mode: TcpMode, streams: u32, rate_bps: Option<u64>) -> Vec<Traffic> {
        vec![
            Traffic::TcpServer { port, backlog: 16, mode },
            Traffic::Bulk { to: format!("198.19.0.2:{port}"), streams, rate_bps },
        ]
    }

    /// Datagrams of `size` bytes from the initiator to port 7000 of the responder, which discards them and has room for all of
    /// them: any loss is on the path. `rate` and `flows` as in [`Traffic::Udp`].
    pub fn udp_across(size: usize, rate: u32, flows: u32) -> Vec<Traffic> {
        vec![
            Traffic::UdpServer {
                on: LabHost::Responder,
                port: 7000,
                buffer: Some(8 << 20),
                mode: UdpMode::Sink,
            },
            Traffic::udp("198.19.0.2:7000", size, rate, flows),
        ]
    }
}

/// The behaviour of a UDP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UdpMode {
    /// Reads and throws away.
    Sink,
    /// Sends back.
    Echo,
    /// Never reads.
    Deaf,
}

/// The behaviour of a TCP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpMode {
    /// Reads and throws away.
    Sink,
    /// Sends back.
    Echo,
    /// Never accepts.
    NeverAccept,
    /// Accepts and never reads.
    Deaf,
    /// Sends as fast as it can.
    Source,
}
