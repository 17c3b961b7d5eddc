//! Frames on a byte stream: length (32 bits, big-endian), then JSON. Reads have a deadline and a size limit, because the peer may
//! be hostile, slow, or gone.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest frame that a server reads, bytes: a workload with all its options is a hundredth of it.
pub const MOST_FROM_CLIENT: usize = 64 << 10;

/// Longest frame that a client reads: a part with its histograms and a thousand points of each series.
pub const MOST_FROM_SERVER: usize = 16 << 20;

/// A body grows by so much at a time while it arrives: a length alone allocates nothing.
const PIECE: usize = 16 << 10;

/// Why there is no frame.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The other end closed the connection between two frames.
    #[error("the other end closed the connection")]
    Closed,
    /// Nothing, or only a part of a frame, came in time.
    #[error("the other end said nothing in time")]
    Late,
    /// The length is above the bound, or the body is not what it should be.
    #[error("the other end sent what is not a message: {0}")]
    Malformed(String),
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The bytes of a frame.
///
/// # Errors
/// `Malformed` for a message above `most` bytes.
pub fn encode(message: &impl Serialize, most: usize) -> Result<Vec<u8>, Error> {
    let body = serde_json::to_vec(message).map_err(|e| Error::Malformed(e.to_string()))?;
    let length = u32::try_from(body.len()).ok().filter(|n| *n as usize <= most);
    let length =
        length.ok_or_else(|| Error::Malformed(format!("{} bytes; at most {most} are valid", body.len())))?;
    Ok([&length.to_be_bytes()[..], &body].concat())
}

/// Read one frame from a stream whose reads end by themselves.
///
/// # Errors
/// As [`Error`] says; `Io` with `UnexpectedEof` for half a frame.
pub fn read<T: DeserializeOwned>(mut stream: impl Read, most: usize) -> Result<T, Error> {
    let mut header = [0; 4];
    fill(&mut stream, &mut header, true)?;
    let length = u32::from_be_bytes(header) as usize;
    if length > most {
        return Err(Error::Malformed(format!("a frame of {length} bytes; at most {most} are valid")));
    }
    let mut body = Vec::new();
    while body.len() < length {
        let have = body.len();
        body.resize(length.min(have + PIECE), 0);
        fill(&mut stream, &mut body[have..], false)?;
    }
    let malformed = |e: &dyn std::error::Error| Error::Malformed(e.to_string());
    // From a `str` as everywhere: serde has code of its own for each type and each source.
    let text = str::from_utf8(&body).map_err(|e| malformed(&e))?;
    serde_json::from_str(text).map_err(|e| malformed(&e))
}

fn fill(stream: &mut impl Read, buffer: &mut [u8], between: bool) -> Result<(), Error> {
    let mut have = 0;
    while have < buffer.len() {
        match stream.read(&mut buffer[have..]) {
            Ok(0) if have == 0 && between => return Err(Error::Closed),
            Ok(0) => return Err(Error::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                return Err(Error::Late);
            }
            Err(e) => return Err(Error::Io(e)),
        }
    }
    Ok(())
}

/// One end of a conversation in frames. The socket does not block; each call has its own deadline.
#[derive(Debug)]
pub struct Line<'a> {
    socket: &'a TcpStream,
    most: usize,
}

impl<'a> Line<'a> {
    /// A conversation over this connection in which frames of at most `most` bytes are read.
    ///
    /// # Errors
    /// The socket cannot be prepared.
    pub fn new(socket: &'a TcpStream, most: usize) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Line { socket, most })
    }

    /// True when something can be read, or the other end has closed; false after `patience`.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn await_word(&self, patience: Duration) -> io::Result<bool> {
        ready(self.socket, PollFlags::IN, Instant::now() + patience)
    }

    /// The next frame, whole within `patience`.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn hear<T: DeserializeOwned>(&self, patience: Duration) -> Result<T, Error> {
        read(Timed { socket: self.socket, deadline: Instant::now() + patience }, self.most)
    }

    /// Send a frame, all of it within `patience`.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn say(&self, message: &impl Serialize, patience: Duration) -> Result<(), Error> {
        self.send(&encode(message, MOST_FROM_SERVER)?, patience)
    }

    /// Send bytes, all of them within `patience`.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn send(&self, bytes: &[u8], patience: Duration) -> Result<(), Error> {
        let mut timed = Timed { socket: self.socket, deadline: Instant::now() + patience };
        timed.write_all(bytes).map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => Error::Late,
            _ => Error::Io(e),
        })
    }

    /// Take exactly so many bytes off the connection, within `patience`.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn take<const N: usize>(&self, patience: Duration) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        fill(&mut Timed { socket: self.socket, deadline: Instant::now() + patience }, &mut bytes, true)?;
        Ok(bytes)
    }
}

/// A socket whose reads and writes end at the deadline, however slowly its bytes come.
struct Timed<'a> {
    socket: &'a TcpStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn until<T>(
        &mut self,
        what: PollFlags,
        mut call: impl FnMut(&TcpStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match call(self.socket) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if !ready(self.socket, what, self.deadline)? {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                // Bytes that come one by one do not move the deadline.
                _ if Instant::now() >= self.deadline => return Err(io::ErrorKind::TimedOut.into()),
                other => return other,
            }
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.until(PollFlags::IN, |mut socket| socket.read(buffer))
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.until(PollFlags::OUT, |mut socket| socket.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ready(socket: &TcpStream, what: PollFlags, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(socket, what)], Some(&limit)) {
            Ok(n) => return Ok(n > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn frame(length: u32, body: &[u8]) -> Vec<u8> {
        [&length.to_be_bytes()[..], body].concat()
    }

    #[test]
    fn frames_come_back_in_order() {
        let bytes = [encode(&"one", 100).unwrap(), encode(&vec![2, 3], 100).unwrap()].concat();
        let mut stream = &bytes[..];
        assert_eq!(read::<String>(&mut stream, 100).unwrap(), "one");
        assert_eq!(read::<Vec<u8>>(&mut stream, 100).unwrap(), [2, 3]);
        assert!(matches!(read::<String>(&mut stream, 100), Err(Error::Closed)));
    }

    #[test]
    fn half_frames_garbage_and_absurd_lengths_are_errors() {
        let error = |bytes: &[u8]| read::<String>(bytes, 1000).unwrap_err();
        assert!(matches!(error(&[0, 0]), Error::Io(_)));
        assert!(matches!(error(&frame(9, b"\"")), Error::Io(_)));
        assert!(matches!(error(&frame(u32::MAX, b"")), Error::Malformed(_)));
        assert!(matches!(error(&frame(1001, &[b' '; 1001])), Error::Malformed(_)));
        assert!(matches!(error(&frame(2, b"{x")), Error::Malformed(_)));
        assert!(matches!(encode(&"x".repeat(100), 100), Err(Error::Malformed(_))));
        // Deeply nested: an error, and not the end of the stack.
        let deep = "[".repeat(900);
        assert!(matches!(
            read::<serde_json::Value>(&frame(900, deep.as_bytes())[..], 1000),
            Err(Error::Malformed(_))
        ));
    }

    #[test]
    fn bytes_that_trickle_do_not_move_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let line = Line::new(&socket, 1000).unwrap();
        let trickle = std::thread::spawn(move || {
            // A byte every 10 ms: 100 of them take longer than the reader waits.
            while slow.write_all(b"\0").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        // The first zero bytes are a length of 0, whose body is no JSON.
        assert!(matches!(line.hear::<String>(Duration::from_secs(5)), Err(Error::Malformed(_))));
        let begun = Instant::now();
        assert!(matches!(line.take::<100_000>(Duration::from_millis(200)), Err(Error::Late)));
        assert!(begun.elapsed() >= Duration::from_millis(200));
        drop(socket);
        trickle.join().unwrap();
    }
}
