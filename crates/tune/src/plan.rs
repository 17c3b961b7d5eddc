//! From proposals to a plan: bounded, paid for, in an order that does no harm, with the way back.

use std::time::Duration;

use weir_guard::{Change, When};
use weir_text::escape::line;

use super::action::Action;
use super::beyond;
use super::budget::{self, hash_heads, heads_of_page};
use super::findings::{self, Finding};
use super::knobs::{self, Cost, Knob, Scope, numbers};
use super::need::{Need, View};
use super::persist;
use super::planned::{Row, TunePlan};
use super::profile::{self, Given, Profile, Proposal};
use super::request::{Request, TunedHost};
use super::{Error, watched};

/// Plans the changes for this place, with reasons. Changes nothing.
///
/// # Errors
/// If the request is wrong, or the findings cannot be read.
pub fn plan(place: &TunedHost, request: &Request) -> Result<TunePlan, Error> {
    let view = &place.view;
    let measured = [Profile::NatGateway, Profile::Throughput].iter().any(|p| request.profiles.contains(p));
    let need = Need::read(view, if measured { request.window } else { Duration::ZERO });
    let budget_bytes = budget::bytes(request.memory, &need)?;
    let mut maker =
        Maker { view, need: &need, budget_bytes, asked: Vec::new(), rows: Vec::new(), notes: blind(&need) };
    let from = maker.ask_all(request, place)?;
    let mut rows = maker.rows;
    let mut notes = maker.notes;
    in_order(&mut rows);
    let (files, mut changes) = changes(place, &mut rows, &mut notes);
    let mut actions = request.actions.clone();
    hold_what_is_too_large(&mut actions, &rows, budget_bytes);
    let at = changes.iter().take_while(|(when, _)| *when == When::Apply).count();
    let made = actions.iter().filter(|a| a.held.is_none()).map(|a| (When::Apply, a.change.clone()));
    changes.splice(at..at, made);
    notes.extend(request.notes.iter().cloned());
    notes.dedup();
    let mut plan = TunePlan {
        id: String::new(),
        from,
        place: place.name.clone(),
        memory_bytes: memory_bytes(&rows, &actions),
        rows,
        actions,
        advice: request.advice.clone(),
        beyond: beyond::of(&request.profiles),
        need,
        budget_bytes,
        files,
        notes,
        changes,
        namespace: place.namespace.clone(),
    };
    plan.id = plan.change_set(1).id();
    Ok(plan)
}

/// Returns notes about figures that could not be read.
fn blind(need: &Need) -> Vec<String> {
    let mut notes = Vec::new();
    if need.max.is_some() && !need.entry_bytes_measured {
        notes.push(format!(
            "the kernel's sizes of objects can be read by root only: counted with {} bytes for an entry, as usual on x86-64",
            need.entry_bytes
        ));
    }
    if need.max.is_some() && need.window_s > 0.0 && need.lost.refused.is_none() {
        notes.push(
            "counters of connection tracking need root (CAP_NET_ADMIN): whether it overflows is not known"
                .into(),
        );
    }
    notes
}

/// Returns the rest of the budget for one more setting, or for that one if it is among the rows. Memory that other settings give
/// back does not count: a plan must hold even if some of its settings are left out in the end.
fn room(budget_bytes: u64, rows: &[Row], name: &str) -> i64 {
    let budget = i64::try_from(budget_bytes).unwrap_or(i64::MAX);
    let others = rows.iter().filter(|r| r.held.is_none() && r.name != name);
    budget.saturating_sub(others.map(|r| r.memory_bytes.max(0)).fold(0, i64::saturating_add))
}

/// Returns the additional memory that the applied part of a plan takes at most, bytes.
fn memory_bytes(rows: &[Row], actions: &[Action]) -> i64 {
    let rows = rows.iter().filter(|r| r.held.is_none()).map(|r| r.memory_bytes);
    let actions = actions.iter().filter(|a| a.held.is_none()).map(|a| a.memory_bytes);
    rows.chain(actions).sum()
}

/// An action takes what it takes: there is no smaller one. Settings come first.
pub(super) fn hold_what_is_too_large(actions: &mut [Action], rows: &[Row], budget_bytes: u64) {
    let mut room = room(budget_bytes, rows, "");
    for action in actions.iter_mut().filter(|a| a.held.is_none()) {
        if action.memory_bytes > room {
            action.held = Some(format!(
                "it takes {} bytes, and of the memory budget of {budget_bytes} bytes (--memory) {room} are left",
                action.memory_bytes
            ));
        } else {
            room -= action.memory_bytes;
        }
    }
}

struct Maker<'a> {
    view: &'a View,
    need: &'a Need,
    budget_bytes: u64,
    /// Settings that a user requests explicitly; other sources cannot change them.
    asked: Vec<String>,
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Maker<'_> {
    /// Collects all proposals, and returns their sources. A user's explicit settings have the first claim to the memory budget;
    /// then come profiles and findings, each with the rest.
    fn ask_all(&mut self, request: &Request, place: &TunedHost) -> Result<Vec<String>, Error> {
        for (name, value) in &request.set {
            self.demand(name, value)?;
        }
        let mut from = Vec::new();
        for profile in &request.profiles {
            from.push(format!("profile {}", profile.name()));
            let left = u64::try_from(room(self.budget_bytes, &self.rows, "")).unwrap_or(0);
            let given = Given { budget_bytes: left, peak: request.peak, rtt_ms: request.rtt_ms };
            let (proposals, notes) = profile::propose(*profile, self.view, self.need, given);
            self.notes.extend(notes);
            proposals.into_iter().for_each(|proposal| self.propose(proposal, None));
        }
        if let Some((name, text)) = &request.findings {
            from.push(name.clone());
            let found =
                findings::parse(text).map_err(|reason| Error::Findings { name: name.clone(), reason })?;
            let here = place.namespace.as_ref().map(|n| n.inode);
            found.iter().for_each(|finding| self.follow(finding, here));
        }
        from.extend(request.set.iter().map(|(name, value)| format!("--set {name}={value}")));
        Ok(from)
    }

    /// Proposes the settings of a finding's best fix.
    fn follow(&mut self, finding: &Finding, here: Option<u64>) {
        let held = finding.is_doubtful().then(|| {
            format!("the finding {} is of low confidence: look closer before it is acted upon", finding.cause)
        });
        for setting in finding.settings() {
            let name = knobs::canonical(&setting.name);
            let elsewhere = finding.namespace != 0 && here.is_some_and(|inode| inode != finding.namespace);
            if elsewhere && knobs::find(name).is_some_and(|k| k.scope == Scope::Namespace) {
                self.notes.push(format!(
                    "{name} of the finding {} is about another network namespace ({}): --netns plans there",
                    finding.cause, finding.place
                ));
                continue;
            }
            let why = format!("finding {}: {}", finding.cause, setting.why);
            self.propose(
                Proposal { name: name.to_owned(), value: setting.proposed.clone(), why },
                held.clone(),
            );
        }
    }

    /// Adds a user's explicit setting, which must be possible as it is.
    fn demand(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let name = knobs::canonical(name);
        let knob = knobs::find(name).ok_or_else(|| {
            Error::Unfit(format!(
                "--set {name}: not a setting that weir tune changes (see docs/guides/tune.md)"
            ))
        })?;
        let wrong = |why: String| Error::Unfit(format!("--set {name}: {why}"));
        let bounded = knob.bounded(value).map_err(wrong)?;
        if !bounded.split_whitespace().eq(value.split_whitespace()) {
            return Err(wrong(format!("{value} is outside of {} to {}", knob.min, knob.max)));
        }
        let now = self.view.get(name, knob.scope);
        let now = now.ok_or_else(|| wrong("this kernel or network namespace does not have it".into()))?;
        let (cost, room) = (self.more(knob, &now, &exact(knob, bounded)), self.room(name));
        if cost > room {
            return Err(wrong(format!(
                "it takes {cost} bytes, and of the memory budget of {} bytes (--memory) {room} are left",
                self.budget_bytes
            )));
        }
        // The last of several counts.
        self.rows.retain(|r| r.name != name);
        self.asked.push(name.to_owned());
        self.add(
            Proposal { name: name.to_owned(), value: value.to_owned(), why: "asked for by --set".into() },
            None,
        );
        Ok(())
    }

    /// Adds a proposal, unless the user set a value explicitly.
    fn propose(&mut self, proposal: Proposal, held: Option<String>) {
        if !self.asked.contains(&proposal.name) {
            self.add(proposal, held);
        }
    }

    fn add(&mut self, proposal: Proposal, held: Option<String>) {
        let Proposal { name, value, why } = proposal;
        let Some(knob) = knobs::find(&name) else {
            self.notes.push(format!("{name} is proposed, and not a setting that weir tune changes"));
            return;
        };
        let Some(now) = self.view.get(&name, knob.scope) else {
            self.notes
                .push(format!("{name} is proposed, and this kernel or network namespace does not have it"));
            return;
        };
        let wanted = match knob.bounded(&value) {
            Ok(bounded) => exact(knob, bounded),
            Err(e) => {
                self.notes.push(format!("{name} is proposed with a useless value: {e}"));
                return;
            }
        };
        if same(&wanted, &now) {
            return;
        }
        let at = self.rows.iter().position(|r| r.name == name);
        let before = at.map(|at| self.rows.remove(at));
        // With two proposals, the higher value wins, and the row names both sources.
        let wanted = match &before {
            Some(row) if numbers(&row.proposed) > numbers(&wanted) => row.proposed.clone(),
            _ => wanted,
        };
        let proposed = self.affordable(knob, &name, &now, wanted);
        if same(&proposed, &now) {
            return;
        }
        let read_only = self.read_only(knob, &name);
        let (mut whys, held) = match before {
            Some(row) => (row.why, row.held.and(held)),
            None => (Vec::new(), held),
        };
        whys.push(why);
        let row = Row {
            memory_bytes: self.more(knob, &now, &proposed),
            undo: format!("sysctl -w {name}='{}'", now.split_whitespace().collect::<Vec<_>>().join(" ")),
            scope: knob.scope,
            proposed,
            why: whys,
            risk: knob.risk.to_owned(),
            watched: watched::of_setting(&name).to_vec(),
            read_only: read_only.is_some(),
            held: held.or(read_only),
            overridden_by: None,
            name,
            now,
        };
        self.rows.insert(at.unwrap_or(self.rows.len()), row);
    }

    fn read_only(&self, knob: &Knob, name: &str) -> Option<String> {
        let writable = self.view.is_writable(name, knob.scope);
        (!writable).then(|| match knob.scope {
            Scope::Machine => {
                "it belongs to the machine, and can be written only from its own network namespace".into()
            }
            Scope::Namespace => "the kernel makes it read-only in this network namespace".into(),
        })
    }

    /// A value that what is left of the budget has room for.
    fn affordable(&mut self, knob: &Knob, name: &str, now: &str, value: String) -> String {
        let (more, room) = (self.more(knob, now, &value), self.room(name));
        if more <= room {
            return value;
        }
        let left =
            format!("{name}: {value} would take {more} bytes, and of the memory budget {room} are left");
        let Some(most) = budget::most(self.need, knob, now, room) else {
            self.notes.push(left);
            return now.to_owned();
        };
        let most = if knob.cost == Cost::ConntrackBuckets { most - most % heads_of_page() } else { most };
        self.notes.push(format!("{left}: room for {most}"));
        let fits = self.more(knob, now, &most.to_string()) > 0;
        if fits { most.to_string() } else { now.to_owned() }
    }

    /// Returns the additional memory that it takes, bytes.
    fn more(&self, knob: &Knob, now: &str, value: &str) -> i64 {
        budget::cost(self.need, knob, value).saturating_sub(budget::cost(self.need, knob, now))
    }

    fn room(&self, name: &str) -> i64 {
        room(self.budget_bytes, &self.rows, name)
    }
}

/// Whether two values are one: the kernel prints tabs.
fn same(a: &str, b: &str) -> bool {
    a.split_whitespace().eq(b.split_whitespace())
}

/// Returns the resulting value: the kernel rounds some values up.
fn exact(knob: &Knob, value: String) -> String {
    match (knob.cost, value.parse()) {
        (Cost::ConntrackBuckets, Ok(heads)) => hash_heads(heads).to_string(),
        _ => value,
    }
}

/// The first of a pair is written before the second when it grows, and after it when it shrinks: chains never get longer than
/// they were, and a lower bound never exceeds its upper one.
const LEADERS: [(&str, &str); 6] = [
    ("net.netfilter.nf_conntrack_buckets", "net.netfilter.nf_conntrack_max"),
    ("net.ipv4.ipfrag_high_thresh", "net.ipv4.ipfrag_low_thresh"),
    ("net.ipv6.ip6frag_high_thresh", "net.ipv6.ip6frag_low_thresh"),
    ("net.ipv4.neigh.default.gc_thresh3", "net.ipv4.neigh.default.gc_thresh2"),
    ("net.ipv4.neigh.default.gc_thresh2", "net.ipv4.neigh.default.gc_thresh1"),
    ("net.core.rmem_max", "net.core.rmem_default"),
];

fn in_order(rows: &mut Vec<Row>) {
    for (leader, follower) in LEADERS {
        let at = |rows: &[Row], name: &str| rows.iter().position(|r| r.name == name);
        let (Some(l), Some(f)) = (at(rows, leader), at(rows, follower)) else { continue };
        let grows = numbers(&rows[l].proposed) > numbers(&rows[l].now);
        if grows != (l < f) {
            let row = rows.remove(l);
            rows.insert(f, row);
        }
    }
}

/// The rows as changes, with the files that make them last.
fn changes(
    place: &TunedHost,
    rows: &mut [Row],
    notes: &mut Vec<String>,
) -> (Vec<String>, Vec<(When, Change)>) {
    let mut changes = Vec::new();
    for row in rows.iter().filter(|r| r.held.is_none()) {
        let machine = row.scope == Scope::Machine && place.view.namespace.is_some();
        changes.push((
            When::Apply,
            Change::Sysctl { name: row.name.clone(), value: row.proposed.clone(), machine },
        ));
    }
    if changes.is_empty() {
        return (Vec::new(), changes);
    }
    if !place.view.is_machines_own() {
        notes.push("this is not the machine's own network namespace: its values go with it, and no file can keep them".into());
    }
    let kept = |row: &Row| {
        row.held.is_none()
            && (place.view.is_machines_own()
                || (row.scope == Scope::Machine && place.view.namespace.is_some()))
    };
    let settings: Vec<(String, String)> =
        rows.iter().filter(|r| kept(r)).map(|r| (r.name.clone(), r.proposed.clone())).collect();
    if settings.is_empty() {
        return (Vec::new(), changes);
    }
    for row in rows.iter_mut().filter(|r| kept(r)) {
        row.overridden_by = persist::overridden_by(&place.view.root, &row.name, &row.proposed);
    }
    let (files, missing) = persist::files(&place.view.root, &settings);
    notes.extend(missing);
    let names = files.iter().map(|(path, _)| line(&path.to_string_lossy())).collect();
    changes.extend(
        files.into_iter().map(|(path, text)| (When::Confirm, Change::TextFile { path, text: Some(text) })),
    );
    (names, changes)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(super) mod tests;
