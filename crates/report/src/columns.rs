//! Aligned text columns for terminals.

use unicode_width::UnicodeWidthStr;

use crate::words::Tone;

/// Text with an optional tone that colours it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) tone: Option<Tone>,
    pub(crate) bold: bool,
    /// What the last column shows where the text does not fit.
    pub(crate) short: Option<String>,
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Text { text, ..Text::default() }
    }
}

/// Where and how wide text is written.
#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    /// Columns; less than 80 is taken as 80.
    pub width: usize,
    /// Use ANSI colours.
    pub color: bool,
}

impl Terminal {
    pub(crate) fn width(self) -> usize {
        self.width.max(80)
    }

    pub(crate) fn paint(self, text: &Text) -> String {
        let code = match text.tone {
            Some(Tone::Better) => "32",
            Some(Tone::Worse) => "31",
            Some(Tone::Different) => "36",
            Some(Tone::Equivalent | Tone::NotSeen) => "2",
            Some(Tone::Open) => "33",
            None if text.bold => "1",
            None => return text.text.clone(),
        };
        if self.color && !text.text.is_empty() {
            format!("\u{1b}[{code}m{}\u{1b}[0m", text.text)
        } else {
            text.text.clone()
        }
    }
}

/// Space between columns.
const GAP: usize = 2;

/// Lay rows out in columns. All but the last column are as wide as their widest text, up to their limit
/// (longer text loses its end to an ellipsis); the last one gets what is left of the terminal and wraps
/// between words.
pub(crate) fn layout(rows: &[Vec<Text>], limits: &[usize], indent: usize, terminal: Terminal) -> String {
    let mut widths: Vec<usize> = limits.to_vec();
    for (column, width) in widths.iter_mut().enumerate() {
        let widest = rows.iter().filter_map(|r| r.get(column)).map(|t| t.text.width()).max().unwrap_or(0);
        *width = widest.min(*width);
    }
    let before: usize = indent + widths.iter().map(|w| w + GAP).sum::<usize>();
    let rest = terminal.width().saturating_sub(before).max(12);
    let mut out = String::new();
    for row in rows {
        let mut text = " ".repeat(indent);
        for (cell, width) in row.iter().zip(&widths) {
            let cut = Text { text: ellipsis(&cell.text, *width), ..cell.clone() };
            text.push_str(&terminal.paint(&cut));
            text.push_str(&" ".repeat(width - cut.text.width() + GAP));
        }
        let mut last = row.get(widths.len()).cloned().unwrap_or_default();
        if last.text.width() > rest {
            last.text = last.short.take().unwrap_or(last.text);
        }
        for (i, piece) in wrap(&last.text, rest).into_iter().enumerate() {
            if i > 0 {
                text.push('\n');
                text.push_str(&" ".repeat(before + GAP));
            }
            text.push_str(&terminal.paint(&Text { text: piece, ..last.clone() }));
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

/// At most `width` columns of the text; what is cut off is shown as `…`.
pub(crate) fn ellipsis(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in text.chars() {
        let mut longer = out.clone();
        longer.push(c);
        if longer.width() + 1 > width {
            break;
        }
        out = longer;
    }
    out.push('…');
    out
}

/// Lines of at most `width` columns, broken between words where possible; lines after the first are two
/// shorter, for their indent.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in words(text) {
        let limit = if lines.len() == 1 { width } else { width.saturating_sub(GAP) };
        let last = lines.last_mut().expect("begins with one line");
        let space = usize::from(!last.is_empty());
        if last.width() + space + word.width() <= limit {
            if space == 1 {
                last.push(' ');
            }
            last.push_str(&word);
        } else if last.is_empty() {
            last.push_str(&ellipsis(&word, limit));
        } else {
            lines.push(ellipsis(&word, width.saturating_sub(GAP)));
        }
    }
    lines
}

/// What stays with the number before it.
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

/// A paragraph of at most the terminal's width.
pub(crate) fn paragraph(text: &str, indent: usize, terminal: Terminal) -> String {
    let pad = " ".repeat(indent);
    let mut out = String::new();
    for (i, piece) in wrap(text, terminal.width() - indent).into_iter().enumerate() {
        out.push_str(&pad);
        out.push_str(if i == 0 { "" } else { "  " });
        out.push_str(&piece);
        out.push('\n');
    }
    out
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
        assert_eq!(wrap("inconclusive, needs about 8", 14), ["inconclusive,", "needs about", "8"]);
        assert_eq!(wrap("slower by 12 % [9, 15]", 18), ["slower by 12 %", "[9, 15]"]);
        assert_eq!(wrap("handled 280 kpps, of 1514 B", 14), ["handled", "280 kpps, of", "1514 B"]);
        assert_eq!(wrap("plan B", 5), ["plan", "B"]);
        assert_eq!(wrap("", 10), [""]);
    }
}
