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

use weir_nat::capture::Captured;
use weir_nat::table::Line;
use weir_nat::{Compliance, Level};

use crate::args::nat::{NatArgs, NatCommand};
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::Color;

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
