//! Lost packets by the doctor's cause, window after window.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_doctor::causes;
use weir_doctor::collect::{OpenWindow, Options, Scope};
use weir_doctor::diagnosis::{Diagnosis, UNEXPLAINED, diagnose};
use weir_doctor::evidence::Sight;
use weir_doctor::finding::Severity;
use weir_sys::Stop;
use weir_sys::clock::sleep_unless;
use weir_text::order;

use crate::board::Source;
use crate::page::{Group, Metric, Page};

static WINDOWS: Metric = Metric::counter("doctor_windows_total", &[], "Windows that the doctor has watched.");
static WATCHED: Metric = Metric::counter("doctor_watched_seconds_total", &[], "Length of these windows.");
static LOST: Metric = Metric::counter(
    "doctor_lost_packets_total",
    &[],
    "Packets lost in these windows, without those that every host loses without harm.",
);
static EXPLAINED: Metric =
    Metric::counter("doctor_explained_packets_total", &[], "Lost packets that a cause explains.");
static HARMLESS: Metric = Metric::counter(
    "doctor_harmless_packets_total",
    &[],
    "Packets lost without harm, such as unwanted multicast.",
);
static DROPS: Metric = Metric::counter(
    "doctor_drops_total",
    &["cause"],
    "Lost packets that the cause explains; causes of one loss count it each.",
);
static FINDINGS: Metric = Metric::gauge(
    "doctor_findings",
    &["cause", "severity"],
    "Findings of the last window; causes without any are left out.",
);
static UNREADABLE: Metric = Metric::gauge(
    "doctor_sources_unreadable",
    &[],
    "Evidence sources that the last window could not read, or only in part.",
);

/// For the reference.
pub(crate) static GROUP: Group = Group {
    title: "The doctor",
    about: "`weir doctor` in windows of `--doctor-window` (60 s), one after the other, over all network namespaces of the \
            machine, with `--netns` over that one. `cause` is one of the [causes](causes/README.md), or `unexplained`; all of \
            them have a series in `weir_doctor_drops_total` from the first window on. Between two windows it is blind for the \
            time of its analysis: compare `weir_doctor_watched_seconds_total` with the time that passed.",
    metrics: &[&WINDOWS, &WATCHED, &LOST, &EXPLAINED, &HARMLESS, &DROPS, &FINDINGS, &UNREADABLE],
};

/// The doctor, watching without end.
#[derive(Debug)]
pub struct Doctor {
    scope: Scope,
    window: Duration,
    sums: Sums,
}

/// Sums over all windows.
#[derive(Debug, Default)]
struct Sums {
    windows: u64,
    watched_s: f64,
    lost: u64,
    explained: u64,
    harmless: u64,
    /// By cause.
    drops: BTreeMap<String, u64>,
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

impl Doctor {
    /// Watches `scope` in windows of this length.
    pub fn new(scope: Scope, window: Duration) -> Self {
        let ids = causes::all().map(|cause| cause.id).chain([UNEXPLAINED]);
        let drops = order::map(ids.map(|id| (id.to_owned(), 0)));
        Doctor { scope, window, sums: Sums { drops, ..Sums::default() } }
    }
}

impl Sums {
    fn add(&mut self, diagnosis: &Diagnosis) {
        self.windows += 1;
        self.watched_s += diagnosis.window_s;
        self.lost += diagnosis.lost.packets;
        self.explained += diagnosis.lost.explained;
        self.harmless += diagnosis.lost.harmless;
        for finding in &diagnosis.findings {
            *self.drops.entry(finding.cause.clone()).or_default() += finding.explains_packets;
        }
    }

    fn write(&self, page: &mut Page, last: &Diagnosis) {
        page.single(&WINDOWS, self.windows as f64);
        page.single(&WATCHED, self.watched_s);
        page.single(&LOST, self.lost as f64);
        page.single(&EXPLAINED, self.explained as f64);
        page.single(&HARMLESS, self.harmless as f64);
        page.series(&DROPS, self.drops.iter().map(|(cause, packets)| ([cause], *packets as f64)));
        let mut found: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for finding in &last.findings {
            *found.entry((finding.cause.as_str(), severity(finding.severity))).or_default() += 1;
        }
        let findings = found.into_iter().map(|((cause, severity), n)| ([cause, severity], f64::from(n)));
        page.series(&FINDINGS, findings);
        let unreadable = last.evidence_sources.values().filter(|sight| !matches!(sight, Sight::Seen)).count();
        page.single(&UNREADABLE, unreadable as f64);
    }
}

impl Source for Doctor {
    fn name(&self) -> &'static str {
        "doctor"
    }

    fn every(&self) -> Duration {
        // A window takes its time itself.
        Duration::ZERO
    }

    fn read(&mut self, page: &mut Page, stop: &Stop) -> Result<(), String> {
        let options = Options { scope: self.scope.clone(), ..Options::default() };
        let window = OpenWindow::begin(options).map_err(|e| e.to_string())?;
        sleep_unless(&|| stop.raised(), self.window.saturating_sub(window.elapsed()));
        if stop.raised() {
            return Ok(());
        }
        let diagnosis = diagnose(&window.end());
        self.sums.add(&diagnosis);
        self.sums.write(page, &diagnosis);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use weir_doctor::evidence::Evidence;

    use super::*;

    #[test]
    fn every_cause_has_a_series_from_the_first_window_on_and_sums_grow() {
        let mut doctor = Doctor::new(Scope::Own, Duration::from_secs(1));
        let mut diagnosis = diagnose(&Evidence::default());
        diagnosis.window_s = 1.5;
        diagnosis.lost.packets = 10;
        for _ in 0..2 {
            doctor.sums.add(&diagnosis);
        }
        let mut page = Page::default();
        doctor.sums.write(&mut page, &diagnosis);
        let text = page.into_text();
        for line in [
            "weir_doctor_windows_total 2",
            "weir_doctor_watched_seconds_total 3",
            "weir_doctor_lost_packets_total 20",
            "weir_doctor_drops_total{cause=\"conntrack-full\"} 0",
            "weir_doctor_drops_total{cause=\"unexplained\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "no `{line}` in:\n{text}");
        }
        let series = text.lines().filter(|l| l.starts_with("weir_doctor_drops_total{")).count();
        assert_eq!(series, causes::all().count() + 1);
    }
}
