//! `weir report`.

use weir_bench::require;
use weir_report::Terminal;

use crate::args::ReportArgs;
use crate::commands::load;
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::{Color, print, save, width};

pub(crate) fn run(args: &ReportArgs, color: Color) -> CommandResult {
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
        serde_json::to_string_pretty(&run).map_err(Failure::failed)? + "\n"
    } else {
        weir_report::terminal(&run, Terminal { width: width(), color: color.stdout && args.output.is_none() })
    };
    match &args.output {
        None => print(&text)?,
        Some(path) => save(path, &text)?,
    }
    judge(&conditions, &run)
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
