//! Reading a response, byte by byte as it comes (RFC 9112): where it ends, its status, and whether the connection may be used
//! again. Bodies are counted, not kept. Every length is bounded, whatever the server sends.

use memchr::memchr;

/// Longest line of a header, chunk size or trailer, bytes: twice what nginx allows a back end to send (8 KiB).
const LONGEST_LINE: usize = 16 << 10;

/// All lines of one response together but for chunk sizes, bytes. Interim responses (1xx) count too, so a server cannot send them for ever.
const LONGEST_HEAD: usize = 64 << 10;

/// Why bytes are no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    /// The first line is not `HTTP/1.0` or `HTTP/1.1`, a status of three digits, and a reason.
    StatusLine,
    /// A header line without a colon or with blanks where none may be (RFC 9112 section 5.1), or folded (section 5.2).
    Header,
    /// A Content-Length that is no number, or two different ones (section 6.3).
    Length,
    /// A chunk that does not begin with its size or does not end where it must (section 7.1).
    Chunk,
    /// Lines longer than are read.
    TooLong,
    /// Unrequested bytes after the end of the response.
    Surplus,
    /// 101, although the request did not ask to switch protocols (RFC 9110 section 15.2.2).
    Switched,
}

/// The part of the response that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    StatusLine,
    Header,
    Body(u64),
    UntilClose,
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    Done,
}

/// How long the body is, as far as the headers said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Unsaid,
    Length(u64),
    Chunked,
    /// A transfer coding other than chunked is the last one: until the connection closes (RFC 9112 section 6.3).
    Coded,
}

/// One response after another on one connection.
#[derive(Debug)]
pub(super) struct Reader {
    state: State,
    framing: Framing,
    status: u16,
    keeps_open: bool,
    head_bytes: usize,
    body_bytes: u64,
    /// A line whose end has not come yet.
    line: Vec<u8>,
}

impl Reader {
    pub(super) fn new() -> Self {
        Reader {
            state: State::StatusLine,
            framing: Framing::Unsaid,
            status: 0,
            keeps_open: true,
            head_bytes: 0,
            body_bytes: 0,
            line: Vec::new(),
        }
    }

    /// Begin with the next response.
    #[inline]
    pub(super) fn reset(&mut self) {
        self.state = State::StatusLine;
        self.framing = Framing::Unsaid;
        self.head_bytes = 0;
        self.body_bytes = 0;
        self.line.clear();
    }

    /// Be where `other`, which has read a whole response, is.
    #[inline]
    pub(super) fn follow(&mut self, other: &Reader) {
        let Reader { state, framing, status, keeps_open, head_bytes, body_bytes, line: _ } = *other;
        (self.state, self.framing, self.status) = (state, framing, status);
        (self.keeps_open, self.head_bytes, self.body_bytes) = (keeps_open, head_bytes, body_bytes);
        self.line.clear();
    }

    /// True before the first byte of a response.
    pub(super) fn is_untouched(&self) -> bool {
        self.state == State::StatusLine && self.head_bytes == 0 && self.line.is_empty()
    }

    /// The status, once its line was read.
    pub(super) fn status(&self) -> u16 {
        self.status
    }

    /// Bytes of the body so far, without its framing.
    pub(super) fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// True if the connection may carry another request (RFC 9112 section 9.3).
    pub(super) fn keeps_open(&self) -> bool {
        self.keeps_open
    }

    /// Read on. True when the response is complete; then nothing may be left of `bytes`, since there was one request.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Result<bool, Bad> {
        while !bytes.is_empty() {
            match self.state {
                State::Done => return Err(Bad::Surplus),
                State::UntilClose => {
                    self.body_bytes += bytes.len() as u64;
                    return Ok(false);
                }
                State::Body(left) => {
                    let n = take(bytes, left);
                    self.body_bytes += n as u64;
                    bytes = &bytes[n..];
                    let left = left - n as u64;
                    self.state = if left == 0 { State::Done } else { State::Body(left) };
                }
                State::Chunk(left) => {
                    let n = take(bytes, left);
                    self.body_bytes += n as u64;
                    bytes = &bytes[n..];
                    let left = left - n as u64;
                    self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                }
                State::StatusLine | State::Header | State::Trailer | State::ChunkSize | State::ChunkEnd => {
                    bytes = self.read_line(bytes)?;
                }
            }
        }
        Ok(self.state == State::Done)
    }

    /// The server closed the connection. True if that is the proper end of the response.
    pub(super) fn closed(&mut self) -> bool {
        if self.state == State::UntilClose {
            self.state = State::Done;
        }
        self.state == State::Done
    }

    /// Take one line, or what there is of it. Returns the rest.
    fn read_line<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], Bad> {
        let Some(end) = memchr(b'\n', bytes) else {
            if self.line.len() + bytes.len() > LONGEST_LINE {
                return Err(Bad::TooLong);
            }
            self.line.extend_from_slice(bytes);
            return Ok(&[]);
        };
        if self.line.is_empty() {
            self.understand(&bytes[..end])?;
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(&bytes[..end]);
            let understood = self.understand(&line);
            // Its room is used again.
            line.clear();
            self.line = line;
            understood?;
        }
        Ok(&bytes[end + 1..])
    }

    /// A line without its end. A lone LF ends one too (RFC 9112 section 2.2).
    #[inline]
    fn understand(&mut self, line: &[u8]) -> Result<(), Bad> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > LONGEST_LINE {
            return Err(Bad::TooLong);
        }
        match self.state {
            State::ChunkSize => {
                let size = chunk_size(line)?;
                self.state = if size == 0 { State::Trailer } else { State::Chunk(size) };
                return Ok(());
            }
            State::ChunkEnd => {
                self.state = State::ChunkSize;
                return if line.is_empty() { Ok(()) } else { Err(Bad::Chunk) };
            }
            _ => {}
        }
        self.head_bytes += line.len() + 1;
        if self.head_bytes > LONGEST_HEAD {
            return Err(Bad::TooLong);
        }
        match (self.state, line.is_empty()) {
            (State::StatusLine, _) => self.status_line(line),
            (State::Header, true) => self.end_of_headers(),
            (State::Header, false) => self.header(line),
            (_, true) => {
                self.state = State::Done;
                Ok(())
            }
            // Trailers say nothing about the framing (RFC 9110 section 6.5.1).
            (_, false) => Ok(()),
        }
    }

    /// `HTTP/1.1 200 OK` (RFC 9112 section 4). The blank and the reason may be missing, as many servers leave them out.
    fn status_line(&mut self, line: &[u8]) -> Result<(), Bad> {
        let (version, rest) = line.split_at_checked(9).ok_or(Bad::StatusLine)?;
        self.keeps_open = match version {
            b"HTTP/1.1 " => true,
            b"HTTP/1.0 " => false,
            _ => return Err(Bad::StatusLine),
        };
        match rest {
            [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', reason @ ..]
                if reason.first().is_none_or(|&c| c == b' ') =>
            {
                self.status = 100 * u16::from(a - b'0') + 10 * u16::from(b - b'0') + u16::from(c - b'0');
            }
            _ => return Err(Bad::StatusLine),
        }
        self.state = State::Header;
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> Result<(), Bad> {
        let colon = memchr(b':', line).ok_or(Bad::Header)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.is_empty() || name.first().is_some_and(is_blank) || name.last().is_some_and(is_blank) {
            return Err(Bad::Header);
        }
        // Only three names matter, each of its own length.
        match name.len() {
            10 if name.eq_ignore_ascii_case(b"connection") => {
                for option in value.split(|&c| c == b',').map(<[u8]>::trim_ascii) {
                    if option.eq_ignore_ascii_case(b"close") {
                        self.keeps_open = false;
                    } else if option.eq_ignore_ascii_case(b"keep-alive") {
                        self.keeps_open = true;
                    }
                }
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let length = content_length(value)?;
                match self.framing {
                    Framing::Length(other) if other != length => return Err(Bad::Length),
                    Framing::Unsaid | Framing::Length(_) => self.framing = Framing::Length(length),
                    // A transfer coding overrides it (RFC 9112 section 6.3).
                    Framing::Chunked | Framing::Coded => self.keeps_open = false,
                }
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if matches!(self.framing, Framing::Length(_)) {
                    // An intermediary may have understood it differently, so the connection is not used again (section 6.1).
                    self.keeps_open = false;
                }
                let last = value.rsplit(|&c| c == b',').next().unwrap_or_default().trim_ascii();
                let chunked = last.eq_ignore_ascii_case(b"chunked");
                self.framing = if chunked { Framing::Chunked } else { Framing::Coded };
            }
            _ => {}
        }
        Ok(())
    }

    /// How the body is framed, in the order of RFC 9112 section 6.3.
    fn end_of_headers(&mut self) -> Result<(), Bad> {
        self.state = match (self.status, self.framing) {
            (101, _) => return Err(Bad::Switched),
            // An interim response; the real one follows (RFC 9110 section 15.2).
            (100..200, _) => {
                self.framing = Framing::Unsaid;
                State::StatusLine
            }
            (204 | 304, _) | (_, Framing::Length(0)) => State::Done,
            (_, Framing::Length(n)) => State::Body(n),
            (_, Framing::Chunked) => State::ChunkSize,
            (_, Framing::Unsaid | Framing::Coded) => {
                self.keeps_open = false;
                State::UntilClose
            }
        };
        Ok(())
    }
}

/// Bytes at hand of `left`.
#[inline]
fn take(bytes: &[u8], left: u64) -> usize {
    usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
}

fn is_blank(c: &u8) -> bool {
    matches!(c, b' ' | b'\t')
}

/// A decimal number; a list of equal ones, as some proxies make out of repeated headers, is that number (RFC 9110 section
/// 8.6).
fn content_length(value: &[u8]) -> Result<u64, Bad> {
    let mut found = None;
    for item in value.split(|&c| c == b',').map(<[u8]>::trim_ascii) {
        if item.is_empty() || !item.iter().all(u8::is_ascii_digit) {
            return Err(Bad::Length);
        }
        let number = item.iter().try_fold(0u64, |n, &c| n.checked_mul(10)?.checked_add(u64::from(c - b'0')));
        let number = number.ok_or(Bad::Length)?;
        if found.is_some_and(|other| other != number) {
            return Err(Bad::Length);
        }
        found = Some(number);
    }
    found.ok_or(Bad::Length)
}

/// The size at the beginning of a chunk; extensions behind it are skipped (RFC 9112 section 7.1.1).
fn chunk_size(line: &[u8]) -> Result<u64, Bad> {
    let digits = line.iter().take_while(|c| c.is_ascii_hexdigit()).count();
    let (size, rest) = line.split_at(digits);
    if digits == 0 || rest.trim_ascii().first().is_some_and(|&c| c != b';') {
        return Err(Bad::Chunk);
    }
    let digit = |c: u8| u64::from((c as char).to_digit(16).unwrap_or_default());
    size.iter().try_fold(0u64, |n, &c| n.checked_mul(16)?.checked_add(digit(c))).ok_or(Bad::Chunk)
}

#[cfg(test)]
mod tests;
