//! Loads that any good host has.

use weir_doctor::recipe::{FastPathSetup, LabHost, Recipe, Step, TcpMode, Traffic, UdpMode};

use crate::case::{Case, Kind};

/// The place of the responder.
const RESPONDER: &str = "198.19.0.2";

/// All of them, through a gateway that only routes, one that tracks and masquerades, and one whose masquerading is carried by the fast
/// path.
pub(crate) fn loads() -> Vec<Case> {
    let loads: [(&str, Vec<Traffic>); 6] = [
        ("idle", Vec::new()),
        ("bulk", bulk()),
        ("udp", udp()),
        ("connections", connections()),
        ("scan", scan()),
        ("exchange", exchange()),
    ];
    let mut cases = Vec::new();
    let masquerade = vec![Step::masquerade()];
    let fast = Step::FastPath(LabHost::Gateway, FastPathSetup::default());
    let gateways = [
        ("routed", Vec::new()),
        ("fastpath", [masquerade.clone(), vec![fast]].concat()),
        ("masquerade", masquerade),
    ];
    for (gateway, setup) in gateways {
        for (name, traffic) in &loads {
            let recipe = Recipe { name, setup: setup.clone(), traffic: traffic.clone(), ..Recipe::default() };
            cases.push(Case {
                name: format!("healthy-{name}/{gateway}"),
                kind: Kind::Healthy,
                expected: Vec::new(),
                recipes: vec![recipe],
            });
        }
    }
    cases
}

/// TCP as fast as it goes.
fn bulk() -> Vec<Traffic> {
    vec![
        Traffic::TcpServer { port: 9001, backlog: 16, mode: TcpMode::Sink },
        Traffic::Bulk { to: format!("{RESPONDER}:9001"), streams: 2, rate_bps: None },
    ]
}

/// UDP well below what the path carries.
fn udp() -> Vec<Traffic> {
    vec![
        Traffic::UdpServer {
            on: LabHost::Responder,
            port: 9002,
            buffer: Some(16 << 20),
            mode: UdpMode::Sink,
        },
        Traffic::udp(&format!("{RESPONDER}:9002"), 512, 10_000, 16),
    ]
}

/// 5,000 short connections a second.
fn connections() -> Vec<Traffic> {
    vec![
        Traffic::TcpServer { port: 9003, backlog: 4096, mode: TcpMode::Echo },
        Traffic::Connects { to: format!("{RESPONDER}:9003"), rate: 5000, bytes: 64, hold: false },
    ]
}

/// A port scan: SYNs and datagrams to ports without a listener.
fn scan() -> Vec<Traffic> {
    vec![Traffic::Frames { from: LabHost::Initiator, rate: 200, frames: scan_frames }]
}

fn scan_frames(own: [u8; 6], peer: [u8; 6]) -> Vec<Vec<u8>> {
    let ends = |port| (([198, 18, 0, 2].into(), 40_000), ([198, 19, 0, 2].into(), port));
    (1..=600)
        .map(|port| {
            let (from, to) = ends(port);
            weir_doctor::recipe::frames::syn(own, peer, from, to)
        })
        .collect()
}

/// Small messages, as a chat or a database has them.
fn exchange() -> Vec<Traffic> {
    vec![
        Traffic::TcpServer { port: 9004, backlog: 16, mode: TcpMode::Echo },
        Traffic::Exchange { to: format!("{RESPONDER}:9004"), rate: 500, bytes: 100 },
    ]
}
