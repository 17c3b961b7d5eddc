//! Registers, and garbage.

use super::*;

#[test]
fn registers_of_both_sizes_are_the_same_memory() {
    assert_eq!([1, 2, 4, 8, 12, 23].map(word).map(|w| w.unwrap().0), [0, 4, 12, 0, 4, 15]);
    assert_eq!([0, 5, 7, 24, u32::MAX].map(word), [None; 5]);
}

proptest::proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        // Every expression takes an attribute's header at least.
        proptest::prop_assert!(list(&bytes).len() <= bytes.len() / 4 + 1);
    }
}
