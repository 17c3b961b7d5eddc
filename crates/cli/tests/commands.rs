//! Every command as a user calls it: help, formats, widths, exit codes, and a record that is what its schema says.

mod documents;

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::Value;
use weir_testkit::{CommandOutput, Record, World, scenario};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn plain() -> World {
    World::plain(WEIR)
}

fn run(world: &World, args: &[&str]) -> CommandOutput {
    world.run(world.weir(args))
}

/// Two runs of one small scenario with intervals, made once for all tests here; the folder goes with the last process that
/// reads it, which is this one. `None` without root.
fn study() -> Option<&'static PathBuf> {
    static STUDY: OnceLock<Option<PathBuf>> = OnceLock::new();
    // Each test says for itself that it is skipped.
    if World::lacks_root() {
        return None;
    }
    STUDY
        .get_or_init(|| {
            let world = World::root(WEIR)?;
            let plan = "min-rounds = 6\nmax-rounds = 6\nwarmup = \"0s\"\nduration = \"100ms\"";
            let entries =
                format!("{}[[workload]]\nname = \"bulk\"\nkind = \"tcp-stream\"\n", scenario::TWO_VARIANTS);
            world.write("s.toml", scenario::text("study", scenario::LAB, plan, &entries));
            let outcome = run(&world, &["bench", "s.toml", "--output", "run", "--seed", "7"]).expect(0);
            assert!(outcome.stdout.contains("nft-masquerade"), "{}", outcome.stdout);
            assert!(outcome.stderr.contains("record: run/run.json"), "{}", outcome.stderr);
            let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("study");
            let _ = fs::remove_dir_all(&kept);
            fs::create_dir_all(&kept).unwrap();
            for file in ["run.json", "report.html"] {
                fs::copy(world.work().join("run").join(file), kept.join(file)).unwrap();
            }
            fs::write(kept.join("stdout"), outcome.stdout).unwrap();
            Some(kept)
        })
        .as_ref()
}

/// Columns that a line takes: the output has no wide characters.
fn columns(line: &str) -> usize {
    line.chars().count()
}

#[test]
fn help_of_every_command_names_its_options() {
    let world = plain();
    let expected: [(&[&str], &[&str]); 16] = [
        (&[], &["bench", "scenario", "report", "compare", "cost", "lab", "schema", "completions", "man"]),
        (
            &["bench"],
            &[
                "--preset",
                "--set",
                "--variant",
                "--rounds",
                "--budget",
                "--seed",
                "--require",
                "--json",
                "--dry-run",
            ],
        ),
        (&["scenario"], &["list", "show", "check"]),
        (&["scenario", "list"], &["--json"]),
        (&["scenario", "show"], &["SCENARIO"]),
        (&["scenario", "check"], &["SCENARIO"]),
        (
            &["report"],
            &[
                "--html",
                "--markdown",
                "--csv",
                "--csv-summary",
                "--csv-patterns",
                "--json",
                "--output",
                "--require",
            ],
        ),
        (&["compare"], &["--markdown", "--json", "BEFORE", "AFTER"]),
        (&["cost"], &["--gb-in", "--gb-out", "--hours", "--option", "--prices", "--run", "--list"]),
        (&["lab"], &["list", "clean", "exec"]),
        (&["lab", "list"], &["--json"]),
        (&["lab", "clean"], &["--force"]),
        (&["lab", "exec"], &["RUN", "HOST", "COMMAND"]),
        (&["schema"], &["--color", "KIND"]),
        (&["completions"], &["bash", "zsh", "fish"]),
        (&["man"], &["--color"]),
    ];
    for (command, words) in expected {
        for flag in ["--help", "-h"] {
            let outcome = run(&world, &[command, &[flag]].concat()).expect(0);
            for word in words {
                assert!(
                    outcome.stdout.contains(word),
                    "{command:?} {flag} without {word}:\n{}",
                    outcome.stdout
                );
            }
        }
    }
    let version = run(&world, &["--version"]).expect(0).stdout;
    assert_eq!(version, format!("weir {}\n", env!("CARGO_PKG_VERSION")));
    assert!(!run(&world, &["--help"]).stdout.contains("agent"), "agent is not for people");
}

#[test]
fn wrong_usage_is_2_and_says_what_is_right() {
    let world = plain();
    for (args, words) in [
        (&["bnech"][..], "bench"),
        (&["bench", "--pre", "x"], "--preset"),
        (&["report"], "<RUN>"),
        (&["report", "x", "--html", "--csv"], "cannot be used with"),
        (&["completions", "tcsh"], "possible values"),
        (&["bench", "--seed", "x"], "invalid value"),
        (&[], "Usage"),
    ] {
        let outcome = run(&world, args).expect(2);
        assert!(outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "", "{args:?}");
    }
    assert!(world.left_behind(&[]).is_empty());
}

#[test]
fn man_page_and_completions_are_whole() {
    let world = plain();
    let page = run(&world, &["man"]).expect(0).stdout;
    for word in [".TH", "weir\\-bench", "\\-\\-preset", "weir\\-lab", "\\-\\-require"] {
        assert!(page.contains(word), "the man page has no {word}");
    }
    world.write("weir.1", &page);
    if !World::lacks(&["man"]) {
        // groff's own judgement.
        let outcome =
            world.run(world.shell("MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z ./weir.1 >/dev/null"));
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    }
    let script = run(&world, &["completions", "bash"]).expect(0).stdout;
    world.write("weir.bash", script);
    let registered = world.sh("bash -n weir.bash && bash -c '. ./weir.bash; complete -p weir'");
    assert!(registered.ends_with(" weir\n"), "{registered}");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(run(&world, &["completions", shell]).expect(0).stdout.contains("bench"), "{shell}");
    }
}

#[test]
fn built_in_scenarios_are_listed_shown_checked_and_planned() {
    let world = plain();
    let rows =
        documents::read(&run(&world, &["scenario", "list", "--json"]).expect(0).stdout, "scenario-list");
    let names: Vec<&str> =
        rows["scenarios"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"nat-instance"), "{names:?}");
    let list = run(&world, &["scenario", "list"]).expect(0).stdout;
    for name in names {
        assert!(list.contains(name), "{list}");
        let text = run(&world, &["scenario", "show", name]).expect(0).stdout;
        world.write("copy.toml", &text);
        let check = ["scenario", "check", "copy.toml", "--json"];
        assert!(run(&world, &check[..3]).expect(0).stdout.contains("valid"), "{name}");
        let checked = documents::read(&run(&world, &check).expect(0).stdout, "scenario-check");
        assert_eq!((&checked["name"], &checked["origin"]), (&name.into(), &"copy.toml".into()));
        let seconds = ["seconds_least", "seconds_most"].map(|key| checked[key].as_f64().unwrap());
        assert!(seconds[0] > 0.0 && seconds[0] <= seconds[1], "{checked}");
        let plan = run(&world, &["bench", "copy.toml", "--dry-run", "--rounds", "3..4", "--budget", "30s"])
            .expect(0);
        assert!(
            plan.stdout.contains("max-rounds = 4") && plan.stdout.contains("budget = \"30s\""),
            "{}",
            plan.stdout
        );
    }
    assert_eq!(world.left_behind(&["copy.toml"]), [""; 0]);
}

#[test]
fn a_thousand_gb_cost_what_the_price_list_says() {
    // 730 h x 0.045 USD + 1,000 GB x 0.045 USD = 77.85 USD: the provider's own price list, added by hand.
    let world = plain();
    let outcome = run(&world, &["cost", "--gb-in", "1000", "--json"]).expect(0);
    let answer = documents::read(&outcome.stdout, "cost");
    documents::read(&run(&world, &["cost", "--list", "--json"]).expect(0).stdout, "cost-prices");
    assert!(outcome.stdout.contains("77.85"), "{answer:#}");
    for args in [&["cost", "--gb-in", "1000"][..], &["cost", "--gb-in", "1000", "--markdown"]] {
        assert!(run(&world, args).expect(0).stdout.contains("77.85"), "{args:?}");
    }
    assert!(run(&world, &["cost", "--list"]).expect(0).stdout.contains("nat-instance"));
    assert!(run(&world, &["cost", "--gb-in=-1"]).expect(2).stderr.contains("--gb-in -1"));
}

#[test]
fn root_records_are_what_the_schema_says() {
    let Some(study) = study() else { return };
    let world = plain();
    let schema: Value = serde_json::from_str(&run(&world, &["schema", "run"]).expect(0).stdout).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let valid = |value: &Value, what: &str| {
        let errors: Vec<String> =
            validator.iter_errors(value).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(errors.is_empty(), "{what}: {errors:#?}");
    };
    let record = Record::read(study);
    valid(&record.json, "run.json");
    assert_eq!((record.state(), record.json["seed"].as_u64()), ("rounds-done", Some(7)));
    // 6 rounds x 2 variants x 2 workloads, and the twin left out.
    assert_eq!(record.json["trials"].as_array().unwrap().len(), 24);
    let printed = run(&world, &["report", study.to_str().unwrap(), "--json"]).expect(0).stdout;
    valid(&serde_json::from_str(&printed).unwrap(), "weir report --json");
    // The schema can tell: it is not one that lets everything through.
    let mut broken = record.json.clone();
    broken["trials"][0]["round"] = "one".into();
    assert!(!validator.is_valid(&broken));
}

#[test]
fn root_a_report_comes_in_every_format_the_same_each_time() {
    let Some(study) = study() else { return };
    let world = plain();
    let folder = study.to_str().unwrap();
    let file = study.join("run.json");
    let report = |format: &[&str]| run(&world, &[&["report", folder], format].concat()).expect(0).stdout;

    let terminal = report(&[]);
    assert_eq!(
        terminal,
        fs::read_to_string(study.join("stdout")).unwrap(),
        "bench and report print the same"
    );
    assert_eq!(
        terminal,
        run(&world, &["report", file.to_str().unwrap()]).expect(0).stdout,
        "folder and file are the same"
    );
    let html = report(&["--html"]);
    assert_eq!(html, fs::read_to_string(study.join("report.html")).unwrap());
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("</html>"));
    for outside in ["src=\"http", "href=\"http", "@import", "url(http"] {
        assert!(!html.contains(outside), "the page is not self-contained: {outside}");
    }
    assert!(report(&["--markdown"]).contains("| "));

    let out = world.work().join("page.html");
    assert_eq!(report(&["--html", "--output", out.to_str().unwrap()]), "");
    assert_eq!(fs::read_to_string(out).unwrap(), html);
    let outcome = run(&world, &["report", folder, "--output", "/proc/none"]).expect(1);
    assert!(outcome.stderr.contains("/proc/none"), "{}", outcome.stderr);
}

/// Fields of a CSV line after RFC 4180.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' if quoted && rest.peek() == Some(&'"') => field.push(rest.next().unwrap()),
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            c => field.push(c),
        }
    }
    assert!(!quoted, "{line}");
    fields.push(field);
    fields
}

#[test]
fn root_csv_holds_every_metric_of_the_record() {
    let Some(study) = study() else { return };
    let world = plain();
    for format in ["--csv", "--csv-summary"] {
        let text = run(&world, &["report", study.to_str().unwrap(), format]).expect(0).stdout;
        let mut lines = text.lines();
        let head = fields(lines.next().unwrap());
        assert!(head.contains(&"workload".to_owned()) && head.contains(&"variant".to_owned()), "{head:?}");
        let rows: Vec<Vec<String>> = lines.map(fields).collect();
        assert!(rows.len() > 20 && rows.iter().all(|r| r.len() == head.len()), "{format}");
    }
    let text = run(&world, &["report", study.to_str().unwrap(), "--csv"]).expect(0).stdout;
    let mut lines = text.lines();
    let head = fields(lines.next().unwrap());
    let at =
        |name: &str| head.iter().position(|h| h == name).unwrap_or_else(|| panic!("no {name} in {head:?}"));
    let (workload, variant, round, metric, value) =
        (at("workload"), at("variant"), at("round"), at("metric"), at("value"));
    let rows: Vec<Vec<String>> = lines.map(fields).collect();
    let record = Record::read(study);
    for trial in record.json["trials"].as_array().unwrap().iter().filter(|t| t["workload"] == "bulk") {
        let row = rows.iter().find(|r| {
            r[workload] == "bulk"
                && r[variant] == trial["variant"].as_str().unwrap()
                && r[round].parse() == Ok(trial["round"].as_u64().unwrap())
                && r[metric] == "goodput_bps"
        });
        let written: f64 = row.unwrap()[value].parse().unwrap();
        assert_eq!(written, trial["metrics"]["goodput_bps"].as_f64().unwrap());
    }
}

#[test]
fn root_a_run_has_not_changed_against_itself() {
    let Some(study) = study() else { return };
    let world = plain();
    let folder = study.to_str().unwrap();
    let text = run(&world, &["compare", folder, folder]).expect(0).stdout;
    for word in ["▲", "▼"] {
        let verdicts: Vec<&str> = text.lines().filter(|l| l.contains(word) && !l.contains("= ")).collect();
        // The legend names all signs.
        assert!(verdicts.iter().all(|l| l.contains("better") && l.contains("worse")), "{text}");
    }
    assert!(run(&world, &["compare", folder, folder, "--markdown"]).expect(0).stdout.contains("| "));
    let json =
        documents::read(&run(&world, &["compare", folder, folder, "--json"]).expect(0).stdout, "compare");
    let mut verdicts = Vec::new();
    collect(&json, "verdict", &mut verdicts);
    assert!(!verdicts.is_empty(), "{json:#}");
    for verdict in verdicts {
        let words = verdict.to_string();
        assert!(
            !words.contains("better") && !words.contains("worse") && !words.contains("different"),
            "{words}"
        );
    }
}

fn collect<'a>(json: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match json {
        Value::Object(map) => {
            for (name, value) in map {
                if name == key {
                    found.push(value);
                }
                collect(value, key, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, key, found)),
        _ => {}
    }
}

#[test]
fn root_runs_of_two_scenarios_are_not_compared() {
    let Some(study) = study() else { return };
    let world = plain();
    let mut other = Record::read(study).json;
    other["scenario"] = "another".into();
    world.write("run.json", other.to_string());
    let outcome = run(&world, &["compare", study.to_str().unwrap(), "run.json"]).expect(2);
    assert!(outcome.stderr.contains("`study`") && outcome.stderr.contains("`another`"), "{}", outcome.stderr);
}

#[test]
fn root_lines_fit_the_terminal_and_colour_is_a_choice() {
    let Some(study) = study() else { return };
    let world = plain();
    let folder = study.to_str().unwrap();
    for width in [80, 100] {
        for args in [&["report", folder][..], &["compare", folder, folder]] {
            let mut command = world.weir(args);
            command.env("COLUMNS", width.to_string());
            let text = world.run(command).expect(0).stdout;
            let long: Vec<&str> = text.lines().filter(|l| columns(l) > width).collect();
            assert!(long.is_empty(), "{args:?} at {width}: {long:#?}");
        }
    }
    let escaped = |args: &[&str], no_color: Option<&str>| {
        let mut command = world.weir(args);
        if let Some(value) = no_color {
            command.env("NO_COLOR", value);
        }
        world.run(command).expect(0).stdout.contains('\u{1b}')
    };
    assert!(!escaped(&["report", folder], None), "a pipe is no terminal");
    assert!(escaped(&["report", folder, "--color", "always"], None));
    assert!(
        escaped(&["report", folder, "--color=always"], Some("1")),
        "an option goes before the environment"
    );
    if World::lacks(&["script"]) {
        return;
    }
    // script(1) gives it a terminal.
    let on_terminal = |before: &str, after: &str| {
        let line = format!("{before} {} report {folder} {after}", world.binary().display());
        world.sh(&format!("script -qec '{line}' /dev/null")).contains('\u{1b}')
    };
    assert!(on_terminal("", ""));
    assert!(!on_terminal("NO_COLOR=1", ""));
    assert!(on_terminal("NO_COLOR=", ""), "an empty NO_COLOR is none (no-color.org)");
    assert!(!on_terminal("TERM=dumb", ""));
    assert!(!on_terminal("", "--color never"));
}

#[test]
fn root_a_reader_that_has_seen_enough_is_no_error() {
    let Some(study) = study() else { return };
    let world = plain();
    let weir = world.binary().display().to_string();
    for args in ["schema", "man", "--help", &format!("report {} --html", study.display())] {
        let script = format!("set -o pipefail; {weir} {args} | head -c 10 >/dev/null");
        let mut command = world.command("bash");
        command.args(["-c", &script]);
        let outcome = world.run(command);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{args}");
    }
}

#[test]
fn root_thresholds_decide_the_exit_code() {
    let Some(study) = study() else { return };
    let world = plain();
    let report = |conditions: &[&str]| {
        let mut args = vec!["report", study.to_str().unwrap()];
        conditions.iter().for_each(|c| args.extend(["--require", c]));
        run(&world, &args)
    };
    let met = report(&["nft-masquerade.bulk > 0.0001 x direct"]);
    assert!(met.code == 0 && met.stderr.contains("met"), "{}", met.stderr);
    let outcome = report(&["nft-masquerade.bulk > 1000 x direct"]);
    assert!(outcome.code == 3 && outcome.stderr.contains("1000 x direct"), "{}", outcome.stderr);
    let both =
        report(&["nft-masquerade.bulk > 0.0001 x direct", "nft-masquerade.bulk > 1000 x direct"]).expect(3);
    assert_eq!(both.stderr.lines().count(), 2, "each is told: {}", both.stderr);
    assert!(!both.stdout.is_empty(), "the report is printed nevertheless");
    let absolute = report(&["nft-masquerade.bulk > 1 bit/s", "direct.bulk >= 1 kbit/s"]);
    assert_eq!(absolute.code, 0, "{}", absolute.stderr);
}

#[test]
fn root_bench_prints_json_and_judges_what_it_measured() {
    let Some(world) = World::root(WEIR) else { return };
    world.write("s.toml", scenario::tiny());
    let args =
        ["bench", "s.toml", "--json", "--quiet", "--output", "out", "--require", "direct.rr < 1 x direct"];
    let outcome = run(&world, &args);
    // Its own baseline is no condition to hold it to.
    assert_eq!(outcome.code, 2, "{}", outcome.stderr);
    assert!(world.left_behind(&["s.toml"]).is_empty());

    let outcome = run(&world, &["bench", "s.toml", "--json", "--quiet", "--output", "out"]).expect(0);
    let printed: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(printed, Record::read(world.work().join("out")).json);
    assert_eq!(outcome.stderr.lines().count(), 2, "quiet: only where it is: {}", outcome.stderr);
    // A condition that no interval can prove with one round.
    let outcome = run(
        &world,
        &["bench", "s.toml", "--quiet", "--output", "again", "--require", "nft-masquerade.rr <= 9 x direct"],
    );
    assert!(
        outcome.code == 3 && outcome.stderr.contains("nft-masquerade.rr"),
        "{} {}",
        outcome.code,
        outcome.stderr
    );
    assert!(world.labs().is_empty());
    world.wait_until_idle();
}
