//! Openings of TCP connections other than the usual one.

use std::io;
use std::time::Duration;

use weir_wire::Tcp;

use super::filtering::answered;
use crate::observed::{Simultaneous, Unsolicited};
use crate::session::{Protocol, Segment, Session};
use crate::{Observations, Packet, Side};

/// RFC 5382 REQ-4: how long a NAT keeps silent about a SYN, and some more to see that it does.
const SILENCE: Duration = Duration::from_millis(6_200);

/// RFC 5382 section 4.2: both ends send a SYN before either has seen the other's.
pub(super) fn simultaneous(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let inside = session.fresh_inside();
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let out = session.outbound(Protocol::Tcp, inside, far)?;
    let mut seen = Simultaneous {
        syn_out: out.arrived.is_some(),
        syn_in: false,
        answer_out: false,
        answer_in: false,
        sure: out.is_sure(),
    };
    if let Some(mapped) = out.from() {
        let within = session.inbound(Protocol::Tcp, far, mapped)?;
        seen.syn_in = within.to() == Some(inside);
        let (near, away) = (session.sequence_of(inside, far), session.sequence_of(far, mapped));
        let flags = Tcp::SYN | Tcp::ACK;
        let segment =
            |sequence: u32, other: u32| Segment { sequence, acknowledgement: other.wrapping_add(1), flags };
        let out = session.segment(Side::Inside, inside, far, segment(near, away))?;
        seen.answer_out = out.from() == Some(mapped);
        let back = session.segment(Side::Outside, far, mapped, segment(away, near))?;
        seen.answer_in = back.to() == Some(inside);
        seen.sure = within.is_sure() && out.is_sure() && back.is_sure();
    }
    observations.tcp_simultaneous = Some(seen);
    Ok(())
}

/// RFC 5382 section 4.3: a SYN to a port of the NAT's address that it has not given to a mapping.
pub(super) fn unsolicited(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let inside = session.fresh_inside();
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let Some(mapped) = session.outbound(Protocol::Tcp, inside, far)?.from() else { return Ok(()) };
    let unused = session.unopened(mapped);
    let sequence = session.sequence();
    let segment = Segment { sequence, acknowledgement: 0, flags: Tcp::SYN };
    let packet = Packet::tcp(far, unused, segment.header(), &[]);
    let begun = session.now();
    for _ in 0..session.attempts() {
        session.send_only(Side::Outside, &packet)?;
    }
    let mut others = Vec::new();
    let from_nat = |arrival: &crate::Arrival| {
        arrival.side == Side::Outside && arrival.packet.header.source == mapped.ip()
    };
    let arrival = session.wait(begun + SILENCE, &from_nat, &mut others)?;
    let after_s = session.now().saturating_sub(begun).as_secs_f64();
    let trip = crate::session::Trip { arrived: None, others: arrival.into_iter().collect(), sure: true };
    observations.tcp_unsolicited = Some(Unsolicited { answered: answered(&trip, Side::Outside), after_s });
    Ok(())
}
