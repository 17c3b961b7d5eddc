//! `weir`: what the hop in a network path costs.
//!
//! Exit codes: 0 done; 1 the run failed; 2 wrong usage or bad input; 3 a threshold was not met; 4 something that weir needs
//! is missing here.

mod args;
mod commands;
mod documents;
mod exit;
mod live;
mod output;
mod talk;

use std::process::ExitCode;

use crate::args::{Cli, Command};
use crate::exit::{CommandResult, Failure};

fn main() -> ExitCode {
    // A reader that has seen enough (`weir report | head`) is no error; std would panic on the next line printed.
    output::quiet_on_broken_pipe();
    match args::parse().map_or_else(|error| args::tell(&error), run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Silent(code)) => ExitCode::from(code),
        Err(Failure::Told { code, message }) => {
            eprintln!("weir: {}", output::printable(&message));
            ExitCode::from(code)
        }
    }
}

fn run(cli: Cli) -> CommandResult {
    let color = output::Color::of(cli.color);
    talk::begin(talk::Level::of(cli.quiet, cli.verbose));
    talk::step(output::situation);
    let outcome = command(cli.command, color);
    talk::step(|| match &outcome {
        Ok(()) => "done".to_owned(),
        Err(Failure::Silent(code) | Failure::Told { code, .. }) => format!("ends with exit code {code}"),
    });
    outcome
}

fn command(command: Command, color: output::Color) -> CommandResult {
    match command {
        Command::Bench(args) => commands::bench::run(&args, color),
        Command::Scenario(args) => commands::scenario::run(&args),
        Command::Report(args) => commands::report::run(&args, color),
        Command::Compare(args) => commands::compare::run(&args, color),
        Command::Cost(args) => commands::cost::run(&args),
        Command::Allow(args) => commands::allow::run(&args),
        Command::Publish(args) => commands::publish::run(&args),
        Command::Fastpath(args) => commands::fastpath::run(&args),
        Command::Probe(args) => commands::probe::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Mtu(args) => commands::mtu::run(&args),
        Command::Nat(args) => commands::nat::run(&args, color),
        Command::Conntrack(args) => commands::conntrack::run(&args, color),
        Command::Flows(args) => commands::flows::run(args, color),
        Command::Export(args) => commands::export::run(args),
        Command::Doctor(args) => commands::doctor::run(&args, color),
        Command::Tune(args) => commands::tune::run(&args),
        Command::Lab(args) => commands::lab::run(&args),
        Command::Schema { kind } => commands::schema::run(kind),
        Command::Completions { shell } => commands::completions(shell),
        Command::Man { folder } => commands::man(folder.as_deref()),
        Command::Agent => commands::agent(),
        Command::Guard { by, id, beside, alone } => commands::on_trial::guard(&by, &id, beside, alone),
    }
}
