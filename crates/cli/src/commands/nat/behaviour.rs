//! `weir bench nat-behaviour`: `weir nat lab` with a folder for its results, as the benchmarks have one.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use weir_report::requirements::requirements_html;

use super::document::NatTables;
use super::lab;
use super::saved::Saved;
use crate::args::BenchArgs;
use crate::args::nat::{LabGateway, NatLabArgs, NatPreset};
use crate::commands::bench::{run_name, tell_files};
use crate::documents::text;
use crate::exit::{CommandResult, Failure};
use crate::output::{Color, print, save};

/// The name that `weir bench` knows.
pub(crate) const NAME: &str = "nat-behaviour";

pub(crate) fn run(args: &BenchArgs, color: Color) -> CommandResult {
    let folder = args.output.clone().unwrap_or_else(|| PathBuf::from("runs").join(run_name(NAME)));
    let lab_args = lab_args(args, &folder)?;
    if args.dry_run {
        return print(&dry_run(&lab_args));
    }
    let failed = |e| Failure::failed(format!("cannot write to {}: {e}", folder.display()));
    std::fs::create_dir_all(&folder).map_err(failed)?;
    let tables = lab::measure(&lab_args)?;
    let kept = keep(&tables, &folder);
    lab::tell(&tables, &lab_args, color)?;
    tell_files(&folder, &[("result", RESULT), ("report", REPORT), ("packets", PACKETS)]);
    kept
}

const RESULT: &str = "nat.json";
const REPORT: &str = "report.html";
const PACKETS: &str = "packets";

/// The options of `weir nat lab`.
///
/// # Errors
/// An option has no meaning here, or its value is unknown.
fn lab_args(args: &BenchArgs, folder: &Path) -> Result<NatLabArgs, Failure> {
    let speed = [
        ("--workload", !args.workloads.is_empty()),
        ("--rounds", args.rounds.is_some()),
        ("--budget", args.budget.is_some()),
        ("--set", !args.set.is_empty()),
        ("--seed", args.seed.is_some()),
        ("--require", !args.require.is_empty()),
    ];
    if let Some((option, _)) = speed.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "{option}: {NAME} measures behaviour, not speed; it takes --preset, --variant, --output, --json and --dry-run"
        )));
    }
    let preset = args.preset.as_deref().map(|name| known("preset", name)).transpose()?;
    let gateways: Vec<LabGateway> =
        args.variants.iter().map(|name| known("variant", name)).collect::<Result<_, _>>()?;
    Ok(NatLabArgs {
        all: gateways.is_empty(),
        list: false,
        // Those that IPv4 has not are asked for by their names only.
        ipv6: !gateways.is_empty() && !gateways.iter().any(|which| which.is_of(false)),
        gateways,
        preset: preset.unwrap_or(NatPreset::Quick),
        idle: None,
        mappings: None,
        sysctls: Vec::new(),
        pcap: Some(folder.join(PACKETS)),
        progress: None,
        fail_on_must: false,
        markdown: false,
        html: false,
        json: args.json,
    })
}

/// A value by its name.
fn known<T: ValueEnum>(what: &str, name: &str) -> Result<T, Failure> {
    T::from_str(name, false).map_err(|_| {
        let all: Vec<String> = T::value_variants()
            .iter()
            .filter_map(|value| value.to_possible_value().map(|v| v.get_name().to_owned()))
            .collect();
        Failure::usage(format!("{NAME} has no {what} `{name}`; it has {}", all.join(", ")))
    })
}

fn dry_run(args: &NatLabArgs) -> String {
    let limits = args.limits();
    let timers = weir_text::time::duration(limits.idle.max(limits.connections).as_secs_f64());
    let names: Vec<String> = lab::wanted(args).into_iter().map(|gateway| gateway.name() + "\n").collect();
    format!("{NAME}: {}; the timers take {timers}\n\n{}", lab::count(names.len()), names.concat())
}

/// Writes the result and its page.
fn keep(tables: &NatTables, folder: &Path) -> CommandResult {
    save(&folder.join(RESULT), &text(tables)?)?;
    save(&folder.join(REPORT), &requirements_html(&Saved::of_document(tables)?.requirements()))
}
