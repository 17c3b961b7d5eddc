//! Waiting that can be ended.

use std::time::Duration;

use weir_sys::Stop;
use weir_sys::clock::sleep_unless;

use crate::Error;

/// Waits, unless it is asked to stop.
pub(crate) fn wait(time: Duration, stop: &Stop) -> Result<(), Error> {
    sleep_unless(&|| stop.raised(), time);
    if stop.raised() { Err(Error::Stopped) } else { Ok(()) }
}
