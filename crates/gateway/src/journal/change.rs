//! One change of a host, and its undo.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_sys::sysctl;

use super::{interface, routes};
use crate::command::{self, kernel};
use crate::docker_engine::EngineState;
use crate::{Error, Family, Role};

/// A change, with the data needed to undo it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Change {
    /// A kernel setting.
    Sysctl {
        /// Dotted name; a slash stands for a dot in an interface's name.
        name: String,
        /// Value before.
        old: String,
        /// Value written.
        new: String,
    },
    /// An offload of an interface.
    Offload {
        /// Its interface.
        interface: String,
        /// Its name, as ethtool(8) has it.
        feature: String,
        /// Whether it was switched on; it was the other way before.
        on: bool,
    },
    /// Cores to which an interface spreads the packets that it receives (Receive Packet Steering).
    Steering {
        /// Its interface.
        interface: String,
        /// Mask of cores before, as the kernel writes it.
        old: String,
        /// Mask written.
        new: String,
    },
    /// A table of nft that is ours alone.
    NftTable {
        /// `ip`, `ip6` or `inet`.
        family: String,
        /// Its name.
        table: String,
    },
    /// Objects that iptables-nft makes by itself when a table's first rule is added.
    IptablesBase {
        /// `ip` or `ip6`.
        family: String,
        /// `nat`, `filter`, `mangle`.
        table: String,
        /// Whether others had the table.
        table_existed: bool,
        /// Chains in it that others had.
        chains: Vec<String>,
    },
    /// A chain of iptables that is ours alone.
    IptablesChain {
        /// `iptables-nft` and the like.
        program: String,
        /// Its table.
        table: String,
        /// Its name.
        chain: String,
    },
    /// A rule of iptables. It carries a comment of weir's, so that it equals no other program's rule.
    IptablesRule {
        /// `iptables-nft` and the like.
        program: String,
        /// Its table.
        table: String,
        /// Its chain.
        chain: String,
        /// Matches and target, as given to the program.
        rule: Vec<String>,
    },
    /// A route: the words after `ip route add`.
    Route {
        /// IP version.
        family: Family,
        /// Words.
        route: Vec<String>,
    },
    /// All routes of a routing protocol that is ours alone, in the main table.
    Routes {
        /// IP version.
        family: Family,
        /// Number of the protocol.
        protocol: u8,
    },
    /// A set of ipset that is ours alone.
    Ipset {
        /// Its name.
        set: String,
    },
    /// A BPF filter, which this process holds.
    Filter {
        /// Tag of its place.
        tag: String,
    },
    /// Ports published by BPF, which this process holds.
    Publish {
        /// Tag of its place.
        tag: String,
    },
    /// A static translation by BPF, which this process holds.
    Stateless {
        /// Tag of its place.
        tag: String,
    },
    /// A flow table in BPF, which this process holds.
    Fastpath {
        /// Tag of its place.
        tag: String,
    },
    /// Changes of `weir tune`, in a mount namespace that this process holds.
    Tuned {
        /// Tag of its place.
        tag: String,
    },
    /// A container engine, with its rules, files and control groups.
    Engine(EngineState),
    /// A user's commands; these take them back.
    Commands {
        /// Whose host.
        role: Role,
        /// Run in this order.
        remove: Vec<String>,
        /// Variables that they are given.
        environment: BTreeMap<String, String>,
        /// Each may take so long, s.
        limit_s: u64,
    },
}

impl Change {
    /// False for what is in the kernel's memory only.
    pub(super) fn outlives_reboot(&self) -> bool {
        matches!(self, Change::Commands { .. })
    }

    /// False for what no rule of the packet filter can have changed by.
    pub(super) fn touches_rules(&self) -> bool {
        !matches!(
            self,
            Change::Offload { .. }
                | Change::Steering { .. }
                | Change::Routes { .. }
                | Change::Ipset { .. }
                | Change::Filter { .. }
                | Change::Publish { .. }
                | Change::Stateless { .. }
                | Change::Fastpath { .. }
                | Change::Tuned { .. }
        )
    }

    /// How long each command of the user may take; `None` for changes of weir's own.
    pub(super) fn time_limit(&self) -> Option<Duration> {
        match self {
            Change::Commands { limit_s, .. } => Some(Duration::from_secs(*limit_s)),
            _ => None,
        }
    }

    /// Takes it back if it is there.
    pub(super) fn undo(&self) -> Result<(), Error> {
        match self {
            Change::Sysctl { name, old, new } => {
                // An interface that is gone took its settings along. Another program set any value other than weir's.
                if sysctl::get_optional(&kernel(), name)?.is_some_and(|now| now == *new) {
                    sysctl::set(&kernel(), name, old)?;
                }
            }
            Change::Offload { interface, feature, on } => interface::undo_offload(interface, feature, *on)?,
            Change::Steering { interface, old, new } => interface::undo_steering(interface, old, new)?,
            Change::NftTable { family, table } => {
                if nft_table_exists(family, table)? {
                    command::run("nft", &["delete", "table", family, table])?;
                }
            }
            Change::IptablesBase { family, table, table_existed, chains } => {
                remove_bases(family, table, *table_existed, chains)?;
            }
            Change::IptablesChain { program, table, chain } => {
                if iptables_chain_exists(program, table, chain)? {
                    command::run(program, &["-w", "-t", table, "-F", chain])?;
                    command::run(program, &["-w", "-t", table, "-X", chain])?;
                }
            }
            Change::IptablesRule { program, .. } => {
                if command::succeeds(program, &self.iptables("-C"))? {
                    command::run(program, &self.iptables("-D"))?;
                }
            }
            Change::Route { .. } => {
                if !command::run("ip", &self.route("show"))?.trim().is_empty() {
                    command::run("ip", &self.route("del"))?;
                }
            }
            Change::Routes { family, protocol } => routes::flush(*family, *protocol)?,
            Change::Ipset { set } => crate::allow_list::remove_ipset(set)?,
            Change::Filter { tag } => crate::allow_list::HELD.remove(tag),
            Change::Publish { tag } => crate::bpf_publish::HELD.remove(tag),
            Change::Stateless { tag } => crate::bpf_stateless::HELD.remove(tag),
            Change::Fastpath { tag } => crate::fastpath::HELD.remove(tag),
            Change::Tuned { tag } => crate::tuned::remove(tag)?,
            Change::Engine(state) => state.undo()?,
            Change::Commands { remove, environment, limit_s, .. } => {
                // Each command runs even if an earlier one failed; the first failure is returned.
                let limit = Duration::from_secs(*limit_s);
                let results: Vec<_> =
                    remove.iter().map(|line| command::shell(line, environment, limit)).collect();
                results.into_iter().try_for_each(|result| result.map(drop))?;
            }
        }
        Ok(())
    }

    /// For what a snapshot of the rules does not show.
    pub(super) fn check_undone(&self) -> Result<(), Error> {
        let Change::Sysctl { name, old, new } = self else { return Ok(()) };
        match sysctl::get_optional(&kernel(), name)? {
            Some(now) if now == *new && now != *old => Err(Error::NotRestored {
                what: format!("sysctl {name}"),
                difference: format!("it is {now} and was {old}"),
            }),
            _ => Ok(()),
        }
    }

    /// The words of an iptables command about this rule; none for other changes.
    pub(super) fn iptables(&self, verb: &str) -> Vec<String> {
        let Change::IptablesRule { table, chain, rule, .. } = self else { return Vec::new() };
        // -w: wait for the lock of another iptables instead of failing.
        let head = ["-w", "-t", table, verb, chain].map(str::to_owned);
        head.into_iter().chain(rule.iter().cloned()).collect()
    }

    /// The words of an `ip route` command about this route; none for other changes.
    pub(super) fn route(&self, verb: &str) -> Vec<String> {
        let Change::Route { family, route } = self else { return Vec::new() };
        [routes::version(*family), "route", verb]
            .map(str::to_owned)
            .into_iter()
            .chain(route.iter().cloned())
            .collect()
    }

    /// True for a line of a snapshot that is a table or base chain which weir made, in this run or in another that ended
    /// before: the last run removes it although it met it.
    pub(super) fn is_base_of_ours(&self, line: &str) -> bool {
        let Change::IptablesBase { family, table, table_existed, chains } = self else { return false };
        let Some(rest) = line.strip_prefix(&format!("nft > table {family} {table}")) else { return false };
        let parts: Vec<&str> = rest.split(" > ").collect();
        match parts[..] {
            [""] => !table_existed,
            ["", chain] | ["", chain, _]
                if parts.last().is_some_and(|l| l.starts_with("chain ") || l.starts_with("type ")) =>
            {
                chain.strip_prefix("chain ").is_some_and(|chain| !chains.iter().any(|c| c == chain))
            }
            _ => false,
        }
    }
}

/// The family of the tables that this iptables keeps in nf_tables; `None` for the legacy one.
pub(super) fn nft_family(program: &str) -> Option<&'static str> {
    match program {
        "iptables-nft" => Some("ip"),
        "ip6tables-nft" => Some("ip6"),
        _ => None,
    }
}

pub(super) fn nft_table_exists(family: &str, table: &str) -> Result<bool, Error> {
    // `list tables` reads the elements of every set of the host first, which takes a minute where they are a million; a terse
    // listing of the rule set does not.
    let listing = command::run("nft", &["-t", "-j", "list", "ruleset", family])?;
    Ok(crate::nft::objects(&listing)?.iter().any(|o| o["table"]["name"] == table))
}

pub(super) fn iptables_chain_exists(program: &str, table: &str, chain: &str) -> Result<bool, Error> {
    command::succeeds(program, &["-w", "-t", table, "-n", "-L", chain])
}

/// Whether others have the table, and which of its chains are theirs. A chain whose every rule is one of weir's was made
/// by another run of weir, which cannot remove it as long as our rules are in it: the last one does.
pub(super) fn bases_of_others(family: &str, table: &str) -> Result<(bool, Vec<String>), Error> {
    if !nft_table_exists(family, table)? {
        return Ok((false, Vec::new()));
    }
    let listing = command::run("nft", &["-s", "list", "table", family, table])?;
    let saved = command::run(
        if family == "ip" { "iptables-nft-save" } else { "ip6tables-nft-save" },
        &["-t", table],
    )?;
    let chains: Vec<String> = listing
        .lines()
        .filter_map(|line| line.trim().strip_prefix("chain ")?.strip_suffix(" {"))
        .filter(|chain| !chain.starts_with("weir_") && !only_weirs(&saved, chain))
        .map(str::to_owned)
        .collect();
    let other_objects =
        listing.lines().any(|l| l.trim_start().starts_with("set ") || l.trim_start().starts_with("map "));
    let empty = !listing.lines().any(|l| l.trim_start().starts_with("chain "));
    Ok((!chains.is_empty() || other_objects || empty, chains))
}

/// True if the chain has rules and all of them carry weir's comment.
fn only_weirs(saved: &str, chain: &str) -> bool {
    let head = format!("-A {chain} ");
    let mut rules = saved.lines().filter(|line| line.starts_with(&head)).peekable();
    rules.peek().is_some() && rules.all(|rule| rule.contains("--comment \"weir:"))
}

/// Deletes base chains that are empty and not others', then the table if nothing is in it.
fn remove_bases(family: &str, table: &str, table_existed: bool, others: &[String]) -> Result<(), Error> {
    if !nft_table_exists(family, table)? {
        return Ok(());
    }
    let objects = nft_list(&["table", family, table])?;
    let mut left = 0;
    for object in &objects {
        let Some(name) = object["chain"]["name"].as_str() else {
            // Rules are counted with their chain; sets and other objects keep the table.
            left += usize::from(
                object.get("rule").is_none()
                    && object.get("table").is_none()
                    && object.get("metainfo").is_none(),
            );
            continue;
        };
        let has_rules = objects.iter().any(|o| o["rule"]["chain"] == name);
        let changed = object["chain"]["policy"] != "accept";
        if has_rules || changed || others.iter().any(|o| o == name) {
            left += 1;
        } else {
            command::run("nft", &["delete", "chain", family, table, name])?;
        }
    }
    if left == 0 && !table_existed {
        command::run("nft", &["delete", "table", family, table])?;
    }
    Ok(())
}

/// The objects of `nft -j list WHAT`.
fn nft_list(what: &[&str]) -> Result<Vec<Value>, Error> {
    let words: Vec<&str> = ["-j", "list"].into_iter().chain(what.iter().copied()).collect();
    crate::nft::objects(&command::run("nft", &words)?)
}
