//! How a UDP flow finds its trial at a server that shares one port among many trials, and proves first that it comes from
//! where it says.
//!
//! The initiator knocks with the trial's cookie. The server answers with a challenge that is as large as the knock, and does
//! nothing else until the initiator has sent it back: a forged source address gets no more bytes than were sent in its name,
//! and costs the server no memory. Then the server hands the flow to the trial's responder, and the workload's own greeting
//! follows. Where the responder has a port of its own, nothing is knocked.

use std::io;
use std::os::fd::AsFd;

use rustix::net::SendFlags;

/// Bytes of a knock, of its challenge, and of the word that the flow is in.
pub const BYTES: usize = 32;

/// Bytes of a challenge's token.
pub const TOKEN_BYTES: usize = 16;

const KNOCK: [u8; 8] = *b"weirKNK1";
const CHALLENGE: [u8; 8] = *b"weirCHL1";
const ENTERED: [u8; 8] = *b"weirENT1";

/// What a knock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knock {
    /// [`crate::Setting::cookie`] of the trial.
    pub cookie: u64,
    /// What the server sent as a challenge; `None` in the first knock.
    pub token: Option<[u8; TOKEN_BYTES]>,
}

/// How every knock begins, or every one for the trial with that cookie.
pub fn beginning(cookie: Option<u64>) -> Vec<u8> {
    let cookie = cookie.map(u64::to_be_bytes);
    [&KNOCK[..], cookie.as_ref().map_or(&[], |c| &c[..])].concat()
}

/// A knock, if the datagram is one.
pub fn read(datagram: &[u8]) -> Option<Knock> {
    let (cookie, token) = parse(&KNOCK, datagram)?;
    Some(Knock { cookie, token: Some(token).filter(|t| *t != [0; TOKEN_BYTES]) })
}

/// The challenge to a knock.
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
pub(crate) struct Knocker {
    cookie: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing heard so far.
    Outside,
    /// The challenge came, and was sent back so often.
    Proving([u8; TOKEN_BYTES], u32),
    /// The flow was handed over, or there is nobody to knock at.
    Inside,
}

impl Knocker {
    /// `knocks` is [`crate::Setting::knocks`].
    pub(crate) fn new(cookie: u64, knocks: bool) -> Self {
        Knocker { cookie, state: if knocks { State::Outside } else { State::Inside } }
    }

    /// Knock, if that is still needed. True if the workload may greet. To be called before every greeting.
    pub(crate) fn knock(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let (token, greets) = match &mut self.state {
            State::Outside => ([0; TOKEN_BYTES], false),
            State::Proving(token, times) => {
                *times += 1;
                // The word that it is in may have been lost; then a greeting is answered.
                (*token, *times > 1)
            }
            State::Inside => return Ok(true),
        };
        rustix::net::send(socket.as_fd(), &write(&KNOCK, self.cookie, token), SendFlags::NOSIGNAL)?;
        Ok(greets)
    }

    /// True if the datagram was the server's answer to a knock: there is something to say at once.
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
        // Shorter or longer than a knock is none.
        let knock = write(&KNOCK, 1, [0; 16]);
        assert!(knock.starts_with(&beginning(None)) && knock.starts_with(&beginning(Some(1))));
        assert!(!knock.starts_with(&beginning(Some(2))));
        assert_eq!(read(&knock), Some(Knock { cookie: 1, token: None }));
        assert_eq!(read(&knock[..31]), None);
        assert_eq!(read(&[&knock[..], &[0]].concat()), None);
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
        let mut knocker = Knocker::new(9, true);
        for _ in 0..2 {
            assert!(!knocker.knock(&client).unwrap());
            assert_eq!(heard(), Some(Knock { cookie: 9, token: None }));
        }
        assert!(!knocker.hears(&challenge(8, [5; 16])), "another trial's");
        assert!(knocker.hears(&challenge(9, [5; 16])));
        assert!(!knocker.knock(&client).unwrap());
        assert_eq!(heard(), Some(Knock { cookie: 9, token: Some([5; 16]) }));
        // The word that it is in was lost: the greeting goes with the proof.
        assert!(knocker.knock(&client).unwrap());
        assert_eq!(heard(), Some(Knock { cookie: 9, token: Some([5; 16]) }));
        assert!(knocker.hears(&entered(9)));
        assert!(knocker.knock(&client).unwrap());
        client.send(b"greeting").unwrap();
        assert_eq!(heard(), None, "no more knocks");
        assert!(!knocker.hears(&entered(9)));
    }

    #[test]
    fn nothing_is_knocked_at_a_port_of_one_s_own() {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        // It is not connected: a send would fail.
        assert!(Knocker::new(1, false).knock(&client).unwrap());
    }
}
