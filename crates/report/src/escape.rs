//! Text that came from outside, made harmless for each kind of markup.

pub(crate) use weir_text::escape::{block, line};

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
    fn markup_is_escaped() {
        assert_eq!(xml("<script>alert('&\")"), "&lt;script&gt;alert(&#39;&amp;&quot;)");
        assert_eq!(markdown("a|b_<i>"), "a\\|b\\_&lt;i>");
        assert_eq!(markdown("[x](y) 9 [8, 10]"), "[x\\](y) 9 [8, 10]");
        assert_eq!(csv("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(csv("=1+1"), "'=1+1");
        assert_eq!(csv("-12.5"), "-12.5");
    }
}
