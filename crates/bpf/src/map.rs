//! Maps: read and written by system call, or shared as memory.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::{Error, Result};

/// A type of which every bit pattern is a value, and which has no padding: what maps hold.
///
/// # Safety
/// That is what an implementation promises.
pub unsafe trait Plain: Copy + 'static {
    /// All zeros.
    fn zeroed() -> Self {
        // SAFETY: every bit pattern is a value.
        unsafe { std::mem::zeroed() }
    }

    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: there is no padding, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// From bytes; missing ones are zero.
    fn from_bytes(bytes: &[u8]) -> Self {
        let mut value = Self::zeroed();
        let length = bytes.len().min(size_of::<Self>());
        // SAFETY: at most as many bytes as the value has, and every bit pattern is a value.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut value).cast(), length);
        }
        value
    }
}

// SAFETY: integers have neither padding nor invalid values.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: arrays of such have neither.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Cores that the kernel keeps per-CPU values for.
pub fn possible_cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| libbpf_rs::num_possible_cpus().unwrap_or(1).max(1))
}

/// A handle on a map.
#[derive(Debug)]
pub struct Map {
    handle: MapHandle,
    name: String,
}

/// What kind of map is made at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapKind {
    /// Values one behind the other, their memory shared with whoever asks.
    SharedArray,
    /// The same, of any length, to be put into a map of such maps.
    SharedArrayOfAnyLength,
}

impl Map {
    /// Makes a map of its own, mostly to be put into one of an object.
    ///
    /// # Errors
    /// If the kernel refuses: privilege, or memory.
    pub fn create<K: Plain, V: Plain>(kind: MapKind, name: &str, entries: u32) -> Result<Self> {
        let flags = match kind {
            MapKind::SharedArray => libbpf_sys::BPF_F_MMAPABLE,
            MapKind::SharedArrayOfAnyLength => libbpf_sys::BPF_F_MMAPABLE | libbpf_sys::BPF_F_INNER_MAP,
        };
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            map_flags: flags,
            ..Default::default()
        };
        let (key, value) = (size_of::<K>() as u32, size_of::<V>() as u32);
        let handle = MapHandle::create(MapType::Array, Some(name), key, value, entries.max(1), &options);
        let handle = handle.map_err(|e| {
            let number = std::io::Error::last_os_error();
            Error::new(format!("make map {name}"), number, &e.to_string())
        })?;
        Ok(Map::new(handle, name))
    }

    /// Puts another map into this map of maps; whoever looked up the one before keeps it until done.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn put(&self, slot: u32, inner: &Map) -> Result<()> {
        self.set(&slot, &(inner.fd().as_raw_fd().cast_unsigned()))
    }

    /// Empties a slot of this map of maps.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_out(&self, slot: u32) -> Result<()> {
        self.handle.delete(slot.bytes()).map_err(|e| self.failed("write", &e))
    }

    pub(crate) fn new(handle: MapHandle, name: &str) -> Self {
        Map { handle, name: name.to_owned() }
    }

    pub(crate) fn handle(&self) -> &MapHandle {
        &self.handle
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Another handle on the same map.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn try_clone(&self) -> Result<Map> {
        let handle = MapHandle::try_from(&self.handle).map_err(|e| self.failed("hold", &e))?;
        Ok(Map::new(handle, &self.name))
    }

    /// Its descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// How many entries it has or can have.
    pub fn entries(&self) -> u32 {
        self.handle.max_entries()
    }

    fn failed(&self, what: &str, error: &libbpf_rs::Error) -> Error {
        Error::new(format!("{what} map {}", self.name), std::io::Error::other(error.to_string()), "")
    }

    /// The value of a key.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn get<K: Plain, V: Plain>(&self, key: &K) -> Result<Option<V>> {
        let value = self.handle.lookup(key.bytes(), MapFlags::ANY).map_err(|e| self.failed("read", &e))?;
        Ok(value.map(|bytes| V::from_bytes(&bytes)))
    }

    /// Sets a value.
    ///
    /// # Errors
    /// If the kernel refuses (the map is full, say).
    pub fn set<K: Plain, V: Plain>(&self, key: &K, value: &V) -> Result<()> {
        self.handle.update(key.bytes(), value.bytes(), MapFlags::ANY).map_err(|e| self.failed("write", &e))
    }

    /// Sets a value that is kept by core, to the same on each.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_for_all_cpus<K: Plain, V: Plain>(&self, key: &K, value: &V) -> Result<()> {
        let mut bytes = value.bytes().to_vec();
        // The kernel keeps each in a multiple of 8 bytes.
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let values = vec![bytes; possible_cpus()];
        self.handle.update_percpu(key.bytes(), &values, MapFlags::ANY).map_err(|e| self.failed("write", &e))
    }

    /// Takes an entry out; one that is gone already is no error.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove<K: Plain>(&self, key: &K) -> Result<()> {
        match self.handle.delete(key.bytes()) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => Err(self.failed("write", &e)),
            _ => Ok(()),
        }
    }

    /// The first 32 bits of a value of whatever length.
    ///
    /// # Errors
    /// If the kernel refuses, or there is no such entry.
    pub fn first_word<K: Plain>(&self, key: &K) -> Result<u32> {
        let value = self.handle.lookup(key.bytes(), MapFlags::ANY).map_err(|e| self.failed("read", &e))?;
        value
            .map(|bytes| u32::from_bytes(&bytes))
            .ok_or_else(|| Error::Absent(format!("entry in map {}", self.name)))
    }

    /// Sets many values, with few system calls where the kernel has batches (5.6).
    ///
    /// # Errors
    /// If the kernel refuses (the map is full, say).
    pub fn insert<K: Plain, V: Plain>(&self, entries: impl Iterator<Item = (K, V)>) -> Result<()> {
        const BATCH: usize = 4096;
        let mut entries = entries.peekable();
        while entries.peek().is_some() {
            let (mut keys, mut values, mut count) = (Vec::new(), Vec::new(), 0);
            for (key, value) in entries.by_ref().take(BATCH) {
                keys.extend_from_slice(key.bytes());
                values.extend_from_slice(value.bytes());
                count += 1;
            }
            self.handle
                .update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)
                .map_err(|e| self.failed("write", &e))?;
        }
        Ok(())
    }

    /// Every entry of a map whose values are not by core. One that is deleted meanwhile may be left out.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn all<K: Plain, V: Plain>(&self) -> Result<Vec<(K, V)>> {
        let mut entries = Vec::new();
        for key in self.handle.keys() {
            if let Some(value) =
                self.handle.lookup(&key, MapFlags::ANY).map_err(|e| self.failed("read", &e))?
            {
                entries.push((K::from_bytes(&key), V::from_bytes(&value)));
            }
        }
        Ok(entries)
    }

    /// Every entry of a map whose values are by core, with one value for each of [`possible_cpus`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn all_by_cpu<K: Plain, V: Plain>(&self) -> Result<Vec<(K, Vec<V>)>> {
        let mut entries = Vec::new();
        for key in self.handle.keys() {
            let values =
                self.handle.lookup_percpu(&key, MapFlags::ANY).map_err(|e| self.failed("read", &e))?;
            let values = values.into_iter().flatten().map(|bytes| V::from_bytes(&bytes)).collect();
            entries.push((K::from_bytes(&key), values));
        }
        Ok(entries)
    }

    /// The map's memory, shared: for array maps with `BPF_F_MMAPABLE` whose values are `T` (of a multiple of 8 bytes, since the
    /// kernel rounds the values' size up).
    ///
    /// # Errors
    /// If the map cannot be shared.
    pub fn share<T: Plain>(&self) -> Result<Mapped<T>> {
        Mapped::new(self)
    }
}

/// An array map's memory, shared with the programs that use it. Whoever writes must know that the others are reading.
#[derive(Debug)]
pub struct Mapped<T> {
    start: *mut T,
    length: usize,
}

// SAFETY: it is memory shared with the kernel anyway; every access is a volatile copy of plain values.
unsafe impl<T: Plain + Send> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Plain + Sync> Sync for Mapped<T> {}

impl<T: Plain> Mapped<T> {
    fn new(map: &Map) -> Result<Self> {
        let length = map.entries() as usize;
        let stride = (map.handle.value_size() as usize).next_multiple_of(8);
        if stride != size_of::<T>() {
            return Err(Error::Absent(format!("values of {} bytes in map {}", size_of::<T>(), map.name)));
        }
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length * stride,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.fd().as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Error::last(format!("share map {}", map.name)));
        }
        Ok(Mapped { start: start.cast(), length })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// A copy of a value.
    ///
    /// # Panics
    /// Beyond the end.
    pub fn get(&self, index: usize) -> T {
        assert!(index < self.length, "{index} of {}", self.length);
        // SAFETY: inside the mapping; every bit pattern is a value, so that a torn one is wrong at worst.
        unsafe { self.start.add(index).read_volatile() }
    }

    /// Replaces a value.
    ///
    /// # Panics
    /// Beyond the end.
    pub fn set(&self, index: usize, value: T) {
        assert!(index < self.length, "{index} of {}", self.length);
        // SAFETY: inside the mapping.
        unsafe { self.start.add(index).write_volatile(value) }
    }
}

impl<T: Plain> Mapped<T> {
    /// Puts values in from the beginning on, but for those that are zero: what was never written is zero already, and memory
    /// that is not touched costs nothing.
    ///
    /// # Panics
    /// If there are more values than there is room.
    pub fn fill_new(&self, values: &[T]) {
        for (index, value) in values.iter().enumerate() {
            if value.bytes().iter().any(|b| *b != 0) {
                self.set(index, *value);
            }
        }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped.
        unsafe {
            libc::munmap(self.start.cast(), self.length * size_of::<T>());
        }
    }
}
