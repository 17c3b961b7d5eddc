//! The front of a UDP datagram, and what its numbers and times say.

/// Bytes of the longest header: seconds, microseconds and a 64-bit number.
pub(super) const HEADER_BYTES: usize = 16;

/// Greeting of a UDP stream, and its answer. iperf3 writes integers as its machine has them: these are the bytes of a
/// little-endian one, which nearly all are.
pub(super) const HELLO: [u8; 4] = *b"9876";
/// See [`HELLO`].
pub(super) const WELCOME: [u8; 4] = *b"6789";

/// Answers that a client takes: today's and that of versions before 3.10, of either byte order.
pub(super) const WELCOMES: [[u8; 4]; 4] =
    [WELCOME, HELLO, 987_654_321u32.to_le_bytes(), 987_654_321u32.to_be_bytes()];

/// Greetings that clients send: today's and that of versions before 3.10, of either byte order.
pub const HELLOS: [[u8; 4]; 4] = [HELLO, WELCOME, 123_456_789u32.to_le_bytes(), 123_456_789u32.to_be_bytes()];

/// True if this first datagram of an address is how an iperf3 client greets.
pub fn is_greeting(datagram: &[u8]) -> bool {
    answer(datagram).is_some()
}

/// The answer to a greeting, in its version and byte order.
pub(super) fn answer(greeting: &[u8]) -> Option<[u8; 4]> {
    HELLOS.iter().position(|h| h == greeting).map(|at| WELCOMES[at])
}

/// The front of a data datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// When it was sent by the sender's own clock, us.
    pub(super) sent_us: u64,
    /// From 1.
    pub(super) number: u64,
}

impl Header {
    /// Write it to the front of a datagram, of which `to` has 16 bytes at least.
    #[inline]
    pub(super) fn write(self, to: &mut [u8], wide: bool) {
        // The fields wrap after 136 years of uptime and, narrow, after 2^32 datagrams; iperf3's do too.
        to[..4].copy_from_slice(&((self.sent_us / 1_000_000) as u32).to_be_bytes());
        to[4..8].copy_from_slice(&((self.sent_us % 1_000_000) as u32).to_be_bytes());
        if wide {
            to[8..16].copy_from_slice(&self.number.to_be_bytes());
        } else {
            to[8..12].copy_from_slice(&(self.number as u32).to_be_bytes());
        }
    }

    /// `None` if the datagram is too short.
    #[inline]
    pub(super) fn read(from: &[u8], wide: bool) -> Option<Header> {
        let word = |at: usize| Some(u32::from_be_bytes(*from.get(at..)?.first_chunk()?));
        let number = if wide { u64::from_be_bytes(*from.get(8..)?.first_chunk()?) } else { word(8)?.into() };
        Some(Header { sent_us: u64::from(word(0)?) * 1_000_000 + u64::from(word(4)?), number })
    }
}

/// Numbers that are remembered to tell a late datagram from a second copy of one.
const REMEMBERED: u64 = 4096;

/// Greatest number that is believed: 2^53, up to which JSON's numbers are exact, and a thousand times what a year brings.
const MOST: u64 = 1 << 53;

/// The statistics of one stream so far, from its numbers and times.
#[derive(Debug)]
pub(super) struct Meter {
    /// Bit n % REMEMBERED: number n came, for greatest - REMEMBERED < n <= greatest.
    seen: Vec<u64>,
    /// Greatest number that came; 0 before the first.
    pub(super) greatest: u64,
    /// Different numbers that came.
    pub(super) came: u64,
    pub(super) out_of_order: u64,
    pub(super) duplicates: u64,
    transit_us: Option<f64>,
    pub(super) jitter_s: f64,
}

impl Meter {
    pub(super) fn new() -> Self {
        Meter {
            seen: vec![0; (REMEMBERED / 64) as usize],
            greatest: 0,
            came: 0,
            out_of_order: 0,
            duplicates: 0,
            transit_us: None,
            jitter_s: 0.0,
        }
    }

    /// Numbers up to the greatest that did not come.
    pub(super) fn lost(&self) -> u64 {
        self.greatest - self.came
    }

    /// A datagram arrived. False for a number that cannot be one of this stream.
    #[inline]
    pub(super) fn arrive(&mut self, header: Header, arrived_ns: u64) -> bool {
        let number = header.number;
        if number == 0 || number > MOST {
            return false;
        }
        if number > self.greatest {
            self.advance(number);
            self.came += 1;
        } else {
            let (word, bit) = place(number);
            // A number beyond the remembered ones counts as late: a copy of it is less likely.
            let again = self.greatest - number < REMEMBERED && self.seen[word] & bit != 0;
            if again {
                self.duplicates += 1;
            } else {
                self.out_of_order += 1;
                // Copies that were taken for late ones cannot bring losses below zero.
                self.came = (self.came + 1).min(self.greatest);
                if self.greatest - number < REMEMBERED {
                    self.seen[word] |= bit;
                }
            }
        }
        self.time(header.sent_us, arrived_ns);
        true
    }

    #[inline]
    fn advance(&mut self, number: u64) {
        if number - self.greatest >= REMEMBERED {
            self.seen.fill(0);
        } else {
            for skipped in self.greatest + 1..number {
                let (word, bit) = place(skipped);
                self.seen[word] &= !bit;
            }
        }
        let (word, bit) = place(number);
        self.seen[word] |= bit;
        self.greatest = number;
    }

    /// The estimator of RFC 1889 section 6.3.1 (RFC 3550 section 6.4.1): clocks need not agree, only run alike.
    #[inline]
    fn time(&mut self, sent_us: u64, arrived_ns: u64) {
        let transit_us = arrived_ns as f64 / 1000.0 - sent_us as f64;
        if let Some(before) = self.transit_us.replace(transit_us) {
            let change_s = (transit_us - before).abs() / 1e6;
            self.jitter_s += (change_s - self.jitter_s) / 16.0;
        }
    }
}

#[inline]
fn place(number: u64) -> (usize, u64) {
    let index = number % REMEMBERED;
    ((index / 64) as usize, 1 << (index % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn header(number: u64) -> Header {
        Header { sent_us: number.wrapping_mul(1000), number }
    }

    #[test]
    fn headers_are_those_of_the_wire() {
        let header = Header { sent_us: 0x0102_0304 * 1_000_000 + 0x0506, number: 0xa1a2_a3a4_a5a6_a7a8 };
        let mut bytes = [0xee; 16];
        header.write(&mut bytes, true);
        assert_eq!(bytes, [1, 2, 3, 4, 0, 0, 5, 6, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8]);
        assert_eq!(Header::read(&bytes, true), Some(header));
        assert_eq!(Header::read(&bytes[..15], true), None);
        let mut bytes = [0xee; 16];
        header.write(&mut bytes, false);
        assert_eq!(bytes[8..], [0xa5, 0xa6, 0xa7, 0xa8, 0xee, 0xee, 0xee, 0xee]);
        assert_eq!(Header::read(&bytes[..12], false).unwrap().number, 0xa5a6_a7a8);
        assert_eq!(Header::read(&bytes[..11], false), None);
    }

    #[test]
    fn greetings_of_all_versions_are_known() {
        for hello in [&b"9876"[..], b"6789", &[0x15, 0xcd, 0x5b, 0x07], &[0x07, 0x5b, 0xcd, 0x15]] {
            assert!(is_greeting(hello));
        }
        for other in [&b"987"[..], b"98765", b"weir", &[0; 4]] {
            assert!(!is_greeting(other));
        }
        assert_eq!(answer(&[0x15, 0xcd, 0x5b, 0x07]), Some([0xb1, 0x68, 0xde, 0x3a]));
        assert_eq!((answer(b"9876"), answer(b"6789")), (Some(*b"6789"), Some(*b"9876")));
        assert_eq!(answer(b"weir"), None);
    }

    #[test]
    fn lost_late_and_repeated_ones_are_told_apart() {
        let mut meter = Meter::new();
        for n in [1, 2, 5, 4, 4, 5, 9, 2] {
            assert!(meter.arrive(header(n), 0));
        }
        // 3, 6, 7 and 8 did not come; 4 was late; 4, 5 and 2 came twice. iperf3 would say one lost.
        assert_eq!((meter.lost(), meter.out_of_order, meter.duplicates), (4, 1, 3));
        assert!(!meter.arrive(header(0), 0) && !meter.arrive(header(u64::MAX), 0));
        assert_eq!(meter.greatest, 9);
    }

    #[test]
    fn jitter_is_the_estimators() {
        let mut meter = Meter::new();
        // Transit times of 0, 16 ms, 16 ms: the change of 16 ms adds a 16th of itself, and then a 16th of that goes.
        for (number, arrived_ms) in [(1u64, 1u64), (2, 18), (3, 19)] {
            meter.arrive(header(number), arrived_ms * 1_000_000);
        }
        assert!((meter.jitter_s - 0.001 * 15.0 / 16.0).abs() < 1e-12, "{}", meter.jitter_s);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_not(bytes in prop::collection::vec(any::<u8>(), 0..32), wide in any::<bool>()) {
            let header = Header::read(&bytes, wide);
            prop_assert_eq!(header.is_some(), bytes.len() >= if wide { 16 } else { 12 });
            if let Some(header) = header {
                let mut meter = Meter::new();
                meter.arrive(header, 5);
                prop_assert!(meter.lost() < 1 << 53);
            }
        }

        #[test]
        fn counts_are_those_of_a_set(numbers in prop::collection::vec(1..2000u64, 1..400)) {
            let mut meter = Meter::new();
            numbers.iter().for_each(|&n| assert!(meter.arrive(header(n), 0)));
            let set: BTreeSet<u64> = numbers.iter().copied().collect();
            prop_assert_eq!(meter.came, set.len() as u64);
            prop_assert_eq!(meter.lost(), set.last().unwrap() - set.len() as u64);
            prop_assert_eq!(meter.duplicates, (numbers.len() - set.len()) as u64);
        }

        #[test]
        fn no_numbers_bring_losses_below_zero(numbers in prop::collection::vec(any::<u64>(), 1..200)) {
            let mut meter = Meter::new();
            for n in numbers {
                meter.arrive(Header { sent_us: n, number: n }, n);
                prop_assert!(meter.came <= meter.greatest);
            }
        }
    }
}
