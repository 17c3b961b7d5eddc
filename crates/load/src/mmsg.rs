//! Many datagrams per system call: recvmmsg(2), and what the kernel says beside each datagram.
#![allow(unsafe_code, reason = "recvmmsg(2) and control messages, which no safe crate offers for reuse")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Room for the two control messages that may come (drop count, time of arrival), in bytes. A multiple of 8.
const CONTROL_BYTES: usize = 64;

/// Buffers for recvmmsg(2), used again and again.
pub struct ReceiveBatch {
    data: Vec<u8>,
    control: Vec<u64>,
    headers: Vec<libc::mmsghdr>,
    // The headers point into it.
    _vectors: Vec<libc::iovec>,
    slot: usize,
    filled: usize,
}

/// One received datagram.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'a> {
    /// Its first bytes, as many as a slot holds.
    pub head: &'a [u8],
    /// Its whole length in bytes.
    pub length: usize,
    /// How many datagrams the socket's full buffer had dropped when this one was queued (SO_RXQ_OVFL, socket(7));
    /// 0 as long as there was none. Wraps at 2^32.
    pub dropped: u32,
    /// When the kernel took it in, ns of CLOCK_REALTIME (SO_TIMESTAMPNS), if that was asked for.
    pub arrived_ns: Option<u64>,
}

impl ReceiveBatch {
    /// Room for `count` datagrams, of each of which `slot` bytes are kept.
    pub fn new(count: usize, slot: usize) -> Self {
        let mut data = vec![0u8; count * slot];
        let mut control = vec![0u64; count * CONTROL_BYTES / 8];
        let mut vectors: Vec<libc::iovec> = data
            .chunks_exact_mut(slot)
            .map(|chunk| libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: slot })
            .collect();
        let controls = control.chunks_exact_mut(CONTROL_BYTES / 8);
        let headers = vectors
            .iter_mut()
            .zip(controls)
            .map(|(vector, control)| {
                // SAFETY: mmsghdr is plain numbers and null pointers, for which all zeros are valid.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                header.msg_hdr.msg_control = control.as_mut_ptr().cast();
                header
            })
            .collect();
        ReceiveBatch { data, control, headers, _vectors: vectors, slot, filled: 0 }
    }

    /// Wait for a datagram (for the socket's receive timeout), and take what more is there. Returns how many.
    ///
    /// # Errors
    /// Those of recvmmsg(2); `WouldBlock` after the timeout.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        for header in &mut self.headers {
            // The kernel writes the length it used into it.
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
        self.filled = 0;
        // MSG_TRUNC: report the whole length although only the head is copied.
        let flags = libc::MSG_WAITFORONE | libc::MSG_TRUNC;
        // SAFETY: every header points to a vector and a control buffer that live in `self` and that only we use; their
        // addresses are stable, as the vectors are never resized.
        let n = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as u32,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        self.filled = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        Ok(self.filled)
    }

    /// The datagrams of the last call, in order of arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let controls = self.control.chunks_exact(CONTROL_BYTES / 8);
        self.headers.iter().zip(self.data.chunks_exact(self.slot)).zip(controls).take(self.filled).map(
            |((header, data), control)| {
                let length = header.msg_len as usize;
                let used = header.msg_hdr.msg_controllen.min(CONTROL_BYTES);
                let (dropped, arrived_ns) = if used == 0 { (0, None) } else { read_control(control, used) };
                Datagram { head: &data[..length.min(self.slot)], length, dropped, arrived_ns }
            },
        )
    }
}

/// Drop count and time of arrival out of a control buffer of which `used` bytes are filled. In words of eight bytes a
/// message is (cmsg(3)): length, level and type, data.
fn read_control(mut control: &[u64], used: usize) -> (u32, Option<u64>) {
    let (mut dropped, mut arrived) = (0, None);
    control = &control[..used.div_ceil(8).min(control.len())];
    while let [length, kind, data @ ..] = control {
        let halves = halves(*kind);
        match (halves, data) {
            ([libc::SOL_SOCKET, libc::SO_RXQ_OVFL], [count, ..]) => dropped = halves_of(*count)[0],
            ([libc::SOL_SOCKET, libc::SO_TIMESTAMPNS], [seconds, nanoseconds, ..]) => {
                arrived = Some(seconds * 1_000_000_000 + nanoseconds);
            }
            _ => {}
        }
        // A length below that of the header would not end.
        let words = (*length as usize).div_ceil(8).max(2);
        control = control.get(words..).unwrap_or_default();
    }
    (dropped, arrived)
}

/// The two 32-bit halves of a word, in the order of memory.
fn halves_of(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

fn halves(word: u64) -> [i32; 2] {
    halves_of(word).map(u32::cast_signed)
}

// `read_control` walks the layout of 64-bit Linux.
const _: () = assert!(size_of::<libc::cmsghdr>() == 16 && size_of::<usize>() == 8);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use weir_sys::SendBatch;

    fn pair() -> (UdpSocket, UdpSocket) {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        (sender, receiver)
    }

    #[test]
    fn a_batch_arrives_with_whole_lengths_and_times() {
        let (sender, receiver) = pair();
        crate::socket::set_int(&receiver, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1).unwrap();
        let mut out = SendBatch::new(vec![0; 3000], 1000);
        for i in 0..3 {
            out.message(i)[0] = 100 + i as u8;
        }
        let before =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        assert_eq!(out.send(&sender, 0, 3).unwrap(), 3);
        let mut batch = ReceiveBatch::new(8, 32);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            batch.receive(receiver.as_fd()).unwrap();
            for d in batch.datagrams() {
                assert_eq!((d.head.len(), d.length, d.dropped), (32, 1000, 0));
                let late = d.arrived_ns.unwrap() as i64 - before as i64;
                assert!((0..5_000_000_000).contains(&late), "{late}");
                seen.push(d.head[0]);
            }
        }
        assert_eq!(seen, [100, 101, 102]);
    }

    #[test]
    fn the_kernel_says_how_many_a_full_buffer_dropped_before_each_datagram() {
        let (sender, receiver) = pair();
        crate::socket::set_int(&receiver, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1).unwrap();
        // The kernel's least buffer: a few datagrams.
        crate::socket::set_int(&receiver, libc::SOL_SOCKET, libc::SO_RCVBUF, 1).unwrap();
        for _ in 0..100 {
            sender.send(&[1; 100]).unwrap();
        }
        receiver.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut batch = ReceiveBatch::new(128, 32);
        let first = batch.receive(receiver.as_fd()).unwrap();
        assert!(first < 100);
        assert_eq!(batch.datagrams().next().unwrap().dropped, 0);
        sender.send(&[2; 100]).unwrap();
        assert_eq!(batch.receive(receiver.as_fd()).unwrap(), 1);
        assert_eq!(batch.datagrams().next().unwrap().dropped as usize, 100 - first);
    }
}
