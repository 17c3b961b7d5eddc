//! Published ports without connection tracking, as a part of a plan of `weir tune`.

use weir_publish::{Error, PublishPlan, Request, Wanted};
use weir_sys::ProcRoot;
use weir_sys::privilege::Privilege;
use weir_text::escape::line;
use weir_tune::{Action, Wish};

use crate::args::tune::WhatArgs;
use crate::commands::publish::change;
use crate::exit::{CommandResult, Failure};

const RISK: &str = "no rule of the packet filter sees translated packets, those of FORWARD and DOCKER-USER neither, and they stand in \
                    no table of connections; it ends with a reboot, and with a container that is started again: then the \
                    rules publish as before";

/// The part of a plan for published ports.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// The possible action, if any.
    pub(super) action: Option<Action>,
    /// The reason why no action is possible; one line.
    pub(super) note: Option<String>,
    /// The requirement that this machine lacks.
    pub(super) missing: Option<String>,
    /// The mappings that the action loads, and those in effect before.
    load: Option<(Wanted, Option<Wanted>)>,
}

impl Ports {
    /// Finds the ports published here, and checks if BPF can handle them. With `trial_s`, the time of a trial that follows, it
    /// removes the leftovers of a killed process; otherwise it changes nothing.
    pub(super) fn look(wish: &Wish, what: &WhatArgs, trial_s: Option<u64>) -> Result<Self, Failure> {
        let asked = wish.held.is_none();
        if what.netns.name.is_some() {
            let why = "published ports by BPF: not with --netns, because their programs have one place on a machine; run weir \
                       tune inside that network namespace, with a WEIR_STATE_DIR and a WEIR_BPF_DIR of its own";
            return if asked { Err(Failure::usage(why)) } else { Ok(Ports::noted(why.into())) };
        }
        if Privilege::current(&ProcRoot::default()).map_err(Failure::failed)?.euid != 0 {
            return Ok(Ports::noted(
                "published ports by BPF: only root can see what is published here".into(),
            ));
        }
        match Ports::found(wish, what, trial_s.filter(|_| asked)) {
            // A failed action that the user did not ask for is no error.
            Err(Failure::Told { message, .. }) if !asked => {
                Ok(Ports::noted(format!("published ports by BPF: {}", line(&message))))
            }
            found => found,
        }
    }

    fn found(wish: &Wish, what: &WhatArgs, trial_s: Option<u64>) -> Result<Self, Failure> {
        let plan = match PublishPlan::make(&Request { outer: what.outer.clone(), link: None }) {
            Ok(plan) => plan,
            Err(e) if e.is_missing() => {
                let why = format!("published ports by BPF: {}", line(&e.to_string()));
                let missing = wish.held.is_none().then(|| why.clone());
                return Ok(Ports { missing, ..Ports::noted(why) });
            }
            Err(e) => return Err(e.into()),
        };
        let wanted = match plan.all() {
            Ok(wanted) => wanted,
            Err(Error::Nothing(why)) => return Ok(Ports::noted(format!("published ports by BPF: {why}"))),
            Err(e) => return Err(e.into()),
        };
        let before = if trial_s.is_some() { change::tidy()? } else { change::in_effect()? };
        if before.as_ref() == Some(&wanted) && weir_publish::is_whole(&wanted)? {
            return Ok(Ports::noted("published ports: they go by BPF already (weir publish status)".into()));
        }
        Ports::of(wish, &plan, wanted, before, trial_s.unwrap_or(0))
    }

    fn noted(note: String) -> Self {
        Ports { note: Some(note), ..Ports::default() }
    }

    fn of(
        wish: &Wish,
        plan: &PublishPlan,
        wanted: Wanted,
        before: Option<Wanted>,
        trial_s: u64,
    ) -> Result<Self, Failure> {
        let passed_by = plan.passed_by(&wanted);
        let stopped = (!passed_by.is_empty()).then(|| {
            format!(
                "packets would bypass rules that drop some of them: {} (weir publish apply --all --force applies it \
                 nevertheless)",
                passed_by.join("; ")
            )
        });
        let items = wanted.containers.iter().flat_map(|container| {
            container.mappings.iter().map(|mapping| format!("{mapping} by {}", line(&container.link)))
        });
        let ports = wanted.mappings().count();
        let action = Action {
            name: change::NAME.into(),
            now: match &before {
                None => "by the rules, with connection tracking".into(),
                Some(before) => format!("{} of them by BPF", before.mappings().count()),
            },
            proposed: format!(
                "{ports} of {} by BPF for what comes in by {}, without connection tracking",
                plan.found.len(),
                line(&wanted.outer)
            ),
            items: items.collect(),
            why: wish.why.clone(),
            memory_bytes: i64::try_from(wanted.memory_bytes()?).unwrap_or(i64::MAX),
            risk: RISK.into(),
            undo: "weir publish remove".into(),
            held: wish.held.clone().or(stopped),
            change: change::change(&wanted, before.as_ref(), trial_s),
        };
        let left = plan.found.iter().filter(|found| found.mapping.is_none()).count();
        let note = (left > 0).then(|| {
            format!(
                "{left} of {} published ports stay with the rules: weir publish plan says why",
                plan.found.len()
            )
        });
        let load = action.held.is_none().then_some((wanted, before));
        Ok(Ports { action: Some(action), note, missing: None, load })
    }

    /// Writes down what the action refers to, before it is made.
    pub(super) fn keep(&self) -> CommandResult {
        match &self.load {
            Some((wanted, before)) => change::keep(wanted, before.as_ref()),
            None => Ok(()),
        }
    }
}
