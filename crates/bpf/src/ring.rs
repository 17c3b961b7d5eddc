//! Rings of events (BPF_MAP_TYPE_RINGBUF, Linux 5.8), read without waiting.

use std::cell::RefCell;
use std::rc::Rc;

use crate::map::{Map, Plain};
use crate::{Error, Result, answer};

/// A ring's reader. A ring has one place up to which it was read: two readers at a time would each get a part, and some of it
/// twice.
#[derive(Debug)]
pub struct Ring<T> {
    ring: libbpf_rs::RingBuffer<'static>,
    taken: Rc<RefCell<Vec<T>>>,
    name: String,
}

impl<T: Plain> Ring<T> {
    /// Opens a map of that kind, whose records are `T`; it pads shorter records with zeros.
    ///
    /// # Errors
    /// If it is no ring, or its memory cannot be shared.
    pub fn open(map: &Map) -> Result<Self> {
        let taken = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&taken);
        let mut builder = libbpf_rs::RingBufferBuilder::new();
        let failed = |e: libbpf_rs::Error| {
            Error::new("read a ring of events", std::io::Error::other(e.to_string()), "")
        };
        let take = move |record: &[u8]| {
            sink.borrow_mut().push(T::from_bytes(record));
            0
        };
        builder.add(map.handle(), take).map_err(failed)?;
        let ring = builder.build().map_err(failed)?;
        Ok(Ring { ring, taken, name: map.name().to_owned() })
    }

    /// Returns the records since the last read; does not wait.
    ///
    /// # Errors
    /// If libbpf cannot read it.
    pub fn read(&mut self) -> Result<Vec<T>> {
        answer(self.ring.consume_raw(), || format!("read ring {}", self.name))?;
        Ok(std::mem::take(&mut *self.taken.borrow_mut()))
    }
}
