//! Text for terminals: titles, columns, figures; no line wider than the terminal, and nothing in it that it would obey.

use unicode_width::UnicodeWidthStr;

/// Where text is written.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Columns; less than 80 is taken as 80.
    pub width: usize,
    /// Use ANSI colours.
    pub color: bool,
}

/// What a line means, beyond its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Title,
    Faint,
    Warning,
    Bad,
}

/// Space between columns.
const GAP: usize = 2;

/// A page under construction.
#[derive(Debug)]
pub(crate) struct Page {
    look: Look,
    text: String,
}

impl Page {
    pub(crate) fn new(look: Look) -> Self {
        Page { look: Look { width: look.width.max(80), ..look }, text: String::new() }
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }

    /// An empty line, and a title.
    pub(crate) fn section(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.line(title, 0, Some(Tone::Title));
    }

    /// An empty line.
    pub(crate) fn gap(&mut self) {
        self.text.push('\n');
    }

    /// Text between words broken into lines; those after the first are indented by two more.
    pub(crate) fn line(&mut self, text: &str, indent: usize, tone: Option<Tone>) {
        for (n, piece) in wrap(&printable(text), self.look.width - indent - GAP).into_iter().enumerate() {
            let pad = " ".repeat(indent + if n > 0 { GAP } else { 0 });
            self.text.push_str(&format!("{pad}{}\n", self.paint(&piece, tone)));
        }
    }

    /// Text to be copied: one line, however long it is.
    pub(crate) fn verbatim(&mut self, text: &str, indent: usize, tone: Option<Tone>) {
        let text = self.paint(&printable(text), tone);
        self.text.push_str(&format!("{}{text}\n", " ".repeat(indent)));
    }

    /// Rows in columns, all but the last to the right. The last one gets what is left of the line and wraps.
    pub(crate) fn columns(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let figures = head.len() - 1;
        let widest = |n: usize| rows.iter().map(|r| r[n].width()).chain([head[n].width()]).max().unwrap_or(0);
        let widths: Vec<usize> = (0..figures).map(widest).collect();
        let before: usize = 1 + widths.iter().map(|w| w + GAP).sum::<usize>();
        let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
        for (n, row) in std::iter::once(&head).chain(rows).enumerate() {
            let mut line = " ".to_owned();
            for (cell, width) in row.iter().zip(&widths) {
                let pad = " ".repeat(width.saturating_sub(cell.width()));
                line.push_str(&format!("{pad}{cell}{}", " ".repeat(GAP)));
            }
            let room = self.look.width.saturating_sub(before + GAP).max(20);
            let last = printable(&row[figures]);
            let indent = format!("\n{}", " ".repeat(before + GAP));
            line.push_str(&wrap(&last, room).join(&indent));
            let line = line.trim_end();
            let line = if n == 0 { self.paint(line, Some(Tone::Faint)) } else { line.to_owned() };
            self.text.push_str(&format!("{line}\n"));
        }
    }

    /// Names to the left and figures to the right of them, as a matrix.
    pub(crate) fn matrix(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let widest = |n: usize| rows.iter().map(|r| r[n].width()).chain([head[n].width()]).max().unwrap_or(0);
        let widths: Vec<usize> = (0..head.len()).map(widest).collect();
        let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
        for (n, row) in std::iter::once(&head).chain(rows).enumerate() {
            let mut line = format!(" {:<width$}", row[0], width = widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                let pad = " ".repeat(GAP + width.saturating_sub(cell.width()));
                line.push_str(&format!("{pad}{cell}"));
            }
            let line = line.trim_end();
            let line = if n == 0 { self.paint(line, Some(Tone::Faint)) } else { line.to_owned() };
            self.text.push_str(&format!("{line}\n"));
        }
    }

    fn paint(&self, text: &str, tone: Option<Tone>) -> String {
        let code = match tone {
            Some(Tone::Title) => "1",
            Some(Tone::Faint) => "2",
            Some(Tone::Warning) => "33",
            Some(Tone::Bad) => "31",
            None => return text.to_owned(),
        };
        if self.look.color && !text.is_empty() {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Names come from users, too.
fn printable(text: &str) -> String {
    let turns =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    // The kernel prints tabs between the values of one setting, and takes blanks for them.
    let shown = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() || turns(c) => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Lines of at most `width` columns, broken between words; a longer word is broken within.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut rest = word.to_owned();
        loop {
            let last = lines.last_mut().expect("begins with one line");
            let space = usize::from(!last.is_empty());
            if last.width() + space + rest.width() <= width {
                last.push_str(&" ".repeat(space));
                last.push_str(&rest);
                break;
            }
            if last.is_empty() {
                let mut used = 0;
                let cut: String = rest
                    .chars()
                    .take_while(|c| {
                        used += UnicodeWidthStr::width(c.encode_utf8(&mut [0; 4]) as &str);
                        used <= width.max(2)
                    })
                    .collect();
                // One character of two columns always fits, so the rest gets shorter each time.
                rest = rest[cut.len()..].to_owned();
                last.push_str(&cut);
                if rest.is_empty() {
                    break;
                }
            }
            lines.push(String::new());
        }
    }
    lines
}

/// A count with its thousands told apart.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A share of one.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if !p.is_finite() => "-".to_owned(),
        p if p > 0.0 && p < 0.1 => "<0.1 %".to_owned(),
        p => format!("{p:.1} %"),
    }
}

/// Bytes in the unit that keeps them short.
pub(crate) fn bytes(value: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let decimals = if unit == 0 || scaled >= 99.95 { 0 } else { 1 };
    format!("{scaled:.decimals$} {}", UNITS[unit])
}

/// A round length of time.
pub(crate) fn time(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn figures_are_short_and_exact() {
        assert_eq!((count(0), count(999), count(1_234_567)), ("0".into(), "999".into(), "1,234,567".into()));
        assert_eq!(percent(0.9537), "95.4 %");
        assert_eq!(
            (percent(0.0), percent(0.0001), percent(f64::NAN)),
            ("0.0 %".into(), "<0.1 %".into(), "-".into())
        );
        // 402653184 = 384 x 2^20.
        assert_eq!(
            (bytes(402_653_184), bytes(1000), bytes(1536)),
            ("384 MiB".into(), "1.0 KiB".into(), "1.5 KiB".into())
        );
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(
            (time(30), time(120), time(21_600), time(432_000)),
            ("30 s".into(), "2 min".into(), "6 h".into(), "5 d".into())
        );
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(text in "[a-z0-9:.日 \u{1b}\u{7}]{0,300}", width in 0_usize..140) {
            let mut page = Page::new(Look { width, color: false });
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
