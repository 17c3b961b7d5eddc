//! Runs a program whose monotonic clock is wrong, for the test in `tests/ssh.rs`: `slow_clock PERCENT PROGRAM [ARGUMENT...]`.
//!
//! The program's CLOCK_MONOTONIC runs at PERCENT of the true speed from its start on; waits of the kernel take their true time.
//! Programs read this clock from the vDSO (vdso(7)), so a library that is loaded first would not change it for all of them. This
//! one overwrites the code that the kernel mapped into the new process, through /proc/PID/mem. On x86-64 only.

#[cfg(target_arch = "x86_64")]
fn main() {
    slow::run();
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    panic!("the code that replaces the clock is of x86-64");
}

#[cfg(target_arch = "x86_64")]
mod slow {
    use std::fs::{File, OpenOptions, read_to_string};
    use std::os::unix::fs::FileExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, exit};
    use std::thread::yield_now;

    use object::{Object, ObjectSymbol};
    use rustix::time::{ClockId, clock_gettime};

    /// Its place takes the new code: neither Rust's library nor weir calls it.
    const UNUSED: &str = "__vdso_gettimeofday";

    pub(super) fn run() {
        let mut args = std::env::args_os().skip(1);
        let percent = args.next().and_then(|a| a.to_str()?.parse().ok()).expect("PERCENT");
        let program = args.next().expect("PROGRAM");
        let mut child = Command::new(program).args(args).spawn().expect("the program starts");
        patch(&mut child, percent).expect("the clock is patched");
        let status = child.wait().expect("the program ends");
        exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
    }

    /// First the new code, then the jump to it: the program may read its clock at any time.
    fn patch(child: &mut Child, percent: u32) -> std::io::Result<()> {
        let (clock, unused) = offsets()?;
        let pid = child.id();
        // The kernel maps the vDSO into the new image last.
        let base = loop {
            match vdso(&pid.to_string()) {
                Ok((base, _)) => break base,
                Err(_) if child.try_wait()?.is_none() => yield_now(),
                Err(e) => return Err(e),
            }
        };
        let memory = OpenOptions::new().write(true).open(format!("/proc/{pid}/mem"))?;
        memory.write_all_at(&slow_clock(percent), base + unused)?;
        let mut jump = vec![0xe9];
        jump.extend((unused as i32 - (clock as i32 + 5)).to_le_bytes());
        memory.write_all_at(&jump, base + clock)
    }

    /// Where both functions are in the vDSO, which is the same one in every process.
    fn offsets() -> std::io::Result<(u64, u64)> {
        let (base, length) = vdso("self")?;
        let mut image = vec![0; length];
        File::open("/proc/self/mem")?.read_exact_at(&mut image, base)?;
        let file = object::File::parse(&*image).map_err(std::io::Error::other)?;
        let of = |name| file.dynamic_symbols().find(|s| s.name() == Ok(name)).map(|s| s.address());
        of("__vdso_clock_gettime")
            .zip(of(UNUSED))
            .ok_or_else(|| std::io::Error::other("the vDSO has other functions"))
    }

    /// Start and length of a process's vDSO.
    fn vdso(pid: &str) -> std::io::Result<(u64, usize)> {
        let maps = read_to_string(format!("/proc/{pid}/maps"))?;
        let range =
            maps.lines().find(|l| l.ends_with("[vdso]")).and_then(|l| l.split(' ').next()?.split_once('-'));
        let number = |hex| u64::from_str_radix(hex, 16).map_err(std::io::Error::other);
        let (start, end) = range.ok_or_else(|| std::io::Error::other("no vDSO"))?;
        Ok((number(start)?, (number(end)? - number(start)?) as usize))
    }

    /// `clock_gettime(clock, time)`: the system call, and for CLOCK_MONOTONIC `start + (now - start) * percent / 100`.
    fn slow_clock(percent: u32) -> Vec<u8> {
        let now = clock_gettime(ClockId::Monotonic);
        let start = now.tv_sec * 1_000_000_000 + now.tv_nsec;
        let mut code = vec![
            0xb8, 0xe4, 0x00, 0x00, 0x00, // mov eax, 228 (clock_gettime)
            0x0f, 0x05, // syscall
            0x85, 0xc0, // test eax, eax
            0x75, 0x4a, // jnz end
            0x83, 0xff, 0x01, // cmp edi, 1 (CLOCK_MONOTONIC)
            0x75, 0x45, // jne end
            0x48, 0x69, 0x06, 0x00, 0xca, 0x9a, 0x3b, // imul rax, [rsi], 1000000000
            0x48, 0x03, 0x46, 0x08, // add rax, [rsi + 8]
            0x48, 0xb9, // mov rcx, start
        ];
        code.extend(start.to_le_bytes());
        code.extend([0x48, 0x29, 0xc8]); // sub rax, rcx
        code.extend([0x48, 0x69, 0xc0]); // imul rax, rax, percent
        code.extend(percent.to_le_bytes());
        code.extend([
            0x31, 0xd2, // xor edx, edx
            0x41, 0xb8, 0x64, 0x00, 0x00, 0x00, // mov r8d, 100
            0x49, 0xf7, 0xf0, // div r8
            0x48, 0x01, 0xc8, // add rax, rcx
            0x31, 0xd2, // xor edx, edx
            0x41, 0xb8, 0x00, 0xca, 0x9a, 0x3b, // mov r8d, 1000000000
            0x49, 0xf7, 0xf0, // div r8
            0x48, 0x89, 0x06, // mov [rsi], rax
            0x48, 0x89, 0x56, 0x08, // mov [rsi + 8], rdx
            0x31, 0xc0, // xor eax, eax
            0xc3, // end: ret
        ]);
        let jump_to_end = |at: usize| (code.len() - 1 - (at + 1)) as u8;
        let (first, second) = (jump_to_end(10), jump_to_end(15));
        (code[10], code[15]) = (first, second);
        code
    }
}
