//! Arguments of `weir allow`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct AllowArgs {
    #[command(subcommand)]
    pub(crate) command: AllowCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AllowCommand {
    /// Compile lists into what nft or ipset loads in one step
    Build(BuildArgs),
    /// Is an address in the lists, and by which line? Exits with 3 if it is not
    Check {
        /// IPv4 or IPv6
        address: IpAddr,
        #[command(flatten)]
        list: ListArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// What a new list has that an old one has not, and the other way round
    Diff {
        /// The earlier file
        old: PathBuf,
        /// The later file
        new: PathBuf,
        /// Of registries' files, only this country's addresses; may be repeated
        #[arg(long = "country", value_name = "CC")]
        countries: Vec<String>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Registries' delegation files (delegated-*-extended-latest), or lists of prefixes, ranges and addresses
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Of registries' files, only this country's addresses (two letters, as JP); may be repeated
    #[arg(long = "country", value_name = "CC")]
    pub(crate) countries: Vec<String>,
    /// Leave out lines that cannot be read, and tell them, instead of stopping at the first
    #[arg(long)]
    pub(crate) skip_bad_lines: bool,
}

/// What a list is compiled into.
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
    /// What to compile it into
    #[arg(long, value_enum, default_value_t = ListFormat::Nft)]
    pub(crate) format: ListFormat,
    /// Name of the table (nft) or of the sets (ipset: NAME4 and NAME6)
    #[arg(long, default_value = "weir")]
    pub(crate) name: String,
    /// Take these lists' addresses out; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) subtract: Vec<PathBuf>,
    /// IPv4 only
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// IPv6 only
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
    /// Exit with 3, and write nothing, unless this address is in the list (your own, say); may be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) must_have: Vec<IpAddr>,
    /// Replace a list by one with over 20 % fewer addresses
    #[arg(long)]
    pub(crate) force: bool,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
