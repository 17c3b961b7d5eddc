//! Rows that published ports without state answer by their design: some ask about a choice or a timer that they do not have.

use super::judge::{meets, not_testable};
use super::{Judgement, Row};
use crate::Observations;
use crate::observed::{Idle, IdleTry, PublishedPort};

/// Rows about the choice of an outside port.
const CHOICE: [&str; 6] = [
    "udp-port-preservation",
    "udp-port-range",
    "udp-parity",
    "udp-port-randomness",
    "udp-port-contiguity",
    "tcp-port-reuse",
];
/// Rows about packets that keep a mapping alive.
const REFRESH: [&str; 3] = ["udp-refresh-out", "udp-refresh-in", "udp-refresh-error"];
const TCP_REFRESH: [&str; 3] = ["tcp-refresh-out", "tcp-refresh-in", "tcp-refresh-reset"];
/// Rows about packets that take a port, and about the end of ports.
const EXHAUSTION: [&str; 10] = [
    "udp-exhaustion-told",
    "udp-exhaustion-dropped",
    "udp-exhaustion-keeps",
    "tcp-exhaustion-told",
    "tcp-exhaustion-dropped",
    "tcp-exhaustion-keeps",
    "udp-host-limit",
    "udp-first-packets",
    "tcp-first-syns",
    "udp-new-mappings",
];

/// The verdict of a row that published ports answer otherwise than mappings which packets make; `None` for all others.
pub(super) fn by_design(row: &Row, o: &Observations) -> Option<Judgement> {
    let ports = o.published.as_ref()?;
    let idle = o.idle.as_ref();
    match row.id {
        id if CHOICE.contains(&id) => {
            Some(not_testable("by design: a published port is configured, and the gateway chooses none"))
        }
        id if EXHAUSTION.contains(&id) => {
            Some(not_testable("by design: published ports are configured, and no packet takes one"))
        }
        id if REFRESH.contains(&id) || TCP_REFRESH.contains(&id) => idle
            .filter(|idle| match REFRESH.contains(&id) {
                true => all_alive(&idle.unanswered) && ports.udp.is_open(),
                false => all_alive(&idle.tcp_established) && ports.tcp.is_open(),
            })
            .map(|_| not_testable("by design: a published port has no timer that a packet could restart")),
        "udp-after-idle" | "tcp-after-idle" => {
            Some(not_testable("by design: a published port does not end while it is configured"))
        }
        "udp-idle-unanswered" => timeless(idle, ports.udp, |idle| &idle.unanswered),
        "udp-idle-answered" | "udp-idle-default" => timeless(idle, ports.udp, |idle| &idle.answered),
        "tcp-idle-opening" => timeless(idle, ports.tcp, |idle| &idle.tcp_opening),
        "tcp-idle-established" => timeless(idle, ports.tcp, |idle| &idle.tcp_established),
        "tcp-idle-half-closed" => timeless(idle, ports.tcp, |idle| &idle.tcp_half_closed),
        "tcp-idle-reset-in" => timeless(idle, ports.tcp, |idle| &idle.tcp_reset_in),
        "tcp-idle-reset-out" => timeless(idle, ports.tcp, |idle| &idle.tcp_reset_out),
        _ => None,
    }
}

/// Some were tried, and each carried its packet.
fn all_alive(tries: &[IdleTry]) -> bool {
    !tries.is_empty() && tries.iter().all(|t| t.alive)
}

/// The port was open before its host had sent anything, and stayed so for as long as was tried.
fn timeless(
    idle: Option<&Idle>,
    port: PublishedPort,
    tries: fn(&Idle) -> &Vec<IdleTry>,
) -> Option<Judgement> {
    let tries = tries(idle?);
    let longest = tries.iter().map(|t| t.idle_s).fold(0.0, f64::max);
    (all_alive(tries) && port.is_open()).then(|| {
        meets(format!(
            "by design without a timer: open before the host sends, and still after {longest:.1} s without packets"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::*;

    #[test]
    fn every_named_row_is_one() {
        for id in CHOICE.iter().chain(&REFRESH).chain(&TCP_REFRESH).chain(&EXHAUSTION) {
            assert!(all().any(|row| row.id == *id), "{id}");
        }
    }
}
