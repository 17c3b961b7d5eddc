use proptest::prelude::*;

use super::*;
use crate::Program;
use crate::store::parse;

/// Lines as another process would find them; the values are those of a real run, shortened.
const LINES: [&str; 8] = [
    r#"{"begin":{"version":1,"weir":"0.1.0","id":"0123456789ab","by":"tune","title":"t","boot":"b","unix_s":1,"applier":{"pid":1,"start_ticks":2},"timeout_s":120,"namespace":null,"steps":[{"change":{"kind":"sysctl","name":"net.a","value":"2","machine":false},"when":"apply","old":"1"},{"change":{"kind":"text-file","path":"/etc/x","text":"y"},"when":"confirm","old":null}],"watches":[]}}"#,
    r#"{"guard":{"process":{"pid":3,"start_ticks":4}}}"#,
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
    assert_eq!(told(&LINES[..2]).phase, Phase::Applying);
    let writing = told(&LINES[..3]);
    assert_eq!(writing.states, [StepState::Writing, StepState::Planned]);
    assert_eq!(writing.guard.unwrap().pid, 3);
    let waiting = told(&LINES[..5]);
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
        (&[LINES[0], LINES[3]], 2, "`applied`"),
        (&[LINES[0], LINES[5]], 2, "`confirmed`"),
        (&[LINES[0], r#"{"writing":{"step":2}}"#], 2, "no change 2"),
        (&[LINES[0], reverted], 2, "`reverted`"),
        (&[LINES[0], ended], 2, "`ended`"),
        (&[LINES[0], reverting, reverted, ended], 4, "`ended`"),
        (&[LINES[0], reverting, LINES[2]], 3, "`writing`"),
        (&[LINES[0], reverting, reverted, reverted], 4, "`reverted`"),
        (&["hello"], 1, "not an entry"),
        (&[LINES[0], "{}"], 2, "not an entry"),
        (&[LINES[0], r#"{"writing":{"step":-1}}"#], 2, "not an entry"),
        (&[&LINES[0].replace("\"version\":1", "\"version\":9")], 1, "version 9"),
    ] {
        let error = parse(text(lines).as_bytes()).unwrap_err();
        assert!(error.contains(&format!("line {line}")) && error.contains(words), "{error}");
    }
    assert!(parse(b"").unwrap_err().contains("empty"));
    assert!(parse(b"\xff\xfe\n").unwrap_err().contains("not text"));
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
