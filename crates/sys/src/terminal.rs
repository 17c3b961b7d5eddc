//! The size of a terminal.

use std::os::fd::AsFd;

/// Columns of the terminal behind a stream; `None` if it is none, or does not know.
pub fn columns(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Rows of the terminal behind a stream; `None` if it is none, or does not know.
pub fn rows(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_row > 0).then_some(usize::from(size.ws_row))
}
