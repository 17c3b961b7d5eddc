//! The idle times that are decided, by this part of a run and by earlier ones.

use std::net::SocketAddr;
use std::time::Duration;

use weir_text::order;

use super::afterwards;
use super::hold::{Hold, fits};
use super::{MARGIN, Purpose, STEP};
use crate::observed::{Idle, IdleTry, PortReuse, Refresh};

/// A packet that was sent to ask for a mapping.
pub(super) struct Asked {
    pub(super) purpose: Purpose,
    /// Time since the mapping's first packet, at the least and at the most: a busy host is late.
    pub(super) times: (Duration, Duration),
    /// The same at its refresh.
    pub(super) refreshed: Option<(Duration, Duration)>,
    pub(super) alive: bool,
    pub(super) inside: SocketAddr,
    /// Outside endpoint of the mapping, and that of the packet if it came out there.
    pub(super) ports: (SocketAddr, Option<SocketAddr>),
}

impl Asked {
    /// Times of the refresh and of this packet, s, if they tell whether a refresh counts: it came well before the idle time ended,
    /// this packet well after that, but well before a refreshed mapping ends.
    fn fits(&self, expiry: f64) -> Option<(f64, f64)> {
        let (earliest, latest) = self.refreshed?;
        let (least, most) = self.times;
        let [earliest, latest, least, most] = [earliest, latest, least, most].map(|time| time.as_secs_f64());
        let fits = latest * MARGIN < expiry && least > expiry * MARGIN && (most - earliest) * MARGIN < expiry;
        fits.then_some((earliest, least))
    }
}

/// Longest idle time that a mapping survived, and shortest that it did not, s; `None` if there is no such pair, or the tries
/// contradict each other.
pub fn bracket(tries: &[IdleTry]) -> Option<(f64, f64)> {
    let (alive, dead) = bounds(tries);
    (dead.is_finite() && alive < dead).then_some((alive, dead))
}

/// The same two times: 0 if none survived, infinity if all did.
fn bounds(tries: &[IdleTry]) -> (f64, f64) {
    let alive = tries.iter().filter(|t| t.alive).map(|t| t.idle_s).fold(0.0, f64::max);
    let dead = tries.iter().filter(|t| !t.alive).map(|t| t.idle_s + t.late_s).fold(f64::INFINITY, f64::min);
    (alive, dead)
}

/// The results of earlier parts.
#[derive(Debug, Default)]
pub(super) struct Known(Option<Idle>);

impl Known {
    /// Tries that contradict each other are dropped: their times are waited for anew.
    pub(super) fn of(earlier: Option<Idle>) -> Self {
        let mut known = Known(earlier);
        for purpose in Purpose::TRIED {
            let (alive, dead) = bounds(known.tries(purpose));
            if let Some(tries) = known.0.as_mut().and_then(|idle| tries_of(idle, purpose))
                && alive >= dead
            {
                tries.clear();
            }
        }
        known
    }

    /// Tries of that purpose.
    fn tries(&self, purpose: Purpose) -> &[IdleTry] {
        let Some(idle) = &self.0 else { return &[] };
        match purpose {
            Purpose::Unanswered => &idle.unanswered,
            Purpose::Answered => &idle.answered,
            Purpose::Echo => &idle.icmp,
            Purpose::Syn => &idle.tcp_opening,
            Purpose::Established => &idle.tcp_established,
            Purpose::HalfClosed => &idle.tcp_half_closed,
            Purpose::ResetIn => &idle.tcp_reset_in,
            Purpose::ResetOut => &idle.tcp_reset_out,
            Purpose::Held(..) | Purpose::Reused | Purpose::ReusedClosed | Purpose::ReusedOpen => &[],
        }
    }

    /// The shortest idle time after which mappings of that purpose had ended, s, if it is known when they end.
    pub(super) fn end(&self, purpose: Purpose) -> Option<f64> {
        bracket(self.tries(purpose)).map(|(_, dead)| dead)
    }

    /// When mappings of that purpose end, s.
    pub(super) fn expiry(&self, purpose: Purpose) -> Option<f64> {
        bracket(self.tries(purpose)).map(|(alive, dead)| f64::midpoint(alive, dead))
    }

    /// The reuse of such ports, as far as it is known.
    fn reuse(&self, purpose: Purpose) -> &[PortReuse] {
        match (&self.0, purpose) {
            (Some(idle), Purpose::Reused) => &idle.port_reuse,
            (Some(idle), Purpose::ReusedClosed) => &idle.tcp_port_reuse,
            (Some(idle), Purpose::ReusedOpen) => &idle.tcp_open_port_reuse,
            _ => &[],
        }
    }

    /// Whether it is known.
    pub(super) fn has_reuse(&self, purpose: Purpose) -> bool {
        !self.reuse(purpose).is_empty()
    }

    /// Whether the fate of packets after the end of such mappings is known.
    pub(super) fn has_afterwards(&self, purpose: Purpose) -> bool {
        self.0.as_ref().is_some_and(|idle| afterwards::of(idle, purpose).is_some())
    }

    /// Whether a mapping that is left alone for that time would tell something new: those of shorter times that lived, and of
    /// longer ones that did not, decide it.
    pub(super) fn leaves_open(&self, purpose: Purpose, time: Duration) -> bool {
        match purpose {
            Purpose::Held(hold, _) => self.0.as_ref().and_then(|idle| hold.of(idle)).is_none(),
            _ => {
                let (alive, dead) = bounds(self.tries(purpose));
                // The packet that found `dead` was sent a little after its time, and the next shorter time is a step before that.
                time.as_secs_f64() > alive && (time + STEP / 2).as_secs_f64() < dead
            }
        }
    }

    /// All results together. Silence is believed if the path is `sure` to have carried a control packet since. Until the
    /// experiment is over, `rest` are the purposes of packets that are still to be sent: what they may change is left out.
    pub(super) fn with(
        &self,
        asked: &[Asked],
        sure: bool,
        limit: Duration,
        rest: Option<&[Purpose]>,
    ) -> Idle {
        let tries = |purpose: Purpose| {
            let new = asked.iter().filter(|a| a.purpose == purpose && (a.alive || sure || rest.is_none()));
            let new = new.map(|a| IdleTry {
                idle_s: a.times.0.as_secs_f64(),
                late_s: (a.times.1 - a.times.0).as_secs_f64(),
                alive: a.alive,
                sure: a.alive || sure,
            });
            let mut tries: Vec<IdleTry> = self.tries(purpose).iter().copied().chain(new).collect();
            order::by(&mut tries, |a, b| a.idle_s.total_cmp(&b.idle_s));
            tries
        };
        let held = |hold: Hold| {
            let known = self.0.as_ref().and_then(|idle| hold.of(idle));
            if known.is_some() || (rest.is_some() && !sure) {
                return known;
            }
            let (alive, dead) = bracket(&tries(hold.base()))?;
            let expiry = f64::midpoint(alive, dead);
            let at = |purpose: Purpose| match purpose {
                Purpose::Held(other, at) if other == hold => Some(at),
                _ => None,
            };
            let mut left = rest.unwrap_or_default().iter().filter_map(|purpose| at(*purpose));
            if left.any(|at| fits(at, expiry)) {
                return None;
            }
            let of = asked.iter().filter(|a| at(a.purpose).is_some());
            let of = of.filter_map(|a| Some((a.fits(expiry)?, a.alive)));
            // Several fit: the mapping lives only if all say so.
            of.reduce(|a, b| (if b.0.0 > a.0.0 { b.0 } else { a.0 }, a.1 && b.1)).map(
                |((packet_at_s, asked_at_s), alive)| Refresh {
                    packet_at_s,
                    asked_at_s,
                    alive,
                    sure: alive || sure,
                },
            )
        };
        let reuse = |purpose: Purpose| match rest {
            _ if self.has_reuse(purpose) => self.reuse(purpose).to_vec(),
            Some(rest) if rest.contains(&purpose) => Vec::new(),
            _ => reused(asked, purpose),
        };
        Idle {
            port_reuse: reuse(Purpose::Reused),
            tcp_port_reuse: reuse(Purpose::ReusedClosed),
            tcp_open_port_reuse: reuse(Purpose::ReusedOpen),
            udp_afterwards: self.0.as_ref().and_then(|idle| idle.udp_afterwards.clone()),
            tcp_afterwards: self.0.as_ref().and_then(|idle| idle.tcp_afterwards.clone()),
            limit_s: limit.as_secs_f64(),
            refreshed_out: held(Hold::UdpOut),
            refreshed_in: held(Hold::UdpIn),
            refreshed_error: held(Hold::UdpError),
            icmp_refreshed_error: held(Hold::QueryError),
            tcp_refreshed_out: held(Hold::TcpOut),
            tcp_refreshed_in: held(Hold::TcpIn),
            tcp_refreshed_reset: held(Hold::Reset),
            answered: tries(Purpose::Answered),
            icmp: tries(Purpose::Echo),
            tcp_opening: tries(Purpose::Syn),
            tcp_established: tries(Purpose::Established),
            tcp_half_closed: tries(Purpose::HalfClosed),
            tcp_reset_in: tries(Purpose::ResetIn),
            tcp_reset_out: tries(Purpose::ResetOut),
            unanswered: tries(Purpose::Unanswered),
        }
    }
}

/// Which ports the other host got.
fn reused(asked: &[Asked], purpose: Purpose) -> Vec<PortReuse> {
    let reuse = |a: &Asked| PortReuse {
        first: a.ports.0,
        inside: a.inside,
        after_s: a.times.0.as_secs_f64(),
        second: a.ports.1,
    };
    asked.iter().filter(|a| a.purpose == purpose).map(reuse).collect()
}

fn tries_of(idle: &mut Idle, purpose: Purpose) -> Option<&mut Vec<IdleTry>> {
    Some(match purpose {
        Purpose::Unanswered => &mut idle.unanswered,
        Purpose::Answered => &mut idle.answered,
        Purpose::Echo => &mut idle.icmp,
        Purpose::Syn => &mut idle.tcp_opening,
        Purpose::Established => &mut idle.tcp_established,
        Purpose::HalfClosed => &mut idle.tcp_half_closed,
        Purpose::ResetIn => &mut idle.tcp_reset_in,
        Purpose::ResetOut => &mut idle.tcp_reset_out,
        Purpose::Held(..) | Purpose::Reused | Purpose::ReusedClosed | Purpose::ReusedOpen => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(seen: &[(f64, bool)]) -> Vec<IdleTry> {
        seen.iter()
            .map(|(idle_s, alive)| IdleTry { idle_s: *idle_s, late_s: 0.0, alive: *alive, sure: true })
            .collect()
    }

    #[test]
    fn a_bracket_needs_both_and_no_contradiction() {
        assert_eq!(bracket(&tries(&[(1.0, true), (2.0, false), (3.0, false)])), Some((1.0, 2.0)));
        assert_eq!(bracket(&tries(&[(1.0, false)])), Some((0.0, 1.0)));
        assert_eq!(bracket(&tries(&[(1.0, true)])), None);
        assert_eq!(bracket(&tries(&[(1.0, false), (2.0, true)])), None);
        // The mapping may have been idle for as much longer as the host was late.
        let mut late = tries(&[(1.0, false), (2.0, true)]);
        late[0].late_s = 1.5;
        assert_eq!(bracket(&late), Some((2.0, 2.5)));
    }

    #[test]
    fn refreshes_count_unless_their_packets_came_late() {
        let s = Duration::from_secs_f64;
        let fits = |refreshed: (f64, f64), times: (f64, f64)| {
            let [refreshed, times] = [refreshed, times].map(|(from, to)| (s(from), s(to)));
            let purpose = Purpose::Held(Hold::UdpOut, 7.0);
            let inside = SocketAddr::from(([127, 0, 0, 1], 1));
            let refreshed = Some(refreshed);
            Asked { purpose, times, refreshed, alive: true, inside, ports: (inside, None) }.fits(10.0)
        };
        assert_eq!(fits((7.0, 7.1), (12.0, 12.1)), Some((7.0, 12.0)));
        assert_eq!(fits((7.0, 9.5), (12.0, 12.1)), None, "perhaps after its end");
        assert_eq!(fits((7.0, 7.1), (10.5, 12.1)), None, "perhaps before the end without a refresh");
        assert_eq!(fits((7.0, 7.1), (16.0, 16.1)), None, "perhaps after the end with one");
    }

    #[test]
    fn only_times_that_are_not_decided_are_left() {
        let idle = |answered: &[(f64, bool)]| {
            let none = Known::default().with(&[], true, Duration::from_secs(60), None);
            Known::of(Some(Idle { answered: tries(answered), ..none }))
        };
        let open = |known: &Known, time| known.leaves_open(Purpose::Answered, Duration::from_secs_f64(time));
        let known = idle(&[(10.0, true), (20.0, true), (40.01, false)]);
        let open_at = [5.0, 20.0, 20.25, 39.75, 40.0, 41.0].map(|time| open(&known, time));
        assert_eq!(open_at, [false, false, true, true, false, false]);
        assert!(known.leaves_open(Purpose::Syn, Duration::from_secs(1)));
        // All lived so far.
        let known = idle(&[(10.0, true)]);
        assert_eq!([9.0, 50.0].map(|time| open(&known, time)), [false, true]);
        // A contradiction is no knowledge.
        let known = idle(&[(10.0, false), (20.0, true)]);
        assert!(open(&known, 5.0) && open(&known, 30.0));
    }
}
