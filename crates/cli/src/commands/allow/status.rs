//! `weir allow status`.

use std::fmt::Write as _;

use weir_allow::{Status, Store, status};
use weir_guard::{ChangeGuard, unix_s};
use weir_text::time::duration;

use super::apply::{BY, needs_root, place};
use crate::args::allow::StatusArgs;
use crate::commands::on_trial::trial_line;
use crate::documents::{AllowStatus, Loaded, Policy, StatusSet, print_json};
use crate::exit::{CommandResult, Failure};
use crate::output::{print, printable};

pub(super) fn run(args: &StatusArgs) -> CommandResult {
    needs_root("status")?;
    // First, because it rolls back a change set for which no process is responsible any more.
    let set = ChangeGuard::new(BY).status()?;
    let store = Store::usual();
    let found = status(&store)?;
    let boot = store.boot()?;
    if args.json {
        return print_json(&AllowStatus {
            loaded: found.as_ref().map(|found| loaded(found, args.top)),
            kernel: weir_allow::state()?.lines().map(str::to_owned).collect(),
            set: set.as_ref().map(StatusSet::of),
            boot: boot.as_deref(),
        });
    }
    let mut page = match &found {
        None => nothing_loaded()?,
        Some(found) => loaded_page(found, args.top),
    };
    if let Some(status) = &set {
        page.push_str(&trial_line(status));
    }
    page.push_str(match (&boot, &found) {
        (Some(_), Some(_)) if args.netns.name.is_some() => {
            "after a reboot: nothing, the namespace ends with it\n"
        }
        (Some(boot), Some(found)) if *boot == found.id => "after a reboot: the same (weir allow restore)\n",
        (Some(_), _) => {
            "after a reboot: another policy, the one that was confirmed last (weir allow restore)\n"
        }
        (None, Some(_)) => "after a reboot: nothing, it was not confirmed\n",
        (None, None) => "",
    });
    print(&page)
}

/// Programs without a name may be loaded too: their names are in another BPF file system.
fn nothing_loaded() -> Result<String, Failure> {
    let strangers = weir_allow::strangers()?;
    if strangers.is_empty() {
        return Ok("nothing is loaded\n".to_owned());
    }
    let lines = strangers.iter().map(|(interface, program)| {
        format!(
            "{}: program {program} of weir filters there, pinned in another mount namespace or WEIR_BPF_DIR\n",
            printable(interface)
        )
    });
    Ok(lines.collect())
}

fn loaded(found: &Status, top: usize) -> Loaded<'_> {
    let since = found.loaded.map(|l| l.unix_s);
    Loaded {
        backend: found.backend,
        id: &found.id,
        policy: found.policy.as_ref().map(Policy::of),
        since_unix_s: since,
        age_s: since.map(|s| unix_s().saturating_sub(s)),
        took_ms: found.loaded.map(|l| l.took_ms),
        classes: &found.classes,
        established_packets: found.established_packets,
        link_packets: found.link_packets,
        denied: found.denied.as_ref().map(|d| d.iter().take(top).collect()),
        denied_sources: found.denied.as_ref().map(Vec::len),
        events: found.events,
        memory_bytes: found.memory_bytes,
    }
}

fn loaded_page(found: &Status, top: usize) -> String {
    let mut page = match &found.policy {
        Some(policy) => format!("{}\n", place(policy)),
        None => {
            format!("{}: policy {}, which is not on disk here\n", found.backend.name(), printable(&found.id))
        }
    };
    if let Some(loaded) = found.loaded {
        let ago = unix_s().saturating_sub(loaded.unix_s);
        let _ = writeln!(page, "loaded {} ago, in {} ms", duration(ago as f64), loaded.took_ms);
    }
    let _ = match found.memory_bytes {
        Some(bytes) => writeln!(page, "memory: {}", weir_text::units::bytes(bytes)),
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
        page.push_str("another process follows them: weir allow status --follow\n");
    }
    page
}
