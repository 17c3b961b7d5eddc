//! What ICMP says of a probe.

use weir_sys::icmp_errors::{Notice, Reason};

use super::{Far, Pending};
use crate::message::Message;
use crate::prober::{Outcome, Refusal, Way};

/// What became of a probe that went that way, by what ICMP says of it; `None` if that tells nothing.
pub(super) fn meaning(notice: &Notice, way: Way, far: Far) -> Option<Outcome> {
    let from = notice.from;
    Some(match notice.reason {
        // Of the question, where the answer was the probe.
        Reason::TooBig(_) | Reason::TooBigHere(_) if way == Way::Ingress => return None,
        Reason::TooBig(mtu) => Outcome::TooBig { mtu, from },
        Reason::TooBigHere(mtu) => Outcome::TooBigHere { mtu },
        Reason::HopsUsedUp => Outcome::HopsUsedUp { from: from? },
        Reason::PortClosed if far == Far::ClosedPort => Outcome::Arrived,
        // Linux waits for half a minute before it sends one (ipfrag_time), and nobody here does.
        Reason::ReassemblyTimeout => return None,
        Reason::Prohibited => Outcome::Refused { from, refusal: Refusal::Prohibited },
        Reason::PortClosed => Outcome::Refused { from, refusal: Refusal::ClosedPort },
        Reason::Unreachable(_) | Reason::Other(..) => {
            Outcome::Refused { from, refusal: Refusal::Unreachable }
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
