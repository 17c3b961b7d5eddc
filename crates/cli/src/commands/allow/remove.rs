//! `weir allow remove` and `weir allow restore`.

use serde_json::json;
use weir_allow::{Backend, Policy, Store};
use weir_guard::Keeper;

use super::apply::{BY, SCHEMA, needs_root};
use crate::exit::{Failure, Outcome};
use crate::output::{print, print_json, printable};

/// Takes everything away. A journal that cannot be read must not keep a host shut.
pub(super) fn run(json: bool) -> Outcome {
    needs_root("remove")?;
    let keeper = Keeper::new(BY);
    match keeper.status() {
        // Taken back first, so that its guard process ends and finds nothing to do.
        Ok(Some(status)) if status.set.is_in_flight() => {
            if let Err(e) = keeper.rollback() {
                eprintln!(
                    "warning: what waited to be confirmed could not be taken back: {}",
                    printable(&e.to_string())
                );
            }
        }
        Ok(_) => {}
        Err(e) => eprintln!("warning: {}", printable(&e.to_string())),
    }
    let before = weir_allow::state()?;
    let unloaded = weir_allow::unload();
    Store::usual().clear()?;
    unloaded?;
    // What could not be put back before is settled: there is nothing left to put back.
    if keeper.status().is_ok_and(|status| status.is_some_and(|status| status.set.is_in_flight())) {
        keeper.abandon("weir allow remove")?;
    }
    let left = weir_allow::state()?;
    if !left.is_empty() {
        return Err(Failure::failed(format!("something is still there: {left}")));
    }
    let removed: Vec<&str> = before.lines().collect();
    if json {
        return print_json(&json!({ "schema": SCHEMA, "removed": removed }));
    }
    if removed.is_empty() {
        return print("nothing was loaded\n");
    }
    print("removed; everybody may come in again as far as weir is concerned\n")
}

/// Loads what was confirmed.
pub(super) fn restore(unit: bool) -> Outcome {
    let store = Store::usual();
    let confirmed = || -> Result<_, weir_allow::Error> {
        Ok(store.boot()?.as_deref().map(|id| store.find(id)).transpose()?.flatten())
    };
    let policy = match confirmed() {
        // What was confirmed is for root alone to read.
        Err(e) => return needs_root("restore").and(Err(e.into())),
        Ok(policy) => policy,
    };
    if unit {
        let program = std::env::current_exe()
            .map_or_else(|_| "/usr/local/bin/weir".into(), |p| p.display().to_string());
        let state = std::env::var("WEIR_STATE_DIR").ok().filter(|dir| !dir.is_empty());
        let folder = store.folder().display().to_string();
        return print(&unit_text(policy.as_ref(), &program, &folder, state.as_deref()));
    }
    needs_root("restore")?;
    let Some(policy) = policy else {
        return print("nothing was confirmed: there is nothing to load\n");
    };
    weir_allow::tidy()?;
    weir_allow::load(&policy, &policy.id(), &store)?;
    print(&format!("{}\n", super::apply::place(&policy)))
}

/// Rules by name may be there before the interface is; a program is attached to the interface itself. At boot nobody sets
/// WEIR_STATE_DIR: where it is set now, the unit sets it to the same.
fn unit_text(policy: Option<&Policy>, program: &str, folder: &str, state: Option<&str>) -> String {
    let order = match policy {
        Some(policy) if policy.backend != Backend::Bpf => {
            "Before=network-pre.target\nWants=network-pre.target\n".to_owned()
        }
        Some(policy) => {
            let device = |name: &String| format!("sys-subsystem-net-devices-{}.device", escaped(name));
            let devices: Vec<String> = policy.interfaces.iter().map(device).collect();
            let devices = devices.join(" ");
            format!("Requires={devices}\nAfter={devices}\nBefore=network.target\n")
        }
        None => "After=network.target\n".to_owned(),
    };
    let environment = state
        .map_or(String::new(), |dir| format!("Environment={}\n", quoted(&format!("WEIR_STATE_DIR={dir}"))));
    format!(
        "# Save as /etc/systemd/system/weir-allow.service, then: systemctl enable weir-allow\n\
         [Unit]\nDescription=Address lists of weir allow\nDefaultDependencies=no\nAfter=local-fs.target\n\
         RequiresMountsFor={}\n{order}\n\
         [Service]\nType=oneshot\nRemainAfterExit=yes\n{environment}ExecStart={} allow restore\n\n\
         [Install]\nWantedBy=multi-user.target\n",
        quoted(folder),
        // A dollar would begin a variable, in commands alone.
        quoted(&program.replace('$', "$$"))
    )
}

/// A word of systemd.syntax(7), in which a per cent sign would begin a specifier.
fn quoted(word: &str) -> String {
    let word = word.replace('%', "%%");
    if word.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-+:,@=%$".contains(&b)) {
        return word;
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// As systemd.unit(5) writes names of devices: all but letters, digits, `_`, `.` and `:` in hexadecimal.
fn escaped(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.:".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_systemd_escape_does() {
        // systemd-escape eth-0.5
        assert_eq!(escaped("eth-0.5"), "eth\\x2d0.5");
        assert_eq!(escaped("enp1s0"), "enp1s0");
    }

    #[test]
    fn a_unit_finds_the_state_that_was_meant_when_it_was_printed() {
        let usual = unit_text(None, "/usr/bin/weir", "/var/lib/weir/allow", None);
        assert!(usual.contains("\nExecStart=/usr/bin/weir allow restore\n"), "{usual}");
        assert!(usual.contains("\nRequiresMountsFor=/var/lib/weir/allow\n"), "{usual}");
        assert!(!usual.contains("Environment"), "{usual}");
        let own = unit_text(None, "/opt/a $b/weir", "/srv/50 %/allow", Some("/srv/50 %"));
        // As systemd.service(5) and systemd.unit(5) have it: %% is a per cent sign, $$ a dollar.
        assert!(own.contains("\nExecStart=\"/opt/a $$b/weir\" allow restore\n"), "{own}");
        assert!(own.contains("\nRequiresMountsFor=\"/srv/50 %%/allow\"\n"), "{own}");
        assert!(own.contains("\nEnvironment=\"WEIR_STATE_DIR=/srv/50 %%\"\n"), "{own}");
    }
}
