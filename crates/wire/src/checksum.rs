//! The Internet checksum (RFC 1071), its update (RFC 1624), and pseudo headers (RFC 768, RFC 9293, RFC 8200 section 8.1).

use std::net::IpAddr;

/// A sum of 16-bit words in ones' complement, not yet folded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Returns the sum of no bytes.
    pub const fn new() -> Self {
        Sum(0)
    }

    /// Returns the sum of the pseudo header that UDP, TCP and ICMPv6 put before their own. `length` is the length of the
    /// transport header and its payload, bytes. Addresses of two families have no pseudo header; they are summed as they are.
    pub fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, length: u32) -> Self {
        Sum::new().address(source).address(destination).word(u16::from(protocol)).bytes(&length.to_be_bytes())
    }

    /// With one more word.
    #[inline]
    #[must_use]
    pub fn word(self, word: u16) -> Self {
        // 2^48 words fit before the sum could overflow.
        Sum(self.0 + u64::from(word))
    }

    /// With more bytes. Those before must have been of an even number; an odd last one counts as followed by a zero
    /// (RFC 1071 section 4.1).
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let (words, odd) = bytes.as_chunks::<2>();
        let sum = words.iter().fold(self, |sum, word| sum.word(u16::from_be_bytes(*word)));
        odd.iter().fold(sum, |sum, byte| sum.word(u16::from(*byte) << 8))
    }

    /// With an address.
    #[must_use]
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(a) => self.bytes(&a.octets()),
            IpAddr::V6(a) => self.bytes(&a.octets()),
        }
    }

    /// The sum folded to 16 bits. Bytes that carry a correct checksum, with their pseudo header, sum to 0xffff.
    #[inline]
    pub fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    /// The checksum: its complement.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.folded()
    }

    /// True if the bytes carried a correct checksum.
    pub fn is_sound(self) -> bool {
        self.folded() == 0xffff
    }
}

/// A checksum after one word of what it covers has changed from `old` to `new` (RFC 1624 equation 3).
///
/// UDP's 0 means that there is none, and its 0xffff stands for 0: see [`udp_value`].
#[inline]
pub fn updated(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::new().word(!checksum).word(!old).word(new).checksum()
}

/// As [`updated`], for several words: both slices have the same even length and stand at an even place.
pub fn updated_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let gone = !Sum::new().bytes(old).folded();
    Sum::new().word(!checksum).word(gone).bytes(new).checksum()
}

/// Returns the value that UDP writes for a checksum: 0 would mean no checksum (RFC 768).
#[inline]
pub fn udp_value(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// The checksum of a transport header and what follows it, with the pseudo header of its addresses. The header's own checksum field
/// must be 0.
pub fn transport(source: IpAddr, destination: IpAddr, protocol: u8, bytes: &[u8]) -> u16 {
    // IPv6's jumbograms are the only datagrams longer than 65,535 bytes, and even their length has 32 bits.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    Sum::pseudo(source, destination, protocol, length).bytes(bytes).checksum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        // Section 3: bytes 00 01 f2 03 f4 f5 f6 f7 sum to ddf2.
        let sum = Sum::new().bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!((sum.folded(), sum.checksum()), (0xddf2, 0x220d));
    }

    #[test]
    fn an_odd_byte_is_followed_by_a_zero() {
        assert_eq!(Sum::new().bytes(&[1, 2, 3]), Sum::new().bytes(&[1, 2, 3, 0]));
    }

    #[test]
    fn the_example_of_rfc_1624() {
        // Section 4: HC = 0xDD2F, m = 0x5555, m' = 0x3285, HC' = 0x0000 (RFC 1141's equation gives 0xFFFF).
        assert_eq!(updated(0xdd2f, 0x5555, 0x3285), 0x0000);
        assert_eq!(updated_bytes(0xdd2f, &[0x55, 0x55], &[0x32, 0x85]), 0x0000);
        assert_eq!(udp_value(0), 0xffff);
        assert_eq!(udp_value(0xdd2f), 0xdd2f);
    }

    proptest! {
        #[test]
        fn an_update_equals_a_new_sum(
            mut bytes in proptest::collection::vec(any::<u8>(), 2..200),
            place in any::<prop::sample::Index>(),
            new in any::<[u8; 8]>(),
        ) {
            // Packets are never all zeros, where ones' complement has two zeros and RFC 1624 section 3 its exception.
            bytes[0] |= 1;
            bytes.resize(bytes.len().next_multiple_of(2) + 8, 0x5a);
            let from = (place.index(bytes.len() - 8) / 2).max(1) * 2;
            let before = Sum::new().bytes(&bytes).checksum();
            let old: Vec<u8> = bytes[from..from + 8].to_vec();
            bytes[from..from + 8].copy_from_slice(&new);
            prop_assert_eq!(updated_bytes(before, &old, &new), Sum::new().bytes(&bytes).checksum());
            let step = old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0).fold(before, |sum, (o, n)| {
                updated(sum, u16::from_be_bytes(*o), u16::from_be_bytes(*n))
            });
            prop_assert_eq!(step, Sum::new().bytes(&bytes).checksum());
        }

        #[test]
        fn bytes_with_their_checksum_are_sound_and_one_flipped_bit_is_not(
            mut bytes in proptest::collection::vec(any::<u8>(), 4..200),
            bit in any::<prop::sample::Index>(),
        ) {
            bytes[..2].fill(0);
            let sum = Sum::new().bytes(&bytes).checksum();
            bytes[..2].copy_from_slice(&sum.to_be_bytes());
            prop_assert!(Sum::new().bytes(&bytes).is_sound());
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!Sum::new().bytes(&bytes).is_sound());
        }
    }
}
