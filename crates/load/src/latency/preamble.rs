//! The first bytes of every TCP connection: proof to both ends that they belong to this trial.

use std::io;
use std::os::fd::AsFd;

use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::dial::Dialer;

/// Bytes of a preamble.
pub(crate) const LEN: usize = 16;

/// Tells weir's latency workloads, and the version of their protocol, from anything else.
const MAGIC: [u8; 8] = *b"weir-lt1";

/// The magic and the trial's cookie, most significant byte first.
pub(crate) fn of(cookie: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Initiator: send the preamble over a fresh connection and wait for its echo. The socket is non-blocking.
pub(crate) fn prove(fd: impl AsFd, cookie: u64, dialer: &Dialer) -> io::Result<()> {
    let fd = fd.as_fd();
    let preamble = of(cookie);
    // 16 bytes always fit the empty buffer of a fresh connection.
    if send(fd, &preamble, SendFlags::NOSIGNAL)? != LEN {
        return Err(io::Error::other("the connection took only part of the preamble"));
    }
    let mut echo = [0; LEN];
    let mut got = 0;
    while got < LEN {
        dialer.wait_readable(fd)?;
        match recv(fd, &mut echo[got..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(not_weir("closed the connection")),
            Ok((n, _)) => got += n,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    if echo == preamble { Ok(()) } else { Err(not_weir("answered something else")) }
}

fn not_weir(did: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the far end is not this trial's responder: it {did}"))
}
