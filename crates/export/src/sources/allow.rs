//! The address lists in effect.

use std::time::Duration;

use weir_allow::{ClassCount, Status, Store, status};
use weir_sys::Stop;

use crate::board::Source;
use crate::page::{Group, Metric, Page};

/// Classes with series of their own. A policy has a few.
const CLASSES: usize = 100;

static IN_EFFECT: Metric =
    Metric::gauge("allow_in_effect", &[], "1 if a policy of weir is in effect, else 0.");
static LOADED: Metric = Metric::gauge(
    "allow_loaded_timestamp_seconds",
    &[],
    "When a policy was last loaded, seconds since 1970.",
);
static PACKETS: Metric =
    Metric::counter("allow_packets_total", &["class", "action"], "Packets by class and its action.");
static BYTES: Metric = Metric::counter("allow_bytes_total", &["class", "action"], "Bytes of these packets.");
static RANGES: Metric = Metric::gauge("allow_list_ranges", &["class"], "Ranges of the list of the class.");
static ESTABLISHED: Metric = Metric::counter(
    "allow_established_packets_total",
    &[],
    "Packets of connections that were there already, and passed first.",
);
static LINK: Metric = Metric::counter(
    "allow_link_packets_total",
    &[],
    "Packets that the link itself needs, such as neighbour discovery.",
);
static MEMORY: Metric = Metric::gauge(
    "allow_memory_bytes",
    &[],
    "Memory of the tables, as the kernel counts it; absent where it does not.",
);

/// For the reference.
pub(crate) static GROUP: Group = Group {
    title: "Address lists in effect",
    about: "Read every 15 s. Without a policy `weir_allow_in_effect` is 0 and the others are absent. `class` is a name of the \
            policy, or `rest` for addresses in no list; at most 100 have series. Counters begin at 0 with each policy. No address \
            of a sender is a label. Absent with `--netns`, whose policies have a folder of their own.",
    metrics: &[&IN_EFFECT, &LOADED, &PACKETS, &BYTES, &RANGES, &ESTABLISHED, &LINK, &MEMORY],
};

/// The policy in effect on this host.
#[derive(Debug)]
pub struct AddressLists {
    store: Store,
}

impl AddressLists {
    /// With the policies of this folder.
    pub fn new(store: Store) -> Self {
        AddressLists { store }
    }
}

fn write(page: &mut Page, status: &Status) {
    page.single(&IN_EFFECT, 1.0);
    if let Some(loaded) = &status.loaded {
        page.single(&LOADED, loaded.unix_s as f64);
    }
    let classes = &status.classes[..status.classes.len().min(CLASSES)];
    let labels = |class: &ClassCount| [class.name.clone(), class.action.to_string()];
    page.series(&PACKETS, classes.iter().map(|class| (labels(class), class.packets as f64)));
    page.series(&BYTES, classes.iter().map(|class| (labels(class), class.bytes as f64)));
    let ranges = classes.iter().filter_map(|class| Some(([&class.name], class.ranges? as f64)));
    page.series(&RANGES, ranges);
    page.single(&ESTABLISHED, status.established_packets as f64);
    page.single(&LINK, status.link_packets as f64);
    if let Some(bytes) = status.memory_bytes {
        page.single(&MEMORY, bytes as f64);
    }
}

impl Source for AddressLists {
    fn name(&self) -> &'static str {
        "allow"
    }

    fn every(&self) -> Duration {
        Duration::from_secs(15)
    }

    fn read(&mut self, page: &mut Page, _stop: &Stop) -> Result<(), String> {
        match status(&self.store).map_err(|e| e.to_string())? {
            Some(status) => write(page, &status),
            None => page.single(&IN_EFFECT, 0.0),
        }
        Ok(())
    }
}
