//! Commands as they would be typed.

/// A word of a command line: as it is if that is safe, else in quotes. Names of interfaces, rules and containers come from
/// outside.
pub(crate) fn word(text: &str) -> String {
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&b);
    if !text.is_empty() && text.bytes().all(safe) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_meant() {
        for text in ["eth0", "a b", "it's", "$(reboot)", "x;y", "`id`", "", "a\nb", "*", "eth0.7@up"] {
            let mut shell = std::process::Command::new("sh");
            let output = shell.arg("-c").arg(format!("printf %s {}", word(text))).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
        assert_eq!(word("eth0.7"), "eth0.7");
    }
}
