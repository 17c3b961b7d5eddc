//! `weir allow apply`, `confirm`, `rollback`: lists on trial.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use weir_allow::{Action, Backend, Hook, Policy, Store, Term, lockout};
use weir_guard::{Change, ChangeGuard, ChangeSet, NewSet, When};
use weir_sys::ProcRoot;

use super::{SHRINKAGE, policy};
use crate::args::allow::ApplyArgs;
use crate::commands::netns;
use crate::commands::on_trial::{self, loading};
use crate::documents::{self, AllowApply, AllowPlan, Set, print_json};
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::{print, printable};
use crate::talk::{self, note};

/// Whose change sets these are.
pub(super) const BY: &str = "allow";
/// Longest time for a loading, s: nft takes a minute for a million prefixes on a busy machine.
const LIMIT_S: u64 = 300;

impl From<weir_allow::Error> for Failure {
    fn from(error: weir_allow::Error) -> Self {
        Failure::of_part(&error, error.is_usage(), error.is_missing())
    }
}

pub(super) fn needs_root(what: &str) -> CommandResult {
    on_trial::needs_root(&format!("allow {what}"))
}

/// Prints what `apply` would do.
pub(super) fn plan(args: &ApplyArgs) -> CommandResult {
    needs_root("plan")?;
    let policy = policy::read(args)?;
    weir_allow::requirements(&policy)?;
    let loaded = weir_allow::loaded_id()?;
    let old = loaded.as_ref().map(|(_, id)| Store::usual().find(id)).transpose()?.flatten();
    if args.json {
        let before = old.as_ref().map(documents::Policy::of);
        print_json(&AllowPlan { id: policy.id(), policy: documents::Policy::of(&policy), before })?;
    } else {
        print(&page(&policy))?;
        if let Some(old) = &old {
            print(&format!("replaces {}", page(old)))?;
        }
    }
    warn(&policy);
    if args.force { Ok(()) } else { refuse(&policy, old.as_ref()) }
}

pub(super) fn run(args: &ApplyArgs) -> CommandResult {
    needs_root("apply")?;
    let keeper = ChangeGuard::new(BY);
    keeper.make_way()?;
    let policy = policy::read(args)?;
    weir_allow::requirements(&policy)?;
    talk::step(|| format!("read {} lists: {}", policy.classes.len(), title(&policy)));
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
        return on_trial::nothing_to_do(args.json.then(|| document(&policy, None, None)).as_ref());
    }
    let path = store.keep(&policy)?;
    let before = before(&store, loaded.as_ref(), old.is_some())?;
    let boot = store.boot()?;
    let keep: Vec<&str> = [Some(id.as_str()), loaded.as_ref().map(|(_, id)| id.as_str()), boot.as_deref()]
        .into_iter()
        .flatten()
        .collect();
    store.forget_but(&keep)?;
    let new = NewSet {
        title: title(&policy),
        namespace: Some(netns::entered(args.netns.name.as_deref())?),
        changes: vec![
            (
                When::Apply,
                loading(BY, "address lists", (&path, before.as_deref()), args.confirm_within, LIMIT_S),
            ),
            (When::Confirm, Change::TextFile { path: store.boot_file(), text: Some(format!("{id}\n")) }),
        ],
        timeout_s: args.confirm_within,
        watches: Vec::new(),
    };
    let set = on_trial::apply(BY, new)?;
    tell(args, &policy, &set, store.loaded().map(|l| l.took_ms))
}

/// Returns the policy to roll back to: the one that is loaded now. If it cannot be loaded any more, because its interface is
/// gone, the policy on trial must not shut anyone out.
fn before(
    store: &Store,
    loaded: Option<&(Backend, String)>,
    on_disk: bool,
) -> Result<Option<PathBuf>, Failure> {
    match loaded {
        None => Ok(None),
        Some((_, before)) if on_disk => Ok(Some(store.folder().join(before))),
        // Another version, or one with another folder of state, left it.
        Some((backend, before)) => Err(Failure::failed(format!(
            "policy {before} is loaded by {} and is not in {}: it could not be restored (weir allow remove takes it away)",
            backend.name(),
            store.folder().display()
        ))),
    }
}

/// Prints the loaded policy, and until when it stays.
fn tell(args: &ApplyArgs, policy: &Policy, set: &ChangeSet, took_ms: Option<u64>) -> CommandResult {
    if args.json {
        print_json(&document(policy, Some(set), took_ms))?;
    } else {
        print(&page(policy))?;
        let took = took_ms.map_or(String::new(), |ms| format!(" in {ms} ms"));
        print(&format!(
            "loaded{took}, and asked about addresses in and beside the lists\nundo: weir allow rollback\n"
        ))?;
    }
    if let Some(hint) = weir_allow::hint(policy, &ProcRoot::default()) {
        note(&printable(&hint));
    }
    on_trial::announce(BY, args.confirm_within, args.netns.name.as_deref());
    Ok(())
}

fn document<'a>(policy: &'a Policy, set: Option<&'a ChangeSet>, took_ms: Option<u64>) -> AllowApply<'a> {
    AllowApply { id: policy.id(), policy: documents::Policy::of(policy), set: set.map(Set::of), took_ms }
}

/// Refuses a policy that looks like a mistake; `--force` loads it nevertheless.
fn refuse(policy: &Policy, old: Option<&Policy>) -> CommandResult {
    let mut why = old.map(|old| policy.shrunk(old, SHRINKAGE)).unwrap_or_default();
    let peers = lockout::administrators(&ProcRoot::default(), |name| std::env::var(name).ok());
    let out = lockout::shut_out(policy, &peers);
    why.extend(out.into_iter().map(|who| format!("it would shut out {who}")));
    if policy.rest == Action::Drop && policy.classes.iter().all(|class| class.action == Action::Drop) {
        why.push("no address could come in".into());
    }
    if why.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        NOT_MET,
        format!("{}; nothing was changed (--force loads it nevertheless)", why.join("; ")),
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

/// Describes the packets that a policy filters, and its back end.
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

/// `named` is true inside a namespace of `--netns`, which a reboot ends.
pub(super) fn confirm(json: bool, named: bool) -> CommandResult {
    let reboot = if named {
        "after a reboot: nothing, the namespace ends with it"
    } else {
        "after a reboot: weir allow restore (weir allow restore --unit prints a systemd unit for it)"
    };
    on_trial::confirm(BY, json, |set, before| {
        format!("{} stay{before}\n{reboot}\n", printable(&set.begin.title))
    })
}

/// `weir allow load`: what the guard calls to make and to take back.
pub(super) fn load_now(folder: &Path, or_unload: bool, trial: Option<u64>) -> CommandResult {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let loaded = Store::read(folder)
        .and_then(|policy| weir_allow::load(&policy, &name, &Store::usual(), Term::of(trial)));
    if loaded.is_err() && or_unload {
        weir_allow::unload()?;
    }
    Ok(loaded?)
}
