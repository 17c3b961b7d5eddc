//! The fast path as an offer in a plan of `weir tune`.

use weir_fastpath::{ExclusionStore, FastpathPlan, Request, Visit};
use weir_sys::ProcRoot;
use weir_sys::privilege::Privilege;
use weir_text::escape::line;
use weir_text::units;
use weir_tune::{Action, Profile, TunedHost};

use crate::args::tune::WhatArgs;
use crate::commands::fastpath::change;
use crate::exit::Failure;

const WHY: &str = "established flows of a gateway meet rules, routes and connection tracking with every packet; a flow table repeats what \
                   those decided, by one look-up (docs: fastpath)";
const RISK: &str = "rules that count or log see the first packets of each flow, and one every 30 s; so do conntrack's own counters; it ends \
                    with a reboot, unless its unit starts it";

/// The offer, or a note why there is none here.
#[derive(Debug, Default)]
pub(super) struct Offer {
    /// Shown only: `apply` leaves it out.
    pub(super) action: Option<Action>,
    /// One line.
    pub(super) note: Option<String>,
}

enum Found {
    InEffect,
    Possible(Box<FastpathPlan>),
}

/// In the calling thread's namespace.
fn find() -> weir_fastpath::Result<Found> {
    if Visit::look()?.is_some() {
        return Ok(Found::InEffect);
    }
    let request = Request { kept: ExclusionStore::usual()?.read()?, ..Request::default() };
    Ok(Found::Possible(Box::new(FastpathPlan::make(&request, &ProcRoot::default())?)))
}

impl Offer {
    /// Looks whether this host may use the fast path, for profiles that have a place for it. Programs are loaded for a moment and
    /// attached to nothing.
    pub(super) fn look(place: &TunedHost, what: &WhatArgs, profiles: &[Profile]) -> Result<Self, Failure> {
        let is_for = |profile: &Profile| matches!(profile, Profile::NatGateway | Profile::PublishedPorts);
        let Some(profile) = profiles.iter().copied().find(is_for) else { return Ok(Offer::default()) };
        // A user's plan is not cluttered by what only root can see.
        if Privilege::current(&ProcRoot::default()).map_err(Failure::failed)?.euid != 0 {
            return Ok(Offer::default());
        }
        let found = match &place.view.namespace {
            None => find(),
            Some(namespace) => namespace.run(find).map_err(Failure::failed)?,
        };
        match found {
            Ok(Found::InEffect) => {
                Ok(Offer::noted("the fast path is in effect already (weir fastpath status)".into()))
            }
            Ok(Found::Possible(plan)) => Offer::of(&plan, profile, what.netns.name.as_deref()),
            // It is no gateway.
            Err(weir_fastpath::Error::Nothing(_)) => Ok(Offer::default()),
            // An offer that cannot be made is no error of the plan.
            Err(e) => Ok(Offer::noted(format!("the fast path: {}", line(&e.to_string())))),
        }
    }

    fn noted(note: String) -> Self {
        Offer { note: Some(note), ..Offer::default() }
    }

    fn of(plan: &FastpathPlan, profile: Profile, netns: Option<&str>) -> Result<Self, Failure> {
        let netns = netns.map_or(String::new(), |name| format!(" --netns {}", weir_text::shell::word(name)));
        let names: Vec<String> = plan.wanted.interfaces.iter().map(|name| line(name)).collect();
        let changes = plan.objections();
        let held = if changes.is_empty() {
            format!(
                "another way for packets is a bigger step than a setting: weir fastpath apply{netns} does it, with a trial of its own"
            )
        } else {
            let rules: Vec<String> = changes.iter().map(|change| line(&change.text)).collect();
            format!(
                "carried packets would bypass what decides packet by packet: {}; see weir fastpath plan{netns}",
                rules.join("; ")
            )
        };
        let action = Action {
            name: "fast path".into(),
            now: "every packet meets rules, routes and connection tracking".into(),
            proposed: format!(
                "established flows between {} by a BPF flow table, with room for {} connections",
                names.join(", "),
                units::count(plan.wanted.connections.max(plan.wanted.connections6))
            ),
            items: plan
                .left_out
                .iter()
                .map(|left| format!("left out: {}: {}", line(&left.name), line(&left.why)))
                .collect(),
            why: vec![format!("{}: {WHY}", profile.name())],
            memory_bytes: i64::try_from(plan.memory_bytes).unwrap_or(i64::MAX),
            risk: RISK.into(),
            undo: format!("weir fastpath remove{netns}"),
            held: Some(held),
            change: change(&plan.wanted)?,
        };
        Ok(Offer { action: Some(action), note: None })
    }
}
