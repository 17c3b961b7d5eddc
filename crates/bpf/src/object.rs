//! Opening and loading objects.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, Once, PoisonError};

use libbpf_rs::{MapCore, MapHandle, OpenMapMut, OpenObject, PrintLevel};

use crate::map::{Map, Plain};
use crate::{Error, Result, is_verdict};

/// Messages of libbpf since the last read. libbpf has one channel for the whole process.
static WORDS: Mutex<String> = Mutex::new(String::new());

/// Loads are made one after the other, so that each failure has its own words.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Longest that is kept: the end of a verifier log says what is wrong.
const MOST_WORDS: usize = 2000;

fn keep(_: PrintLevel, text: String) {
    let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    words.push_str(&text);
    if words.len() > 2 * MOST_WORDS {
        let from = words.len() - MOST_WORDS;
        let from = (from..words.len()).find(|i| words.is_char_boundary(*i)).unwrap_or(0);
        words.drain(..from);
    }
}

fn listen() {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Warn, keep)));
    });
    WORDS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

fn failed(what: &str, error: &libbpf_rs::Error) -> Error {
    let words = std::mem::take(&mut *WORDS.lock().unwrap_or_else(PoisonError::into_inner));
    let mut source: &(dyn std::error::Error + 'static) = error;
    let number = loop {
        if let Some(io) = source.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            break Some(io);
        }
        match source.source() {
            Some(next) => source = next,
            None => break None,
        }
    };
    let number = number.or(match error.kind() {
        // The verifier's number, and that of a missing privilege.
        libbpf_rs::ErrorKind::PermissionDenied if is_verdict(&words) => Some(libc::EACCES),
        libbpf_rs::ErrorKind::PermissionDenied => Some(libc::EPERM),
        _ => None,
    });
    let source =
        number.map_or_else(|| std::io::Error::other(error.to_string()), std::io::Error::from_raw_os_error);
    Error::new(what, source, &words)
}

/// An object that is open and not yet loaded.
#[derive(Debug)]
pub struct Loader {
    object: OpenObject,
    name: &'static str,
}

impl Loader {
    /// Opens an object file's bytes; `name` is for messages.
    ///
    /// # Errors
    /// If it is no BPF object.
    pub fn open(name: &'static str, bytes: &[u8]) -> Result<Self> {
        listen();
        let object = libbpf_rs::ObjectBuilder::default()
            .name(name)
            .and_then(|builder| builder.open_memory(bytes))
            .map_err(|e| failed(&format!("open BPF object {name}"), &e))?;
        Ok(Loader { object, name })
    }

    /// Opens an object as `weir-bpf-build` packs it: the content of `NAME.bpf.z`.
    ///
    /// # Errors
    /// If it is not packed like that, or no BPF object.
    pub fn unpack(name: &'static str, packed: &[u8]) -> Result<Self> {
        let bytes = miniz_oxide::inflate::decompress_to_vec(packed).map_err(|e| {
            Error::new(format!("unpack BPF object {name}"), std::io::Error::other(e.to_string()), "")
        })?;
        Self::open(name, &bytes)
    }

    /// Sets what the program has as `const volatile struct .. config` (its read-only data begins with it, or it is in a section
    /// `.rodata.config` of its own, so there is one).
    ///
    /// # Errors
    /// If it has none of that size.
    pub fn config<T: Plain>(&mut self, value: &T) -> Result<()> {
        let name = self.name;
        let absent = || Error::Absent(format!("read-only data of {} bytes ({name})", size_of::<T>()));
        const OWN: &str = ".rodata.config";
        // The section of its own, if there are both. The name of the other one begins with that of the object, and constants of the
        // compiler are in further ones.
        let mut map = self
            .object
            .maps_mut()
            .filter(|m| m.name() == OWN || m.name().to_string_lossy().ends_with(".rodata"))
            .max_by_key(|m| m.name() == OWN)
            .ok_or_else(absent)?;
        let data = map.initial_value_mut().ok_or_else(absent)?;
        data.get_mut(..size_of::<T>()).ok_or_else(absent)?.copy_from_slice(value.bytes());
        Ok(())
    }

    /// Sets how many entries a map has.
    ///
    /// # Errors
    /// If there is no such map.
    pub fn entries(&mut self, map: &str, entries: u32) -> Result<()> {
        let name = format!("map {map}");
        self.map(map)?.set_max_entries(entries).map_err(|e| failed(&name, &e))
    }

    /// Has the programs use this map for the one of that name, or for the section of that name, and not make their own. It must be
    /// of the same kind; its length may be another, and is then the length that the verifier knows.
    ///
    /// # Errors
    /// If there is no such map.
    pub fn reuse(&mut self, name: &str, map: &Map) -> Result<()> {
        let what = format!("map {name}");
        let mut own = self.map(name)?;
        // Before its own is given up: libbpf keeps memory for a section, of the length that it knows.
        let length = map.handle().value_size();
        if own.value_size() != length {
            own.set_value_size(length).map_err(|e| failed(&what, &e))?;
        }
        own.reuse_fd(map.fd()).map_err(|e| failed(&what, &e))
    }

    fn map(&mut self, name: &str) -> Result<OpenMapMut<'_>> {
        let mut maps = self.object.maps_mut();
        maps.find(|m| m.name() == OsStr::new(name)).ok_or_else(|| Error::Absent(format!("map {name}")))
    }

    /// Leaves a program out: the kernel need not know what it needs.
    ///
    /// # Errors
    /// If there is no such program.
    pub fn without(&mut self, program: &str) -> Result<()> {
        let mut program = self
            .object
            .progs_mut()
            .find(|p| p.name() == OsStr::new(program))
            .ok_or_else(|| Error::Absent(format!("program {program}")))?;
        program.set_autoload(false);
        Ok(())
    }

    /// Loads it into the kernel.
    ///
    /// # Errors
    /// [`Error::Missing`] without the privilege or the feature; else with the verifier's last words.
    pub fn load(self) -> Result<Object> {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        listen();
        let object = self.object.load().map_err(|e| failed(&format!("load BPF object {}", self.name), &e))?;
        Ok(Object { object })
    }
}

/// A loaded object. Its programs and maps live as long as it, their clones and what they are attached to.
#[derive(Debug)]
pub struct Object {
    object: libbpf_rs::Object,
}

impl Object {
    /// A program, kept alive by the handle.
    ///
    /// # Errors
    /// If the object has no program of that name.
    pub fn program(&self, name: &str) -> Result<ProgramFd> {
        let program = self
            .object
            .progs()
            .find(|p| p.name() == OsStr::new(name))
            .ok_or_else(|| Error::Absent(format!("program {name}")))?;
        let fd =
            program.as_fd().try_clone_to_owned().map_err(|e| Error::new(format!("program {name}"), e, ""))?;
        Ok(ProgramFd { fd, name: name.to_owned() })
    }

    /// A map, kept alive by the handle.
    ///
    /// # Errors
    /// If the object has no map of that name.
    pub fn map(&self, name: &str) -> Result<Map> {
        let map = self
            .object
            .maps()
            .find(|m| m.name() == OsStr::new(name))
            .ok_or_else(|| Error::Absent(format!("map {name}")))?;
        let handle = MapHandle::try_from(&map).map_err(|e| failed(&format!("map {name}"), &e))?;
        Ok(Map::new(handle, name))
    }

    /// Memory of all its maps, bytes: see [`Map::memory_bytes`].
    ///
    /// # Errors
    /// If `/proc` does not show it.
    pub fn memory_bytes(&self) -> Result<u64> {
        self.object.maps().map(|map| self.map(&map.name().to_string_lossy())?.memory_bytes()).sum()
    }

    /// Returns libbpf's own object, for attachments that this crate has no function for (tracepoints).
    pub fn inner(&self) -> &libbpf_rs::Object {
        &self.object
    }
}

/// A loaded program.
#[derive(Debug)]
pub struct ProgramFd {
    fd: OwnedFd,
    name: String,
}

impl ProgramFd {
    pub(crate) fn from_fd(fd: OwnedFd, name: &str) -> Self {
        ProgramFd { fd, name: name.to_owned() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_packed_is_refused_by_name() {
        let error = Loader::unpack("filter", b"\x7fELF and nothing more").unwrap_err().to_string();
        assert!(error.contains("unpack BPF object filter"), "{error}");
    }

    #[test]
    fn what_was_packed_and_is_no_object_is_refused() {
        let packed = miniz_oxide::deflate::compress_to_vec(b"no object", 9);
        let error = Loader::unpack("filter", &packed).unwrap_err().to_string();
        assert!(error.contains("open BPF object filter"), "{error}");
    }
}
