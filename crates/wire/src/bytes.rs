//! Fields in network byte order. Callers have checked the length of the whole header, which these repeat.

use crate::Error;

/// The first `N` bytes, and the rest.
#[inline]
pub(crate) fn take<'a, const N: usize>(
    bytes: &'a [u8],
    header: &'static str,
) -> Result<(&'a [u8; N], &'a [u8]), Error> {
    bytes.split_first_chunk().ok_or(Error::Truncated { header, needed: N, there: bytes.len() })
}

/// Returns the room for the first `N` bytes of a header.
#[inline]
pub(crate) fn room<'a, const N: usize>(
    bytes: &'a mut [u8],
    header: &'static str,
) -> Result<&'a mut [u8; N], Error> {
    let there = bytes.len();
    bytes.first_chunk_mut().ok_or(Error::Truncated { header, needed: N, there })
}

/// `N` bytes at a place that the header's fixed length is known to hold.
#[inline]
pub(crate) fn at<const N: usize, const LENGTH: usize>(bytes: &[u8; LENGTH], from: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[from + i])
}

#[inline]
pub(crate) fn u16_at<const LENGTH: usize>(bytes: &[u8; LENGTH], from: usize) -> u16 {
    u16::from_be_bytes(at(bytes, from))
}

#[inline]
pub(crate) fn u32_at<const LENGTH: usize>(bytes: &[u8; LENGTH], from: usize) -> u32 {
    u32::from_be_bytes(at(bytes, from))
}
