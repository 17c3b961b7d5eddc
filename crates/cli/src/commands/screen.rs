//! A page that is redrawn in place.

use std::io::{self, Write};

use crate::output::put;

/// A terminal's second screen, given back when dropped.
pub(super) struct Screen {
    taken: bool,
    shown: bool,
}

impl Screen {
    /// Takes the second screen, if asked. Otherwise pages follow each other.
    pub(super) fn take(taken: bool) -> Self {
        if taken {
            // The second screen, and no cursor. A write error shows with the first page.
            let _ = io::stdout().write_all(b"\x1b[?1049h\x1b[?25l");
        }
        Screen { taken, shown: false }
    }

    /// Shows a page in the place of the one before it.
    pub(super) fn show(&mut self, page: &str) -> io::Result<()> {
        if !self.taken {
            let space = if std::mem::replace(&mut self.shown, true) { "\n" } else { "" };
            return put(&format!("{space}{page}"));
        }
        let rows = weir_sys::terminal::rows(io::stdout()).unwrap_or(24).max(2);
        let lines: Vec<&str> = page.lines().collect();
        let mut out = "\x1b[H".to_owned();
        let room = if lines.len() < rows { lines.len() } else { rows - 2 };
        for line in &lines[..room] {
            // Erasing only to the end of each line does not flicker.
            out.push_str(line);
            out.push_str("\x1b[K\n");
        }
        if room < lines.len() {
            let hidden = lines.len() - room;
            out.push_str(&format!("({hidden} more lines: enlarge the window, or lower --top)\x1b[K\n"));
        }
        out.push_str("\x1b[J");
        put(&out)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.taken {
            let _ = io::stdout().write_all(b"\x1b[?25h\x1b[?1049l");
            let _ = io::stdout().flush();
        }
    }
}
