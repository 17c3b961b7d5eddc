//! Arguments of `weir fastpath`.

use std::net::SocketAddr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use weir_fastpath::{Exclusion, Protocol};

use super::in_effect::{CONFIRM_WITHIN, LoadedArgs};
use super::shared::NetnsArgs;
use super::time::seconds_to_a_day;

#[derive(Debug, Args)]
pub(crate) struct FastpathArgs {
    #[command(subcommand)]
    pub(crate) command: FastpathCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FastpathCommand {
    /// Show what would be carried here, in how much memory, and which rules would see less; changes nothing
    Plan(PlanArgs),
    /// Carry established connections past the rules, on trial: rolls back unless confirmed
    Apply(ApplyArgs),
    /// Show what is carried, and why the rest is not
    Status(StatusArgs),
    /// Say whether packets of a flow are carried, and if not, why
    Explain(ExplainArgs),
    /// Leave everything to the kernel for now
    Pause(NetnsArgs),
    /// Carry again after a pause
    Resume(NetnsArgs),
    /// Leave some flows to the kernel, or list the exclusions
    Exclude(ExcludeArgs),
    /// Keep what was applied, until the next reboot
    Confirm(LoadedArgs),
    /// Roll back the last apply, confirmed or not
    Rollback(LoadedArgs),
    /// End the fast path: everything takes the kernel's way
    Remove(LoadedArgs),
    /// Carry as long as this command runs, without a trial: for a unit of systemd
    Run(RunArgs),
    /// Start the process that keeps the wish on standard input
    #[command(hide = true)]
    Load {
        /// End what is in effect if that fails
        #[arg(long)]
        or_unload: bool,
        /// Seconds until it ends, unless `keep` comes before
        #[arg(long)]
        trial: Option<u64>,
    },
    /// Be that process
    #[command(hide = true)]
    Hold {
        /// Seconds until it ends, unless `keep` comes before
        #[arg(long)]
        trial: Option<u64>,
    },
    /// Make what is on trial last
    #[command(hide = true)]
    Keep,
    /// End the process
    #[command(hide = true)]
    Unload,
    /// Print what is in effect
    #[command(hide = true)]
    State,
}

impl FastpathCommand {
    /// The namespace of `--netns`.
    pub(crate) fn netns(&self) -> Option<&str> {
        let args = match self {
            FastpathCommand::Plan(args) => &args.what.netns,
            FastpathCommand::Apply(args) => &args.what.netns,
            FastpathCommand::Run(args) => &args.what.netns,
            FastpathCommand::Status(args) => &args.loaded.netns,
            FastpathCommand::Explain(args) => &args.loaded.netns,
            FastpathCommand::Exclude(args) => &args.netns,
            FastpathCommand::Pause(netns) | FastpathCommand::Resume(netns) => netns,
            FastpathCommand::Confirm(args)
            | FastpathCommand::Rollback(args)
            | FastpathCommand::Remove(args) => &args.netns,
            FastpathCommand::Load { .. }
            | FastpathCommand::Hold { .. }
            | FastpathCommand::Keep
            | FastpathCommand::Unload
            | FastpathCommand::State => return None,
        };
        args.name.as_deref()
    }
}

/// The flows to be carried.
#[derive(Debug, Args)]
pub(crate) struct WhatArgs {
    /// An interface that packets come in by and leave by; may be repeated (default: all that forward)
    #[arg(long = "interface", short = 'i', value_name = "NAME")]
    pub(crate) interfaces: Vec<String>,
    /// Leave flows with this address (and port, and protocol) at either end to the kernel; may be repeated
    #[arg(long = "exclude", value_name = "ADDRESS[/LENGTH][:PORT][/tcp|/udp]")]
    pub(crate) excluded: Vec<Exclusion>,
    /// Packets of one direction that the kernel sees before the rest is carried, 1 to 1000 (default: 8)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) packets: Option<u32>,
    /// Room for N connections of each version of IP, 64 to 16777216 (default: nf_conntrack_max, within a sixteenth of the memory)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1 << 24))]
    pub(crate) connections: Option<u32>,
    /// Carry in the drivers of network cards (XDP) where they have it; tc carries the rest
    #[arg(long)]
    pub(crate) xdp: bool,
    #[command(flatten)]
    pub(crate) netns: NetnsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    /// Time to confirm, at most 24h (example: 2m)
    #[arg(long, default_value = CONFIRM_WITHIN, value_name = "TIME", value_parser = seconds_to_a_day)]
    pub(crate) confirm_within: u64,
    /// Apply even if carried packets would bypass rules that decide packet by packet
    #[arg(long)]
    pub(crate) force: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    /// Run even if carried packets would bypass rules that decide packet by packet
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// List the flows in the table, too, at most N (1000 if no N is given)
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1000")]
    pub(crate) flows: Option<usize>,
    /// Count for a second, and list the N directions of flows with most bytes, too (10 if no N is given)
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10")]
    pub(crate) top: Option<usize>,
    #[command(flatten)]
    pub(crate) loaded: LoadedArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Protocol
    #[arg(value_name = "tcp|udp", value_parser = PossibleValuesParser::new(["tcp", "udp"]).try_map(|name| name.parse::<Protocol>()))]
    pub(crate) protocol: Protocol,
    /// Source address and port of a packet as it comes in
    #[arg(value_name = "FROM:PORT")]
    pub(crate) source: SocketAddr,
    /// Its destination
    #[arg(value_name = "TO:PORT")]
    pub(crate) destination: SocketAddr,
    #[command(flatten)]
    pub(crate) loaded: LoadedArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExcludeArgs {
    /// Address of either end, with port and protocol if only those are meant (default: list the exclusions)
    #[arg(value_name = "ADDRESS[/LENGTH][:PORT][/tcp|/udp]")]
    pub(crate) excluded: Vec<Exclusion>,
    /// Carry these flows again instead
    #[arg(long, requires = "excluded", conflicts_with = "clear")]
    pub(crate) remove: bool,
    /// Carry all flows again that were excluded before
    #[arg(long)]
    pub(crate) clear: bool,
    #[command(flatten)]
    pub(crate) netns: NetnsArgs,
}
