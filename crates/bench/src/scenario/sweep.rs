//! Scaling curves: an entry with `sweep = { key = "flows", values = [1, 1000, 64000] }` stands for one entry per value.
//!
//! Each is read and checked as if it had been written by hand, under the name `NAME-VALUE`. The text keeps the sweep: what
//! chooses among the points changes its list of values.

use std::iter;

use serde::Deserialize;
use toml_edit::{Array, InlineTable, Item, Key, Table, TableLike, Value};
use weir_record::run::Point;

use super::check;
use super::error::nearest;
use super::problem::{Source, as_table};
use super::section::{Result, Section, split};

/// The key of an entry that makes it a curve.
pub(super) const SWEEP: &str = "sweep";

/// More points than this are hours of trials and no better curve.
const MOST_POINTS: usize = 64;

/// Up to here whole numbers are exact, and names of points short.
const GREATEST: f64 = 1e15;

/// An entry of a list of tables, or one point of it.
pub(super) struct Written {
    pub(super) table: Table,
    pub(super) point: Option<Point>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSweep {
    key: String,
    values: Vec<f64>,
}

impl RawSweep {
    fn validate(&self) -> std::result::Result<(), String> {
        let keys = Key::parse(&self.key).unwrap_or_default();
        if keys.is_empty() || ["name", "kind", SWEEP].contains(&keys[0].get()) {
            return Err(format!(
                "key = \"{}\": expected an option that is a number, like \"rate-pps\"",
                self.key
            ));
        }
        if !(1..=MOST_POINTS).contains(&self.values.len()) {
            return Err(format!("values: {} of them; valid is 1 to {MOST_POINTS}", self.values.len()));
        }
        for (i, value) in self.values.iter().enumerate() {
            if !(0.0..=GREATEST).contains(value) {
                return Err(format!("values: {value:e} is no number from 0 to {GREATEST:e}"));
            }
            if self.values[..i].contains(value) {
                return Err(format!("values: {value} is there twice"));
            }
        }
        Ok(())
    }
}

/// The entries of `[[heading]]`, those with a sweep as one per value.
pub(super) fn expand(source: Source<'_>, heading: &str, tables: &[Table]) -> Result<Vec<Written>> {
    let mut written: Vec<Written> = Vec::new();
    for table in tables {
        let section = Section { source, table, heading };
        let (_, entry) = split(table, &[SWEEP]);
        let Some(item) = table.get(SWEEP) else {
            written.push(Written { table: entry, point: None });
            continue;
        };
        let raw = read(&section, item)?;
        let name = ["name", "kind"].iter().find_map(|key| entry.get(key)).and_then(Item::as_str);
        let Some(family) = name else {
            return Err(section.error(Some(SWEEP), format!("{heading} with a sweep has no `name`"), None));
        };
        if written.iter().any(|w| w.point.as_ref().is_some_and(|p| p.family == family)) {
            let what = format!("name \"{family}\" is there twice; give each its own `name`");
            return Err(section.error(Some("name"), what, None));
        }
        let values = as_table(item).and_then(|sweep| sweep.get("values").cloned());
        let values = values.as_ref().and_then(Item::as_array).into_iter().flatten();
        for (number, value) in raw.values.iter().zip(values) {
            let table = point(&entry, family, &raw.key, (*number, value))
                .map_err(|what| section.error(Some(SWEEP), what, None))?;
            let point = Point { family: family.to_owned(), key: raw.key.clone(), value: *number };
            written.push(Written { table, point: Some(point) });
        }
    }
    Ok(written)
}

/// The sweep itself.
fn read(entry: &Section<'_>, item: &Item) -> Result<RawSweep> {
    let Some(table) = as_table(item) else {
        let what = format!(
            "{}: `{SWEEP}` must be a table like {{ key = \"flows\", values = [1, 1000] }}",
            entry.heading
        );
        return Err(entry.error(Some(SWEEP), what, None));
    };
    let heading = format!("{} sweep", entry.heading);
    let section = Section { source: entry.source, table: &table, heading: &heading };
    section.read(&table, &[], &RawSweep::validate).map_err(|error| match error.line {
        Some(_) => error,
        // A table in one line has no place of its own.
        None => entry.error(Some(SWEEP), error.what, error.nearest),
    })
}

/// Builds the entry with one value of its sweep. The value keeps its position in the text, so errors point there.
fn point(
    entry: &Table,
    family: &str,
    path: &str,
    (number, value): (f64, &Value),
) -> std::result::Result<Table, String> {
    let mut table = entry.clone();
    let name = Value::from(format!("{family}-{}", readable(number)));
    match table.get_mut("name") {
        Some(old) => *old = Item::Value(name),
        None => drop(table.insert("name", Item::Value(name))),
    }
    let keys = Key::parse(path).map_err(|_| format!("\"{path}\" is not a key"))?;
    let (last, outer) = keys.split_last().ok_or("the sweep's key is empty")?;
    let mut here: &mut dyn TableLike = &mut table;
    for key in outer {
        let inner = here.entry(key.get()).or_insert(Item::Value(InlineTable::new().into()));
        here = inner
            .as_table_like_mut()
            .ok_or_else(|| format!("sweep.key = \"{path}\": `{}` is not a table", key.get()))?;
    }
    if here.contains_key(last.get()) {
        return Err(format!("`{path}` has a value of its own beside those of its sweep"));
    }
    here.insert(last.get(), Item::Value(value.clone()));
    Ok(table)
}

/// Formats a value as a part of a name: `64k`, `1M`, `1500`, `0_5`. It shortens only exact values.
fn readable(value: f64) -> String {
    for (divisor, letter) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value != 0.0 && value % divisor == 0.0 {
            return format!("{}{letter}", value / divisor);
        }
    }
    // Points separate the parts of a bound in `require`.
    value.to_string().replace('.', "_")
}

/// A name that nothing else has: neither an entry nor a sweep, to which `--workload` and presets refer as well.
pub(super) fn unique<'a>(
    section: &Section<'_>,
    (name, point): (&'a str, Option<&'a Point>),
    earlier: impl Iterator<Item = (&'a str, Option<&'a Point>)> + Clone,
) -> Result<()> {
    let family = point.map(|p| p.family.as_str());
    let taken = earlier.flat_map(|(name, point)| {
        let other = point.map(|p| p.family.as_str()).filter(|f| Some(*f) != family);
        iter::once(name).chain(other)
    });
    iter::once(name).chain(family).try_for_each(|name| check::unique(section, name, taken.clone()))
}

/// Names by which entries can be chosen: their own, and those of their sweeps.
pub(super) fn choices<'a>(entries: impl Iterator<Item = (&'a str, Option<&'a Point>)>) -> Vec<&'a str> {
    let mut names = Vec::new();
    for (name, point) in entries {
        let family = point.map(|p| p.family.as_str()).filter(|f| !names.contains(f));
        names.extend(family);
        names.push(name);
    }
    names
}

/// The entries that are chosen by their own name or by that of their sweep.
pub(super) fn chosen<'a>(
    entries: impl Iterator<Item = (&'a str, Option<&'a Point>)>,
    chosen: &[String],
) -> Vec<String> {
    let named = |name: &str| chosen.iter().any(|c| c == name);
    entries
        .filter(|(name, point)| named(name) || point.is_some_and(|p| named(&p.family)))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// No variant has that name: what is meant, and the nearest that can be a baseline.
pub(super) fn no_baseline<'a>(
    name: &str,
    entries: impl Iterator<Item = (&'a str, Option<&'a Point>)> + Clone,
) -> (String, Option<String>) {
    let first = entries.clone().find(|(_, point)| point.is_some_and(|p| p.family == name));
    match first {
        Some((point, _)) => {
            (format!("baseline = \"{name}\" is a sweep: name one of its points"), Some(point.to_owned()))
        }
        None => (
            format!("baseline = \"{name}\": no variant has that name"),
            nearest(name, entries.map(|(name, _)| name)).map(str::to_owned),
        ),
    }
}

/// For each entry of the text the numbers of the entries that it stands for; the points of a sweep follow each other.
fn groups<'a>(entries: impl Iterator<Item = (&'a str, Option<&'a Point>)>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (name, point) in entries {
        let family = point.map(|p| p.family.as_str());
        match groups.last_mut() {
            Some(last) if family.is_some() && last.family == family => last.names.push(name),
            _ => groups.push(Group { family, names: vec![name] }),
        }
    }
    groups
}

struct Group<'a> {
    family: Option<&'a str>,
    names: Vec<&'a str>,
}

/// Names of the entries as they stand in the text: of a sweep that of the whole.
pub(super) fn headings<'a>(entries: impl Iterator<Item = (&'a str, Option<&'a Point>)>) -> Vec<&'a str> {
    groups(entries).into_iter().map(|group| group.family.unwrap_or(group.names[0])).collect()
}

/// Takes entries out of a list of the text, and of sweeps the values, that `kept` does not name.
pub(super) fn retain<'a>(
    list: Option<&mut Item>,
    entries: impl Iterator<Item = (&'a str, Option<&'a Point>)>,
    kept: &dyn Fn(&str) -> bool,
) {
    let groups = groups(entries);
    let mut next = groups.iter();
    // Every entry of the text is a group: the scenario was read from it.
    let mut stays = |entry: &mut dyn TableLike| {
        let Some(group) = next.next() else { return true };
        if let Some(values) = values(entry) {
            let mut names = group.names.iter();
            values.retain(|_| names.next().is_none_or(|name| kept(name)));
        }
        group.names.iter().any(|name| kept(name))
    };
    match list {
        Some(Item::ArrayOfTables(tables)) => {
            let mut stay: Vec<bool> = tables.iter_mut().map(|table| stays(table)).collect();
            tables.retain(|_| stay.remove(0));
        }
        Some(Item::Value(Value::Array(array))) => {
            let mut each = |value: &mut Value| value.as_inline_table_mut().is_none_or(|table| stays(table));
            let mut stay: Vec<bool> = array.iter_mut().map(&mut each).collect();
            array.retain(|_| stay.remove(0));
        }
        Some(item) => {
            let stay = item.as_table_like_mut().is_none_or(stays);
            if !stay {
                *item = Item::None;
            }
        }
        None => {}
    }
}

/// The values of an entry's sweep.
fn values(entry: &mut dyn TableLike) -> Option<&mut Array> {
    entry.get_mut(SWEEP)?.as_table_like_mut()?.get_mut("values")?.as_array_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::scenario::Scenario;

    /// Every line has its place in the tables below.
    const CURVES: &str = r#"name = "curves"
title = "Curves"
[plan]
baseline = "routed"
[preset.quick]
variants = ["routed", "filled-0"]
workloads = ["load"]
[[variant]]
kind = "routed"
[[variant]]
name = "filled"
kind = "nft-masquerade"
sweep = { key = "extra.rules", values = [0, 10, 1000] }
[[workload]]
name = "load"
kind = "udp-stream"
sweep = { key = "rate-pps", values = [1000, 64000, 1000000] }
[[workload]]
name = "ask"
kind = "tcp-rr"
"#;

    fn curves() -> Scenario {
        Scenario::load(CURVES, "curves.toml").unwrap_or_else(|e| panic!("{e}"))
    }

    fn variants(scenario: &Scenario) -> Vec<&str> {
        scenario.variants.iter().map(|v| v.name.as_str()).collect()
    }

    fn workloads(scenario: &Scenario) -> Vec<&str> {
        scenario.workloads.iter().map(|w| w.name.as_str()).collect()
    }

    /// The same scenario without sweeps: what they must come to.
    fn by_hand() -> Scenario {
        let filled = |n: u32| {
            format!(
                "[[variant]]\nname = \"filled-{n}\"\nkind = \"nft-masquerade\"\nextra = {{ rules = {n} }}\n"
            )
        };
        let load = |name: &str, n: u32| {
            format!("[[workload]]\nname = \"load-{name}\"\nkind = \"udp-stream\"\nrate-pps = {n}\n")
        };
        let (head, _) = CURVES.split_once("[[variant]]\nname").unwrap();
        let head = head.replace("[\"load\"]", "[\"load-1k\", \"load-64k\", \"load-1M\"]");
        let text = [
            head,
            [0, 10, 1000].map(filled).concat().replace("-1000\"", "-1k\""),
            [("1k", 1000), ("64k", 64_000), ("1M", 1_000_000)].map(|(s, n)| load(s, n)).concat(),
            "[[workload]]\nname = \"ask\"\nkind = \"tcp-rr\"\n".to_owned(),
        ];
        Scenario::load(&text.concat(), "by-hand.toml").unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn a_sweep_is_what_its_points_written_by_hand_are() {
        let (mut swept, hand) = (curves(), by_hand());
        let points: Vec<Point> = swept.workloads.iter_mut().filter_map(|w| w.point.take()).collect();
        let point = |value| Point { family: "load".into(), key: "rate-pps".into(), value };
        assert_eq!(points, [1e3, 64e3, 1e6].map(point));
        let points: Vec<Point> = swept.variants.iter_mut().filter_map(|v| v.point.take()).collect();
        let point = |value| Point { family: "filled".into(), key: "extra.rules".into(), value };
        assert_eq!(points, [0.0, 10.0, 1000.0].map(point));
        assert_eq!(swept.workloads, hand.workloads);
        assert_eq!(swept.variants, hand.variants);
        assert_eq!(swept.presets, hand.presets);
        assert_eq!(swept.plan, hand.plan);
    }

    #[test]
    fn points_are_chosen_by_their_own_name_or_that_of_the_sweep() {
        let mut scenario = curves();
        scenario.select(&[], &["load".into()]).unwrap();
        assert_eq!(workloads(&scenario), ["load-1k", "load-64k", "load-1M"]);
        assert_eq!(variants(&scenario), ["routed", "filled-0", "filled-10", "filled-1k"]);
        scenario.select(&["filled-10".into()], &["load-64k".into(), "load-1M".into()]).unwrap();
        assert_eq!(workloads(&scenario), ["load-64k", "load-1M"]);
        assert_eq!(variants(&scenario), ["routed", "filled-10"], "the baseline stays");
        let again = Scenario::load(scenario.to_toml(), "again").unwrap();
        assert_eq!((again.variants, again.workloads), (scenario.variants, scenario.workloads));
        let mut scenario = curves();
        scenario.apply_preset("quick").unwrap();
        assert_eq!(variants(&scenario), ["routed", "filled-0"]);
        assert_eq!(workloads(&scenario), ["load-1k", "load-64k", "load-1M"]);
        let error = scenario.select(&[], &["laod".into()]).unwrap_err();
        assert_eq!(error.nearest.as_deref(), Some("load"));
    }

    #[test]
    fn an_option_is_set_for_the_whole_sweep() {
        let mut scenario = curves();
        scenario.set("workload.load.duration=2s").unwrap();
        assert!(scenario.workloads[..3].iter().all(|w| w.duration.as_secs() == 2));
        scenario.set("workload.ask.duration=3s").unwrap();
        assert_eq!(scenario.workloads[3].duration.as_secs(), 3);
        scenario.set("workload.load.sweep.values=[5, 7]").unwrap();
        assert_eq!(workloads(&scenario), ["load-5", "load-7", "ask"]);
        let error = scenario.set("workload.load-5.duration=2s").unwrap_err();
        assert_eq!(error.nearest.as_deref(), Some("load"), "a point is no entry of the text");
    }

    #[test]
    fn the_baseline_is_one_variant() {
        let mut scenario = curves();
        scenario.set("preset.quick.variants=[\"filled\"]").unwrap_err();
        scenario.set("preset.quick.variants=[\"routed\", \"filled\"]").unwrap();
        scenario.set("plan.baseline=filled-10").unwrap();
        let twins: Vec<_> = scenario.runs().into_iter().filter(|r| r.twin_of.is_some()).collect();
        assert_eq!(twins.len(), 1);
        assert_eq!((twins[0].twin_of.as_deref(), &twins[0].point), (Some("filled-10"), &None));
        let error = scenario.set("plan.baseline=filled").unwrap_err();
        assert!(error.what.contains("is a sweep"), "{error}");
        assert_eq!(error.nearest.as_deref(), Some("filled-0"));
    }

    /// A text of [`CURVES`], its replacement, the line of the message and a part of it.
    const MISTAKES: &[(&str, &str, usize, &str)] = &[
        ("[1000, 64000, 1000000]", "[1000, 64000,\n -1]", 17, "-1e0 is no number from 0 to 1e15"),
        ("[1000, 64000, 1000000]", "[1000, 1000.0]", 17, "1000 is there twice"),
        ("[1000, 64000, 1000000]", "[]", 17, "valid is 1 to 64"),
        ("[1000, 64000, 1000000]", "[\"1000\"]", 17, "expected a number"),
        ("[1000, 64000, 1000000]", "[1000, 1e300]", 17, "1e300 is no number from 0 to 1e15"),
        ("[1000, 64000, 1000000]", "[1000, inf]", 17, "expected a finite number"),
        ("[1000, 64000, 1000000]", "[1000,\n 0]", 18, "rate-pps = 0"),
        ("\"rate-pps\"", "\"rate-bbs\"", 17, "unknown key `rate-bbs` in [[workload]]"),
        ("\"rate-pps\"", "\"name\"", 17, "expected an option that is a number"),
        ("\"rate-pps\"", "\"rate pps\"", 17, "expected an option that is a number"),
        ("\"rate-pps\"", "\"kind.x\"", 17, "expected an option that is a number"),
        ("key = \"rate-pps\", ", "", 17, "[[workload]] sweep has no `key`"),
        ("key = \"rate-pps\",", "key = \"rate-pps\", from = 1,", 17, "unknown key `from`"),
        ("kind = \"udp-stream\"", "kind = \"udp-stream\"\nrate-pps = 5", 18, "a value of its own beside"),
        ("\"extra.rules\"", "\"ports.rules\"", 10, "ports = { rules = 0 }: expected a text"),
        ("[0, 10, 1000]", "[0, 10,\n 10001]", 14, "rules = 10001: valid is 0 to 10000"),
        ("[0, 10, 1000]", "[0, 10.5]", 13, "rules = 10.5: expected a whole number"),
        ("sweep = { key = \"extra", "swep = { key = \"extra", 13, "unknown key `swep`"),
        ("name = \"ask\"", "name = \"load\"", 19, "name \"load\" is there twice"),
        ("name = \"ask\"", "name = \"load-64k\"", 19, "name \"load-64k\" is there twice"),
        ("kind = \"tcp-rr\"", "kind = \"tcp-rr\"\nsweep = 3", 21, "`sweep` must be a table like"),
        ("name = \"filled\"", "name = \"fil led\"", 11, "expected 1 to 40"),
        ("\"filled-0\"", "\"filled-1\"", 6, "there is no \"filled-1\""),
    ];

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (here, instead, line, what) in MISTAKES {
            assert_eq!(CURVES.matches(here).count(), 1, "{here}");
            let error = Scenario::load(&CURVES.replace(here, instead), "curves.toml").unwrap_err();
            let told = (error.line, error.what.contains(what));
            assert_eq!(told, (Some(*line), true), "{instead}: {error}");
        }
    }

    #[test]
    fn values_in_names_are_exact_and_short() {
        for (value, name) in [
            (0.0, "0"),
            (1.0, "1"),
            (1500.0, "1500"),
            (64_000.0, "64k"),
            (65_536.0, "65536"),
            (1e6, "1M"),
            (1.5e6, "1500k"),
            (2e9, "2G"),
            (0.5, "0_5"),
        ] {
            assert_eq!(readable(value), name);
        }
    }
}
