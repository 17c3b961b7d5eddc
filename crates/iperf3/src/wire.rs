//! The content of the control connection: a cookie first, then states of one byte, and now and then a frame of JSON.
//!
//! There is no specification; this is what iperf 3.12 to 3.20 say and understand.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde_json::Value;
use weir_sys::Stop;

use super::error::Error;

/// Bytes of a cookie: 36 characters and a zero.
pub const COOKIE_BYTES: usize = 37;

/// Longest wait between two looks at a stop flag.
const LOOK: Duration = Duration::from_millis(50);

/// Bytes of a frame that are read at a time: an announced length takes no memory before the bytes arrive.
const PIECE: usize = 64 << 10;

/// The characters of a cookie.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The mark that tells the connections of one test from those of others: the first bytes of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie([u8; COOKIE_BYTES]);

impl Cookie {
    /// A new one, out of the kernel's random numbers.
    ///
    /// # Errors
    /// /dev/urandom cannot be read.
    pub(super) fn random() -> io::Result<Cookie> {
        let mut bytes = [0; COOKIE_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let mut cookie = bytes.map(|b| ALPHABET[usize::from(b) % ALPHABET.len()]);
        cookie[COOKIE_BYTES - 1] = 0;
        Ok(Cookie(cookie))
    }

    /// Returns the cookie that these bytes begin with; `None` if they are no cookie.
    pub fn read(bytes: &[u8]) -> Option<Cookie> {
        let (cookie, _) = bytes.split_first_chunk::<COOKIE_BYTES>()?;
        let (end, characters) = cookie.split_last()?;
        (*end == 0 && characters.iter().all(|c| ALPHABET.contains(c))).then_some(Cookie(*cookie))
    }

    /// As it goes over the wire.
    pub(super) fn bytes(&self) -> &[u8; COOKIE_BYTES] {
        &self.0
    }
}

/// The states that one end tells the other (iperf_api.h), one signed byte each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    TestStart,
    TestRunning,
    TestEnd,
    ParamExchange,
    CreateStreams,
    ServerTerminate,
    ClientTerminate,
    ExchangeResults,
    DisplayResults,
    Done,
    AccessDenied,
    ServerError,
}

impl State {
    const ALL: [(State, i8); 12] = [
        (State::TestStart, 1),
        (State::TestRunning, 2),
        (State::TestEnd, 4),
        (State::ParamExchange, 9),
        (State::CreateStreams, 10),
        (State::ServerTerminate, 11),
        (State::ClientTerminate, 12),
        (State::ExchangeResults, 13),
        (State::DisplayResults, 14),
        (State::Done, 16),
        (State::AccessDenied, -1),
        (State::ServerError, -2),
    ];

    pub(super) fn byte(self) -> u8 {
        Self::ALL.iter().find(|(s, _)| *s == self).map_or(0, |(_, b)| b.cast_unsigned())
    }

    pub(super) fn of(byte: u8) -> Option<State> {
        Self::ALL.iter().find(|(_, b)| b.cast_unsigned() == byte).map(|(s, _)| *s)
    }
}

/// The event that woke a waiting end up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// The other end said something, or is gone.
    Word,
    /// The bell was rung by one of our own threads.
    Bell,
    /// The time is over.
    Time,
}

/// The control connection.
#[derive(Debug)]
pub(super) struct Control {
    stream: TcpStream,
    stop: Stop,
}

impl Control {
    /// Takes the connection over. `stop` ends every wait.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub(super) fn new(stream: TcpStream, stop: Stop) -> Result<Control, Error> {
        stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| stream.set_write_timeout(Some(LOOK)))
            .map_err(Error::io("prepare the control connection"))?;
        Ok(Control { stream, stop })
    }

    /// Everything is to end.
    pub(super) fn stopped(&self) -> bool {
        self.stop.raised()
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Wait for the other end's next word, for the bell, or for the time to be over.
    ///
    /// # Errors
    /// `Stopped`.
    pub(super) fn wait(&self, bell: Option<BorrowedFd<'_>>, until: Instant) -> Result<Woken, Error> {
        loop {
            if self.stop.raised() {
                return Err(Error::Stopped);
            }
            let left = until.saturating_duration_since(Instant::now()).min(LOOK);
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let control = PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN);
            let mut ready =
                [control.clone(), bell.map_or(control, |b| PollFd::from_borrowed_fd(b, PollFlags::IN))];
            let watched = if bell.is_some() { 2 } else { 1 };
            match poll(&mut ready[..watched], Some(&timeout)) {
                Ok(_) if !ready[0].revents().is_empty() => return Ok(Woken::Word),
                Ok(n) if n > 0 => return Ok(Woken::Bell),
                Ok(_) if Instant::now() >= until => return Ok(Woken::Time),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::Io { what: "wait for the other end", source: e.into() }),
            }
        }
    }

    /// Fill the buffer by then.
    fn read(&mut self, buffer: &mut [u8], until: Instant, what: &'static str) -> Result<(), Error> {
        let mut done = 0;
        while done < buffer.len() {
            if self.wait(None, until)? == Woken::Time {
                return Err(Error::Silent(what));
            }
            match self.stream.read(&mut buffer[done..]) {
                Ok(0) => return Err(Error::Closed(what)),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Err(Error::Closed(what)),
                Err(source) => return Err(Error::Io { what, source }),
            }
        }
        Ok(())
    }

    /// The other end's next word.
    ///
    /// # Errors
    /// It is none, none came within `patience`, or the connection is gone.
    pub(super) fn read_state(&mut self, patience: Duration, what: &'static str) -> Result<State, Error> {
        let mut byte = [0];
        self.read(&mut byte, Instant::now() + patience, what)?;
        State::of(byte[0]).ok_or_else(|| {
            Error::Protocol(format!("{what}: {} is no state of iperf3", byte[0].cast_signed()))
        })
    }

    /// A frame of JSON of at most `limit` bytes, whole within `patience`.
    ///
    /// # Errors
    /// It is longer, no JSON, or late.
    pub(super) fn read_json(
        &mut self,
        limit: usize,
        patience: Duration,
        what: &'static str,
    ) -> Result<Value, Error> {
        let until = Instant::now() + patience;
        let mut length = [0; 4];
        self.read(&mut length, until, what)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > limit {
            return Err(Error::Protocol(format!("{what}: a frame of {length} bytes; the limit is {limit}")));
        }
        let mut frame = Vec::new();
        while frame.len() < length {
            let from = frame.len();
            frame.resize(length.min(from + PIECE), 0);
            self.read(&mut frame[from..], until, what)?;
        }
        parse_json(&frame).map_err(|e| Error::Protocol(format!("{what}: {e}")))
    }

    /// Four bytes, big-endian: the two numbers behind [`State::ServerError`].
    pub(super) fn read_number(&mut self, patience: Duration, what: &'static str) -> Result<i32, Error> {
        let mut bytes = [0; 4];
        self.read(&mut bytes, Instant::now() + patience, what)?;
        Ok(i32::from_be_bytes(bytes))
    }

    /// Say something, within `patience`.
    ///
    /// # Errors
    /// The other end does not take it, or is gone.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        patience: Duration,
        what: &'static str,
    ) -> Result<(), Error> {
        let until = Instant::now() + patience;
        let mut done = 0;
        while done < bytes.len() {
            match self.stream.write(&bytes[done..]) {
                Ok(n) => done += n,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    if self.stop.raised() {
                        return Err(Error::Stopped);
                    }
                    if Instant::now() >= until {
                        return Err(Error::Silent(what));
                    }
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
                    return Err(Error::Closed(what));
                }
                Err(source) => return Err(Error::Io { what, source }),
            }
        }
        Ok(())
    }

    pub(super) fn write_state(&mut self, state: State, patience: Duration) -> Result<(), Error> {
        self.write(&[state.byte()], patience, "tell the other end the next step")
    }

    pub(super) fn write_json(
        &mut self,
        value: &Value,
        patience: Duration,
        what: &'static str,
    ) -> Result<(), Error> {
        self.write(&frame(value), patience, what)
    }
}

/// A frame: the length in four bytes, big-endian, and the text.
fn frame(value: &Value) -> Vec<u8> {
    let text = value.to_string();
    // Frames from this end are far below 4 GiB: results of 128 streams and a server's output of bounded length.
    let mut out = (text.len() as u32).to_be_bytes().to_vec();
    out.extend_from_slice(text.as_bytes());
    out
}

/// The text of a frame. iperf3's own parser stops at a closing zero, and some versions count that in.
pub(super) fn parse_json(text: &[u8]) -> Result<Value, String> {
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    let text = str::from_utf8(text).map_err(|e| format!("no JSON ({e})"))?;
    serde_json::from_str(text).map_err(|e| format!("no JSON ({e})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, Control) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        (one, Control::new(other, Stop::default()).unwrap())
    }

    #[test]
    fn states_are_the_bytes_of_iperf_api_h() {
        for (state, byte) in State::ALL {
            assert_eq!(State::of(byte.cast_unsigned()), Some(state));
            assert_eq!(state.byte(), byte.cast_unsigned());
        }
        assert_eq!(State::AccessDenied.byte(), 0xff);
        for none in [0, 3, 5, 8, 15, 17, 0x80, 0xfd] {
            assert_eq!(State::of(none), None, "{none}");
        }
    }

    #[test]
    fn cookies_are_made_and_known() {
        let cookie = Cookie::random().unwrap();
        assert_eq!(Cookie::read(cookie.bytes()), Some(cookie));
        assert_ne!(Cookie::random().unwrap(), cookie);
        let mut longer = cookie.bytes().to_vec();
        longer.push(9);
        assert_eq!(Cookie::read(&longer), Some(cookie));
        assert_eq!(Cookie::read(&longer[..36]), None);
        assert_eq!(Cookie::read(b"GET / HTTP/1.1\r\nHost: 192.0.2.1:5201\r\n\r\n"), None);
    }

    #[test]
    fn a_frame_is_read_and_a_long_one_is_refused_before_it_is_read() {
        let (mut one, mut control) = pair();
        one.write_all(&frame(&serde_json::json!({"tcp": true}))).unwrap();
        let patience = Duration::from_secs(5);
        assert_eq!(control.read_json(64, patience, "test").unwrap()["tcp"], true);
        one.write_all(&u32::MAX.to_be_bytes()).unwrap();
        let error = control.read_json(64, patience, "test").unwrap_err().to_string();
        assert!(error.contains("4294967295 bytes"), "{error}");
    }

    #[test]
    fn half_a_frame_ends_in_time_and_a_gone_client_at_once() {
        let (mut one, mut control) = pair();
        one.write_all(&[0, 0, 0, 9, b'{']).unwrap();
        let error = control.read_json(64, Duration::from_millis(80), "parameters").unwrap_err();
        assert!(matches!(error, Error::Silent("parameters")), "{error}");
        drop(one);
        let error = control.read_state(Duration::from_secs(60), "state").unwrap_err();
        assert!(matches!(error, Error::Closed("state")), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_cookie_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(cookie) = Cookie::read(&bytes) {
                prop_assert_eq!(cookie.bytes().as_slice(), &bytes[..COOKIE_BYTES]);
                prop_assert!(bytes[..36].iter().all(|c| matches!(c, b'a'..=b'z' | b'2'..=b'7')));
            }
        }

        #[test]
        fn any_text_is_json_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let _ = parse_json(&bytes);
        }
    }
}
