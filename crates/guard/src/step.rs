//! The points at which a test may kill this process: after every step that leaves a trace on disk or in the kernel.

/// Variable with the number of the step, from 1, after which the process kills itself with SIGKILL.
#[cfg(debug_assertions)]
pub(crate) const STOP_AT: &str = "WEIR_GUARD_STOP_AT";
/// The same for the first guard process that is started.
#[cfg(debug_assertions)]
pub(crate) const STOP_GUARD_AT: &str = "WEIR_GUARD_STOP_GUARD_AT";

/// Called after each step. Builds without debug assertions do nothing here and read no variable.
pub(crate) fn passed() {
    #[cfg(debug_assertions)]
    {
        static PASSED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        kill_point(STOP_AT, &PASSED);
    }
}

/// Counts a step, and kills this process with SIGKILL if it is the one that the variable says, from 1: for tests of what is left then.
/// Builds without debug assertions do nothing here and read no variable.
#[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "as said"))]
pub fn kill_point(variable: &str, passed: &std::sync::atomic::AtomicU32) {
    #[cfg(debug_assertions)]
    {
        let now = passed.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        let stop = std::env::var(variable).ok().and_then(|n| n.parse::<u32>().ok());
        if stop == Some(now) {
            let own = rustix::process::getpid();
            // If it were refused, the test that asked for it would see the process live on.
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        }
    }
}
