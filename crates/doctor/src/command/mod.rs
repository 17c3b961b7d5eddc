//! The commands of a finding: what a reader pastes into a root shell.
//!
//! Names in them come from outside: a container chooses the names of its interfaces, chains and control groups. [`sh!`] quotes
//! every argument for the shell, [`nft!`] writes only what nft reads back as the same name. A name that cannot be written makes an
//! [`Unwritable`], and [`crate::finding::Fix::new`] turns it into a fix without commands that says why.

pub(crate) mod iptables;
pub(crate) mod nft;
mod place;
pub(crate) mod sysctl;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) use place::place;

/// A command line, or why there is none.
pub(crate) type Line = Result<Command, Unwritable>;

/// One line for a POSIX shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command(String);

/// A name or text that no command can hold: in words, with what to look at instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unwritable(String);

impl Unwritable {
    /// `what` names the thing ("the chain"), `text` is the name, `look` says where to see it.
    pub(crate) fn new(what: &str, text: &str, why: &str, look: &str) -> Self {
        Unwritable(format!("no command: {what} {} {why}; {look}", text.escape_debug()))
    }

    pub(crate) fn words(&self) -> &str {
        &self.0
    }
}

impl Command {
    /// Puts the arguments into the holes of a template, which is text of this program and not of a host. Use [`sh!`], which counts
    /// the holes when it is compiled.
    pub(crate) fn fill(template: &'static str, arguments: &[&dyn Argument]) -> Line {
        let mut arguments = arguments.iter();
        let (mut line, mut quotes) = (String::new(), 0);
        for (n, part) in template.split("{}").enumerate() {
            if n > 0 {
                let words = arguments.next().map_or(Ok(String::new()), |a| a.quoted())?;
                // Within quotes of the template only what needs none may stand.
                if quotes % 2 == 1 && words.contains(['\'', ' ']) {
                    let look = "list the object with its own program";
                    return Err(Unwritable::new("the name", &words, "cannot stand between quotes", look));
                }
                // An empty list of words leaves one blank, not two.
                if words.is_empty() && line.ends_with(' ') {
                    line.pop();
                }
                line += &words;
            }
            line += part;
            quotes += part.matches('\'').count();
        }
        Ok(Command(line))
    }

    /// Runs the next one only if this one succeeds.
    pub(crate) fn and(self, next: Command) -> Command {
        Command(format!("{} && {}", self.0, next.0))
    }

    pub(crate) fn into_line(self) -> String {
        self.0
    }
}

/// A file that keeps the object of these names for an undo, below the home of root, where only root can place links.
pub(crate) fn kept(names: &[&str], kind: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    format!("/root/weir-{}.{kind}", names.join("-").chars().map(plain).collect::<String>())
}

/// Number of `{}` in a template.
pub(crate) const fn holes(template: &str) -> usize {
    let bytes = template.as_bytes();
    let (mut at, mut count) = (0, 0);
    while at + 1 < bytes.len() {
        if bytes[at] == b'{' && bytes[at + 1] == b'}' {
            count += 1;
        }
        at += 1;
    }
    count
}

/// A shell command: a literal with a `{}` for each argument, which is quoted.
macro_rules! sh {
    ($template:literal $(, $argument:expr)* $(,)?) => {{
        const _: () = assert!(
            $crate::command::holes($template) == <[&str]>::len(&[$(stringify!($argument)),*]),
            "as many arguments as holes"
        );
        $crate::command::Command::fill($template, &[$(&$argument as &dyn $crate::command::Argument),*])
    }};
}
pub(crate) use sh;

/// A value that may fill the hole of a [`sh!`] template.
pub(crate) trait Argument {
    /// As the shell is to read it.
    fn quoted(&self) -> Result<String, Unwritable>;
}

/// Several words, each quoted.
pub(crate) struct Words<'a>(pub(crate) Vec<&'a str>);

/// Text for a shell.
///
/// A terminal acts on control characters and hides others, and the page shows a substitute for them: a name copied from it is
/// then another name. U+FFFD stands for bytes that were no UTF-8.
pub(crate) fn word(text: &str) -> Result<String, Unwritable> {
    if !is_copied_as_shown(text) {
        let look = "list the object with its own program, and give it another name";
        return Err(Unwritable::new("the name", text, "has characters that cannot be pasted", look));
    }
    Ok(weir_text::shell::word(text))
}

/// True of text that a terminal shows as it is.
fn is_copied_as_shown(text: &str) -> bool {
    text.chars().all(|c| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric())
}

impl Argument for str {
    fn quoted(&self) -> Result<String, Unwritable> {
        word(self)
    }
}

impl Argument for String {
    fn quoted(&self) -> Result<String, Unwritable> {
        word(self)
    }
}

impl<'a> Words<'a> {
    /// Those that blanks part.
    pub(crate) fn of(text: &'a str) -> Self {
        Words(text.split(' ').filter(|w| !w.is_empty()).collect())
    }
}

impl Argument for Words<'_> {
    fn quoted(&self) -> Result<String, Unwritable> {
        let words: Result<Vec<String>, _> = self.0.iter().map(|w| word(w)).collect();
        Ok(words?.join(" "))
    }
}

impl<T: Argument + ?Sized> Argument for &T {
    fn quoted(&self) -> Result<String, Unwritable> {
        (**self).quoted()
    }
}

/// A value that is already made of checked parts, such as a sysctl name of an interface.
impl<T: Argument> Argument for Result<T, Unwritable> {
    fn quoted(&self) -> Result<String, Unwritable> {
        match self {
            Ok(argument) => argument.quoted(),
            Err(e) => Err(e.clone()),
        }
    }
}

macro_rules! plain {
    ($($kind:ty),*) => {$(
        impl Argument for $kind {
            fn quoted(&self) -> Result<String, Unwritable> {
                Ok(self.to_string())
            }
        }
    )*};
}
plain!(u8, u16, u32, u64, usize, i32, IpAddr, Ipv4Addr, Ipv6Addr);

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back(line: &str) -> Vec<String> {
        let mut shell = std::process::Command::new("sh");
        let output = shell.arg("-c").arg(format!("printf '%s\\0' {line}")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect()
    }

    #[test]
    fn a_shell_reads_back_what_was_meant() {
        for text in [
            "eth0",
            "a b",
            "it's",
            "$(reboot)",
            "x;y",
            "`id`",
            "",
            "*",
            "eth0.7@up",
            "-rf",
            "~root",
            "#x",
            "a\\b",
            "a\"b",
        ] {
            assert_eq!(read_back(&word(text).unwrap()), [text]);
        }
        assert_eq!(word("eth0.7").unwrap(), "eth0.7");
    }

    #[test]
    fn what_a_page_would_not_show_as_it_is_makes_no_command() {
        for text in ["a\nb", "a\tb", "a\u{1b}[2Jb", "a\u{202e}b", "a\u{fffd}b", "a\u{7f}b", "a\u{9b}b"] {
            let why = sh!("ip link show {}", text).unwrap_err();
            assert!(!why.words().chars().any(char::is_control), "{}", why.words());
        }
    }

    #[test]
    fn holes_are_filled_in_order_and_an_empty_list_leaves_no_gap() {
        assert_eq!(sh!("a {} b {}", "x y", 7_u8).unwrap().0, "a 'x y' b 7");
        assert_eq!(sh!("a {} b", Words(Vec::new())).unwrap().0, "a b");
        assert_eq!(sh!("a {}", Words(vec!["x", "y;z"])).unwrap().0, "a x 'y;z'");
    }
}
