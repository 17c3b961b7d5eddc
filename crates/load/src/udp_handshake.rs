//! How a UDP flow finds its trial at a server that shares one port among many trials, and proves first that it comes from
//! where it says.
//!
//! The initiator sends a request with the trial's cookie. The server answers with a challenge as large as the request, and does
//! nothing else until the initiator has sent it back. So a forged source address gets no more bytes than were sent in its name,
//! and costs the server no memory. Then the server hands the flow to the trial's responder, and the workload's own greeting
//! follows. If the responder has a port of its own, the initiator does not request.

use std::io;
use std::os::fd::AsFd;

use rustix::net::SendFlags;

/// Bytes of a request, of its challenge, and of the confirmation.
pub const BYTES: usize = 32;

/// Bytes of a challenge's token.
pub const TOKEN_BYTES: usize = 16;

const REQUEST: [u8; 8] = *b"weirREQ1";
const CHALLENGE: [u8; 8] = *b"weirCHL1";
const ENTERED: [u8; 8] = *b"weirENT1";

/// The contents of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRequest {
    /// [`crate::TrialSettings::cookie`] of the trial.
    pub cookie: u64,
    /// The token of the server's challenge; `None` in the first request.
    pub token: Option<[u8; TOKEN_BYTES]>,
}

/// The first bytes of every request, or of those for the trial with that cookie.
pub fn beginning(cookie: Option<u64>) -> Vec<u8> {
    let cookie = cookie.map(u64::to_be_bytes);
    [&REQUEST[..], cookie.as_ref().map_or(&[], |c| &c[..])].concat()
}

/// Reads a request; `None` if the datagram is none.
pub fn read(datagram: &[u8]) -> Option<FlowRequest> {
    let (cookie, token) = parse(&REQUEST, datagram)?;
    Some(FlowRequest { cookie, token: Some(token).filter(|t| *t != [0; TOKEN_BYTES]) })
}

/// The challenge to a request.
pub fn challenge(cookie: u64, token: [u8; TOKEN_BYTES]) -> [u8; BYTES] {
    write(&CHALLENGE, cookie, token)
}

/// Tells the initiator that its flow was handed over.
pub fn entered(cookie: u64) -> [u8; BYTES] {
    write(&ENTERED, cookie, [0; TOKEN_BYTES])
}

fn write(magic: &[u8; 8], cookie: u64, token: [u8; TOKEN_BYTES]) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    out[..8].copy_from_slice(magic);
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out[16..].copy_from_slice(&token);
    out
}

fn parse(magic: &[u8; 8], datagram: &[u8]) -> Option<(u64, [u8; TOKEN_BYTES])> {
    let bytes: &[u8; BYTES] = datagram.try_into().ok()?;
    let (head, token) = bytes.split_last_chunk::<TOKEN_BYTES>()?;
    let (start, cookie) = head.split_last_chunk::<8>()?;
    (start == magic).then(|| (u64::from_be_bytes(*cookie), *token))
}

/// The initiator's side, one per flow.
#[derive(Debug)]
pub(crate) struct Handshake {
    cookie: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing heard so far.
    Outside,
    /// The challenge came; its token, and the number of times that it was sent back.
    Proving([u8; TOKEN_BYTES], u32),
    /// The flow was handed over, or needs no handshake.
    Inside,
}

impl Handshake {
    /// `handshake` is [`crate::TrialSettings::handshake`].
    pub(crate) fn new(cookie: u64, handshake: bool) -> Self {
        Handshake { cookie, state: if handshake { State::Outside } else { State::Inside } }
    }

    /// Sends a request, if one is still needed. True if the workload may greet. To be called before every greeting.
    pub(crate) fn request(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let (token, greets) = match &mut self.state {
            State::Outside => ([0; TOKEN_BYTES], false),
            State::Proving(token, times) => {
                *times += 1;
                // The word that it is in may have been lost; then a greeting is answered.
                (*token, *times > 1)
            }
            State::Inside => return Ok(true),
        };
        rustix::net::send(socket.as_fd(), &write(&REQUEST, self.cookie, token), SendFlags::NOSIGNAL)?;
        Ok(greets)
    }

    /// True if the datagram was the server's answer to a request: the next one must follow at once.
    pub(crate) fn hears(&mut self, datagram: &[u8]) -> bool {
        if self.state == State::Inside {
            return false;
        }
        if let Some((cookie, token)) = parse(&CHALLENGE, datagram)
            && cookie == self.cookie
            && self.state == State::Outside
        {
            self.state = State::Proving(token, 0);
            return true;
        }
        if parse(&ENTERED, datagram).is_some_and(|(cookie, _)| cookie == self.cookie) {
            self.state = State::Inside;
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    #[test]
    fn nothing_is_answered_with_more_than_it_has() {
        assert_eq!(challenge(1, [7; 16]).len(), BYTES);
        assert_eq!(entered(1).len(), BYTES);
        // Shorter or longer than a request is none.
        let request = write(&REQUEST, 1, [0; 16]);
        assert!(request.starts_with(&beginning(None)) && request.starts_with(&beginning(Some(1))));
        assert!(!request.starts_with(&beginning(Some(2))));
        assert_eq!(read(&request), Some(FlowRequest { cookie: 1, token: None }));
        assert_eq!(read(&request[..31]), None);
        assert_eq!(read(&[&request[..], &[0]].concat()), None);
        assert_eq!(read(&challenge(1, [7; 16])), None);
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn a_flow_enters_although_every_answer_is_lost_once() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        let heard = || {
            let mut bytes = [0; 64];
            let n = server.recv(&mut bytes).unwrap();
            read(&bytes[..n])
        };
        let mut handshake = Handshake::new(9, true);
        for _ in 0..2 {
            assert!(!handshake.request(&client).unwrap());
            assert_eq!(heard(), Some(FlowRequest { cookie: 9, token: None }));
        }
        assert!(!handshake.hears(&challenge(8, [5; 16])), "another trial's");
        assert!(handshake.hears(&challenge(9, [5; 16])));
        assert!(!handshake.request(&client).unwrap());
        assert_eq!(heard(), Some(FlowRequest { cookie: 9, token: Some([5; 16]) }));
        // The word that it is in was lost: the greeting goes with the proof.
        assert!(handshake.request(&client).unwrap());
        assert_eq!(heard(), Some(FlowRequest { cookie: 9, token: Some([5; 16]) }));
        assert!(handshake.hears(&entered(9)));
        assert!(handshake.request(&client).unwrap());
        client.send(b"greeting").unwrap();
        assert_eq!(heard(), None, "no more requests");
        assert!(!handshake.hears(&entered(9)));
    }

    #[test]
    fn an_own_port_needs_no_handshake() {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        // It is not connected: a send would fail.
        assert!(Handshake::new(1, false).request(&client).unwrap());
    }
}
