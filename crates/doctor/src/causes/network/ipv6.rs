//! IPv6 for the self-test's lab, which has only IPv4 by itself.

use crate::recipe::{LabHost, Step, Traffic};

/// The responder's address.
pub(super) const RESPONDER: &str = "2001:2:0:1::2";

/// Gives the three hosts addresses of RFC 5180 and routes, and lets the gateway forward.
pub(super) fn steps() -> Vec<Step> {
    let on = |interface: &str, address: &str| {
        format!(
            "sysctl -qw net.ipv6.conf.{interface}.disable_ipv6=0; ip -6 addr add {address}/64 dev {interface} nodad; "
        )
    };
    let all = "sysctl -qw net.ipv6.conf.all.disable_ipv6=0; ";
    vec![
        Step::gateway([all, &on("inside", "2001:2::1"), &on("outside", "2001:2:0:1::1")].concat()),
        Step::gateway("sysctl -qw net.ipv6.conf.all.forwarding=1"),
        Step::initiator([all, &on("eth0", "2001:2::2"), "ip -6 route add default via 2001:2::1"].concat()),
        Step::responder([all, &on("eth0", RESPONDER), "ip -6 route add default via 2001:2:0:1::1"].concat()),
    ]
}

/// Those steps, and a script in the gateway.
pub(super) fn with(script: &str) -> Vec<Step> {
    let mut all = steps();
    all.push(Step::gateway(script));
    all
}

/// Datagrams from the initiator.
pub(super) fn udp(to: &str, size: usize, dont_fragment: bool) -> Traffic {
    let to = format!("[{to}]:7000");
    Traffic::Udp { from: LabHost::Initiator, to, size, rate: 300, flows: 4, dont_fragment }
}
