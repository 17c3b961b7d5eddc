//! Text that came from outside (names, messages, TOML), made harmless for a terminal.

use std::iter::Peekable;
use std::str::Chars;

/// Printable text on one line: control characters, escape sequences, line separators and the characters that
/// turn the direction of writing (Unicode UAX #9) are taken out, so that a name cannot paint over a terminal.
pub fn line(text: &str) -> String {
    let text = strip_sequences(text);
    let spaced: String = text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
    spaced.chars().filter(|c| is_shown(*c)).collect()
}

/// Like [`line`], but line feeds and tabs stay: for whole texts such as a scenario.
pub fn block(text: &str) -> String {
    strip_sequences(text).chars().filter(|c| matches!(c, '\n' | '\t') || is_shown(*c)).collect()
}

fn is_shown(c: char) -> bool {
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks = matches!(c, '\u{2028}' | '\u{2029}');
    // U+FFFE and U+FFFF are not characters and not allowed in XML.
    let none = matches!(c, '\u{fffe}' | '\u{ffff}' | '\u{feff}');
    !(c.is_control() || turns || breaks || none)
}

/// Removes ECMA-48 control sequences (`ESC [ ... letter`) and operating-system commands (`ESC ] ... BEL`). The rest of an unknown
/// sequence is plain text once the ESC itself is gone.
fn strip_sequences(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let kind = match c {
            '\u{1b}' => chars.next_if(|n| matches!(n, '[' | ']')),
            '\u{9b}' => Some('['),
            '\u{9d}' => Some(']'),
            _ => {
                out.push(c);
                continue;
            }
        };
        match kind {
            Some('[') => {
                while chars.next_if(|n| matches!(n, '\u{20}'..='\u{3f}')).is_some() {}
                chars.next_if(|n| matches!(n, '\u{40}'..='\u{7e}'));
            }
            Some(_) => {
                // A command without its end is no command: only its first character goes, so that it hides nothing.
                if let Some(rest) = after_command(chars.clone()) {
                    chars = rest;
                }
            }
            None => {}
        }
    }
    out
}

/// Returns the text behind the end of an operating-system command: BEL, ST, or ESC with its backslash.
fn after_command(mut chars: Peekable<Chars<'_>>) -> Option<Peekable<Chars<'_>>> {
    let end = chars.find(|c| matches!(c, '\u{7}' | '\u{9c}' | '\u{1b}'))?;
    if end == '\u{1b}' {
        chars.next_if_eq(&'\\');
    }
    Some(chars)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_disappear_and_their_text_stays() {
        assert_eq!(line("a\u{1b}[31;1mred\u{1b}[0m b"), "ared b");
        assert_eq!(line("\u{1b}]0;title\u{7}x\u{9b}2Jy"), "xy");
        assert_eq!(line("\u{1b}]8;;file:///etc\u{1b}\\link\u{1b}"), "link");
        assert_eq!(line("\u{1b}]0;hidden"), "0;hidden");
        assert_eq!(line("one\r\ntwo\tthree\u{0}\u{8}"), "one  two three");
        assert_eq!(line("abc\u{202e}def"), "abcdef");
        assert_eq!(block("a = 1\n\tb\u{7}"), "a = 1\n\tb");
    }
}
