//! Commands of `weir fastpath` in the namespace of a finding.

use crate::command::{Line, Unwritable, Words, sh};
use crate::evidence::Namespace;

/// How `--netns` names a namespace; nothing for the one that weir is in.
fn netns(namespace: &Namespace) -> Result<Option<String>, Unwritable> {
    let name = namespace.name.as_str();
    let pid = || name.rsplit_once("(pid ")?.1.strip_suffix(')')?.parse::<u32>().ok();
    match name.strip_prefix("netns ") {
        _ if namespace.own => Ok(None),
        Some(name) => Ok(Some(format!("--netns={name}"))),
        None => match pid() {
            Some(pid) => Ok(Some(format!("--netns={pid}"))),
            None => {
                let look = "enter it with nsenter, and run `weir fastpath status` there";
                Err(Unwritable::new("the namespace", name, "has no name that --netns knows", look))
            }
        },
    }
}

/// `weir fastpath` with these words.
pub(super) fn weir(namespace: &Namespace, words: &str) -> Line {
    let netns = netns(namespace)?;
    let words = words.split(' ').chain(netns.as_deref()).collect();
    sh!("weir fastpath {}", Words(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_is_named_where_it_is_another_one() {
        let line = |name: &str, own| {
            let namespace = Namespace { name: name.into(), own, ..Namespace::default() };
            weir(&namespace, "apply --connections 100").map(crate::command::Command::into_line)
        };
        assert_eq!(line("host", true).unwrap(), "weir fastpath apply --connections 100");
        assert_eq!(line("netns a b", false).unwrap(), "weir fastpath apply --connections 100 '--netns=a b'");
        assert_eq!(line("sh (pid 31)", false).unwrap(), "weir fastpath apply --connections 100 --netns=31");
        assert!(line("docker web", false).is_err(), "an engine's container has no such name");
    }
}
