//! How connections of TCP begin, are carried and end.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Answered;

/// Two SYNs that cross (RFC 9293 section 3.5): each step tells whether it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Simultaneous {
    /// The SYN from inside.
    pub syn_out: bool,
    /// The SYN from the contacted endpoint.
    pub syn_in: bool,
    /// The SYN and ACK from inside.
    pub answer_out: bool,
    /// The SYN and ACK from outside.
    pub answer_in: bool,
    /// The path carried a control packet, where one did not arrive.
    pub sure: bool,
}

/// The answer to a SYN that no inside host waits for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Unsolicited {
    /// The answer; `None` if there was none.
    pub answered: Option<Answered>,
    /// Its time after the SYN, or how long was waited for it, s.
    pub after_s: f64,
}

/// TCP as it is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TcpCarriage {
    /// The options of a SYN from inside.
    pub options: TcpOptions,
    /// A SYN from inside with data.
    pub syn_data: SegmentTrip,
    /// The FIN of the inside host.
    pub fin: SegmentTrip,
    /// Data from outside after it.
    pub data_after_fin: SegmentTrip,
    /// The FIN of the outside host, of another connection.
    #[serde(default)]
    pub fin_in: SegmentTrip,
    /// Data from inside after it.
    #[serde(default)]
    pub data_after_fin_in: SegmentTrip,
    /// The options of a SYN and ACK from outside.
    #[serde(default)]
    pub options_in: TcpOptions,
    /// A SYN and ACK from outside with data.
    #[serde(default)]
    pub syn_ack_data: SegmentTrip,
    /// A SYN from the contacted endpoint with data.
    #[serde(default)]
    pub syn_data_in: SegmentTrip,
    /// A reset from outside, of another connection.
    pub reset: SegmentTrip,
    /// Data from inside after it.
    pub data_after_reset: SegmentTrip,
}

/// The options of a SYN, as they arrived.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TcpOptions {
    /// The SYN arrived.
    pub arrived: bool,
    /// Maximum segment size as sent, bytes.
    pub sent_mss: u16,
    /// The same as seen; `None` without the option.
    pub mss: Option<u16>,
    /// The window scale arrived as it was sent.
    pub window_scale: bool,
    /// SACK permitted arrived.
    pub sack_permitted: bool,
    /// The timestamp arrived as it was sent.
    pub timestamps: bool,
    /// The path carried a control packet, where the SYN did not arrive.
    pub sure: bool,
}

/// The fate of one segment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SegmentTrip {
    /// It arrived, with its data.
    pub arrived: bool,
    /// The path carried a control packet, where it did not.
    pub sure: bool,
}

/// Data and a reset far outside of the window of an open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TcpSequence {
    /// Data from inside.
    pub out: SegmentTrip,
    /// They arrived with the sender's inside address.
    pub leaked: bool,
    /// Data from outside.
    pub back: SegmentTrip,
    /// A reset from outside.
    pub reset: SegmentTrip,
    /// Data from outside within the window, after all of these.
    pub after: SegmentTrip,
}
