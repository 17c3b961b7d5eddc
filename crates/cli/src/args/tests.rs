//! The whole command tree, and every command line that help and documentation show.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, ValueEnum};

use super::pages::{self, EXAMPLE_COLUMNS};
use crate::documents::Kind;

/// Widths of terminals that help is read on.
const WIDTHS: [usize; 2] = [80, 100];

/// Every command that people see, with its full name without `weir`; the one that clap makes (`help`) is clap's.
fn walk(command: &Command, name: &str, see: &mut dyn FnMut(&str, &Command)) {
    see(name, command);
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set() && s.get_name() != "help") {
        walk(sub, format!("{name} {}", sub.get_name()).trim(), see);
    }
}

#[test]
fn the_definition_is_consistent() {
    super::command().debug_assert();
}

#[test]
fn every_command_has_one_line_and_a_page() {
    let mut names = BTreeSet::new();
    walk(&super::command(), "", &mut |name, command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(!about.is_empty() && !about.contains('\n') && about.len() <= 100, "weir {name}: {about:?}");
        assert!(names.insert(name.to_owned()));
    });
    let pages: Vec<&str> = pages::all().map(|page| page.command).collect();
    let with_page: BTreeSet<String> = pages.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(with_page.len(), pages.len(), "a command has two pages");
    assert_eq!(with_page, names);
}

#[test]
fn every_page_has_examples_that_are_right_and_fit_the_terminal() {
    for page in pages::all() {
        let name = format!("weir {}", page.command);
        assert!(!page.examples.is_empty() && page.text.ends_with('.'), "{name}");
        assert!(page.examples.iter().any(|line| line.contains(name.trim())), "{name}: no example of it");
        for line in page.examples {
            assert!(line.chars().count() <= EXAMPLE_COLUMNS, "{name}: {line}");
            let commands = commands_of(line);
            assert!(!commands.is_empty(), "{name}: {line}");
            for words in commands {
                // `weir help X` ends in help, which is an error for clap.
                let outcome = super::command().try_get_matches_from(&words);
                let wrong = outcome.err().filter(|e| e.kind() != ErrorKind::DisplayHelp);
                assert!(wrong.is_none(), "{name}: {line}: {wrong:?}");
            }
        }
    }
}

#[test]
fn help_fits_the_terminal_and_shows_the_examples_whole() {
    for width in WIDTHS {
        walk(&super::command(), "", &mut |name, command| {
            let mut command = command.clone().term_width(width);
            let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
            for text in [&short, &long] {
                let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > width).collect();
                assert!(wide.is_empty(), "weir {name} at {width}: {wide:#?}");
            }
            let page = pages::all().find(|page| page.command == name).unwrap();
            for line in page.examples {
                assert!(
                    long.lines().any(|shown| shown.trim() == *line),
                    "weir {name} at {width}: {line}\n{long}"
                );
            }
        });
    }
}

/// One word for each kind of value, everywhere: the wrong word and the right one.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("SECONDS", "TIME, with a unit as 90s or 2m"),
    ("DURATION", "TIME"),
    ("TIMEOUT", "TIME"),
    ("COUNT", "N"),
    ("SEED", "N"),
    ("SIZE", "BYTES"),
    ("PATH", "FILE or DIR"),
    ("FOLDER", "DIR"),
    ("OUTPUT", "FILE or DIR"),
    ("ADDR", "ADDRESS"),
];

#[test]
fn options_are_described_and_say_what_their_value_is() {
    walk(&super::command(), "", &mut |name, command| {
        for arg in command.get_arguments() {
            let id = arg.get_id().as_str();
            assert!(arg.get_help().is_some(), "weir {name}: {id}");
            let value = arg.get_value_names().map(|names| names[0].to_string()).unwrap_or_default();
            let better =
                OTHER_WORDS.iter().find(|(word, _)| arg.get_action().takes_values() && *word == value);
            assert!(better.is_none(), "weir {name}: --{id} <{value}>: {better:?}");
        }
    });
}

/// Options with one spelling everywhere: name, value, and words that each help must have.
const ONE_MEANING: [(&str, &str, &str); 7] = [
    ("for", "TIME", " for TIME"),
    ("watch", "TIME", "Repeat every TIME until Ctrl-C"),
    ("time", "TIME", " for TIME"),
    ("timeout", "TIME", "Give up on one "),
    ("netns", "NAME|PID|PATH", "network namespace: a name of `ip netns`, a process id, or a path"),
    ("interface", "NAME", "come in by"),
    ("confirm-within", "TIME", "Time to confirm"),
];

#[test]
fn an_option_means_the_same_in_every_command() {
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    walk(&super::command(), "", &mut |name, command| {
        for arg in command.get_arguments() {
            let long = arg.get_long().unwrap_or_default();
            let Some((long, value, words)) = ONE_MEANING.iter().find(|(option, ..)| *option == long) else {
                continue;
            };
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(words), "weir {name} --{long}: {help}");
            let values = arg.get_value_names().unwrap_or_default();
            assert!(values.len() == 1 && values[0].as_str() == *value, "weir {name} --{long}: {values:?}");
            let form = format!("{:?}, default {:?}", arg.get_short(), arg.get_default_values());
            seen.entry(long).or_default().insert(form);
        }
    });
    assert_eq!(seen.len(), ONE_MEANING.len(), "an option is in no command: {seen:?}");
    for option in ["watch", "netns", "interface", "confirm-within"] {
        assert_eq!(seen[option].len(), 1, "--{option} has two short forms or defaults: {:?}", seen[option]);
    }
}

#[test]
fn quiet_and_verbose_are_options_of_every_command() {
    let mut tree = super::command();
    tree.build();
    let mut seen = 0;
    walk(&tree, "", &mut |name, command| {
        seen += 1;
        for (long, short) in [("quiet", 'q'), ("verbose", 'v')] {
            let found: Vec<_> = command.get_arguments().filter(|arg| arg.get_long() == Some(long)).collect();
            assert!(found.len() == 1 && found[0].is_global_set(), "weir {name}: --{long} is {found:?}");
            assert_eq!(found[0].get_short(), Some(short), "weir {name} --{long}");
        }
    });
    assert!(seen > 30, "only {seen} commands");
    assert!(super::command().try_get_matches_from(["weir", "cost", "-q", "-v"]).is_err());
}

#[test]
fn the_verbs_of_a_trial_are_the_same_in_every_command_that_has_one() {
    let tree = super::command();
    let options = |family: &str, verb: &str| -> BTreeSet<String> {
        let found = tree.find_subcommand(family).and_then(|command| command.find_subcommand(verb));
        let command = found.unwrap_or_else(|| panic!("weir {family} {verb} is missing"));
        command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned).collect()
    };
    for family in ["tune", "allow", "publish", "fastpath"] {
        let common = |verb: &str, wanted: &[&str]| {
            let found = options(family, verb);
            let missing: Vec<_> = wanted.iter().filter(|option| !found.contains(**option)).collect();
            assert!(missing.is_empty(), "weir {family} {verb} lacks {missing:?}");
        };
        common("plan", &["json", "interface", "netns"]);
        common("apply", &["json", "interface", "netns", "confirm-within"]);
        common("status", &["json"]);
    }
    for verb in ["confirm", "rollback", "remove"] {
        let families = ["tune", "allow", "publish", "fastpath"];
        let [tune, allow, publish, fastpath] = families.map(|family| options(family, verb));
        assert_eq!((&allow, &allow), (&publish, &fastpath), "{verb}");
        assert_eq!(&tune | &BTreeSet::from(["netns".to_owned()]), allow, "{verb}");
    }
}

#[test]
fn every_command_with_json_has_a_kind_of_document() {
    let kinds = Kind::value_variants().iter().flat_map(|kind| kind.commands());
    // Kinds of one option alone, such as `cost --list`, are in addition.
    let with_kind: BTreeSet<String> = kinds.filter(|words| !words.contains(" --")).collect();
    let mut with_json = BTreeSet::new();
    walk(&super::command(), "", &mut |name, command| {
        if command.get_arguments().any(|arg| arg.get_long() == Some("json")) {
            with_json.insert(name.to_owned());
        }
    });
    assert_eq!(with_json, with_kind);
}

#[test]
fn commands_of_a_kind_are_right() {
    for kind in Kind::value_variants() {
        for words in kind.commands() {
            let line = format!("weir {words}");
            let wrong = mistake(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
            assert!(wrong.is_none(), "{kind:?}: {line}: {wrong:?}");
        }
    }
}

#[test]
fn the_commands_in_the_documentation_are_right() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = ["docs", "deploy"].map(|folder| pages_below(&root.join(folder))).concat();
    files.push(root.join("README.md"));
    let (mut seen, mut wrong) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for line in lines_with_commands(&text) {
            for words in commands_of(&line) {
                seen += 1;
                if let Some(why) = mistake(&words) {
                    wrong.push(format!("{}: {line}\n    {words:?}: {why}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 100, "only {seen} found: are they still written in the same way?");
}

/// Every Markdown file below a folder.
fn pages_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
    let pages = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "md"));
    pages.chain(folders.iter().flat_map(|folder| pages_below(folder))).collect()
}

/// The mistake in a command line of the documentation: arguments may be left out, unknown ones are errors.
fn mistake(words: &[String]) -> Option<String> {
    let error = super::command().try_get_matches_from(words).err()?;
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => None,
        // An option named without its value.
        ErrorKind::InvalidValue
            if error.get(ContextKind::InvalidValue) == Some(&ContextValue::String(String::new())) =>
        {
            None
        }
        _ => Some(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

/// Lines of code blocks and spans between backquotes that begin with `weir`, or have it behind a pipe.
fn lines_with_commands(markdown: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut in_block = false;
    // A command may go on behind a backslash.
    let joined = markdown.split("\\\n").map(str::trim).collect::<Vec<_>>().join(" ");
    for line in joined.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            lines.push(line.trim().to_owned());
        } else {
            lines.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    lines.retain(|line| {
        line.starts_with("weir ") || line.starts_with("sudo weir ") || line.contains("| weir ")
    });
    lines
}

/// The calls of weir in a line of a shell: explanations behind it (two blanks or `#`), redirections and other programs are
/// left out; `a|b` inside a word is either, as in usage lines.
fn commands_of(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut words = shell_words(line).into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "|" | "||" | "&&" | ";" => commands.push(Vec::new()),
            ">" | "<" | ">>" => drop(words.next()),
            "&" | "..." | "sudo" => {}
            // `weir completions, man`: a list, of which the first is taken.
            _ if word.ends_with(',') => {
                commands.last_mut().unwrap().push(word.trim_end_matches(',').to_owned());
                break;
            }
            _ if word.starts_with('>') || word.starts_with("2>") => {}
            // Optional in a usage line.
            _ if word.starts_with('[') && word.ends_with(']') => {}
            _ => commands.last_mut().unwrap().push(word),
        }
    }
    commands.retain(|words| words.first().is_some_and(|first| first == "weir"));
    commands.iter().flat_map(|words| alternatives(words)).collect()
}

/// One call for each `a|b|c` among the first words, which name the command.
fn alternatives(words: &[String]) -> Vec<Vec<String>> {
    let Some(at) = words.iter().position(|word| word.contains('|') && !word.contains([' ', '=', '<'])) else {
        return vec![words.to_vec()];
    };
    (words[at].split('|'))
        .map(|choice| {
            let mut chosen = words.to_vec();
            chosen[at] = choice.to_owned();
            chosen
        })
        .filter(|chosen| !chosen[at].is_empty() && chosen[at] != "...")
        .collect()
}

/// Words as a shell splits them, up to an explanation.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => {
                words.extend(word.take());
                if chars.peek() == Some(&' ') {
                    return words;
                }
            }
            (None, '#') if word.is_none() => return words,
            (None, ';') => {
                words.extend(word.take());
                words.push(";".to_owned());
            }
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn lines_of_a_shell_are_split_as_a_shell_does() {
    let of = |line: &str| commands_of(line).iter().map(|words| words.join(",")).collect::<Vec<_>>();
    assert_eq!(of("weir bench 'a b' > x    says"), ["weir,bench,a b"]);
    assert_eq!(
        of("weir doctor --json | weir tune plan --from -   # both"),
        ["weir,doctor,--json", "weir,tune,plan,--from,-"]
    );
    assert_eq!(of("sudo weir tune plan|apply"), ["weir,tune,plan", "weir,tune,apply"]);
    assert_eq!(of("ls | head; weir man"), ["weir,man"]);
    assert_eq!(of("weir bench [SCENARIO] 2 "), ["weir,bench,2"]);
    assert!(of("cat weir").is_empty());
}
