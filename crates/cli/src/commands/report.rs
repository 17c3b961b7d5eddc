//! `weir report`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use weir_bench::require;
use weir_record::flows::FlowsRecording;
use weir_report::Terminal;

use crate::args::ReportArgs;
use crate::commands::load;
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::{Color, print, save, width};

pub(crate) fn run(args: &ReportArgs, color: Color) -> CommandResult {
    if let Some(recording) = recording(&args.run)? {
        return of_flows(args, &recording, color);
    }
    let run = load(&args.run)?;
    let conditions = conditions(&args.require, &run)?;
    let format = &args.format;
    let text = if format.html {
        weir_report::html(&run)
    } else if format.markdown {
        weir_report::markdown(&run)
    } else if format.csv {
        weir_report::csv_trials(&run)
    } else if format.csv_summary {
        weir_report::csv_summary(&run)
    } else if format.csv_patterns {
        weir_report::csv_patterns(&run)
    } else if format.json {
        crate::documents::page(&run)?
    } else {
        weir_report::terminal(&run, Terminal { width: width(), color: color.stdout && args.output.is_none() })
    };
    match &args.output {
        None => print(&text)?,
        Some(path) => save(path, &text)?,
    }
    judge(&conditions, &run)
}

/// The recording of `weir flows`, if the path leads to one.
fn recording(path: &Path) -> Result<Option<FlowsRecording>, Failure> {
    if !path.is_file() {
        return Ok(None);
    }
    let wrong = |e: String| Failure::usage(format!("{}: {e}", path.display()));
    let mut file = BufReader::new(File::open(path).map_err(|e| wrong(e.to_string()))?);
    let begins = file.fill_buf().map_err(|e| wrong(e.to_string()))?;
    if !FlowsRecording::begins_like_one(begins) {
        return Ok(None);
    }
    FlowsRecording::read(file).map(Some).map_err(wrong)
}

fn of_flows(args: &ReportArgs, recording: &FlowsRecording, color: Color) -> CommandResult {
    let format = &args.format;
    let of_runs = format.markdown || format.csv || format.csv_summary || format.csv_patterns || format.json;
    if of_runs || !args.require.is_empty() {
        return Err(Failure::usage(
            "a recording of `weir flows` has two forms: --html, and the text for a terminal; its lines are JSON already",
        ));
    }
    let text = if format.html {
        weir_report::flows_html(recording)
    } else {
        let to = Terminal { width: width(), color: color.stdout && args.output.is_none() };
        weir_report::flows_terminal(recording, to)
    };
    match &args.output {
        None => print(&text),
        Some(path) => save(path, &text),
    }
}

/// The conditions, read before anything is done with them.
pub(crate) fn conditions(
    texts: &[String],
    run: &weir_record::Run,
) -> Result<Vec<require::Requirement>, Failure> {
    texts.iter().map(|text| require::Requirement::parse(text, run).map_err(Failure::usage)).collect()
}

/// Tells each condition's outcome on standard error; exit code 3 unless all are met.
pub(crate) fn judge(conditions: &[require::Requirement], run: &weir_record::Run) -> CommandResult {
    let mut met = true;
    for condition in conditions {
        let judgement = condition.judge(run);
        eprintln!("{judgement}");
        met &= judgement.is_met();
    }
    if met { Ok(()) } else { Err(Failure::Silent(NOT_MET)) }
}
