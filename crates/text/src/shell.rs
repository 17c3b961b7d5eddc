//! Words for a POSIX shell.

/// Bare if every character is harmless, else between single quotes, in which only the quote itself has a meaning
/// (POSIX.1-2017, XCU 2.2.2).
pub fn word(text: &str) -> String {
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&b);
    if !text.is_empty() && text.bytes().all(safe) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::word;

    #[test]
    fn only_what_a_shell_would_read_is_quoted() {
        assert_eq!(word("eth0.5"), "eth0.5");
        assert_eq!(word(""), "''");
        assert_eq!(word("$HOME it's"), r"'$HOME it'\''s'");
    }
}
