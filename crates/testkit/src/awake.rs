//! Cores that do not sleep while a test measures.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

/// The device that takes the longest time in which a core must be awake.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// Keeps every core awake until it is dropped: idle cores poll instead of sleeping.
///
/// A core sleeps deeper the longer it expects to idle, and then takes longer to wake: some 50 us on a virtual machine. A path with
/// a delay is slower by that at every wake-up, and the test that added the delay cannot know by how much.
///
/// The kernel is asked (Documentation/power/pm_qos_interface.rst), and withdraws the request when the file is closed, also after
/// kill -9. Threads that spin at `SCHED_IDLE` keep cores awake too, but not beside other work: then an ordinary thread got its
/// core from one of them at the next tick, 2 ms late at the median.
#[derive(Debug)]
pub struct AwakeCores {
    /// The request lasts as long as this is open.
    _request: Option<File>,
}

impl AwakeCores {
    /// Asks for it. Without the privilege or the device, cores sleep as they do, and a line says so.
    pub fn start() -> Self {
        let request = request(LATENCY);
        if let Err(error) = &request {
            println!("cores may sleep: {LATENCY}: {error}");
        }
        AwakeCores { _request: request.ok() }
    }
}

fn request(path: &str) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    // Four bytes are a number of microseconds, any other length is text. With 0 every governor of cpuidle polls.
    file.write_all(&0_i32.to_ne_bytes())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn root_the_request_lasts_as_long_as_the_guard() {
        if weir_sys::privilege::test_needs_root() {
            return;
        }
        let now_us = || {
            let mut bytes = [0; 4];
            File::open(LATENCY).and_then(|mut file| file.read_exact(&mut bytes)).ok()?;
            Some(i32::from_ne_bytes(bytes))
        };
        // A test that measures has this request too, but in another process, and alone.
        let Some(before) = now_us().filter(|us| *us > 0) else {
            println!("SKIP: {LATENCY} cannot be read, or another program has asked for 0");
            return;
        };
        let awake = AwakeCores::start();
        assert_eq!(now_us(), Some(0));
        drop(awake);
        assert_eq!(now_us(), Some(before));
    }
}
