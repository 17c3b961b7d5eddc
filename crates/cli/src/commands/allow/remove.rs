//! `weir allow remove` and `weir allow restore`.

use weir_allow::{Backend, Policy, Store, Term};

use super::apply::{BY, needs_root};
use crate::commands::on_trial;
use crate::documents::{Remove, print_json};
use crate::exit::CommandResult;
use crate::output::print;

/// Takes everything away. A journal that cannot be read must not keep a host shut.
pub(super) fn run(json: bool) -> CommandResult {
    needs_root("remove")?;
    // Before the last set is rolled back, which unloads it.
    let before = weir_allow::state()?;
    let unload = || {
        let unloaded = weir_allow::unload();
        Store::usual().clear()?;
        Ok(unloaded?)
    };
    on_trial::remove(BY, unload, || Ok(weir_allow::state()?))?;
    let removed: Vec<String> = before.lines().map(str::to_owned).collect();
    if json {
        return print_json(&Remove { removed: &removed });
    }
    if removed.is_empty() {
        return print("nothing was loaded\n");
    }
    print("removed; everybody may come in again as far as weir is concerned\n")
}

/// Loads what was confirmed.
pub(super) fn restore(unit: bool) -> CommandResult {
    let store = Store::usual();
    let confirmed = || -> Result<_, weir_allow::Error> {
        Ok(store.boot()?.as_deref().map(|id| store.find(id)).transpose()?.flatten())
    };
    let policy = match confirmed() {
        // Only root may read the confirmed policy.
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
    weir_allow::load(&policy, &policy.id(), &store, Term::Lasting)?;
    print(&format!("{}\n", super::apply::place(&policy)))
}

/// Writes the unit. Rules by name may exist before the interface; a program is attached to the interface itself. WEIR_STATE_DIR
/// is not set at boot: if it is set now, the unit sets the same value.
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
