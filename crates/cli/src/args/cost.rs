//! Options of `weir cost`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct CostArgs {
    /// GB that leave the inside network in the period
    #[arg(long, default_value = "0", value_name = "GB")]
    pub(crate) gb_out: String,
    /// GB that come back in the period
    #[arg(long, default_value = "0", value_name = "GB")]
    pub(crate) gb_in: String,
    /// Hours in the period; a month has 730
    #[arg(long, default_value = "730", value_name = "HOURS")]
    pub(crate) hours: String,
    /// Compare this option; may be repeated (default: managed gateway and NAT instance)
    #[arg(long = "option", value_name = "NAME")]
    pub(crate) options: Vec<String>,
    /// TOML file with your prices; they replace built-in ones of the same name
    #[arg(long, value_name = "FILE")]
    pub(crate) prices: Option<PathBuf>,
    /// Price a Gbit/s by the [cost] block and the measured bit rates of this run
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<PathBuf>,
    /// List the known options with their prices and sources
    #[arg(long)]
    pub(crate) list: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
}
