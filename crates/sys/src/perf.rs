//! Call stacks of the kernel, sampled by its clock: perf_event_open(2) with `PERF_COUNT_SW_CPU_CLOCK`.
//!
//! The clock is a timer of the kernel, so no hardware counter is needed and virtual machines have it too. A timer that is
//! due while interrupts are off fires when they are switched on again: time in such stretches is booked where they end.
//! On a core that idles without its tick the kernel pauses the clock until the next tick (it allows so many samples between
//! two): idle cores show fewer samples than time has passed, busy ones do not.
#![allow(
    unsafe_code,
    reason = "perf_event_open(2), ioctl(2) and a ring buffer that is shared with the kernel"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::error::{Context, Error, Result};
use crate::procfs::ProcRoot;
use crate::sched::online_cpus;

// include/uapi/linux/perf_event.h
const TYPE_SOFTWARE: u32 = 1;
const COUNT_SW_CPU_CLOCK: u64 = 0;
const SAMPLE_IP: u64 = 1 << 0;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_CPU: u64 = 1 << 7;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;
const FLAG_FD_CLOEXEC: u64 = 1 << 3;
/// Bits of the attribute's bit field: `disabled`, `exclude_user`, `exclude_hv`, `freq`, `watermark`,
/// `exclude_callchain_user`.
const FLAGS: u64 = 1 | 1 << 4 | 1 << 6 | 1 << 10 | 1 << 14 | 1 << 22;
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
/// Entries of a call chain from here on are marks (`PERF_CONTEXT_KERNEL`, ...), not addresses.
const CONTEXT_MAX: u64 = -4095i64 as u64;
/// Offsets in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
/// Bytes of `struct perf_event_header`: type, misc, size.
const HEADER: usize = 8;

/// Data pages of each core's ring, a power of two: with one page for its head this is what `kernel.perf_event_mlock_kb`
/// (516 by default) grants without CAP_IPC_LOCK, and half a second at 1 kHz of the longest stacks.
const PAGES: usize = 128;

/// `struct perf_event_attr` as of its first version (64 bytes), which every kernel takes.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_frequency: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    breakpoint_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64, "PERF_ATTR_SIZE_VER0");

/// Activity of a core when the clock ticked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Process; 0 also for those outside this process namespace, and for the idle task.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Core.
    pub cpu: u32,
    /// Instruction address in the kernel.
    pub ip: u64,
    /// How it came there: `ip` first, then the addresses of return, innermost first. Empty where the stack could not be
    /// unwound.
    pub chain: &'a [u64],
}

/// A sampling clock on every core.
#[derive(Debug)]
pub struct CpuClock {
    rings: Vec<Ring>,
    lost: u64,
    record: Vec<u8>,
    chain: Vec<u64>,
}

impl CpuClock {
    /// Prepares a clock of `hz` ticks a second on each online core; it does not run yet.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] where this process may not look at the whole machine, and
    /// [`io::ErrorKind::Unsupported`] where the kernel has no perf events; the message says what would help.
    pub fn open(hz: u32) -> Result<Self> {
        let root = ProcRoot::new("/");
        let rings =
            online_cpus(&root)?.into_iter().map(|cpu| Ring::open(cpu, hz, &root)).collect::<Result<_>>()?;
        Ok(CpuClock { rings, lost: 0, record: Vec::new(), chain: Vec::new() })
    }

    /// Lets it tick.
    pub fn start(&self) -> Result<()> {
        self.rings.iter().try_for_each(|ring| ring.control(IOC_ENABLE, "start"))
    }

    /// Stops it; what was sampled stays to be read.
    pub fn stop(&self) -> Result<()> {
        self.rings.iter().try_for_each(|ring| ring.control(IOC_DISABLE, "stop"))
    }

    /// Waits until a ring is a quarter full, at most that long.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let mut fds: Vec<PollFd<'_>> =
            self.rings.iter().map(|r| PollFd::new(&r.event, PollFlags::IN)).collect();
        let timeout =
            Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::new("wait for samples", errno)),
        }
    }

    /// Hands over, and forgets, what was sampled so far.
    pub fn drain(&mut self, mut each: impl FnMut(Sample<'_>)) {
        for ring in &self.rings {
            let (mut tail, head) = ring.unread();
            while tail < head {
                let size = ring.record(tail, &mut self.record);
                match u32_at(&self.record, 0) {
                    Some(RECORD_SAMPLE) => {
                        if let Some(sample) = sample(&self.record, &mut self.chain) {
                            each(sample);
                        }
                    }
                    // struct { header; u64 id; u64 lost; }
                    Some(RECORD_LOST) => self.lost += u64_at(&self.record, HEADER + 8).unwrap_or(0),
                    _ => {}
                }
                tail += size;
            }
            ring.release(head);
        }
    }

    /// Samples that the kernel took and could not keep, because they were not read in time.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

/// A sample out of its record: ip, pid and tid, cpu, number of addresses, addresses.
fn sample<'a>(record: &[u8], chain: &'a mut Vec<u64>) -> Option<Sample<'a>> {
    let ip = u64_at(record, HEADER)?;
    let (pid, tid) = (u32_at(record, HEADER + 8)?, u32_at(record, HEADER + 12)?);
    let cpu = u32_at(record, HEADER + 16)?;
    let count = usize::try_from(u64_at(record, HEADER + 24)?).ok()?;
    let addresses = record.get(HEADER + 32..)?.chunks_exact(8).take(count);
    chain.clear();
    chain.extend(addresses.enumerate().filter_map(|(i, _)| u64_at(record, HEADER + 32 + 8 * i)));
    chain.retain(|address| *address < CONTEXT_MAX);
    Some(Sample { pid, tid, cpu, ip, chain })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// One core's event with the memory that the kernel writes its samples to.
#[derive(Debug)]
struct Ring {
    event: OwnedFd,
    cpu: usize,
    memory: NonNull<u8>,
    page: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to the thread that made it.
unsafe impl Send for Ring {}

impl Ring {
    fn open(cpu: usize, hz: u32, root: &ProcRoot) -> Result<Self> {
        let what = || format!("sample core {cpu} at {hz} Hz");
        let page = rustix::param::page_size();
        let attributes = Attributes {
            kind: TYPE_SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: COUNT_SW_CPU_CLOCK,
            sample_frequency: u64::from(hz),
            sample_type: SAMPLE_IP | SAMPLE_TID | SAMPLE_CPU | SAMPLE_CALLCHAIN,
            read_format: 0,
            flags: FLAGS,
            wakeup_watermark: (PAGES * page / 4) as u32,
            breakpoint_type: 0,
            config1: 0,
        };
        let (every_process, no_group) = (-1, -1);
        // SAFETY: the attributes live for the call and state their size; the kernel only reads them.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                every_process,
                cpu as libc::c_int,
                no_group,
                FLAG_FD_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(Error::new(what(), refusal(io::Error::last_os_error(), hz, root)));
        }
        // SAFETY: the kernel has just made this descriptor, and it has no other owner.
        let event = unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (1 + PAGES) * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(Error::new(format!("map the samples of core {cpu}"), io::Error::last_os_error()));
        }
        let memory = NonNull::new(memory.cast())
            .ok_or_else(|| Error::other(what(), "the kernel mapped its samples at address zero"))?;
        Ok(Ring { event, cpu, memory, page })
    }

    fn control(&self, request: libc::c_ulong, verb: &str) -> Result<()> {
        // SAFETY: both requests take no memory of ours.
        let result = unsafe { libc::ioctl(self.event.as_fd().as_raw_fd(), request, 0) };
        let result = if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        result.context(|| format!("{verb} sampling on core {}", self.cpu))
    }

    /// One of the two positions in the ring, which kernel and reader tell each other.
    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the first page is mapped as long as `self` lives; the field is an aligned u64 that both sides access
        // as a whole.
        unsafe { &*self.memory.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// First byte that was not read, and end of what the kernel wrote. Both only grow.
    fn unread(&self) -> (u64, u64) {
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        (self.position(DATA_TAIL).load(Ordering::Relaxed), head)
    }

    /// Gives everything before `head` back to the kernel.
    fn release(&self, head: u64) {
        // The kernel may overwrite what was read only after it was read (perf_event_open(2): a full barrier).
        fence(Ordering::SeqCst);
        self.position(DATA_TAIL).store(head, Ordering::Release);
    }

    /// Copies the record at `position` and returns its size, at least that of a header.
    fn record(&self, position: u64, into: &mut Vec<u8>) -> u64 {
        into.clear();
        self.copy(position, HEADER, into);
        let size = usize::from(u16::from_ne_bytes([into[6], into[7]])).max(HEADER);
        self.copy(position + HEADER as u64, size - HEADER, into);
        size as u64
    }

    fn copy(&self, position: u64, length: usize, into: &mut Vec<u8>) {
        let data = PAGES * self.page;
        // The ring's length is a power of two, and positions count from its first byte ever.
        let from = (position % data as u64) as usize;
        let until_end = length.min(data - from);
        // SAFETY: `from + until_end` and what is left of `length` (below 64 KiB) lie within the data pages, which follow
        // the first page. The kernel does not write there before the position is released.
        unsafe {
            let start = self.memory.as_ptr().add(self.page);
            into.extend_from_slice(std::slice::from_raw_parts(start.add(from), until_end));
            into.extend_from_slice(std::slice::from_raw_parts(start, length - until_end));
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), (1 + PAGES) * self.page) };
    }
}

/// Why the kernel refused, with what would help.
fn refusal(error: io::Error, hz: u32, root: &ProcRoot) -> io::Error {
    let setting = |name: &str| root.read_optional(&format!("proc/sys/kernel/{name}"));
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let level = setting("perf_event_paranoid").unwrap_or_else(|| "unknown".into());
            let help = format!(
                "{error}: looking at the whole kernel needs root, CAP_PERFMON or kernel.perf_event_paranoid of at most 0 \
                 (it is {level}); a container's seccomp filter may forbid it to root as well"
            );
            io::Error::new(io::ErrorKind::PermissionDenied, help)
        }
        Some(libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP) => {
            let help = format!("{error}: this kernel has no perf events (CONFIG_PERF_EVENTS)");
            io::Error::new(io::ErrorKind::Unsupported, help)
        }
        Some(libc::EINVAL) => match setting("perf_event_max_sample_rate") {
            Some(most) if most.parse().is_ok_and(|most: u32| most < hz) => io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{error}: kernel.perf_event_max_sample_rate allows {most} Hz only"),
            ),
            _ => error,
        },
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;
    use crate::kallsyms::Symbols;
    use crate::privilege::test_needs_root;

    fn refused(errno: i32, files: &[(&str, &str)]) -> (io::ErrorKind, String) {
        let dir = std::env::temp_dir().join(format!("weir-perf-{}-{errno}", std::process::id()));
        for (name, text) in files {
            std::fs::create_dir_all(dir.join("proc/sys/kernel")).unwrap();
            std::fs::write(dir.join("proc/sys/kernel").join(name), text).unwrap();
        }
        let error = refusal(io::Error::from_raw_os_error(errno), 997, &ProcRoot::new(&dir));
        if !files.is_empty() {
            std::fs::remove_dir_all(dir).unwrap();
        }
        (error.kind(), error.to_string())
    }

    #[test]
    fn a_refusal_names_what_would_help() {
        let (kind, words) = refused(libc::EACCES, &[("perf_event_paranoid", "4\n")]);
        assert_eq!(kind, io::ErrorKind::PermissionDenied);
        assert!(words.contains("CAP_PERFMON") && words.contains("(it is 4)"), "{words}");
        let (kind, words) = refused(libc::ENOENT, &[]);
        assert_eq!(kind, io::ErrorKind::Unsupported);
        assert!(words.contains("CONFIG_PERF_EVENTS"), "{words}");
        let (kind, words) = refused(libc::EINVAL, &[("perf_event_max_sample_rate", "500\n")]);
        assert_eq!(kind, io::ErrorKind::Unsupported);
        assert!(words.contains("allows 500 Hz"), "{words}");
    }

    /// Laid out as perf_event_open(2) describes it: ip, pid, tid, cpu, reserved, number, addresses.
    #[test]
    fn a_record_is_read_field_by_field_and_marks_are_left_out() {
        let mut record = vec![0u8; HEADER];
        record.extend(0xffff_ffff_8100_1234_u64.to_ne_bytes());
        record.extend([7u32, 8, 3, 0].iter().flat_map(|word| word.to_ne_bytes()));
        let kernel = (-128i64) as u64;
        let user = (-512i64) as u64;
        let entries = [4u64, kernel, 0xffff_ffff_8100_1234, 0xffff_ffff_8100_5678, user];
        record.extend(entries.iter().flat_map(|entry| entry.to_ne_bytes()));
        let mut chain = Vec::new();
        let found = sample(&record, &mut chain).unwrap();
        assert_eq!((found.pid, found.tid, found.cpu, found.ip), (7, 8, 3, 0xffff_ffff_8100_1234));
        assert_eq!(found.chain, [0xffff_ffff_8100_1234, 0xffff_ffff_8100_5678]);
        // Cut off anywhere, it is no sample or a shorter chain, never a panic.
        for length in 0..record.len() {
            if let Some(cut) = sample(&record[..length], &mut chain) {
                assert!(cut.chain.len() <= 2);
            }
        }
    }

    /// A thread that does nothing but ask the kernel for random bytes.
    struct Busy {
        enough: Arc<AtomicBool>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Busy {
        fn start() -> Self {
            let enough = Arc::new(AtomicBool::new(false));
            let seen = enough.clone();
            let thread = std::thread::spawn(move || {
                let mut bytes = vec![0u8; 1 << 16];
                let mut file = std::fs::File::open("/dev/urandom").unwrap();
                while !seen.load(Ordering::Relaxed) {
                    file.read_exact(&mut bytes).unwrap();
                }
            });
            Busy { enough, thread: Some(thread) }
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            self.enough.store(true, Ordering::Relaxed);
            self.thread.take().unwrap().join().unwrap();
        }
    }

    #[test]
    fn finds_what_keeps_the_kernel_busy_as_root() {
        if test_needs_root() {
            return;
        }
        let symbols = Symbols::read(&ProcRoot::new("/")).unwrap();
        let mut clock = CpuClock::open(997).unwrap();
        let _busy = Busy::start();
        let (mut own, mut within, mut whole) = (0u64, 0u64, 0u64);
        clock.start().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while own < 200 && Instant::now() < deadline {
            clock.wait(Duration::from_millis(20)).unwrap();
            clock.drain(|sample| {
                if sample.pid != std::process::id() {
                    return;
                }
                assert_eq!(sample.chain.first(), Some(&sample.ip));
                let names = sample.chain.iter().filter_map(|a| Some(symbols.name(symbols.find(*a)?)));
                let names: Vec<&str> = names.collect();
                own += 1;
                within += u64::from(names.contains(&"get_random_bytes_user"));
                // Down to where the system call came in: entry_SYSCALL_64, el0t_64_sync.
                let root = names.last().copied().unwrap_or_default();
                whole += u64::from(root.contains("entry") || root.contains("el0"));
            });
        }
        clock.stop().unwrap();
        assert!(own >= 200, "{own} samples in a minute of a busy kernel");
        assert!(within * 2 > own, "{within} of {own} in the generator of random bytes");
        assert!(whole * 2 > own, "{whole} of {own} stacks are whole");
        assert_eq!(clock.lost(), 0);
    }

    /// More ticks than the rings hold, without a reader: the rest is counted as lost, and the kept samples are whole.
    #[test]
    fn what_is_not_read_in_time_is_counted_as_root() {
        if test_needs_root() {
            return;
        }
        let mut clock = CpuClock::open(20_011).unwrap();
        let _busy = Busy::start();
        clock.start().unwrap();
        let begun = Instant::now();
        let mut kept = 0u64;
        while clock.lost() == 0 && begun.elapsed() < Duration::from_secs(60) {
            // Half a megabyte at 100 bytes and 20 kHz. The next sample that is kept carries the number of lost ones.
            std::thread::sleep(Duration::from_millis(500));
            clock.drain(|sample| {
                assert!(!sample.chain.is_empty());
                kept += 1;
            });
        }
        clock.stop().unwrap();
        assert!(kept > 0);
        assert!(clock.lost() > 0, "{kept} kept, none lost in {:?}", begun.elapsed());
    }
}
