//! Differences between two runs apart from their numbers.

use std::collections::BTreeSet;

use weir_record::{HostFacts, Run, Status};
use weir_text::order;

use super::samples::answered_only;
use crate::escape::line;
use crate::view::trials;

/// Differences that may explain a change, one sentence each, the gravest first.
pub(super) fn warnings(before: &Run, after: &Run) -> Vec<String> {
    let mut out = Vec::new();
    let mut differs = |what: &str, a: &str, b: &str| {
        if a != b {
            out.push(format!("{what} differs: {} before, {} after", shown(a), shown(b)));
        }
    };
    differs("scenario", &before.scenario, &after.scenario);
    differs("baseline", before.baseline().unwrap_or_default(), after.baseline().unwrap_or_default());
    differs("testbed", &before.testbed, &after.testbed);
    differs("version of weir", &before.weir, &after.weir);
    for host in &after.hosts {
        match before.hosts.iter().find(|h| h.role == host.role) {
            Some(old) => hosts(old, host, &mut differs),
            None => differs(&format!("set of hosts ({})", host.role), "absent", "present"),
        }
    }
    for host in before.hosts.iter().filter(|h| after.hosts.iter().all(|n| n.role != h.role)) {
        differs(&format!("set of hosts ({})", host.role), "present", "absent");
    }
    if before.scenario_toml != after.scenario_toml {
        out.push("the scenario's text differs".to_owned());
    }
    let names = |run: &Run| -> (BTreeSet<String>, BTreeSet<String>) {
        let variants = run.variants.iter().map(|v| v.name.clone()).collect();
        (variants, run.workloads.iter().map(|w| w.name.clone()).collect())
    };
    let ((old_variants, old_workloads), (new_variants, new_workloads)) = (names(before), names(after));
    for (what, old, new) in
        [("variant", old_variants, new_variants), ("workload", old_workloads, new_workloads)]
    {
        for name in old.symmetric_difference(&new) {
            let which = if old.contains(name) { "first" } else { "second" };
            out.push(format!("{what} {} is only in the {which} run and not compared", line(name)));
        }
    }
    out.extend(definitions(before, after));
    out.extend(unmeasured(before, after));
    for (which, run) in [("first", before), ("second", after)] {
        if matches!(run.status, Status::Running | Status::Interrupted | Status::Failed { .. }) {
            out.push(format!("the {which} run did not end well: {}", crate::words::status(&run.status)));
        }
    }
    out
}

/// Percentiles of operations that were answered against percentiles of all: they are not the same figure.
fn definitions(before: &Run, after: &Run) -> Option<String> {
    let metrics = |run: &Run| run.workloads.iter().flat_map(|w| w.metrics.clone()).collect::<Vec<_>>();
    let survivors = |run: &Run| metrics(run).iter().any(|def| answered_only(run, def));
    let (which, other) = match (survivors(before), survivors(after)) {
        (true, false) => ("first", "second"),
        (false, true) => ("second", "first"),
        _ => return None,
    };
    Some(format!(
        "percentiles are defined differently: the {which} run (record schema 1) counts operations that were answered, the {other} all"
    ))
}

/// Cells that one run measured, and of which the other has void trials only.
fn unmeasured(before: &Run, after: &Run) -> Vec<String> {
    let mut out = Vec::new();
    for (workload, variant) in
        after.workloads.iter().flat_map(|w| after.variants.iter().map(move |v| (&w.name, &v.name)))
    {
        // Valid trials, and all.
        let counts = |run: &Run| {
            let made = trials(run, workload, variant);
            made.fold((0, 0), |(valid, all), t| (valid + usize::from(!t.is_void()), all + 1))
        };
        for (which, run, other) in [("first", before, after), ("second", after, before)] {
            let ((valid, all), (measured, _)) = (counts(run), counts(other));
            if valid == 0 && all > 0 && measured > 0 {
                let cell = format!("{} of {}", line(workload), line(variant));
                out.push(format!("{cell} is not compared: all {all} trials of the {which} run are void"));
            }
        }
    }
    out
}

fn hosts(old: &HostFacts, new: &HostFacts, differs: &mut impl FnMut(&str, &str, &str)) {
    let of = |what: &str| format!("{what} of the {}", new.role);
    differs(&of("host name"), &old.hostname, &new.hostname);
    differs(&of("kernel"), &old.kernel, &new.kernel);
    differs(&of("kernel build"), &old.kernel_build, &new.kernel_build);
    differs(&of("CPU model"), &old.cpu_model, &new.cpu_model);
    differs(&of("number of cores"), &old.cpus.to_string(), &new.cpus.to_string());
    let governor = |h: &HostFacts| h.governor.clone().unwrap_or_else(|| "none".to_owned());
    differs(&of("CPU governor"), &governor(old), &governor(new));
    for (what, a, b) in [
        ("mitigation", &old.mitigations, &new.mitigations),
        ("sysctl", &old.sysctls, &new.sysctls),
        ("program", &old.programs, &new.programs),
        ("kernel feature", &old.features, &new.features),
    ] {
        for key in order::set(a.keys().chain(b.keys())) {
            let value =
                |map: &std::collections::BTreeMap<String, String>| map.get(key).cloned().unwrap_or_default();
            differs(&of(&format!("{what} {key}")), &value(a), &value(b));
        }
    }
    for interface in &new.interfaces {
        let Some(before) = old.interfaces.iter().find(|i| i.name == interface.name) else {
            differs(&of(&format!("interface {}", interface.name)), "absent", "present");
            continue;
        };
        let of = |what: &str| format!("{what} of {} on the {}", interface.name, new.role);
        differs(&of("MTU"), &before.mtu.to_string(), &interface.mtu.to_string());
        differs(&of("driver"), &before.driver, &interface.driver);
        for key in order::set(before.offloads.keys().chain(interface.offloads.keys())) {
            let value = |i: &weir_record::InterfaceFacts| match i.offloads.get(key) {
                Some(true) => "on",
                Some(false) => "off",
                None => "unknown",
            };
            differs(&of(&format!("offload {key}")), value(before), value(interface));
        }
    }
}

fn shown(text: &str) -> String {
    if text.is_empty() { "nothing".to_owned() } else { line(text) }
}
