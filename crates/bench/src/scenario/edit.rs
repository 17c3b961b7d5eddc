//! Changes of a scenario from the command line: `--preset`, `--variant`, `--workload`; `--set` is in `assign`.
//!
//! They change the text and read it again. So every scenario is built in the same way, and the record always holds the text of
//! the run.

use toml_edit::{DocumentMut, Item, TableLike, Value};
use weir_record::run::Point;

use super::assign::Change;
use super::document::{nth, put, subtable, wrong};
use super::error::{ScenarioError, nearest};
use super::{Scenario, VariantEntry, WorkloadEntry, find, patterns, sweep, twin_name};
use crate::require::Requirement;

type Result<T> = std::result::Result<T, ScenarioError>;

impl Scenario {
    /// The built-in scenario of that name, or the one in the file of that path.
    ///
    /// # Errors
    /// As [`find`] and [`Scenario::load`].
    pub fn open(name_or_path: &str) -> Result<Scenario> {
        let (text, origin) = find(name_or_path)?;
        Scenario::load(&text, &origin)
    }

    /// Applies a preset: its plan over the scenario's, its variants and workloads only, then what it sets. The presets are
    /// gone then.
    ///
    /// # Errors
    /// If no preset has that name.
    pub fn apply_preset(&mut self, name: &str) -> Result<()> {
        let origin = format!("--preset {name}");
        let Some(preset) = self.presets.get(name).cloned() else {
            let what = if self.presets.is_empty() {
                format!("scenario \"{}\" has no presets", self.name)
            } else {
                format!("scenario \"{}\" has no preset of that name", self.name)
            };
            return Err(wrong(&origin, what, nearest(name, self.presets.keys().map(String::as_str))));
        };
        let mut document = self.document();
        let changes = document.get("preset").and_then(|p| p.get(name)).and_then(|p| p.get("plan")).cloned();
        if let Some(changes) = changes.as_ref().and_then(Item::as_table_like) {
            let plan =
                subtable(document.as_table_mut(), "plan").map_err(|what| wrong(&origin, what, None))?;
            for (key, item) in changes.iter() {
                put(plan, key, item.clone());
            }
        }
        let packets = document.get("preset").and_then(|p| p.get(name)?.get("packets")).cloned();
        let notes = self.keep(&mut document, preset.variants.as_deref(), preset.workloads.as_deref());
        if let Some(packets) = packets.as_ref().and_then(Item::as_table_like) {
            change_packets(&mut document, packets);
        }
        // All or nothing: a change that does not fit leaves the scenario as it was.
        let mut changed = self.clone();
        changed.reload(&document, &origin, notes)?;
        let settings: Vec<Change> = (preset.set.iter())
            .map(|text| Change { option: format!("\"{text}\""), assignment: text.clone() })
            .collect();
        changed.set_all(&settings).map_err(|e| ScenarioError {
            what: format!("{}: {}", e.origin, e.what),
            origin,
            ..e
        })?;
        *self = changed;
        Ok(())
    }

    /// Keeps the variants and workloads named, each by its own name or that of its sweep; an empty list keeps all. The baseline stays in any case, since
    /// everything is compared with it.
    ///
    /// # Errors
    /// If no variant or workload has that name.
    pub fn select(&mut self, variants: &[String], workloads: &[String]) -> Result<()> {
        let known = sweep::choices(self.named_variants());
        if let Some(name) = variants.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(self.unknown("variant", name, known));
        }
        let known = sweep::choices(self.named_workloads());
        if let Some(name) = workloads.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(self.unknown("workload", name, known));
        }
        if variants.is_empty() && workloads.is_empty() {
            return Ok(());
        }
        let mut kept = sweep::chosen(self.named_variants(), variants);
        let workloads = sweep::chosen(self.named_workloads(), workloads);
        let mut notes = Vec::new();
        if !variants.is_empty() && !kept.contains(&self.plan.baseline) {
            notes.push(format!("variant {} is measured too: it is the baseline", self.plan.baseline));
            kept.push(self.plan.baseline.clone());
        }
        let some = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
        let mut document = self.document();
        notes.extend(self.keep(&mut document, some(&kept).as_deref(), some(&workloads).as_deref()));
        self.reload(&document, "--variant, --workload", notes)
    }

    /// `--variant NAME` or `--workload NAME` of something that is not there.
    fn unknown(&self, list: &str, name: &str, known: Vec<&str>) -> ScenarioError {
        let what = format!("scenario \"{}\" has no {list} of that name", self.name);
        wrong(&format!("--{list} {name}"), what, nearest(name, known))
    }

    pub(super) fn named_variants(&self) -> impl Iterator<Item = (&str, Option<&Point>)> + Clone {
        self.variants.iter().map(VariantEntry::named)
    }

    pub(super) fn named_workloads(&self) -> impl Iterator<Item = (&str, Option<&Point>)> + Clone {
        self.workloads.iter().map(WorkloadEntry::named)
    }

    pub(super) fn document(&self) -> DocumentMut {
        // The text was read by `load`, by the same parser.
        self.text.parse().unwrap_or_default()
    }

    /// Takes what is not named out of the text, and what refers to it. Returns what else went.
    fn keep(
        &self,
        document: &mut DocumentMut,
        variants: Option<&[String]>,
        workloads: Option<&[String]>,
    ) -> Vec<String> {
        let kept = |list: Option<&[String]>, name: &str| list.is_none_or(|l| l.iter().any(|n| n == name));
        sweep::retain(document.get_mut("variant"), self.named_variants(), &|name| kept(variants, name));
        sweep::retain(document.get_mut("workload"), self.named_workloads(), &|name| kept(workloads, name));
        let pairs = &self.compare;
        retain(document, "compare", |index| {
            kept(workloads, &pairs[index].workload) && kept(workloads, &pairs[index].with)
        });
        patterns::keep(document, self.patterns.as_ref(), &|name| kept(workloads, name));
        document.remove("preset");
        if let Some(priced) = document.get_mut("cost").and_then(|c| c.get_mut("variants"))
            && let Some(priced) = priced.as_table_like_mut()
        {
            for name in self.variants.iter().map(|v| &v.name).filter(|name| !kept(variants, name)) {
                priced.remove(name);
            }
        }
        self.keep_bounds(document, &|variant, workload| kept(variants, variant) && kept(workloads, workload))
    }

    /// Takes out the bounds that can no longer be looked at, and says so.
    fn keep_bounds(&self, document: &mut DocumentMut, kept: &dyn Fn(&str, &str) -> bool) -> Vec<String> {
        let mut notes = Vec::new();
        let baseline = &self.plan.baseline;
        let twin = twin_name(baseline);
        let original = |variant: &'_ str| if variant == twin { baseline.clone() } else { variant.to_owned() };
        let Some(list) = document.get_mut("require").and_then(Item::as_array_mut) else { return notes };
        let mut index = 0;
        list.retain(|_| {
            let bound = Requirement::of_scenario(&self.require[index], self);
            let stays = bound
                .as_ref()
                .is_ok_and(|b| b.targets().iter().all(|t| kept(&original(&t.variant), &t.workload)));
            if !stays {
                notes.push(format!("not required, since it is not measured: {}", self.require[index]));
            }
            index += 1;
            stays
        });
        notes
    }

    pub(super) fn reload(&mut self, document: &DocumentMut, origin: &str, notes: Vec<String>) -> Result<()> {
        let mut changed = Scenario::load(&document.to_string(), &self.origin).map_err(|error| {
            // The text was valid before, so the change is the cause, and its line numbers mean nothing to the user.
            ScenarioError { origin: origin.to_owned(), line: None, ..error }
        })?;
        changed.notes = std::mem::take(&mut self.notes);
        changed.notes.extend(notes);
        *self = changed;
        Ok(())
    }
}

/// Sets options of every workload of single frames.
fn change_packets(document: &mut DocumentMut, options: &dyn TableLike) {
    let Some(workloads) = document.get_mut("workload") else { return };
    for index in 0.. {
        let Some(workload) = nth(workloads, index) else { return };
        if workload.get("kind").and_then(Item::as_str) == Some("packets") {
            options.iter().for_each(|(key, item)| put(workload, key, item.clone()));
        }
    }
}

/// Keeps the entries of a list of tables for which `keep` says so.
fn retain(document: &mut DocumentMut, name: &str, keep: impl Fn(usize) -> bool) {
    let mut index = 0;
    let mut next = || {
        index += 1;
        keep(index - 1)
    };
    match document.get_mut(name) {
        Some(Item::ArrayOfTables(tables)) => tables.retain(|_| next()),
        Some(Item::Value(Value::Array(array))) => array.retain(|_| next()),
        Some(Item::Table(_)) if !next() => drop(document.remove(name)),
        _ => {}
    }
}
