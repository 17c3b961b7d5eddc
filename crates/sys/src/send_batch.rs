//! Many datagrams or frames with one system call.
#![allow(unsafe_code, reason = "sendmmsg(2), which no safe crate offers for reuse")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Equally long messages, one behind the other in memory, for sendmmsg(2).
pub struct SendBatch {
    data: Vec<u8>,
    headers: Vec<libc::mmsghdr>,
    // The headers point into it.
    _vectors: Vec<libc::iovec>,
    length: usize,
}

impl SendBatch {
    /// Messages of `length` bytes, at least 1; `data` are all of them.
    pub fn new(mut data: Vec<u8>, length: usize) -> Self {
        let mut vectors: Vec<libc::iovec> = data
            .chunks_exact_mut(length)
            .map(|chunk| libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: length })
            .collect();
        let headers = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: mmsghdr is plain numbers and null pointers, for which all zeros are valid.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        SendBatch { data, headers, _vectors: vectors, length }
    }

    /// The message at that place, to write into.
    #[inline]
    pub fn message(&mut self, index: usize) -> &mut [u8] {
        let from = index * self.length;
        &mut self.data[from..from + self.length]
    }

    /// The first `count` messages as one piece of memory.
    #[inline]
    pub fn bytes(&self, count: usize) -> &[u8] {
        &self.data[..count * self.length]
    }

    /// Sends the messages `from..until`. Returns how many were taken, at least one.
    ///
    /// # Errors
    /// The error of sendmmsg(2) for the first of them. The call never raises SIGPIPE.
    pub fn send(&mut self, socket: impl AsFd, from: usize, until: usize) -> io::Result<usize> {
        let headers = &mut self.headers[from..until];
        // SAFETY: every header points to a vector and data that live in `self`, at stable addresses: they are never resized.
        let n = unsafe {
            libc::sendmmsg(
                socket.as_fd().as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as u32,
                libc::MSG_NOSIGNAL as _,
            )
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_messages_asked_for_are_sent_as_they_were_written() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let mut batch = SendBatch::new((0..40).collect(), 10);
        batch.message(2)[0] = 200;
        assert_eq!(batch.bytes(2), (0..20).collect::<Vec<u8>>());
        assert_eq!(batch.send(&sender, 1, 3).unwrap(), 2);
        for expected in [[10, 11, 12, 13, 14, 15, 16, 17, 18, 19], [200, 21, 22, 23, 24, 25, 26, 27, 28, 29]]
        {
            let mut found = [0; 20];
            assert_eq!(receiver.recv(&mut found).unwrap(), 10);
            assert_eq!(found[..10], expected);
        }
    }
}
