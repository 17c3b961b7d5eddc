//! `--quiet` and `--verbose`: what goes to standard error beside warnings.

mod documents;
mod tune_world;

use tune_world::Tuned;
use weir_testkit::{CommandOutput, World, scenario};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn run(world: &World, args: &[&str]) -> CommandOutput {
    world.run(world.weir(args))
}

#[test]
fn quiet_leaves_notes_out_and_verbose_names_the_kernel_and_the_end() {
    let world = World::plain(WEIR);
    let args = ["lab", "list"];
    assert!(run(&world, &args).expect(0).stderr.contains("no lab on this machine"));
    for quiet in ["--quiet", "-q"] {
        assert_eq!(run(&world, &[&args[..], &[quiet]].concat()).expect(0).stderr, "");
        assert_eq!(run(&world, &[&[quiet], &args[..]].concat()).expect(0).stderr, "");
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let verbose = run(&world, &[&args[..], &["--verbose"]].concat()).expect(0);
    assert!(verbose.stderr.contains(&format!("Linux {}", release.trim())), "{}", verbose.stderr);
    assert!(verbose.stderr.trim_end().ends_with("] done"), "{}", verbose.stderr);
    // A failure is no note.
    let failed = run(&world, &["cost", "--gb-in=-1", "--quiet"]).expect(2);
    assert!(failed.stderr.contains("--gb-in -1"), "{}", failed.stderr);
    let failed = run(&world, &["cost", "--gb-in=-1", "--verbose"]).expect(2);
    assert!(failed.stderr.contains("ends with exit code 2"), "{}", failed.stderr);
}

#[test]
fn the_doctor_names_each_evidence_source_it_read_or_could_not() {
    let world = World::plain(WEIR);
    let args = ["doctor", "--own", "--for", "0.2", "--json"];
    let outcome = run(&world, &[&args[..], &["--verbose", "--hide", "sockets"]].concat()).expect(0);
    let sources = documents::read(&outcome.stdout, "doctor")["evidence_sources"].as_object().unwrap().clone();
    let steps = |words: &str| outcome.stderr.lines().filter(|line| line.contains(words)).count();
    let of = |sight: &str| sources.values().filter(|source| source["sight"] == sight).count();
    assert!(steps("could not read ") >= of("blind"), "{}", outcome.stderr);
    assert!(steps("] read ") > of("seen") + of("partly"), "{}", outcome.stderr);
    assert_eq!(run(&world, &args).expect(0).stderr, "");
}

#[test]
fn root_a_trial_says_what_it_writes_and_who_ends_it() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let args = ["apply", "--set", "net.core.somaxconn=8192", "--no-watch", "--confirm-within", "1h"];
    let verbose = tuned.run(&[&args[..], &["--verbose"]].concat()).expect(0).stderr;
    for words in ["writes net.core.somaxconn: 8192", "applied: net.core.somaxconn, before: ", "is on trial"] {
        assert!(verbose.contains(words), "no `{words}` in {verbose}");
    }
    tuned.run(&["rollback"]).expect(0);
    let quiet = tuned.run(&[&args[..], &["--quiet"]].concat()).expect(0).stderr;
    let notes: Vec<&str> = quiet.lines().filter(|line| !line.starts_with("warning: ")).collect();
    assert!(notes.is_empty(), "{quiet}");
    tuned.run(&["remove"]).expect(0);
}

#[test]
fn root_a_run_names_each_trial() {
    let Some(world) = World::root(WEIR) else { return };
    let plan = "min-rounds = 1\nmax-rounds = 1\nwarmup = \"0s\"\nduration = \"100ms\"";
    world.write("s.toml", scenario::text("talk", scenario::LAB, plan, scenario::TWO_VARIANTS));
    let trials = |name: &str, flag: &[&str]| {
        let outcome = run(&world, &[&["bench", "s.toml", "--output", name], flag].concat()).expect(0);
        let count = |words: &str| outcome.stderr.lines().filter(|line| line.contains(words)).count();
        (count("] trial "), count("] measured "), outcome.stderr.lines().count())
    };
    let (begun, measured, _) = trials("verbose", &["--verbose"]);
    assert!(begun >= 2 && begun == measured, "{begun} begun, {measured} measured");
    let (begun, _, lines) = trials("usual", &[]);
    assert!(begun == 0 && lines > 0, "{begun} of {lines}");
    // The places of the record and the report.
    assert_eq!(trials("quiet", &["--quiet"]), (0, 0, 2));
}
