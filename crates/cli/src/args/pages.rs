//! The long help of each command: its work and needs, examples, exit codes.
//!
//! clap's derive lets the one line of a subcommand's variant hide what its arguments' type says at length, so the pages
//! are put in here, by the command's name. The man page is made from the same.

use clap::Command;
use weir_text::order;

mod fastpath;
mod host;
mod publish;
mod runs;

/// One command's page.
pub(super) struct Page {
    /// The command without `weir` before it, such as `tune plan`; empty for weir itself.
    pub(super) command: &'static str,
    /// Paragraphs, each on one line.
    pub(super) text: &'static str,
    /// Command lines, at most [`EXAMPLE_COLUMNS`] wide.
    pub(super) examples: &'static [&'static str],
    /// Exit codes that are not as in [`COMMON`], ascending.
    pub(super) codes: &'static [(u8, &'static str)],
}

/// Exit codes of every command, where its page has no other meaning for them.
const COMMON: [(u8, &str); 3] =
    [(0, "done"), (1, "it failed; the message says why"), (2, "wrong usage or bad input")];

/// The exit code of commands that need root or a kernel feature.
const MISSING: (u8, &str) =
    (4, "a privilege, a kernel feature or a program is missing here; the message names it");

/// The last paragraph of a page.
fn codes(page: &Page) -> String {
    let mut all = order::map(COMMON);
    all.extend(page.codes.iter().copied());
    let all: Vec<String> = all.iter().map(|(code, meaning)| format!("{code} {meaning}")).collect();
    format!("Exit codes: {}.", all.join("; "))
}

/// Examples fit a terminal of 80 columns, so that they can be copied whole.
#[cfg(test)]
pub(super) const EXAMPLE_COLUMNS: usize = 78;

/// All pages.
pub(super) fn all() -> impl Iterator<Item = &'static Page> {
    runs::PAGES.iter().chain(host::PAGES).chain(publish::PAGES).chain(fastpath::PAGES)
}

/// The command tree with its pages.
pub(super) fn put_into(tree: Command) -> Command {
    all().fold(tree, |tree, page| {
        let path: Vec<&str> = page.command.split_whitespace().collect();
        put(tree, &path, page)
    })
}

fn put(command: Command, path: &[&str], page: &Page) -> Command {
    let Some((first, rest)) = path.split_first() else {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let examples: String = page.examples.iter().map(|line| format!("\n  {line}")).collect();
        let long = format!("{about}\n\n{}\n\nExamples:{examples}", page.text);
        let first = page.examples.first().copied().unwrap_or_default();
        let short = format!("Example:\n  {first}\n\nMore examples, needs and exit codes: --help");
        return command.long_about(long).after_help(short).after_long_help(codes(page));
    };
    command.mut_subcommand(*first, |sub| put(sub, rest, page))
}
