//! The changes made to a host, and their undoing in reverse order.

/// Changes made so far.
#[derive(Debug, Default)]
pub struct Journal {}
