//! The payload of streams, by which a receiver can tell whether the path changed it.

/// Period of the pattern, bytes: a prime, so that no power-of-two block lost or repeated leaves it in step.
const PERIOD: usize = 8191;

/// A buffer that holds the pattern from any phase for `len` bytes.
#[derive(Debug)]
pub(super) struct Pattern {
    bytes: Vec<u8>,
    len: usize,
}

impl Pattern {
    /// Pieces of up to `len` bytes.
    pub(super) fn new(len: usize) -> Self {
        let bytes = (0..len + PERIOD).map(|i| byte(i % PERIOD)).collect();
        Pattern { bytes, len }
    }

    /// `len` bytes of the stream from that position on.
    #[inline]
    pub(super) fn at(&self, position: u64) -> &[u8] {
        let phase = (position % PERIOD as u64) as usize;
        &self.bytes[phase..phase + self.len]
    }

    /// How many of these bytes, received from that position on, are not as they were sent.
    pub(super) fn differences(&self, position: u64, received: &[u8]) -> u64 {
        let mut wrong = 0;
        let mut position = position;
        for piece in received.chunks(self.len.max(1)) {
            let want = &self.at(position)[..piece.len()];
            if want != piece {
                wrong += want.iter().zip(piece).filter(|(a, b)| a != b).count() as u64;
            }
            position += piece.len() as u64;
        }
        wrong
    }
}

/// High byte of a multiplicative hash: neighbours differ, and it does not compress to a run.
fn byte(i: usize) -> u8 {
    ((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_changed_and_shifted_bytes() {
        let sender = Pattern::new(1000);
        let mut stream = Vec::new();
        while stream.len() < 50_000 {
            stream.extend_from_slice(sender.at(stream.len() as u64));
        }
        let receiver = Pattern::new(777);
        assert_eq!(receiver.differences(0, &stream), 0);
        assert_eq!(receiver.differences(12_345, &stream[12_345..40_000]), 0);
        stream[20_000] ^= 1;
        stream[20_001] ^= 0xff;
        assert_eq!(receiver.differences(0, &stream), 2);
        // A lost block of 4096 bytes shows in nearly every byte behind it.
        assert!(receiver.differences(30_000, &stream[34_096..40_000]) > 5_000);
    }
}
