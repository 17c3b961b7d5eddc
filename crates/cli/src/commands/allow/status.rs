//! `weir allow status`.

use std::fmt::Write as _;

use serde_json::json;
use weir_allow::{Status, Store, status};
use weir_guard::{Keeper, Phase};

use super::apply::{BY, SCHEMA, needs_root, place, shown};
use super::cached::{age, now_s};
use crate::args::allow::StatusArgs;
use crate::commands::on_trial::set_json;
use crate::exit::Outcome;
use crate::output::{print, print_json, printable};

pub(super) fn run(args: &StatusArgs) -> Outcome {
    needs_root("status")?;
    // Settles what nobody answers for any more, and so comes first.
    let set = Keeper::new(BY).status()?;
    let store = Store::usual();
    let found = status(&store)?;
    let boot = store.boot()?;
    if args.json {
        return print_json(&json!({
            "schema": SCHEMA,
            "loaded": found.as_ref().map(|found| loaded_json(found, args.top)),
            "kernel": weir_allow::state()?.lines().collect::<Vec<_>>(),
            "set": set.as_ref().map(|status| {
                let mut value = set_json(&status.set);
                value["guarded"] = json!(status.guarded);
                value["remaining_s"] = json!(status.remaining_s);
                value
            }),
            "boot": boot,
        }));
    }
    let mut page = match &found {
        None => "nothing is loaded\n".to_owned(),
        Some(found) => loaded_page(found, args.top),
    };
    if let Some(status) = &set {
        page.push_str(&match &status.set.phase {
            Phase::Waiting { .. } => {
                format!(
                    "on trial: taken back in {} s, unless: weir allow confirm\n",
                    status.remaining_s.unwrap_or(0)
                )
            }
            Phase::Applying => "it is being applied just now\n".into(),
            Phase::Confirmed { .. } => String::new(),
            Phase::Reverting { why } | Phase::Reverted { why, .. } => {
                format!("the last policy that was applied was taken back: {}\n", printable(why))
            }
        });
    }
    page.push_str(&match (&boot, &found) {
        (Some(boot), Some(found)) if *boot == found.id => {
            "after a reboot: the same (weir allow restore)\n".to_owned()
        }
        (Some(_), _) => {
            "after a reboot: another policy, the one that was confirmed last (weir allow restore)\n"
                .to_owned()
        }
        (None, Some(_)) => "after a reboot: nothing, it was not confirmed\n".to_owned(),
        (None, None) => String::new(),
    });
    print(&page)
}

fn loaded_json(found: &Status, top: usize) -> serde_json::Value {
    let since = found.loaded.map(|l| l.unix_s);
    json!({
        "backend": found.backend, "id": found.id, "policy": found.policy.as_ref().map(shown), "since_unix_s": since,
        "age_s": since.map(|s| now_s().saturating_sub(s)), "took_ms": found.loaded.map(|l| l.took_ms), "classes": found.classes,
        "established_packets": found.established_packets, "link_packets": found.link_packets,
        "denied": found.denied.as_ref().map(|d| d.iter().take(top).collect::<Vec<_>>()),
        "denied_sources": found.denied.as_ref().map(Vec::len), "events": found.events,
        "memory_bytes": found.memory_bytes,
    })
}

fn loaded_page(found: &Status, top: usize) -> String {
    let mut page = match &found.policy {
        Some(policy) => format!("{}\n", place(policy)),
        None => {
            format!("{}: policy {}, which is not on disk here\n", found.backend.name(), printable(&found.id))
        }
    };
    if let Some(loaded) = found.loaded {
        let ago = now_s().saturating_sub(loaded.unix_s);
        let _ = writeln!(page, "loaded {} ago, in {} ms", age(ago), loaded.took_ms);
    }
    let _ = match found.memory_bytes {
        Some(bytes) => writeln!(page, "memory: {:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        None => writeln!(page, "memory: this back end does not tell"),
    };
    let _ = writeln!(
        page,
        "\n  {:<16} {:<10} {:>12} {:>16} {:>16}",
        "class", "action", "ranges", "packets", "bytes"
    );
    for class in &found.classes {
        let ranges = class.ranges.map_or("-".to_owned(), |n| n.to_string());
        let action = class.action.to_string();
        let _ = writeln!(
            page,
            "  {:<16} {action:<10} {ranges:>12} {:>16} {:>16}",
            class.name, class.packets, class.bytes
        );
        if !class.origin.is_empty() {
            let _ = writeln!(page, "    from {}", printable(&class.origin.join(", ")));
        }
    }
    let _ = writeln!(
        page,
        "  not looked up: {} packets of established connections, {} of the link itself\n",
        found.established_packets, found.link_packets
    );
    match &found.denied {
        None => page.push_str("sources of refused packets: this back end does not remember them\n"),
        Some(denied) if denied.is_empty() => {}
        Some(denied) => {
            let _ = writeln!(page, "sources of refused or logged packets ({} are remembered):", denied.len());
            for one in denied.iter().take(top) {
                let _ = writeln!(page, "  {:<40} {:>12} packets", one.source.to_string(), one.packets);
            }
        }
    }
    if found.events.is_some_and(|events| events.followed) {
        page.push_str("somebody follows them: weir allow status --follow\n");
    }
    page
}
