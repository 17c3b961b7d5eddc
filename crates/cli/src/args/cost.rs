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
    /// Options to compare; by default the managed gateway and the NAT instance; may be repeated
    #[arg(long = "option", value_name = "NAME")]
    pub(crate) options: Vec<String>,
    /// A TOML file with own prices, which go before the built-in ones of the same name
    #[arg(long, value_name = "FILE")]
    pub(crate) prices: Option<PathBuf>,
    /// A run whose [cost] block and measured bit rates say what a Gbit/s costs
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<PathBuf>,
    /// List the known options with their prices and sources
    #[arg(long)]
    pub(crate) list: bool,
    /// As JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// As Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
}
