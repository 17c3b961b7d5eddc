//! The sending threads, and how they are made to stop.
//!
//! Before and after a run of live frames the kernel waits until the old state of the XDP dispatcher and of the pages' pool is no
//! longer in use (RCU grace periods: 8 to 24 ms were seen). So a transfer is one call, and a signal ends it: the kernel checks
//! for one after each batch (net/bpf/test_run.c, `bpf_test_timer_continue`). Until the signal comes, a program that has sent all
//! makes no frames.
#![allow(unsafe_code, reason = "a signal to one thread of this process, and the handler that it needs")]

use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use weir_sys::sched::{pin_current_thread, thread_cpu_time};

use super::program::{self, Program};
use crate::Error;
use crate::shared::{self, WeirSender};
use crate::transfer::Stop;

/// Runs of one call: as many as the kernel takes. They are enough for two minutes of the highest rates seen; then another call
/// follows, after a gap that shows as lateness.
const RUNS: u32 = i32::MAX as u32;
/// How often it is looked whether a transfer is over: after a twentieth of its time, within these bounds.
const LOOK: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// The results of one thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) state: WeirSender,
    pub(super) cpu: Duration,
}

/// Whom to send the signal to: 0 before the thread has begun, -1 when it has ended.
#[derive(Debug, Default)]
struct Thread(AtomicI32);

const ENDED: i32 = -1;

/// Says that a thread has ended, also if it panicked, and wakes the one that waits for it.
struct Ending<'a>(&'a Thread, std::thread::Thread);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.0.store(ENDED, Ordering::Release);
        self.1.unpark();
    }
}

/// Runs each program on its core until all are through or `stop` is raised; what each did.
pub(super) fn run_all(programs: &[Program], cpus: &[usize], stop: &Stop) -> Result<Vec<Part>, Error> {
    allow_interruption()?;
    let threads: Vec<Thread> = programs.iter().map(|_| Thread::default()).collect();
    let supervisor = std::thread::current();
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        let mut failed = None;
        for (index, (program, cpu)) in programs.iter().zip(cpus).enumerate() {
            let (thread, supervisor) = (&threads[index], supervisor.clone());
            let sending = std::thread::Builder::new().name(format!("generator-{index}")).spawn_scoped(
                scope,
                move || {
                    let _ending = Ending(thread, supervisor);
                    // The others need not go on when one cannot.
                    run(program, *cpu, thread, stop).inspect_err(|_| stop.raise())
                },
            );
            match sending {
                Ok(handle) => running.push(handle),
                Err(e) => {
                    // Those that run already must not run until their time is over.
                    stop.raise();
                    failed = Some(Error::Sys(weir_sys::Error::new("start a sending thread", e)));
                    break;
                }
            }
        }
        supervise(&programs[..running.len()], &threads[..running.len()], stop);
        let parts = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        failed.map_or(parts, Err)
    })
}

/// Sends from one core until the program says that all is done, or someone wants it to stop.
fn run(program: &Program, cpu: usize, thread: &Thread, stop: &Stop) -> Result<Part, Error> {
    pin_current_thread(&[cpu])?;
    block_other_signals()?;
    let before = thread_cpu_time();
    // SAFETY: it has no arguments and cannot fail.
    thread.0.store(unsafe { libc::gettid() }, Ordering::Release);
    while !stop.raised() && !program::is_over(&program.state()) {
        program.run(RUNS)?;
    }
    let state = program.state();
    if program::count(&state, shared::WEIR_UNFIT) > 0 {
        return Err(Error::Unfit("the generator's page is too short for its headers".into()));
    }
    Ok(Part { state, cpu: thread_cpu_time().saturating_sub(before) })
}

/// Interrupts the threads whose program is through, or all if `stop` is raised, until every one has ended. One signal might come
/// before its thread is inside the kernel, so it is repeated.
fn supervise(programs: &[Program], threads: &[Thread], stop: &Stop) {
    let begun = Instant::now();
    loop {
        let mut ended = true;
        for (program, thread) in programs.iter().zip(threads) {
            let id = thread.0.load(Ordering::Acquire);
            ended &= id == ENDED;
            if id > 0 && (stop.raised() || program::is_over(&program.state())) {
                interrupt(id);
            }
        }
        if ended {
            return;
        }
        std::thread::park_timeout((begun.elapsed() / 20).clamp(LOOK.0, LOOK.1));
    }
}

/// The signal that ends a call. Beyond those that the C library and other programs use by habit.
fn signal() -> libc::c_int {
    libc::SIGRTMAX() - 3
}

/// Installs a handler that does nothing, so that the signal interrupts instead of killing.
fn allow_interruption() -> Result<(), Error> {
    extern "C" fn nothing(_: libc::c_int) {}
    static FIRST: Once = Once::new();
    let mut installed = Ok(());
    FIRST.call_once(|| {
        // SAFETY: a zeroed sigaction is a valid one; the handler does nothing, which is safe in any context.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal(), &raw const action, std::ptr::null_mut())
        };
        if result != 0 {
            installed = Err(last_error("install a signal handler"));
        }
    });
    installed
}

/// Leaves signals that are meant for the whole process to its other threads: they would interrupt the sender.
fn block_other_signals() -> Result<(), Error> {
    // SAFETY: the sets are local and filled before they are read; only this thread's mask changes.
    let result = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::sigdelset(&raw mut set, signal());
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut())
    };
    if result == 0 {
        return Ok(());
    }
    let source = std::io::Error::from_raw_os_error(result);
    Err(Error::Sys(weir_sys::Error::new("block signals in a sending thread", source)))
}

/// Sends the signal to a thread of this process. It may have ended in the meantime; then nothing happens.
fn interrupt(thread: i32) {
    // SAFETY: tgkill(2) with numbers; a thread that took over the number is one of this process too, and the handler does nothing.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal());
    }
}

fn last_error(what: &str) -> Error {
    Error::Sys(weir_sys::Error::new(what, std::io::Error::last_os_error()))
}
