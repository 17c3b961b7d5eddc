//! Programs that others have attached.

use crate::object::ProgramFd;
use crate::{Error, NO_TCX, Result, answer, info, opened};

/// A side of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Received packets.
    Ingress,
    /// Sent packets.
    Egress,
}

impl Direction {
    pub(crate) fn hook(self) -> libbpf_sys::bpf_attach_type {
        match self {
            Direction::Ingress => libbpf_sys::BPF_TCX_INGRESS,
            Direction::Egress => libbpf_sys::BPF_TCX_EGRESS,
        }
    }
}

/// Most programs at one hook (BPF_MPROG_MAX, include/linux/bpf_mprog.h).
const MOST_AT_A_HOOK: usize = 64;

/// Name of the program of that number, as `bpftool prog` shows it, at most 15 bytes; text from outside. Empty if it has none.
///
/// # Errors
/// [`Error::Missing`] without CAP_SYS_ADMIN, which the kernel demands for a look at others' programs.
pub fn program_name(id: u32) -> Result<String> {
    let program = ProgramFd::by_number(id)?;
    // SAFETY: the description of a program.
    let info: libbpf_sys::bpf_prog_info =
        unsafe { info(program.fd(), || format!("describe BPF program {id}"))? };
    let bytes: Vec<u8> = info.name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl ProgramFd {
    /// The program of that number.
    ///
    /// # Errors
    /// [`Error::Missing`] without CAP_SYS_ADMIN; if there is none.
    pub fn by_number(number: u32) -> Result<Self> {
        // SAFETY: a system call without pointers, whose result is a new descriptor.
        let fd = unsafe {
            opened(libbpf_sys::bpf_prog_get_fd_by_id(number), || format!("open BPF program {number}"))?
        };
        Ok(ProgramFd::from_fd(fd, &format!("program {number}")))
    }
}

/// Numbers of the programs attached by TCX to an interface of the calling thread's namespace, in the order in which they run.
/// None on kernels before 6.6, which have no TCX.
///
/// # Errors
/// [`Error::Missing`] without CAP_NET_ADMIN.
pub fn tcx_programs(interface: u32, direction: Direction) -> Result<Vec<u32>> {
    Ok(query(interface, direction)?.unwrap_or_default())
}

/// Whether this kernel has TCX at such interfaces: asked, not concluded from its version.
///
/// # Errors
/// [`Error::Missing`] without CAP_NET_ADMIN; if there is no such interface.
pub fn has_tcx(interface: u32) -> Result<bool> {
    Ok(query(interface, Direction::Ingress)?.is_some())
}

/// Asks for TCX before programs are loaded that only a kernel with TCX can load, so that the error names what is missing.
///
/// # Errors
/// [`Error::Missing`] on a kernel without TCX, or without CAP_NET_ADMIN; if there is no such interface.
pub fn require_tcx(interface: u32) -> Result<()> {
    if has_tcx(interface)? {
        return Ok(());
    }
    let what = format!("list the programs of interface {interface}");
    Err(Error::Missing { what, source: std::io::Error::from_raw_os_error(libc::EINVAL), hint: NO_TCX })
}

/// `None` where the kernel has no such hook.
fn query(interface: u32, direction: Direction) -> Result<Option<Vec<u32>>> {
    let hook = direction.hook();
    let mut ids = [0u32; MOST_AT_A_HOOK];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = MOST_AT_A_HOOK as u32;
    // SAFETY: options of the size given, with room for as many numbers as their count says.
    let result = unsafe {
        libbpf_sys::bpf_prog_query_opts(i32::try_from(interface).unwrap_or(i32::MAX), hook, &raw mut options)
    };
    // A kernel without the hook does not know its number; one without CONFIG_NET_XGRESS has an empty function.
    if result == -libc::EINVAL {
        return Ok(None);
    }
    answer(result, || format!("list the programs of interface {interface}"))?;
    // SAFETY: all parts of the union are the same number of 32 bits.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    Ok(Some(ids[..count.min(MOST_AT_A_HOOK)].to_vec()))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
    use std::process::Command;

    use super::*;

    pub(crate) fn is_root() -> bool {
        // SAFETY: a system call without pointers.
        let root = unsafe { libc::geteuid() } == 0;
        if !root {
            println!("SKIP: needs root");
        }
        root
    }

    /// A program that lets every packet go on: `r0 = -1; exit` (TC_ACT_UNSPEC).
    fn program(name: &std::ffi::CStr) -> OwnedFd {
        let instruction = |code: u8, imm: i32| libbpf_sys::bpf_insn { code, imm, ..Default::default() };
        // BPF_ALU64 | BPF_MOV | BPF_K and BPF_JMP | BPF_EXIT (include/uapi/linux/bpf.h).
        let code = [instruction(0xb7, -1), instruction(0x95, 0)];
        // SAFETY: texts that end with zero, and as many instructions as the length says.
        let fd = unsafe {
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
                name.as_ptr(),
                c"GPL".as_ptr(),
                code.as_ptr(),
                code.len() as libbpf_sys::size_t,
                std::ptr::null_mut(),
            )
        };
        assert!(fd >= 0, "{}", std::io::Error::from_raw_os_error(-fd));
        // SAFETY: a new descriptor.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn attach(program: RawFd, interface: u32, hook: libbpf_sys::bpf_attach_type) -> Option<OwnedFd> {
        // SAFETY: valid descriptors; no options.
        let fd = unsafe { libbpf_sys::bpf_link_create(program, interface as i32, hook, std::ptr::null()) };
        // SAFETY: a new descriptor.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    #[test]
    fn root_programs_of_others_are_found_in_their_order_with_their_names() {
        if !is_root() {
            return;
        }
        in_own_namespace(|| {
            let (first, second) = (program(c"first_one"), program(c"second_one"));
            let Some(_one) = attach(first.as_raw_fd(), 1, libbpf_sys::BPF_TCX_EGRESS) else {
                println!("SKIP: this kernel has no TCX (Linux 6.6)");
                return;
            };
            let _two = attach(second.as_raw_fd(), 1, libbpf_sys::BPF_TCX_EGRESS).unwrap();
            let ids = tcx_programs(1, Direction::Egress).unwrap();
            let names: Vec<String> = ids.iter().map(|id| program_name(*id).unwrap()).collect();
            assert_eq!(names, ["first_one", "second_one"]);
            assert_eq!(tcx_programs(1, Direction::Ingress).unwrap(), []);
            assert_eq!(tcx_programs(99, Direction::Ingress).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        });
        assert!(program_name(u32::MAX).is_err());
    }

    #[test]
    fn root_a_dropped_attachment_is_detached_even_if_a_child_still_holds_its_descriptor() {
        if !is_root() {
            return;
        }
        in_own_namespace(|| {
            if !has_tcx(1).unwrap() {
                println!("SKIP: this kernel has no TCX (Linux 6.6)");
                return;
            }
            let program = ProgramFd::from_fd(program(c"held"), "held");
            let attached = crate::attach_tcx(&program, 1, Direction::Ingress).unwrap();
            // As a child has it between fork and exec.
            let held = attached.link().try_clone_to_owned().unwrap();
            assert_eq!(tcx_programs(1, Direction::Ingress).unwrap().len(), 1);
            drop(attached);
            assert_eq!(tcx_programs(1, Direction::Ingress).unwrap(), []);
            drop(held);
        });
    }

    /// Runs it in a namespace of its thread alone, which ends with it.
    fn in_own_namespace(test: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(|| {
            // SAFETY: a system call without pointers, which changes this thread alone.
            let left = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(left, 0, "{}", std::io::Error::last_os_error());
            assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
            test();
        });
        thread.join().unwrap();
    }
}
