//! How a NAT chooses outside ports, and what happens when it has none left.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use weir_text::order;

use super::ServerEnds;
use crate::session::{CONTROL_PORT, Session};
use crate::{Ends, Packet, Side};

/// Inside ports that are used: between those of services and the end.
const LOWEST: u16 = 1_024;
/// Distance of inside ports that follow each other in time, coprime to their number: a NAT that counts differs from one that keeps
/// ports or shifts them.
const STRIDE: u64 = 28_657;
/// Packets between two looks at what arrived, and the pause after them: 1,250 a second.
const BATCH: usize = 50;
const PAUSE: Duration = Duration::from_millis(40);
/// Batches between two packets that keep the control packets' mapping: 4 s.
const KEEP_EVERY: usize = 100;
/// How often a packet is sent that did not arrive.
const ATTEMPTS: u32 = 3;
/// Fewer ports say nothing about the choice.
const LEAST: usize = 16;
/// Share of the ports that must agree with a kind of choice.
const MOST_OF_THEM: f64 = 0.9;
/// Most by which a port that is counted upwards exceeds the one before: other hosts take some too.
const COUNTED: u16 = 4;
/// A block is narrower than that; ports at random over all of them are spread wider (RFC 6888 calls blocks of 500 to 2,000 usual).
const BLOCK: u16 = 16_384;
/// Mappings that are asked at the end whether they are still there.
const WITNESSES: usize = 8;

/// One inside port and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PortTranslation {
    /// Inside port.
    pub inside: u16,
    /// Address and port that the server saw; `None` if nothing arrived.
    pub outside: Option<SocketAddr>,
}

/// The kind of choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PortChoice {
    /// The inside port, for nine of ten or more.
    Preserved,
    /// The inside port for some, another one for the others.
    PartlyPreserved,
    /// Counted upwards or downwards.
    Sequential,
    /// Any of one block of ports that lie together.
    Block,
    /// None of these: spread over the ports.
    Spread,
    /// Too few arrived.
    Unknown,
}

/// The end of the survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EndOfPorts {
    /// All got a port: the limit was reached first.
    NotReached,
    /// After some packets, no other got through.
    Silence,
    /// Some were lost in between, with others after them.
    SomeLost,
    /// Ports were given away again: two inside ports had one outside port.
    Shared,
    /// Control packets were lost too.
    NotSure,
}

/// The ports of one host to one destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PortSurvey {
    /// The destination.
    pub to: SocketAddr,
    /// Inside ports that were tried.
    pub asked: usize,
    /// Those of which a packet arrived.
    pub arrived: usize,
    /// Different outside addresses and ports.
    pub distinct: usize,
    /// Outside addresses, and the lowest and highest port of each.
    pub ranges: BTreeMap<IpAddr, (u16, u16)>,
    /// How ports are chosen.
    pub choice: PortChoice,
    /// The end of the survey.
    pub end: EndOfPorts,
    /// Mappings of the beginning that were asked at the end.
    pub witnesses: usize,
    /// Those that were still there.
    pub witnesses_alive: usize,
    /// Each inside port, in the order in which they were tried.
    pub translations: Vec<PortTranslation>,
}

/// Sends from `limit` inside ports to one endpoint of the server, each a datagram.
///
/// # Errors
/// If the system refuses, or the server is gone.
pub fn survey(
    ends: &mut ServerEnds,
    limit: usize,
    step: &mut dyn FnMut(usize) -> bool,
) -> io::Result<PortSurvey> {
    let own = ends.conditions().inside[0];
    let to = SocketAddr::new(ends.conditions().outside[0], ends.outside_port(CONTROL_PORT));
    // The control packets' mapping must be there before no port is left, and stay.
    let control = Packet::udp(SocketAddr::new(own, CONTROL_PORT), to, b"keep");
    let inside = inside_ports(ends, limit);
    let mut seen: Vec<Option<SocketAddr>> = vec![None; inside.len()];
    for attempt in 0..ATTEMPTS {
        let missing: Vec<usize> = (0..inside.len()).filter(|n| seen[*n].is_none()).collect();
        for (batch, numbers) in missing.chunks(BATCH).enumerate() {
            if attempt == 0 && !step(batch * BATCH) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "stopped"));
            }
            if batch % KEEP_EVERY == 0 {
                ends.send(Side::Inside, &control)?;
            }
            for n in numbers {
                let packet = Packet::udp(SocketAddr::new(own, inside[*n]), to, &mark(*n));
                ends.send(Side::Inside, &packet)?;
                if *n >= WITNESSES {
                    ends.close(inside[*n]);
                }
            }
            listen(ends, PAUSE, &mut seen)?;
        }
        if !missing.is_empty() {
            let patience = ends.conditions().patience;
            listen(ends, patience, &mut seen)?;
        }
    }
    let alive = ask_witnesses(ends, to, &inside, &mut seen)?;
    let (sure, late) = Session::new(ends).path_is_alive()?;
    late.iter().for_each(|arrival| note(arrival, &mut seen));
    let pairs = inside.iter().zip(&seen);
    let translations = pairs.map(|(inside, outside)| PortTranslation { inside: *inside, outside: *outside });
    Ok(judge(to, translations.collect(), alive, sure))
}

/// So many inside ports that this host may use, in an order that no NAT counts in.
fn inside_ports(ends: &ServerEnds, limit: usize) -> Vec<u16> {
    let count = u64::from(u16::MAX - LOWEST) + 1;
    // The stride is a prime that does not divide their number: each comes once.
    let all = (0..count).map(|n| LOWEST + ((u64::from(ends.first_port()) + n * STRIDE) % count) as u16);
    all.filter(|port| *port != CONTROL_PORT && ends.is_free(*port)).take(limit).collect()
}

/// The mark by which a packet of the survey is known.
fn mark(n: usize) -> [u8; 8] {
    let mut mark = *b"port\0\0\0\0";
    mark[4..].copy_from_slice(&(n as u32).to_be_bytes());
    mark
}

fn note(arrival: &crate::Arrival, seen: &mut [Option<SocketAddr>]) {
    let (Side::Outside, Some(data)) = (arrival.side, arrival.packet.udp_data()) else { return };
    let Some(number) = data.strip_prefix(b"port").and_then(|rest| rest.first_chunk::<4>()) else { return };
    if let Some(seen) = seen.get_mut(u32::from_be_bytes(*number) as usize) {
        // The first one counts: another attempt may have got another port.
        *seen = seen.or(arrival.packet.from());
    }
}

fn listen(ends: &mut ServerEnds, time: Duration, seen: &mut [Option<SocketAddr>]) -> io::Result<()> {
    let deadline = ends.now() + time;
    while let Some(arrival) = ends.receive(deadline)? {
        note(&arrival, seen);
    }
    Ok(())
}

/// Sends to the first mappings: how many were asked, and how many are still there.
fn ask_witnesses(
    ends: &mut ServerEnds,
    to: SocketAddr,
    inside: &[u16],
    seen: &mut [Option<SocketAddr>],
) -> io::Result<(usize, usize)> {
    let mapped: Vec<(u16, SocketAddr)> = (inside.iter().zip(seen.iter()).take(WITNESSES))
        .filter_map(|(inside, seen)| seen.map(|seen| (*inside, seen)))
        .collect();
    let mut alive = BTreeSet::new();
    for _ in 0..ATTEMPTS {
        for (port, mapped) in mapped.iter().filter(|(port, _)| !alive.contains(port)) {
            ends.send(Side::Outside, &Packet::udp(to, *mapped, &mark(usize::from(*port))))?;
        }
        let deadline = ends.now() + ends.conditions().patience;
        while let Some(arrival) = ends.receive(deadline)? {
            note(&arrival, seen);
            alive.extend(arrival.packet.to().filter(|_| arrival.side == Side::Inside).map(|to| to.port()));
        }
    }
    let alive = mapped.iter().filter(|(port, _)| alive.contains(port)).count();
    Ok((mapped.len(), alive))
}

fn judge(
    to: SocketAddr,
    translations: Vec<PortTranslation>,
    (witnesses, witnesses_alive): (usize, usize),
    sure: bool,
) -> PortSurvey {
    let outside: Vec<SocketAddr> = translations.iter().filter_map(|t| t.outside).collect();
    let distinct = order::set(&outside);
    let mut ranges: BTreeMap<IpAddr, (u16, u16)> = BTreeMap::new();
    for seen in &outside {
        let range = ranges.entry(seen.ip()).or_insert((seen.port(), seen.port()));
        *range = (range.0.min(seen.port()), range.1.max(seen.port()));
    }
    let lost = translations.len() - outside.len();
    let last = translations.iter().rposition(|t| t.outside.is_some());
    let end = if distinct.len() < outside.len() {
        EndOfPorts::Shared
    } else if lost == 0 {
        EndOfPorts::NotReached
    } else if !sure {
        EndOfPorts::NotSure
    } else if last.is_some_and(|last| last + 1 == outside.len()) {
        EndOfPorts::Silence
    } else {
        EndOfPorts::SomeLost
    };
    PortSurvey {
        to,
        asked: translations.len(),
        arrived: outside.len(),
        distinct: distinct.len(),
        choice: choice(&translations, &ranges),
        ranges,
        end,
        witnesses,
        witnesses_alive,
        translations,
    }
}

fn choice(translations: &[PortTranslation], ranges: &BTreeMap<IpAddr, (u16, u16)>) -> PortChoice {
    let seen: Vec<(u16, SocketAddr)> =
        translations.iter().filter_map(|t| t.outside.map(|outside| (t.inside, outside))).collect();
    if seen.len() < LEAST {
        return PortChoice::Unknown;
    }
    let share = |n: usize, of: usize| n as f64 / of as f64;
    let kept = share(seen.iter().filter(|(inside, outside)| *inside == outside.port()).count(), seen.len());
    if kept >= MOST_OF_THEM {
        return PortChoice::Preserved;
    }
    if kept >= 1.0 - MOST_OF_THEM {
        return PortChoice::PartlyPreserved;
    }
    // Each address has ports of its own.
    let mut last: BTreeMap<IpAddr, u16> = BTreeMap::new();
    let (mut up, mut down, mut steps) = (0, 0, 0);
    for (_, outside) in &seen {
        let Some(before) = last.insert(outside.ip(), outside.port()) else { continue };
        steps += 1;
        up += usize::from((1..=COUNTED).contains(&outside.port().wrapping_sub(before)));
        down += usize::from((1..=COUNTED).contains(&before.wrapping_sub(outside.port())));
    }
    if steps > 0 && share(up.max(down), steps) >= MOST_OF_THEM {
        return PortChoice::Sequential;
    }
    let narrow = ranges.values().all(|(low, high)| high - low < BLOCK);
    if narrow { PortChoice::Block } else { PortChoice::Spread }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(outside: impl Fn(u16, u16) -> Option<u16>) -> PortSurvey {
        let translations = (0..100_u16).map(|n| {
            let inside = 2_000 + (u32::from(n) * 7_919 % 40_000) as u16;
            let outside = outside(n, inside).map(|port| SocketAddr::new(IpAddr::from([192, 0, 2, 1]), port));
            PortTranslation { inside, outside }
        });
        judge("192.0.2.9:9348".parse().unwrap(), translations.collect(), (8, 8), true)
    }

    #[test]
    fn each_kind_of_choice_is_known() {
        let scattered = |n: u16| 1_024 + ((u32::from(n) * 40_503) % 64_000) as u16;
        for (choice, survey) in [
            (PortChoice::Preserved, of(|_, inside| Some(inside))),
            (PortChoice::Preserved, of(|n, inside| Some(if n % 20 == 0 { 1 + n } else { inside }))),
            (
                PortChoice::PartlyPreserved,
                of(|n, inside| Some(if n % 2 == 0 { scattered(n) } else { inside })),
            ),
            (PortChoice::Sequential, of(|n, _| Some(5_000 + n))),
            (PortChoice::Sequential, of(|n, _| Some(5_000 - 2 * n))),
            (PortChoice::Block, of(|n, _| Some(30_000 + scattered(n) % 2_048))),
            (PortChoice::Spread, of(|n, _| Some(scattered(n)))),
            // Shifted by a fixed number, which is no kind of its own.
            (PortChoice::Spread, of(|_, inside| Some(inside + 1_000))),
            (PortChoice::Unknown, of(|n, inside| (n < 10).then_some(inside))),
        ] {
            assert_eq!(survey.choice, choice, "{survey:?}");
        }
    }

    #[test]
    fn the_end_is_told_from_loss_in_between() {
        assert_eq!(of(|n, _| Some(5_000 + n)).end, EndOfPorts::NotReached);
        let silence = of(|n, _| (n < 60).then_some(5_000 + n));
        assert_eq!((silence.end, silence.arrived, silence.distinct), (EndOfPorts::Silence, 60, 60));
        assert_eq!(of(|n, _| (n != 50).then_some(5_000 + n)).end, EndOfPorts::SomeLost);
        let shared = of(|n, _| Some(5_000 + n % 60));
        assert_eq!((shared.end, shared.arrived, shared.distinct), (EndOfPorts::Shared, 100, 60));
        let address = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(shared.ranges, BTreeMap::from([(address, (5_000, 5_059))]));
    }
}
