//! ICMP errors that are damaged, cut short, or about no mapping.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The odd thing about an error from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Craft {
    /// Its own checksum is wrong.
    Checksum,
    /// The quoted IP header has a wrong checksum.
    QuotedHeader,
    /// The quoted datagram has a wrong checksum.
    QuotedTransport,
    /// The quoted IP header has options.
    QuotedOptions,
    /// It quotes the IP header and 8 bytes behind it, the least that RFC 792 asks for.
    Short,
    /// It is about a datagram that the NAT never sent.
    Unmapped,
}

impl Craft {
    /// All of them.
    pub const ALL: [Craft; 6] = [
        Craft::Checksum,
        Craft::QuotedHeader,
        Craft::QuotedTransport,
        Craft::QuotedOptions,
        Craft::Short,
        Craft::Unmapped,
    ];
}

/// Such an error, sent from outside to the NAT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CraftedError {
    /// The odd thing about it.
    pub craft: Craft,
    /// An inside host got it.
    pub arrived: bool,
    /// It quotes the endpoints that the inside host knows.
    pub inner: bool,
    /// Its own checksum was right when it arrived.
    pub sound: bool,
    /// The NAT answered it.
    pub answered: bool,
    /// The path carried a control packet, where it did not arrive.
    pub sure: bool,
}
