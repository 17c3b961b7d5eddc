//! Arguments of `weir publish`.

use clap::{Args, Subcommand};
use weir_publish::Mapping;

use super::in_effect::InEffect;
use super::time::seconds_to_a_day;

#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    #[command(subcommand)]
    pub(crate) command: PublishCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PublishCommand {
    /// What is published on this host, and what of it can go the shorter way; changes nothing
    Plan(PlanArgs),
    /// Lead published ports the shorter way, on trial: taken back unless confirmed
    Apply(ApplyArgs),
    /// What is in effect, whether its containers are still there, and what was counted
    Status(JsonArgs),
    /// Keep what was applied
    Confirm(JsonArgs),
    /// Take away everything that apply loaded, whatever there is of it
    Remove(JsonArgs),
    #[command(flatten)]
    InEffect(InEffect),
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The interface that clients come in by; by default the one that the default routes lead to
    #[arg(long, value_name = "NAME")]
    pub(crate) outer: Option<String>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// A published address and port, and the container's, as 198.51.100.7:80=172.17.0.2:8080/tcp; may be repeated
    #[arg(value_name = "PUBLISHED=CONTAINER/PROTOCOL", required_unless_present = "all")]
    pub(crate) mappings: Vec<Mapping>,
    /// Everything that `weir publish plan` says can be done
    #[arg(long, conflicts_with_all = ["mappings", "link"])]
    pub(crate) all: bool,
    /// The interface that clients come in by; by default the one that the default routes lead to
    #[arg(long, value_name = "NAME")]
    pub(crate) outer: Option<String>,
    /// The host's end of the container's link; by default it is found by the container's address
    #[arg(long, value_name = "NAME")]
    pub(crate) link: Option<String>,
    /// Time to confirm: seconds, or with a unit as 90s, 2m, 1h; at most 24h
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = seconds_to_a_day)]
    pub(crate) confirm_within: u64,
    /// Confirm it at once: for a unit that runs when the containers have started
    #[arg(long, conflicts_with = "confirm_within")]
    pub(crate) no_guard: bool,
    /// Do it although packets would pass rules by that throw some away now
    #[arg(long)]
    pub(crate) force: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}
