//! Parts of variants that are in effect as long as this process holds them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Error, Place};

/// Parts of one kind, by the tag of their place.
pub(crate) struct Held<T>(Mutex<Vec<(String, T)>>);

impl<T> Held<T> {
    pub(crate) const fn new() -> Self {
        Held(Mutex::new(Vec::new()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, place: &Place, part: T) {
        self.lock().push((place.tag.clone(), part));
    }

    /// Ends the part of that tag, if it is there.
    pub(crate) fn remove(&self, tag: &str) {
        self.lock().retain(|(held, _)| held != tag);
    }

    /// Does that with the part of that tag; `None` if it is not there.
    pub(crate) fn with<R>(&self, tag: &str, f: impl FnOnce(&T) -> R) -> Option<R> {
        self.lock().iter().find(|(held, _)| held == tag).map(|(_, part)| f(part))
    }
}

/// Fails unless a variant's programs are where they were attached; `None`: they are not held.
pub(crate) fn must_be_attached(kind: &str, attached: Option<bool>) -> Result<(), Error> {
    let why = match attached {
        Some(true) => return Ok(()),
        Some(false) => "an interface is gone, and the program at it went with it",
        None => "its programs are not loaded",
    };
    Err(Error::NotInEffect(format!("{kind}: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::place_v4;

    #[test]
    fn a_part_is_found_by_its_tag_until_it_is_removed() {
        let held = Held::new();
        held.add(&Place { tag: "a".into(), ..place_v4() }, 1);
        held.add(&Place { tag: "b".into(), ..place_v4() }, 2);
        assert_eq!(held.with("b", |part| *part), Some(2));
        held.remove("b");
        assert_eq!((held.with("a", |part| *part), held.with("b", |part| *part)), (Some(1), None));
    }
}
