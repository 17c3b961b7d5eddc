//! Attaching programs to interfaces and tracepoints, for as long as the returned value lives.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::attached::Direction;
use crate::object::ProgramFd;
use crate::{Error, Result, answer, opened};

/// The place in which an XDP program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the stack, on any interface, more slowly.
    Generic,
}

/// An attachment. Dropping it detaches, and so does the end of the process (it is a BPF link), unless it was pinned.
#[derive(Debug)]
pub struct Attached {
    link: OwnedFd,
    on_drop: OnDrop,
}

/// The end of a dropped [`Attached`], beyond closing its descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OnDrop {
    /// Detach: a child between fork and exec, or a reader of all links, may hold the link longer than its owner.
    Detach,
    /// Only close: it is pinned, or of a type that ends with its last descriptor alone (tracing).
    Close,
}

impl Attached {
    pub(crate) fn from_fd(link: OwnedFd, on_drop: OnDrop) -> Self {
        Attached { link, on_drop }
    }

    pub(crate) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    pub(crate) fn close_on_drop(&mut self) {
        self.on_drop = OnDrop::Close;
    }

    /// Detaches it at once, even if another process holds it (Linux 5.9). It then stays detached.
    ///
    /// # Errors
    /// If the kernel refuses; that its interface is gone already is no error.
    pub fn detach(mut self) -> Result<()> {
        self.close_on_drop();
        self.detach_link()
    }

    fn detach_link(&self) -> Result<()> {
        // SAFETY: a valid descriptor.
        let result = unsafe { libbpf_sys::bpf_link_detach(self.link.as_raw_fd()) };
        if result == -libc::ENOLINK {
            return Ok(());
        }
        answer(result, || "detach a program".into()).map(drop)
    }

    /// Puts another program of the same type into the place of the one that is attached: every packet meets one or the other.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn replace(&self, program: &ProgramFd) -> Result<()> {
        // SAFETY: valid descriptors; no options.
        let result = unsafe {
            libbpf_sys::bpf_link_update(self.link.as_raw_fd(), program.fd().as_raw_fd(), std::ptr::null())
        };
        answer(result, || format!("replace the attached program by {}", program.name())).map(drop)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.on_drop == OnDrop::Detach {
            // A refusal leaves the kernel's own end: the last descriptor closes.
            let _ = self.detach_link();
        }
    }
}

/// Whether there are attachments, all of them where they were made: an interface that is gone took its program along.
///
/// # Errors
/// If the kernel does not tell.
pub fn are_attached(attached: &[Attached]) -> Result<bool> {
    for attached in attached {
        if attached.describe()?.interface == 0 {
            return Ok(false);
        }
    }
    Ok(!attached.is_empty())
}

/// Attaches an XDP program to the interface of that index in the calling thread's namespace.
///
/// # Errors
/// [`Error::Missing`] where the driver has no XDP (`Native`), the kernel no links (before 5.9) or the privilege is missing.
pub fn attach_xdp(program: &ProgramFd, interface: u32, mode: XdpMode) -> Result<Attached> {
    let flags = match mode {
        XdpMode::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
        XdpMode::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
    };
    link(program, interface, libbpf_sys::BPF_XDP, flags)
}

/// Attaches a tc program to the interface of that index in the calling thread's namespace, behind those that are there (TCX).
///
/// # Errors
/// [`Error::Missing`] where the kernel has no TCX (before 6.6) or the privilege is missing.
pub fn attach_tcx(program: &ProgramFd, interface: u32, direction: Direction) -> Result<Attached> {
    link(program, interface, direction.hook(), 0).map_err(Error::of_tcx)
}

/// The same before those that are there: it sees the packets that they drop or redirect.
///
/// # Errors
/// As [`attach_tcx`].
pub fn attach_tcx_first(program: &ProgramFd, interface: u32, direction: Direction) -> Result<Attached> {
    link(program, interface, direction.hook(), libbpf_sys::BPF_F_BEFORE).map_err(Error::of_tcx)
}

/// Attaches a program of type `tp_btf` to the tracepoint that it names.
///
/// # Errors
/// [`Error::Missing`] without the privilege.
pub fn attach_tracing(program: &ProgramFd) -> Result<Attached> {
    // SAFETY: a valid descriptor; such programs have the name of their tracepoint with them. The result is a new descriptor.
    let link = unsafe {
        let fd = libbpf_sys::bpf_raw_tracepoint_open(std::ptr::null(), program.fd().as_raw_fd());
        opened(fd, || format!("attach {}", program.name()))?
    };
    Ok(Attached::from_fd(link, OnDrop::Close))
}

/// Attaches a program of type `tracepoint` to the event of that number (`id` in tracefs).
///
/// # Errors
/// [`Error::Missing`] without the privilege.
pub fn attach_tracepoint(program: &ProgramFd, event: u32) -> Result<Attached> {
    let what = || format!("attach {}", program.name());
    let attributes = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_TRACEPOINT,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: event.into(),
        ..Default::default()
    };
    // Any process on one core: the program is the tracepoint's, and so runs on all of them.
    // SAFETY: attributes of the size in them.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, -1, 0, -1, PERF_FLAG_FD_CLOEXEC)
    };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(|| Error::last(what()))?;
    // SAFETY: a new descriptor, without another owner.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    for (request, argument) in
        [(PERF_EVENT_IOC_SET_BPF, program.fd().as_raw_fd()), (PERF_EVENT_IOC_ENABLE, 0)]
    {
        // SAFETY: requests that take a number.
        if unsafe { libc::ioctl(link.as_raw_fd(), request, argument) } != 0 {
            return Err(Error::last(what()));
        }
    }
    Ok(Attached::from_fd(link, OnDrop::Close))
}

/// include/uapi/linux/perf_event.h.
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
/// `_IOW('$', 8, __u32)` and `_IO('$', 0)`, likewise.
const PERF_EVENT_IOC_SET_BPF: libc::Ioctl = 0x4004_2408;
const PERF_EVENT_IOC_ENABLE: libc::Ioctl = 0x2400;

fn link(
    program: &ProgramFd,
    interface: u32,
    kind: libbpf_sys::bpf_attach_type,
    flags: u32,
) -> Result<Attached> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags,
        ..Default::default()
    };
    let (program_fd, index) = (program.fd().as_raw_fd(), i32::try_from(interface).unwrap_or(i32::MAX));
    // SAFETY: valid descriptors, and options of the size given. The result is a new descriptor.
    let link = unsafe {
        let fd = libbpf_sys::bpf_link_create(program_fd, index, kind, &raw const options);
        opened(fd, || format!("attach {} to interface {interface}", program.name()))?
    };
    Ok(Attached::from_fd(link, OnDrop::Detach))
}

/// The abilities that a driver announces (`NETDEV_XDP_ACT_*` of include/uapi/linux/netdev.h). Some announce one only while a program is
/// attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XdpAbilities {
    /// Its packets meet a program, which may send them to another interface.
    pub redirects: bool,
    /// It sends packets that a program of another interface redirects to it.
    pub sends: bool,
}

/// Returns what the driver of an interface of the calling thread's namespace can do; nothing before Linux 6.3, which does not tell.
///
/// # Errors
/// If the kernel refuses.
pub fn xdp_abilities(interface: u32) -> Result<XdpAbilities> {
    const BASIC: u64 = 1;
    const REDIRECT: u64 = 2;
    const NDO_XMIT: u64 = 4;
    let mut options = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: options of the size given.
    let result = unsafe {
        libbpf_sys::bpf_xdp_query(i32::try_from(interface).unwrap_or(i32::MAX), 0, &raw mut options)
    };
    answer(result, || format!("ask for the XDP abilities of interface {interface}"))?;
    let has = |bits| options.feature_flags & bits == bits;
    Ok(XdpAbilities { redirects: has(BASIC | REDIRECT), sends: has(NDO_XMIT) })
}
