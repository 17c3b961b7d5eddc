//! Text for terminals: titles, columns, figures; no line wider than the terminal, and nothing in it that it would obey.

use crate::escape::line;
use crate::layout::{GAP, Terminal, wrap};
use unicode_width::UnicodeWidthStr;

/// Meaning of a line, beyond its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Names a section.
    Title,
    /// Less important than the rest.
    Faint,
    /// Deserves a look.
    Warning,
    /// Something is broken.
    Bad,
}

/// A page under construction.
#[derive(Debug)]
pub struct Page {
    terminal: Terminal,
    text: String,
}

impl Page {
    /// An empty page.
    pub fn new(terminal: Terminal) -> Self {
        Page { terminal, text: String::new() }
    }

    /// Its text.
    pub fn finish(self) -> String {
        self.text
    }

    /// An empty line, and a title.
    pub fn section(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.line(title, 0, Some(Tone::Title));
    }

    /// An empty line.
    pub fn gap(&mut self) {
        self.text.push('\n');
    }

    /// Text between words broken into lines; those after the first are indented by two more.
    pub fn line(&mut self, text: &str, indent: usize, tone: Option<Tone>) {
        let width = self.terminal.width() - indent - GAP;
        let lines = wrap(&line(text), width, width);
        for (n, piece) in lines.into_iter().enumerate() {
            let pad = " ".repeat(indent + if n > 0 { GAP } else { 0 });
            self.text.push_str(&format!("{pad}{}\n", self.paint(&piece, tone)));
        }
    }

    /// Text to be copied: one line, however long it is.
    pub fn verbatim(&mut self, text: &str, indent: usize, tone: Option<Tone>) {
        let text = self.paint(&line(text), tone);
        self.text.push_str(&format!("{}{text}\n", " ".repeat(indent)));
    }

    /// Rows in columns, all but the last to the right. The last one gets what is left of the line and wraps.
    pub fn columns(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let figures = head.len() - 1;
        let widest = |n: usize| rows.iter().map(|r| r[n].width()).chain([head[n].width()]).max().unwrap_or(0);
        let widths: Vec<usize> = (0..figures).map(widest).collect();
        let before: usize = 1 + widths.iter().map(|w| w + GAP).sum::<usize>();
        let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
        for (n, row) in std::iter::once(&head).chain(rows).enumerate() {
            let mut out = " ".to_owned();
            for (cell, width) in row.iter().zip(&widths) {
                let pad = " ".repeat(width.saturating_sub(cell.width()));
                out.push_str(&format!("{pad}{cell}{}", " ".repeat(GAP)));
            }
            let room = self.terminal.width().saturating_sub(before + GAP).max(20);
            let last = line(&row[figures]);
            let indent = format!("\n{}", " ".repeat(before + GAP));
            out.push_str(&wrap(&last, room, room).join(&indent));
            self.row(&out, n == 0);
        }
    }

    /// Names to the left and figures to the right of them, as a matrix.
    pub fn matrix(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let widest = |n: usize| rows.iter().map(|r| r[n].width()).chain([head[n].width()]).max().unwrap_or(0);
        let widths: Vec<usize> = (0..head.len()).map(widest).collect();
        let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
        for (n, row) in std::iter::once(&head).chain(rows).enumerate() {
            let mut line = format!(" {:<width$}", row[0], width = widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                let pad = " ".repeat(GAP + width.saturating_sub(cell.width()));
                line.push_str(&format!("{pad}{cell}"));
            }
            self.row(&line, n == 0);
        }
    }

    fn row(&mut self, text: &str, head: bool) {
        let text = self.paint(text.trim_end(), head.then_some(Tone::Faint));
        self.text.push_str(&format!("{text}\n"));
    }

    fn paint(&self, text: &str, tone: Option<Tone>) -> String {
        let code = tone.map(|tone| match tone {
            Tone::Title => "1",
            Tone::Faint => "2",
            Tone::Warning => "33",
            Tone::Bad => "31",
        });
        self.terminal.paint(text, code)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(text in "[a-z0-9:.日 \u{1b}\u{7}]{0,300}", width in 0_usize..140) {
            let mut page = Page::new(Terminal { width, color: false });
            page.section(&text);
            page.line(&text, 4, Some(Tone::Warning));
            page.columns(&["entries", "share", "what"], &[vec!["1".into(), "2".into(), text.clone()]]);
            let out = page.finish();
            for line in out.lines() {
                prop_assert!(line.width() <= width.max(80), "{line}");
            }
            let obeyed = out.contains(['\u{1b}', '\u{7}']);
            prop_assert!(!obeyed);
            let kept = |s: &str| s.chars().filter(char::is_ascii_alphanumeric).count();
            prop_assert_eq!(kept(&out), 3 * kept(&text) + kept("entriessharewhat12"));
        }
    }
}
