//! Events of TCP connections.

use serde::{Deserialize, Serialize};

use super::Tuple;

/// An event of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowEventKind {
    /// A segment was sent again (`tcp:tcp_retransmit_skb`).
    Retransmit,
    /// A reset was sent by a host of this machine (`tcp:tcp_send_reset`).
    ResetSent,
    /// A reset came for a socket here (`tcp:tcp_receive_reset`).
    ResetReceived,
    /// A SYN-ACK was sent again (`tcp:tcp_retransmit_synack`).
    RetransmitSynAck,
}

/// Events of one connection, or of all that did not fit any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowEvent {
    /// Namespace in which it happened.
    pub namespace: u64,
    /// The kind of event.
    pub kind: FlowEventKind,
    /// Whose, as the packet goes: from here for what is sent again, from the other side for a reset that came. For a reset
    /// sent, the packet that is answered, as it came. `None`: of connections beyond those told apart.
    pub tuple: Option<Tuple>,
    /// TCP state of the socket by number (include/net/tcp_states.h), 0 if there is none. SYN_SENT is 2.
    pub state: u8,
    /// How often.
    pub times: u64,
    /// Largest segment among those sent again, bytes of payload; 0 if not known.
    pub largest_bytes: u32,
    /// Smallest one.
    pub smallest_bytes: u32,
}
