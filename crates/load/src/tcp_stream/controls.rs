//! Noticing that full segments vanish.
//!
//! Some paths carry only small packets, and no router reports it (RFC 2923 section 2.1). Then a connection stands, its greeting
//! arrives, and nothing of its stream does. So if no stream of a direction got anything through, controls follow: connections
//! that are held to segments of several sizes (TCP_MAXSEG, in both directions), each of which carries one full segment in that
//! direction. TCP itself retransmits segments that are lost by chance.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use weir_mtu::verdict::clamp;
use weir_record::{PathCause, PathFinding};
use weir_text::units::count;

use super::TcpStreamWork;
use super::handshake::{self, Hello};
use super::send::LOOK;
use crate::pace::Ending;
use crate::socket::{TcpOptions, abort_on_close, await_readable, connect_tcp, tcp_info, timed_out};
use crate::udp_stream::LENGTHS;
use crate::{Direction, Part, TrialSettings};

/// Ethernet's own, beside [`LENGTHS`] and that of the stream: behind a link of longer packets.
const ETHERNET: u32 = 1500;
/// Most controls in one direction: one of each length.
pub(super) const MOST: u32 = LENGTHS.len() as u32 + 2;
/// Time for one control. A segment is sent again after 200 ms and the round trip, then after twice as long each (RFC 6298
/// section 5.5): three times within it.
const PATIENCE: Duration = Duration::from_secs(2);
/// The largest segment that TCP_MAXSEG can be set to (MAX_TCP_WINDOW of the kernel's include/net/tcp.h).
const LARGEST_SEGMENT: u32 = 32_767;
/// The reply of a control's receiver when the control is whole.
const WHOLE: u8 = b'W';

/// Bytes of IP and TCP headers without options, which a segment's size is reckoned without (RFC 6691).
fn headers(ipv6: bool) -> u32 {
    if ipv6 { 60 } else { 40 }
}

/// Length of the IP packets that a stream over this connection sends, as long as nothing else is known of the path.
pub(super) fn packet_bytes(work: &TcpStreamWork, connection: &TcpStream) -> Option<u32> {
    let ipv6 = connection.peer_addr().ok()?.is_ipv6();
    let largest = work.mss.map_or(LARGEST_SEGMENT, u32::from);
    Some(tcp_info(connection).ok()?.pmtu.min(largest + headers(ipv6)))
}

/// Which lengths of IP packets arrived.
#[derive(Debug)]
pub(super) struct Controls {
    ipv6: bool,
    arrived: BTreeMap<u32, bool>,
}

/// Sends a control of each length up to that of the stream's packets, all at once.
pub(super) fn send(setting: &TrialSettings, target: SocketAddr, way: Direction, longest: u32) -> Controls {
    let ipv6 = target.is_ipv6();
    let mut arrived: BTreeMap<u32, bool> = LENGTHS
        .into_iter()
        .chain([ETHERNET, longest])
        .filter(|l| *l <= longest)
        .map(|l| (l, false))
        .collect();
    std::thread::scope(|scope| {
        for (length, arrived) in &mut arrived {
            let segment = length.saturating_sub(headers(ipv6));
            // Without a thread it counts as lost, like all others then: the smallest must arrive for any to be missed.
            let _ = std::thread::Builder::new().name("tcp-control".into()).spawn_scoped(scope, move || {
                *arrived = one(setting, target, way, segment).is_ok();
            });
        }
    });
    Controls { ipv6, arrived }
}

/// A control with one full segment of that size.
fn one(setting: &TrialSettings, target: SocketAddr, way: Direction, segment: u32) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let left = || deadline.saturating_duration_since(Instant::now());
    let mss = u16::try_from(segment).map_err(io::Error::other)?;
    let options = TcpOptions { mss: Some(mss), nodelay: true, ..TcpOptions::default() };
    let mut connection = connect_tcp(target, &options, left(), &setting.stop)?;
    abort_on_close(&connection)?;
    let egress = way == Direction::Egress;
    let hello = Hello { cookie: setting.cookie, stream: segment, egress, control: true };
    handshake::introduce(&connection, hello, left(), &|| setting.stop.raised())?;
    // With TCP's options in its packets a segment of the full size holds a little less: the rest goes in a second one.
    let mut bytes = vec![0; segment as usize];
    let wanted = if egress {
        connection.write_all(&bytes)?;
        &mut bytes[..1]
    } else {
        &mut bytes[..]
    };
    let mut came = 0;
    while came < wanted.len() {
        await_readable(&connection, left(), &setting.stop)?;
        match connection.read(&mut wanted[came..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => came += n,
        }
    }
    if egress && wanted[0] != WHOLE { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
}

/// The responder's end of one, which has been welcomed.
pub(super) fn serve(mut connection: &TcpStream, hello: Hello, ending: &Ending) -> io::Result<()> {
    abort_on_close(connection)?;
    connection.set_read_timeout(Some(LOOK))?;
    // No control is larger than the largest segment.
    let mut bytes = vec![0; hello.stream.min(LARGEST_SEGMENT) as usize];
    // The initiator closes a control that it has read; this end answers one that the initiator has written.
    let wanted = if hello.egress {
        bytes.len()
    } else {
        connection.write_all(&bytes)?;
        usize::MAX
    };
    let deadline = Instant::now() + PATIENCE;
    let mut came = 0;
    while came < wanted && !ending.raised() && Instant::now() < deadline {
        match connection.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(n) => came += n,
            Err(e) if timed_out(&e) => {}
            Err(e) => return Err(e),
        }
    }
    if came < wanted {
        return Err(io::ErrorKind::TimedOut.into());
    }
    connection.write_all(&[WHOLE])?;
    // Closed by a reset, which would overtake the answer, when the initiator has closed.
    while !ending.raised() && Instant::now() < deadline {
        match connection.read(&mut bytes) {
            Err(e) if timed_out(&e) => {}
            _ => break,
        }
    }
    Ok(())
}

impl Controls {
    /// Into a part, for the direction `way`.
    pub(super) fn tell(&self, part: &mut Part, way: Direction) {
        part.set(&format!("{way}_control_headers_bytes"), headers(self.ipv6).into());
        for (length, arrived) in &self.arrived {
            part.set(&format!("{way}_control_arrived_{length}"), f64::from(u8::from(*arrived)));
        }
    }
}

/// Combines the initiators' controls into a finding about a direction in which nothing got through.
pub(super) fn finding(initiators: &[Part], way: Direction) -> Option<PathFinding> {
    let (named, mut arrived) = (format!("{way}_control_arrived_"), BTreeMap::<u32, bool>::new());
    for (name, value) in initiators.iter().flat_map(|part| &part.values) {
        if let Some(length) = name.strip_prefix(&named).and_then(|l| l.parse().ok()) {
            // With several initiators the worst path counts.
            *arrived.entry(length).or_insert(true) &= *value > 0.0;
        }
    }
    let headers_name = format!("{way}_control_headers_bytes");
    let own = initiators.iter().find_map(|part| part.values.get(&headers_name)).copied()? as u32;
    let longest = arrived.iter().take_while(|(_, arrived)| **arrived).map(|(l, _)| *l).last()?;
    // All beyond it vanish, or else it is not their length.
    let (shortest_lost, _) = arrived.range(longest + 1..).next()?;
    if arrived.range(longest + 1..).any(|(_, arrived)| *arrived) {
        return None;
    }
    let mss = longest - own;
    let summary = format!(
        "path MTU black hole: TCP connects and then nothing moves {way}: packets of {} bytes and more vanish, those of up to {} \
         arrive, and no ICMP too-big says so; clamp TCP's MSS to {}",
        count(*shortest_lost),
        count(longest),
        count(mss)
    );
    let seen: Vec<String> = arrived
        .iter()
        .map(|(length, arrived)| format!("{} {}", count(*length), if *arrived { "arrived" } else { "lost" }))
        .collect();
    let advice = vec![
        format!("full segments in packets of so many bytes, {way}: {}", seen.join(", ")),
        clamp(own == headers(true), mss),
        "or on the hosts: sysctl net.ipv4.tcp_mtu_probing=1 (RFC 4821)".to_owned(),
        "weir mtu TARGET finds the exact limit, and behind which hop it is".to_owned(),
    ];
    Some(PathFinding { cause: PathCause::PathMtuBlackHole, summary, advice })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(ipv6: bool, lengths: &[(u32, bool)]) -> Part {
        let mut part = Part::default();
        Controls { ipv6, arrived: lengths.iter().copied().collect() }.tell(&mut part, Direction::Ingress);
        part
    }

    #[test]
    fn the_longest_that_arrives_names_the_segment_s_size() {
        let part = seen(false, &[(576, true), (1280, true), (1400, true), (1420, false), (1500, false)]);
        let found = finding(&[part], Direction::Ingress).unwrap();
        assert_eq!(found.cause, PathCause::PathMtuBlackHole);
        assert_eq!(
            found.summary,
            "path MTU black hole: TCP connects and then nothing moves ingress: packets of 1,420 bytes and more vanish, those of up to \
             1,400 arrive, and no ICMP too-big says so; clamp TCP's MSS to 1,360"
        );
        assert!(found.advice[1].contains("maxseg size set 1360"), "{:?}", found.advice);
        let part = seen(true, &[(1280, true), (1500, false)]);
        let found = finding(&[part], Direction::Ingress).unwrap();
        assert!(found.summary.ends_with("to 1,220"), "{}", found.summary);
    }

    #[test]
    fn of_several_paths_the_worst_counts() {
        let parts = [seen(false, &[(576, true), (1400, true)]), seen(false, &[(576, true), (1400, false)])];
        assert!(finding(&parts, Direction::Ingress).unwrap().summary.ends_with("to 536"));
    }

    #[test]
    fn without_a_length_to_blame_there_is_no_finding() {
        for lengths in [
            vec![],
            vec![(576, false), (1500, false)],
            vec![(576, true), (1500, true)],
            // Something in between is lost: not by its length.
            vec![(576, true), (1280, false), (1500, true)],
        ] {
            assert_eq!(finding(&[seen(false, &lengths)], Direction::Ingress), None, "{lengths:?}");
        }
        let part = seen(false, &[(576, true), (1500, false)]);
        assert_eq!(finding(&[part], Direction::Egress), None);
        assert_eq!(finding(&[], Direction::Ingress), None);
    }
}
