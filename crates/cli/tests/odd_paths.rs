//! Faults around a command: no privilege, no programs, no reader. One message, the exit code of the
//! documentation, no panic.

use weir_testkit::{CommandOutput, World};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Commands that need no file, change nothing and are done at once.
const PRINTING: &[&str] = &[
    "scenario list",
    "scenario list --json",
    "scenario show nat-instance",
    "scenario check nat-instance",
    "bench nat-instance --dry-run",
    "cost",
    "cost --list",
    "doctor explain",
    "doctor explain conntrack-full",
    "doctor selftest --list",
    "lab list --json",
    "schema",
    "completions bash",
    "man",
    "help",
    "help tune apply",
    "bench --help",
    "mtu -h",
    "--version",
];

#[track_caller]
fn assert_one_message(what: &str, outcome: &CommandOutput, code: i32, words: &[&str]) {
    assert_eq!(outcome.code, code, "{what}: {}", outcome.stderr);
    assert_eq!(outcome.complaints().len(), 1, "{what}: {}", outcome.stderr);
    assert!(!outcome.stderr.contains("panicked"), "{what}: {}", outcome.stderr);
    for word in words {
        assert!(outcome.stderr.contains(word), "{what}: no `{word}` in {}", outcome.stderr);
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let world = World::plain(WEIR);
    for args in PRINTING {
        let outcome = world.run(world.shell(&format!("{WEIR} {args} >/dev/full")));
        assert_one_message(args, &outcome, 1, &["standard output", "No space left"]);
    }
}

#[test]
fn a_reader_that_goes_away_is_none() {
    let world = World::plain(WEIR);
    for args in PRINTING {
        // The reader is gone before the first byte.
        let script = format!("{WEIR} {args} | true; exit ${{PIPESTATUS[0]}}");
        let mut command = world.command("bash");
        command.args(["-c", &script]);
        let outcome = world.run(command);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{args}");
        let outcome = world.run(world.shell(&format!("{WEIR} {args} >&-")));
        assert!(!outcome.stderr.contains("panicked"), "{args}: {}", outcome.stderr);
    }
}

#[test]
fn the_nearest_name_is_told() {
    let world = World::plain(WEIR);
    for (args, near) in [
        (&["bench", "nat-instnace"][..], "\"nat-instance\""),
        (&["bench", "dokcer-nat"], "\"docker-nat\""),
        (&["scenario", "show", "country-fitler"], "\"country-filter\""),
        (&["scenario", "check", "natrfc"], "\"nat-rfc\""),
        (&["bench", "nat-rfc", "--preset", "quik"], "\"quick\""),
        (&["doctor", "explain", "conntrak-full"], "`conntrack-full`"),
        (&["condtrack"], "'conntrack'"),
        (&["bench", "--outptu", "x"], "'--output'"),
        (&["tune", "rolback"], "'rollback'"),
    ] {
        let outcome = world.run(world.weir(args));
        assert_one_message(&args.join(" "), &outcome, 2, &[near]);
        assert_eq!(outcome.stdout, "", "{args:?}");
    }
}

#[test]
fn files_that_are_something_else_are_refused() {
    let world = World::plain(WEIR);
    world.write("noise", (0..=255u8).cycle().take(70_000).collect::<Vec<u8>>());
    world.write("deep.json", "[".repeat(100_000));
    world.write("number.json", "1e999999");
    world.write("named\u{1b}[31m.json", "{}");
    for file in ["noise", "deep.json", "number.json", "named\u{1b}[31m.json", "/dev/null", "."] {
        for args in [
            &["report", file][..],
            &["compare", file, file],
            &["cost", "--run", file],
            &["doctor", "--read", file],
            &["tune", "plan", "--for", "1", "--from", file],
        ] {
            refused(&world, args);
        }
        // Prices may be none at all: then the built-in ones hold.
        if file != "/dev/null" {
            refused(&world, &["cost", "--prices", file]);
        }
    }
}

fn refused(world: &World, args: &[&str]) {
    let outcome = world.run(world.weir(args));
    assert_one_message(&args.join(" "), &outcome, 2, &[]);
    assert!(!outcome.stderr.contains('\u{1b}'), "{args:?}: {:?}", outcome.stderr);
    assert_eq!(outcome.stdout, "", "{args:?}");
}

#[test]
fn root_without_root_what_needs_it_says_so_and_the_rest_works() {
    let Some(world) = World::root(WEIR) else { return };
    let as_nobody = |line: &str| world.run(world.weir_as_nobody(&line.split(' ').collect::<Vec<_>>()));
    for line in [
        "tune apply",
        "tune confirm",
        "tune rollback",
        "tune prove --command true",
        "allow apply list -i lo",
        "allow confirm",
        "allow rollback",
        "allow status",
        "allow remove",
        "doctor selftest --case no-route",
        "doctor --for 0.2 --netns 1",
        "conntrack --netns 1",
        "serve --open --port 80",
    ] {
        let outcome = as_nobody(line);
        assert_one_message(line, &outcome, 4, &["root"]);
        assert_eq!(outcome.stdout, "", "{line}");
    }
    for line in ["tune plan --for 1", "doctor --for 0.2", "doctor --for 0.2 --own", "mtu 127.0.0.1 --for 2"]
        .iter()
        .chain(PRINTING)
    {
        let outcome = as_nobody(line);
        assert_eq!((outcome.code, outcome.complaints().len()), (0, 0), "{line}: {}", outcome.stderr);
        assert!(!outcome.stdout.is_empty(), "{line}");
    }
}

#[test]
fn root_without_a_path_nothing_panics() {
    let Some(world) = World::root(WEIR) else { return };
    let without = |line: &str| {
        let mut command = world.command("env");
        command.arg("PATH=/no/such/folder").arg(world.binary()).args(line.split(' '));
        world.run(command)
    };
    let more = ["doctor --for 0.2 --own", "tune plan --for 1", "mtu 127.0.0.1 --for 2"];
    for line in more.iter().chain(PRINTING) {
        let outcome = without(line);
        assert_eq!((outcome.code, outcome.complaints().len()), (0, 0), "{line}: {}", outcome.stderr);
    }
    // The shell is found where systems have it.
    let outcome = without("doctor --for 5 --own --command exit").expect(0);
    assert_eq!(outcome.stderr, "");
}
