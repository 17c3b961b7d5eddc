//! Why a client's session ends before the client ends it.

use std::io;

use crate::frame::Error;

/// The reason why a client's session ended early, in words for the log, and for the client if it should get them.
pub(super) struct Cut {
    pub(super) words: String,
    pub(super) tell: bool,
    /// It is in the log already, with what was measured until then.
    pub(super) logged: bool,
}

impl From<Error> for Cut {
    fn from(error: Error) -> Self {
        match error {
            // Told what is wrong with its message; the others cannot be reached, or are not worth waiting for.
            Error::Malformed(_) => Cut { words: error.to_string(), tell: true, logged: false },
            other => Cut { words: other.to_string(), tell: false, logged: false },
        }
    }
}

impl From<io::Error> for Cut {
    fn from(error: io::Error) -> Self {
        Error::Io(error).into()
    }
}

/// The client broke a rule, and hears which.
pub(super) fn refused(words: impl Into<String>) -> Cut {
    Cut { words: words.into(), tell: true, logged: false }
}
