//! Output to the terminal: colour, width, and protection against harmful characters in names.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use clap::ValueEnum;
use weir_sys::privilege::Privilege;
use weir_sys::{ProcRoot, file};
pub(crate) use weir_text::escape::block as printable;
use weir_text::layout::Terminal;

use crate::exit::{CommandResult, Failure};

/// When to use colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Whether to use colour.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Color {
    pub(crate) stdout: bool,
}

impl Color {
    pub(crate) fn of(when: When) -> Self {
        // https://no-color.org: set and not empty.
        let allowed = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
            && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
        let decide = |terminal: bool| match when {
            When::Auto => terminal && allowed,
            When::Always => true,
            When::Never => false,
        };
        Color { stdout: decide(io::stdout().is_terminal()) }
    }

    /// Standard output as it is laid out for.
    pub(crate) fn terminal(self) -> Terminal {
        Terminal { width: width(), color: self.stdout }
    }
}

/// For --verbose: this program, the kernel and the rights it has here.
pub(crate) fn situation() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let own = Privilege::current(&ProcRoot::default());
    let rights = own.map_or_else(
        |e| format!("rights unknown: {e}"),
        |own| {
            let network = if own.may_create_namespaces() { "may" } else { "may not" };
            format!("user {}, {network} create network namespaces", own.euid)
        },
    );
    format!("weir {}, Linux {}, {rights}", env!("CARGO_PKG_VERSION"), kernel.trim())
}

/// Columns of the terminal; 100 where there is none.
pub(crate) fn width() -> usize {
    let set = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    set.or_else(terminal_size).unwrap_or(100).clamp(80, 200)
}

fn terminal_size() -> Option<usize> {
    [weir_sys::terminal::columns(io::stdout()), weir_sys::terminal::columns(io::stderr())]
        .into_iter()
        .flatten()
        .next()
}

/// Ends quietly when standard output is closed by its reader.
pub(crate) fn quiet_on_broken_pipe() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or("");
        if text.contains("failed printing to stdout") && text.contains("Broken pipe") {
            std::process::exit(0);
        }
        usual(info);
    }));
}

/// Data for standard output.
pub(crate) fn print(text: &str) -> CommandResult {
    is_read(put(text)).map(drop)
}

/// The same for what goes on and on, such as one page after the other: what became of it is for [`is_read`].
pub(crate) fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Returns true if the reader still reads the output; a reader that has seen enough (`| head`) is no failure.
pub(crate) fn is_read(outcome: io::Result<()>) -> Result<bool, Failure> {
    match outcome {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(unwritten(&e)),
    }
}

/// Why standard output does not have what belongs there.
pub(crate) fn unwritten(error: &io::Error) -> Failure {
    Failure::failed(format!("cannot write to standard output: {error}"))
}

/// From one to another, or the one where they are the same in words.
pub(crate) fn range(least: String, most: String) -> String {
    if least == most { most } else { format!("{least} to {most}") }
}

/// Replaces a file as a whole. A pipe or a device is written to directly; of a symbolic link the target is replaced.
pub(crate) fn save(path: &Path, text: &str) -> CommandResult {
    let written = if path.metadata().is_ok_and(|there| !there.is_file()) {
        std::fs::write(path, text)
    } else {
        file::replace(&path.canonicalize().unwrap_or_else(|_| path.to_owned()), 0o666, text)
    };
    written.map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))
}
