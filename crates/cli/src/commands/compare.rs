//! `weir compare`.

use weir_report::Terminal;

use crate::args::CompareArgs;
use crate::args::nat::NatCompareArgs;
use crate::commands::{load, nat};
use crate::documents::print_json;
use crate::exit::{CommandResult, Failure};
use crate::output::{Color, print, width};

pub(crate) fn run(args: &CompareArgs, color: Color) -> CommandResult {
    if nat::is_nat_result(&args.before) {
        return nat::compare::run(&of_nats(args), color);
    }
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

/// The same, of two results of `weir nat`.
fn of_nats(args: &CompareArgs) -> NatCompareArgs {
    NatCompareArgs {
        before: args.before.clone(),
        after: args.after.clone(),
        fail_on_worse: false,
        markdown: args.markdown,
        html: false,
        json: args.json,
    }
}
