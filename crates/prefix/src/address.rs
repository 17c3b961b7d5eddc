//! Addresses as numbers.

use std::fmt::{Debug, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address as a number, in the host's byte order: `u32` for IPv4, `u128` for IPv6.
pub trait Address: Copy + Ord + Eq + Debug + Send + Sync + 'static {
    /// Length in bits.
    const BITS: u8;
    /// All bits zero.
    const FIRST: Self;
    /// All bits one.
    const LAST: Self;
    /// The written form.
    type Text: Display + Copy + Into<IpAddr>;

    /// The next address; `None` after the last.
    fn next(self) -> Option<Self>;
    /// The address before; `None` before the first.
    fn previous(self) -> Option<Self>;
    /// Zero bits at the end, at most [`Address::BITS`].
    fn trailing_zeros(self) -> u8;
    /// The last address of the block of `2^bits` that begins here; `bits` up to [`Address::BITS`].
    fn block_end(self, bits: u8) -> Self;
    /// The first address of the block of `2^bits` that this one lies in.
    fn block_start(self, bits: u8) -> Self;
    /// How many addresses lie from here to `last`, as far as a `f64` can tell.
    fn distance(self, last: Self) -> f64;
    /// The written form.
    fn text(self) -> Self::Text;
    /// From either family; `None` if it is the other one.
    fn of(address: IpAddr) -> Option<Self>;
}

impl Address for u32 {
    const BITS: u8 = 32;
    const FIRST: Self = 0;
    const LAST: Self = u32::MAX;
    type Text = Ipv4Addr;

    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }
    fn previous(self) -> Option<Self> {
        self.checked_sub(1)
    }
    fn trailing_zeros(self) -> u8 {
        u32::trailing_zeros(self) as u8
    }
    fn block_end(self, bits: u8) -> Self {
        self | u32::MAX.checked_shr(32 - u32::from(bits)).unwrap_or(0)
    }
    fn block_start(self, bits: u8) -> Self {
        self & !u32::MAX.checked_shr(32 - u32::from(bits)).unwrap_or(0)
    }
    fn distance(self, last: Self) -> f64 {
        f64::from(last - self) + 1.0
    }
    fn text(self) -> Ipv4Addr {
        self.into()
    }
    fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(address) => Some(address.into()),
            IpAddr::V6(_) => None,
        }
    }
}

impl Address for u128 {
    const BITS: u8 = 128;
    const FIRST: Self = 0;
    const LAST: Self = u128::MAX;
    type Text = Ipv6Addr;

    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }
    fn previous(self) -> Option<Self> {
        self.checked_sub(1)
    }
    fn trailing_zeros(self) -> u8 {
        u128::trailing_zeros(self) as u8
    }
    fn block_end(self, bits: u8) -> Self {
        self | u128::MAX.checked_shr(128 - u32::from(bits)).unwrap_or(0)
    }
    fn block_start(self, bits: u8) -> Self {
        self & !u128::MAX.checked_shr(128 - u32::from(bits)).unwrap_or(0)
    }
    fn distance(self, last: Self) -> f64 {
        (last - self) as f64 + 1.0
    }
    fn text(self) -> Ipv6Addr {
        self.into()
    }
    fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V6(address) => Some(address.into()),
            IpAddr::V4(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_where_their_bits_end() {
        assert_eq!(0x0a00_0000u32.block_end(8), 0x0a00_00ff);
        assert_eq!(0u32.block_end(32), u32::MAX);
        assert_eq!(7u32.block_end(0), 7);
        assert_eq!(0u128.block_end(128), u128::MAX);
        assert_eq!(0u128.block_end(64), u128::from(u64::MAX));
        assert_eq!(1u128.block_end(0), 1);
        assert_eq!(0x0a00_00ffu32.block_start(8), 0x0a00_0000);
        assert_eq!((u32::MAX.block_start(32), 7u32.block_start(0)), (0, 7));
        assert_eq!(u128::MAX.block_start(128), 0);
    }

    #[test]
    fn neighbours_end_at_the_ends() {
        assert_eq!((7u32.previous(), 7u32.next()), (Some(6), Some(8)));
        assert_eq!((0u32.previous(), u32::MAX.next()), (None, None));
        assert_eq!((7u128.previous(), 7u128.next()), (Some(6), Some(8)));
        assert_eq!((0u128.previous(), u128::MAX.next()), (None, None));
    }

    #[test]
    fn both_ends_count_in_a_distance() {
        assert_eq!((5u32.distance(5), 5u32.distance(9)), (1.0, 5.0));
        assert_eq!(0u32.distance(u32::MAX), 4_294_967_296.0);
        assert_eq!((5u128.distance(5), 5u128.distance(9)), (1.0, 5.0));
        // 2^128: a float has no digit for the one that is missing.
        assert_eq!(0u128.distance(u128::MAX), 2f64.powi(128));
    }

    #[test]
    fn families_do_not_mix() {
        let v4: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!((u32::of(v4), u128::of(v4)), (Some(0xc000_0201), None));
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!((u32::of(v6), u128::of(v6)), (None, Some(0x2001_0db8 << 96 | 1)));
    }
}
