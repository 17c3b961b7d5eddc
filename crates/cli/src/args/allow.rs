//! Arguments of `weir allow`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use weir_lists::Registry;

use super::in_effect::{InEffect, LoadedArgs};
use super::time::{DAY, between};

pub(crate) mod apply;

pub(crate) use apply::{ApplyArgs, RestoreArgs, StatusArgs};

#[derive(Debug, Args)]
pub(crate) struct AllowArgs {
    #[command(subcommand)]
    pub(crate) command: AllowCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AllowCommand {
    /// Update the cached address lists of the five regional registries
    Update(UpdateArgs),
    /// Compile lists into a file for nft or ipset
    Build(BuildArgs),
    /// Show which line of the lists holds an address; exits with 3 if none does
    Check {
        /// IPv4 or IPv6
        address: IpAddr,
        #[command(flatten)]
        list: ListArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the addresses that a new list adds and removes
    Diff {
        /// The earlier file
        old: PathBuf,
        /// The later file (default: the cached lists of --country)
        #[arg(required_unless_present = "countries")]
        new: Option<PathBuf>,
        /// Use only this country's addresses of the registries' files; may be repeated
        #[arg(long = "country", value_name = "CC")]
        countries: Vec<String>,
        /// Folder of the cache that `weir allow update` fills
        #[arg(long, value_name = "DIR", conflicts_with = "new")]
        cache: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what `apply` with the same options would do; changes nothing
    Plan(ApplyArgs),
    /// Filter this host's packets by lists, on trial: rolls back unless confirmed
    Apply(ApplyArgs),
    /// Keep what was applied, also over a reboot
    Confirm(LoadedArgs),
    /// Roll back the last apply, confirmed or not
    Rollback(LoadedArgs),
    /// Show the loaded lists, their counters, and refused packets as they come (--follow)
    Status(StatusArgs),
    /// Remove everything `apply` loaded, even partial state
    Remove(LoadedArgs),
    /// Load what was confirmed, after a reboot
    Restore(RestoreArgs),
    #[command(flatten)]
    InEffect(InEffect),
}

impl AllowCommand {
    /// The namespace of `--netns`.
    pub(crate) fn netns(&self) -> Option<&str> {
        let args = match self {
            AllowCommand::Plan(args) | AllowCommand::Apply(args) => &args.netns,
            AllowCommand::Confirm(args) | AllowCommand::Rollback(args) | AllowCommand::Remove(args) => {
                &args.netns
            }
            AllowCommand::Status(args) => &args.netns,
            _ => return None,
        };
        args.name.as_deref()
    }
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Delegation files of registries (delegated-*-extended-latest), or lists of prefixes, ranges and addresses (default: the
    /// cached files of the registries, with --country; see `weir allow update`)
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Use only this country's addresses of the registries' files (two letters, as JP); may be repeated
    #[arg(long = "country", value_name = "CC")]
    pub(crate) countries: Vec<String>,
    /// Skip and report lines that cannot be read, instead of stopping at the first
    #[arg(long)]
    pub(crate) skip_bad_lines: bool,
    /// Use only this registry's cached file; may be repeated (default: all five, since each may hold a country's addresses)
    #[arg(long = "registry", value_name = "NAME", conflicts_with = "files")]
    pub(crate) registries: Vec<Registry>,
    /// Folder of the cache that `weir allow update` fills
    #[arg(long, value_name = "DIR", conflicts_with = "files")]
    pub(crate) cache: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct UpdateArgs {
    /// Reject a new list that has over 20 % fewer addresses of this country; may be repeated
    #[arg(long = "country", value_name = "CC")]
    pub(crate) countries: Vec<String>,
    /// Update only this registry: afrinic, apnic, arin, lacnic, ripencc; may be repeated
    #[arg(long = "registry", value_name = "NAME")]
    pub(crate) registries: Vec<Registry>,
    /// Download from this URL: a mirror, with {registry} for the registry's name (or with one --registry), or any other list,
    /// which gets a name of its own; may be repeated
    #[arg(long = "from", value_name = "URL")]
    pub(crate) from: Vec<String>,
    /// Folder of the cache that `weir allow update` fills
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Use the cache only; print its contents and age
    #[arg(long, conflicts_with_all = ["force", "max_age", "timeout", "ca"])]
    pub(crate) offline: bool,
    /// Skip lists checked less than TIME ago (example: 12h)
    #[arg(long, value_name = "TIME", value_parser = between(Duration::from_secs(1), DAY * 365))]
    pub(crate) max_age: Option<Duration>,
    /// Give up on one file after TIME
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = between(Duration::from_secs(1), DAY * 365))]
    pub(crate) timeout: Duration,
    /// Verify servers by the certificate authorities in this PEM file, and by no other (for a mirror of your own)
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Skip and report lines that cannot be read, instead of rejecting the file
    #[arg(long)]
    pub(crate) skip_bad_lines: bool,
    /// Accept a list that is older or more than 20 % smaller
    #[arg(long)]
    pub(crate) force: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The form of a compiled list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// For `nft -f`: two interval sets, replaced in one transaction
    Nft,
    /// For `ipset restore`: two sets, filled aside and swapped in
    Ipset,
    /// One prefix a line, the fewest there are
    Cidr,
    /// One range a line
    Ranges,
}

#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    pub(crate) list: ListArgs,
    /// Form of the output
    #[arg(long, value_enum, default_value_t = ListFormat::Nft)]
    pub(crate) format: ListFormat,
    /// Name of the table (nft) or of the sets (ipset: NAME4 and NAME6)
    #[arg(long, default_value = "weir")]
    pub(crate) name: String,
    /// Remove the addresses of this list; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) subtract: Vec<PathBuf>,
    /// IPv4 only
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// IPv6 only
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
    /// Write nothing and exit with 3 unless this address is in the list, for example your own; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) must_have: Vec<IpAddr>,
    /// Replace a list even by one with over 20 % fewer addresses
    #[arg(long)]
    pub(crate) force: bool,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
