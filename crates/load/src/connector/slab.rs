//! Connections by token. A token is never used twice, so an event that was reported for a connection closed since
//! does not reach the one that took its place.

#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Slab { slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            // Bounded by the number of descriptors, an i32.
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.1 = Some(value);
        u64::from(slot.0) << 32 | u64::from(index)
    }

    pub(super) fn get_mut(&mut self, token: u64) -> Option<&mut T> {
        let slot = self.slots.get_mut(token as u32 as usize)?;
        if u64::from(slot.0) == token >> 32 { slot.1.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<T> {
        self.get_mut(token)?;
        let slot = &mut self.slots[token as u32 as usize];
        // Comes round after 4 billion connections in one slot; no event is that old.
        slot.0 = slot.0.wrapping_add(1);
        self.free.push(token as u32);
        slot.1.take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, value)| value.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_dies_with_its_value() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!((slab.remove(a), slab.remove(a), slab.len()), (Some('a'), None, 1));
        let c = slab.insert('c');
        assert_eq!(c as u32, a as u32, "the place is used again");
        assert_eq!(slab.get_mut(a), None);
        assert_eq!(slab.get_mut(c), Some(&mut 'c'));
        assert_eq!(slab.get_mut(b), Some(&mut 'b'));
        assert_eq!(slab.get_mut(77), None);
        assert_eq!(slab.iter().count(), 2);
    }
}
