//! Commands and settings that several causes of this group propose.

use crate::causes::shell::word;
use crate::evidence::Namespace;
use crate::finding::{Fix, Setting};

/// A command as it is typed on the host to work in that namespace.
pub(super) fn inside(namespace: &Namespace, command: &str) -> String {
    crate::placed::way_in(namespace).map_or_else(|| command.to_owned(), |enter| format!("{enter} {command}"))
}

/// The number in `nginx (pid 312)`, as an argument; a placeholder if it is not known.
pub(super) fn pid(process: Option<&String>) -> String {
    let digits = process.and_then(|p| p.rsplit_once("(pid ")?.1.strip_suffix(')'));
    digits.filter(|d| d.parse::<u32>().is_ok()).unwrap_or("PID").to_owned()
}

/// What changing a setting is about.
pub(super) struct Change<'a> {
    /// A few words.
    pub(super) title: &'a str,
    /// Full sysctl name.
    pub(super) name: &'a str,
    /// Value now.
    pub(super) now: String,
    /// Value proposed.
    pub(super) proposed: String,
    /// What may go wrong.
    pub(super) risk: &'a str,
    /// The measured need.
    pub(super) why: String,
}

/// The fix that makes it; of the machine without a namespace.
pub(super) fn change(namespace: Option<&Namespace>, change: Change<'_>) -> Fix {
    let Change { title, name, now, proposed, risk, why } = change;
    let command = |value: &str| {
        let command = format!("sysctl -w {name}={}", word(value));
        namespace.map_or(command.clone(), |n| inside(n, &command))
    };
    Fix {
        title: title.into(),
        commands: vec![command(&proposed)],
        risk: risk.into(),
        undo: vec![command(&now)],
        tune: vec![Setting { name: name.into(), now, proposed, why }],
    }
}

/// A fix that only shows something.
pub(super) fn look(title: &str, commands: Vec<String>) -> Fix {
    Fix { title: title.into(), commands, risk: "none, it only shows".into(), ..Fix::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_by_its_number() {
        assert_eq!(pid(Some(&"web (pid 7)".into())), "7");
        assert_eq!(pid(Some(&"a (pid 1) (pid $(x))".into())), "PID");
        assert_eq!(pid(None), "PID");
    }

    #[test]
    fn a_command_goes_where_the_namespace_is() {
        let at =
            |name: &str, own| inside(&Namespace { name: name.into(), own, ..Namespace::default() }, "ss -lt");
        assert_eq!(at("host", true), "ss -lt");
        assert_eq!(at("netns blue", false), "ip netns exec blue ss -lt");
        assert_eq!(at("netns a;b", false), "ip netns exec 'a;b' ss -lt");
        assert_eq!(at("nginx (pid 312)", false), "nsenter -t 312 -n ss -lt");
        assert_eq!(at("x (pid 1;reboot)", false), "ss -lt");
        assert_eq!(
            at("docker web", false),
            "nsenter -t \"$(docker inspect -f '{{.State.Pid}}' web)\" -n ss -lt"
        );
    }
}
