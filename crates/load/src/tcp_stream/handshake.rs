//! The first bytes of a data connection.
//!
//! The initiator says which trial and which stream the connection belongs to, the responder answers when its thread
//! is ready, and when all streams are answered the initiator says go on each: no stream begins before the others are there.
//! A connection that does not begin so belongs to someone else and is closed without being counted. Another trial's initiator
//! hears that it is not this one's: whatever else closes or breaks a connection here is the path's doing.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::socket::await_readable_until;

const MAGIC: u64 = u64::from_be_bytes(*b"weirTCP1");
const READY: u8 = b'R';
const GO: u8 = b'G';
const NOT_OURS: u8 = b'N';

/// Bytes of [`Hello`] on the wire.
const HELLO_BYTES: usize = 24;

/// The most that either side says before its stream begins: the greeting and the go.
pub(super) const GREETING_BYTES: u64 = HELLO_BYTES as u64 + 1;

/// The initiator's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    /// [`crate::TrialSettings::cookie`].
    pub cookie: u64,
    /// Number of the stream, from 0, in its direction; of a control, its bytes.
    pub stream: u32,
    /// True if the initiator is the one that sends the data.
    pub egress: bool,
    /// It carries no stream, but one segment of a certain length ([`super::controls`]).
    pub control: bool,
}

impl Hello {
    fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(&MAGIC.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..20].copy_from_slice(&self.stream.to_be_bytes());
        out[20] = u8::from(self.egress) | u8::from(self.control) << 1;
        out
    }

    fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        let word = |from: usize| {
            let mut w = [0; 8];
            w.copy_from_slice(&bytes[from..from + 8]);
            u64::from_be_bytes(w)
        };
        let hello = Hello {
            cookie: word(8),
            stream: (word(16) >> 32) as u32,
            egress: bytes[20] & 1 != 0,
            control: bytes[20] & 2 != 0,
        };
        (word(0) == MAGIC && hello.to_bytes() == *bytes).then_some(hello)
    }
}

/// Initiator: say hello, and wait for the answer until `over`.
///
/// # Errors
/// An error of the kind `Other` if something answered that is not this trial's responder.
pub(super) fn introduce(
    mut connection: &TcpStream,
    hello: Hello,
    patience: Duration,
    over: &dyn Fn() -> bool,
) -> io::Result<()> {
    connection.write_all(&hello.to_bytes())?;
    await_readable_until(connection, patience, over)?;
    let mut answer = [0];
    connection.read_exact(&mut answer)?;
    match answer[0] {
        READY => Ok(()),
        NOT_OURS => Err(io::Error::other("the responder of another trial answered")),
        _ => Err(io::Error::other("something that is not weir's tcp-stream responder answered")),
    }
}

/// Initiator: let the stream begin.
pub(super) fn go(mut connection: &TcpStream) -> io::Result<()> {
    connection.write_all(&[GO])
}

/// Responder: who is it? `None` for a stranger or another trial.
pub(super) fn welcome(mut connection: &TcpStream, cookie: u64) -> io::Result<Option<Hello>> {
    let mut bytes = [0; HELLO_BYTES];
    connection.read_exact(&mut bytes)?;
    let Some(hello) = Hello::from_bytes(&bytes) else { return Ok(None) };
    let ours = hello.cookie == cookie;
    connection.write_all(&[if ours { READY } else { NOT_OURS }])?;
    Ok(ours.then_some(hello))
}

/// Responder: wait for the go.
pub(super) fn wait_for_go(mut connection: &TcpStream) -> io::Result<()> {
    let mut word = [0];
    connection.read_exact(&mut word)?;
    if word[0] == GO { Ok(()) } else { Err(io::Error::other("expected the stream's go")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_survives_the_wire_and_noise_does_not_pass() {
        let hello = Hello { cookie: 0x0123_4567_89ab_cdef, stream: 127, egress: true, control: false };
        for (egress, control) in [(true, false), (false, false), (true, true), (false, true)] {
            let one = Hello { egress, control, ..hello };
            assert_eq!(Hello::from_bytes(&one.to_bytes()), Some(one));
        }
        for i in 0..HELLO_BYTES {
            let mut bytes = hello.to_bytes();
            bytes[i] ^= 0x80;
            assert_ne!(Hello::from_bytes(&bytes), Some(hello), "byte {i}");
        }
        assert_eq!(Hello::from_bytes(b"GET / HTTP/1.1\r\nHost: a\r"), None);
    }
}
