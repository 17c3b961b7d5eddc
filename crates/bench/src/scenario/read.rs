//! TOML to [`Scenario`], section by section.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use toml_edit::{Document, Item, Table};
use weir_cost::CostBlock;
use weir_gateway::VariantKind;
use weir_lab::Link;
use weir_load::Workload;
use weir_packets::Delay;
use weir_record::WorkloadPair;

use super::error::nearest;
use super::problem::{Source, as_table};
use super::section::{Result, Section, split, tables};
use super::span::Span;
use super::sweep::{SWEEP, Written};
use super::{
    Load, Plan, Preset, Scenario, Testbed, VariantEntry, WorkloadEntry, check, patterns, sweep, testbed,
};

const SECTIONS: [&str; 11] = [
    "name", "title", "testbed", "plan", "preset", "variant", "workload", "compare", "patterns", "cost",
    "require",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawHead {
    name: String,
    title: String,
    #[serde(default)]
    require: Vec<String>,
}

/// `[plan]`, or a preset's changes of it.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct RawPlan {
    baseline: Option<String>,
    twin: Option<bool>,
    min_rounds: Option<u32>,
    max_rounds: Option<u32>,
    budget: Option<Span>,
    warmup: Option<Span>,
    duration: Option<Span>,
    target: Option<f64>,
    equivalence: Option<f64>,
    max_steal: Option<f64>,
    diagnose: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct RawPreset {
    variants: Option<Vec<String>>,
    workloads: Option<Vec<String>>,
    set: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawVariantHead {
    name: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    link: Option<Link>,
    #[serde(default)]
    host_sysctls: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawWorkloadHead {
    name: String,
    warmup: Option<Span>,
    duration: Option<Span>,
    rounds: Option<u32>,
    under: Option<Workload>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawPair {
    workload: String,
    with: String,
}

/// The table `[name]`, or an empty one.
fn table(source: Source<'_>, root: &Table, name: &str) -> Result<Table> {
    match root.get(name) {
        None => Ok(Table::new()),
        Some(item) => as_table(item).ok_or_else(|| {
            source.error(item.span(), format!("`{name}` must be a table, begun by [{name}]"), None)
        }),
    }
}

impl Scenario {
    /// Reads and checks the text of a scenario. `origin` is the file's name, for messages.
    ///
    /// # Errors
    /// The first mistake: TOML that cannot be read, unknown keys and kinds, values out of range, names that do not exist or
    /// exist twice.
    pub fn load(text: &str, origin: &str) -> Result<Scenario> {
        let source = Source { text, origin };
        let document = Document::parse(text).map_err(|error| {
            source.error(error.span(), format!("not TOML: {}", error.message().replace('\n', " ")), None)
        })?;
        let root = document.as_table();
        if let Some((key, _)) = root.iter().find(|(key, _)| !SECTIONS.contains(key)) {
            let at = root.get_key_value(key).and_then(|(key, item)| key.span().or_else(|| item.span()));
            let meant = nearest(key, SECTIONS).map(str::to_owned);
            return Err(source.error(at, format!("unknown key or section `{key}`"), meant));
        }
        let (head, _) = split(root, &["name", "title", "require"]);
        let section = Section { source, table: root, heading: "the scenario" };
        let head: RawHead = section.read(&head, &SECTIONS, &|h: &RawHead| check::scenario_name(&h.name))?;

        let testbed = testbed::read(source, &table(source, root, "testbed")?)?;
        let variants = variants(source, &tables(source, root, "variant")?, &testbed)?;
        let plan = plan(source, &table(source, root, "plan")?, None, &variants)?;
        let workloads = workloads(source, &tables(source, root, "workload")?, &plan, &testbed)?;
        let presets = presets(source, &table(source, root, "preset")?, &plan, &variants, &workloads)?;
        let compare = pairs(source, &tables(source, root, "compare")?, &workloads, testbed.delay())?;
        let patterns = patterns::read(source, root, &workloads)?;
        let cost = cost(source, root, &variants)?;
        let scenario = Scenario {
            name: head.name,
            title: head.title,
            testbed,
            plan,
            presets,
            variants,
            workloads,
            compare,
            patterns,
            cost,
            require: head.require,
            notes: Vec::new(),
            text: text.to_owned(),
            origin: origin.to_owned(),
        };
        check::together(&scenario, source, root)?;
        changes_of_presets(&scenario, source, root)?;
        Ok(scenario)
    }
}

/// `[plan]`, or with `base` a preset's changes of it.
fn plan(source: Source<'_>, table: &Table, base: Option<&Plan>, variants: &[VariantEntry]) -> Result<Plan> {
    let section = Section { source, table, heading: if base.is_some() { "preset's plan" } else { "[plan]" } };
    let defaults = Plan {
        baseline: variants[0].name.clone(),
        twin: true,
        min_rounds: 6,
        max_rounds: 30,
        budget: Duration::from_secs(600),
        warmup: Duration::from_millis(300),
        duration: Duration::from_secs(1),
        target: 0.02,
        equivalence: 0.03,
        max_steal: 0.05,
        diagnose: false,
    };
    let base = base.unwrap_or(&defaults);
    let whole = |raw: &RawPlan| Plan {
        baseline: raw.baseline.clone().unwrap_or_else(|| base.baseline.clone()),
        twin: raw.twin.unwrap_or(base.twin),
        min_rounds: raw.min_rounds.unwrap_or(base.min_rounds),
        max_rounds: raw.max_rounds.unwrap_or(base.max_rounds),
        budget: raw.budget.map_or(base.budget, |s| s.0),
        warmup: raw.warmup.map_or(base.warmup, |s| s.0),
        duration: raw.duration.map_or(base.duration, |s| s.0),
        target: raw.target.unwrap_or(base.target),
        equivalence: raw.equivalence.unwrap_or(base.equivalence),
        max_steal: raw.max_steal.unwrap_or(base.max_steal),
        diagnose: raw.diagnose.unwrap_or(base.diagnose),
    };
    let raw: RawPlan = section.read(table, &[], &|raw: &RawPlan| check::plan(&whole(raw)))?;
    let plan = whole(&raw);
    if !variants.iter().any(|v| v.name == plan.baseline) {
        let (what, meant) = sweep::no_baseline(&plan.baseline, variants.iter().map(VariantEntry::named));
        return Err(section.error(Some("baseline"), what, meant));
    }
    Ok(plan)
}

fn variants(source: Source<'_>, tables: &[Table], testbed: &Testbed) -> Result<Vec<VariantEntry>> {
    const HEAD: [&str; 4] = ["name", "labels", "link", "host-sysctls"];
    let mut entries: Vec<VariantEntry> = Vec::new();
    for Written { table, point } in sweep::expand(source, "[[variant]]", tables)? {
        let section = Section { source, table: &table, heading: "[[variant]]" };
        let (head, rest) = split(&table, &HEAD);
        let valid = |raw: &RawVariantHead| {
            raw.name.as_deref().map_or(Ok(()), check::name)?;
            check::labels(&raw.labels)?;
            raw.link.as_ref().map_or(Ok(()), |link| check::link(link, testbed))
        };
        let head: RawVariantHead = section.read(&head, &[], &valid)?;
        let valid = |variant: &VariantKind| variant.validate().and_then(|()| check::target(variant, testbed));
        let variant: VariantKind = section.read(&rest, &[&HEAD[..], &["kind", SWEEP]].concat(), &valid)?;
        let name = head.name.unwrap_or_else(|| variant.kind().to_owned());
        sweep::unique(&section, (&name, point.as_ref()), entries.iter().map(VariantEntry::named))?;
        entries.push(VariantEntry {
            name,
            variant,
            labels: head.labels,
            link: head.link.or_else(|| testbed.link().cloned()).unwrap_or_default(),
            host_sysctls: head.host_sysctls,
            point,
        });
    }
    if entries.is_empty() {
        return Err(source.error(Some(0..0), "a scenario needs at least one [[variant]]".to_owned(), None));
    }
    Ok(entries)
}

fn workloads(
    source: Source<'_>,
    tables: &[Table],
    plan: &Plan,
    testbed: &Testbed,
) -> Result<Vec<WorkloadEntry>> {
    const HEAD: [&str; 5] = ["name", "warmup", "duration", "rounds", "under"];
    let mut entries: Vec<WorkloadEntry> = Vec::new();
    for Written { table, point } in sweep::expand(source, "[[workload]]", tables)? {
        let section = Section { source, table: &table, heading: "[[workload]]" };
        let (head, rest) = split(&table, &HEAD);
        let valid = |raw: &RawWorkloadHead| {
            check::name(&raw.name)?;
            check::warmup(raw.warmup.map_or(plan.warmup, |s| s.0))?;
            check::duration(raw.duration.map_or(plan.duration, |s| s.0))?;
            check::rounds(raw.rounds)?;
            raw.under
                .as_ref()
                .map_or(Ok(()), |load| load.engine().validate().map_err(|e| format!("under: {e}")))
        };
        let head: RawWorkloadHead = section.read(&head, &[], &valid)?;
        let also = [&HEAD[..], &["kind", SWEEP]].concat();
        let valid = |load: &Load| {
            load.validate()?;
            check::carried(load, testbed)?;
            check::bounded(load, testbed)
        };
        let workload: Load = section.read(&rest, &also, &valid)?;
        if let (Load::Packets(_), Some(_)) = (&workload, &head.under) {
            let what = "under: single frames are measured by themselves, since the load would be in their way on the tester, too";
            return Err(section.error(Some("under"), what.to_owned(), None));
        }
        sweep::unique(&section, (&head.name, point.as_ref()), entries.iter().map(WorkloadEntry::named))?;
        entries.push(WorkloadEntry {
            name: head.name,
            workload,
            warmup: head.warmup.map_or(plan.warmup, |s| s.0),
            duration: head.duration.map_or(plan.duration, |s| s.0),
            rounds: head.rounds,
            under: head.under,
            point,
        });
    }
    if entries.is_empty() {
        return Err(source.error(Some(0..0), "a scenario needs at least one [[workload]]".to_owned(), None));
    }
    Ok(entries)
}

fn presets(
    source: Source<'_>,
    root: &Table,
    base: &Plan,
    variants: &[VariantEntry],
    workloads: &[WorkloadEntry],
) -> Result<BTreeMap<String, Preset>> {
    let mut presets = BTreeMap::new();
    for (name, item) in root {
        let heading = format!("[preset.{name}]");
        let Some(table) = as_table(item) else {
            return Err(source.error(item.span(), format!("`preset.{name}` must be a table"), None));
        };
        let section = Section { source, table: &table, heading: &heading };
        check::name(name).map_err(|what| section.error(None, what, None))?;
        let (changes, own) = split(&table, &["plan", "packets"]);
        let raw: RawPreset = section.read(&own, &["plan", "packets"], &|_| Ok(()))?;
        let chosen = |key: &str, chosen: &Option<Vec<String>>, known: &[&str]| {
            chosen.as_ref().map_or(Ok(()), |chosen| check::chosen(&section, key, chosen, known))
        };
        chosen("variants", &raw.variants, &sweep::choices(variants.iter().map(VariantEntry::named)))?;
        chosen("workloads", &raw.workloads, &sweep::choices(workloads.iter().map(WorkloadEntry::named)))?;
        let raw = RawPreset {
            variants: raw.variants.map(|c| sweep::chosen(variants.iter().map(VariantEntry::named), &c)),
            workloads: raw.workloads.map(|c| sweep::chosen(workloads.iter().map(WorkloadEntry::named), &c)),
            set: raw.set,
        };
        let plan = match changes.get("plan") {
            Some(item) => {
                let Some(changes) = as_table(item) else {
                    return Err(section.error(Some("plan"), "`plan` must be a table".to_owned(), None));
                };
                Some(plan(source, &changes, Some(base), variants)?)
            }
            None => None,
        };
        let baseline = &plan.as_ref().unwrap_or(base).baseline;
        if raw.variants.as_ref().is_some_and(|chosen| !chosen.contains(baseline)) {
            let what = format!("variants: the baseline \"{baseline}\" is not among them");
            return Err(section.error(Some("variants"), what, None));
        }
        if let Some(item) = changes.get("packets") {
            let kept = |w: &&WorkloadEntry| raw.workloads.as_ref().is_none_or(|kept| kept.contains(&w.name));
            changes_of_packets(&section, item, workloads.iter().filter(kept))?;
        }
        let RawPreset { variants, workloads, set } = raw;
        presets.insert(name.to_owned(), Preset { variants, workloads, plan, set });
    }
    Ok(presets)
}

/// Checks that the changes of each preset name existing keys and are valid. The check happens at load time, not only when a user
/// applies the preset.
fn changes_of_presets(scenario: &Scenario, source: Source<'_>, root: &Table) -> Result<()> {
    for (name, preset) in &scenario.presets {
        if preset.set.is_empty() {
            continue;
        }
        scenario.clone().apply_preset(name).map_err(|error| {
            let table = root.get("preset").and_then(|presets| as_table(presets.get(name)?));
            let at = table.as_ref().and_then(|table| table.get("set")?.span());
            source.error(at, format!("[preset.{name}]: {}", error.what), error.nearest)
        })?;
    }
    Ok(())
}

/// A preset's changes of its workloads of single frames must be valid for each of them.
fn changes_of_packets<'a>(
    preset: &Section<'_>,
    item: &Item,
    workloads: impl Iterator<Item = &'a WorkloadEntry> + Clone,
) -> Result<()> {
    let Some(table) = as_table(item) else {
        return Err(preset.error(Some("packets"), "`packets` must be a table".to_owned(), None));
    };
    let section = Section { source: preset.source, table: &table, heading: "preset's packets" };
    let valid = |changes: &serde_json::Map<String, serde_json::Value>| {
        workloads.clone().try_for_each(|entry| entry.workload.changed(changes).map(drop))
    };
    section.read(&table, &[], &valid).map(drop)
}

fn pairs(
    source: Source<'_>,
    tables: &[Table],
    workloads: &[WorkloadEntry],
    delay: Delay,
) -> Result<Vec<WorkloadPair>> {
    let known: Vec<&str> = workloads.iter().map(|w| w.name.as_str()).collect();
    let mut pairs = Vec::new();
    for table in tables {
        let section = Section { source, table, heading: "[[compare]]" };
        let raw: RawPair = section.read(table, &[], &|_| Ok(()))?;
        for (key, name) in [("workload", &raw.workload), ("with", &raw.with)] {
            check::chosen(&section, key, std::slice::from_ref(name), &known)?;
        }
        check::pair(&section, workloads, delay, &raw.workload, &raw.with)?;
        pairs.push(WorkloadPair { workload: raw.workload, with: raw.with });
    }
    Ok(pairs)
}

fn cost(source: Source<'_>, root: &Table, variants: &[VariantEntry]) -> Result<Option<CostBlock>> {
    let Some(item) = root.get("cost") else { return Ok(None) };
    let Some(table) = as_table(item) else {
        return Err(source.error(item.span(), "`cost` must be a table, begun by [cost]".to_owned(), None));
    };
    let section = Section { source, table: &table, heading: "[cost]" };
    let block: CostBlock =
        section.read(&table, &[], &|block: &CostBlock| check::cost(block, source.origin))?;
    let known: Vec<&str> = variants.iter().map(|v| v.name.as_str()).collect();
    let named: Vec<String> = block.variants.keys().cloned().collect();
    check::chosen(&section, "variants", &named, &known)?;
    Ok(Some(block))
}
