//! Commands and settings that several causes of this group propose.

use crate::finding::{Fix, Setting};

/// The number in `nginx (pid 312)`, as an argument; a placeholder if it is not known.
pub(super) fn pid(process: Option<&String>) -> String {
    let digits = process.and_then(|p| p.rsplit_once("(pid ")?.1.strip_suffix(')'));
    digits.filter(|d| d.parse::<u32>().is_ok()).unwrap_or("PID").to_owned()
}

/// A change of a setting.
pub(super) struct Change<'a> {
    /// A few words.
    pub(super) title: &'a str,
    /// Full sysctl name.
    pub(super) name: &'a str,
    /// Value now.
    pub(super) now: String,
    /// Value proposed.
    pub(super) proposed: String,
    /// The risk of the change.
    pub(super) risk: &'a str,
    /// The measured need.
    pub(super) why: String,
}

/// The fix that makes it.
pub(super) fn change(change: Change<'_>) -> Fix {
    let Change { title, name, now, proposed, risk, why } = change;
    Fix::set(title, risk, vec![Setting::new(name, now, proposed, why)])
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
}
