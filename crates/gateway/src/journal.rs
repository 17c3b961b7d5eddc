//! The changes made to a host, and their undoing in reverse order.
//!
//! Each change is recorded before it is made and, if the journal has a file, the record is on disk by then. A process killed in
//! between leaves a record of a change that may not have happened, never a change without a record. Undoing therefore checks
//! whether each change is there. It leaves other programs' changes alone.

mod change;
mod interface;
mod routes;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_sys::process::Process;
use weir_sys::{NetNs, sysctl};

use crate::command::{self, kernel};
use crate::snapshot::Snapshot;
use crate::{Error, Family, Role};

pub use change::Change;
pub(crate) use routes::routes_of;
use store::{Entry, Store};

/// Changes made so far to one host, in one network namespace.
///
/// Dropping it, in a thread of that namespace, undoes them; call [`Journal::undo`] to learn which changes could not be undone. If
/// several variants are in effect on one host, undo the one applied last first: a setting that both need belongs to the earlier
/// one.
#[derive(Debug, Default)]
pub struct Journal {
    changes: Vec<Change>,
    /// Inode of the network namespace that the changes are in.
    namespace: Option<u64>,
    /// Before the first change.
    before: Option<Snapshot>,
    /// After the last one.
    after: Option<Snapshot>,
    store: Option<Store>,
    /// Its path, until the first change makes the file.
    path: Option<PathBuf>,
    /// Processes that run as long as the changes are in effect. They end with this process, whatever happens to it.
    kept: Vec<Process>,
}

impl Journal {
    /// A journal in memory: enough where the network namespace ends with the process.
    pub fn new() -> Self {
        Journal::default()
    }

    /// A journal that is also written to a file, before each change, so that [`Journal::recover`] can undo the changes
    /// of a process that was killed. The file is made at the first change and removed when all is undone.
    ///
    /// # Errors
    /// If the file exists: it lists changes that were never undone.
    pub fn stored_at(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        if path.exists() {
            return Err(Error::Journal {
                path: path.display().to_string(),
                reason: "it exists: a run that was killed left its changes behind; undo them first".into(),
            });
        }
        let mut journal = Journal::new();
        journal.path = Some(path);
        Ok(journal)
    }

    /// Opens the journal that a killed process left, ready for [`Journal::undo`]. After a reboot it keeps only the users' own
    /// commands, because the kernel has forgotten the other changes.
    ///
    /// # Errors
    /// If the file is missing, is of another version, or belongs to another network namespace.
    pub fn recover(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let (store, entries) = Store::open(path)?;
        let mut journal = Journal::new();
        journal.store = Some(store);
        journal.path = Some(path.to_owned());
        let mut rebooted = false;
        for entry in entries {
            match entry {
                Entry::Begin { boot, namespace, .. } => {
                    rebooted = boot != weir_sys::state::boot_id()?;
                    journal.namespace = Some(namespace).filter(|_| !rebooted);
                }
                Entry::Before(snapshot) => journal.before = Some(snapshot).filter(|_| !rebooted),
                Entry::After(snapshot) => journal.after = Some(snapshot).filter(|_| !rebooted),
                Entry::Change(change) => {
                    if !rebooted || change.outlives_reboot() {
                        journal.changes.push(change);
                    }
                    // More changes follow what was seen as the end, so it was not the end.
                    journal.after = None;
                }
            }
        }
        journal.check_namespace()?;
        Ok(journal)
    }

    /// True if nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the changes, in order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Undoes everything, the last change first, and continues after a failure; returns the errors. A change that could not be
    /// undone stays in the journal, so that this can be called again.
    ///
    /// At the end the rules of this host must be those of before, but for what others did in the meantime.
    pub fn undo(&mut self) -> Vec<Error> {
        if self.changes.is_empty() {
            return self.remove_file();
        }
        if let Err(e) = self.check_namespace() {
            return vec![e];
        }
        let mut errors = Vec::new();
        let limit = listing_limit(&self.changes);
        let met = self.before.as_ref().and_then(|_| Snapshot::take(limit).map_err(|e| errors.push(e)).ok());
        let mut left = Vec::new();
        let mut undone = Vec::new();
        while let Some(change) = self.changes.pop() {
            if let Change::Engine(state) = &change {
                state.stop_container();
                errors.extend(self.kept.drain(..).filter_map(|mut p| p.kill().err()).map(Error::from));
            }
            match change.undo() {
                Ok(()) => undone.push(change),
                Err(e) => {
                    errors.push(e);
                    left.push(change);
                }
            }
        }
        left.reverse();
        self.changes = left;
        if !errors.is_empty() {
            return errors;
        }
        errors.extend(self.check(met, &undone, limit).err());
        errors.extend(self.remove_file());
        self.before = None;
        self.after = None;
        errors
    }

    /// Records that a variant is in effect: the present state is the variant's, later changes are other programs'.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        if self.changes.is_empty() {
            return Ok(());
        }
        let snapshot = Snapshot::take(listing_limit(&self.changes))?;
        if let Some(store) = &mut self.store {
            store.append(&Entry::After(snapshot.clone()))?;
        }
        self.after = Some(snapshot);
        Ok(())
    }

    /// Sets a kernel setting, if it has another value.
    pub fn sysctl(&mut self, name: &str, new: &str) -> Result<(), Error> {
        let old = sysctl::get(&kernel(), name)?;
        if old == new {
            return Ok(());
        }
        let change = |new: String| Change::Sysctl { name: name.to_owned(), old: old.clone(), new };
        self.record(change(new.to_owned()))?;
        sysctl::set(&kernel(), name, new)?;
        // The kernel rounds some settings (nf_conntrack_buckets, to whole pages): the rounded value is still weir's.
        let made = sysctl::get(&kernel(), name)?;
        if made != new {
            self.record(change(made))?;
        }
        Ok(())
    }

    /// Makes a table of nft out of a script that fills it, in one transaction.
    pub(crate) fn nft_table(&mut self, family: &str, table: &str, script: &str) -> Result<(), Error> {
        if change::nft_table_exists(family, table)? {
            return Err(Error::Unsupported(format!(
                "table {family} {table} exists already; if a run that was killed left it, remove it with \
                 `nft delete table {family} {table}`"
            )));
        }
        self.record(Change::NftTable { family: family.to_owned(), table: table.to_owned() })?;
        command::run_long("nft", &["-f", "-"], script).map(drop)
    }

    /// Puts a rule at the head of a chain, where no older rule comes before it.
    pub(crate) fn iptables_rule(
        &mut self,
        program: &str,
        table: &str,
        chain: &str,
        rule: &[String],
    ) -> Result<(), Error> {
        self.iptables_base(program, table)?;
        let change = Change::IptablesRule {
            program: program.to_owned(),
            table: table.to_owned(),
            chain: chain.to_owned(),
            rule: rule.to_vec(),
        };
        if command::succeeds(program, &change.iptables("-C"))? {
            return Err(Error::Unsupported(format!(
                "a rule of weir's exists already in {table} {chain}; if a run that was killed left it, remove it with \
                 `{program} {}`",
                change.iptables("-D").join(" ")
            )));
        }
        let command = change.iptables("-I");
        self.record(change)?;
        command::run(program, &command).map(drop)
    }

    /// Makes chains with their rules in one transaction of `PROGRAM-restore`. One that is jumped to comes before the one
    /// that jumps, so that they can be removed in reverse order.
    pub(crate) fn iptables_chains(
        &mut self,
        program: &str,
        table: &str,
        chains: &[(String, Vec<String>)],
    ) -> Result<(), Error> {
        self.iptables_base(program, table)?;
        let mut script = format!("*{table}\n");
        for (chain, _) in chains {
            if change::iptables_chain_exists(program, table, chain)? {
                return Err(Error::Unsupported(format!(
                    "chain {chain} of {program} exists already in table {table}"
                )));
            }
            script.push_str(&format!(":{chain} - [0:0]\n"));
        }
        for (chain, rules) in chains {
            self.record(Change::IptablesChain {
                program: program.to_owned(),
                table: table.to_owned(),
                chain: chain.to_owned(),
            })?;
            rules.iter().for_each(|rule| script.push_str(&format!("-A {chain} {rule}\n")));
        }
        script.push_str("COMMIT\n");
        command::run_long(&format!("{program}-restore"), &["-w", "--noflush"], &script).map(drop)
    }

    /// iptables-nft makes a table and its base chains when a first rule needs them, and never removes them.
    pub(crate) fn iptables_base(&mut self, program: &str, table: &str) -> Result<(), Error> {
        let Some(family) = change::nft_family(program) else { return Ok(()) };
        let known = self.changes.iter().any(
            |c| matches!(c, Change::IptablesBase { family: f, table: t, .. } if f == family && t == table),
        );
        if known {
            return Ok(());
        }
        let (table_existed, chains) = change::bases_of_others(family, table)?;
        self.record(Change::IptablesBase {
            family: family.to_owned(),
            table: table.to_owned(),
            table_existed,
            chains,
        })
    }

    /// Adds a route by `ip route add`; the words after `add` are given.
    pub(crate) fn route(&mut self, family: Family, route: &[&str]) -> Result<(), Error> {
        let change = Change::Route { family, route: route.iter().map(|&w| w.to_owned()).collect() };
        if !command::run("ip", &change.route("show"))?.trim().is_empty() {
            // The route belongs to another program, and stays.
            return Ok(());
        }
        let command = change.route("add");
        self.record(change)?;
        command::run("ip", &command).map(drop)
    }

    /// Runs a user's commands, after having written down those that undo them.
    pub(crate) fn commands(
        &mut self,
        role: Role,
        apply: &[String],
        remove: &[String],
        environment: &BTreeMap<String, String>,
        limit: Duration,
    ) -> Result<(), Error> {
        if apply.is_empty() && remove.is_empty() {
            return Ok(());
        }
        self.record(Change::Commands {
            role,
            remove: remove.to_vec(),
            environment: environment.clone(),
            limit_s: limit.as_secs(),
        })?;
        apply.iter().try_for_each(|line| command::shell(line, environment, limit).map(drop))
    }

    /// Keeps a process that belongs to a change.
    pub(crate) fn keep(&mut self, process: Process) {
        self.kept.push(process);
    }

    /// True if one of the kept processes is no more.
    pub(crate) fn kept_has_ended(&mut self) -> Result<bool, Error> {
        for process in &mut self.kept {
            if process.try_wait()?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes a change down. Only after this may it be made.
    pub(crate) fn record(&mut self, change: Change) -> Result<(), Error> {
        if self.changes.is_empty() {
            self.begin()?;
        } else {
            self.check_namespace()?;
        }
        // Listing the rules takes tens of milliseconds: not for what cannot have to do with them.
        if self.before.is_none() && change.touches_rules() {
            let before = Snapshot::take(listing_limit([&change].into_iter().chain(&self.changes)))?;
            if let Some(store) = &mut self.store {
                store.append(&Entry::Before(before.clone()))?;
            }
            self.before = Some(before);
        }
        if let Some(store) = &mut self.store {
            store.append(&Entry::Change(change.clone()))?;
        }
        self.changes.push(change);
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Error> {
        let namespace = NetNs::current()?.inode()?;
        if let Some(path) = &self.path {
            let mut store = Store::create(path)?;
            store.append(&Entry::Begin {
                version: store::VERSION,
                boot: weir_sys::state::boot_id()?,
                namespace,
            })?;
            self.store = Some(store);
        }
        self.namespace = Some(namespace);
        self.before = None;
        self.after = None;
        Ok(())
    }

    fn check_namespace(&self) -> Result<(), Error> {
        let here = NetNs::current()?.inode()?;
        match self.namespace {
            Some(there) if there != here => Err(Error::Unsupported(format!(
                "the changes are in network namespace {there}, and this is {here}"
            ))),
            _ => Ok(()),
        }
    }

    /// Proves that nothing of ours is left and nothing of others is missing. `met` is what undoing found.
    fn check(&self, met: Option<Snapshot>, undone: &[Change], limit: Duration) -> Result<(), Error> {
        let (Some(before), Some(met)) = (&self.before, met) else { return Ok(()) };
        let now = Snapshot::take(limit)?;
        let made_by_us = |line: &str| undone.iter().any(|change| change.is_base_of_ours(line));
        let difference = match &self.after {
            Some(after) => now.difference(&before.plus_changes(after, &met), made_by_us),
            // The process was killed on the way: changes since then have no known owner, but everything from before must be
            // there.
            None => now.missing_from(before, made_by_us),
        };
        if let Some(difference) = difference {
            return Err(Error::NotRestored { what: "the rule set of this host".into(), difference });
        }
        undone.iter().try_for_each(Change::check_undone)
    }

    fn remove_file(&mut self) -> Vec<Error> {
        self.store.take().map(Store::remove).and_then(Result::err).into_iter().collect()
    }
}

/// How long a listing of the rules may take: users who give their commands longer load more than weir itself does.
fn listing_limit<'a>(changes: impl IntoIterator<Item = &'a Change>) -> Duration {
    changes.into_iter().filter_map(Change::time_limit).fold(command::TIME_LIMIT, Duration::max)
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Callers call `undo` to learn of failures; a drop cannot report them.
        drop(self.undo());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYSCTL: &str =
        r#"{"change":{"change":"sysctl","name":"net.ipv4.no_such_setting","old":"0","new":"1"}}"#;
    const COMMANDS: &str =
        r#"{"change":{"change":"commands","role":"gateway","remove":["true"],"environment":{},"limit_s":9}}"#;

    /// A journal file with these lines that is gone when the test is over.
    fn recovered(name: &str, lines: &str) -> Result<Vec<Change>, Error> {
        let path = std::env::temp_dir().join(format!("weir-journal-{name}-{}", std::process::id()));
        std::fs::write(&path, lines).unwrap();
        let changes = Journal::recover(&path).map(|journal| journal.changes().to_vec());
        let _ = std::fs::remove_file(&path);
        changes
    }

    fn begin(version: u32, boot: &str) -> String {
        let namespace = NetNs::current().unwrap().inode().unwrap();
        format!("{{\"begin\":{{\"version\":{version},\"boot\":\"{boot}\",\"namespace\":{namespace}}}}}\n")
    }

    #[test]
    fn a_line_that_was_cut_off_was_never_carried_out() {
        let boot = weir_sys::state::boot_id().unwrap();
        let whole = format!("{}{SYSCTL}\n{COMMANDS}\n", begin(1, &boot));
        assert_eq!(recovered("whole", &whole).unwrap().len(), 2);
        assert_eq!(recovered("cut", &whole[..whole.len() - 5]).unwrap().len(), 1);
        assert_eq!(recovered("begun", &begin(1, &boot)[..9]).unwrap().len(), 0);
    }

    #[test]
    fn rules_are_listed_within_the_limit_of_the_users_commands() {
        let boot = weir_sys::state::boot_id().unwrap();
        let limit = |lines: &str| {
            let changes = recovered("limit", &format!("{}{lines}\n", begin(1, &boot))).unwrap();
            listing_limit(&changes)
        };
        assert_eq!(limit(SYSCTL), command::TIME_LIMIT);
        // A short limit of commands says nothing about how long a listing takes.
        assert_eq!(limit(COMMANDS), command::TIME_LIMIT);
        let long = COMMANDS.replace("\"limit_s\":9", "\"limit_s\":300");
        assert_eq!(limit(&format!("{SYSCTL}\n{long}")), Duration::from_secs(300));
    }

    #[test]
    fn a_reboot_undoes_all_but_the_users_commands() {
        let text = format!("{}{SYSCTL}\n{COMMANDS}\n", begin(1, "another-boot"));
        let changes = recovered("reboot", &text).unwrap();
        assert!(matches!(&changes[..], [Change::Commands { .. }]), "{changes:?}");
    }

    #[test]
    fn other_versions_and_other_files_are_refused() {
        let boot = weir_sys::state::boot_id().unwrap();
        let error = recovered("version", &begin(99, &boot)).unwrap_err();
        assert!(error.to_string().contains("version 99"), "{error}");
        assert!(recovered("text", "hello\n").is_err());
        assert!(recovered("headless", &format!("{SYSCTL}\n")).is_err());
        assert!(Journal::recover("/no/such/journal").is_err());
    }
}
