//! The contents of sets and maps, asked once for each key.

use std::collections::HashMap;

use weir_netlink::nftables::{Asker, Element, Expression, Family, MapVerdicts, Rule, Set};

/// Keys of a set from the first to the last of each interval.
pub(super) type Keys = Vec<(Vec<u8>, Vec<u8>)>;

/// A set with more elements is not read: no exclusions could name them.
const MOST_KEYS: usize = 1024;

/// Who knows what sets hold.
pub(super) trait AskSet {
    /// `None` if it cannot be asked, `Some(None)` if the set does not hold the key.
    fn find(&mut self, family: Family, table: &str, set: &str, key: &[u8]) -> Option<Option<Element>>;
    /// All verdicts of a map; `None` if it cannot be asked.
    fn verdicts(&mut self, family: Family, table: &str, map: &str) -> Option<MapVerdicts>;
    /// All keys of a set; `None` if it cannot be asked, or has too many.
    fn keys(&mut self, _: Family, _table: &str, _set: &str, _most: usize) -> Option<Keys> {
        None
    }
}

impl AskSet for Asker {
    fn find(&mut self, family: Family, table: &str, set: &str, key: &[u8]) -> Option<Option<Element>> {
        Asker::find(self, family, table, set, key).ok()
    }

    fn verdicts(&mut self, family: Family, table: &str, map: &str) -> Option<MapVerdicts> {
        Asker::verdicts(self, family, table, map).ok()
    }

    fn keys(&mut self, family: Family, table: &str, set: &str, most: usize) -> Option<Keys> {
        Asker::keys(self, family, table, set, most).ok().flatten()
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
    keys: HashMap<SetName, Option<Keys>>,
    /// How many rules fill it.
    fillers: HashMap<(Family, &'a str, &'a str), usize>,
}

impl<'a> Sets<'a> {
    pub(super) fn new(sets: &'a [Set], rules: &'a [Rule], asker: &'a mut dyn AskSet) -> Self {
        let sets = sets.iter().map(|s| ((s.family, s.table.as_str(), s.name.as_str()), s)).collect();
        let mut fillers = HashMap::new();
        for rule in rules {
            for expression in &rule.expressions {
                if let Expression::SetUpdate { set, .. } = expression {
                    *fillers.entry((rule.family, rule.table.as_str(), set.as_str())).or_default() += 1;
                }
            }
        }
        let (found, verdicts, keys) = (HashMap::new(), HashMap::new(), HashMap::new());
        Sets { sets, asker, found, verdicts, keys, fillers }
    }

    /// How many rules fill a set out of packets.
    pub(super) fn fillers(&self, rule: &Rule, set: &str) -> usize {
        self.fillers.get(&(rule.family, rule.table.as_str(), set)).copied().unwrap_or(0)
    }

    /// All keys of a set; `None` if they are too many, or cannot be read.
    pub(super) fn keys(&mut self, rule: &Rule, set: &str) -> Option<Keys> {
        let described = self.get(rule, set)?;
        // A kernel that does not count would have to be asked for all of them.
        let is_small = described.count.map_or(described.anonymous, |count| count as usize <= MOST_KEYS);
        if !is_small {
            return None;
        }
        let name = (rule.family, rule.table.clone(), set.to_owned());
        let asker = &mut *self.asker;
        let ask = || asker.keys(rule.family, &rule.table, set, MOST_KEYS);
        self.keys.entry(name).or_insert_with(ask).clone()
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
