//! The largest of many, without keeping the others.

/// At most that many, the largest first.
#[derive(Debug)]
pub(super) struct Top<T> {
    limit: usize,
    kept: Vec<(u64, T)>,
}

impl<T> Top<T> {
    pub(super) fn new(limit: usize) -> Self {
        Top { limit, kept: Vec::with_capacity(limit) }
    }

    /// True if something of that size would be kept. Nothing is of size 0.
    pub(super) fn takes(&self, size: u64) -> bool {
        let smallest = if self.kept.len() < self.limit { 0 } else { self.kept.last().map_or(0, |(s, _)| *s) };
        size > smallest
    }

    /// Keeps it if it is one of the largest so far.
    pub(super) fn put(&mut self, size: u64, item: T) {
        if !self.takes(size) {
            return;
        }
        self.kept.truncate(self.limit - 1);
        let place = self.kept.partition_point(|(s, _)| *s >= size);
        self.kept.insert(place, (size, item));
    }

    pub(super) fn into_items(self) -> impl Iterator<Item = T> {
        self.kept.into_iter().map(|(_, item)| item)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The same as sorting all of them.
        #[test]
        fn the_largest_are_kept(sizes in prop::collection::vec(0_u64..50, 0..100), limit in 1_usize..10) {
            let mut top = Top::new(limit);
            for size in &sizes {
                top.put(*size, *size);
            }
            let mut expected: Vec<u64> = sizes.into_iter().filter(|s| *s > 0).collect();
            expected.sort_by(|a, b| b.cmp(a));
            expected.truncate(limit);
            prop_assert_eq!(top.into_items().collect::<Vec<_>>(), expected);
        }
    }
}
