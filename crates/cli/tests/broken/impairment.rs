//! Ways to break a good hop on purpose.

use super::work::{Asks, Work};

/// The port of the server of a workload with one.
pub(crate) const PORT: u16 = 8080;

/// How a hop is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A share of the connections: their SYNs are dropped.
    SynDrop,
    /// A share of the connections is refused by a reset.
    SynReset,
    /// A share of the connections is refused by ICMP.
    SynReject,
    /// A share of the connections is reset once it carries data.
    FlowReset,
    /// A share of the connections carries no data.
    FlowStall,
    /// A share of the connections is reset in the middle.
    LateReset,
    /// A share of the connections stalls in the middle.
    LateStall,
    /// A share of the packets with data resets its connection.
    PacketReset,
    /// A share of the packets with data is dropped.
    PacketDrop,
    /// A share of the datagrams is answered by "port unreachable".
    PacketReject,
    /// A share of the packets with data has its first bytes overwritten.
    Corrupt,
    /// A share of the datagrams comes twice.
    Duplicate,
    /// Each packet waits.
    Delay,
    /// Each packet waits for another time.
    Jitter,
    /// Each tenth packet is overtaken.
    Reorder,
    /// A bucket of 1 Mbit/s.
    Throttle,
    /// Packets with data beyond 100 a second are dropped.
    Police,
    /// Large packets vanish and no ICMP says so.
    BlackHole,
    /// A share of the requests is answered by 503.
    Unavailable,
    /// A share of the requests is answered by closing.
    CloseEarly,
    /// A share of the responses ends in the middle.
    HalfBody,
    /// A share of the requests is never answered.
    NoAnswer,
}

use Way::*;

/// All of them, and whether each has a share.
const WAYS: &[(Way, bool)] = &[
    (SynDrop, true),
    (SynReset, true),
    (SynReject, true),
    (FlowReset, true),
    (FlowStall, true),
    (LateReset, true),
    (LateStall, true),
    (PacketReset, true),
    (PacketDrop, true),
    (PacketReject, true),
    (Corrupt, true),
    (Duplicate, true),
    (Delay, false),
    (Jitter, false),
    (Reorder, false),
    (Throttle, false),
    (Police, false),
    (BlackHole, false),
    (Unavailable, true),
    (CloseEarly, true),
    (HalfBody, true),
    (NoAnswer, true),
];

/// The effect of an impairment on a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    /// Operations fail or are lost.
    Fails,
    /// Operations take longer or are fewer, or few of them fail.
    Slows,
}

/// One way, with its share in tenths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Impairment {
    pub(crate) way: Way,
    pub(crate) tenths: u32,
}

/// A tenth, half and nine tenths.
const SHARES: [u32; 3] = [1, 5, 9];

/// Longer than 200 bytes: neither a handshake nor weir's own proof of the path.
const DATA: &str = "meta length > 200";

const SYN: &str = "tcp flags & (fin|syn|rst|ack) == syn";

/// Every impairment with every share.
pub(crate) fn all() -> Vec<Impairment> {
    let with_shares = |&(way, shared): &(Way, bool)| {
        let shares: &[u32] = if shared { &SHARES } else { &[10] };
        shares.iter().map(move |&tenths| Impairment { way, tenths })
    };
    WAYS.iter().flat_map(with_shares).collect()
}

impl Impairment {
    /// Name of its variant.
    pub(crate) fn name(&self) -> String {
        let way: String = format!("{:?}", self.way)
            .chars()
            .flat_map(|c| if c.is_uppercase() { vec!['-', c.to_ascii_lowercase()] } else { vec![c] })
            .collect();
        let way = way.trim_start_matches('-');
        if self.tenths == 10 { way.to_owned() } else { format!("{way}-{}", self.tenths) }
    }

    /// Its effect on this workload; `None` where it would not be seen for certain.
    pub(crate) fn harm(&self, work: &Work) -> Option<Harm> {
        let (fails, slows) = (Some(Harm::Fails), Some(Harm::Slows));
        let few = matches!(work.asks, Asks::Stream | Asks::Requests);
        match self.way {
            // 16 frames prove that a hop forwards; one that forwards none of them is reported and not measured.
            BlackHole | PacketDrop | PacketReject | Corrupt
                if work.asks == Asks::Frames && self.tenths >= 9 =>
            {
                None
            }
            SynDrop if work.opens() => fails,
            SynReset | SynReject if work.opens() || (few && self.hits_each_trial(work)) => fails,
            FlowReset | FlowStall if matches!(work.asks, Asks::Connections | Asks::HttpNew) => fails,
            FlowReset | FlowStall | LateReset | LateStall if few && self.hits_some_flow(work) => fails,
            PacketReset if !work.is_udp() && work.asks != Asks::Connects => fails,
            PacketDrop | Police => match work.asks {
                Asks::Connects => None,
                Asks::Stream | Asks::Requests => slows,
                _ => fails,
            },
            PacketReject if work.is_udp() => fails,
            Corrupt => match work.asks {
                Asks::Connects => None,
                // Few of its bytes, however many of its packets.
                Asks::Stream => slows,
                _ => fails,
            },
            Duplicate | Reorder if matches!(work.asks, Asks::Datagrams | Asks::Frames) => slows,
            Delay if work.asks != Asks::Datagrams => slows,
            Jitter if work.asks != Asks::Stream => slows,
            Throttle => match work.asks {
                Asks::Connects => None,
                Asks::Datagrams | Asks::Frames => fails,
                _ => slows,
            },
            BlackHole if matches!(work.asks, Asks::Stream | Asks::Datagrams) || work.has_server() => fails,
            Unavailable | CloseEarly | HalfBody | NoAnswer if work.has_server() => fails,
            _ => None,
        }
    }

    /// SYNs are counted, so of so many in a row some are hit.
    fn hits_each_trial(&self, work: &Work) -> bool {
        work.flows * self.tenths >= 10 && self.tenths > 1
    }

    /// Connections are hit by a hash of their port: in 99 of 100 trials at least one is.
    fn hits_some_flow(&self, work: &Work) -> bool {
        (1.0 - f64::from(self.tenths) / 10.0).powi(work.flows as i32) < 0.01
    }

    /// So many of ten, spread over them.
    fn counted(&self) -> String {
        let hit: Vec<String> =
            (0..10u32).filter(|n| n * 3 % 10 < self.tenths).map(|n| n.to_string()).collect();
        format!("numgen inc mod 10 {{ {} }}", hit.join(", "))
    }

    /// This share of the packets, each by itself.
    fn random(&self) -> String {
        format!("numgen random mod 10 < {}", self.tenths)
    }

    /// Rules for a chain of nft at `forward`.
    fn rules(&self) -> Vec<String> {
        let flows = |action: &str, after: &str| {
            [("ip daddr $WEIR_RESPONDER", "sport"), ("ip saddr $WEIR_RESPONDER", "dport")].map(
                |(from, port)| {
                    format!("{from} {DATA} {after} jhash tcp {port} mod 10 < {} {action}", self.tenths)
                },
            )
        };
        // The proof of the path must get through to be measured at all: one connection a second does.
        let spare = format!("{SYN} limit rate 1/second burst 1 packets accept");
        // A connection on a schedule of 125 requests a second sends some 25 packets in a trial.
        let (reset, late) = ("reject with tcp reset", "ct original packets > 15");
        match self.way {
            SynDrop => vec![spare, format!("{SYN} jhash tcp sport mod 10 < {} drop", self.tenths)],
            SynReset => vec![format!("{SYN} {} {reset}", self.counted())],
            SynReject => vec![format!("{SYN} {} reject with icmp type admin-prohibited", self.counted())],
            FlowReset => flows(reset, "").into(),
            FlowStall => flows("drop", "").into(),
            LateReset => flows(reset, late).into(),
            LateStall => flows("drop", late).into(),
            PacketReset => vec![format!("meta l4proto tcp {DATA} {} {reset}", self.random())],
            PacketDrop => vec![format!("{DATA} {} drop", self.random())],
            PacketReject => {
                vec![format!(
                    "meta l4proto udp {DATA} {} reject with icmp type port-unreachable",
                    self.random()
                )]
            }
            // Behind a TCP header with time stamps, and behind UDP's.
            Corrupt => [("tcp", 256), ("udp", 64)]
                .map(|(protocol, at)| {
                    format!("meta l4proto {protocol} {DATA} {} @th,{at},32 set 0x0badbeef", self.random())
                })
                .into(),
            Duplicate => {
                vec![format!(
                    "ip daddr $WEIR_RESPONDER meta l4proto udp {DATA} {} dup to $WEIR_RESPONDER",
                    self.random()
                )]
            }
            Police => vec![format!("{DATA} limit rate over 100/second burst 5 packets drop")],
            _ => Vec::new(),
        }
    }

    fn link(&self) -> Option<&'static str> {
        match self.way {
            Delay => Some("{ delay = \"20ms\" }"),
            Jitter => Some("{ delay = \"20ms\", jitter = \"20ms\" }"),
            Reorder => Some("{ reorder = { every = 10, behind = 3 } }"),
            BlackHole => Some("{ mtu = 576, icmp = \"drop\" }"),
            _ => None,
        }
    }

    /// How the server answers.
    fn server(&self) -> &'static str {
        match self.way {
            Unavailable => "unavailable",
            CloseEarly => "close",
            HalfBody => "half",
            NoAnswer => "stall",
            _ => "good",
        }
    }

    /// Its variant in a scenario, with `server` as the program that answers where the workload needs one.
    pub(crate) fn variant(&self, server: Option<&str>) -> String {
        let mut apply = Vec::new();
        if !self.rules().is_empty() {
            let rules = self.rules().join("; ");
            apply.push(format!(
                "nft \"table ip broken {{ chain c {{ type filter hook forward priority 0; {rules}; }}; }}\""
            ));
        }
        if self.way == Throttle {
            apply.push("tc qdisc add dev outside root tbf rate 1mbit burst 4kb latency 20ms".to_owned());
        }
        let remove = ["nft delete table ip broken", "tc qdisc del dev outside root"];
        custom(&self.name(), &apply, &remove, self.link(), server.map(|s| (s, self.server(), self.tenths)))
    }
}

/// The good hop: `routed` itself, or the same with a good server behind it.
pub(crate) fn good(server: Option<&str>) -> String {
    match server {
        None => "[[variant]]\nname = \"good\"\nkind = \"routed\"\n".to_owned(),
        Some(program) => custom("good", &[], &[], None, Some((program, "good", 0))),
    }
}

fn custom(
    name: &str,
    apply: &[String],
    remove: &[&str],
    link: Option<&str>,
    server: Option<(&str, &str, u32)>,
) -> String {
    let list =
        |lines: Vec<String>| lines.iter().map(|line| format!("'''{line}'''")).collect::<Vec<_>>().join(", ");
    let on = ["sysctl -qw net.ipv4.ip_forward=1".to_owned()].into_iter().chain(apply.iter().cloned());
    let off = remove.iter().map(|line| format!("{line} 2>/dev/null || true"));
    let off = off.chain(["sysctl -qw net.ipv4.ip_forward=0".to_owned()]);
    let mut text = format!(
        "[[variant]]\nname = \"{name}\"\nkind = \"custom\"\nseen-source = \"inside\"\napply.gateway = [{}]\n\
         remove.gateway = [{}]\n",
        list(on.collect()),
        list(off.collect())
    );
    if let Some(link) = link {
        text += &format!("link = {link}\n");
    }
    if let Some((program, way, tenths)) = server {
        // The first line says that it listens. One file for each site: the twin has the same name.
        let start = format!(
            "rm -f said.$WEIR_TAG; mkfifo said.$WEIR_TAG; setsid {program} {PORT} {way} {tenths} </dev/null 2>/dev/null \
             >said.$WEIR_TAG & echo $! >pid.$WEIR_TAG; read line <said.$WEIR_TAG"
        );
        let stop =
            "kill $(cat pid.$WEIR_TAG) 2>/dev/null || true; rm -f pid.$WEIR_TAG said.$WEIR_TAG".to_owned();
        text += &format!(
            "apply.responder = [{}]\nremove.responder = [{}]\n",
            list(vec![start]),
            list(vec![stop])
        );
    }
    text
}
