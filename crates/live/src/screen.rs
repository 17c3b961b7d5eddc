//! The terminal itself: taken and given back, its keys and its size.

use std::io::{self, Stdin, Stdout, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui_core::layout::Size;
use ratatui_core::terminal::Terminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, getppid};
use rustix::termios::{
    OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr, tcsetattr,
};

use crate::backend::Ansi;
use crate::draw::draw;
use crate::key::{Key, Keys};
use crate::view::View;

/// The second screen without a cursor, and the way back.
const TAKE: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const GIVE_BACK: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// How long the rest of a sequence may take, ms: longer, and its ESC was a key. A line by SSH cuts sequences in two.
const REST: u64 = 50;
/// How soon a new size of the terminal, a signal and the end of the parent are noticed.
const NOTICE: Duration = Duration::from_millis(50);

/// The terminal of this process: raw, on its second screen. Given back when dropped, and before the message of a panic.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<Ansi<Stdout>>,
    keys: Keys,
    parent: Option<Pid>,
    size: Size,
    _raw: Raw,
}

/// The reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The time has come.
    Due,
    /// The user wants to leave, or is gone: a key, a signal, a terminal or a parent that ended.
    Leave,
}

/// The state of the terminal before.
#[derive(Debug)]
struct Raw {
    before: Termios,
    /// Cleared once it is given back. The hook of panics stays, as a panicking thread cannot take it away.
    taken: Arc<AtomicBool>,
}

impl Raw {
    fn take() -> io::Result<Raw> {
        // A parent that is killed leaves this process in the background, where it must still give the terminal back.
        weir_sys::terminal::allow_changes_from_background()?;
        let stdin = io::stdin();
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        // Reads wait for a byte, as elsewhere: a shell that has the terminal again, before it was given back, would take a read of
        // nothing for its end. Here poll(2) comes before each read.
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        let taken = Arc::new(AtomicBool::new(true));
        let (usual, state, still) = (std::panic::take_hook(), before.clone(), Arc::clone(&taken));
        std::panic::set_hook(Box::new(move |info| {
            if still.swap(false, Ordering::Relaxed) {
                give_back(&state);
            }
            usual(info);
        }));
        Ok(Raw { before, taken })
    }
}

/// Gives the terminal back. Its errors change nothing any more: the terminal may be gone.
fn give_back(before: &Termios) {
    let _ = io::stdout().write_all(GIVE_BACK.as_bytes());
    let _ = io::stdout().flush();
    // Keys that were typed meanwhile are thrown away: the shell must not run them.
    let _ = tcflush(io::stdin(), QueueSelector::IFlush);
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
}

impl Drop for Raw {
    fn drop(&mut self) {
        if self.taken.swap(false, Ordering::Relaxed) {
            give_back(&self.before);
        }
    }
}

/// The size of the terminal; 80 x 24 of one that does not know.
fn size() -> Size {
    let columns = weir_sys::terminal::columns(io::stdout()).unwrap_or(80);
    let rows = weir_sys::terminal::rows(io::stdout()).unwrap_or(24);
    let cells = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    Size::new(cells(columns), cells(rows))
}

impl Screen {
    /// Takes the terminal of standard input and output.
    ///
    /// # Errors
    /// If standard input is none, or it refuses.
    pub fn take(color: bool) -> io::Result<Screen> {
        let raw = Raw::take()?;
        io::stdout().write_all(TAKE.as_bytes())?;
        let size = size();
        let terminal = Terminal::new(Ansi::new(io::stdout(), size, color))?;
        Ok(Screen { terminal, keys: Keys::default(), parent: getppid(), size, _raw: raw })
    }

    /// Shows the view until that time. Obeys keys and a new size meanwhile.
    ///
    /// # Errors
    /// If the terminal refuses a picture.
    pub fn show(&mut self, view: &mut View, until: Instant, stopped: impl Fn() -> bool) -> io::Result<Wake> {
        self.picture(view)?;
        loop {
            if stopped() || getppid() != self.parent {
                return Ok(Wake::Leave);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Wake::Due);
            }
            let Some(came) = self.wait(left.min(NOTICE))? else { return Ok(Wake::Leave) };
            let mut changed = false;
            while let Some(key) = self.keys.next_key(!came) {
                changed = true;
                match key {
                    Key::Redraw => self.terminal.clear()?,
                    key if !view.press(key) => return Ok(Wake::Leave),
                    _ => {}
                }
            }
            let size = size();
            if std::mem::replace(&mut self.size, size) != size {
                self.terminal.backend_mut().resize(size);
                changed = true;
            }
            if changed {
                self.picture(view)?;
            }
        }
    }

    fn picture(&mut self, view: &mut View) -> io::Result<()> {
        self.terminal.draw(|frame| draw(view, frame.buffer_mut())).map(drop)
    }

    /// Waits for keys; returns whether any byte came, and `None` if the terminal has gone.
    fn wait(&mut self, time: Duration) -> io::Result<Option<bool>> {
        let time = if self.keys.is_unfinished() { Duration::from_millis(REST) } else { time };
        let stdin: Stdin = io::stdin();
        let mut one = [PollFd::new(&stdin, PollFlags::IN)];
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        match poll(&mut one, Some(&time)) {
            Err(rustix::io::Errno::INTR) => return Ok(Some(true)),
            other => other?,
        };
        let events = one[0].revents();
        if events.is_empty() {
            return Ok(Some(false));
        }
        // Its other end is closed: the terminal's window, or the line of ssh.
        if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            return Ok(None);
        }
        let mut bytes = [0; 1024];
        match rustix::io::read(stdin.as_fd(), &mut bytes) {
            Ok(0) => Ok(None),
            Ok(n) => {
                self.keys.push(&bytes[..n]);
                Ok(Some(true))
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(Some(true)),
            // EIO: hung up, or another process group has the terminal.
            Err(_) => Ok(None),
        }
    }
}
