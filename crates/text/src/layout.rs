//! Lines of a terminal: colours, wrapping, columns.

use unicode_width::UnicodeWidthStr;

/// The terminal that text is written to.
#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    /// Columns; less than 80 is taken as 80.
    pub width: usize,
    /// Use ANSI colours.
    pub color: bool,
}

impl Terminal {
    /// Columns, at least 80.
    pub fn width(self) -> usize {
        self.width.max(80)
    }

    /// Text in the colour of that SGR code (ECMA-48), where there are colours.
    pub fn paint(self, text: &str, code: Option<&str>) -> String {
        match code {
            Some(code) if self.color && !text.is_empty() => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            _ => text.to_owned(),
        }
    }
}

/// Space between columns.
pub const GAP: usize = 2;

/// Returns at most `width` columns of the text; `…` stands for the rest.
pub fn ellipsis(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut out = fitting(text, width.saturating_sub(1)).to_owned();
    out.push('…');
    out
}

/// The beginning of a text that takes at most `width` columns.
fn fitting(text: &str, width: usize) -> &str {
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|end| text[..*end].width() <= width).last().unwrap_or(0);
    &text[..end]
}

/// Lines of at most `first` columns for the first and `rest` for the others, broken between words; a longer word is broken
/// within. An interval in brackets and a number with its unit are one word.
pub fn wrap(text: &str, first: usize, rest: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words(text) {
        let mut word = word.as_str();
        loop {
            let limit = if lines.len() == 1 { first } else { rest };
            let last = lines.last_mut().expect("begins with one line");
            let space = usize::from(!last.is_empty());
            if last.width() + space + word.width() <= limit {
                last.push_str(&" ".repeat(space));
                last.push_str(word);
                break;
            }
            if last.is_empty() {
                // One character of two columns always fits, so the rest gets shorter each time.
                let cut = fitting(word, limit.max(2));
                last.push_str(cut);
                word = &word[cut.len()..];
                if word.is_empty() {
                    break;
                }
            }
            lines.push(String::new());
        }
    }
    lines
}

/// A paragraph of at most `width` columns: the first line begins with `lead`, and the others are indented by `indent`.
pub fn paragraph(lead: &str, indent: usize, text: &str, width: usize) -> String {
    let lines = wrap(text, width.saturating_sub(lead.width()), width.saturating_sub(indent));
    let pad = " ".repeat(indent);
    let begins = std::iter::once(lead).chain(std::iter::repeat(pad.as_str()));
    begins.zip(lines).map(|(begin, line)| format!("{begin}{line}\n")).collect()
}

/// Units that stay with the number before them.
const UNITS: [&str; 9] = ["%", "B", "pps", "kpps", "Mpps", "ns", "us", "µs", "ms"];

/// Words between spaces; an interval in brackets and a number with its unit are one word.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match words.last_mut() {
            Some(last)
                if is_unit_of(last, word)
                    || (last.starts_with('[') && !last.ends_with(']') && last.len() < 24) =>
            {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

fn is_unit_of(last: &str, word: &str) -> bool {
    last.ends_with(|c: char| c.is_ascii_digit())
        && UNITS.contains(&word.trim_end_matches([',', ';', '.', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(ellipsis("日本語", 6), "日本語");
        assert_eq!(ellipsis("日本語", 5), "日本…");
        assert_eq!(ellipsis("abcdef", 4), "abc…");
    }

    #[test]
    fn wraps_between_words() {
        let wrap = |text, width: usize| wrap(text, width, width - 2);
        assert_eq!(wrap("inconclusive, needs about 8", 14), ["inconclusive,", "needs about", "8"]);
        assert_eq!(wrap("slower by 12 % [9, 15]", 18), ["slower by 12 %", "[9, 15]"]);
        assert_eq!(wrap("handled 280 kpps, of 1514 B", 14), ["handled", "280 kpps, of", "1514 B"]);
        assert_eq!(wrap("plan B", 5), ["plan", "B"]);
        assert_eq!(wrap("", 10), [""]);
        assert_eq!(wrap("abcdefgh", 5), ["abcde", "fgh"]);
    }

    #[test]
    fn paragraphs_hang_below_their_lead() {
        assert_eq!(paragraph("- ", 2, "one two three", 9), "- one two\n  three\n");
    }
}
