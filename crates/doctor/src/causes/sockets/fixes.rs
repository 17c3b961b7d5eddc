//! Words of commands that several causes of this group propose.

/// The number in `nginx (pid 312)`, as an argument; a placeholder if it is not known.
pub(super) fn pid(process: Option<&String>) -> String {
    let digits = process.and_then(|p| p.rsplit_once("(pid ")?.1.strip_suffix(')'));
    digits.filter(|d| d.parse::<u32>().is_ok()).unwrap_or("PID").to_owned()
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
