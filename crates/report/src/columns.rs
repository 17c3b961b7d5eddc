//! Aligned text columns for terminals.

use unicode_width::UnicodeWidthStr;
use weir_text::layout::{GAP, Terminal, ellipsis, wrap};

use crate::words::Tone;

/// Text with an optional tone that colours it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) tone: Option<Tone>,
    pub(crate) bold: bool,
    /// Replacement in the last column if the text does not fit.
    pub(crate) short: Option<String>,
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Text { text, ..Text::default() }
    }
}

impl Text {
    pub(crate) fn painted(&self, terminal: Terminal) -> String {
        let code = match self.tone {
            Some(Tone::Better) => "32",
            Some(Tone::Worse) => "31",
            Some(Tone::Different) => "36",
            Some(Tone::Equivalent | Tone::NotSeen) => "2",
            Some(Tone::Open | Tone::Withheld) => "33",
            None if self.bold => "1",
            None => return self.text.clone(),
        };
        terminal.paint(&self.text, Some(code))
    }
}

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
            text.push_str(&cut.painted(terminal));
            text.push_str(&" ".repeat(width - cut.text.width() + GAP));
        }
        let mut last = row.get(widths.len()).cloned().unwrap_or_default();
        if last.text.width() > rest {
            last.text = last.short.take().unwrap_or(last.text);
        }
        for (i, piece) in wrap(&last.text, rest, rest - GAP).into_iter().enumerate() {
            if i > 0 {
                text.push('\n');
                text.push_str(&" ".repeat(before + GAP));
            }
            text.push_str(&Text { text: piece, ..last.clone() }.painted(terminal));
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

/// A paragraph of at most the terminal's width.
pub(crate) fn paragraph(text: &str, indent: usize, terminal: Terminal) -> String {
    weir_text::layout::paragraph(&" ".repeat(indent), indent + GAP, text, terminal.width())
}
