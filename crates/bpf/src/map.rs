//! Maps: read and written by system call, or shared as memory.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::{Error, Result};

/// A type of which every bit pattern is a value, and which has no padding: what maps hold.
///
/// # Safety
/// An implementation guarantees both properties.
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

/// One more than the highest number that a core may have: what `bpf_get_smp_processor_id` says is below it.
///
/// # Errors
/// If the kernel does not tell.
pub fn cpu_numbers() -> Result<usize> {
    let path = "/sys/devices/system/cpu/possible";
    let text = std::fs::read_to_string(path).map_err(|e| Error::new(format!("read {path}"), e, ""))?;
    // Ranges in order: `0-3,8-11`.
    let last = text.trim().rsplit([',', '-']).next().and_then(|number| number.parse::<usize>().ok());
    last.map(|number| number + 1).ok_or_else(|| Error::Absent(format!("number of a core in {path}")))
}

/// A handle on a map.
#[derive(Debug)]
pub struct Map {
    handle: MapHandle,
    name: String,
}

impl Map {
    /// Creates a map with a single value that consists of all these values. The map replaces a section of an object
    /// ([`crate::Loader::reuse`]), whose programs access it without a look-up. If `values` is empty, the map holds one zero.
    ///
    /// # Errors
    /// If the kernel refuses: privilege, memory, or more than 4 MiB before Linux 6.0.
    pub fn of_values<T: Plain>(name: &str, values: &[T]) -> Result<Self> {
        let what = || format!("make map {name}");
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let bytes = u32::try_from(size_of_val(values).max(size_of::<T>()));
        let bytes = bytes.map_err(|e| Error::new(what(), std::io::Error::other(e), ""))?;
        let handle =
            MapHandle::create(MapType::Array, Some(name), size_of::<u32>() as u32, bytes, 1, &options);
        let handle = handle.map_err(|e| match std::io::Error::last_os_error() {
            source if source.raw_os_error() == Some(libc::E2BIG) => Error::Missing {
                what: what(),
                source,
                hint: "single values of more than 4 MiB need Linux 6.0",
            },
            source => Error::new(what(), source, &e.to_string()),
        })?;
        let map = Map::new(handle, name);
        map.share::<T>()?.fill_new(values);
        Ok(map)
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

    /// The same of a map whose values begin with a `struct bpf_spin_lock`, read under that lock.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn get_locked<K: Plain, V: Plain>(&self, key: &K) -> Result<Option<V>> {
        let value = self.handle.lookup(key.bytes(), MapFlags::LOCK).map_err(|e| self.failed("read", &e))?;
        Ok(value.map(|bytes| V::from_bytes(&bytes)))
    }

    /// Sets a value.
    ///
    /// # Errors
    /// If the kernel refuses (the map is full, say).
    pub fn set<K: Plain, V: Plain>(&self, key: &K, value: &V) -> Result<()> {
        self.handle.update(key.bytes(), value.bytes(), MapFlags::ANY).map_err(|e| self.failed("write", &e))
    }

    /// Takes an entry out, and returns its value; `None` if it is gone already. Hash tables alone can do it (Linux 5.14).
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take<K: Plain, V: Plain>(&self, key: &K) -> Result<Option<V>> {
        let value = self.handle.lookup_and_delete(key.bytes()).map_err(|e| self.failed("read", &e))?;
        Ok(value.map(|bytes| V::from_bytes(&bytes)))
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

    /// Hands over these values of an array whose values begin with a `struct bpf_spin_lock`, each with its index. Each is read under its
    /// lock, with few system calls (batches: Linux 5.6).
    ///
    /// # Errors
    /// If the kernel refuses, or the array has no such values.
    pub fn locked_values<V: Plain>(&self, range: Range<u32>, mut each: impl FnMut(u32, &V)) -> Result<()> {
        const BATCH: usize = 64;
        if range.end > self.entries() || self.handle.value_size() as usize != size_of::<V>() {
            let what = format!("values {range:?} of {} bytes in map {}", size_of::<V>(), self.name);
            return Err(Error::Absent(what));
        }
        let options = libbpf_sys::bpf_map_batch_opts {
            sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as libbpf_sys::size_t,
            elem_flags: u64::from(libbpf_sys::BPF_F_LOCK),
            ..Default::default()
        };
        let mut keys = [0_u32; BATCH];
        let mut values = vec![V::zeroed(); BATCH.min(range.len())];
        let mut at = range.start;
        while at < range.end {
            let mut count = values.len().min((range.end - at) as usize) as u32;
            // The index before the first one. Without one, the kernel begins at index 0.
            let mut before = at.wrapping_sub(1);
            let begin = if at == 0 { std::ptr::null_mut() } else { (&raw mut before).cast() };
            let mut last = 0_u32;
            // SAFETY: as many keys and values of the map's sizes as `count` says, and every bit pattern is a value.
            let result = unsafe {
                libbpf_sys::bpf_map_lookup_batch(
                    self.fd().as_raw_fd(),
                    begin,
                    (&raw mut last).cast(),
                    keys.as_mut_ptr().cast(),
                    values.as_mut_ptr().cast(),
                    &raw mut count,
                    &raw const options,
                )
            };
            // ENOENT tells of the end of the map.
            if result < 0 && (result != -libc::ENOENT || count == 0) {
                return Err(Error::last(format!("read map {}", self.name)));
            }
            for (key, value) in keys.iter().zip(&values).take(count as usize) {
                each(*key, value);
            }
            at += count;
        }
        Ok(())
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

    /// The map's memory, shared: for array maps with `BPF_F_MMAPABLE` whose values are one or several `T` (of a multiple of 8 bytes,
    /// since the kernel rounds the values' size up).
    ///
    /// # Errors
    /// If the map cannot be shared.
    pub fn share<T: Plain>(&self) -> Result<Mapped<T>> {
        Mapped::new(self)
    }
}

/// An array map's memory, shared with the programs that use it. A writer must expect concurrent readers.
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
        let stride = (map.handle.value_size() as usize).next_multiple_of(8);
        if !stride.is_multiple_of(size_of::<T>()) {
            return Err(Error::Absent(format!("values of {} bytes in map {}", size_of::<T>(), map.name)));
        }
        let bytes = map.entries() as usize * stride;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.fd().as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Error::last(format!("share map {}", map.name)));
        }
        Ok(Mapped { start: start.cast(), length: bytes / size_of::<T>() })
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
    /// Writes values from the beginning of a new map, which no program reads yet. It skips pieces of zeros, a page or so at a
    /// time: they are zero already, and untouched memory costs nothing.
    ///
    /// # Panics
    /// If there are more values than there is room.
    pub fn fill_new(&self, values: &[T]) {
        const PIECE_BYTES: usize = 4096;
        assert!(values.len() <= self.length, "{} of {}", values.len(), self.length);
        let count = (PIECE_BYTES / size_of::<T>()).max(1);
        for (number, piece) in values.chunks(count).enumerate() {
            // SAFETY: there is no padding, so every byte is initialised.
            let bytes =
                unsafe { std::slice::from_raw_parts(piece.as_ptr().cast::<u8>(), size_of_val(piece)) };
            // All of them, without an end at the first one: many at a time.
            if bytes.iter().fold(0, |all, byte| all | byte) != 0 {
                // SAFETY: inside the mapping, by the assertion, and not what is copied from.
                unsafe {
                    std::ptr::copy_nonoverlapping(piece.as_ptr(), self.start.add(number * count), piece.len())
                };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attached::tests::is_root;

    #[test]
    fn root_a_new_map_holds_what_it_was_made_of() {
        if !is_root() {
            return;
        }
        // A size that no page is a multiple of, zeros for pages on end, and single values between and at both ends.
        let mut values = vec![[0_u64; 3]; 5000];
        for at in [0, 169, 170, 171, 2500, 4999] {
            values[at] = [at as u64, 0, !0];
        }
        let map = Map::of_values("test", &values).unwrap();
        let shared = map.share::<[u64; 3]>().unwrap();
        assert!((0..values.len()).all(|at| shared.get(at) == values[at]));
        // The same by system call.
        assert_eq!(map.get::<u32, [[u64; 3]; 5000]>(&0).unwrap().unwrap()[..], values[..]);
        assert_eq!(Map::of_values::<u64>("none", &[]).unwrap().first_word(&0_u32).unwrap(), 0);
    }
}
