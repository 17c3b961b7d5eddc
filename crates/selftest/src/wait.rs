//! Waiting that can be ended.

use std::time::{Duration, Instant};

use weir_sys::Stop;

use crate::Error;

/// How often a wait looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// Waits, unless it is asked to stop.
pub(crate) fn wait(time: Duration, stop: &Stop) -> Result<(), Error> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if stop.raised() {
            return Err(Error::Stopped);
        }
        std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}
