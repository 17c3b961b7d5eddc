//! Why a task failed, and a lock that a failed task does not keep.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Why a task failed on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct TaskError {
    /// True if something that weir needs is missing there (privilege, kernel feature, program).
    pub missing: bool,
    /// The error message, for people.
    pub message: String,
}

impl TaskError {
    /// A failure that is not for want of something.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        TaskError { missing: false, message: message.into() }
    }
}

impl From<weir_gateway::Error> for TaskError {
    fn from(error: weir_gateway::Error) -> Self {
        use weir_gateway::Error;
        let missing = matches!(error, Error::Missing { .. } | Error::Unsupported(_));
        TaskError { missing, message: error.to_string() }
    }
}

impl From<weir_load::Error> for TaskError {
    fn from(error: weir_load::Error) -> Self {
        TaskError::failed(error.to_string())
    }
}

impl From<weir_sys::Error> for TaskError {
    fn from(error: weir_sys::Error) -> Self {
        let missing = error.kind() == std::io::ErrorKind::PermissionDenied;
        TaskError { missing, message: error.to_string() }
    }
}

/// A panic in another task must not keep this one from cleaning up.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
