use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::*;
use crate::change::Program;
use crate::step_state::RevertOutcome;
use crate::store::parse;

#[path = "change_guard_tests/commands.rs"]
mod commands;

/// Without a guard process: commands alone must do.
struct Nobody;

impl Post for Nobody {
    fn is_there(&mut self) -> Result<bool, Error> {
        Ok(true)
    }

    fn applied(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// A machine of files: values have the same length, because an ordinary file is not cut off by what is written into it.
struct Machine {
    folder: PathBuf,
}

impl Machine {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weir-guard-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let machine = Machine { folder };
        for (path, value) in [("proc/sys/net/a", "1000"), ("proc/sys/net/b", "1\t2"), ("sys/module/m", "7")] {
            let path = machine.folder.join("root").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        fs::create_dir_all(machine.folder.join("root/etc")).unwrap();
        machine
    }

    fn keeper(&self) -> ChangeGuard {
        ChangeGuard::for_test("test", self.folder.join("state/guard"), self.folder.join("root"))
    }

    fn journal(&self) -> PathBuf {
        self.folder.join("state/guard/test.journal")
    }

    fn get(&self, path: &str) -> String {
        fs::read_to_string(self.folder.join("root").join(path)).unwrap().trim_end().to_owned()
    }

    fn set(&self, path: &str, value: &str) {
        fs::write(self.folder.join("root").join(path), format!("{value}\n")).unwrap();
    }

    fn file(&self) -> Option<String> {
        fs::read_to_string(self.folder.join("root/etc/ours.conf")).ok()
    }

    fn values(&self) -> [String; 3] {
        ["proc/sys/net/a", "proc/sys/net/b", "sys/module/m"].map(|p| self.get(p))
    }

    /// Changes the words of the journal.
    fn rewrite(&self, f: impl FnOnce(String) -> String) {
        let text = fs::read_to_string(self.journal()).unwrap();
        fs::write(self.journal(), f(text)).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            fs::remove_dir_all(&self.folder).unwrap();
        }
    }
}

const BEFORE: [&str; 3] = ["1000", "1\t2", "7"];
const AFTER: [&str; 3] = ["2000", "3 4", "8"];

fn sysctl(name: &str, value: &str) -> Change {
    Change::Sysctl { name: name.into(), value: value.into(), machine: false }
}

fn changes() -> Vec<(When, Change)> {
    let file = Change::TextFile { path: "/etc/ours.conf".into(), text: Some("a = 2000\n".into()) };
    vec![
        (When::Apply, sysctl("net.a", "2000")),
        (When::Apply, sysctl("net.b", "3 4")),
        (When::Apply, Change::KernelFile { path: "/sys/module/m".into(), value: "8".into() }),
        (When::Confirm, file),
    ]
}

fn set_of(changes: Vec<(When, Change)>) -> NewSet {
    NewSet { title: "a test".into(), namespace: None, changes, timeout_s: 600, watches: Vec::new() }
}

fn applied(machine: &Machine) -> ChangeSet {
    machine.keeper().apply_with(set_of(changes()), |_, _| Ok(Nobody)).unwrap()
}

fn outcomes(set: &ChangeSet) -> Vec<RevertOutcome> {
    let outcome = |state: &StepState| match state {
        StepState::Reverted { outcome } => outcome.clone(),
        other => panic!("{other:?}"),
    };
    set.states.iter().map(outcome).collect()
}

#[test]
fn what_was_applied_is_rolled_back_in_reverse_order() {
    let machine = Machine::new();
    let set = applied(&machine);
    assert!(matches!(set.phase, Phase::Waiting { .. }), "{:?}", set.phase);
    assert_eq!((machine.values(), machine.file()), (AFTER.map(String::from), None));
    let status = machine.keeper().status().unwrap().unwrap();
    assert_eq!(status.now, [StepNow::Ours, StepNow::Ours, StepNow::Ours, StepNow::Before]);
    assert!(status.guards == 0 && (590..=600).contains(&status.remaining_s.unwrap()));

    let set = machine.keeper().rollback().unwrap();
    assert_eq!(machine.values(), BEFORE.map(String::from));
    use RevertOutcome::{Restored, Untouched};
    assert_eq!(outcomes(&set), [Restored, Restored, Restored, Untouched]);
    let journal = fs::read_to_string(machine.journal()).unwrap();
    let order: Vec<_> = journal.lines().filter(|l| l.starts_with(r#"{"reverted""#)).collect();
    assert_eq!(order.len(), 4);
    for (line, step) in order.iter().zip([3, 2, 1, 0]) {
        assert!(line.contains(&format!(r#""step":{step},"#)), "{line}");
    }
    // Once more changes nothing, whatever is there by now.
    machine.set("proc/sys/net/a", "2000");
    assert_eq!(machine.keeper().rollback().unwrap(), set);
    assert_eq!(machine.get("proc/sys/net/a"), "2000");
}

#[test]
fn what_somebody_else_changed_is_left_alone_and_told() {
    let machine = Machine::new();
    applied(&machine);
    machine.set("proc/sys/net/b", "9 9");
    fs::remove_file(machine.folder.join("root/sys/module/m")).unwrap();
    let set = machine.keeper().rollback().unwrap();
    assert_eq!(machine.get("proc/sys/net/b"), "9 9");
    assert_eq!(machine.get("proc/sys/net/a"), "1000");
    let found = Some("9 9".to_owned());
    use RevertOutcome::{Gone, LeftToOthers, Restored, Untouched};
    assert_eq!(outcomes(&set), [Restored, LeftToOthers { found }, Gone, Untouched]);
    assert!(matches!(set.phase, Phase::Reverted { .. }));
}

#[test]
fn a_change_that_cannot_be_made_takes_the_others_back() {
    for (bad, words) in [
        (Program::new(["false"]), "false"),
        (Program::new(["true"]), "has not changed"),
        (Program::new(["no-such-program-of-weirs"]), "no such program"),
    ] {
        let machine = Machine::new();
        let mut changes = changes();
        changes.push((
            When::Apply,
            Change::Commands {
                name: "rules".into(),
                apply: bad,
                undo: Program::new(["true"]),
                confirm: None,
                read: Program::new(["true"]),
                limit_s: 10,
                outlives_reboot: false,
            },
        ));
        let error = machine.keeper().apply_with(set_of(changes), |_, _| Ok(Nobody)).unwrap_err();
        let told = error.to_string();
        assert!(told.contains(words) && told.contains("rolled back"), "{told}");
        assert_eq!(machine.values(), BEFORE.map(String::from));
        let status = machine.keeper().status().unwrap().unwrap();
        assert!(matches!(&status.set.phase, Phase::Reverted { why, .. } if why.contains(words)));
    }
}

#[test]
fn confirm_writes_the_file_once_and_rollback_takes_it_away() {
    let machine = Machine::new();
    applied(&machine);
    let first = machine.keeper().confirm().unwrap();
    assert!(!first.already && first.problems.is_empty(), "{first:?}");
    assert_eq!((machine.values(), machine.file().as_deref()), (AFTER.map(String::from), Some("a = 2000\n")));
    let journal = fs::read_to_string(machine.journal()).unwrap();
    let again = machine.keeper().confirm().unwrap();
    assert!(again.already && again.problems.is_empty());
    assert_eq!(fs::read_to_string(machine.journal()).unwrap(), journal);

    let set = machine.keeper().rollback().unwrap();
    assert_eq!(outcomes(&set), vec![RevertOutcome::Restored; 4]);
    assert_eq!((machine.values(), machine.file()), (BEFORE.map(String::from), None));
    let error = machine.keeper().confirm().unwrap_err();
    assert!(matches!(error, Error::TakenBack { .. }), "{error}");
}

#[test]
fn a_file_that_somebody_else_wrote_meanwhile_is_not_replaced() {
    let machine = Machine::new();
    applied(&machine);
    machine.set("etc/ours.conf", "theirs");
    let confirmed = machine.keeper().confirm().unwrap();
    assert!(confirmed.problems.iter().any(|p| p.contains("until the next reboot")), "{confirmed:?}");
    assert_eq!(machine.get("etc/ours.conf"), "theirs");
    machine.keeper().rollback().unwrap();
    assert_eq!(machine.get("etc/ours.conf"), "theirs");
    assert_eq!(machine.values(), BEFORE.map(String::from));
}

#[test]
fn a_symbolic_link_in_the_place_of_our_file_is_refused() {
    let machine = Machine::new();
    std::os::unix::fs::symlink("/etc/passwd", machine.folder.join("root/etc/ours.conf")).unwrap();
    let error = machine.keeper().apply_with(set_of(changes()), |_, _| Ok(Nobody)).unwrap_err();
    assert!(error.to_string().contains("not an ordinary file"), "{error}");
    assert_eq!(machine.values(), BEFORE.map(String::from));
}

#[test]
fn a_reboot_takes_settings_back_and_leaves_what_was_confirmed() {
    let other_boot = |text: String| text.replace(&boot_id().unwrap(), "00000000-another-boot");
    let machine = Machine::new();
    applied(&machine);
    machine.rewrite(other_boot);
    // The kernel came up with values of its own, by chance those that weir had set.
    let status = machine.keeper().status().unwrap().unwrap();
    use RevertOutcome::{Gone, Restored, Untouched};
    assert_eq!(outcomes(&status.set), [Gone, Gone, Gone, Untouched]);
    assert_eq!(machine.values(), AFTER.map(String::from));
    assert!(matches!(&status.set.phase, Phase::Reverted { why, .. } if why.contains("rebooted")));

    let machine = Machine::new();
    applied(&machine);
    machine.keeper().confirm().unwrap();
    machine.rewrite(other_boot);
    let status = machine.keeper().status().unwrap().unwrap();
    assert!(status.rebooted && matches!(status.set.phase, Phase::Confirmed { .. }));
    // The file made the values come back at boot: rolling back undoes both.
    assert_eq!(outcomes(&machine.keeper().rollback().unwrap()), vec![Restored; 4]);
    assert_eq!((machine.values(), machine.file()), (BEFORE.map(String::from), None));
}

#[test]
fn a_set_without_a_guard_is_taken_back_by_the_next_command_when_its_time_is_up() {
    let machine = Machine::new();
    let keeper = machine.keeper();
    let set = NewSet { timeout_s: 1, ..set_of(changes()) };
    keeper.apply_with(set, |_, _| Ok(Nobody)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = keeper.status().unwrap().unwrap();
        if let Phase::Reverted { why, .. } = &status.set.phase {
            assert_eq!(why, "not confirmed within 1 s");
            break;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        // Between two looks at what is awaited.
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(machine.values(), BEFORE.map(String::from));
    assert!(matches!(keeper.confirm().unwrap_err(), Error::TakenBack { .. }));
}

#[test]
fn one_set_at_a_time() {
    let machine = Machine::new();
    applied(&machine);
    let again = machine.keeper().apply_with(set_of(changes()), |_, _| Ok(Nobody)).unwrap_err();
    assert!(matches!(&again, Error::InFlight { by, .. } if by == "test"), "{again}");
    // The guards of another command, too.
    let other =
        ChangeGuard::for_test("other", machine.folder.join("state/guard"), machine.folder.join("root"));
    let again = other.apply_with(set_of(changes()), |_, _| Ok(Nobody)).unwrap_err();
    assert!(matches!(again, Error::InFlight { .. }), "{again}");
    machine.keeper().confirm().unwrap();

    let lock = Folder::at(machine.folder.join("state/guard")).lock(SHORT).unwrap().unwrap();
    let busy = other.apply_with(set_of(changes()), |_, _| Ok(Nobody)).unwrap_err();
    assert!(matches!(busy, Error::Busy), "{busy}");
    drop(lock);
    // Confirmed: the next one may come, and the last one's journal stays beside it.
    let next = vec![(When::Apply, sysctl("net.a", "3000"))];
    machine.keeper().apply_with(set_of(next), |_, _| Ok(Nobody)).unwrap();
    machine.keeper().rollback().unwrap();
    assert_eq!(machine.get("proc/sys/net/a"), "2000");
    assert!(machine.journal().with_extension("before").exists());
}

#[test]
fn what_must_not_be_written_is_refused_before_anything_is() {
    let machine = Machine::new();
    let kernel_file = |path: &str| Change::KernelFile { path: path.into(), value: "1".into() };
    let text = |path: &str| Change::TextFile { path: path.into(), text: Some(String::new()) };
    for (change, words) in [
        (kernel_file("/etc/passwd"), "not a path below /sys"),
        (kernel_file("/sys/../etc/passwd"), "not a path below /sys"),
        (text("etc/x"), "not an absolute path"),
        (text("/no/such/folder/x"), "no folder"),
        (sysctl("net.none", "1"), "does not have it"),
        (sysctl("net.a", "1234"), "twice"),
        (sysctl("../x", "1"), "not a name"),
    ] {
        let mut changes = changes();
        changes.push((When::Apply, change));
        let error = machine.keeper().apply_with(set_of(changes), |_, _| Ok(Nobody)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    for timeout_s in [0, 86_401] {
        let set = NewSet { timeout_s, ..set_of(changes()) };
        assert!(machine.keeper().apply_with(set, |_, _| Ok(Nobody)).is_err());
    }
    assert_eq!(machine.values(), BEFORE.map(String::from));
    assert!(!machine.journal().exists());
}

#[test]
fn a_guard_that_does_not_start_changes_nothing() {
    let machine = Machine::new();
    let start = |_: &str, _: &str| Err::<Nobody, _>(Error::Guard("no memory".into()));
    let error = machine.keeper().apply_with(set_of(changes()), start).unwrap_err();
    assert!(error.to_string().contains("nothing was changed"), "{error}");
    assert_eq!(machine.values(), BEFORE.map(String::from));
    let status = machine.keeper().status().unwrap().unwrap();
    assert_eq!(outcomes(&status.set), vec![RevertOutcome::Untouched; 4]);
}

#[test]
fn others_must_not_be_able_to_write_journals() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new();
    applied(&machine);
    fs::set_permissions(machine.journal(), fs::Permissions::from_mode(0o622)).unwrap();
    let error = machine.keeper().rollback().unwrap_err().to_string();
    assert!(error.contains("others may write"), "{error}");
    fs::set_permissions(machine.folder.join("state/guard"), fs::Permissions::from_mode(0o777)).unwrap();
    let error = machine.keeper().rollback().unwrap_err();
    assert!(matches!(error, Error::Folder { .. }), "{error}");
    assert_eq!(machine.values(), AFTER.map(String::from));
}

/// Killed after any line, before or after what that line announces was done: the next command puts everything back.
#[test]
fn whatever_was_on_disk_when_it_was_killed_is_enough_to_go_back() {
    let machine = Machine::new();
    applied(&machine);
    let journal = fs::read_to_string(machine.journal()).unwrap();
    let lines: Vec<&str> = journal.split_inclusive('\n').collect();
    assert_eq!(lines.len(), 1 + 3 * 2 + 1, "begin, two lines for each change, waiting");
    let paths = ["proc/sys/net/a", "proc/sys/net/b", "sys/module/m"];
    // No process of that number and start time applies it any more.
    let own = Identity::own().unwrap().start_ticks.to_string();
    for kept in 1..=lines.len() {
        for in_kernel in [kept.saturating_sub(1) / 2, kept / 2] {
            for torn in ["", "{\"appli"] {
                for (n, path) in paths.iter().enumerate() {
                    machine.set(path, if n < in_kernel { AFTER[n] } else { BEFORE[n] });
                }
                let text = lines[..kept].concat().replace(&own, "1");
                fs::write(machine.journal(), format!("{text}{torn}")).unwrap();
                let set = machine.keeper().rollback().unwrap();
                assert_eq!(machine.values(), BEFORE.map(String::from), "{kept} lines, {in_kernel} made");
                assert!(matches!(set.phase, Phase::Reverted { .. }));
                assert!(parse(&fs::read(machine.journal()).unwrap()).is_ok());
            }
        }
    }
}

/// The same on the way back, and for a confirmation.
#[test]
fn a_rollback_that_was_killed_is_finished_by_the_next_command() {
    let machine = Machine::new();
    applied(&machine);
    machine.keeper().confirm().unwrap();
    let waiting = {
        let set = machine.keeper().status().unwrap().unwrap().set;
        set.states.len()
    };
    machine.keeper().rollback().unwrap();
    let journal = fs::read_to_string(machine.journal()).unwrap();
    let lines: Vec<&str> = journal.split_inclusive('\n').collect();
    let reverting = lines.iter().position(|l| l.starts_with(r#"{"reverting""#)).unwrap();
    for kept in reverting + 1..lines.len() {
        // The last change first; the one that is next may have been restored or not.
        let done = lines[reverting..kept].iter().filter(|l| l.starts_with(r#"{"reverted""#)).count();
        for put_back in [done, (done + 1).min(waiting)] {
            machine.set("etc/ours.conf", "a = 2000");
            if put_back >= 1 {
                fs::remove_file(machine.folder.join("root/etc/ours.conf")).unwrap();
            }
            for (n, path) in ["proc/sys/net/a", "proc/sys/net/b", "sys/module/m"].iter().enumerate() {
                machine.set(path, if n + put_back >= waiting { BEFORE[n] } else { AFTER[n] });
            }
            fs::write(machine.journal(), lines[..kept].concat()).unwrap();
            let status = machine.keeper().status().unwrap().unwrap();
            assert!(matches!(status.set.phase, Phase::Reverted { .. }), "{kept}: {:?}", status.set.phase);
            assert_eq!((machine.values(), machine.file()), (BEFORE.map(String::from), None), "{kept}");
        }
    }
}

#[test]
fn a_value_that_could_not_be_put_back_is_tried_again() {
    let machine = Machine::new();
    applied(&machine);
    // A folder in the place of a file can be neither read nor written.
    let path = machine.folder.join("root/sys/module/m");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let set = machine.keeper().rollback().unwrap();
    assert!(matches!(set.phase, Phase::Reverting { .. }));
    assert!(matches!(&set.states[2], StepState::Stuck { .. }), "{:?}", set.states[2]);
    assert_eq!(machine.get("proc/sys/net/a"), "1000", "it goes on with the others");
    assert!(matches!(
        machine.keeper().apply_with(set_of(changes()), |_, _| Ok(Nobody)).unwrap_err(),
        Error::InFlight { .. }
    ));
    fs::remove_dir(&path).unwrap();
    machine.set("sys/module/m", "8");
    let status = machine.keeper().status().unwrap().unwrap();
    assert!(matches!(status.set.phase, Phase::Reverted { .. }));
    assert_eq!(machine.values(), BEFORE.map(String::from));
}

#[test]
fn a_trial_goes_back_and_forth_and_ends_as_it_began() {
    let machine = Machine::new();
    let mut trial = machine.keeper().try_out_with(set_of(changes()), |_, _| Ok(Nobody)).unwrap();
    for made in [false, true, true, false, true] {
        trial.switch(made).unwrap();
        assert_eq!(machine.values(), if made { AFTER } else { BEFORE }.map(String::from));
    }
    let set = trial.end().unwrap();
    assert!(matches!(set.phase, Phase::Reverted { .. }));
    assert_eq!((machine.values(), machine.file()), (BEFORE.map(String::from), None));

    let mut trial = machine.keeper().try_out_with(set_of(changes()), |_, _| Ok(Nobody)).unwrap();
    machine.set("proc/sys/net/b", "9 9");
    let error = trial.switch(false).unwrap_err().to_string();
    assert!(error.contains("another program"), "{error}");
    drop(trial);
    assert_eq!(machine.values(), ["1000", "9 9", "7"].map(String::from));
}

#[test]
fn an_abandoned_set_ends_with_things_as_they_are() {
    let machine = Machine::new();
    let keeper = machine.keeper();
    assert!(matches!(keeper.abandon("a test"), Err(Error::NoSet(_) | Error::File { .. })));
    applied(&machine);
    let set = keeper.abandon("a test").unwrap();
    assert_eq!(machine.values(), ["2000", "3 4", "8"]);
    assert!(matches!(&set.phase, Phase::Reverted { why, .. } if why == "a test"), "{:?}", set.phase);
    let found = |value: &str| RevertOutcome::LeftToOthers { found: Some(value.into()) };
    assert_eq!(outcomes(&set)[..3], [found("2000"), found("3 4"), found("8")]);
    // It is settled: rolling back does nothing, and the next one may come.
    assert_eq!(keeper.rollback().unwrap(), set);
    keeper.make_way().unwrap();
    assert_eq!(keeper.abandon("again").unwrap(), set);
    assert_eq!(machine.values(), ["2000", "3 4", "8"]);
}
