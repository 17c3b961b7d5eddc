//! How a command ends when it does not end well.

/// The run failed.
pub(crate) const FAILED: u8 = 1;
/// Wrong usage or bad input.
pub(crate) const USAGE: u8 = 2;
/// A threshold was not met.
pub(crate) const NOT_MET: u8 = 3;
/// Something that weir needs is missing here.
pub(crate) const MISSING: u8 = 4;

/// Why a command did not succeed.
pub(crate) enum Failure {
    /// One message for people, and the exit code.
    Told {
        /// Exit code.
        code: u8,
        /// The message.
        message: String,
    },
    /// The command has already printed everything.
    Silent(u8),
}

pub(crate) type CommandResult = Result<(), Failure>;

impl Failure {
    pub(crate) fn new(code: u8, message: impl ToString) -> Self {
        Failure::Told { code, message: message.to_string() }
    }

    /// The failure of a part of weir, which knows whether the request is wrong, or something is missing here.
    pub(crate) fn of_part(error: impl ToString, is_usage: bool, is_missing: bool) -> Self {
        let code = match (is_usage, is_missing) {
            (true, _) => USAGE,
            (false, true) => MISSING,
            (false, false) => FAILED,
        };
        Failure::new(code, error)
    }

    /// For `map_err`.
    pub(crate) fn usage(error: impl ToString) -> Self {
        Failure::new(USAGE, error)
    }

    /// For `map_err`.
    pub(crate) fn failed(error: impl ToString) -> Self {
        Failure::new(FAILED, error)
    }
}

impl From<weir_bench::Error> for Failure {
    fn from(error: weir_bench::Error) -> Self {
        Failure::of_part(&error, matches!(error, weir_bench::Error::Unfit(_)), error.is_missing())
    }
}

impl From<weir_lab::Error> for Failure {
    fn from(error: weir_lab::Error) -> Self {
        let is_usage = matches!(error, weir_lab::Error::Option(_) | weir_lab::Error::Unknown(_));
        Failure::of_part(&error, is_usage, matches!(error, weir_lab::Error::Privilege(_)))
    }
}
