//! `weir allow apply`, `confirm`, `rollback`: lists on trial.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;
use weir_allow::{Action, Backend, Hook, Policy, Store, lockout};
use weir_guard::{Change, ChangeSet, Keeper, Namespace, NewSet, Phase, Program, Sentinel, When};
use weir_sys::ProcRoot;

use super::{SHRINKAGE, policy};
use crate::args::allow::ApplyArgs;
use crate::commands::on_trial::{self, in_words, own, set_json, text};
use crate::exit::{FAILED, Failure, MISSING, NOT_MET, Outcome, USAGE};
use crate::output::{print, print_json, printable};

/// Whose change sets these are.
pub(super) const BY: &str = "allow";
/// Version of the JSON.
pub(super) const SCHEMA: u32 = 1;
/// Longest time for a loading, s: nft takes a minute for a million prefixes on a busy machine.
const LIMIT_S: u64 = 300;

impl From<weir_allow::Error> for Failure {
    fn from(error: weir_allow::Error) -> Self {
        let code = match &error {
            e if e.is_usage() => USAGE,
            e if e.is_missing() => MISSING,
            _ => FAILED,
        };
        Failure::new(code, error)
    }
}

pub(super) fn needs_root(what: &str) -> Outcome {
    on_trial::needs_root(&format!("allow {what}"))
}

pub(super) fn run(args: &ApplyArgs) -> Outcome {
    needs_root("apply")?;
    let keeper = Keeper::new(BY);
    keeper.make_way()?;
    let policy = policy::read(args)?;
    weir_allow::requirements(&policy)?;
    let store = Store::usual();
    weir_allow::tidy()?;
    let loaded = weir_allow::loaded_id()?;
    if loaded.is_none() && !weir_allow::state()?.is_empty() {
        return Err(Failure::failed(
            "something of weir's is loaded that belongs to no policy: weir allow remove takes it away; nothing was changed",
        ));
    }
    let old = loaded.as_ref().map(|(_, id)| store.find(id)).transpose()?.flatten();
    if !args.force {
        refuse(&policy, old.as_ref())?;
    }
    warn(&policy);
    let id = policy.id();
    if loaded.as_ref().is_some_and(|(backend, loaded)| *backend == policy.backend && *loaded == id)
        && weir_allow::is_whole(&policy)?
    {
        eprintln!("this is loaded already: there is nothing to do");
        return if args.json {
            print_json(&json!({ "schema": SCHEMA, "id": id, "set": null }))
        } else {
            Ok(())
        };
    }
    let path = store.keep(&policy)?;
    let undo = undo(&store, loaded.as_ref(), old.is_some())?;
    let boot = store.boot()?;
    let keep: Vec<&str> = [Some(id.as_str()), loaded.as_ref().map(|(_, id)| id.as_str()), boot.as_deref()]
        .into_iter()
        .flatten()
        .collect();
    store.forget_but(&keep)?;
    let new = NewSet {
        title: title(&policy),
        namespace: Some(Namespace::own()?),
        changes: vec![
            (
                When::Apply,
                Change::Commands {
                    name: "address lists".into(),
                    apply: own(&["allow", "load", &text(&path)]),
                    undo,
                    read: own(&["allow", "state"]),
                    limit_s: LIMIT_S,
                    outlives_reboot: false,
                },
            ),
            (When::Confirm, Change::TextFile { path: store.boot_file(), text: Some(format!("{id}\n")) }),
        ],
        timeout_s: args.confirm_within,
        watches: Vec::new(),
    };
    let set = keeper.apply(new, &Sentinel { args: vec!["guard".into()] }).map_err(in_words)?;
    tell(args, &policy, &set, store.loaded().map(|l| l.took_ms))
}

/// What takes a new policy back: that which is loaded now, loaded again.
fn undo(store: &Store, loaded: Option<&(Backend, String)>, on_disk: bool) -> Result<Program, Failure> {
    match loaded {
        None => Ok(own(&["allow", "unload"])),
        // If it cannot be loaded any more, because its interface is gone, nobody must be shut out by the one on trial.
        Some((_, before)) if on_disk => {
            Ok(own(&["allow", "load", "--or-unload", &text(&store.folder().join(before))]))
        }
        // Another version, or one with another folder of state, left it.
        Some((backend, before)) => Err(Failure::failed(format!(
            "policy {before} is loaded by {} and is not in {}: it could not be put back (weir allow remove takes it away)",
            backend.name(),
            store.folder().display()
        ))),
    }
}

/// What was loaded, and until when it stays.
fn tell(args: &ApplyArgs, policy: &Policy, set: &ChangeSet, took_ms: Option<u64>) -> Outcome {
    if args.json {
        print_json(&json!({
            "schema": SCHEMA, "id": policy.id(), "policy": shown(policy), "set": set_json(set), "took_ms": took_ms,
        }))?;
    } else {
        print(&page(policy))?;
        let took = took_ms.map_or(String::new(), |ms| format!(" in {ms} ms"));
        print(&format!(
            "loaded{took}, and asked about addresses in and beside the lists\nundo: weir allow rollback\n"
        ))?;
    }
    if let Some(hint) = weir_allow::hint(policy, &ProcRoot::default()) {
        eprintln!("{}", printable(&hint));
    }
    eprintln!("taken back in {} s, unless: weir allow confirm", args.confirm_within);
    Ok(())
}

/// What must not be loaded unless it is meant.
fn refuse(policy: &Policy, old: Option<&Policy>) -> Outcome {
    let mut why = old.map(|old| policy.shrunk(old, SHRINKAGE)).unwrap_or_default();
    let peers = lockout::administrators(&ProcRoot::default(), |name| std::env::var(name).ok());
    let out = lockout::shut_out(policy, &peers);
    why.extend(out.into_iter().map(|who| format!("it would shut out {who}")));
    if policy.rest == Action::Drop && policy.classes.iter().all(|class| class.action == Action::Drop) {
        why.push("nobody could come in".into());
    }
    if why.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        NOT_MET,
        format!("{}; nothing was changed (--force loads it all the same)", why.join("; ")),
    ))
}

fn warn(policy: &Policy) {
    for warning in lockout::warnings(policy, &ProcRoot::default()) {
        eprintln!("warning: {}", printable(&warning));
    }
    let lists = |v6: bool| {
        policy
            .classes
            .iter()
            .any(|c| c.action != Action::Drop && if v6 { !c.v6.is_empty() } else { !c.v4.is_empty() })
    };
    for (v6, name) in [(false, "IPv4"), (true, "IPv6")] {
        if policy.rest == Action::Drop && !lists(v6) {
            eprintln!("warning: no list has an {name} address: all of {name} is thrown away there");
        }
    }
}

fn title(policy: &Policy) -> String {
    let names: Vec<&str> = policy.classes.iter().map(|c| c.name.as_str()).collect();
    format!("lists {} on {} by {}", names.join(", "), policy.interfaces.join(", "), policy.backend.name())
}

/// Without the addresses.
pub(super) fn shown(policy: &Policy) -> serde_json::Value {
    json!({
        "backend": policy.backend, "interfaces": policy.interfaces, "hook": policy.hook, "xdp": policy.xdp, "ports": policy.ports,
        "established_first": policy.established_first, "default": policy.rest.to_string(),
        "classes": policy.classes.iter().map(|c| json!({
            "name": c.name, "action": c.action.to_string(), "origin": c.origin, "ipv4_addresses": c.size().0,
            "ipv6_networks": c.size().1, "ranges": c.v4.as_slice().len() + c.v6.as_slice().len(),
        })).collect::<Vec<_>>(),
    })
}

/// Where, and by what.
pub(super) fn place(policy: &Policy) -> String {
    let mut words = format!("{}: what comes in by {}", policy.backend.name(), policy.interfaces.join(", "));
    match policy.hook {
        Hook::Input => words.push_str(" for this host"),
        Hook::Forward => words.push_str(" and is forwarded"),
        Hook::Both => {}
    }
    if !policy.ports.is_empty() {
        let port = |p: &weir_allow::Port| format!("{}/{}", if p.tcp { "tcp" } else { "udp" }, p.number);
        let _ = write!(words, " to {}", policy.ports.iter().map(port).collect::<Vec<_>>().join(", "));
    }
    if let Some(xdp) = policy.xdp {
        let _ = write!(
            words,
            ", at XDP ({})",
            if xdp == weir_allow::Xdp::Native { "in the driver" } else { "generic" }
        );
    }
    if policy.established_first {
        words.push_str("; established connections first");
    }
    words
}

fn page(policy: &Policy) -> String {
    let mut page = format!("{}\n", place(policy));
    for class in &policy.classes {
        let (v4, v6) = class.size();
        let ranges = class.v4.as_slice().len() + class.v6.as_slice().len();
        let _ = writeln!(
            page,
            "  {:<16} {:<8} {v4:.0} IPv4 addresses, {v6:.0} IPv6 networks of /64, in {ranges} ranges",
            class.name,
            class.action.to_string()
        );
    }
    let _ = writeln!(page, "  {:<16} {:<8}", "everybody else", policy.rest.to_string());
    page
}

pub(super) fn confirm(json: bool) -> Outcome {
    on_trial::confirm(BY, "allow confirm", SCHEMA, json, |title, before| {
        format!(
            "{title} stay{before}\nafter a reboot: weir allow restore (weir allow restore --unit prints a systemd unit for it)\n"
        )
    })
}

pub(super) fn rollback(json: bool) -> Outcome {
    needs_root("rollback")?;
    let set = Keeper::new(BY).rollback()?;
    if json {
        print_json(&json!({ "schema": SCHEMA, "set": set_json(&set) }))?;
    } else {
        let mut page = String::new();
        for (step, state) in set.begin.steps.iter().zip(&set.states) {
            let words = match state {
                weir_guard::StepState::Reverted { outcome } => outcome.words(),
                weir_guard::StepState::Stuck { why, .. } => format!("could not be put back: {why}"),
                _ => "was not taken back".into(),
            };
            let _ = writeln!(page, "{}: {}", step.change.target(), printable(&words));
        }
        print(&page)?;
    }
    let others = set.states.iter().any(|state| {
        matches!(state, weir_guard::StepState::Reverted { outcome: weir_guard::Outcome::LeftToOthers { .. } })
    });
    if matches!(set.phase, Phase::Reverted { .. }) {
        if others {
            return Err(Failure::failed(
                "something else is loaded than apply left, and was left alone: see weir allow status",
            ));
        }
        return Ok(());
    }
    Err(Failure::failed(
        "something could not be put back; weir allow rollback tries again, weir allow remove takes all away",
    ))
}

/// `weir allow load`: what the guard calls to make and to take back.
pub(super) fn load_now(folder: &Path, or_unload: bool) -> Outcome {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let loaded = Store::read(folder).and_then(|policy| weir_allow::load(&policy, &name, &Store::usual()));
    if loaded.is_err() && or_unload {
        weir_allow::unload()?;
    }
    Ok(loaded?)
}
