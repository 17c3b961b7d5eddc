//! The contents of the datagrams.
//!
//! A data datagram begins with 16 bytes, so that small payloads can be measured: a 32-bit mark of trial, stream and
//! direction, the time of sending in units of 16 ns (32 bits: differences are right up to 34 s), and the number of the
//! datagram in its stream. A greeting opens the path (a NAT or firewall lets ingress through only after it), is repeated
//! until it is answered, and carries the whole cookie.

/// Bytes at the front of every data datagram.
pub(super) const HEADER_BYTES: usize = 16;

/// Bytes of a greeting.
pub(super) const GREETING_BYTES: usize = 24;

/// Nanoseconds per unit of the sending time, as a shift.
pub(super) const TIME_SHIFT: u32 = 4;

const MAGIC: u64 = u64::from_be_bytes(*b"weirUDP1");

/// Begins a control, as [`MAGIC`] with what no data begins with.
const CONTROL: u64 = u64::from_be_bytes(*b"weirUDPc");

/// Which flow of which trial a datagram belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    /// [`crate::TrialSettings::cookie`].
    pub cookie: u64,
    /// Number of the stream, from 0, in its direction.
    pub stream: u32,
    /// True if the initiator sends the data.
    pub egress: bool,
}

impl Flow {
    /// The 32 bits that stand for the flow in data datagrams.
    pub(super) fn mark(self) -> u32 {
        // Two rounds of a multiplicative mix: flows of one trial and of the next differ in about half their bits.
        let mut x = self.cookie
            ^ (u64::from(self.stream) << 1 | u64::from(self.egress)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let mark = (x ^ (x >> 32)) as u32;
        // Never that of a greeting.
        if mark == (MAGIC >> 32) as u32 { !mark } else { mark }
    }
}

/// The front of a data datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub mark: u32,
    /// Time of sending, 2^[`TIME_SHIFT`] ns, modulo 2^32.
    pub time: u32,
    /// From 0 in each flow.
    pub number: u64,
}

impl Header {
    #[inline]
    pub(super) fn write(self, to: &mut [u8]) {
        to[..4].copy_from_slice(&self.mark.to_be_bytes());
        to[4..8].copy_from_slice(&self.time.to_be_bytes());
        to[8..16].copy_from_slice(&self.number.to_be_bytes());
    }

    /// `None` if it is too short.
    #[inline]
    pub(super) fn read(from: &[u8]) -> Option<Header> {
        let (head, _) = from.split_first_chunk::<HEADER_BYTES>()?;
        let [a, b, c, d, e, f, g, h, number @ ..] = *head;
        Some(Header {
            mark: u32::from_be_bytes([a, b, c, d]),
            time: u32::from_be_bytes([e, f, g, h]),
            number: u64::from_be_bytes(number),
        })
    }
}

/// A time in the header's units.
#[inline]
pub(super) fn header_time(ns: u64) -> u32 {
    (ns >> TIME_SHIFT) as u32
}

/// The message of a greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Initiator: this flow will come. Repeated until answered.
    Hello,
    /// Responder: its thread for the flow is ready.
    Ready,
    /// Initiator: send. Repeated until data comes.
    Go,
}

/// A greeting's bytes.
pub(super) fn greeting(word: Word, flow: Flow) -> [u8; GREETING_BYTES] {
    let mut out = [0; GREETING_BYTES];
    out[..8].copy_from_slice(&MAGIC.to_be_bytes());
    out[8..16].copy_from_slice(&flow.cookie.to_be_bytes());
    out[16..20].copy_from_slice(&flow.stream.to_be_bytes());
    out[20] = u8::from(flow.egress);
    out[21] = match word {
        Word::Hello => 1,
        Word::Ready => 2,
        Word::Go => 3,
    };
    out
}

/// Returns the message and the flow of a datagram, if it is a greeting.
pub(super) fn read_greeting(datagram: &[u8]) -> Option<(Word, Flow)> {
    let bytes: &[u8; GREETING_BYTES] = datagram.try_into().ok()?;
    let (cookie, _) = bytes[8..].split_first_chunk()?;
    let (stream, _) = bytes[16..].split_first_chunk()?;
    let flow = Flow {
        cookie: u64::from_be_bytes(*cookie),
        stream: u32::from_be_bytes(*stream),
        egress: bytes[20] == 1,
    };
    [Word::Hello, Word::Ready, Word::Go].into_iter().find(|&w| greeting(w, flow) == *bytes).map(|w| (w, flow))
}

/// A datagram of that length, at least [`GREETING_BYTES`], that is no data of its flow: see [`super::controls`].
pub(super) fn control(flow: Flow, length: usize) -> Vec<u8> {
    let mut out = greeting(Word::Hello, flow).to_vec();
    out[..8].copy_from_slice(&CONTROL.to_be_bytes());
    out.resize(length.max(GREETING_BYTES), 0);
    out
}

/// True of the beginning of a flow's control.
pub(super) fn is_control(head: &[u8], flow: Flow) -> bool {
    head.get(..GREETING_BYTES) == Some(control(flow, GREETING_BYTES).as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let header =
            Header { mark: 0x0102_0304, time: header_time(0x1_2345_6780), number: 0xa1a2_a3a4_a5a6_a7a8 };
        let mut bytes = [0; HEADER_BYTES];
        header.write(&mut bytes);
        let wire = [1, 2, 3, 4, 0x12, 0x34, 0x56, 0x78, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8];
        assert_eq!(bytes, wire);
        assert_eq!(Header::read(&bytes), Some(header));
        assert_eq!(Header::read(&bytes[..15]), None);
    }

    #[test]
    fn greetings_are_read_and_noise_is_not() {
        let flow = Flow { cookie: 7, stream: 3, egress: true };
        for word in [Word::Hello, Word::Ready, Word::Go] {
            assert_eq!(read_greeting(&greeting(word, flow)), Some((word, flow)));
        }
        let mut other = greeting(Word::Hello, flow);
        other[21] = 9;
        assert_eq!(read_greeting(&other), None);
        assert_eq!(read_greeting(&[0; GREETING_BYTES]), None);
        assert_eq!(read_greeting(b"short"), None);
    }

    #[test]
    fn controls_are_those_of_their_flow_and_nothing_else() {
        let flow = Flow { cookie: 7, stream: 3, egress: true };
        for length in [0, GREETING_BYTES, 1472] {
            let bytes = control(flow, length);
            assert_eq!(bytes.len(), length.max(GREETING_BYTES));
            assert!(is_control(&bytes, flow) && !is_control(&bytes, Flow { cookie: 8, ..flow }));
            assert_eq!(read_greeting(&bytes), None);
            assert_ne!(Header::read(&bytes).unwrap().mark, flow.mark());
        }
        assert!(!is_control(&greeting(Word::Hello, flow), flow) && !is_control(b"weirUDPc", flow));
    }

    #[test]
    fn flows_of_a_trial_and_of_the_next_have_different_marks() {
        let mut marks = std::collections::BTreeSet::new();
        for cookie in [1, 2, 0xffff_ffff_ffff_fffe, u64::MAX] {
            for stream in 0..128 {
                for egress in [true, false] {
                    marks.insert(Flow { cookie, stream, egress }.mark());
                }
            }
        }
        assert_eq!(marks.len(), 4 * 128 * 2);
    }
}
