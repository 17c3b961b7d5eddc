//! Changes that programs make.

use super::*;

#[test]
fn commands_are_made_read_and_undone() {
    let machine = Machine::new();
    let file = machine.folder.join("rules").display().to_string();
    let shell = |script: &str| Program::new(["sh", "-c", script, "sh", &file]);
    let rules = Change::Commands {
        name: "rules".into(),
        apply: Program { stdin: "allow\n".into(), ..shell("cat > \"$1\"") },
        undo: shell("rm -f \"$1\""),
        confirm: None,
        read: shell("cat \"$1\""),
        limit_s: 10,
        outlives_reboot: false,
    };
    let apply = || {
        machine.keeper().apply_with(set_of(vec![(When::Apply, rules.clone())]), |_, _| Ok(Nobody)).unwrap()
    };
    apply();
    assert_eq!(fs::read_to_string(&file).unwrap(), "allow\n");
    assert_eq!(outcomes(&machine.keeper().rollback().unwrap()), [RevertOutcome::Restored]);
    assert!(!Path::new(&file).exists());

    apply();
    fs::write(&file, "somebody else's\n").unwrap();
    let set = machine.keeper().rollback().unwrap();
    assert!(matches!(&outcomes(&set)[..], [RevertOutcome::LeftToOthers { .. }]));
    assert_eq!(fs::read_to_string(&file).unwrap(), "somebody else's\n");
}

#[test]
fn what_the_kernel_ends_by_itself_is_made_to_last_before_the_decision_is_written() {
    let machine = Machine::new();
    let file = machine.folder.join("rules").display().to_string();
    let shell = |script: &str| Program::new(["sh", "-c", script, "sh", &file]);
    let rules = |confirm: &str| Change::Commands {
        name: "rules".into(),
        apply: shell("echo trial > \"$1\""),
        undo: shell("rm -f \"$1\""),
        confirm: Some(shell(confirm)),
        read: shell("test -e \"$1\""),
        limit_s: 10,
        outlives_reboot: false,
    };
    let apply = |confirm: &str| {
        let new = set_of(vec![(When::Apply, rules(confirm))]);
        assert_eq!(new.backstop(), crate::Backstop::Kernel);
        machine.keeper().apply_with(new, |_, _| Ok(Nobody)).unwrap()
    };
    apply("exit 1");
    machine.keeper().confirm().unwrap_err();
    let status = machine.keeper().status().unwrap().unwrap();
    assert!(matches!(status.set.phase, Phase::Waiting { .. }), "{status:?}");
    machine.keeper().rollback().unwrap();
    apply("echo lasting > \"$1\"");
    machine.keeper().confirm().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "lasting\n");
}

/// A guard was killed while its program undid the change: half of it is gone, which is neither what was made nor what was before.
#[test]
fn what_was_half_undone_is_undone_by_the_next_command() {
    let machine = Machine::new();
    let file = machine.folder.join("rules").display().to_string();
    let shell = |script: &str| Program::new(["sh", "-c", script, "sh", &file]);
    let rules = Change::Commands {
        name: "rules".into(),
        apply: shell("echo both > \"$1\""),
        undo: shell("rm -f \"$1\""),
        confirm: None,
        read: shell("cat \"$1\""),
        limit_s: 10,
        outlives_reboot: false,
    };
    machine.keeper().apply_with(set_of(vec![(When::Apply, rules)]), |_, _| Ok(Nobody)).unwrap();
    machine.keeper().rollback().unwrap();
    let journal = fs::read_to_string(machine.journal()).unwrap();
    let undoing = journal.find(r#"{"undoing""#).unwrap();
    let reverted = journal.find(r#"{"reverted""#).unwrap();
    for (kept, after) in [
        (reverted, [RevertOutcome::Restored]),
        (undoing, [RevertOutcome::LeftToOthers { found: Some("half\n".into()) }]),
    ] {
        fs::write(machine.journal(), &journal[..kept]).unwrap();
        fs::write(&file, "half\n").unwrap();
        let set = machine.keeper().rollback().unwrap();
        let found = outcomes(&set).into_iter().map(|outcome| match outcome {
            // Its text is a fingerprint.
            RevertOutcome::LeftToOthers { .. } => {
                RevertOutcome::LeftToOthers { found: Some("half\n".into()) }
            }
            other => other,
        });
        assert_eq!(found.collect::<Vec<_>>(), after);
        assert_eq!(Path::new(&file).exists(), kept == undoing);
    }
}
