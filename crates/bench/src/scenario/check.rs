//! Checks of a scenario's values, and of their combinations.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use toml_edit::Table;
use weir_cost::CostBlock;
use weir_gateway::{Topology, VariantKind};
use weir_lab::{Family, Link};
use weir_packets::Delay;
use weir_text::time::duration as duration_in_words;

use super::error::{ScenarioError, nearest};
use super::problem::{Source, as_table};
use super::section::Section;
use super::{Load, Plan, Scenario, Testbed, WorkloadEntry, twin_name};
use crate::require::Requirement;

/// Longest name: table columns and names of files are made of it.
const LONGEST_NAME: usize = 40;

/// Name of a scenario.
pub(super) fn scenario_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(format!("name = \"{name}\": expected 1 to {LONGEST_NAME} of a-z, 0-9 and -"))
}

/// Name of a variant, workload or preset. Points, blanks and signs would read as something else in `--require`.
pub(super) fn name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(format!("name = \"{name}\": expected 1 to {LONGEST_NAME} of A-Z, a-z, 0-9, - and _"))
}

/// Dimensions of a variant: names as those of variants, and values that fit into a table.
pub(super) fn labels(labels: &BTreeMap<String, String>) -> Result<(), String> {
    for (key, value) in labels {
        name(key).map_err(|_| {
            format!("labels: \"{key}\": expected 1 to {LONGEST_NAME} of A-Z, a-z, 0-9, - and _")
        })?;
        let length = value.chars().count();
        if !(1..=LONGEST_NAME).contains(&length) || value.chars().any(char::is_control) {
            return Err(format!(
                "labels.{key} = {value:?}: expected 1 to {LONGEST_NAME} characters, none of them a control character"
            ));
        }
    }
    Ok(())
}

/// A link, which only the lab can make.
pub(super) fn link(link: &Link, testbed: &Testbed) -> Result<(), String> {
    match testbed {
        Testbed::Lab(lab) => {
            link.validate(lab.options.family, lab.options.mtu).map_err(|error| format!("link: {error}"))
        }
        Testbed::Hosts(_) | Testbed::Kubernetes(_) => {
            Err("link: weir makes links in the lab only; the hosts of this testbed have their own".to_owned())
        }
    }
}

/// Checks the target of a path. The lab knows the target by itself.
pub(super) fn target(variant: &VariantKind, testbed: &Testbed) -> Result<(), String> {
    let VariantKind::Path(path) = variant else { return Ok(()) };
    match (path.target, testbed) {
        (None, _) => Ok(()),
        (Some(target), Testbed::Hosts(_) | Testbed::Kubernetes(_)) => {
            family("target", target, testbed.family())
        }
        (Some(target), Testbed::Lab(_)) => Err(format!(
            "target = \"{target}\": the lab's responder has one address; give the variant a `link` of its own"
        )),
    }
}

/// Warm-up of a trial.
pub(super) fn warmup(length: Duration) -> Result<(), String> {
    within("warmup", length, Duration::ZERO, Duration::from_secs(600))
}

/// Measuring window of a trial. Below 100 ms a trial is mostly its own start and end.
pub(super) fn duration(length: Duration) -> Result<(), String> {
    within("duration", length, Duration::from_millis(100), Duration::from_secs(3600))
}

/// Rounds that a workload takes part in.
pub(super) fn rounds(rounds: Option<u32>) -> Result<(), String> {
    match rounds {
        Some(rounds) if !(1..=1000).contains(&rounds) => {
            Err(format!("rounds = {rounds}: valid is 1 to 1000"))
        }
        _ => Ok(()),
    }
}

pub(super) fn within(key: &str, length: Duration, least: Duration, most: Duration) -> Result<(), String> {
    if (least..=most).contains(&length) {
        return Ok(());
    }
    let [length, least, most] = [length, least, most].map(|time| duration_in_words(time.as_secs_f64()));
    Err(format!("{key} = {length}: valid is {least} to {most}"))
}

fn share(key: &str, value: f64, most: f64) -> Result<(), String> {
    if value > 0.0 && value <= most {
        return Ok(());
    }
    Err(format!("{key} = {value}: valid is a share above 0, at most {most} (0.02 is 2 %)"))
}

/// The plan by itself.
pub(super) fn plan(plan: &Plan) -> Result<(), String> {
    if !(1..=1000).contains(&plan.min_rounds) {
        return Err(format!("min-rounds = {}: valid is 1 to 1000", plan.min_rounds));
    }
    if !(plan.min_rounds..=1000).contains(&plan.max_rounds) {
        let (least, most) = (plan.min_rounds, plan.max_rounds);
        return Err(format!("max-rounds = {most}: valid is min-rounds = {least} to 1000"));
    }
    within("budget", plan.budget, Duration::from_secs(1), Duration::from_secs(7 * 86_400))?;
    warmup(plan.warmup)?;
    duration(plan.duration)?;
    share("target", plan.target, 1.0)?;
    share("equivalence", plan.equivalence, 1.0)?;
    share("max-steal", plan.max_steal, 1.0)
}

/// Address of the run's IP version.
pub(super) fn family(key: &str, address: IpAddr, family: Family) -> Result<(), String> {
    if address.is_ipv4() == (family == Family::Ipv4) {
        return Ok(());
    }
    let version = if family == Family::Ipv4 { "IPv4" } else { "IPv6" };
    Err(format!("{key} = \"{address}\": the testbed's family is {version}"))
}

/// Name of an interface (IFNAMSIZ is 16 with the closing zero).
pub(super) fn interface(key: &str, name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_graphic() && !"/\"\\".contains(c);
    if (1..=15).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(format!("{key} = \"{name}\": expected the name of an interface, 1 to 15 characters"))
}

/// A name that no earlier entry has.
pub(super) fn unique<'a>(
    section: &Section<'_>,
    name: &str,
    mut earlier: impl Iterator<Item = &'a str>,
) -> Result<(), ScenarioError> {
    if !earlier.any(|e| e == name) {
        return Ok(());
    }
    let key = if section.table.contains_key("name") { "name" } else { "kind" };
    Err(section.error(Some(key), format!("name \"{name}\" is there twice; give each its own `name`"), None))
}

/// Names that exist, each once.
pub(super) fn chosen(
    section: &Section<'_>,
    key: &str,
    chosen: &[String],
    known: &[&str],
) -> Result<(), ScenarioError> {
    for (i, name) in chosen.iter().enumerate() {
        if !known.contains(&name.as_str()) {
            let what = format!("{key}: there is no \"{name}\" in this scenario");
            return Err(section.error(
                Some(key),
                what,
                nearest(name, known.iter().copied()).map(str::to_owned),
            ));
        }
        if chosen[..i].contains(name) {
            return Err(section.error(Some(key), format!("{key}: \"{name}\" is there twice"), None));
        }
    }
    if chosen.is_empty() && section.table.get(key).is_some_and(|item| item.is_array()) {
        return Err(section.error(
            Some(key),
            format!("{key}: an empty list leaves nothing to measure"),
            None,
        ));
    }
    Ok(())
}

/// Two workloads that can be compared.
pub(super) fn pair(
    section: &Section<'_>,
    workloads: &[WorkloadEntry],
    delay: Delay,
    one: &str,
    other: &str,
) -> Result<(), ScenarioError> {
    if one == other {
        return Err(section.error(Some("with"), format!("\"{one}\" is compared with itself"), None));
    }
    let metrics = |name: &str| {
        let entry = workloads.iter().find(|w| w.name == name);
        entry.map(|w| w.workload.metrics(delay)).unwrap_or_default()
    };
    let others = metrics(other);
    let shared = |m: &weir_record::MetricDef| others.iter().any(|o| o.name == m.name && o.unit == m.unit);
    if metrics(one).iter().any(shared) {
        return Ok(());
    }
    Err(section.error(Some("with"), format!("\"{one}\" and \"{other}\" have no metric in common"), None))
}

/// Ethernet's header and check sequence, which an MTU does not count.
const ETHERNET: u32 = 18;

/// Frames that the testbed's links and IP version can carry.
pub(super) fn carried(load: &Load, testbed: &Testbed) -> Result<(), String> {
    let Load::Packets(packets) = load else { return Ok(()) };
    let mtu = match testbed {
        Testbed::Lab(lab) => Some(lab.options.mtu),
        Testbed::Hosts(_) | Testbed::Kubernetes(_) => None,
    };
    let bytes = packets.frame(testbed.family())?.bytes;
    match mtu {
        Some(mtu) if u32::from(bytes) > mtu + ETHERNET => Err(format!(
            "frame-bytes = {bytes}: the testbed's mtu = {mtu} carries frames of up to {}",
            mtu + ETHERNET
        )),
        _ => Ok(()),
    }
}

/// Between real hosts, weir sends no frames without a bound from the scenario: the network in between may belong to others.
pub(super) fn bounded(load: &Load, testbed: &Testbed) -> Result<(), String> {
    match (load, testbed) {
        (Load::Packets(packets), Testbed::Hosts(_) | Testbed::Kubernetes(_)) if packets.bound().is_none() => Err(
            "no `max-rate`, which single frames need between hosts that are there: without it the first step would be as many as the \
             sender can make; valid is 1 to 100000000 frames a second"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Checks the prices in the scenario itself; the code that needs the prices reads a price file.
pub(super) fn cost(block: &CostBlock, origin: &str) -> Result<(), String> {
    if block.prices.is_some() {
        return Ok(());
    }
    let options = block.select(origin, None).map_err(|error| error.to_string())?;
    weir_cost::answer(&block.question(), &options, &[]).map(drop).map_err(|error| error.to_string())
}

/// Checks that concern several sections.
pub(super) fn together(scenario: &Scenario, source: Source<'_>, root: &Table) -> Result<(), ScenarioError> {
    twin_is_free(scenario, source)?;
    gateway_is_there(scenario, source, root)?;
    deadline(scenario, source, root)?;
    bounds(scenario, source, root)
}

fn bounds(scenario: &Scenario, source: Source<'_>, root: &Table) -> Result<(), ScenarioError> {
    let list = root.get("require").and_then(toml_edit::Item::as_array);
    for (index, text) in scenario.require.iter().enumerate() {
        if let Err(problem) = Requirement::of_scenario(text, scenario) {
            let at = list.and_then(|list| list.get(index)).and_then(toml_edit::Value::span);
            return Err(source.error(at, format!("require \"{text}\": {}", problem.what), problem.nearest));
        }
    }
    Ok(())
}

fn twin_is_free(scenario: &Scenario, source: Source<'_>) -> Result<(), ScenarioError> {
    let twin = twin_name(&scenario.plan.baseline);
    // Names of variants have no blanks, so this holds by itself; if they ever do, runs must not mix two variants.
    match scenario.variants.iter().find(|v| v.name == twin) {
        Some(_) => Err(source.error(None, format!("\"{twin}\" is the name of the A/A twin"), None)),
        None => Ok(()),
    }
}

fn deadline(scenario: &Scenario, source: Source<'_>, root: &Table) -> Result<(), ScenarioError> {
    scenario.check_deadline().map_err(|what| {
        let pods = root.get("testbed").and_then(|testbed| as_table(testbed.get("pods")?));
        let at = pods.as_ref().and_then(|pods| pods.get_key_value("deadline")?.0.span());
        source.error(at, format!("[testbed.pods]: {what}"), None)
    })
}

fn gateway_is_there(scenario: &Scenario, source: Source<'_>, root: &Table) -> Result<(), ScenarioError> {
    if scenario.testbed.has_gateway() {
        return Ok(());
    }
    let needy = scenario.variants.iter().find(|v| v.variant.topology() != Topology::Direct);
    match needy {
        Some(entry) => {
            let at = root.get("testbed").and_then(toml_edit::Item::span);
            let what = format!("[testbed]: variant \"{}\" needs a [testbed.gateway]", entry.name);
            Err(source.error(at, what, None))
        }
        None => Ok(()),
    }
}
