//! The traffic of two windows: a loss that is gone may be traffic that is gone.

use std::collections::{BTreeMap, BTreeSet};

use weir_stats::rates;
use weir_text::units::percent;

use super::matching::Renamed;
use super::{ALPHA, BeforeAfter, TENTH};
use crate::diagnosis::{Balance, Diagnosis, STRAY};

/// Traffic that falls to less than this share is another traffic.
const KEPT: f64 = 0.9;

/// Packets that come may fall further than those handled, since those that are lost are sent again; but not below this share.
const KEPT_INCOMING: f64 = 0.5;

/// A namespace without a finding that matters may do less, but not fall silent: to less than this share.
const SILENT: f64 = 0.1;

/// Packets per second from which the silence of a namespace means something.
const BUSY: f64 = 10.0;

/// The level at which any doubt about the loss counts.
const DOUBT: f64 = 0.05;

/// Packets of one window, in one namespace or in all.
#[derive(Debug, Clone, Copy, Default)]
struct Packets {
    window_s: f64,
    /// Received and made here.
    came: u64,
    /// Delivered and forwarded.
    handled: u64,
    lost: u64,
}

impl Packets {
    fn add(&mut self, balance: &Balance) {
        self.came = self.came.saturating_add(balance.received).saturating_add(balance.made);
        self.handled = self.handled.saturating_add(balance.delivered).saturating_add(balance.forwarded);
        self.lost = self.lost.saturating_add(balance.lost);
    }

    fn handled_per_s(self) -> f64 {
        self.handled as f64 / self.window_s
    }

    fn came_per_s(self) -> f64 {
        self.came as f64 / self.window_s
    }

    fn lost_ratio(self) -> f64 {
        self.lost as f64 / self.came.max(self.lost).max(1) as f64
    }
}

/// Factors between two windows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    /// The share that is left of the packets handled per second, 1 at most.
    pub(super) kept: f64,
    /// The growth of the packets that came per second, 1 at least.
    pub(super) grown: f64,
}

/// The packets of two windows side by side.
#[derive(Debug)]
pub(super) struct Traffic<'a> {
    before: Packets,
    after: Packets,
    places: BTreeMap<&'a str, (Packets, Packets)>,
}

impl<'a> Traffic<'a> {
    pub(super) fn of(before: &'a Diagnosis, now: &'a Diagnosis, renamed: &Renamed<'a>) -> Self {
        let none = |diagnosis: &Diagnosis| Packets { window_s: diagnosis.window_s, ..Packets::default() };
        let (old, new) = (none(before), none(now));
        let mut all = Traffic { before: old, after: new, places: BTreeMap::new() };
        for balance in &before.balance {
            let place = renamed.get(balance.place.as_str()).copied().unwrap_or(&balance.place);
            all.before.add(balance);
            all.places.entry(place).or_insert((old, new)).0.add(balance);
        }
        for balance in &now.balance {
            all.after.add(balance);
            all.places.entry(&balance.place).or_insert((old, new)).1.add(balance);
        }
        // The whole counts what only counters tell, too.
        (all.before.lost, all.after.lost) = (before.lost.packets, now.lost.packets);
        all
    }

    pub(super) fn lost_ratio(&self) -> BeforeAfter {
        BeforeAfter { before: self.before.lost_ratio(), after: self.after.lost_ratio() }
    }

    pub(super) fn handled_per_s(&self) -> BeforeAfter {
        BeforeAfter { before: self.before.handled_per_s(), after: self.after.handled_per_s() }
    }

    /// How the traffic of a place moved, or that of all if the place had none.
    pub(super) fn moved(&self, place: &str) -> Moved {
        let (before, after) = match self.places.get(place) {
            Some((before, after)) if before.handled > 0 => (*before, *after),
            _ => (self.before, self.after),
        };
        let by = |of: fn(Packets) -> f64| if of(before) > 0.0 { of(after) / of(before) } else { 1.0 };
        Moved { kept: by(Packets::handled_per_s).min(1.0), grown: by(Packets::came_per_s).max(1.0) }
    }

    /// Why the windows have nothing to compare.
    pub(super) fn none(&self) -> Option<&'static str> {
        if self.before.came == 0 {
            Some("no packet came in the earlier window")
        } else if self.before.handled == 0 && self.after.handled == 0 {
            Some("no packet was delivered or forwarded in either window")
        } else {
            None
        }
    }

    /// The namespaces, without one that has the whole traffic: the page would repeat it.
    fn parts(&self) -> impl Iterator<Item = (&'a str, Packets, Packets)> {
        let size = |before: Packets, after: Packets| (before.came, before.handled, after.came, after.handled);
        let whole = size(self.before, self.after);
        let parts = self.places.iter().map(|(place, (before, after))| (*place, *before, *after));
        parts.filter(move |(_, before, after)| size(*before, *after) != whole)
    }

    /// The traffic that fell, in words; `found` are places with a finding that matters in either report.
    pub(super) fn fell(&self, found: &BTreeSet<&str>) -> Vec<String> {
        let mut why: Vec<String> = less(self.before, self.after, "").into_iter().collect();
        for (place, before, after) in self.parts() {
            if found.contains(place) {
                why.extend(less(before, after, &format!(" in {place}")));
            } else if before.handled_per_s() >= BUSY
                && after.handled_per_s() < SILENT * before.handled_per_s()
            {
                why.push(fall(
                    "delivered and forwarded",
                    before,
                    after,
                    &format!(" in {place}"),
                    Packets::handled_per_s,
                ));
            }
        }
        why
    }

    /// True if the whole loses a greater share than before: by more than chance and a tenth.
    pub(super) fn whole_loses_more(&self) -> bool {
        is_worse(self.before, self.after)
    }

    /// The whole and the namespaces that lose a greater share than before, in words.
    pub(super) fn loses_more(&self) -> Vec<String> {
        let whole = self.whole_loses_more().then(|| rose(self.before, self.after, ""));
        let parts = self.parts().filter(|(_, before, after)| before.came > 0 && is_worse(*before, *after));
        let parts = parts.map(|(place, before, after)| rose(before, after, &format!(" in {place}")));
        whole.into_iter().chain(parts).collect()
    }

    /// The loss of the whole in words, if it may be greater: a doubt that excludes praise.
    pub(super) fn may_lose_more(&self) -> Option<String> {
        is_greater(self.before, self.after, DOUBT).then(|| rose(self.before, self.after, ""))
    }
}

/// True if the share of lost packets grew by more than chance and a tenth, to more than any host has.
fn is_worse(before: Packets, after: Packets) -> bool {
    let by_a_tenth = after.lost_ratio() >= (1.0 + TENTH) * before.lost_ratio();
    after.lost >= STRAY && by_a_tenth && is_greater(before, after, ALPHA)
}

/// True if the share of lost packets grew by more than chance. Poisson's variance is too large for great shares, so
/// the packets that passed are tested as well.
fn is_greater(before: Packets, after: Packets, alpha: f64) -> bool {
    let (old, new) = (before.came as f64, after.came as f64);
    let passed = |p: Packets| p.came.saturating_sub(p.lost);
    after.lost_ratio() > before.lost_ratio()
        && (rates::greater((after.lost, new), (before.lost, old)) < alpha
            || rates::greater((passed(before), old), (passed(after), new)) < alpha)
}

fn less(before: Packets, after: Packets, place: &str) -> Option<String> {
    if after.handled_per_s() < KEPT * before.handled_per_s() {
        return Some(fall("delivered and forwarded", before, after, place, Packets::handled_per_s));
    }
    let stopped = after.came_per_s() < KEPT_INCOMING * before.came_per_s();
    stopped.then(|| fall("received and made here", before, after, place, Packets::came_per_s))
}

fn fall(which: &str, before: Packets, after: Packets, place: &str, of: fn(Packets) -> f64) -> String {
    let (old, new) = (super::per_second(of(before)), super::per_second(of(after)));
    format!(
        "packets {which}{place} fell from {old} to {new} per second; a loss that is gone may be traffic that is gone"
    )
}

fn rose(before: Packets, after: Packets, place: &str) -> String {
    let (old, new) = (percent(before.lost_ratio()), percent(after.lost_ratio()));
    format!("the share of lost packets{place} rose from {old} to {new}")
}
