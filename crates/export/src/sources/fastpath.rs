//! The fast path of this namespace.

use std::time::Duration;

use serde::Serialize;
use weir_fastpath::{Lesson, Now, Presence, Reason, Visit};
use weir_sys::Stop;

use crate::board::Source;
use crate::page::{Group, Metric, Page, yes};

/// How long the process that keeps it may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

static IN_EFFECT: Metric =
    Metric::gauge("fastpath_in_effect", &[], "1 if a fast path is in effect in this namespace, else 0.");
static ATTACHED: Metric = Metric::gauge(
    "fastpath_attached",
    &[],
    "1 if its programs are attached to all of their interfaces, else 0.",
);
static PAUSED: Metric =
    Metric::gauge("fastpath_paused", &[], "1 while everything takes the kernel's way on request, else 0.");
static DIRECTIONS: Metric = Metric::gauge(
    "fastpath_directions",
    &[],
    "Directions of flows in its table that are not stale; a connection has two.",
);
static PACKETS: Metric = Metric::counter(
    "fastpath_packets_total",
    &["reason"],
    "Packets that came in, by why they were carried or left to the kernel; a super-packet is one.",
);
static BYTES: Metric = Metric::counter("fastpath_bytes_total", &["reason"], "Bytes of these packets.");
static LESSONS: Metric =
    Metric::counter("fastpath_lessons_total", &["result"], "Attempts to learn a flow, by result.");
static CHANGES: Metric = Metric::counter(
    "fastpath_changes_total",
    &[],
    "Changes of rules, routes, neighbours and interfaces after which all was learnt anew.",
);

static SAVED: Metric = Metric::gauge(
    "fastpath_saved_seconds",
    &[],
    "Time of a core that carrying has saved since it began, by the medians of both ways; absent until it is known.",
);

/// For the reference.
pub(crate) static GROUP: Group = Group {
    title: "Fast path",
    about: "Read every 5 s from the process that keeps the [fast path](../guides/fastpath.md) of this namespace. Without one \
            `weir_fastpath_in_effect` is 0 and the others are absent. `reason` is `carried`, `failed` (dropped), or why a packet \
            took the kernel's way.",
    metrics: &[&IN_EFFECT, &ATTACHED, &PAUSED, &DIRECTIONS, &PACKETS, &BYTES, &LESSONS, &CHANGES, &SAVED],
};

/// The fast path, as its process describes it.
#[derive(Debug, Default)]
pub struct FastPath;

/// The name in the JSON of `weir fastpath status`.
fn label(value: impl Serialize) -> Result<String, String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => Ok(name),
        Ok(other) => Err(format!("{other} is no name")),
        Err(e) => Err(e.to_string()),
    }
}

fn write(page: &mut Page, now: &Now) -> Result<(), String> {
    page.single(&IN_EFFECT, 1.0);
    page.single(&ATTACHED, yes(now.attached));
    page.single(&PAUSED, yes(now.paused));
    page.single(&DIRECTIONS, now.directions as f64);
    // Reasons without packets are left out there. A series that appears late would hide its first growth from rate().
    let counted = |reason: Reason| now.reasons.iter().filter(move |r| r.reason == reason);
    let mut packets = page.family(&PACKETS);
    for reason in Reason::ALL {
        packets.value(&[&label(reason)?], counted(reason).map(|r| r.packets).sum::<u64>() as f64);
    }
    let mut bytes = page.family(&BYTES);
    for reason in Reason::ALL {
        bytes.value(&[&label(reason)?], counted(reason).map(|r| r.bytes).sum::<u64>() as f64);
    }
    let mut lessons = page.family(&LESSONS);
    for lesson in Lesson::ALL {
        let attempts = now.lessons.iter().filter(|l| l.result == lesson).map(|l| l.attempts).sum::<u64>();
        lessons.value(&[&label(lesson)?], attempts as f64);
    }
    page.single(&CHANGES, now.changes.iter().map(|c| c.times).sum::<u64>() as f64);
    if let Some(saved) = now.times.saved_s {
        page.single(&SAVED, saved);
    }
    Ok(())
}

impl Source for FastPath {
    fn name(&self) -> &'static str {
        "fastpath"
    }

    fn every(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn read(&mut self, page: &mut Page, _stop: &Stop) -> Result<(), String> {
        match Visit::presence(PATIENCE).map_err(|e| e.to_string())? {
            Presence::None => page.single(&IN_EFFECT, 0.0),
            Presence::Answers(now) => write(page, &now)?,
            Presence::Silent { pid } => {
                return Err(format!("process {pid}, which keeps it, does not answer"));
            }
        }
        Ok(())
    }
}
