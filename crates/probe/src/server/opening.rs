//! Identifies a connection by its first bytes. This only peeks at them: the connection's owner reads them again.

use crate::message::OPENING;

/// Bytes that decide in every case.
pub(super) const MOST: usize = 37;

/// First bytes of the data connections of `tcp-stream`, and of the latency workloads; the trial's cookie follows
/// (weir-load, `tcp_stream/handshake.rs` and `latency/preamble.rs`).
const DATA: [[u8; 8]; 2] = [*b"weirTCP1", *b"weir-lt1"];

/// Bytes of an iperf3 cookie, its closing zero included (iperf3's `COOKIE_SIZE`).
const IPERF3: usize = 37;

/// Kind of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// Not yet known.
    More,
    /// A client that wants to talk.
    Control,
    /// A data connection of the trial with this cookie.
    Data(u64),
    /// A stock iperf3 client.
    Iperf3,
    /// A prober of the path's MTU.
    Mtu,
    /// An unknown client.
    Stranger,
}

/// Decide by what has come so far.
pub(super) fn read(bytes: &[u8]) -> Opening {
    if bytes.starts_with(&OPENING) {
        return Opening::Control;
    }
    if bytes.starts_with(&weir_mtu::MAGIC) {
        return Opening::Mtu;
    }
    if DATA.iter().any(|magic| bytes.starts_with(magic)) {
        let cookie = bytes.get(8..16).and_then(|b| b.first_chunk::<8>());
        return cookie.map_or(Opening::More, |b| Opening::Data(u64::from_be_bytes(*b)));
    }
    if is_iperf3(bytes) {
        return if bytes.len() >= IPERF3 { Opening::Iperf3 } else { Opening::More };
    }
    let begins = |whole: &[u8]| whole.starts_with(bytes);
    if begins(&OPENING) || begins(&weir_mtu::MAGIC) || DATA.iter().any(|magic| begins(magic)) {
        Opening::More
    } else {
        Opening::Stranger
    }
}

/// True if these bytes may be the beginning of a cookie: 36 characters of RFC 4648's base 32 in lower case, and a zero.
fn is_iperf3(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(IPERF3 - 1)];
    head.iter().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7'))
        && bytes.get(IPERF3 - 1).is_none_or(|zero| *zero == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole() -> Vec<(Vec<u8>, Opening)> {
        let data = |magic: &[u8]| [magic, &7u64.to_be_bytes(), b"rest"].concat();
        vec![
            (OPENING.to_vec(), Opening::Control),
            (data(b"weirTCP1"), Opening::Data(7)),
            (data(b"weir-lt1"), Opening::Data(7)),
            (b"abcdefghijklmnopqrstuvwxyz234567abcd\0".to_vec(), Opening::Iperf3),
            (weir_mtu::MAGIC.to_vec(), Opening::Mtu),
        ]
    }

    #[test]
    fn each_is_known_and_no_part_of_it_is_taken_for_another() {
        for (bytes, what) in whole() {
            assert_eq!(read(&bytes), what);
            for n in 0..bytes.len() {
                let seen = read(&bytes[..n]);
                assert!(seen == Opening::More || seen == what, "{:?}: {seen:?}", &bytes[..n]);
            }
        }
    }

    #[test]
    fn strangers_are_known_as_soon_as_they_can_be() {
        for bytes in [&b"GET /"[..], b"\x16\x03\x01", b"weirX", b"SSH-2.0", b"abc1", b"\0"] {
            assert_eq!(read(bytes), Opening::Stranger, "{bytes:?}");
        }
        // One character more than a cookie has.
        assert_eq!(read(b"abcdefghijklmnopqrstuvwxyz234567abcde"), Opening::Stranger);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_decided_by_the_last_byte_at_the_latest(bytes in proptest::collection::vec(any::<u8>(), MOST..80)) {
            prop_assert_ne!(read(&bytes), Opening::More);
        }

        #[test]
        fn more_bytes_never_change_what_was_decided(bytes in proptest::collection::vec(any::<u8>(), 0..64), which in 0usize..5, cut in 0usize..40) {
            let (start, _) = &whole()[which];
            let all = [&start[..cut.min(start.len())], &bytes].concat();
            let mut decided = None;
            for n in 0..=all.len() {
                let now = read(&all[..n]);
                if let Some(before) = decided {
                    prop_assert_eq!(now, before);
                } else if now != Opening::More {
                    decided = Some(now);
                }
            }
        }
    }
}
