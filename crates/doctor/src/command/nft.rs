//! nft statements. nft joins its arguments and parses them by its own grammar, in which `;` ends a command and names have no
//! quotes: only a name that its scanner reads as one identifier is written at all.

use super::{Command, Line, Unwritable};
use crate::evidence::Rule;

/// Part of a statement, in which every name was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statement(String);

/// A value that may fill the hole of an [`nft!`] template.
pub(crate) trait Piece {
    fn text(&self) -> Result<String, Unwritable>;
}

impl Piece for Statement {
    fn text(&self) -> Result<String, Unwritable> {
        Ok(self.0.clone())
    }
}

impl Piece for &Result<Statement, Unwritable> {
    fn text(&self) -> Result<String, Unwritable> {
        (**self).text()
    }
}

impl Piece for Result<Statement, Unwritable> {
    fn text(&self) -> Result<String, Unwritable> {
        self.as_ref().map(|s| s.0.clone()).map_err(Clone::clone)
    }
}

/// Words of this program: `ip`, `daddr`.
impl Piece for &'static str {
    fn text(&self) -> Result<String, Unwritable> {
        Ok((*self).to_owned())
    }
}

macro_rules! plain {
    ($($kind:ty),*) => {$(
        impl Piece for $kind {
            fn text(&self) -> Result<String, Unwritable> {
                Ok(self.to_string())
            }
        }
    )*};
}
plain!(u8, u16, u32, u64, std::net::IpAddr);

impl Statement {
    pub(crate) fn fill(template: &'static str, pieces: &[&dyn Piece]) -> Result<Self, Unwritable> {
        let mut pieces = pieces.iter();
        let mut text = String::new();
        for (n, part) in template.split("{}").enumerate() {
            if n > 0 {
                text += &pieces.next().map_or(Ok(String::new()), |p| p.text())?;
            }
            text += part;
        }
        Ok(Statement(text))
    }
}

impl Command {
    /// nft with that statement. Options before it (`-a list chain`) stay outside its quotes.
    pub(crate) fn nft(statement: Result<Statement, Unwritable>) -> Line {
        let Statement(text) = statement?;
        let mut rest = text.as_str();
        while rest.starts_with('-') {
            rest = rest.split_once(' ').map_or("", |(_, rest)| rest);
        }
        let options = &text[..text.len() - rest.len()];
        let bare = rest.bytes().all(|b| b.is_ascii_alphanumeric() || b" _@:,./-".contains(&b));
        let rest = if bare { rest.to_owned() } else { super::word(rest)? };
        Ok(Command(format!("nft {options}{rest}")))
    }
}

/// Part of an nft statement: a literal with a `{}` for each [`Piece`].
macro_rules! statement {
    ($template:literal $(, $piece:expr)* $(,)?) => {{
        const _: () = assert!(
            $crate::command::holes($template) == <[&str]>::len(&[$(stringify!($piece)),*]),
            "as many pieces as holes"
        );
        $crate::command::nft::Statement::fill($template, &[$(&$piece as &dyn $crate::command::nft::Piece),*])
    }};
}
pub(crate) use statement;

/// An nft command: a literal with a `{}` for each [`Piece`].
macro_rules! nft {
    ($($statement:tt)*) => { $crate::command::Command::nft($crate::command::nft::statement!($($statement)*)) };
}
pub(crate) use nft;

const LOOK: &str = "see `nft -a list ruleset`, and ask for the program that made it";

/// Words of the grammar, which cannot name anything (src/scanner.l of nftables; 1.0.6 refuses them as the name of a table or a
/// chain, the last ones are of other versions).
const RESERVED: &str = "\
    accept add ah all and arp auto-merge bridge cgroup chain comment comp constant continue counter cpu \
    create ct day dccp define delete describe device devices dnat drop dst dup dynamic ecn element elements \
    eq esp ether exists expires export exthdr fib flags flow flowtable flush frag fwd gc-interval ge get \
    goto gt handle hbh hook hour ibriport ibrname icmp icmpv6 igmp iif iifgroup iifname iiftype import \
    include index inet insert interval ip ip6 ipsec jhash jump le limit list log lt map mark masquerade meta \
    meter mh missing monitor ne netdev nftrace not notrack numgen obriport obrname offload oif oifgroup \
    oifname oiftype or osf pkttype policy position priority queue quota random redefine redirect reject \
    rename replace reset return rt rt0 rt2 rt4 rtclassid rule ruleset sctp secmark set size skgid skuid snat \
    socket srh symhash synproxy table tcp th time timeout tproxy type typeof udp udplite undefine update \
    vlan vmap xor xt destroy egress geneve gre gretap last string vxlan";

/// A name of a table, chain or set.
fn name(what: &str, text: &str) -> Result<String, Unwritable> {
    let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_./-".contains(&b);
    if !begins || !text.bytes().all(plain) {
        return Err(Unwritable::new(what, text, "has a name that nft cannot read", LOOK));
    }
    if RESERVED.split(' ').any(|word| word == text) {
        return Err(Unwritable::new(what, text, "has a word of nft's grammar as its name", LOOK));
    }
    Ok(text.to_owned())
}

fn family(text: &str) -> Result<&'static str, Unwritable> {
    const FAMILIES: &[&str] = &["ip", "ip6", "inet", "arp", "bridge", "netdev"];
    let found = FAMILIES.iter().find(|f| **f == text);
    found.copied().ok_or_else(|| Unwritable::new("the family", text, "is none that nft has", LOOK))
}

/// `inet filter`.
pub(crate) fn table(of: &str, table: &str) -> Result<Statement, Unwritable> {
    Ok(Statement(format!("{} {}", family(of)?, name("the table", table)?)))
}

/// `inet filter forward`.
pub(crate) fn chain(of: &str, table: &str, chain: &str) -> Result<Statement, Unwritable> {
    Ok(Statement(format!("{} {} {}", family(of)?, name("the table", table)?, name("the chain", chain)?)))
}

/// `inet filter allowed`.
pub(crate) fn set(of: &str, table: &str, set: &str) -> Result<Statement, Unwritable> {
    Ok(Statement(format!("{} {} {}", family(of)?, name("the table", table)?, name("the set", set)?)))
}

/// The chain of a rule.
pub(crate) fn chain_of(rule: &Rule) -> Result<Statement, Unwritable> {
    chain(&rule.family, &rule.table, &rule.chain)
}

/// The name of an interface between quotes, in which nft knows no escape; a `*` at the end would stand for many names, and a
/// backslash is read differently by its versions.
pub(crate) fn interface(name: &str) -> Result<Statement, Unwritable> {
    // 15 is IFNAMSIZ without the final zero.
    if name.is_empty()
        || name.len() > 15
        || name.contains(['"', '*', '\\'])
        || !super::is_copied_as_shown(name)
    {
        let look = "see `ip link`, and give the interface another name";
        return Err(Unwritable::new("the interface", name, "has a name that nft cannot read", look));
    }
    Ok(Statement(format!("\"{name}\"")))
}

/// Text of a single match or set key that this program made itself, such as a prefix.
pub(crate) fn network(address: std::net::IpAddr, prefix: u8) -> Statement {
    Statement(format!("{address}/{prefix}"))
}

/// A name of a helper of connection tracking or of an object for it: text that nft reads between quotes and bare.
pub(crate) fn word(text: &str) -> Result<Statement, Unwritable> {
    Ok(Statement(name("the helper", text)?))
}

/// Writes a table to a file that replaces the table when nft loads it.
pub(crate) fn save_table(table: &Result<Statement, Unwritable>, file: &str) -> Line {
    let (delete, list) = (nft!("delete table {}", table), nft!("list table {}", table));
    let file = super::word(file)?;
    Ok(Command(format!("(echo {} && {}) > {file} && nft -c -f {file}", quiet(delete?), list?.0)))
}

/// The statement of a command whose names are checked, as a word of `echo`.
fn quiet(command: Command) -> String {
    command.0.strip_prefix("nft ").unwrap_or_default().to_owned()
}

/// Returns the file that keeps a chain before one of its rules changes: one file for each rule, so that a second change does not
/// overwrite the undo of the first one.
fn kept(rule: &Rule) -> String {
    super::kept(&[&rule.family, &rule.table, &rule.chain, &rule.handle.to_string()], "nft")
}

/// Changes a rule after nft has written down its chain, and loads that again as the undo.
///
/// nft's own listing is what nft reads back; the text of the evidence is not (no `level` of a log, no elements of anonymous sets,
/// cut when it is long). The file begins with the flush, so that without the file the undo does nothing, and nft loads it as one
/// transaction.
fn changed(rule: &Rule, change: Line) -> (Vec<Line>, Vec<Line>) {
    let chain = chain_of(rule);
    let file = kept(rule);
    let keep = || -> Line {
        let (flush, list) = (nft!("flush chain {}", chain), nft!("list chain {}", chain));
        let file = super::word(&file)?;
        // nft lists strings that it does not read back, such as a prefix with a `$`: then nothing is changed.
        Ok(Command(format!("(echo {} && {}) > {file} && nft -c -f {file}", quiet(flush?), list?.0)))
    };
    let both = keep().and_then(|keep| Ok(keep.and(change?)));
    let back = chain.as_ref().map_err(Clone::clone).and_then(|_| super::sh!("nft -f {}", file));
    (vec![both], vec![back])
}

/// Deletes a rule; commands and undo.
pub(crate) fn delete(rule: &Rule) -> (Vec<Line>, Vec<Line>) {
    changed(rule, nft!("delete rule {} handle {}", chain_of(rule), rule.handle))
}

/// Replaces a rule by what the reader makes of nft's own text: `how` is a placeholder in capitals, which nft refuses as it is.
pub(crate) fn edit(rule: &Rule, how: &'static str) -> (Vec<Line>, Vec<Line>) {
    let (commands, undo) =
        changed(rule, nft!("replace rule {} handle {} {}", chain_of(rule), rule.handle, how));
    let show = nft!("-a list chain {}", chain_of(rule));
    (std::iter::once(show).chain(commands).collect(), undo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_bring_commands_of_their_own() {
        assert_eq!(chain("inet", "docker-user_1.x", "a/b").unwrap().0, "inet docker-user_1.x a/b");
        for name in [
            "a; flush ruleset",
            "a b",
            "",
            "-f",
            "a\nb",
            "\"a\"",
            "{",
            "$x",
            "`id`",
            "#",
            "drop",
            "ü",
            "*",
            "@a",
        ] {
            assert!(chain("ip", name, "c").is_err() && set("ip", "t", name).is_err(), "{name}");
        }
        assert!(chain("ip; flush ruleset", "t", "c").is_err());
    }

    #[test]
    fn an_interface_is_one_name_and_no_pattern() {
        assert_eq!(interface("a;b $(x)").unwrap().0, "\"a;b $(x)\"");
        for name in ["eth*", "a\"b", "a\\b", "", "a\u{1b}b", "0123456789abcdef"] {
            assert!(interface(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_statement_is_one_word_for_the_shell_unless_it_is_harmless() {
        let at = chain("ip", "t", "c");
        assert_eq!(nft!("-e -a list chain {}", at).unwrap().0, "nft -e -a list chain ip t c");
        assert_eq!(
            nft!("add chain {} { policy drop; }", at).unwrap().0,
            "nft 'add chain ip t c { policy drop; }'"
        );
        assert_eq!(
            nft!("add rule {} iifname {} drop", at, interface("it's")).unwrap().0,
            r#"nft 'add rule ip t c iifname "it'\''s" drop'"#
        );
        assert!(nft!("list chain {}", chain("ip", "a;b", "c")).unwrap_err().words().contains("a;b"));
    }
}
