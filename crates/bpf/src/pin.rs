//! Objects that outlive the process that loaded them: maps, programs and attachments with a name in a BPF file system (bpf(2),
//! BPF_OBJ_PIN).

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_rs::MapHandle;

use crate::attach::{Attached, OnDrop};
use crate::map::Map;
use crate::object::ProgramFd;
use crate::{Error, Result, answer, info, opened};

/// Path of the BPF file system on every distribution.
pub const BPF_FILE_SYSTEM: &str = "/sys/fs/bpf";

/// BPF_FS_MAGIC (include/uapi/linux/magic.h).
const MAGIC: libc::c_long = 0xcafe_4a11_u32 as libc::c_long;

/// Whether a folder lies in a BPF file system.
///
/// # Errors
/// If the folder cannot be looked at.
pub fn is_bpf_file_system(folder: &Path) -> Result<bool> {
    let name = name_of(folder)?;
    // SAFETY: plain numbers.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a text that ends with zero, and room for the answer.
    if unsafe { libc::statfs(name.as_ptr(), &raw mut found) } != 0 {
        return Err(Error::last(format!("look at {}", folder.display())));
    }
    Ok(found.f_type == MAGIC)
}

/// Mounts a BPF file system at [`BPF_FILE_SYSTEM`] where there is none; true if it did.
///
/// # Errors
/// [`Error::Missing`] without the privilege, or where the kernel has no BPF.
pub fn mount_bpf_file_system() -> Result<bool> {
    let folder = Path::new(BPF_FILE_SYSTEM);
    if is_bpf_file_system(folder)? {
        return Ok(false);
    }
    let name = name_of(folder)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: texts that end with zero.
    let result = unsafe {
        libc::mount(c"bpf".as_ptr(), name.as_ptr(), c"bpf".as_ptr(), flags, c"mode=700".as_ptr().cast())
    };
    if result != 0 {
        return Err(Error::last(format!("mount the BPF file system at {BPF_FILE_SYSTEM}")));
    }
    Ok(true)
}

fn name_of(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::Absent(format!("path {}: it has a zero in it", path.display())))
}

fn pin(fd: i32, path: &Path) -> Result<()> {
    let name = name_of(path)?;
    // SAFETY: a valid descriptor and a text that ends with zero.
    let result = unsafe { libbpf_sys::bpf_obj_pin(fd, name.as_ptr()) };
    answer(result, || format!("pin {}", path.display())).map(drop)
}

fn open(path: &Path) -> Result<OwnedFd> {
    let name = name_of(path)?;
    // SAFETY: a text that ends with zero; the result is a new descriptor.
    unsafe { opened(libbpf_sys::bpf_obj_get(name.as_ptr()), || format!("open {}", path.display())) }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

/// An open map, program or attachment; `None` where nothing has its name, or has it no longer: another process may remove it at any
/// time.
///
/// # Errors
/// Any other than that.
pub fn if_there<T>(opened: Result<T>) -> Result<Option<T>> {
    match opened {
        Err(Error::Refused { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

impl Map {
    /// Gives it a name in a BPF file system, by which it stays.
    ///
    /// # Errors
    /// If there is such a name already, or the kernel refuses.
    pub fn pin(&self, path: &Path) -> Result<()> {
        pin(self.fd().as_raw_fd(), path)
    }

    /// One that was pinned.
    ///
    /// # Errors
    /// If no map has that name.
    pub fn open_pinned(path: &Path) -> Result<Map> {
        // Asked first, because its error says more.
        drop(open(path)?);
        let handle = MapHandle::from_pinned_path(path).map_err(|e| {
            let is_gone = e.kind() == libbpf_rs::ErrorKind::NotFound;
            let kind = if is_gone { std::io::ErrorKind::NotFound } else { std::io::ErrorKind::Other };
            Error::new(format!("open map {}", path.display()), std::io::Error::new(kind, e.to_string()), "")
        })?;
        Ok(Map::new(handle, &file_name(path)))
    }

    /// Memory that the kernel says it takes, bytes: exact since Linux 6.4 (`map_mem_usage`), before that what was charged for
    /// it at the beginning.
    ///
    /// # Errors
    /// If `/proc` does not show it.
    pub fn memory_bytes(&self) -> Result<u64> {
        let path = format!("/proc/self/fdinfo/{}", self.fd().as_raw_fd());
        let text = std::fs::read_to_string(&path).map_err(|e| Error::new(format!("read {path}"), e, ""))?;
        let line = text.lines().find_map(|l| l.strip_prefix("memlock:"));
        line.and_then(|l| l.trim().parse().ok()).ok_or_else(|| Error::Absent(format!("`memlock` in {path}")))
    }
}

impl ProgramFd {
    /// Gives it a name in a BPF file system, by which it stays.
    ///
    /// # Errors
    /// If there is such a name already, or the kernel refuses.
    pub fn pin(&self, path: &Path) -> Result<()> {
        pin(self.fd().as_raw_fd(), path)
    }

    /// One that was pinned.
    ///
    /// # Errors
    /// If no program has that name.
    pub fn open_pinned(path: &Path) -> Result<ProgramFd> {
        Ok(ProgramFd::from_fd(open(path)?, &file_name(path)))
    }
}

/// The description of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    /// Number of the program that runs there.
    pub program: u32,
    /// Index of its interface; 0 if that is gone, or if it is attached to something else.
    pub interface: u32,
}

impl Attached {
    /// Gives it a name in a BPF file system: it stays attached until that name, too, is gone.
    ///
    /// # Errors
    /// If there is such a name already, or the kernel refuses.
    pub fn pin(mut self, path: &Path) -> Result<()> {
        pin(self.link().as_raw_fd(), path)?;
        self.close_on_drop();
        Ok(())
    }

    /// One that was pinned.
    ///
    /// # Errors
    /// If no attachment has that name.
    pub fn open_pinned(path: &Path) -> Result<Attached> {
        Ok(Attached::from_fd(open(path)?, OnDrop::Close))
    }

    /// As [`Attached::open_pinned`]; `None` where nothing has that name, or has it no longer.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn find_pinned(path: &Path) -> Result<Option<Attached>> {
        if_there(Attached::open_pinned(path))
    }

    /// Describes its current state.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn describe(&self) -> Result<Attachment> {
        // SAFETY: the description of a link.
        let info: libbpf_sys::bpf_link_info =
            unsafe { info(self.link(), || "describe an attachment".into())? };
        let interface = match info.type_ {
            // SAFETY: all parts of the union are plain numbers, and the type says which is meant.
            libbpf_sys::BPF_LINK_TYPE_TCX => unsafe { info.__bindgen_anon_1.tcx.ifindex },
            // SAFETY: likewise.
            libbpf_sys::BPF_LINK_TYPE_XDP => unsafe { info.__bindgen_anon_1.xdp.ifindex },
            _ => 0,
        };
        Ok(Attachment { program: info.prog_id, interface })
    }
}
