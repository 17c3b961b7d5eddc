//! The policy in effect, and its counters.

use schemars::JsonSchema;
use serde::Serialize;
use weir_text::order;

pub use crate::kernel::{Counted, Denied};
use crate::policy::{Action, Backend, Policy};
use crate::store::{Loaded, Store};
use crate::{Error, bpf, ipset, load, nft};

/// Events of single packets, for a process that follows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Events {
    /// Those that were written, read or not.
    pub written: u64,
    /// Those that were not, because there were too many at a time.
    pub lost: u64,
    /// Whether a process follows them now; also true for up to 3 s after that process was killed.
    pub followed: bool,
}

/// A class, and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ClassCount {
    /// Its name; `rest` for addresses in no list.
    pub name: String,
    /// The action on its packets.
    #[serde(serialize_with = "in_words")]
    #[schemars(with = "String")]
    pub action: Action,
    /// Origin of the list; text from outside.
    pub origin: Vec<String>,
    /// Its ranges, IPv4 and IPv6; `None` of the rest.
    pub ranges: Option<usize>,
    /// Its IPv4 addresses, likewise.
    pub ipv4_addresses: Option<f64>,
    /// Its IPv6 addresses in networks of /64, likewise.
    pub ipv6_networks: Option<f64>,
    /// Packets from there.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

fn in_words<S: serde::Serializer>(action: &Action, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(action)
}

/// The policy in effect, with its counters.
#[derive(Debug, Clone)]
pub struct Status {
    /// By what.
    pub backend: Backend,
    /// The policy's name.
    pub id: String,
    /// The policy; `None` if it is not on disk any more.
    pub policy: Option<Policy>,
    /// Classes in their order, and the rest at the end; without the policy, by their numbers.
    pub classes: Vec<ClassCount>,
    /// Packets of connections that were there already, and passed first.
    pub established_packets: u64,
    /// Packets that the link itself needs.
    pub link_packets: u64,
    /// Sources of what was refused or logged, those with most packets first; `None` where the back end does not remember them.
    pub denied: Option<Vec<Denied>>,
    /// Counters of their events; `None` if the back end has no events.
    pub events: Option<Events>,
    /// Memory of the tables as the kernel counts it, bytes; `None` where it does not tell.
    pub memory_bytes: Option<u64>,
    /// When it was loaded, if that was written down.
    pub loaded: Option<Loaded>,
}

/// Returns the status of the policy in effect; `None` if no policy of weir is loaded.
///
/// # Errors
/// If the kernel does not tell.
pub fn status(store: &Store) -> Result<Option<Status>, Error> {
    let Some((backend, id)) = load::loaded_id()? else { return Ok(None) };
    let policy = store.find(&id)?;
    let Numbers { counted, denied, events, memory_bytes } = match backend {
        Backend::Bpf => bpf_numbers(&id)?,
        Backend::Nft => {
            Numbers { counted: nft::counted(&id)?, denied: Some(nft::denied()?), ..Numbers::default() }
        }
        Backend::Ipset => Numbers {
            counted: ipset::counted(&id)?,
            memory_bytes: ipset::memory_bytes()?,
            ..Numbers::default()
        },
    };
    let sum = |label: &str| {
        let of = counted.iter().filter(|c| c.label == label);
        of.fold((0, 0), |(packets, bytes), c| (packets + c.packets, bytes + c.bytes))
    };
    let mut classes = Vec::new();
    if let Some(policy) = &policy {
        for (n, class) in (1..).zip(&policy.classes) {
            let ((packets, bytes), (v4, v6)) = (sum(&format!("class {n}")), class.size());
            classes.push(ClassCount {
                name: class.name.clone(),
                action: class.action,
                origin: class.origin.clone(),
                ranges: Some(class.v4.as_slice().len() + class.v6.as_slice().len()),
                ipv4_addresses: Some(v4),
                ipv6_networks: Some(v6),
                packets,
                bytes,
            });
        }
        let (packets, bytes) = sum("class 0");
        let (ranges, ipv4_addresses, ipv6_networks) = (None, None, None);
        let (name, action, origin) = ("rest".to_owned(), policy.rest, Vec::new());
        let rest = ClassCount { name, action, origin, ranges, ipv4_addresses, ipv6_networks, packets, bytes };
        classes.push(rest);
    }
    let denied = denied.map(|mut denied| {
        order::by(&mut denied, |a, b| b.packets.cmp(&a.packets).then(a.source.cmp(&b.source)));
        denied
    });
    Ok(Some(Status {
        backend,
        id,
        policy,
        classes,
        established_packets: sum("established").0,
        link_packets: sum("link").0,
        denied,
        events,
        memory_bytes,
        loaded: store.loaded(),
    }))
}

/// The counters of a back end; see [`Status`].
#[derive(Default)]
struct Numbers {
    counted: Vec<Counted>,
    denied: Option<Vec<Denied>>,
    events: Option<Events>,
    memory_bytes: Option<u64>,
}

fn bpf_numbers(id: &str) -> Result<Numbers, Error> {
    let Some((status, memory)) = bpf::status(id)? else {
        return Ok(Numbers { denied: Some(Vec::new()), ..Numbers::default() });
    };
    let mut counted = Vec::new();
    for (_, class, _, count) in &status.classes {
        let label = match class {
            0 => "class 0".to_owned(),
            1 => "link".to_owned(),
            n => format!("class {}", bpf::class_number(*n)),
        };
        counted.push(Counted { label, packets: count.packets, bytes: count.bytes });
    }
    for (_, reason, count) in &status.reasons {
        let label = match reason {
            weir_filter::Reason::Established => "established",
            weir_filter::Reason::LinkLocal => "link",
            _ => continue,
        };
        counted.push(Counted { label: label.to_owned(), packets: count.packets, bytes: count.bytes });
    }
    let of = |class: u32| Some(bpf::class_number(class));
    let denied = status.denied.iter();
    let denied =
        denied.map(|d| Denied { source: d.source, packets: d.packets, class: of(d.class) }).collect();
    let weir_filter::Events { written, lost, followed } = status.events;
    let events = Some(Events { written, lost, followed });
    Ok(Numbers { counted, denied: Some(denied), events, memory_bytes: Some(memory) })
}
