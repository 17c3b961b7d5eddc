//! The checksum that a registry publishes beside its file.
//!
//! RIR statistics exchange format, section 2: an MD5 checksum under the file's name with `.md5` appended. It shows that the file
//! arrived as its server has it: not cut off, not half replaced. It does not show who wrote the file: anyone who can change the
//! one file can change the other, and MD5 collides. TLS proves that the server is the registry's.

use std::fmt::Write;

/// Longest checksum file that is read, bytes: a name, an address in words, 32 digits.
pub(crate) const LONGEST: u64 = 4096;

/// The checksum in such a file: `MD5 (NAME) = DIGITS` as BSD's md5 writes it, `DIGITS  NAME` as md5sum does, or the digits
/// alone. `None` unless there is exactly one.
pub(crate) fn parse(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let mut found = text
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit()));
    let one = found.next()?;
    found.next().is_none().then(|| one.to_ascii_lowercase())
}

/// MD5 (RFC 1321) in hexadecimal digits.
pub(crate) fn of(bytes: &[u8]) -> String {
    md5::compute(bytes).0.iter().fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sums() {
        // RFC 1321, appendix A.5.
        assert_eq!(of(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(of(b"message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
    }

    #[test]
    fn every_way_of_writing_it() {
        let sum = "d41d8cd98f00b204e9800998ecf8427e";
        for text in [
            format!("MD5 (delegated-apnic-extended-latest) = {sum}\n"),
            format!("{sum}  delegated-arin-extended-20251120\n"),
            format!("{sum} *delegated-arin-extended-20251120\r\n"),
            sum.to_ascii_uppercase(),
        ] {
            assert_eq!(parse(text.as_bytes()).as_deref(), Some(sum), "{text}");
        }
        for text in ["", "<html>not found</html>", &sum[1..], &format!("{sum}0"), &format!("{sum} {sum}")] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(b"\xff\xfe"), None);
    }
}
