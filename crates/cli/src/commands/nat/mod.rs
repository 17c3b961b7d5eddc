//! `weir nat`.

pub(crate) mod document;
pub(crate) mod lab;
mod page;
pub(crate) mod rows;

use crate::args::nat::{NatArgs, NatCommand};
use crate::exit::CommandResult;
use crate::output::Color;

pub(crate) fn run(args: &NatArgs, color: Color) -> CommandResult {
    match &args.command {
        NatCommand::Lab(args) => lab::run(args, color),
        NatCommand::Rows { json } => rows::run(*json, color),
    }
}
