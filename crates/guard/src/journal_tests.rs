use proptest::prelude::*;

use super::*;
use crate::Program;
use crate::store::parse;

/// Lines as another process would find them; the values are those of a real run, shortened.
const LINES: [&str; 7] = [
    r#"{"begin":{"version":2,"weir":"0.1.0","id":"0123456789ab","by":"tune","title":"t","boot":"b","unix_s":1,"applier":{"pid":1,"start_ticks":2},"timeout_s":120,"namespace":null,"steps":[{"change":{"kind":"sysctl","name":"net.a","value":"2","machine":false},"when":"apply","old":"1"},{"change":{"kind":"text-file","path":"/etc/x","text":"y"},"when":"confirm","old":null}],"watches":[]}}"#,
    r#"{"writing":{"step":0}}"#,
    r#"{"applied":{"step":0,"made":"2"}}"#,
    r#"{"waiting":{"deadline_ns":5}}"#,
    r#"{"confirmed":{"unix_s":6}}"#,
    r#"{"writing":{"step":1}}"#,
    r#"{"applied":{"step":1,"made":"y"}}"#,
];

fn text(lines: &[&str]) -> String {
    lines.iter().map(|l| format!("{l}\n")).collect()
}

fn told(lines: &[&str]) -> ChangeSet {
    parse(text(lines).as_bytes()).unwrap().0
}

#[test]
fn the_lines_tell_how_far_it_came() {
    assert_eq!(told(&LINES[..1]).phase, Phase::Applying);
    let writing = told(&LINES[..2]);
    assert_eq!(writing.states, [StepState::Writing, StepState::Planned]);
    let waiting = told(&LINES[..4]);
    assert_eq!(waiting.phase, Phase::Waiting { deadline_ns: 5 });
    assert!(waiting.is_in_flight());
    let confirmed = told(&LINES);
    assert_eq!(
        (confirmed.phase.clone(), confirmed.confirmed_unix_s),
        (Phase::Confirmed { unix_s: 6 }, Some(6))
    );
    assert_eq!(confirmed.states[1], StepState::Applied { made: Some("y".into()) });
    assert!(!confirmed.is_in_flight());
}

#[test]
fn what_does_not_follow_is_refused_with_its_line() {
    let reverting = r#"{"reverting":{"why":"w","unix_s":7}}"#;
    let reverted = r#"{"reverted":{"step":0,"outcome":{"outcome":"restored"}}}"#;
    let ended = r#"{"ended":{"unix_s":8}}"#;
    for (lines, line, words) in [
        (&LINES[1..2], 1, "beginning"),
        (&[LINES[0], LINES[0]], 2, "`begin`"),
        (&[LINES[0], LINES[2]], 2, "`applied`"),
        (&[LINES[0], LINES[4]], 2, "`confirmed`"),
        (&[LINES[0], r#"{"writing":{"step":2}}"#], 2, "no change 2"),
        (&[LINES[0], reverted], 2, "`reverted`"),
        (&[LINES[0], ended], 2, "`ended`"),
        (&[LINES[0], reverting, reverted, ended], 4, "`ended`"),
        (&[LINES[0], reverting, LINES[1]], 3, "`writing`"),
        (&[LINES[0], reverting, reverted, reverted], 4, "`reverted`"),
        (&["hello"], 1, "not an entry"),
        (&[LINES[0], "{}"], 2, "not an entry"),
        (&[LINES[0], r#"{"writing":{"step":-1}}"#], 2, "not an entry"),
        (&[&LINES[0].replace("\"version\":2", "\"version\":9")], 1, "version 9"),
    ] {
        let error = parse(text(lines).as_bytes()).unwrap_err();
        assert!(error.contains(&format!("line {line}")) && error.contains(words), "{error}");
    }
    assert!(parse(b"").unwrap_err().contains("empty"));
    assert!(parse(b"\xff\xfe\n").unwrap_err().contains("not text"));
}

const REVERTING: &str = r#"{"reverting":{"why":"w","unix_s":7}}"#;
const UNDOING: &str = r#"{"undoing":{"step":0}}"#;
const FAILED: &str = r#"{"reverted":{"step":0,"outcome":{"outcome":"failed","why":"busy"}}}"#;
const RESTORED: &str = r#"{"reverted":{"step":0,"outcome":{"outcome":"restored"}}}"#;
const UNTOUCHED: &str = r#"{"reverted":{"step":1,"outcome":{"outcome":"untouched"}}}"#;
const ENDED: &str = r#"{"ended":{"unix_s":8}}"#;

#[test]
fn a_change_is_undone_until_it_is_restored() {
    let lines = [
        LINES[0], LINES[1], LINES[2], REVERTING, UNDOING, UNDOING, FAILED, UNDOING, RESTORED, UNTOUCHED,
        ENDED,
    ];
    let state = |count: usize| told(&lines[..count]).states[0].clone();
    let applied = StepState::Applied { made: Some("2".into()) };
    let undoing = StepState::Undoing { before: Box::new(applied.clone()) };
    assert_eq!(state(4), applied);
    // A second attempt knows how far the change had come before the first.
    assert_eq!((state(5), state(6)), (undoing.clone(), undoing.clone()));
    assert_eq!(state(7), StepState::Stuck { why: "busy".into(), before: Box::new(undoing.clone()) });
    assert_eq!(state(8), StepState::Undoing { before: Box::new(undoing) });
    assert_eq!(state(9), StepState::Reverted { outcome: RevertOutcome::Restored });
    let reverting = told(&lines[..10]);
    assert_eq!(reverting.phase, Phase::Reverting { why: "w".into() });
    assert!(reverting.is_in_flight());
    let ended = told(&lines);
    assert_eq!(ended.phase, Phase::Reverted { why: "w".into(), unix_s: 8 });
    assert!(!ended.is_in_flight());
}

#[test]
fn nothing_is_undone_that_was_not_made_or_is_not_being_reverted() {
    for lines in [
        // Not while it waits, not before it was made, and not twice.
        &[LINES[0], LINES[1], UNDOING][..],
        &[LINES[0], REVERTING, UNDOING],
        &[LINES[0], LINES[1], REVERTING, RESTORED, UNDOING],
        &[LINES[0], LINES[1], RESTORED],
        &[LINES[0], LINES[1], REVERTING, RESTORED, RESTORED],
        // The end is the end, and comes after the last change.
        &[LINES[0], LINES[1], REVERTING, FAILED, UNTOUCHED, ENDED],
        &[LINES[0], LINES[1], REVERTING, RESTORED, UNTOUCHED, ENDED, REVERTING],
        &[LINES[0], LINES[1], LINES[2], LINES[3], LINES[3]],
        &[LINES[0], LINES[1], LINES[2], LINES[3], LINES[1]],
        &[LINES[0], LINES[1], LINES[2], LINES[2]],
    ] {
        let error = parse(text(lines).as_bytes()).unwrap_err();
        let expected = format!("line {}", lines.len());
        assert!(error.contains(&expected) && error.contains("does not follow"), "{lines:?}: {error}");
    }
    // Begun anew, and reverted for another reason, is no contradiction.
    let again = told(&[LINES[0], LINES[1], LINES[1], REVERTING, &REVERTING.replace("\"w\"", "\"v\"")]);
    assert_eq!((&again.states[0], again.phase), (&StepState::Writing, Phase::Reverting { why: "v".into() }));
}

#[test]
fn steps_are_listed_by_their_time() {
    let set = told(&LINES[..3]);
    let at = |when| set.at(when).map(|(n, step, state)| (n, step.when, state.clone())).collect::<Vec<_>>();
    assert_eq!(at(When::Apply), [(0, When::Apply, StepState::Applied { made: Some("2".into()) })]);
    assert_eq!(at(When::Confirm), [(1, When::Confirm, StepState::Planned)]);
}

#[test]
fn every_kind_of_change_comes_back_as_it_was() {
    let program =
        Program { argv: vec!["nft".into(), "-f".into(), "-".into()], stdin: "table\n\u{1b}".into() };
    for change in [
        Change::KernelFile { path: "/sys/x".into(), value: "1".into() },
        Change::TextFile { path: "/etc/x".into(), text: None },
        Change::Commands {
            name: "rules".into(),
            apply: program.clone(),
            undo: program.clone(),
            confirm: Some(program.clone()),
            read: program,
            limit_s: 5,
            outlives_reboot: true,
        },
    ] {
        let text = serde_json::to_string(&change).unwrap();
        assert!(!text.contains('\n'));
        assert_eq!(serde_json::from_str::<Change>(&text).unwrap(), change);
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }

    /// A journal that was cut off anywhere tells what its whole lines tell.
    #[test]
    fn a_journal_that_was_cut_off_tells_what_is_left(cut in 0..text(&LINES).len()) {
        let all = text(&LINES);
        let whole = all[..cut].matches('\n').count();
        match parse(&all.as_bytes()[..cut]) {
            Ok((set, length)) => {
                prop_assert_eq!(&set, &told(&LINES[..whole]));
                prop_assert_eq!(length as usize, text(&LINES[..whole]).len());
            }
            Err(e) => prop_assert!(whole == 0, "{} lines: {}", whole, e),
        }
    }

    /// Bytes that went wrong on disk: refused or read, and never a panic.
    #[test]
    fn a_damaged_journal_never_panics(at in 0..text(&LINES).len(), byte in any::<u8>()) {
        let mut bytes = text(&LINES).into_bytes();
        bytes[at] = byte;
        if let Ok((set, _)) = parse(&bytes) {
            prop_assert_eq!(set.states.len(), set.begin.steps.len());
        }
    }

    /// Lines in any order: the state is one that commands can go on from, or they are refused.
    #[test]
    fn lines_in_any_order_never_panic(order in proptest::collection::vec(0..LINES.len(), 0..12)) {
        let lines: Vec<&str> = std::iter::once(0).chain(order).map(|n| LINES[n]).collect();
        if let Ok((set, _)) = parse(text(&lines).as_bytes()) {
            let confirmed = matches!(set.phase, Phase::Confirmed { .. });
            prop_assert!(set.confirmed_unix_s.is_some() || !confirmed);
        }
    }
}
