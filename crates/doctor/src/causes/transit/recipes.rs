//! Paths with a fault one hop before or one hop behind the gateway, in a router into which the doctor does not look.

use crate::recipe::{LabHost, Recipe, Step, TcpMode, Traffic};

/// Place of the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// Between the initiator and the gateway.
    Before,
    /// Between the gateway and the responder.
    Behind,
}

/// Puts a router of another operator between the gateway and one end, on the same link: it takes over the gateway's address there. Its own
/// interface is `eth0`, the gateway's `br0`.
fn router(side: Side, script: &str) -> Vec<Step> {
    let (net, link, end) = match side {
        Side::Before => ("198.18", "inside", LabHost::Initiator),
        Side::Behind => ("198.19", "outside", LabHost::Responder),
    };
    vec![
        Step::Host { name: "far-router", to: LabHost::Gateway, there: "far0", here: "eth0" },
        Step::RunOn(
            "far-router",
            format!(
                "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1; ip addr add {net}.1.2/24 dev eth0; \
                 ip addr add {net}.0.1/24 dev eth0; ip route add default via {net}.1.1; \
                 sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.eth0.send_redirects=0; {script}"
            ),
        ),
        Step::gateway(format!(
            "ip addr flush dev {link}; ip link add br0 type bridge; ip link set br0 up; \
                 ip link set {link} master br0; ip link set far0 master br0; \
                 ip addr add {net}.1.1/24 dev br0; ip route add {net}.0.0/24 via {net}.1.2"
        )),
        Step::Run(end, "ip neigh flush dev eth0 nud permanent".into()),
    ]
}

/// The gateway masquerades what leaves by the way to the router.
fn masquerade() -> Step {
    let rules = "nft 'add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; \
                 add rule ip nat post oifname br0 masquerade'";
    Step::gateway(rules)
}

/// A rule of the router.
fn rule(rule: &str) -> String {
    format!(
        "nft 'add table ip f; add chain ip f c {{ type filter hook forward priority 0; }}; add rule ip f c {rule}'"
    )
}

fn recipe(name: &'static str, setup: Vec<Step>, traffic: Vec<Traffic>) -> Recipe {
    Recipe { name, alone: true, setup, traffic, needs: vec!["nft"], ..Recipe::default() }
}

fn server(port: u16, mode: TcpMode) -> Traffic {
    Traffic::TcpServer { port, backlog: 256, mode }
}

fn to(port: u16) -> String {
    format!("198.19.0.2:{port}")
}

/// Eight streams with 40 Mbit/s in all.
fn streams() -> Vec<Traffic> {
    let bulk = Traffic::Bulk { to: to(9001), streams: 8, rate_bps: Some(40_000_000) };
    vec![server(9001, TcpMode::Sink), bulk]
}

const LOSS: &str = "meta l4proto tcp numgen random mod 1000 < 20 drop";

pub(super) fn loss_behind() -> Vec<Recipe> {
    let routed = router(Side::Behind, &rule(LOSS));
    let bursts = router(Side::Behind, &rule("meta l4proto tcp numgen inc mod 250 < 5 drop"));
    let back = router(Side::Behind, &rule(&format!("ip saddr 198.19.0.2 {LOSS}")));
    let answers = Traffic::Exchange { to: to(9002), rate: 2000, bytes: 1000 };
    vec![
        recipe("masquerade", [routed.clone(), vec![masquerade()]].concat(), streams()),
        recipe("routed", routed, streams()),
        recipe("bursts", bursts, streams()),
        recipe("answers", back, vec![server(9002, TcpMode::Echo), answers.clone(), answers]),
    ]
}

pub(super) fn loss_before() -> Vec<Recipe> {
    let routed = router(Side::Before, &rule(LOSS));
    let fast = Recipe {
        setup: [routed.clone(), vec![Step::masquerade()]].concat(),
        ..recipe("masquerade", Vec::new(), streams())
    };
    vec![recipe("routed", routed, streams()), fast]
}

/// A link of 8 Mbit/s with a queue of half a second, and bursts of a second that fill it, with pauses in which it runs empty: a queue that is
/// full all the time is a long path. The queue is met by what passes the gateway first: uploads behind it, downloads before it.
pub(super) fn queue() -> Vec<Recipe> {
    let recipe = |name, side, mode, burst: &str| {
        let slow = router(side, "tc qdisc add dev eth0 root tbf rate 8mbit burst 16kb limit 500000");
        let bursts = format!(
            "burst() {{ exec 3<>/dev/tcp/198.19.0.2/9001; {burst}; }}; export -f burst; \
             while true; do for n in 1 2 3; do bash -c burst & done; sleep 2; done"
        );
        let traffic = vec![
            server(9001, mode),
            server(9002, TcpMode::Echo),
            Traffic::Exchange { to: to(9002), rate: 20, bytes: 100 },
            in_bash(&bursts),
        ];
        Recipe { needs: vec!["tc", "bash"], ..recipe(name, slow, traffic) }
    };
    vec![
        recipe("behind", Side::Behind, TcpMode::Sink, "head -c 350000 /dev/zero >&3"),
        recipe("before", Side::Before, TcpMode::Source, "head -c 350000 <&3 >/dev/null"),
    ]
}

/// A script of the initiator that uses what bash has beyond sh.
fn in_bash(script: &str) -> Traffic {
    Traffic::Script(LabHost::Initiator, format!("exec bash -c {}", quoted(script)))
}

/// Between single quotes, which the scripts here have none of.
fn quoted(script: &str) -> String {
    format!("'{script}'")
}

/// The router passes short packets alone, and says nothing. Before the gateway it does so to what comes from there, as otherwise none of
/// the long ones passes the gateway.
pub(super) fn mtu() -> Vec<Recipe> {
    let silent = |side| {
        router(
            side,
            &rule(match side {
                Side::Behind => "meta length > 1000 drop",
                Side::Before => "ip daddr 198.18.0.2 meta length > 1000 drop",
            }),
        )
    };
    let traffic = vec![
        server(9002, TcpMode::Echo),
        Traffic::Connects { to: to(9002), rate: 10, bytes: 4000, hold: false },
        Traffic::Exchange { to: to(9002), rate: 100, bytes: 200 },
    ];
    vec![
        recipe("masquerade", [silent(Side::Behind), vec![masquerade()]].concat(), traffic.clone()),
        recipe("before", silent(Side::Before), traffic),
    ]
}

pub(super) fn unanswered() -> Vec<Recipe> {
    let wall = router(Side::Behind, &rule("tcp dport 9002 drop"));
    let traffic = [
        streams(),
        vec![
            server(9002, TcpMode::Echo),
            Traffic::Connects { to: to(9002), rate: 20, bytes: 100, hold: false },
        ],
    ];
    vec![recipe("default", wall, traffic.concat())]
}

/// The router before the gateway passes nothing to the initiator but what it knows already: the answers to SYNs vanish.
pub(super) fn half_open() -> Vec<Recipe> {
    let wall = router(Side::Before, &rule("ip daddr 198.18.0.2 drop"));
    let traffic = vec![
        server(9002, TcpMode::Echo),
        Traffic::Connects { to: to(9002), rate: 20, bytes: 100, hold: false },
    ];
    vec![recipe("default", wall, traffic)]
}

/// A router that rejects the data of connections, in the name of the server.
pub(super) fn resets() -> Vec<Recipe> {
    let wall = router(Side::Behind, &rule("tcp dport 9002 meta length > 120 reject with tcp reset"));
    let traffic = vec![
        server(9002, TcpMode::Echo),
        Traffic::Connects { to: to(9002), rate: 50, bytes: 400, hold: false },
    ];
    vec![recipe("default", wall, traffic)]
}

/// Connections to a program that accepts and never reads, each for one and a half seconds.
pub(super) fn receiver() -> Vec<Recipe> {
    let fill = "fill() { exec 3<>/dev/tcp/198.19.0.2/9003; cat /dev/zero >&3; }; export -f fill; \
                while true; do timeout 1.5 bash -c fill & timeout 1.5 bash -c fill; done";
    let traffic = vec![server(9003, TcpMode::Deaf), in_bash(fill)];
    let setup = router(Side::Behind, "true");
    vec![Recipe { needs: vec!["bash"], ..recipe("default", setup, traffic) }]
}
