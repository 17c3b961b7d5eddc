//! `weir allow update`.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;
use weir_guard::unix_s;
use weir_lists::{
    Cause, Checksum, Client, Error, Limits, Registry, Report, Rules, Size, Source, UpdateOutcome as Became,
};
use weir_lists::{offline, update};
use weir_prefix::Selection;
use weir_text::order;
use weir_text::time::duration;

use super::cached::folder;
use crate::args::allow::UpdateArgs;
use crate::documents::{Document, Kind, print_json};
use crate::exit::{CommandResult, FAILED, Failure, MISSING, NOT_MET, USAGE};
use crate::output::{print, printable};
use crate::talk;

pub(super) fn run(args: &UpdateArgs) -> CommandResult {
    let countries = Selection::of(args.countries.iter().map(String::as_str)).map_err(Failure::usage)?;
    let sources = sources(args)?;
    let cache = folder(args.cache.as_deref())?;
    let rules =
        Rules { force: args.force, max_age: args.max_age, countries, skip_bad_lines: args.skip_bad_lines };
    let mut tell = |report: &Report| tell(report, args.json);
    let reports = if args.offline {
        let reports = offline(&cache, &sources, &rules, unix_s());
        reports.iter().for_each(&mut tell);
        reports
    } else {
        let limits = Limits { time: args.timeout, ..Limits::default() };
        let client = Client::new(args.ca.as_deref(), limits).map_err(|e| fail(&e, args))?;
        update(&cache, &client, &sources, &rules, &unix_s, &mut tell).map_err(|e| fail(&e, args))?
    };
    let countries = by_country(&reports);
    if args.json {
        print_json(&Updated {
            cache: cache.folder().display().to_string(),
            lists: &reports,
            countries: &countries,
        })?;
    } else {
        for (country, size) in &countries {
            print(&format!("{country}: {}\n", amount(size)))?;
        }
    }
    verdict(&reports)
}

/// The output of `--json`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Updated<'a> {
    /// Folder of the cache.
    cache: String,
    /// Each list, in the order of their updates.
    lists: &'a [Report],
    /// Addresses of each --country, over all lists in the cache.
    countries: &'a BTreeMap<String, Size>,
}

impl Document for Updated<'_> {
    const KIND: Kind = Kind::AllowUpdate;
}

fn fail(error: &Error, args: &UpdateArgs) -> Failure {
    let code = match error {
        Error::Url { .. } => USAGE,
        Error::Authorities { .. } if args.ca.is_some() => USAGE,
        Error::Authorities { .. } => MISSING,
        _ => FAILED,
    };
    Failure::new(code, error)
}

/// Returns the sources to fetch.
fn sources(args: &UpdateArgs) -> Result<Vec<Source>, Failure> {
    let chosen = order::set(args.registries.iter().copied());
    let all = order::set(Registry::ALL);
    let mut sources = Vec::new();
    for url in &args.from {
        if url.contains("{registry}") {
            let registries = if chosen.is_empty() { &all } else { &chosen };
            for registry in registries {
                sources.push(Source::mirror(*registry, url));
            }
        } else if let (Some(registry), 1) = (chosen.first(), chosen.len()) {
            sources.push(Source::mirror(*registry, url));
        } else if chosen.is_empty() {
            sources.push(Source::own(url));
        } else {
            return Err(Failure::usage(format!(
                "{url}: which registry's file is it? Put {{registry}} into the address, or name one --registry"
            )));
        }
    }
    if args.from.is_empty() {
        let registries = if chosen.is_empty() { all } else { chosen };
        sources.extend(registries.into_iter().map(|r| Ok(Source::published(r))));
    }
    let sources = sources.into_iter().collect::<Result<Vec<_>, Error>>().map_err(Failure::usage)?;
    let mut names = BTreeSet::new();
    match sources.iter().find(|s| !names.insert(s.name().to_owned())) {
        Some(twice) => Err(Failure::usage(format!("{} would be downloaded twice", twice.name()))),
        None => Ok(sources),
    }
}

/// One line for each list, and what is wrong with it.
fn tell(report: &Report, json: bool) {
    let name = match report.registry {
        Some(registry) => registry.name(),
        None => &report.name,
    };
    for note in &report.notes {
        talk::note(&format!("note: {name}: {}", printable(note)));
    }
    // The list's own line already reports that it is only missing.
    let wrong = report.reason.as_ref().filter(|_| report.cause != Some(Cause::Offline));
    if let Some(reason) = wrong {
        eprintln!("warning: {name}: {}", printable(reason));
    }
    if json {
        return;
    }
    let became = match report.outcome {
        Became::Fetched => "fetched",
        Became::NotModified => "not modified",
        Became::NotAsked => "not asked",
        Became::Kept => "kept",
        Became::Missing => "missing",
    };
    let mut line = format!("{name:8} {became:12}");
    if let Some(held) = &report.held {
        if let Some(serial) = &held.survey.serial {
            line += &format!(" serial {serial},");
        }
        line += &format!(" {}", amount(&held.survey.size));
        match held.checksum {
            Some(Checksum::Matched) => line += ", checksum right",
            Some(Checksum::NotPublished) => line += ", no checksum",
            None => {}
        }
        if report.outcome != Became::Fetched {
            line += &format!(", current {} ago", duration(held.age_s as f64));
        }
    }
    if let Some(old) = &report.replaced {
        let serial = old.serial.as_ref().map_or(String::new(), |serial| format!(" serial {serial} with"));
        line += &format!(", was{serial} {} records", old.size.records);
    }
    if report.registry.is_none() && report.held.is_some() {
        line += &format!(", in {}", report.path.display());
    }
    // weir still returns the exit code if the reader closes standard output early.
    let _ = print(&format!("{}\n", printable(line.trim_end())));
}

fn amount(size: &Size) -> String {
    format!(
        "{} records, {} IPv4 addresses, {} IPv6 networks of /64",
        size.records, size.ipv4_addresses, size.ipv6_networks
    )
}

/// Sums each country over all lists; registries do not share addresses.
fn by_country(reports: &[Report]) -> BTreeMap<String, Size> {
    let mut sum: BTreeMap<String, Size> = BTreeMap::new();
    for (country, size) in reports.iter().filter_map(|r| r.held.as_ref()).flat_map(|h| &h.survey.countries) {
        let total = sum.entry(country.clone()).or_default();
        total.records += size.records;
        total.ipv4_addresses += size.ipv4_addresses;
        total.ipv6_networks = total.ipv6_networks.saturating_add(size.ipv6_networks);
    }
    sum
}

/// How it ends: what was refused is worse than what did not come.
fn verdict(reports: &[Report]) -> CommandResult {
    let count = |cause: Cause| reports.iter().filter(|r| r.cause == Some(cause)).count();
    let (refused, failed, offline) = (count(Cause::Refused), count(Cause::Failed), count(Cause::Offline));
    let unreadable = count(Cause::Unreadable);
    let all = reports.len();
    let kept = "what the cache had is there as it was";
    if refused > 0 {
        return Err(Failure::new(NOT_MET, format!("{refused} of {all} lists came and were refused; {kept}")));
    }
    if failed > 0 {
        return Err(Failure::new(FAILED, format!("{failed} of {all} lists could not be updated; {kept}")));
    }
    if unreadable > 0 {
        let message = format!(
            "{unreadable} of {all} lists in the cache have lines that cannot be read; --skip-bad-lines leaves those out"
        );
        return Err(Failure::new(NOT_MET, message));
    }
    if offline > 0 {
        let message = format!(
            "{offline} of {all} lists are not in the cache: run `weir allow update` where there is a network"
        );
        return Err(Failure::new(MISSING, message));
    }
    Ok(())
}
