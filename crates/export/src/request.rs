//! The request of a client: its first line, and the end of its header (RFC 9112 sections 2 and 3).

/// Longest header that is read, bytes. Prometheus sends some 300.
pub const MOST_BYTES: usize = 8192;

/// The answer that a request gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The page; without its content after HEAD.
    Page {
        /// GET.
        content: bool,
    },
    /// 404: another path.
    Absent,
    /// 405: another method.
    Method,
    /// 400: no request of HTTP/1.
    Broken,
    /// 431: longer than [`MOST_BYTES`].
    TooLong,
    /// The header has not ended: more must be read.
    Unfinished,
}

/// The token of a request (RFC 6750 section 2.1); none without one, or if there is more than one `Authorization`. Read only where a
/// token is demanded.
pub fn bearer(bytes: &[u8]) -> Option<&[u8]> {
    let fields = bytes.split(|b| *b == b'\n').skip(1).map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut values = fields.take_while(|line| !line.is_empty()).filter_map(|line| {
        let colon = line.iter().position(|b| *b == b':')?;
        line[..colon].eq_ignore_ascii_case(b"authorization").then(|| line[colon + 1..].trim_ascii())
    });
    let value = values.next().filter(|_| values.next().is_none())?;
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii_start())
}

/// Judges the bytes that have come so far. Fields of the header are not looked at.
pub fn read(bytes: &[u8]) -> Asked {
    let ended = bytes.windows(4).any(|w| w == b"\r\n\r\n") || bytes.windows(2).any(|w| w == b"\n\n");
    if !ended {
        return if bytes.len() >= MOST_BYTES { Asked::TooLong } else { Asked::Unfinished };
    }
    let line = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let words: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let [method, target, version] = words[..] else { return Asked::Broken };
    if !(version.starts_with(b"HTTP/1.") && target.starts_with(b"/") && line.is_ascii()) {
        return Asked::Broken;
    }
    let path = target.split(|b| *b == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET", b"/metrics") => Asked::Page { content: true },
        (b"HEAD", b"/metrics") => Asked::Page { content: false },
        (b"GET" | b"HEAD", _) => Asked::Absent,
        _ => Asked::Method,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let asked = |line: &str| read(format!("{line}\r\nHost: a\r\n\r\n").as_bytes());
        assert_eq!(asked("GET /metrics HTTP/1.1"), Asked::Page { content: true });
        assert_eq!(asked("GET /metrics?a=b HTTP/1.0"), Asked::Page { content: true });
        assert_eq!(asked("HEAD /metrics HTTP/1.1"), Asked::Page { content: false });
        assert_eq!(asked("GET / HTTP/1.1"), Asked::Absent);
        assert_eq!(asked("GET /metrics/.. HTTP/1.1"), Asked::Absent);
        assert_eq!(asked("POST /metrics HTTP/1.1"), Asked::Method);
        for broken in [
            "GET /metrics",
            "GET  /metrics HTTP/1.1",
            "GET metrics HTTP/1.1",
            "GET /metrics HTTP/2",
            "",
            "GET /\u{e9} HTTP/1.1",
        ] {
            assert_eq!(asked(broken), Asked::Broken, "{broken}");
        }
        assert_eq!(read(b"GET /metrics HTTP/1.1\r\nHost: a\r\n"), Asked::Unfinished);
        assert_eq!(read(&vec![b'a'; MOST_BYTES]), Asked::TooLong);
    }

    #[test]
    fn a_token_is_in_one_field() {
        let token = |fields: &str| {
            bearer(format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes()).map(<[u8]>::to_vec)
        };
        assert_eq!(token("Authorization: Bearer abc"), Some(b"abc".to_vec()));
        assert_eq!(token("Host: a\r\nauthorization:bearer  abc "), Some(b"abc".to_vec()));
        for none in [
            "Host: a",
            "Authorization: Basic abc",
            "Authorization: Bearer",
            "Authorization: Bearer a\r\nAuthorization: Bearer b",
            "X-Authorization: Bearer abc",
            "\r\nAuthorization: Bearer abc",
        ] {
            assert_eq!(token(none), None, "{none}");
        }
        assert_eq!(bearer(b"Authorization: Bearer abc\r\n\r\n"), None);
    }

    proptest! {
        /// Whatever comes has one answer, and more bytes change only what was not finished.
        #[test]
        fn anything_has_one_answer(bytes in proptest::collection::vec(any::<u8>(), 0..600), more in proptest::collection::vec(any::<u8>(), 0..64)) {
            let first = read(&bytes);
            let all = [bytes, more].concat();
            if first != Asked::Unfinished {
                prop_assert_eq!(read(&all), first);
            }
        }
    }
}
