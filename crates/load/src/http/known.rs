//! The last response again: most servers answer the same request with the same bytes, but for the date once a second.
//!
//! A response that came in one piece and is equal to one that was read as whole, byte by byte, is whole too and means the same. To
//! compare is a tenth of the work of reading it.

use super::response::{Bad, Reader};

/// Responses above this are not kept, bytes: the comparison is to stay within the fastest cache.
const LARGEST: usize = 4096;

/// One whole response, and what reading it led to.
#[derive(Debug)]
pub(super) struct Known {
    bytes: Vec<u8>,
    read: Reader,
}

impl Known {
    pub(super) fn new() -> Self {
        Known { bytes: Vec::with_capacity(LARGEST), read: Reader::new() }
    }

    /// As [`Reader::read`].
    pub(super) fn read(&mut self, reader: &mut Reader, bytes: &[u8]) -> Result<bool, Bad> {
        let from_start = reader.is_untouched() && !bytes.is_empty();
        if from_start && bytes == self.bytes {
            reader.follow(&self.read);
            return Ok(true);
        }
        let whole = reader.read(bytes)?;
        if whole && from_start && bytes.len() <= LARGEST {
            self.bytes.clear();
            self.bytes.extend_from_slice(bytes);
            self.read.follow(reader);
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: [&str; 6] = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        "HTTP/1.1 304 Not Modified\r\n\r\n",
    ];

    /// The result of a reader without memory.
    fn plainly(bytes: &[u8]) -> (Result<bool, Bad>, u16, u64, bool) {
        let mut reader = Reader::new();
        let result = reader.read(bytes);
        (result, reader.status(), reader.body_bytes(), reader.keeps_open())
    }

    #[test]
    fn a_response_means_the_same_after_any_other() {
        let mut known = Known::new();
        let mut reader = Reader::new();
        // Every order of two, each twice in a row, on one connection.
        for a in ANSWERS {
            for b in ANSWERS {
                for answer in [a, a, b, b] {
                    reader.reset();
                    let result = known.read(&mut reader, answer.as_bytes());
                    let seen = (result, reader.status(), reader.body_bytes(), reader.keeps_open());
                    assert_eq!(seen, plainly(answer.as_bytes()), "{answer:?}");
                    // Whatever follows was not asked for.
                    assert_eq!(known.read(&mut reader, b"H"), Err(Bad::Surplus));
                }
            }
        }
    }

    #[test]
    fn pieces_and_halves_are_not_taken_for_the_whole() {
        let answer = ANSWERS[0].as_bytes();
        let mut known = Known::new();
        let mut reader = Reader::new();
        assert_eq!(known.read(&mut reader, answer), Ok(true));
        for cut in 0..answer.len() {
            reader.reset();
            assert_eq!(known.read(&mut reader, &answer[..cut]), Ok(false), "{cut}");
            assert_eq!(known.read(&mut reader, &answer[cut..]), Ok(true), "{cut}");
            assert_eq!(reader.body_bytes(), 5);
        }
        // The rest of a body that looks like a response is none.
        reader.reset();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len() + 1);
        assert_eq!(known.read(&mut reader, head.as_bytes()), Ok(false));
        assert_eq!(known.read(&mut reader, answer), Ok(false));
        assert_eq!(reader.body_bytes(), answer.len() as u64);
    }

    #[test]
    fn what_is_no_response_is_none_again() {
        let mut known = Known::new();
        for _ in 0..2 {
            let mut reader = Reader::new();
            let surplus = format!("{}x", ANSWERS[0]);
            assert_eq!(known.read(&mut reader, surplus.as_bytes()), Err(Bad::Surplus));
        }
    }
}
