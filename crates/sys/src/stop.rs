//! A flag that ends work early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Raised to end a trial or a transfer early; every clone is the same flag. Cheap to look at from a hot loop.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ask everyone to stop.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for a signal handler to raise.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// True once raised.
    #[inline]
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
