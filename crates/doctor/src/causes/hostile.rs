//! Names that a host chose must stay names in every command of every cause.
//!
//! Each stored evidence is examined twice, with harmless names and with hostile ones. The commands must be the same but for the
//! names: read as sh reads them, they have the same words and operators, and the hostile name stands whole where the harmless one
//! stood. Or there is no command, and the fix says why.

use std::collections::{BTreeMap, BTreeSet};

use super::{all, evidences, examine};
use crate::evidence::Evidence;
use crate::finding::Fix;

const HOSTILE: &[&str] = &[
    "a;b",
    "$(x)",
    "`x`",
    "a'b",
    "a\"b",
    "-rf",
    "a\\b",
    "a*",
    "a&b",
    "a|b",
    "#x",
    "!x",
    "a=b",
    "~",
    "a b",
    "a\nb",
    "a\u{1b}[2Jb",
    "a; flush ruleset",
    "} drop",
    "a>b",
    "a'\"b",
    "drop",
    "\u{fffd}",
    "a\u{202e}b",
    "a%s",
    "a.b",
    "--",
];

/// New names for the names of a kind of object. The first one of each kind is the name as it is; the others get a number.
struct Names<'a> {
    hostile: &'a str,
    /// Old name of each kind, by the harmless one.
    given: BTreeMap<String, String>,
    counts: BTreeMap<(char, String), usize>,
    tame: bool,
}

impl<'a> Names<'a> {
    fn new(hostile: &'a str, tame: bool) -> Self {
        Names { hostile, given: BTreeMap::new(), counts: BTreeMap::new(), tame }
    }

    fn give(&mut self, kind: char, old: &str) -> String {
        let next = self.counts.keys().filter(|(k, _)| *k == kind).count();
        let n = *self.counts.entry((kind, old.to_owned())).or_insert(next);
        // None is part of another, or of a template.
        let tame = format!("tame{kind}{n}x");
        let hostile = if n == 0 { self.hostile.to_owned() } else { format!("{}{n}", self.hostile) };
        self.given.insert(tame.clone(), hostile.clone());
        if self.tame { tame } else { hostile }
    }
}

/// The evidence with every name in it replaced, the same one the same way.
fn renamed(evidence: &Evidence, names: &mut Names<'_>) -> Evidence {
    let mut new = |kind: char, old: &str| names.give(kind, old);
    let mut evidence = evidence.clone();
    for namespace in &mut evidence.namespaces {
        for interface in namespace.interfaces.iter_mut().filter(|i| i.name != "lo") {
            let to = new('i', &interface.name);
            let (before, after) = (format!(".{}.", interface.name), format!(".{}.", to.replace('.', "/")));
            let settings = std::mem::take(&mut namespace.settings);
            namespace.settings = settings.into_iter().map(|(k, v)| (k.replace(&before, &after), v)).collect();
            for policy in namespace.routes.iter_mut().flat_map(|r| &mut r.policies) {
                let words = policy.split(' ').map(|w| if w == interface.name { to.as_str() } else { w });
                *policy = words.collect::<Vec<_>>().join(" ");
            }
            interface.name = to;
        }
        let fastpath = namespace.fastpath.iter_mut();
        for name in fastpath.flat_map(|f| f.interfaces.iter_mut().chain(&mut f.without_programs)) {
            *name = new('i', name);
        }
        // A name of a kind that a command leads into.
        namespace.name = format!("netns {}", new('n', &namespace.name));
        if let Some(host) = &mut namespace.nat {
            let refused = host.refused.iter_mut();
            let own = host
                .rules
                .iter_mut()
                .map(|r| &mut r.rule)
                .chain(host.timeouts.iter_mut().map(|t| &mut t.rule));
            let mut chains = Vec::new();
            let rules = own.chain(refused.filter_map(|r| {
                chains.push(&mut r.chain);
                r.rule.as_mut()
            }));
            for rule in rules {
                (rule.table, rule.chain) = (new('t', &rule.table), new('c', &rule.chain));
                rule.text += &format!(" comment {}", new('k', ""));
            }
            for [_, table, chain] in chains {
                (*table, *chain) = (new('t', table), new('c', chain));
            }
        }
        let Some(rules) = &mut namespace.rules else { continue };
        for chain in &mut rules.chains {
            (chain.table, chain.name) = (new('t', &chain.table), new('c', &chain.name));
        }
        for rule in &mut rules.rules {
            (rule.table, rule.chain) = (new('t', &rule.table), new('c', &rule.chain));
            if let Some(set) = rule.set.clone() {
                let to = new('s', &set);
                rule.text = rule.text.replace(&set, &to);
                rule.set = Some(to);
            }
            rule.comment = Some(new('k', ""));
            rule.text += &format!(" comment {}", new('k', ""));
        }
        for set in &mut rules.sets {
            let table = if set.table.is_empty() { String::new() } else { new('t', &set.table) };
            (set.table, set.name) = (table, new('s', &set.name));
        }
        for socket in namespace.sockets.iter_mut() {
            for process in socket.listeners.iter_mut().filter_map(|l| l.process.as_mut()) {
                *process = format!("{} {process}", new('p', ""));
            }
        }
    }
    for group in &mut evidence.machine.throttled {
        let (folder, unit) = group.path.rsplit_once('/').unwrap_or(("", &group.path));
        group.path = format!("{folder}/{}-{unit}", new('u', ""));
    }
    evidence
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    /// An operator, or the beginning of an expansion.
    Operator(char),
}

/// Reads a line as sh does (POSIX.1-2017, XCU 2.3), as far as the commands of findings need it.
fn read(line: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars().peekable();
    // Depth of double quotes: text within them is part of the word, expansions are not.
    let mut doubled = false;
    while let Some(c) = chars.next() {
        match c {
            '\'' if !doubled => {
                let word = word.get_or_insert_default();
                word.extend(chars.by_ref().take_while(|c| *c != '\''));
            }
            '"' => {
                doubled = !doubled;
                word.get_or_insert_default();
            }
            '\\' => word.get_or_insert_default().extend(chars.next()),
            '$' | '`' => {
                tokens.extend(word.take().map(Token::Word));
                tokens.push(Token::Operator(c));
                // The quotes of an expansion are its own.
                doubled &= chars.peek() != Some(&'(');
            }
            ' ' | '\t' if !doubled => tokens.extend(word.take().map(Token::Word)),
            ';' | '|' | '&' | '<' | '>' | '(' | ')' | '\n' if !doubled => {
                tokens.extend(word.take().map(Token::Word));
                tokens.push(Token::Operator(c));
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    tokens.extend(word.map(Token::Word));
    tokens
}

/// The simple commands of a line, and the operators between them.
fn parts(line: &str) -> (Vec<Vec<String>>, String) {
    let (mut commands, mut operators) = (vec![Vec::new()], String::new());
    for token in read(line) {
        match token {
            Token::Word(word) => commands.last_mut().unwrap().push(word),
            Token::Operator(c) => {
                operators.push(c);
                commands.push(Vec::new());
            }
        }
    }
    (commands, operators)
}

/// A hostile command against the harmless one.
fn same(tame: &str, hostile: &str, names: &BTreeMap<String, String>) -> Result<(), String> {
    let ((tame, wanted), (hostile, found)) = (parts(tame), parts(hostile));
    if wanted != found || tame.len() != hostile.len() {
        return Err(format!("operators {found:?} instead of {wanted:?}"));
    }
    for (tame, hostile) in tame.iter().zip(&hostile) {
        if tame.len() != hostile.len() {
            return Err(format!("{hostile:?} instead of {tame:?}"));
        }
        for (n, (t, h)) in tame.iter().zip(hostile).enumerate() {
            if n > 0 && tame[n - 1] == "-c" && tame[n - 2] == "sh" {
                same(t, h, names)?
            } else {
                same_word(t, h, names)?
            }
        }
        if let Some(at) = tame.iter().position(|w| w == "nft") {
            // nft joins its arguments, and knows no quotes but those of strings.
            let statement = hostile[at..].join(" ");
            let outside: String = statement.split('"').step_by(2).collect();
            // A word that nft reads as a plain word is always safe.
            let plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
            let mut names = names.values().filter(|name| !name.chars().all(plain));
            if names.any(|name| outside.contains(name.as_str())) {
                return Err(format!("nft reads {statement:?}"));
            }
        }
    }
    Ok(())
}

/// Ways in which a name may be written within a word: as it is, in a sysctl name, in a basic regular expression, in a file name.
fn written(name: &str) -> [String; 4] {
    let escaped = |c: char| if ".[*^$\\".contains(c) { format!("\\{c}") } else { c.to_string() };
    let file = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    [
        name.into(),
        name.replace('.', "/"),
        name.chars().map(escaped).collect(),
        name.chars().map(file).collect(),
    ]
}

fn same_word(tame: &str, hostile: &str, names: &BTreeMap<String, String>) -> Result<(), String> {
    let found = (0..4).any(|way| {
        let replace =
            |text: String, (tame, name): (&String, &String)| text.replace(tame, &written(name)[way]);
        names.iter().fold(tame.to_owned(), replace) == hostile
    });
    if found { Ok(()) } else { Err(format!("{hostile:?} instead of {tame:?}")) }
}

fn check(tame: &Fix, hostile: &Fix, names: &BTreeMap<String, String>) -> Result<bool, String> {
    if let Some(why) = &hostile.by_hand {
        let told = why.len() > 20 && !why.chars().any(|c| c.is_control() || c == '\u{202e}');
        let empty = hostile.commands.is_empty() && hostile.undo.is_empty();
        return if told && empty { Ok(false) } else { Err(format!("{hostile:?}")) };
    }
    let lines = |fix: &Fix| fix.commands.iter().chain(&fix.undo).cloned().collect::<Vec<_>>();
    let (tame, hostile) = (lines(tame), lines(hostile));
    if tame.len() != hostile.len() {
        return Err(format!("{hostile:#?} instead of {tame:#?}"));
    }
    for (t, h) in tame.iter().zip(&hostile) {
        same(t, h, names).map_err(|e| format!("{h}: {e}"))?;
        if h.chars().any(char::is_control) {
            return Err(format!("{h:?}: a terminal acts on it"));
        }
    }
    Ok(tame != hostile)
}

#[test]
fn no_name_of_a_host_becomes_a_command() {
    let (mut wrong, mut named, mut seen) = (Vec::new(), 0, BTreeSet::new());
    for (file, evidence) in evidences() {
        for hostile in HOSTILE {
            let mut names = Names::new(hostile, true);
            let tame = crate::diagnosis::diagnose(&renamed(&evidence, &mut names)).findings;
            let hostile =
                crate::diagnosis::diagnose(&renamed(&evidence, &mut Names::new(hostile, false))).findings;
            let ids = |findings: &[crate::finding::Finding]| {
                findings.iter().map(|f| f.cause.clone()).collect::<Vec<_>>()
            };
            assert_eq!(ids(&tame), ids(&hostile), "{file}: names must not change what is found");
            for (t, h) in tame.iter().zip(&hostile) {
                seen.insert(t.cause.clone());
                assert_eq!(t.fixes.len(), h.fixes.len(), "{file}: {}", t.cause);
                for (t_fix, h_fix) in t.fixes.iter().zip(&h.fixes) {
                    match check(t_fix, h_fix, &names.given) {
                        Ok(differs) => named += usize::from(differs),
                        Err(e) => wrong.push(format!("{file}: {}: {}: {e}", t.cause, h_fix.title)),
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
    // The names do reach the commands.
    assert!(named > 500, "{named}");
}

/// Commands come from `crate::command`, and from nowhere else.
#[test]
fn no_cause_writes_a_command_by_itself() {
    let mut wrong = Vec::new();
    for (file, text) in super::sources() {
        for by_itself in [" commands: ", " undo: ", ".commands", ".undo", "Fix::default"] {
            if text.contains(by_itself) {
                wrong.push(format!("{file}: {by_itself}"));
            }
        }
    }
    assert!(wrong.is_empty(), "use Fix::new, Fix::look or Fix::set: {wrong:#?}");
}

/// A new cause is here by itself: it must come with evidence of it.
#[test]
fn every_cause_has_evidence_in_which_it_is_found() {
    let found: BTreeSet<String> =
        evidences().iter().flat_map(|(_, evidence)| examine(evidence)).map(|f| f.cause).collect();
    for cause in all() {
        let wanted = format!("crates/doctor/src/causes/examples/{}-1.json", cause.id);
        assert!(
            found.contains(cause.id),
            "{}: add {wanted}, the JSON of the evidence of a unit test",
            cause.id
        );
    }
}

/// This module reads a line as sh reads it.
#[test]
fn lines_are_read_as_a_shell_reads_them() {
    for line in [r"a 'b c' d\'e", r#"x "a b" 'it'\''s' --"#, r"iff:.*a\\ 'a;b' '$(x)'", "a'b'c"] {
        let mut shell = std::process::Command::new("sh");
        let output = shell.arg("-c").arg(format!("printf '%s\\0' {line}")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<Token> = text.split_terminator('\0').map(|w| Token::Word(w.into())).collect();
        assert_eq!(read(line), words, "{line}");
    }
    assert_eq!(parts("a; b | c && d > e").1, ";|&&>");
    assert!(
        same(
            "nft list chain ip tamec0x",
            "nft list chain ip 'a;b'",
            &[("tamec0x".into(), "a;b".into())].into()
        )
        .is_err()
    );
    assert!(
        same("ip link show tamei0x", "ip link show a;b", &[("tamei0x".into(), "a;b".into())].into()).is_err()
    );
    assert!(
        same("ip link show tamei0x", "ip link show 'a;b'", &[("tamei0x".into(), "a;b".into())].into())
            .is_ok()
    );
}
