//! The size of a terminal, and the right to change it.
#![allow(unsafe_code, reason = "ignoring a signal, which no safe crate offers")]

use std::io;
use std::os::fd::AsFd;

/// Ignores SIGTTOU, so that this process may set the terminal's modes while another process group has it (tcsetattr(3)). Programs
/// that it runs ignore it, too.
///
/// # Errors
/// If the kernel refuses.
pub fn allow_changes_from_background() -> io::Result<()> {
    // SAFETY: SIG_IGN is no handler, so that no code of ours runs in a signal's context.
    let before = unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

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
