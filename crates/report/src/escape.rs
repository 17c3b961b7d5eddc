//! Text that came from outside (names, messages, TOML), made harmless for each kind of output.

/// Printable text on one line: control characters, escape sequences, line separators and the characters that
/// turn the direction of writing (Unicode UAX #9) are taken out, so that a name cannot paint over a terminal.
pub(crate) fn line(text: &str) -> String {
    let text = strip_sequences(text);
    let spaced: String = text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
    spaced.chars().filter(|c| is_shown(*c)).collect()
}

/// Like [`line`], but line feeds and tabs stay: for whole texts such as a scenario.
pub(crate) fn block(text: &str) -> String {
    strip_sequences(text).chars().filter(|c| matches!(c, '\n' | '\t') || is_shown(*c)).collect()
}

fn is_shown(c: char) -> bool {
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks = matches!(c, '\u{2028}' | '\u{2029}');
    // U+FFFE and U+FFFF are not characters and not allowed in XML.
    let none = matches!(c, '\u{fffe}' | '\u{ffff}' | '\u{feff}');
    !(c.is_control() || turns || breaks || none)
}

/// Without ECMA-48 control sequences (`ESC [ ... letter`) and operating-system commands (`ESC ] ... BEL`);
/// what is left of an unknown sequence is plain text once the ESC itself is gone.
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
                // Without its end within the text, the command swallows all of the rest, as a terminal would
                // do.
                while let Some(n) = chars.next() {
                    if n == '\u{7}' || n == '\u{9c}' {
                        break;
                    }
                    if n == '\u{1b}' {
                        chars.next_if_eq(&'\\');
                        break;
                    }
                }
            }
            None => {}
        }
    }
    out
}

/// Text or attribute value of HTML and XML.
pub(crate) fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in block(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Inline text of Markdown, also within a table cell: the ASCII characters that begin markup there are
/// escaped (CommonMark section 2.4), and `<`, `&` become references so that no raw HTML comes through.
/// Brackets stay, so that intervals can be read in the source too, unless they would make a link.
pub(crate) fn markdown(text: &str) -> String {
    let text = line(text);
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            ']' if chars.peek().is_some_and(|n| matches!(n, '(' | '[' | ':')) => out.push_str("\\]"),
            '\\' | '`' | '*' | '_' | '|' | '#' | '~' => {
                out.push('\\');
                out.push(c);
            }
            // GitHub notifies people by this; a word joiner stops it.
            '@' => out.push_str("@\u{2060}"),
            c => out.push(c),
        }
    }
    out
}

/// One field of CSV (RFC 4180): quoted where it must be. A field that a spreadsheet would run as a formula
/// gets an apostrophe in front.
pub(crate) fn csv(text: &str) -> String {
    let text = line(text);
    let text = if text.starts_with(['=', '+', '-', '@']) && text.parse::<f64>().is_err() {
        format!("'{text}")
    } else {
        text
    };
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_disappear_and_their_text_stays() {
        assert_eq!(line("a\u{1b}[31;1mred\u{1b}[0m b"), "ared b");
        assert_eq!(line("\u{1b}]0;title\u{7}x\u{9b}2Jy"), "xy");
        assert_eq!(line("\u{1b}]8;;file:///etc\u{1b}\\link\u{1b}"), "link");
        assert_eq!(line("one\r\ntwo\tthree\u{0}\u{8}"), "one  two three");
        assert_eq!(line("abc\u{202e}def"), "abcdef");
        assert_eq!(block("a = 1\n\tb\u{7}"), "a = 1\n\tb");
    }

    #[test]
    fn markup_is_escaped() {
        assert_eq!(xml("<script>alert('&\")"), "&lt;script&gt;alert(&#39;&amp;&quot;)");
        assert_eq!(markdown("a|b_<i>"), "a\\|b\\_&lt;i>");
        assert_eq!(markdown("[x](y) 9 [8, 10]"), "[x\\](y) 9 [8, 10]");
        assert_eq!(csv("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(csv("=1+1"), "'=1+1");
        assert_eq!(csv("-12.5"), "-12.5");
    }
}
