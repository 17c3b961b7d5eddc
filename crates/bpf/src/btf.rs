//! The running kernel's description of its own types (BTF).

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use libbpf_rs::AsRawLibbpf;
use libbpf_rs::btf::{BtfKind, BtfType, types};

use crate::{Error, Result};

/// The kernel's types.
#[derive(Debug)]
pub struct Btf {
    btf: libbpf_rs::btf::Btf<'static>,
}

impl Btf {
    /// Reads a file such as `/sys/kernel/btf/vmlinux`.
    ///
    /// # Errors
    /// If it is not there (a kernel without CONFIG_DEBUG_INFO_BTF), or is none.
    pub fn read(path: &Path) -> Result<Self> {
        let what = || format!("read {}", path.display());
        // libbpf says less about a file that it cannot open.
        std::fs::File::open(path).map_err(|e| Error::new(what(), e, ""))?;
        let btf = libbpf_rs::btf::Btf::from_path(path)
            .map_err(|e| Error::new(what(), std::io::Error::other(e.to_string()), ""))?;
        Ok(Btf { btf })
    }

    /// Names of an `enum` with their values; `None` if the kernel has none of that name.
    pub fn enumeration(&self, name: &str) -> Option<Vec<(u32, String)>> {
        let members = self.btf.type_by_name::<types::Enum<'_>>(name)?;
        let text = |name: Option<&OsStr>| name.unwrap_or_default().to_string_lossy().into_owned();
        Some(members.iter().map(|m| (m.value as u32, text(m.name))).collect())
    }

    /// Like [`Self::enumeration`], for a module that adds its own types to the kernel's (`/sys/kernel/btf/openvswitch`).
    pub fn enumeration_of_module(&self, path: &Path, name: &str) -> Option<Vec<(u32, String)>> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        let name = CString::new(name).ok()?;
        let base = self.btf.as_libbpf_object().as_ptr();
        // SAFETY: a path, and types that outlive the call.
        let module = NonNull::new(unsafe { libbpf_sys::btf__parse_split(path.as_ptr(), base) })?;
        // SAFETY: types just read, and a name.
        let members = unsafe { members(module.as_ptr(), &name) };
        // SAFETY: read above, and nothing of it is used any more.
        unsafe { libbpf_sys::btf__free(module.as_ptr()) };
        members
    }

    /// How many arguments a tracepoint hands to its programs; `None` if the kernel has no such tracepoint.
    pub fn tracepoint_arguments(&self, name: &str) -> Option<usize> {
        // typedef void (*btf_trace_NAME)(void *, ...): the first argument is the tracepoint's own (include/trace/bpf_probe.h).
        let mut of = self.btf.type_by_name::<BtfType<'_>>(&format!("btf_trace_{name}"))?;
        while of.kind() != BtfKind::FuncProto {
            of = of.next_type()?;
        }
        types::FuncProto::try_from(of).ok()?.len().checked_sub(1)
    }
}

/// Members of an `enum`, copied.
///
/// # Safety
/// `btf` must be valid.
unsafe fn members(btf: *const libbpf_sys::btf, name: &CStr) -> Option<Vec<(u32, String)>> {
    // SAFETY: valid types by the caller's word, and a name.
    let id = unsafe { libbpf_sys::btf__find_by_name_kind(btf, name.as_ptr(), libbpf_sys::BTF_KIND_ENUM) };
    let id = u32::try_from(id).ok()?;
    // SAFETY: as above; the result is null or points to a type among them.
    let found = unsafe { libbpf_sys::btf__type_by_id(btf, id).as_ref() }?;
    // include/uapi/linux/btf.h: the lower 16 bits are the number of members, which follow the type.
    let count = (found.info & 0xffff) as usize;
    let first = std::ptr::from_ref(found).wrapping_add(1).cast::<libbpf_sys::btf_enum>();
    // SAFETY: libbpf has checked that they lie within the types, which are aligned to 4 bytes as they are.
    let members = unsafe { std::slice::from_raw_parts(first, count) };
    let text = |offset| {
        // SAFETY: null, or a string that ends within the types.
        let name = unsafe { libbpf_sys::btf__name_by_offset(btf, offset) };
        // SAFETY: as above.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    };
    Some(members.iter().filter_map(|m| Some((m.val as u32, text(m.name_off)?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_knows_its_types() {
        let path = Path::new("/sys/kernel/btf/vmlinux");
        if !path.exists() {
            println!("SKIP: this kernel has no BTF");
            return;
        }
        let btf = Btf::read(path).unwrap();
        // include/uapi/linux/bpf.h: numbers that cannot change.
        let actions = btf.enumeration("xdp_action").unwrap();
        assert_eq!(actions[1], (1, "XDP_DROP".to_owned()));
        assert_eq!(btf.enumeration("no_such_enum"), None);
        assert_eq!(btf.enumeration_of_module(Path::new("/no/such/module"), "xdp_action"), None);
        // SAFETY: valid types.
        let members = unsafe { members(btf.btf.as_libbpf_object().as_ptr(), c"xdp_action") };
        assert_eq!(members, Some(actions));
        // include/trace/events/skb.h: consume_skb(skb, location), at least since 6.0; kfree_skb has one or two more.
        assert_eq!(btf.tracepoint_arguments("consume_skb"), Some(2));
        assert!(btf.tracepoint_arguments("kfree_skb").is_some_and(|n| (2..=4).contains(&n)));
        assert_eq!(btf.tracepoint_arguments("no_such_tracepoint"), None);
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Btf::read(Path::new("/no/such/vmlinux")).unwrap_err();
        assert!(error.to_string().contains("/no/such/vmlinux"), "{error}");
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }
}
