//! `weir compare`.

use weir_report::Terminal;

use crate::args::CompareArgs;
use crate::commands::load;
use crate::documents::print_json;
use crate::exit::{CommandResult, Failure};
use crate::output::{Color, print, width};

pub(crate) fn run(args: &CompareArgs, color: Color) -> CommandResult {
    let (before, after) = (load(&args.before)?, load(&args.after)?);
    if before.scenario != after.scenario {
        return Err(Failure::usage(format!(
            "these are runs of two scenarios, `{}` and `{}`: only runs of one scenario can be compared",
            before.scenario, after.scenario
        )));
    }
    let comparison = weir_report::compare_runs(&before, &after);
    if args.json {
        print_json(&comparison)
    } else if args.markdown {
        print(&weir_report::comparison_markdown(&comparison))
    } else {
        let to = Terminal { width: width(), color: color.stdout };
        print(&weir_report::comparison_terminal(&comparison, to))
    }
}
