//! Arguments of what `weir allow` does to this host.

use clap::{Args, ValueEnum};
use weir_allow::{Action, Port};

use super::ListArgs;
use crate::args::in_effect::CONFIRM_WITHIN;
use crate::args::shared::NetnsArgs;
use crate::args::time::seconds_to_a_day;

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) list: ListArgs,
    /// Filter packets that come in by this interface; may be repeated
    #[arg(long = "interface", short = 'i', value_name = "NAME", required = true)]
    pub(crate) interfaces: Vec<String>,
    #[command(flatten)]
    pub(crate) netns: NetnsArgs,
    /// Program that looks addresses up
    #[arg(long, value_enum, default_value_t = Backend::Bpf)]
    pub(crate) backend: Backend,
    /// Filter packets for this host, those that it forwards, or both; bpf always both
    #[arg(long, value_enum, default_value_t = Hook::Both)]
    pub(crate) hook: Hook,
    /// Filter only packets to this service, e.g. tcp/22; may be repeated, or with commas. Not with bpf
    #[arg(long = "port", value_name = "PROTOCOL/PORT", value_delimiter = ',')]
    pub(crate) ports: Vec<Port>,
    /// Accept packets of established connections first, so that answers come in from anywhere
    #[arg(long)]
    pub(crate) established_first: bool,
    /// With bpf, filter at XDP instead of tc, which is earlier: in the driver, or generic on any interface. Not with
    /// --established-first or mark=N
    #[arg(long, value_enum, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "native")]
    pub(crate) xdp: Option<Xdp>,
    /// Another list with its own action (allow, drop, log, mark=N), before FILE; @CC instead of a file is a country of
    /// the cache. May be repeated
    #[arg(long = "class", value_name = "NAME=FILE:ACTION")]
    pub(crate) classes: Vec<ClassArg>,
    /// Action for addresses in FILE: allow, drop, log (accept and log) or mark=N
    #[arg(long, default_value = "allow", value_name = "ACTION")]
    pub(crate) action: Action,
    /// Action for all other addresses: the same choice
    #[arg(long = "default", default_value = "drop", value_name = "ACTION")]
    pub(crate) rest: Action,
    /// Time to confirm, at most 24h (example: 2m)
    #[arg(long, default_value = CONFIRM_WITHIN, value_name = "TIME", value_parser = seconds_to_a_day)]
    pub(crate) confirm_within: u64,
    /// Load the lists even if they shrank, or would shut you out
    #[arg(long)]
    pub(crate) force: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// Weir's own filter: the same cost for any number of prefixes (Linux 6.6)
    Bpf,
    /// Interval sets of nftables
    Nft,
    /// Sets of ipset, asked by iptables
    Ipset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hook {
    /// Packets for this host itself
    Input,
    /// Packets that this host forwards
    Forward,
    /// Both
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Xdp {
    /// In the driver, which must have XDP
    Native,
    /// In the stack, on any interface
    Generic,
}

/// `NAME=FILE:ACTION`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClassArg {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) action: Action,
}

impl std::str::FromStr for ClassArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once('=').ok_or("expected NAME=FILE:ACTION")?;
        // The name of a file may hold a colon, an action does not.
        let (file, action) = rest.rsplit_once(':').ok_or("expected NAME=FILE:ACTION")?;
        if file.is_empty() {
            return Err("expected NAME=FILE:ACTION".into());
        }
        Ok(ClassArg { name: name.into(), file: file.into(), action: action.parse()? })
    }
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) netns: NetnsArgs,
    /// Most sources of refused packets that are shown
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) top: usize,
    /// Show each refused or logged packet as it comes, until Ctrl-C; only with bpf, and one at a time
    #[arg(long, conflicts_with = "top")]
    pub(crate) follow: bool,
    /// As JSON; with --follow, one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Load nothing; print a systemd unit that does it at boot
    #[arg(long)]
    pub(crate) unit: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_from_both_ends() {
        let of = |text: &str| text.parse::<ClassArg>().map(|c| (c.name, c.file, c.action));
        assert_eq!(of("bad=/tmp/a=b:c.txt:drop"), Ok(("bad".into(), "/tmp/a=b:c.txt".into(), Action::Drop)));
        assert_eq!(of("jp=@JP:mark=7"), Ok(("jp".into(), "@JP".into(), Action::Mark(7))));
        for wrong in ["", "bad", "bad=file", "bad=:drop", "bad=file:refuse"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
