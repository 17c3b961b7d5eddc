//! A problem in a scenario, and the value that the user probably meant.

use std::fmt;

/// One mistake: `FILE:LINE: what is wrong; nearest valid value: "..."`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ScenarioError {
    /// The file, the built-in scenario's name, or the option of the command line that it came from.
    pub origin: String,
    /// Line in the file, from 1; absent where the mistake is not in a file.
    pub line: Option<usize>,
    /// The problem.
    pub what: String,
    /// The valid value nearest to what was written, where values can be listed.
    pub nearest: Option<String>,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.origin)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.what)?;
        match &self.nearest {
            Some(nearest) => write!(f, "; nearest valid value: \"{nearest}\""),
            None => Ok(()),
        }
    }
}

/// The one of `known` that takes the fewest edits to get from `written` (Damerau and Levenshtein: a swap of neighbours is one
/// edit), those that begin with it before all others; the first where several do. `None` only where nothing is known.
pub fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_lowercase();
    known.into_iter().min_by_key(|known| {
        let known = known.to_lowercase();
        (!known.starts_with(&written), strsim::damerau_levenshtein(&written, &known))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_one_line_in_the_form_of_compilers() {
        let mut error = ScenarioError {
            origin: "a.toml".into(),
            line: Some(3),
            what: "unknown key `pln`".into(),
            nearest: Some("plan".into()),
        };
        assert_eq!(error.to_string(), "a.toml:3: unknown key `pln`; nearest valid value: \"plan\"");
        error.line = None;
        error.nearest = None;
        assert_eq!(error.to_string(), "a.toml: unknown key `pln`");
    }

    #[test]
    fn nearest_counts_edits() {
        let known = ["direct", "routed", "nft-masquerade"];
        assert_eq!(nearest("nft-masqurade", known), Some("nft-masquerade"));
        assert_eq!(nearest("ROUTE", known), Some("routed"));
        assert_eq!(nearest("dierct", known), Some("direct"));
        assert_eq!(nearest("nft", known), Some("nft-masquerade"));
        assert_eq!(nearest("x", []), None);
    }
}
