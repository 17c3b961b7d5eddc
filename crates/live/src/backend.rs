//! Cells on a terminal, by the sequences of ECMA-48 that every terminal of today knows.

use std::io::{self, Write};

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};

/// Collects a whole picture and writes it at once, so that a slow line does not show half of one.
#[derive(Debug)]
pub(crate) struct Ansi<W: Write> {
    to: W,
    picture: Vec<u8>,
    size: Size,
    color: bool,
}

impl<W: Write> Ansi<W> {
    /// Without colours only bold, faint and reversed cells differ.
    pub(crate) fn new(to: W, size: Size, color: bool) -> Self {
        Ansi { to, picture: Vec::new(), size, color }
    }

    /// The terminal has another size now.
    pub(crate) fn resize(&mut self, size: Size) {
        self.size = size;
    }

    fn put(&mut self, text: &str) {
        self.picture.extend_from_slice(text.as_bytes());
    }

    /// SGR of a cell, from the plain state on.
    fn style(&self, (color, modifier): (Color, Modifier)) -> String {
        let mut codes = "\x1b[0".to_owned();
        for (bit, code) in [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")] {
            if modifier.contains(bit) {
                codes.push_str(code);
            }
        }
        let code = match color {
            Color::Red => ";31",
            Color::Yellow => ";33",
            Color::Cyan => ";36",
            _ => "",
        };
        codes.push_str(if self.color { code } else { "" });
        codes.push('m');
        codes
    }
}

impl<W: Write> Backend for Ansi<W> {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut style = None;
        let mut next = None;
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                self.put(&format!("\x1b[{};{}H", u32::from(y) + 1, u32::from(x) + 1));
            }
            let own = (cell.fg, cell.modifier);
            if style.replace(own) != Some(own) {
                let sequence = self.style(own);
                self.put(&sequence);
            }
            self.put(cell.symbol());
            // A character of two columns leaves the cursor elsewhere: then the place is given again.
            next = (cell.symbol().is_ascii()).then(|| (x.saturating_add(1), y));
        }
        if style.is_some() {
            self.put("\x1b[0m");
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.put("\x1b[?25l");
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.put("\x1b[?25h");
        Ok(())
    }

    /// Not asked from the terminal, as its answer would come among the keys: each picture sets its own.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        self.put(&format!("\x1b[{};{}H", u32::from(y) + 1, u32::from(x) + 1));
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.put(match region {
            ClearType::All => "\x1b[0m\x1b[2J",
            ClearType::AfterCursor => "\x1b[0J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[0K",
        });
        Ok(())
    }

    fn size(&self) -> io::Result<Size> {
        Ok(self.size)
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        let picture = std::mem::take(&mut self.picture);
        self.to.write_all(&picture)?;
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use ratatui_core::buffer::Buffer;
    use ratatui_core::layout::Rect;
    use ratatui_core::style::Style;
    use ratatui_core::terminal::Terminal;

    use super::*;

    fn picture(color: bool) -> String {
        let mut terminal = Terminal::new(Ansi::new(Vec::new(), Size::new(6, 2), color)).unwrap();
        terminal
            .draw(|frame| {
                let buffer: &mut Buffer = frame.buffer_mut();
                buffer.set_string(0, 0, "ab日c", Style::new());
                buffer.set_style(
                    Rect::new(1, 0, 1, 1),
                    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
                );
            })
            .unwrap();
        String::from_utf8(terminal.backend_mut().to.clone()).unwrap()
    }

    #[test]
    fn cells_are_written_with_their_place_and_style() {
        assert_eq!(picture(true), "\x1b[1;1H\x1b[0ma\x1b[0;1;31mb\x1b[0m日\x1b[1;5Hc\x1b[0m\x1b[?25l",);
        assert!(picture(false).contains("\x1b[0;1mb"), "{:?}", picture(false));
    }
}
