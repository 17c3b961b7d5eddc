//! The datagrams between a prober and a far end of ours, big-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..16 | session: a random number of the prober |
//! | 16..20 | number of the probe |
//! | 20 | kind |
//! | 21 | 1: what is asked for may be split |
//! | 22..24 | length of the fragments that are asked for (IPv6), bytes; 0: as the far end knows |
//! | 24..28 | payload asked for, or the length of the payload that came, bytes |
//!
//! The rest of a probe is zeros up to the length that is tried; of a [`Kind::Told`] it is a [`FarCounts`].

/// The first bytes of every datagram, and of every TCP connection, that is meant for [`crate::Responder`].
pub const MAGIC: [u8; 8] = *b"weirMTU1";

/// Bytes of every message. With the headers of IPv4 and UDP it fits the 68 bytes that every link carries (RFC 791).
pub(crate) const HEADER: usize = 28;

/// Bytes of a question for a tally, and of its answer.
pub(crate) const TOLD: usize = HEADER + FarCounts::BYTES;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Prober: say that it came.
    Probe,
    /// Prober: send back a datagram with so much payload.
    Fetch,
    /// Prober: tell what was seen of this session.
    Tell,
    /// Far end: it came, and was so long.
    Came,
    /// Far end: what was asked for.
    Fetched,
    /// Far end: a [`FarCounts`].
    Told,
    /// Far end: what was asked for does not fit its own link, whose MTU is the size.
    TooLong,
}

const KINDS: [(Kind, u8); 7] = [
    (Kind::Probe, 1),
    (Kind::Fetch, 2),
    (Kind::Tell, 3),
    (Kind::Came, 129),
    (Kind::Fetched, 130),
    (Kind::Told, 131),
    (Kind::TooLong, 132),
];

impl Kind {
    /// Answers are never answered.
    pub(crate) fn asks(self) -> bool {
        matches!(self, Kind::Probe | Kind::Fetch | Kind::Tell)
    }
}

/// The front of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub session: u64,
    pub number: u32,
    pub kind: Kind,
    pub splits: bool,
    pub fragment: u16,
    pub size: u32,
}

impl Message {
    /// Into a payload of `length` bytes, at least [`HEADER`].
    pub(crate) fn write(&self, length: usize) -> Vec<u8> {
        let mut out = vec![0; length.max(HEADER)];
        out[..8].copy_from_slice(&MAGIC);
        out[8..16].copy_from_slice(&self.session.to_be_bytes());
        out[16..20].copy_from_slice(&self.number.to_be_bytes());
        out[20] = KINDS.iter().find(|(k, _)| *k == self.kind).map_or(0, |(_, n)| *n);
        out[21] = self.splits.into();
        out[22..24].copy_from_slice(&self.fragment.to_be_bytes());
        out[24..28].copy_from_slice(&self.size.to_be_bytes());
        out
    }

    /// `None` if it is none.
    pub(crate) fn read(bytes: &[u8]) -> Option<Message> {
        let (head, _) = bytes.split_first_chunk::<HEADER>()?;
        let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let kind = KINDS.iter().find(|(_, n)| *n == head[20]).map(|(k, _)| *k)?;
        if head[..8] != MAGIC || head[21] > 1 {
            return None;
        }
        let session = u64::from(number(8)) << 32 | u64::from(number(12));
        let fragment = u16::from_be_bytes([head[22], head[23]]);
        Some(Message { session, number: number(16), kind, splits: head[21] == 1, fragment, size: number(24) })
    }
}

/// A far end's counts of a session so far, and its host's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FarCounts {
    /// It sees single fragments.
    pub sees_fragments: bool,
    /// Fragments were missed, so that the counts of them are too low.
    pub missed: bool,
    /// Fragments with the UDP header of a datagram of this session.
    pub first: u32,
    /// Fragments that belong to such a one, and fragments from the same address without any.
    pub later: u32,
    /// Datagrams with a first fragment in which a later fragment overtook an earlier one.
    pub out_of_order: u32,
    /// Fragments that came to the host from anywhere (IP ReasmReqds); `None` where it cannot read its counters.
    pub host_fragments: Option<u32>,
    /// The MTU of the far end's route to the prober, or what it learned of it by ICMP, bytes; 0: it cannot tell.
    pub route_mtu: u32,
}

impl FarCounts {
    const BYTES: usize = 28;

    pub(crate) fn write(&self, into: &mut [u8; FarCounts::BYTES]) {
        let flags = u32::from(self.sees_fragments)
            | u32::from(self.missed) << 1
            | u32::from(self.host_fragments.is_some()) << 2;
        let words = [
            flags,
            self.first,
            self.later,
            self.out_of_order,
            self.host_fragments.unwrap_or(0),
            self.route_mtu,
            0,
        ];
        for (chunk, word) in into.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<FarCounts> {
        let bytes = bytes.get(HEADER..HEADER + FarCounts::BYTES)?;
        let word = |i: usize| {
            u32::from_be_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        };
        Some(FarCounts {
            sees_fragments: word(0) & 1 != 0,
            missed: word(0) & 2 != 0,
            first: word(1),
            later: word(2),
            out_of_order: word(3),
            host_fragments: (word(0) & 4 != 0).then(|| word(4)),
            route_mtu: word(5),
        })
    }

    /// Returns the counts since an earlier tally.
    pub(crate) fn since(&self, earlier: &FarCounts) -> FarCounts {
        FarCounts {
            first: self.first.wrapping_sub(earlier.first),
            later: self.later.wrapping_sub(earlier.later),
            out_of_order: self.out_of_order.wrapping_sub(earlier.out_of_order),
            host_fragments: self.host_fragments.zip(earlier.host_fragments).map(|(a, b)| a.wrapping_sub(b)),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let message = Message {
            session: 0x0102_0304_0506_0708,
            number: 0x1112_1314,
            kind: Kind::Fetch,
            splits: true,
            fragment: 1280,
            size: 8192,
        };
        let bytes = message.write(40);
        let wire = [
            b'w', b'e', b'i', b'r', b'M', b'T', b'U', b'1', 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14,
            2, 1, 5, 0, 0, 0, 0x20, 0,
        ];
        assert_eq!((&bytes[..HEADER], bytes.len()), (&wire[..], 40));
        assert_eq!(Message::read(&bytes), Some(message));
        assert_eq!(Message::read(&bytes[..HEADER - 1]), None);
        let mut tally = [0; FarCounts::BYTES];
        let told = FarCounts {
            sees_fragments: true,
            missed: false,
            first: 5,
            later: 25,
            out_of_order: 1,
            host_fragments: Some(30),
            route_mtu: 1500,
        };
        told.write(&mut tally);
        let mut whole = vec![0; HEADER];
        whole.extend(tally);
        assert_eq!(FarCounts::read(&whole), Some(told));
        assert_eq!(FarCounts::read(&whole[..TOLD - 1]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_are_read_as_what_they_are_not(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(message) = Message::read(&bytes) {
                prop_assert_eq!(&message.write(HEADER)[..], &bytes[..HEADER]);
            }
        }

        #[test]
        fn every_message_survives_the_wire(session: u64, number: u32, kind in 0..KINDS.len(), splits: bool, fragment: u16, size: u32) {
            let message = Message { session, number, kind: KINDS[kind].0, splits, fragment, size };
            prop_assert_eq!(Message::read(&message.write(100)), Some(message));
        }
    }
}
