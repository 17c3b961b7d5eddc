//! `weir nat`.

pub(crate) mod behaviour;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod document;
mod hosts;
pub(crate) mod lab;
mod page;
mod progress;
pub(crate) mod rows;
mod saved;
mod served;

use std::path::Path;

pub(crate) use saved::is_nat_result;
use weir_nat::capture::Captured;
use weir_nat::table::Line;
use weir_nat::{Compliance, Level};

use weir_report::requirements::{requirements_html, requirements_markdown};

use crate::args::nat::{NatArgs, NatCommand};
use crate::documents::{Document, print_json};
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::{Color, print};
use saved::Saved;

pub(crate) fn run(args: &NatArgs, color: Color) -> CommandResult {
    match &args.command {
        NatCommand::Check(args) => match &args.stun {
            Some(stun) => check::run(stun, args, color),
            None => hosts::check(args, color),
        },
        NatCommand::Ports(args) => hosts::ports(args, color),
        NatCommand::Lab(args) => lab::run(args, color),
        NatCommand::Compare(args) => compare::run(args, color),
        NatCommand::Rows { json } => rows::run(*json, color),
    }
}

/// Prints a result in the form that is asked for: as JSON, Markdown or HTML, or as a page.
fn tell(
    result: &impl Document,
    (json, markdown, html): (bool, bool, bool),
    page: impl FnOnce() -> Result<String, Failure>,
) -> CommandResult {
    let side_by_side = || Saved::of_document(result).map(|saved| saved.requirements());
    if json {
        print_json(result)
    } else if markdown {
        print(&requirements_markdown(&side_by_side()?))
    } else if html {
        print(&requirements_html(&side_by_side()?))
    } else {
        print(&page()?)
    }
}

/// Writes the packets of each experiment to a folder, which is made.
fn write_packets(folder: &Path, files: &[Captured]) -> CommandResult {
    let failed = |e| Failure::failed(format!("cannot write to {}: {e}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    for captured in files {
        let file = folder.join(format!("{}.pcapng", captured.experiment));
        std::fs::write(file, &captured.file).map_err(failed)?;
    }
    Ok(())
}

/// The end of a command that was asked to fail if a MUST is not met.
fn verdict_of<'a>(fail_on_must: bool, lines: impl IntoIterator<Item = &'a Line>) -> CommandResult {
    let unmet = lines.into_iter().any(|line| {
        matches!(line.level, Level::Must | Level::MustNot)
            && matches!(line.judgement.verdict, Compliance::Fails | Compliance::Partly)
    });
    if fail_on_must && unmet { Err(Failure::Silent(NOT_MET)) } else { Ok(()) }
}
