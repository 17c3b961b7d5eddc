//! `weir publish`: published ports of containers without connection tracking.

mod apply;
pub(super) mod change;
mod remove;
mod status;

use std::fmt::Write as _;

use weir_publish::{Found, Mapping, PublishPlan, Request};

use weir_text::escape::line;

use super::netns;
use super::on_trial::{self, needs_root};
use crate::args::in_effect::InEffect;
use crate::args::publish::{PlanArgs, PublishArgs, PublishCommand};
use crate::documents::print_json;
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::print;

/// Whose change sets these are.
const BY: &str = "publish";

impl From<weir_publish::Error> for Failure {
    fn from(error: weir_publish::Error) -> Self {
        if matches!(error, weir_publish::Error::Nothing(_)) {
            return Failure::new(NOT_MET, error);
        }
        Failure::of_part(&error, error.is_usage(), error.is_missing())
    }
}

pub(crate) fn run(args: &PublishArgs) -> CommandResult {
    netns::enter(args.command.netns())?;
    match &args.command {
        PublishCommand::Plan(args) => plan(args),
        PublishCommand::Apply(args) => apply::run(args),
        PublishCommand::Status(args) => status::run(args.json),
        PublishCommand::Confirm(args) => apply::confirm(args.json),
        PublishCommand::Rollback(args) => on_trial::rollback(BY, args.json, on_trial::outcomes),
        PublishCommand::Remove(args) => remove::run(args.json),
        PublishCommand::InEffect(InEffect::Load { from, or_unload, trial }) => {
            change::load_now(from, *or_unload, *trial)
        }
        PublishCommand::InEffect(InEffect::Keep) => weir_publish::keep().map_err(Failure::from),
        PublishCommand::InEffect(InEffect::Unload) => weir_publish::unload().map_err(Failure::from),
        PublishCommand::InEffect(InEffect::State) => print(&weir_publish::state()?),
    }
}

fn plan(args: &PlanArgs) -> CommandResult {
    needs_root("publish plan")?;
    let plan = PublishPlan::make(&Request { outer: args.outer.clone(), link: None })?;
    if args.loaded.json {
        return print_json(&plan);
    }
    print(&page(&plan))
}

/// Names and comments are text from outside.
fn page(plan: &PublishPlan) -> String {
    let outer = line(&plan.outer);
    if plan.found.is_empty() {
        return format!("clients come in by {outer}; no rule of this network namespace publishes a port\n");
    }
    let rows: Vec<[String; 4]> = plan.found.iter().map(row).collect();
    let head = ["protocol", "published", "container", "link"].map(str::to_owned);
    let mut page = format!("clients come in by {outer}\n\n");
    let widths: Vec<usize> = (0..4)
        .map(|n| std::iter::once(&head).chain(&rows).map(|row| row[n].chars().count()).max().unwrap_or(0))
        .collect();
    let mut add = |cells: &[String; 4], last: &str| {
        let cells: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(page, "  {}", format!("{}  {last}", cells.join("  ")).trim_end());
    };
    add(&head, "");
    for (cells, found) in rows.iter().zip(&plan.found) {
        match &found.why_not {
            None => add(cells, "can be done"),
            Some(why) => add(cells, &format!("no: {}", line(why))),
        }
    }
    page.push('\n');
    for chain in &plan.passed_by {
        let _ = writeln!(page, "would be passed by: {}", line(chain));
    }
    if let Some(words) = shared(&plan.local_ports) {
        let _ = writeln!(page, "{words}");
    }
    let can = plan.found.iter().filter(|f| f.mapping.is_some()).count();
    let _ = match can {
        0 => writeln!(page, "nothing of it can be done"),
        n => writeln!(page, "{n} of {} can be done: weir publish apply --all", plan.found.len()),
    };
    page
}

/// The loss of connections from published ports, in words; `None` without such ports.
fn shared(ports: &[Mapping]) -> Option<String> {
    let list: Vec<String> = ports.iter().map(|m| format!("{}/{}", m.published, m.protocol)).collect();
    (!list.is_empty()).then(|| {
        format!(
            "connections that this host opens from a published port would lose their answers to the container; reserve \
             these ports in net.ipv4.ip_local_reserved_ports: {}",
            list.join(", ")
        )
    })
}

fn row(found: &Found) -> [String; 4] {
    [
        found.protocol.map_or("-".into(), |p| p.to_string()),
        found.published.clone(),
        found.container.clone(),
        found.link.as_deref().map_or("-".into(), line),
    ]
}
