//! Errors in prices or in a question.

/// A problem in prices or in a question; the message is meant for the user as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A price file that does not parse; `message` carries line and column.
    #[error("{origin}: {message}")]
    Syntax {
        /// File name or other origin of the text.
        origin: String,
        /// The TOML reader's message.
        message: String,
    },
    /// An option whose keys do not fit together.
    #[error("{origin}: option \"{option}\": {problem}")]
    Option {
        /// File name or other origin of the option.
        origin: String,
        /// Name of the option.
        option: String,
        /// The problem, and the valid form.
        problem: String,
    },
    /// A name that no option has.
    #[error("there is no price option \"{name}\"{}; known: {}", nearest(.name, .known), .known.join(", "))]
    Unknown {
        /// The name asked for.
        name: String,
        /// Names that exist.
        known: Vec<String>,
    },
    /// One name used twice where it must be unique.
    #[error("price option \"{name}\" is there twice; give each its own name")]
    Twice {
        /// The name.
        name: String,
    },
    /// Nothing to compare.
    #[error("no price option is given; name at least one")]
    NoOptions,
    /// Amounts that cannot be compared.
    #[error(
        "option \"{a}\" is in {a_currency} and \"{b}\" in {b_currency}; give both in one currency, weir knows no exchange rates"
    )]
    Currencies {
        /// First option.
        a: String,
        /// Its currency.
        a_currency: String,
        /// Second option.
        b: String,
        /// Its currency.
        b_currency: String,
    },
    /// A number out of range.
    #[error("{what} is {value}; {expected}")]
    Number {
        /// Which number.
        what: String,
        /// The given value.
        value: String,
        /// The valid values.
        expected: String,
    },
}

/// `, did you mean "x"?` when a known name is close: Jaro-Winkler above 0.8, the bound clap uses for its own hints.
fn nearest(name: &str, known: &[String]) -> String {
    known
        .iter()
        .map(|k| (strsim::jaro_winkler(name, k), k))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or_else(String::new, |(_, k)| format!(", did you mean \"{k}\"?"))
}
