use proptest::prelude::*;

use super::*;

/// Reads the pieces one after the other. The status, bytes of the body, and whether the connection may be used again; `None`
/// if more is needed.
fn read(pieces: &[&[u8]]) -> Result<Option<(u16, u64, bool)>, Bad> {
    let mut reader = Reader::new();
    let mut whole = false;
    for piece in pieces {
        whole = reader.read(piece)?;
    }
    Ok(whole.then(|| (reader.status(), reader.body_bytes(), reader.keeps_open())))
}

fn one(text: &str) -> Result<Option<(u16, u64, bool)>, Bad> {
    read(&[text.as_bytes()])
}

#[test]
fn what_servers_send() {
    for (text, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", (200, 5, true)),
        // Names of headers in any case, blanks around the value, LF alone (RFC 9112 section 2.2), no reason.
        ("HTTP/1.1 200\nCONTENT-length:5  \n\nhello", (200, 5, true)),
        ("HTTP/1.1 200 \r\ncontent-length: 0\r\n\r\n", (200, 0, true)),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno", (404, 2, false)),
        ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", (200, 1, false)),
        ("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nx", (200, 1, true)),
        ("HTTP/1.1 200 OK\r\nConnection: upgrade , Close\r\nContent-Length: 1\r\n\r\nx", (200, 1, false)),
        // No body, whatever the headers say (RFC 9112 section 6.3).
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 700\r\n\r\n", (304, 0, true)),
        ("HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", (204, 0, true)),
        // Chunks, with extensions, leading zeros and trailers (RFC 9112 section 7.1).
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n00A \r\n0123456789\r\n0\r\nX: y\r\n\r\n",
            (200, 15, true),
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", (200, 0, true)),
        // Chunked overrides a length, and such a connection is not used again.
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
            (200, 1, false),
        ),
        // Interim responses before the real one (RFC 9110 section 15.2).
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
            (200, 1, true),
        ),
        // The same length twice is one (RFC 9110 section 8.6).
        ("HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\nContent-Length: 3\r\n\r\nabc", (200, 3, true)),
    ] {
        assert_eq!(one(text), Ok(Some(expected)), "{text:?}");
    }
}

#[test]
fn without_a_length_the_end_is_the_end() {
    for head in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"] {
        let mut reader = Reader::new();
        assert_eq!(reader.read(head.as_bytes()), Ok(false));
        assert_eq!(reader.read(b"some"), Ok(false));
        assert_eq!(reader.read(b" bytes"), Ok(false));
        assert!(reader.closed() && !reader.keeps_open());
        assert_eq!(reader.body_bytes(), 10);
    }
    // Everywhere else it is too early.
    for text in
        ["", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", "HTTP/1.1 200 OK\r\nA: b\r\n"]
    {
        let mut reader = Reader::new();
        assert_eq!(reader.read(text.as_bytes()), Ok(false), "{text:?}");
        assert!(!reader.closed(), "{text:?}");
        assert_eq!(reader.is_untouched(), text.is_empty());
    }
}

#[test]
fn what_is_no_response() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(LONGEST_LINE));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: aaaaaaaaaaaaaaaa\r\n".repeat(LONGEST_HEAD / 20));
    let interim = "HTTP/1.1 102 Processing\r\n\r\n".repeat(LONGEST_HEAD / 24);
    let endless = "a".repeat(LONGEST_LINE + 1);
    for (text, bad) in [
        ("SSH-2.0-OpenSSH_9.2\r\n", Bad::StatusLine),
        ("HTTP/2 200\r\n", Bad::StatusLine),
        ("HTTP/1.1  200 OK\r\n", Bad::StatusLine),
        ("HTTP/1.1 20 OK\r\n", Bad::StatusLine),
        ("HTTP/1.1 2000 OK\r\n", Bad::StatusLine),
        ("HTTP/1.1 099 OK\r\n", Bad::StatusLine),
        ("\r\n", Bad::StatusLine),
        ("HTTP/1.1 200 OK\r\nno colon\r\n", Bad::Header),
        ("HTTP/1.1 200 OK\r\nName : x\r\n", Bad::Header),
        ("HTTP/1.1 200 OK\r\nA: b\r\n folded: c\r\n", Bad::Header),
        ("HTTP/1.1 200 OK\r\n: x\r\n", Bad::Header),
        ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n", Bad::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: +1\r\n", Bad::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0x10\r\n", Bad::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: \r\n", Bad::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n", Bad::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n", Bad::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n", Bad::Length),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", Bad::Chunk),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", Bad::Chunk),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1 2\r\n", Bad::Chunk),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", Bad::Chunk),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n", Bad::Chunk),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\n", Bad::Switched),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy", Bad::Surplus),
        ("HTTP/1.1 204 No Content\r\n\r\nx", Bad::Surplus),
        (&long, Bad::TooLong),
        (&many, Bad::TooLong),
        (&interim, Bad::TooLong),
        (&endless, Bad::TooLong),
    ] {
        assert_eq!(one(text), Err(bad), "{:?}", text.chars().take(100).collect::<String>());
    }
}

#[test]
fn one_after_the_other() {
    let mut reader = Reader::new();
    for status in [200, 503, 204] {
        let length = if status == 204 { "" } else { "Content-Length: 0\r\n" };
        assert_eq!(reader.read(format!("HTTP/1.1 {status} x\r\n{length}\r\n").as_bytes()), Ok(true));
        assert_eq!(reader.status(), status);
        reader.reset();
        assert!(reader.is_untouched());
    }
}

/// A response as a server might frame it, with the bytes of its body.
fn response() -> impl Strategy<Value = (Vec<u8>, u64)> {
    let body = proptest::collection::vec(any::<u8>(), 0..300);
    let header = "[A-Za-z-]{1,12}: [ -~]{0,30}".prop_filter("names that mean something", |line| {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        !["connection", "content-length", "transfer-encoding"].contains(&name.as_str())
    });
    let headers = proptest::collection::vec(header, 0..5);
    (body, headers, proptest::option::of(1usize..50), any::<bool>()).prop_map(
        |(body, headers, chunk, interim)| {
            let mut text = Vec::new();
            if interim {
                text.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n");
            }
            text.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
            for header in headers {
                text.extend_from_slice(header.as_bytes());
                text.extend_from_slice(b"\r\n");
            }
            match chunk {
                None => {
                    text.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
                    text.extend_from_slice(&body);
                }
                Some(size) => {
                    text.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                    for chunk in body.chunks(size) {
                        text.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                        text.extend_from_slice(chunk);
                        text.extend_from_slice(b"\r\n");
                    }
                    text.extend_from_slice(b"0\r\n\r\n");
                }
            }
            (text, body.len() as u64)
        },
    )
}

proptest! {
    /// However the bytes come in pieces, the same is read, and not before the last of them.
    #[test]
    fn pieces_make_no_difference((text, body) in response(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8)) {
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len())).collect();
        at.extend([0, text.len()]);
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|w| &text[w[0]..w[1]]).filter(|p| !p.is_empty()).collect();
        prop_assert_eq!(read(&pieces), Ok(Some((200, body, true))));
        prop_assert_eq!(read(&[&text[..text.len() - 1]]), Ok(None));
    }

    /// Whatever comes, it is read to an end or refused, in bounded memory.
    #[test]
    fn garbage_is_refused_or_waited_for(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..20), head in 0usize..4) {
        let start: &[u8] = [&b""[..], b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"][head];
        let mut reader = Reader::new();
        let mut all = std::iter::once(start).chain(pieces.iter().map(Vec::as_slice));
        let _ = all.try_for_each(|piece| reader.read(piece).map(drop));
        prop_assert!(reader.line.len() <= LONGEST_LINE && reader.head_bytes <= LONGEST_HEAD + LONGEST_LINE + 1);
        reader.closed();
    }

    /// A change of one byte never makes it read more than there is.
    #[test]
    fn damaged_responses_do_no_harm((mut text, _) in response(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let at = at.index(text.len());
        text[at] = byte;
        let mut reader = Reader::new();
        let _ = reader.read(&text);
        prop_assert!(reader.body_bytes() <= text.len() as u64);
    }
}
