//! The far end: answers probes, and reports the fragments that it saw. It keeps no state of a prober except counts of fragments,
//! of a bounded number.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_sys::dont_fragment::{self, Splitting};
use weir_sys::segment_size;

use crate::message::{FarCounts, HEADER, Kind, MAGIC, Message, TOLD};
use crate::net::link_mtu;
use crate::witness::Witness;

/// Largest payload of a UDP datagram of IPv4.
const LARGEST: usize = 65_507;
/// How long a TCP connection may take for its few bytes.
const PATIENCE: Duration = Duration::from_millis(800);
/// Tallies a second that strangers get, all together: each reads files of the kernel, which takes some 50 us. A prober asks for
/// a dozen.
const TALLIES: u32 = 400;
/// Bytes of the answer over TCP: [`MAGIC`], the MSS that the SYN had when it came (0: unknown), and what this end sends.
pub(crate) const SEGMENTS: usize = 16;

/// Answers probes. Shared by threads.
#[derive(Debug)]
pub struct Responder {
    session: Option<u64>,
    witness: Mutex<Witness>,
    /// The second that is under way, and tallies in it.
    told: Mutex<(Instant, u32)>,
}

/// The answer to send back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The payload.
    pub bytes: Vec<u8>,
    /// Whether the kernel may split it.
    pub splitting: Splitting,
    /// Length of the fragments, bytes, where it may and the address is of IPv6; 0: as the kernel knows the path.
    pub fragment: u32,
}

impl Responder {
    /// A responder for any prober: no answer is longer than its question. With the privilege for it (CAP_NET_RAW), it sees the
    /// single fragments that come to the namespace of the calling thread.
    pub fn open() -> Self {
        Responder {
            session: None,
            witness: Mutex::new(Witness::open()),
            told: Mutex::new((Instant::now(), 0)),
        }
    }

    /// For one session, whose number both ends have from elsewhere: only it is answered, and with as much as it asks for.
    pub fn of_session(session: u64) -> Self {
        Responder { session: Some(session), ..Responder::open() }
    }

    /// The answer to a datagram of which `head` is the beginning and `length` the whole length of its payload, bytes. `None`
    /// if it is no question of a prober.
    pub fn answer(&self, head: &[u8], length: usize, from: SocketAddr) -> Option<Answer> {
        let message = Message::read(head).filter(|m| m.kind.asks())?;
        if self.session.is_some_and(|own| own != message.session) {
            return None;
        }
        let back = |kind, size, length| Message { kind, size, ..message }.write(length);
        let (bytes, splitting) = match message.kind {
            Kind::Fetch => {
                let wanted = (message.size as usize).clamp(HEADER, LARGEST);
                if wanted > length && self.session.is_none() {
                    return None;
                }
                let splitting = if message.splits { Splitting::Allowed } else { Splitting::Never };
                (back(Kind::Fetched, message.size, wanted), splitting)
            }
            Kind::Tell if length >= TOLD && self.may_tell() => {
                let mut bytes = back(Kind::Told, 0, TOLD);
                if let Some((_, tally)) = bytes.split_first_chunk_mut::<HEADER>()
                    && let Ok(tally) = tally.try_into()
                {
                    self.tally(message.session, from).write(tally);
                }
                (bytes, Splitting::Usual)
            }
            // Too short to be answered, or one too many.
            Kind::Tell => return None,
            _ => (back(Kind::Came, u32::try_from(length).unwrap_or(u32::MAX), HEADER), Splitting::Usual),
        };
        // RFC 8200 section 5: every link carries 1280 bytes.
        let fragment = if message.fragment >= 1280 { message.fragment.into() } else { 0 };
        Some(Answer { bytes, splitting, fragment })
    }

    /// Answers over the socket that the datagram came to, which must not be used by others at the same time: its option of
    /// splitting is changed for the answer, and put back to the system's default. False if it was no question of a prober.
    ///
    /// # Errors
    /// The socket cannot send.
    pub fn reply(
        &self,
        socket: &UdpSocket,
        head: &[u8],
        length: usize,
        from: SocketAddr,
    ) -> io::Result<bool> {
        let Some(answer) = self.answer(head, length, from) else { return Ok(false) };
        let ipv6 = socket.local_addr()?.is_ipv6();
        if answer.splitting != Splitting::Usual {
            dont_fragment::set(socket, ipv6, answer.splitting)?;
        }
        let fragment = if ipv6 { answer.fragment } else { 0 };
        if fragment > 0 {
            dont_fragment::set_fragment_length(socket, fragment)?;
        }
        let mut sent = socket.send_to(&answer.bytes, from);
        if fragment > 0 {
            dont_fragment::set_fragment_length(socket, 0)?;
        }
        if answer.splitting != Splitting::Usual {
            dont_fragment::set(socket, ipv6, Splitting::Usual)?;
        }
        if let (Err(error), Some(message)) = (&sent, Message::read(&answer.bytes))
            && error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error())
            && answer.splitting == Splitting::Never
        {
            let size = link_mtu(from.ip().to_canonical()).unwrap_or(0);
            let short = Message { kind: Kind::TooLong, size, ..message }.write(HEADER);
            sent = socket.send_to(&short, from);
        }
        match sent {
            // The error is about an earlier answer and no longer matters.
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock) => {
                Ok(true)
            }
            Err(e) if unreachable(&e) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Whether one more tally may be sent in this second.
    fn may_tell(&self) -> bool {
        if self.session.is_some() {
            return true;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.0.elapsed() >= Duration::from_secs(1) {
            *told = (Instant::now(), 0);
        }
        told.1 += 1;
        told.1 <= TALLIES
    }

    fn tally(&self, session: u64, from: SocketAddr) -> FarCounts {
        // Nothing that holds the lock can panic half-way.
        let mut witness = self.witness.lock().unwrap_or_else(PoisonError::into_inner);
        // A tap that cannot be read has seen nothing.
        let tally = witness.tally(session, from.ip()).unwrap_or_default();
        FarCounts { route_mtu: route_mtu(from).unwrap_or(0), ..tally }
    }
}

/// The path does not lead there any more.
fn unreachable(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error();
    [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::PERM, Errno::MSGSIZE]
        .iter()
        .any(|e| code == Some(e.raw_os_error()))
}

/// The MTU that the kernel reckons with towards an address.
fn route_mtu(to: SocketAddr) -> io::Result<u32> {
    let to = SocketAddr::new(to.ip().to_canonical(), to.port());
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    dont_fragment::known_path_mtu(&socket, to.is_ipv6())
}

/// Serves a TCP connection that begins with [`MAGIC`], which is still to be read: tells the prober with which MSS its SYN came
/// ([`segment_size::keep_syn`] on the listener) and closes. Takes less than two seconds.
///
/// # Errors
/// The connection broke, or began with something else.
pub fn connection(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut magic = [0; MAGIC.len()];
    // They come in one segment.
    if stream.read(&mut magic)? < magic.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if magic != MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a prober of path MTUs"));
    }
    let announced = segment_size::announced_to(&stream)?.unwrap_or(0);
    let sends = segment_size::of(&stream)?.sends;
    let mut answer = [0; SEGMENTS];
    answer[..8].copy_from_slice(&MAGIC);
    answer[8..10].copy_from_slice(&announced.to_be_bytes());
    answer[12..].copy_from_slice(&sends.to_be_bytes());
    stream.write_all(&answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn from() -> SocketAddr {
        "192.0.2.1:9".parse().unwrap()
    }

    fn ask(kind: Kind, size: u32, length: usize) -> Vec<u8> {
        Message { session: 7, number: 3, kind, splits: true, fragment: 0, size }.write(length)
    }

    #[test]
    fn questions_are_answered_and_answers_are_not() {
        let responder = Responder::open();
        let came = responder.answer(&ask(Kind::Probe, 0, 100)[..64], 1472, from()).unwrap();
        let message = Message::read(&came.bytes).unwrap();
        assert_eq!((message.kind, message.size, message.number, message.session), (Kind::Came, 1472, 3, 7));
        let fetched = responder.answer(&ask(Kind::Fetch, 1000, 1000), 1000, from()).unwrap();
        assert_eq!((fetched.bytes.len(), fetched.splitting), (1000, Splitting::Allowed));
        let told = responder.answer(&ask(Kind::Tell, 0, TOLD), TOLD, from()).unwrap();
        assert!(FarCounts::read(&told.bytes).is_some());
        for answer in [came, fetched, told] {
            assert_eq!(responder.answer(&answer.bytes, answer.bytes.len(), from()), None);
        }
    }

    #[test]
    fn more_than_came_is_sent_only_to_whom_the_session_is_known() {
        let ask = ask(Kind::Fetch, 8192, 64);
        assert_eq!(Responder::open().answer(&ask, 64, from()), None);
        assert_eq!(Responder::of_session(8).answer(&ask, 64, from()), None);
        assert_eq!(Responder::of_session(7).answer(&ask, 64, from()).unwrap().bytes.len(), 8192);
    }

    #[test]
    fn a_flood_of_questions_is_not_answered_for_ever() {
        let responder = Responder::open();
        let question = ask(Kind::Tell, 0, TOLD);
        let begun = Instant::now();
        let told = (0..3 * TALLIES).filter(|_| responder.answer(&question, TOLD, from()).is_some()).count();
        // As many as there were seconds, begun ones included.
        let seconds = begun.elapsed().as_secs() as usize + 1;
        assert!((TALLIES as usize..=TALLIES as usize * seconds).contains(&told), "{told} in {seconds}");
    }

    proptest! {
        #[test]
        fn nobody_gets_more_than_he_sent(
            kind in prop::sample::select(vec![Kind::Probe, Kind::Fetch, Kind::Tell, Kind::Came]),
            size: u32,
            length in HEADER..2000,
            noise in prop::collection::vec((0usize..HEADER, any::<u8>()), 0..3),
        ) {
            let mut bytes = ask(kind, size, length);
            for (at, byte) in noise {
                bytes[at] = byte;
            }
            if let Some(answer) = Responder::open().answer(&bytes, length, from()) {
                prop_assert!(answer.bytes.len() <= length);
            }
        }
    }
}
