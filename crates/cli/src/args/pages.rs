//! What `--help` says of each command beyond its one line: what it does and needs, examples, exit codes.
//!
//! clap's derive lets the one line of a subcommand's variant hide what its arguments' type says at length, so the pages
//! are put in here, by the command's name. The man page is made from the same.

use clap::Command;

mod host;
mod publish;
mod runs;

/// One command's page.
pub(super) struct Page {
    /// The command without `weir` before it, such as `tune plan`; empty for weir itself.
    pub(super) command: &'static str,
    /// Paragraphs, each on one line.
    pub(super) text: &'static str,
    /// What to type, at most [`EXAMPLE_COLUMNS`] wide.
    pub(super) examples: &'static [&'static str],
    /// Exit codes, where they mean more than everywhere; else empty.
    pub(super) codes: &'static str,
}

/// Examples are not broken on a terminal of 80 columns: who copies one gets the whole.
#[cfg(test)]
pub(super) const EXAMPLE_COLUMNS: usize = 78;

/// All pages.
pub(super) fn all() -> impl Iterator<Item = &'static Page> {
    runs::PAGES.iter().chain(host::PAGES).chain(publish::PAGES)
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
        let command = command.long_about(long);
        return if page.codes.is_empty() { command } else { command.after_help(page.codes) };
    };
    command.mut_subcommand(*first, |sub| put(sub, rest, page))
}
