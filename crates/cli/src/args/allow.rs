//! Arguments of `weir allow`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use weir_lists::Registry;

use super::in_effect::InEffect;
use super::time::{DAY, between};

pub(crate) mod apply;

pub(crate) use apply::{ApplyArgs, JsonArgs, RestoreArgs, StatusArgs};

#[derive(Debug, Args)]
pub(crate) struct AllowArgs {
    #[command(subcommand)]
    pub(crate) command: AllowCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AllowCommand {
    /// Bring the registries' lists in the cache up to date, and never make them worse
    Update(UpdateArgs),
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
    /// What a new list has that an old one lacks, and the other way round
    Diff {
        /// The earlier file
        old: PathBuf,
        /// The later file; without it, what the cache has for --country
        #[arg(required_unless_present = "countries")]
        new: Option<PathBuf>,
        /// Of registries' files, only this country's addresses; may be repeated
        #[arg(long = "country", value_name = "CC")]
        countries: Vec<String>,
        /// Folder of the cache that `weir allow update` fills
        #[arg(long, value_name = "DIR", conflicts_with = "new")]
        cache: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Filter this host's packets by lists, on trial: taken back unless confirmed
    Apply(ApplyArgs),
    /// Keep what was applied, also over a reboot
    Confirm(JsonArgs),
    /// Take back what was applied last, confirmed or not
    Rollback(JsonArgs),
    /// What is loaded, what it has counted, and who is refused just now (--follow)
    Status(StatusArgs),
    /// Take away everything that apply loaded, whatever there is of it
    Remove(JsonArgs),
    /// Load what was confirmed, after a reboot
    Restore(RestoreArgs),
    #[command(flatten)]
    InEffect(InEffect),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Registries' delegation files (delegated-*-extended-latest), or lists of prefixes, ranges and addresses; without any,
    /// the registries' files in the cache (see `weir allow update`), of which --country chooses
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Of registries' files, only this country's addresses (two letters, as JP); may be repeated
    #[arg(long = "country", value_name = "CC")]
    pub(crate) countries: Vec<String>,
    /// Leave out lines that cannot be read, and tell them, instead of stopping at the first
    #[arg(long)]
    pub(crate) skip_bad_lines: bool,
    /// Of the cache, only this registry's file; may be repeated. By default all five: any of them may hold a country's addresses
    #[arg(long = "registry", value_name = "NAME", conflicts_with = "files")]
    pub(crate) registries: Vec<Registry>,
    /// Folder of the cache that `weir allow update` fills
    #[arg(long, value_name = "DIR", conflicts_with = "files")]
    pub(crate) cache: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The cache is /var/cache/weir/lists for root, and ~/.cache/weir/lists ($XDG_CACHE_HOME) for others.\n\nExit codes: \
                  0 all lists are up to date; 1 some could not be downloaded or stored; 2 wrong usage; 3 some came and \
                  were refused, or have a line in the cache that cannot be read (--offline); 4 a list is not in the cache (--offline), or this host knows no certificate authority."
)]
pub(crate) struct UpdateArgs {
    /// A country that a new list must not lose: one with over 20 % less of it is refused; may be repeated
    #[arg(long = "country", value_name = "CC")]
    pub(crate) countries: Vec<String>,
    /// Only this registry: afrinic, apnic, arin, lacnic, ripencc; may be repeated
    #[arg(long = "registry", value_name = "NAME")]
    pub(crate) registries: Vec<Registry>,
    /// Download from here: a mirror, with {registry} for the registry's name (or with one --registry); otherwise any list, which is
    /// kept under a name of its own; may be repeated
    #[arg(long = "from", value_name = "URL")]
    pub(crate) from: Vec<String>,
    /// Folder of the cache that `weir allow update` fills
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Ask nobody; say what the cache has, and how old it is
    #[arg(long, conflicts_with_all = ["force", "max_age", "timeout", "ca"])]
    pub(crate) offline: bool,
    /// Do not ask for a list whose publisher was asked within this time, e.g. 90s, 30m, 12h, 7d
    #[arg(long, value_name = "TIME", value_parser = between(Duration::from_secs(1), DAY * 365))]
    pub(crate) max_age: Option<Duration>,
    /// Longest time for one file
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = between(Duration::from_secs(1), DAY * 365))]
    pub(crate) timeout: Duration,
    /// Verify servers by the certificate authorities in this PEM file, and by no other (for a mirror of your own)
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Leave out single lines that cannot be read, and tell them, instead of refusing the file
    #[arg(long)]
    pub(crate) skip_bad_lines: bool,
    /// Take a list that is older, or by over 20 % smaller, all the same
    #[arg(long)]
    pub(crate) force: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
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
