//! `weir publish status`.

use std::fmt::Write as _;

use weir_guard::{ChangeGuard, Phase, Status};
use weir_publish::{Attachment, Pinned, PublishPlan, Request, Status as Counted, Store, Wanted};
use weir_text::escape::line;

use super::{BY, change};
use crate::commands::on_trial::{needs_root, trial_line};
use crate::documents::{Container, Count, PublishStatus, StatusSet, TuneSet, print_json};
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::print;

/// A container's mappings, with what is wrong with them.
struct Shown {
    pinned: Pinned,
    /// Name of the link, as it was when it was applied.
    link: String,
    /// In words; empty if all is as it should be.
    wrong: Vec<String>,
}

pub(super) fn run(json: bool) -> CommandResult {
    needs_root("publish status")?;
    // First, because it rolls back a change set for which no process is responsible any more.
    let set = ChangeGuard::new(BY).status()?;
    let of_tune = change::of_tune()?;
    let loaded = weir_publish::loaded()?;
    let wanted = match loaded.iter().find(|p| !p.id.is_empty()) {
        Some(pinned) => Store::usual().find(&pinned.id)?,
        None => None,
    };
    let shown = judge(loaded, wanted.as_ref());
    let missing = missing(&shown, wanted.as_ref());
    let confirmed = set.as_ref().is_some_and(|status| matches!(status.set.phase, Phase::Confirmed { .. }));
    // Without a reboot, another program removed the mappings that weir tune had applied: weir tune reports that case.
    let rebooted = of_tune.as_ref().is_some_and(|of| of.rebooted && of.set.confirmed_unix_s.is_some());
    let lost = (confirmed || rebooted) && shown.is_empty();
    let right = !lost && missing.is_empty() && shown.iter().all(|s| s.wrong.is_empty());
    let behind = behind(&shown)?;
    if json {
        let tune = of_tune.as_ref().map(|of| TuneSet {
            id: &of.set.begin.id,
            progress: &of.set.phase,
            remaining_s: of.remaining_s,
        });
        print_json(&PublishStatus {
            behind: &behind,
            outer: wanted.as_ref().map(|w| w.outer.as_str()),
            containers: shown.iter().map(container).collect(),
            missing: &missing,
            in_effect: right,
            kernel: weir_publish::state()?.lines().map(str::to_owned).collect(),
            set: set.as_ref().map(StatusSet::of),
            tune,
        })?;
    } else {
        let mut page = page(&shown, wanted.as_ref(), &missing);
        for name in &behind {
            let name = line(name);
            let _ = writeln!(page, "attached later, and not asked about these packets: the program {name}");
        }
        if let Some(status) = &set {
            page.push_str(&trial_line(status));
        }
        if let Some(of_tune) = &of_tune {
            page.push_str(&tuned(of_tune));
        }
        if lost {
            page.push_str("what was confirmed is gone: was the machine started again?\n");
        }
        if !right {
            page.push_str("weir publish apply mends it, weir publish remove takes it away\n");
        }
        print(&page)?;
    }
    if right { Ok(()) } else { Err(Failure::Silent(NOT_MET)) }
}

/// Names of programs that do not see what is translated.
fn behind(shown: &[Shown]) -> Result<Vec<String>, Failure> {
    let outer = shown.iter().find_map(|shown| match shown.pinned.outer {
        Attachment::At(interface) => Some(interface),
        _ => None,
    });
    outer.map_or(Ok(Vec::new()), |outer| Ok(weir_publish::behind(outer)?))
}

/// Describes the change set of `weir tune` that applied the mappings.
fn tuned(status: &Status) -> String {
    let id = &status.set.begin.id;
    match status.remaining_s {
        Some(left) => {
            format!(
                "on trial in weir tune's set {id}: rolls back in {left} s; keep it with: weir tune confirm\n"
            )
        }
        None => format!("applied by weir tune, in its set {id}: weir tune rollback rolls back all of it\n"),
    }
}

fn judge(loaded: Vec<Pinned>, wanted: Option<&Wanted>) -> Vec<Shown> {
    if loaded.is_empty() {
        return Vec::new();
    }
    // If the outer interface is unknown, each container is judged by its own programs alone.
    let plan = wanted.map(|w| PublishPlan::make(&Request { outer: Some(w.outer.clone()), link: None }));
    let judge = |pinned: Pinned| {
        let container = wanted.and_then(|w| w.containers.iter().find(|c| c.index == pinned.link));
        let link = container.map_or_else(|| format!("interface {}", pinned.link), |c| c.link.clone());
        let mut wrong = Vec::new();
        for (at, what) in [(pinned.outer, "clients"), (pinned.container, "the container")] {
            match at {
                Attachment::At(_) => {}
                Attachment::Gone if what == "clients" => wrong.push("the outer interface is gone".into()),
                Attachment::Gone => wrong.push("the container's link is gone: was it started again?".into()),
                Attachment::Missing => {
                    wrong.push(format!("no program is attached for what comes from {what}"))
                }
            }
        }
        if pinned.id.is_empty() {
            wrong.push("its tables are gone".into());
        }
        if wrong.is_empty() {
            match &plan {
                Some(Ok(plan)) => {
                    let still = |m| plan.still(m, pinned.link).err().map(|why| format!("{m}: {why}"));
                    wrong.extend(pinned.mappings.iter().filter_map(still));
                }
                Some(Err(e)) => wrong.push(e.to_string()),
                None => wrong.push("what it was applied as is not on disk here".into()),
            }
        }
        Shown { pinned, link, wrong }
    };
    loaded.into_iter().map(judge).collect()
}

/// Links of containers of which nothing is in the kernel.
fn missing(shown: &[Shown], wanted: Option<&Wanted>) -> Vec<String> {
    let there = |index| shown.iter().any(|s| s.pinned.link == index);
    let containers = wanted.into_iter().flat_map(|w| &w.containers);
    containers.filter(|c| !there(c.index)).map(|c| c.link.clone()).collect()
}

/// `TranslatedError` as `translated-error`.
fn kebab(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

/// The counters by the names of directions and reasons.
fn counts(counted: &Counted) -> Vec<Count> {
    let of = counted.reasons.iter().map(|(direction, reason, count)| Count {
        direction: kebab(&format!("{direction:?}")),
        reason: kebab(&format!("{reason:?}")),
        packets: count.packets,
        bytes: count.bytes,
    });
    of.collect()
}

fn container(shown: &Shown) -> Container<'_> {
    let Shown { pinned, link, wrong } = shown;
    let counts = pinned.counted.as_ref().map(counts);
    Container { link, attached: pinned.is_attached(), wrong, mappings: &pinned.mappings, counts }
}

fn page(shown: &[Shown], wanted: Option<&Wanted>, missing: &[String]) -> String {
    if shown.is_empty() && missing.is_empty() {
        return "nothing is published by BPF\n".into();
    }
    let mut page = String::new();
    if let Some(wanted) = wanted {
        let _ = writeln!(page, "clients come in by {}", line(&wanted.outer));
    }
    for Shown { pinned, link, wrong } in shown {
        let attached = if wrong.is_empty() { "in effect" } else { "NOT in effect as a whole" };
        let _ = writeln!(page, "\n{}: {attached}", line(link));
        for why in wrong {
            let _ = writeln!(page, "  {}", line(why));
        }
        for mapping in &pinned.mappings {
            let _ = writeln!(page, "  {mapping}");
        }
        let Some(counted) = &pinned.counted else {
            page.push_str("  by another version of weir, which counts otherwise: weir publish apply replaces its programs\n");
            continue;
        };
        let _ = writeln!(page, "  {:<9} {:<17} {:>14} {:>18}", "direction", "reason", "packets", "bytes");
        for Count { direction, reason, packets, bytes } in counts(counted) {
            let _ = writeln!(page, "  {direction:<9} {reason:<17} {packets:>14} {bytes:>18}");
        }
    }
    for link in missing {
        let _ = writeln!(page, "\n{}: nothing of it is in the kernel", line(link));
    }
    page.push('\n');
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_written_with_hyphens() {
        assert_eq!(kebab("TranslatedError"), "translated-error");
        assert_eq!(kebab("In"), "in");
    }
}
