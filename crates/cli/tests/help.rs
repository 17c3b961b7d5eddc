//! Help, man pages and completions as a user gets them from the program: one definition makes all three.

use std::collections::BTreeSet;
use std::fs;

use weir_testkit::{CommandOutput, World};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn run(world: &World, args: &[&str]) -> CommandOutput {
    world.run(world.weir(args))
}

/// Names of the commands below one, as its help lists them.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    lines
        .take_while(|line| !line.is_empty())
        // Text that does not fit one line goes on further to the right.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// Every command that help leads to, each with its words.
fn commands(world: &World) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut next = 0;
    while next < found.len() {
        let path: Vec<String> = found[next].clone();
        let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
        args.push("--help");
        for name in listed(&run(world, &args).expect(0).stdout) {
            found.push([&path[..], &[name]].concat());
        }
        next += 1;
    }
    found
}

#[test]
fn help_at_length_has_examples_and_fits_the_terminal() {
    let world = World::plain(WEIR);
    for path in commands(&world) {
        for (flag, width) in [("--help", 80), ("--help", 100), ("-h", 80)] {
            let mut command = world.weir(&[]);
            command.args(&path).arg(flag).env("COLUMNS", width.to_string());
            let text = world.run(command).expect(0).stdout;
            let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > width).collect();
            assert!(wide.is_empty(), "{path:?} {flag} at {width}: {wide:#?}");
            assert_eq!(text.contains("\nExamples:\n  weir"), flag == "--help", "{path:?} {flag}:\n{text}");
            assert_eq!(text.contains("\nExample:\n  weir"), flag == "-h", "{path:?} {flag}:\n{text}");
            let last = text.trim_end().rsplit("\n\n").next().unwrap().replace('\n', " ");
            if flag == "-h" {
                let example = text.split("\nExample:\n").nth(1).unwrap();
                assert_eq!(
                    example.lines().filter(|line| line.starts_with("  ")).count(),
                    1,
                    "{path:?}:\n{text}"
                );
                assert!(last.contains("--help"), "{path:?}: no way to more help:\n{text}");
            } else {
                assert!(
                    last.starts_with("Exit codes: 0 "),
                    "{path:?}: the page does not end with its codes:\n{text}"
                );
                assert!([" 1 ", " 2 "].iter().all(|code| last.contains(code)), "{path:?}: {last}");
            }
        }
    }
}

#[test]
fn a_folder_gets_a_man_page_for_each_command() {
    let world = World::plain(WEIR);
    let outcome = run(&world, &["man", "share/man1"]).expect(0);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""));
    let folder = world.work().join("share/man1");
    let written: BTreeSet<String> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let name = |path: &[String]| [&["weir".to_owned()], path].concat().join("-") + ".1";
    let expected: BTreeSet<String> = commands(&world).iter().map(|path| name(path)).collect();
    assert!(expected.contains("weir-tune-plan.1") && !expected.contains("weir-agent.1"), "{expected:?}");
    assert_eq!(written, expected);
    // Together they are what goes to standard output without a folder.
    let whole = run(&world, &["man"]).expect(0).stdout;
    for file in &written {
        assert!(whole.contains(&fs::read_to_string(folder.join(file)).unwrap()), "{file}");
    }
    if !World::lacks(&["man"]) {
        let script =
            "for page in share/man1/*; do man --warnings -E UTF-8 -l -Tutf8 -Z ./$page >/dev/null; done";
        let outcome = world.run(world.shell(script));
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    }
    world.write("file", "");
    let refused = run(&world, &["man", "file/below"]).expect(1);
    assert!(refused.stderr.contains("cannot write file/below"), "{}", refused.stderr);
}

#[test]
fn completions_offer_what_help_lists() {
    let world = World::plain(WEIR);
    let script = run(&world, &["completions", "bash"]).expect(0).stdout;
    for path in commands(&world) {
        // The script's own name for being behind these words.
        let words: String = path.iter().map(|word| format!("__subcmd__{word}")).collect();
        assert!(script.contains(&format!("weir{words})")), "{path:?}");
    }
    for option in ["--confirm-within", "--must-have", "--fail-on-finding"] {
        assert!(script.contains(option), "{option}");
    }
}

#[test]
fn names_that_options_had_before_are_still_understood() {
    let world = World::plain(WEIR);
    for (args, words) in [
        (&["doctor", "selftest", "--time", "0"][..], "500 ms to 1 min"),
        (&["conntrack", "--watch=0"], "100 ms to 1 d"),
        (&["conntrack", "--watch", "0.05"], "100 ms to 1 d"),
        (&["mtu", "127.0.0.1", "--for", "6m"], "1 s to 5 min"),
        (&["doctor", "--for", "1ms"], "100 ms to 1 d"),
        (&["doctor", "--watch", "often"], "not a time such as"),
    ] {
        let outcome = run(&world, args).expect(2);
        assert!(outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
    }
}
