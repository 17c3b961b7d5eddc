//! The meaning of ICMP messages about a probe.

use weir_sys::icmp_errors::{Notice, Reason};

use super::{Far, Pending};
use crate::message::Message;
use crate::prober::{ProbeOutcome, Refusal, Way};

/// Returns the outcome of a probe in that direction by an ICMP message about it; `None` if the message does not tell.
pub(super) fn meaning(notice: &Notice, way: Way, far: Far) -> Option<ProbeOutcome> {
    let from = notice.from;
    Some(match notice.reason {
        // The message is about the question, but the answer was the probe.
        Reason::TooBig(_) | Reason::TooBigHere(_) if way == Way::Ingress => return None,
        Reason::TooBig(mtu) => ProbeOutcome::TooBig { mtu, from },
        Reason::TooBigHere(mtu) => ProbeOutcome::TooBigHere { mtu },
        Reason::HopsUsedUp => ProbeOutcome::HopsUsedUp { from: from? },
        Reason::PortClosed if far == Far::ClosedPort => ProbeOutcome::Arrived,
        // Linux waits for half a minute before it sends one (ipfrag_time), and no prober here waits that long.
        Reason::ReassemblyTimeout => return None,
        Reason::Prohibited => ProbeOutcome::Refused { from, refusal: Refusal::Prohibited },
        Reason::PortClosed => ProbeOutcome::Refused { from, refusal: Refusal::ClosedPort },
        Reason::Unreachable(_) | Reason::Other(..) => {
            ProbeOutcome::Refused { from, refusal: Refusal::Unreachable }
        }
    })
}

/// Which probe a notice is about: the one that it quotes, or where it quotes too little, one for which it makes sense.
pub(super) fn about<'a>(
    pending: &'a mut [Pending],
    notice: &Notice,
    quoted: Option<Message>,
    session: u64,
) -> Option<&'a mut Pending> {
    if let Some(message) = quoted {
        return pending.iter_mut().find(|p| message.session == session && p.number == message.number);
    }
    let open = pending.iter_mut().filter(|p| p.outcome.is_none());
    match notice.reason {
        Reason::TooBig(_) | Reason::TooBigHere(_) => open.max_by_key(|p| p.probe.size),
        _ => open.min_by_key(|p| p.number),
    }
}
