//! `weir allow`: country and prefix lists.

mod apply;
mod cached;
mod follow;
mod policy;
mod remove;
mod status;
mod update;

#[cfg(test)]
pub(crate) use update::Updated;

use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use weir_prefix::{List, Ranges, Selection, export, read};

use super::{netns, on_trial};
use crate::args::allow::{AllowArgs, AllowCommand, BuildArgs, ListArgs, ListFormat};
use crate::args::in_effect::InEffect;
use crate::documents::{Document, Kind, print_json};
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::{print, printable, save};
use crate::talk::note;

/// Largest file that is read: all registries' files together have a tenth of it.
const LARGEST_FILE: u64 = 512 << 20;

/// A list that shrinks by more than this share is probably a broken download.
const SHRINKAGE: f64 = 0.2;

pub(crate) fn run(args: &AllowArgs) -> CommandResult {
    netns::enter(args.command.netns())?;
    match &args.command {
        AllowCommand::Update(args) => update::run(args),
        AllowCommand::Build(args) => build(args),
        AllowCommand::Check { address, list, json } => check(*address, list, *json),
        AllowCommand::Diff { old, new, countries, cache, json } => {
            diff(old, new.as_deref(), countries, cache.as_deref(), *json)
        }
        AllowCommand::Plan(args) => apply::plan(args),
        AllowCommand::Apply(args) => apply::run(args),
        AllowCommand::Confirm(args) => apply::confirm(args.json, args.netns.name.is_some()),
        AllowCommand::Rollback(args) => on_trial::rollback(apply::BY, args.json, on_trial::outcomes),
        AllowCommand::Status(args) if args.follow => follow::run(args.json),
        AllowCommand::Status(args) => status::run(args),
        AllowCommand::Remove(args) => remove::run(args.json),
        AllowCommand::Restore(args) => remove::restore(args.unit),
        AllowCommand::InEffect(InEffect::Load { from, or_unload, trial }) => {
            apply::load_now(from, *or_unload, *trial)
        }
        AllowCommand::InEffect(InEffect::Keep) => weir_allow::keep().map_err(Failure::from),
        AllowCommand::InEffect(InEffect::Unload) => weir_allow::unload().map_err(Failure::from),
        AllowCommand::InEffect(InEffect::State) => print(&weir_allow::state()?),
    }
}

/// Reads all files of a selection, or without any the registries' files in the cache.
fn load(args: &ListArgs) -> Result<List, Failure> {
    if args.files.is_empty() && args.countries.is_empty() {
        return Err(Failure::usage(
            "name a FILE, or a country with --country: its addresses are in the cache (see `weir allow update`)",
        ));
    }
    load_any(args)
}

/// As [`load`], also everything that is in the cache.
fn load_any(args: &ListArgs) -> Result<List, Failure> {
    let selection = Selection::of(args.countries.iter().map(String::as_str)).map_err(Failure::usage)?;
    let mut list = List::default();
    if args.files.is_empty() {
        cached::add(&mut list, args, &selection)?;
    }
    for path in &args.files {
        add(&mut list, path, &selection, args.skip_bad_lines)?;
    }
    if list.is_empty() {
        let whom = if args.countries.is_empty() {
            String::new()
        } else {
            format!(" for {}", args.countries.join(", "))
        };
        return Err(Failure::usage(format!(
            "there is no address{whom} in {}: nothing was written",
            names(&list)
        )));
    }
    Ok(list)
}

fn names(list: &List) -> String {
    list.files.join(", ")
}

fn add(list: &mut List, path: &Path, selection: &Selection, leniently: bool) -> Result<(), Failure> {
    let (name, bytes) = list_file(path)?;
    add_bytes(list, &name, &bytes, selection, leniently)
}

/// The name of a file with address ranges, and what is in it.
pub(super) fn list_file(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    let name = path.display().to_string();
    let unreadable = |e: std::io::Error| Failure::usage(format!("cannot read {name}: {e}"));
    let length = fs::metadata(path).map_err(unreadable)?.len();
    if length > LARGEST_FILE {
        return Err(Failure::usage(format!("{name} has {length} bytes; a list has at most {LARGEST_FILE}")));
    }
    let bytes = fs::read(path).map_err(unreadable)?;
    Ok((name, bytes))
}

/// Adds what was read from a file of this name.
fn add_bytes(
    list: &mut List,
    name: &str,
    bytes: &[u8],
    selection: &Selection,
    leniently: bool,
) -> Result<(), Failure> {
    if !leniently {
        return read::read(list, name, bytes, selection).map(drop).map_err(|error| {
            Failure::usage(format!("{error}\n(--skip-bad-lines leaves such lines out, and tells them)"))
        });
    }
    let (_, wrong) = read::read_leniently(list, name, bytes, selection);
    for error in wrong.errors.iter().take(20) {
        eprintln!("left out: {}", printable(&error.to_string()));
    }
    let more = wrong.errors.len().saturating_sub(20) as u64 + wrong.more;
    if more > 0 {
        eprintln!("left out: {more} more lines of {}", printable(name));
    }
    Ok(())
}

/// Returns the rest of the list after `--subtract` and `--family`.
fn result(args: &BuildArgs) -> Result<(Ranges<u32>, Ranges<u128>), Failure> {
    let list = load(&args.list)?;
    let mut less = List::default();
    for path in &args.subtract {
        add(&mut less, path, &Selection::default(), args.list.skip_bad_lines)?;
    }
    let v4 = list.ranges_v4().minus(&less.ranges_v4());
    let v6 = list.ranges_v6().minus(&less.ranges_v6());
    let (v4, v6) = match (args.ipv4, args.ipv6) {
        (true, false) => (v4, Ranges::default()),
        (false, true) => (Ranges::default(), v6),
        _ => (v4, v6),
    };
    if v4.is_empty() && v6.is_empty() {
        return Err(Failure::usage("nothing is left of the list: nothing was written"));
    }
    Ok((v4, v6))
}

fn build(args: &BuildArgs) -> CommandResult {
    export::check_name(&args.name).map_err(Failure::usage)?;
    let (v4, v6) = result(args)?;
    for address in &args.must_have {
        if !has(&v4, &v6, *address) {
            return Err(Failure::new(
                NOT_MET,
                format!("{address} is not in the list and would be shut out; nothing was written"),
            ));
        }
    }
    let text = match args.format {
        ListFormat::Nft => export::nft(&args.name, &v4, &v6),
        ListFormat::Ipset => export::ipset(&args.name, &v4, &v6),
        ListFormat::Cidr => export::cidr(&v4, &v6),
        ListFormat::Ranges => export::ranges(&v4, &v6),
    };
    if let Some(path) = &args.output {
        if !args.force {
            refuse_shrinkage(path, args.format, &v4, &v6)?;
        }
        save(path, &text)?;
    } else {
        print(&text)?;
    }
    note(&summary(&v4, &v6));
    Ok(())
}

fn has(v4: &Ranges<u32>, v6: &Ranges<u128>, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => v4.contains(address.into()),
        IpAddr::V6(address) => v6.contains(address.into()),
    }
}

fn summary(v4: &Ranges<u32>, v6: &Ranges<u128>) -> String {
    let mut words = Vec::new();
    if !v4.is_empty() {
        let (ranges, prefixes) = (v4.as_slice().len(), v4.prefixes().count());
        words.push(format!("IPv4: {:.0} addresses in {ranges} ranges ({prefixes} prefixes)", v4.addresses()));
    }
    if !v6.is_empty() {
        let (ranges, prefixes) = (v6.as_slice().len(), v6.prefixes().count());
        // Networks are given out, not addresses.
        let networks = v6.addresses() / 2f64.powi(64);
        words.push(format!("IPv6: {networks:.0} networks of /64 in {ranges} ranges ({prefixes} prefixes)"));
    }
    words.join("; ")
}

/// A list that lost much of what it had is more often a broken download than the truth.
fn refuse_shrinkage(path: &Path, format: ListFormat, v4: &Ranges<u32>, v6: &Ranges<u128>) -> CommandResult {
    // weir reads back plain lists only, and no format for other programs.
    if !matches!(format, ListFormat::Cidr | ListFormat::Ranges) || !path.exists() {
        return Ok(());
    }
    let mut old = List::default();
    add(&mut old, path, &Selection::default(), true)?;
    let lost = |new: f64, old: f64| if old > 0.0 { 1.0 - new / old } else { 0.0 };
    let lost = lost(v4.addresses(), old.ranges_v4().addresses())
        .max(lost(v6.addresses(), old.ranges_v6().addresses()));
    if lost <= SHRINKAGE {
        return Ok(());
    }
    Err(Failure::new(
        NOT_MET,
        format!(
            "the new list has {:.0} % fewer addresses than {}: it was left as it is (--force replaces it)",
            lost * 100.0,
            path.display()
        ),
    ))
}

/// One entry that an address lies in.
#[derive(Debug, Serialize, JsonSchema)]
struct Hit {
    /// As it is written.
    entry: String,
    /// Its file.
    file: String,
    /// Its line, from 1.
    line: u32,
}

/// `weir allow check --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Checked {
    /// The address.
    address: IpAddr,
    /// True if a line holds it.
    r#in: bool,
    /// Lines that hold it, the most specific first.
    entries: Vec<Hit>,
}

impl Document for Checked {
    const KIND: Kind = Kind::AllowCheck;
}

/// `weir allow diff --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Differences {
    /// Prefixes of the later list only.
    added: Vec<String>,
    /// Prefixes of the earlier list only.
    removed: Vec<String>,
}

impl Document for Differences {
    const KIND: Kind = Kind::AllowDiff;
}

fn check(address: IpAddr, args: &ListArgs, json: bool) -> CommandResult {
    let list = load_any(args)?;
    let hits: Vec<Hit> = list
        .find(address)
        .into_iter()
        .map(|(entry, origin)| Hit {
            entry,
            file: list.files[origin.file as usize].clone(),
            line: origin.line,
        })
        .collect();
    let found = !hits.is_empty();
    if json {
        print_json(&Checked { address, r#in: found, entries: hits })?;
    } else if let Some(first) = hits.first() {
        print(&format!(
            "{address} is in the list: {} ({}:{})\n",
            first.entry,
            printable(&first.file),
            first.line
        ))?;
        for hit in &hits[1..] {
            print(&format!("  also {} ({}:{})\n", hit.entry, printable(&hit.file), hit.line))?;
        }
    } else {
        print(&format!("{address} is not in the list\n"))?;
    }
    if found { Ok(()) } else { Err(Failure::Silent(NOT_MET)) }
}

fn diff(
    old: &Path,
    new: Option<&Path>,
    countries: &[String],
    cache: Option<&Path>,
    json: bool,
) -> CommandResult {
    let of = |path: Option<&Path>| {
        load(&ListArgs {
            files: path.into_iter().map(Path::to_owned).collect(),
            countries: countries.to_vec(),
            skip_bad_lines: false,
            registries: Vec::new(),
            cache: cache.map(Path::to_owned),
        })
    };
    let (old, new) = (of(Some(old))?, of(new)?);
    let v4 = new.ranges_v4().since(&old.ranges_v4());
    let v6 = new.ranges_v6().since(&old.ranges_v6());
    let lines =
        |a: &Ranges<u32>, b: &Ranges<u128>| export::cidr(a, b).lines().map(str::to_owned).collect::<Vec<_>>();
    let (added, removed) = (lines(&v4.added, &v6.added), lines(&v4.removed, &v6.removed));
    if json {
        return print_json(&Differences { added, removed });
    }
    let mut text = String::new();
    for prefix in &removed {
        let _ = writeln!(text, "-{prefix}");
    }
    for prefix in &added {
        let _ = writeln!(text, "+{prefix}");
    }
    print(&text)?;
    note(&format!("{} prefixes removed, {} added", removed.len(), added.len()));
    Ok(())
}
