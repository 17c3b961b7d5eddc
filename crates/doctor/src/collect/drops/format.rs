//! The tracepoint as tracefs describes it, for kernels without type information: place, reason and EtherType are known
//! there, and neither namespace nor packet.

use weir_sys::ProcRoot;

use super::shared::WEIR_NOWHERE;
use super::{PLAIN, Room, Running, load, watch, without_types};
use crate::evidence::Sight;

/// Paths of tracefs, below the root.
const PLACES: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];

/// The contents of `events/skb/kfree_skb/format`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Format {
    id: u32,
    /// Offset in the event and size by name of the field.
    fields: Vec<(String, u32, u32)>,
    /// Drop reasons by number.
    pub(super) reasons: Vec<(u32, String)>,
}

/// Reads it; `None` where there is no tracefs, or this process may not read it.
pub(super) fn read(root: &ProcRoot) -> Option<Format> {
    PLACES
        .iter()
        .find_map(|dir| Some(parse(&root.read_optional(&format!("{dir}/events/skb/kfree_skb/format"))?)))
}

fn parse(text: &str) -> Format {
    let mut format = Format::default();
    for line in text.lines().map(str::trim) {
        if let Some(id) = line.strip_prefix("ID:") {
            format.id = id.trim().parse().unwrap_or(0);
        } else if let Some(field) = line.strip_prefix("field:") {
            format.fields.extend(parse_field(field));
        } else if let Some(print) = line.strip_prefix("print fmt:") {
            format.reasons = parse_symbols(print);
        }
    }
    format
}

/// `unsigned short protocol; offset:24; size:2; signed:0;`
fn parse_field(text: &str) -> Option<(String, u32, u32)> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next()?.rsplit([' ', '*']).next()?.to_owned();
    let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
    let size = parts.next()?.strip_prefix("size:")?.parse().ok()?;
    Some((name, offset, size))
}

/// `__print_symbolic(REC->reason, { 1, "CONSUMED" }, { 2, "NOT_SPECIFIED" }, ..)`
fn parse_symbols(text: &str) -> Vec<(u32, String)> {
    let Some((_, list)) = text.split_once("__print_symbolic(") else { return Vec::new() };
    let pair = |part: &str| {
        let (number, name) = part.split('}').next()?.split_once(',')?;
        Some((number.trim().parse().ok()?, name.trim().trim_matches('"').to_owned()))
    };
    list.split('{').skip(1).filter_map(pair).collect()
}

/// Loads and attaches the program that knows the event alone.
pub(super) fn begin(root: &ProcRoot, room: Room, missing: &str) -> Result<(Running, Sight), String> {
    let format = read(root).ok_or_else(|| {
        format!("{}, or tracefs (mount -t tracefs tracefs /sys/kernel/tracing)", without_types(missing))
    })?;
    let at = |name: &str, size: u32| {
        let field = format.fields.iter().find(|(n, _, s)| n == name && *s == size);
        field.map_or(WEIR_NOWHERE as u32, |(_, offset, _)| *offset)
    };
    let mut watch = watch(0, Room { samples_per_core: 0, ..room });
    watch.location_at = at("location", 8);
    watch.protocol_at = at("protocol", 2);
    watch.reason_at = at("reason", 4);
    let running =
        load("plain", PLAIN, Some(&watch), &[("front", room.places.max(1)), ("groups", room.groups)])
            .and_then(|object| Running::attach_event(object, "dropped_plain", format.id))
            .map_err(|e| e.to_string())?;
    let gap = format!("namespace, interface and packet of a drop are not known: {}", without_types(missing));
    Ok((running, Sight::Partly(gap)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded on 6.1 (shortened).
    const NEW: &str = r#"name: kfree_skb
ID: 1479
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;

	field:void * skbaddr;	offset:8;	size:8;	signed:0;
	field:void * location;	offset:16;	size:8;	signed:0;
	field:unsigned short protocol;	offset:24;	size:2;	signed:0;
	field:enum skb_drop_reason reason;	offset:28;	size:4;	signed:0;

print fmt: "skbaddr=%p protocol=%u location=%p reason: %s", REC->skbaddr, REC->protocol, REC->location, __print_symbolic(REC->reason, { 1, "NOT_SPECIFIED" }, { 3, "NO_SOCKET" }, { 71, "MAX" })
"#;

    #[test]
    fn fields_and_reasons_are_found() {
        let format = parse(NEW);
        assert_eq!(format.id, 1479);
        let field =
            |name: &str| format.fields.iter().find(|(n, ..)| n == name).map(|(_, at, size)| (*at, *size));
        assert_eq!(field("location"), Some((16, 8)));
        assert_eq!(field("protocol"), Some((24, 2)));
        assert_eq!(field("reason"), Some((28, 4)));
        let reasons: Vec<_> = format.reasons.iter().map(|(n, name)| (*n, name.as_str())).collect();
        assert_eq!(reasons, [(1, "NOT_SPECIFIED"), (3, "NO_SOCKET"), (71, "MAX")]);
    }

    #[test]
    fn kernels_without_reasons_have_none() {
        let old: String = NEW.lines().filter(|l| !l.contains("reason")).map(|l| format!("{l}\n")).collect();
        let format = parse(&old);
        assert!(format.reasons.is_empty() && format.fields.iter().all(|(name, ..)| name != "reason"));
        assert_eq!(parse("garbage\nfield:;;\nID:x\nprint fmt: __print_symbolic({{{"), Format::default());
    }
}
