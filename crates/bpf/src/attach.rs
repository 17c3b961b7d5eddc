//! Attaching programs to interfaces, for as long as the returned value lives.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::object::ProgramFd;
use crate::{Error, Result};

/// Where an XDP program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the stack, on any interface, more slowly.
    Generic,
}

/// An attachment. Dropping it detaches, and so does the end of the process (it is a BPF link).
#[derive(Debug)]
pub struct Attached {
    link: OwnedFd,
}

impl Attached {
    /// Puts another program of the same type into the place of the one that is attached: every packet meets one or the other.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn replace(&self, program: &ProgramFd) -> Result<()> {
        // SAFETY: valid descriptors; no options.
        let result = unsafe {
            libbpf_sys::bpf_link_update(self.link.as_raw_fd(), program.fd().as_raw_fd(), std::ptr::null())
        };
        if result != 0 {
            let source = std::io::Error::from_raw_os_error(-result);
            return Err(Error::new(
                format!("replace the attached program by {}", program.name()),
                source,
                "",
            ));
        }
        Ok(())
    }
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
    // SAFETY: valid descriptors, and options of the size given.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(
            program.fd().as_raw_fd(),
            i32::try_from(interface).unwrap_or(i32::MAX),
            kind,
            &raw const options,
        )
    };
    if fd < 0 {
        return Err(Error::new(
            format!("attach {} to interface {interface}", program.name()),
            std::io::Error::from_raw_os_error(-fd),
            "",
        ));
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(Attached { link: unsafe { OwnedFd::from_raw_fd(fd) } })
}
