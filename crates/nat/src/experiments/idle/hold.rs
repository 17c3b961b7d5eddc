//! The packets that may keep a mapping alive.

use super::{ASKED_AT, MARGIN, Purpose};
use crate::Side;
use crate::observed::{Idle, Refresh};

/// The packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Hold {
    UdpOut,
    UdpIn,
    /// An ICMP error of the inside host about a datagram to the mapping, which is not sent: it could start the time anew itself.
    UdpError,
    /// An ICMP error of a router about an echo request.
    QueryError,
    /// A segment of an established connection, without data.
    TcpOut,
    TcpIn,
    /// A second reset from inside: the first one starts the time that RFC 7857 section 2.2 gives a connection with a reset.
    Reset,
}

impl Hold {
    pub(super) const ALL: [Hold; 7] =
        [Hold::UdpOut, Hold::UdpIn, Hold::UdpError, Hold::QueryError, Hold::TcpOut, Hold::TcpIn, Hold::Reset];

    /// The rows that it is evidence for.
    pub(super) fn rows(self) -> &'static [&'static str] {
        match self {
            Hold::UdpOut => &["udp-refresh-out"],
            Hold::UdpIn => &["udp-refresh-in"],
            Hold::UdpError => &["udp-refresh-error"],
            Hold::QueryError => &["icmp-refresh-error"],
            Hold::TcpOut => &["tcp-refresh-out"],
            Hold::TcpIn => &["tcp-refresh-in"],
            Hold::Reset => &["tcp-refresh-reset"],
        }
    }

    /// The mappings whose idle time it is about.
    pub(super) fn base(self) -> Purpose {
        match self {
            Hold::UdpOut | Hold::UdpIn | Hold::UdpError => Purpose::Unanswered,
            Hold::QueryError => Purpose::Echo,
            Hold::TcpOut | Hold::TcpIn => Purpose::Established,
            Hold::Reset => Purpose::ResetOut,
        }
    }

    /// Its result, if it is known.
    pub(super) fn of(self, idle: &Idle) -> Option<Refresh> {
        match self {
            Hold::UdpOut => idle.refreshed_out,
            Hold::UdpIn => idle.refreshed_in,
            Hold::UdpError => idle.refreshed_error,
            Hold::QueryError => idle.icmp_refreshed_error,
            Hold::TcpOut => idle.tcp_refreshed_out,
            Hold::TcpIn => idle.tcp_refreshed_in,
            Hold::Reset => idle.tcp_refreshed_reset,
        }
    }

    pub(super) fn side(self) -> Side {
        match self {
            Hold::UdpIn | Hold::TcpIn | Hold::QueryError => Side::Outside,
            Hold::UdpOut | Hold::UdpError | Hold::TcpOut | Hold::Reset => Side::Inside,
        }
    }
}

/// Whether a packet of that time, s, tells something of mappings that end at that one.
pub(super) fn fits(at: f64, expiry: f64) -> bool {
    at * MARGIN < expiry && at * ASKED_AT > expiry * MARGIN && at * (ASKED_AT - 1.0) * MARGIN < expiry
}
