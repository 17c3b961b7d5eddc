//! Cores, and the CPU time that was used.

use std::num::NonZeroU64;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::error::{Context, Error, Result};
use crate::procfs::{ProcRoot, parse_cpu_list};

/// Pins the calling thread to the given cores. An empty list is refused: it would be no change that looks like one.
///
/// # Errors
/// A core that does not exist, is offline, or is outside this process's cpuset.
pub fn pin_current_thread(cpus: &[usize]) -> Result<()> {
    let what = || format!("pin a thread to cores {cpus:?}");
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Error::other(what(), format!("there is no core {cpu}")));
        }
        set.set(cpu);
    }
    sched_setaffinity(None, &set).context(what)
}

/// The cores on which the calling thread may run, ascending.
pub fn allowed_cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context(|| "read the thread's cores".into())?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// The cores that are online (`/sys/devices/system/cpu/online`), ascending.
pub fn online_cpus(root: &ProcRoot) -> Result<Vec<usize>> {
    let path = "sys/devices/system/cpu/online";
    let text = root.read(path)?;
    parse_cpu_list(text.trim())
        .ok_or_else(|| Error::other(format!("read /{path}"), format!("not a list of cores: {text}")))
}

/// How late the calling thread's timers may be so that the kernel can bundle them (prctl(2) PR_SET_TIMERSLACK); 50 us unless
/// changed, 1 ns at least.
pub fn set_timer_slack_ns(ns: u64) -> Result<()> {
    let slack = NonZeroU64::new(ns.max(1));
    rustix::thread::set_current_timer_slack(slack).context(|| format!("set the timer slack to {ns} ns"))
}

/// Makes the calling thread run as soon as it can (SCHED_FIFO at the lowest priority, which precedes every ordinary thread): for
/// threads that do little and must not be late. If that is not allowed, the thread gets a nice value of -15.
///
/// # Errors
/// If that is not allowed either: without CAP_SYS_NICE, also in a user namespace of one's own.
#[expect(unsafe_code, reason = "sched_setscheduler(2), which no safe crate offers")]
pub fn go_first() -> Result<()> {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is to a structure that lives through the call; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const first) }
        == 0
    {
        return Ok(());
    }
    // This sets the process with the number of the calling thread, which on Linux is that thread alone (setpriority(2)).
    rustix::process::setpriority_process(None, -15).context(|| "raise the priority of a thread".into())
}

/// CPU time (user and system) that the calling thread has used.
pub fn thread_cpu_time() -> Duration {
    to_duration(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time (user and system) that all threads of this process have used; children are not included.
pub fn process_cpu_time() -> Duration {
    to_duration(clock_gettime(ClockId::ProcessCPUTime))
}

/// CPU time by where it was spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuUse {
    /// In the program.
    pub user: Duration,
    /// In the kernel on its behalf.
    pub system: Duration,
}

impl CpuUse {
    /// Both together.
    pub fn total(self) -> Duration {
        self.user + self.system
    }
}

impl std::ops::AddAssign for CpuUse {
    fn add_assign(&mut self, other: Self) {
        self.user += other.user;
        self.system += other.system;
    }
}

/// Returns the CPU time that the calling thread has used (getrusage(2), RUSAGE_THREAD). The sum is exact. The kernel splits it
/// into two shares as the timer interrupts of the thread fell (kernel/sched/cputime.c, `cputime_adjust`).
#[allow(unsafe_code, reason = "getrusage(2), which rustix does not offer")]
pub fn thread_cpu_use() -> CpuUse {
    // SAFETY: rusage is plain numbers, for which all zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live struct of the kernel's layout. With a valid `who` and pointer the call cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    // Times that were used are never negative.
    let time =
        |t: libc::timeval| Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64);
    CpuUse { user: time(usage.ru_utime), system: time(usage.ru_stime) }
}

fn to_duration(t: Timespec) -> Duration {
    // CPU clocks are never negative and their nanoseconds are below 1e9.
    Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_shares_of_a_threads_time_are_its_time() {
        let (before, clock) = (thread_cpu_use().total(), thread_cpu_time());
        let mut x = 1u64;
        while thread_cpu_time() - clock < Duration::from_millis(30) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        let (used, by_clock) = (thread_cpu_use().total() - before, thread_cpu_time() - clock);
        // The same nanoseconds, each share cut to microseconds, and read one after the other: a millisecond is plenty.
        assert!(used >= Duration::from_millis(29) && used <= by_clock + Duration::from_millis(1), "{used:?}");
    }

    #[test]
    fn pins_only_its_own_thread() {
        let before = allowed_cpus().unwrap();
        let first = before[0];
        let pinned = std::thread::spawn(move || {
            pin_current_thread(&[first]).unwrap();
            allowed_cpus().unwrap()
        });
        assert_eq!(pinned.join().unwrap(), [first]);
        assert_eq!(allowed_cpus().unwrap(), before);
    }

    #[test]
    fn refuses_cores_that_do_not_exist() {
        assert!(pin_current_thread(&[]).is_err());
        assert!(pin_current_thread(&[CpuSet::MAX_CPU]).is_err());
        assert!(pin_current_thread(&[CpuSet::MAX_CPU - 1]).is_err());
    }

    #[test]
    fn cpu_time_grows_with_work_and_a_thread_is_part_of_its_process() {
        // In this order: what the thread uses between the two readings is the process's too.
        let process = process_cpu_time();
        let thread = thread_cpu_time();
        let mut x = 1u64;
        while thread_cpu_time() < thread + Duration::from_millis(5) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(process_cpu_time() >= process + Duration::from_millis(5));
    }
}
