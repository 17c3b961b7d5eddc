//! The contents of sets and maps, asked once for each key.

use std::collections::HashMap;

use weir_netlink::nftables::{Asker, Element, Family, MapVerdicts, Rule, Set};

/// Who knows what sets hold.
pub(super) trait AskSet {
    /// `None` if it cannot be asked, `Some(None)` if the set does not hold the key.
    fn find(&mut self, family: Family, table: &str, set: &str, key: &[u8]) -> Option<Option<Element>>;
    /// All verdicts of a map; `None` if it cannot be asked.
    fn verdicts(&mut self, family: Family, table: &str, map: &str) -> Option<MapVerdicts>;
}

impl AskSet for Asker {
    fn find(&mut self, family: Family, table: &str, set: &str, key: &[u8]) -> Option<Option<Element>> {
        Asker::find(self, family, table, set, key).ok()
    }

    fn verdicts(&mut self, family: Family, table: &str, map: &str) -> Option<MapVerdicts> {
        Asker::verdicts(self, family, table, map).ok()
    }
}

/// The full name of a set.
type SetName = (Family, String, String);

/// Sets as far as they were asked.
pub(super) struct Sets<'a> {
    sets: HashMap<(Family, &'a str, &'a str), &'a Set>,
    asker: &'a mut dyn AskSet,
    found: HashMap<(SetName, Vec<u8>), Option<Option<Element>>>,
    verdicts: HashMap<SetName, Option<MapVerdicts>>,
}

impl<'a> Sets<'a> {
    pub(super) fn new(sets: &'a [Set], asker: &'a mut dyn AskSet) -> Self {
        let sets = sets.iter().map(|s| ((s.family, s.table.as_str(), s.name.as_str()), s)).collect();
        Sets { sets, asker, found: HashMap::new(), verdicts: HashMap::new() }
    }

    pub(super) fn get(&self, rule: &Rule, set: &str) -> Option<&'a Set> {
        self.sets.get(&(rule.family, rule.table.as_str(), set)).copied()
    }

    pub(super) fn find(&mut self, rule: &Rule, set: &str, key: &[u8]) -> Option<Option<Element>> {
        let name = (rule.family, rule.table.clone(), set.to_owned());
        let asker = &mut *self.asker;
        let found = self.found.entry((name, key.to_vec()));
        found.or_insert_with(|| asker.find(rule.family, &rule.table, set, key)).clone()
    }

    pub(super) fn verdicts(&mut self, rule: &Rule, map: &str) -> Option<MapVerdicts> {
        let name = (rule.family, rule.table.clone(), map.to_owned());
        let asker = &mut *self.asker;
        self.verdicts.entry(name).or_insert_with(|| asker.verdicts(rule.family, &rule.table, map)).clone()
    }
}
