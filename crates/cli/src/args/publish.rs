//! Arguments of `weir publish`.

use clap::{Args, Subcommand};
use weir_publish::Mapping;

use super::in_effect::{CONFIRM_WITHIN, InEffect, LoadedArgs};
use super::shared::NetnsArgs;
use super::time::seconds_to_a_day;

#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    #[command(subcommand)]
    pub(crate) command: PublishCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PublishCommand {
    /// Show published ports, and which of them BPF can forward; changes nothing
    Plan(PlanArgs),
    /// Forward published ports by BPF, bypassing conntrack, on trial: rolls back unless confirmed
    Apply(ApplyArgs),
    /// Show the mappings in effect, whether their containers still run, and packet counters
    Status(LoadedArgs),
    /// Keep what was applied, until the next reboot
    Confirm(LoadedArgs),
    /// Roll back the last apply, confirmed or not
    Rollback(LoadedArgs),
    /// Remove everything `apply` loaded, even partial state
    Remove(LoadedArgs),
    #[command(flatten)]
    InEffect(InEffect),
}

impl PublishCommand {
    /// The namespace of `--netns`.
    pub(crate) fn netns(&self) -> Option<&str> {
        let args = match self {
            PublishCommand::Plan(args) => &args.loaded.netns,
            PublishCommand::Apply(args) => &args.netns,
            PublishCommand::Status(args)
            | PublishCommand::Confirm(args)
            | PublishCommand::Rollback(args)
            | PublishCommand::Remove(args) => &args.netns,
            PublishCommand::InEffect(_) => return None,
        };
        args.name.as_deref()
    }
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The interface that clients come in by (default: where the default routes lead)
    #[arg(long = "interface", short = 'i', value_name = "NAME")]
    pub(crate) outer: Option<String>,
    #[command(flatten)]
    pub(crate) loaded: LoadedArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// A published address and port, and the container's, as 198.51.100.7:80=172.17.0.2:8080/tcp; may be repeated
    #[arg(value_name = "PUBLISHED=CONTAINER/PROTOCOL", required_unless_present = "all")]
    pub(crate) mappings: Vec<Mapping>,
    /// Forward every port that `weir publish plan` shows as possible
    #[arg(long, conflicts_with_all = ["mappings", "link"])]
    pub(crate) all: bool,
    /// The interface that clients come in by (default: where the default routes lead)
    #[arg(long = "interface", short = 'i', value_name = "NAME")]
    pub(crate) outer: Option<String>,
    #[command(flatten)]
    pub(crate) netns: NetnsArgs,
    /// The host's end of the container's link (default: found by the container's address)
    #[arg(long, value_name = "NAME")]
    pub(crate) link: Option<String>,
    /// Time to confirm, at most 24h (example: 2m)
    #[arg(long, default_value = CONFIRM_WITHIN, value_name = "TIME", value_parser = seconds_to_a_day)]
    pub(crate) confirm_within: u64,
    /// Confirm at once: for a unit that runs when the containers have started
    #[arg(long, conflicts_with = "confirm_within")]
    pub(crate) no_guard: bool,
    /// Apply even if packets would bypass rules that drop some of them
    #[arg(long)]
    pub(crate) force: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}
