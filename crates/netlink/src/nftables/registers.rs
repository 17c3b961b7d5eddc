//! The known contents of the registers while the expressions of a rule are followed.

use super::Register;

/// Bytes of the kernel's registers (struct nft_regs, include/net/netfilter/nf_tables.h).
const BYTES: usize = 64;

/// The registers of a rule, byte by byte known or not. Places beyond the last register are never known, and bytes put there are
/// lost: rules are text from outside.
#[derive(Debug, Clone)]
pub struct Registers([Option<u8>; BYTES]);

impl Default for Registers {
    /// Registers hold nothing known before a rule loads it.
    fn default() -> Self {
        Registers([None; BYTES])
    }
}

impl Registers {
    /// Bytes of all registers together.
    pub const BYTES: usize = BYTES;

    /// Puts bytes where a register begins; the rest of the last word becomes zero, as the kernel does it.
    pub fn store(&mut self, to: Register, bytes: &[u8]) {
        let start = start(to);
        for at in 0..bytes.len().next_multiple_of(4) {
            if let Some(place) = self.0.get_mut(start + at) {
                *place = Some(bytes.get(at).copied().unwrap_or(0));
            }
        }
    }

    /// Forgets that many bytes, up to the end of a word.
    pub fn forget(&mut self, from: Register, length: usize) {
        let length = length.min(BYTES).next_multiple_of(4);
        for place in self.0.iter_mut().skip(start(from)).take(length) {
            *place = None;
        }
    }

    /// Forgets that register and all that lie behind it.
    pub(super) fn forget_from(&mut self, from: Register) {
        self.forget(from, BYTES);
    }

    /// Returns so many bytes, if all are known.
    pub fn load(&self, from: Register, length: usize) -> Option<Vec<u8>> {
        self.partly(from, length)?.iter().copied().collect()
    }

    /// Returns so many bytes, each known or not; `None` beyond the last register.
    pub fn partly(&self, from: Register, length: usize) -> Option<&[Option<u8>]> {
        let start = start(from);
        self.0.get(start..start.checked_add(length)?)
    }

    /// Puts bytes that are known or not.
    pub fn store_partly(&mut self, to: Register, bytes: &[Option<u8>]) {
        for (place, byte) in self.0.iter_mut().skip(start(to)).zip(bytes) {
            *place = *byte;
        }
    }
}

fn start(register: Register) -> usize {
    usize::from(register.0) * 4
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn registers_overlap_as_the_kernels_do() {
        let mut registers = Registers::default();
        assert_eq!(registers.load(Register(0), 1), None);
        registers.store(Register(0), &[1, 2, 3, 4, 5]);
        assert_eq!(registers.load(Register(0), 8), Some(vec![1, 2, 3, 4, 5, 0, 0, 0]));
        // Word 1 is the second one of the first register of 16 bytes.
        registers.store(Register(1), &[9]);
        assert_eq!(registers.load(Register(0), 8), Some(vec![1, 2, 3, 4, 9, 0, 0, 0]));
        registers.forget(Register(1), 1);
        assert_eq!((registers.load(Register(0), 5), registers.load(Register(0), 4).is_some()), (None, true));
        registers.store(Register(4), &[7]);
        registers.forget_from(Register(1));
        assert_eq!((registers.load(Register(4), 1), registers.load(Register(0), 1)), (None, Some(vec![1])));
    }

    proptest! {
        #[test]
        fn what_lies_beyond_the_last_register_is_lost(word: u8, bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut registers = Registers::default();
            registers.store(Register(word), &bytes);
            let there = registers.load(Register(word), bytes.len());
            let fits = usize::from(word) * 4 + bytes.len() <= 64;
            prop_assert_eq!(there, fits.then(|| bytes.clone()));
            registers.store_partly(Register(word), &bytes.iter().map(|b| Some(*b)).collect::<Vec<_>>());
            registers.forget(Register(word), usize::MAX);
            prop_assert!(registers.partly(Register(word), 1).is_none_or(|b| b == [None]));
        }
    }
}
