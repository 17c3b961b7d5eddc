//! The messages between client and server before and after a measurement.
//!
//! The client opens with [`OPENING`], so that the server knows what comes over its port, and then speaks in frames
//! ([`crate::frame`]). Fields that a server does not know are refused, since a measurement that was understood by half is
//! none; a client goes by the version.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use weir_load::{FlowFigures, Part, Workload};

use crate::nat::Transport;

/// The first bytes of a control connection.
pub(crate) const OPENING: [u8; 8] = *b"weirCTL1";

/// Version of the messages; both ends must have the same.
pub(crate) const VERSION: u32 = 1;

/// A message from a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Ask {
    /// First.
    Hello {
        version: u32,
        /// 32 random bytes in hexadecimal.
        nonce: String,
        /// Name and version of the program, for the server's log.
        program: String,
    },
    /// Proof that the client has the key: see [`crate::key`].
    Prove { proof: String },
    /// Prepare for this.
    Open {
        workload: Box<Workload>,
        /// Traffic before the measuring window, ms.
        warmup_ms: u64,
        /// The measuring window, ms.
        duration_ms: u64,
    },
    /// Two ports for a NAT check.
    NatOpen {},
    /// Send this through the NAT; each is answered with [`Tell::NatSent`].
    Nat(NatAsk),
    /// Raw packets from now on, both ways; answered with [`Tell::NatSent`].
    NatRawOpen {},
    /// From now on, the ports of the check answer no segments of TCP (`silent`), so that raw ones can be exchanged; or do so again.
    /// Answered with [`Tell::NatSent`].
    NatTcp { silent: bool },
    /// Send this packet through the NAT, in hexadecimal from its IP header on; each is answered with [`Tell::NatSent`].
    NatRaw { packet: String },
    /// This end is done: what did you see?
    Finish,
}

/// A packet that the server should send through the client's NAT.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NatAsk {
    pub(crate) transport: Transport,
    /// Over a connection that came, instead of a new one.
    pub(crate) answer: bool,
    /// Indices of the address and the port that it comes from.
    pub(crate) at: (u8, u8),
    pub(crate) to: SocketAddr,
    /// The mark by which it is known, in hexadecimal.
    pub(crate) mark: String,
}

/// A message from a server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "kebab-case")]
pub(crate) enum Tell {
    /// The answer to hello.
    Challenge {
        version: u32,
        /// 32 random bytes in hexadecimal.
        nonce: String,
        /// The client has to prove that it has the key.
        keyed: bool,
    },
    /// Ask away.
    Welcome {
        /// Proof that the server has the key, too, if a key is set.
        proof: Option<String>,
        program: String,
    },
    /// The responder is open.
    Opened {
        /// [`weir_load::TrialSettings::cookie`] of this measurement.
        cookie: u64,
        /// The workload as it will be done, where the server's limits changed it.
        workload: Box<Workload>,
        /// The changes by the server's limits, in words.
        notes: Vec<String>,
    },
    /// The streams as this end has seen them so far.
    Live { flows: Vec<FlowFigures> },
    /// The answer to finish.
    Seen { part: Box<Part>, flows: Vec<FlowFigures> },
    /// The endpoints of a NAT check.
    NatOpened {
        /// The number that begins each packet.
        number: u64,
        /// One or two, and the index of the one that the client talks to.
        addresses: Vec<IpAddr>,
        own: Option<u8>,
        ports: [u16; 2],
        /// The server knows [`Ask::NatRawOpen`]. Older ones do not say.
        #[serde(default)]
        knows_raw: bool,
        /// Longest check, s. Older servers do not say.
        #[serde(default)]
        longest_s: Option<u64>,
    },
    /// A packet with the check's number came.
    NatArrived {
        transport: Transport,
        /// Indices of the address and the port that it came to.
        at: (u8, u8),
        /// Its source, as it is seen here.
        from: SocketAddr,
        /// The mark by which it is known, in hexadecimal.
        mark: String,
    },
    /// A raw packet of the check came: in hexadecimal from its IP header on.
    NatRawArrived { packet: String },
    /// The answer to [`Ask::Nat`] and its like: why it was not done, in words, if it was not.
    NatSent { refused: Option<String> },
    /// The end of a NAT check: bytes with their headers.
    NatClosed { received_bytes: u64, sent_bytes: u64 },
    /// The last word: why there is nothing more.
    Refused {
        /// In words.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_does_not_know_is_refused() {
        let read = |text: &str| serde_json::from_str::<Ask>(text);
        assert!(read(r#"{"ask":"finish"}"#).is_ok());
        assert!(read(r#"{"ask":"prove","proof":"00"}"#).is_ok());
        assert!(read(r#"{"ask":"prove","proof":"00","also":1}"#).is_err());
        assert!(read(r#"{"ask":"launch"}"#).is_err());
        let open = |options: &str| {
            read(&format!(
                r#"{{"ask":"open","workload":{{"kind":"tcp-rr"{options}}},"warmup_ms":0,"duration_ms":1000}}"#
            ))
        };
        assert!(open("").is_ok());
        assert!(open(r#","window":500"#).is_ok());
        assert!(open(r#","windows":500"#).is_err());
    }
}
