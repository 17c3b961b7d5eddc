//! `weir cost`.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use weir_bench::scenario::Scenario;
use weir_bench::summary::price;
use weir_cost::{Amount, Catalogue, DEFAULT_OPTIONS, PriceOption, Question, answer, render};

use crate::args::CostArgs;
use crate::commands::load;
use crate::documents::{Document, Kind, print_json};
use crate::exit::{CommandResult, Failure};
use crate::output::{print, width};

/// `weir cost --list --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Prices<'a> {
    /// The known options.
    prices: &'a [PriceOption],
}

impl Document for Prices<'_> {
    const KIND: Kind = Kind::CostPrices;
}

pub(crate) fn run(args: &CostArgs) -> CommandResult {
    let answer = match &args.run {
        Some(path) => of_run(path, args)?,
        None => {
            let catalogue = catalogue(args)?;
            if args.list {
                return match args.json {
                    true => print_json(&Prices { prices: catalogue.options() }),
                    false => print(&render::price_list(catalogue.options(), columns())),
                };
            }
            let amount = |name: &str, text: &str| {
                text.parse::<Amount>().map_err(|e| Failure::usage(format!("--{name} {text}: {e}")))
            };
            let question = Question {
                gb_out: amount("gb-out", &args.gb_out)?,
                gb_in: amount("gb-in", &args.gb_in)?,
                hours: amount("hours", &args.hours)?,
            };
            let names: Vec<String> = match args.options.is_empty() {
                true => DEFAULT_OPTIONS.iter().map(|n| (*n).to_owned()).collect(),
                false => args.options.clone(),
            };
            let options = catalogue.select(&names).map_err(Failure::usage)?;
            answer(&question, &options, &[]).map_err(Failure::usage)?
        }
    };
    if args.json {
        print_json(&answer)
    } else if args.markdown {
        print(&render::markdown(&answer))
    } else {
        print(&render::terminal(&answer, columns()))
    }
}

/// Returns the width of the terminal, in columns.
pub(crate) fn columns() -> u16 {
    u16::try_from(width()).unwrap_or(u16::MAX)
}

fn catalogue(args: &CostArgs) -> Result<Catalogue, Failure> {
    let mut catalogue = Catalogue::built_in().map_err(Failure::failed)?;
    if let Some(path) = &args.prices {
        catalogue.add_toml(&path.display().to_string(), &read(path)?).map_err(Failure::usage)?;
    }
    Ok(catalogue)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())))
}

fn of_run(path: &Path, args: &CostArgs) -> Result<weir_cost::Answer, Failure> {
    let run = load(path)?;
    let origin = path.display().to_string();
    let scenario = Scenario::load(&run.scenario_toml, &origin).map_err(Failure::usage)?;
    let Some(block) = &scenario.cost else {
        return Err(Failure::usage(format!("{origin}: its scenario `{}` has no [cost] block", run.scenario)));
    };
    price(block, &scenario.testbed, &run, args.prices.as_deref()).map_err(Failure::usage)
}
