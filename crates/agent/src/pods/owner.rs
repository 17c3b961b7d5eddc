//! Which run a pod belongs to, and whether that run is still there.
//!
//! A run that was killed cannot remove its pods. So each pod carries, in labels, the process that made it: its number, when it
//! started, and a name for this machine's process numbers. The next run here removes the pods of processes that have ended. A
//! process of another machine is out of sight: its pods stay until they have passed their deadline.

use std::collections::BTreeMap;

use weir_sys::process::Identity;
use weir_sys::state::boot_id;

use super::error::Error;

/// The label of all pods that `weir bench` makes.
pub(super) const COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "weir-bench");
/// The label with the run.
pub(super) const RUN: &str = "weir/run";
/// The label with the host's role, which a Service may select.
pub(super) const ROLE: &str = "weir/role";
const MACHINE: &str = "weir/owner-machine";
const PROCESS: &str = "weir/owner-process";

/// A run, and the process that makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    /// The run's name, valid as a part of a pod's name.
    pub(super) run: String,
    machine: String,
    process: Identity,
}

impl Owner {
    /// This process, for the run with that identifier.
    pub(super) fn this(run: &str) -> Result<Self, Error> {
        let here = |error: weir_sys::Error| Error::Here(error.to_string());
        Ok(Owner { run: short(run), machine: machine()?, process: Identity::own().map_err(here)? })
    }

    /// The labels of its pods.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let Identity { pid, start_ticks } = self.process;
        BTreeMap::from([
            ("app.kubernetes.io/name".to_owned(), "weir".to_owned()),
            ("app.kubernetes.io/managed-by".to_owned(), "weir".to_owned()),
            (COMPONENT.0.to_owned(), COMPONENT.1.to_owned()),
            (RUN.to_owned(), self.run.clone()),
            (MACHINE.to_owned(), self.machine.clone()),
            (PROCESS.to_owned(), format!("{pid}-{start_ticks}")),
        ])
    }

    /// True if the process that made a pod with these labels has ended for certain.
    pub(super) fn has_ended(&self, labels: &BTreeMap<String, String>) -> Result<bool, Error> {
        if labels.get(MACHINE) != Some(&self.machine) {
            return Ok(false);
        }
        let process = labels.get(PROCESS).and_then(|text| {
            let (pid, start_ticks) = text.split_once('-')?;
            Some(Identity { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
        });
        // Labels that weir did not write: not its pod.
        let Some(process) = process else { return Ok(false) };
        process.is_running().map(|running| !running).map_err(|error| Error::Here(error.to_string()))
    }
}

/// The end of a run's identifier, which has the time and a random part: names of pods are 63 characters at most, with the role.
fn short(run: &str) -> String {
    let from = run.len().saturating_sub(20);
    run.get(from..).unwrap_or(run).trim_matches('-').to_owned()
}

/// A name for the place where process numbers are valid: this boot of this machine, and the namespace of processes.
fn machine() -> Result<String, Error> {
    let boot = boot_id().map_err(|error| Error::Here(error.to_string()))?;
    let namespace = std::fs::read_link("/proc/self/ns/pid")
        .map_err(|error| Error::Here(format!("read /proc/self/ns/pid: {error}")))?;
    let number: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    Ok(format!("{boot}.{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_lives_keeps_its_pods_and_a_dead_one_does_not() {
        let owner = Owner::this("nat-instance-20261126-001500-ab12").unwrap();
        assert_eq!(owner.run, "20261126-001500-ab12");
        let mut labels = owner.labels();
        assert!(!owner.has_ended(&labels).unwrap(), "this process runs");
        // The same number, started at another time: another process.
        labels.insert(PROCESS.into(), format!("{}-1", std::process::id()));
        assert!(owner.has_ended(&labels).unwrap());
        labels.insert(MACHINE.into(), "elsewhere.1".into());
        assert!(!owner.has_ended(&labels).unwrap(), "nothing is known about another machine");
        labels.insert(MACHINE.into(), owner.machine.clone());
        labels.insert(PROCESS.into(), "x".into());
        assert!(!owner.has_ended(&labels).unwrap(), "not weir's label");
    }

    #[test]
    fn labels_and_names_are_valid_for_kubernetes() {
        // A name of 40 characters, which may begin with anything of a-z, 0-9 and -.
        let owner = Owner::this(&format!("{}-20261126-001500-ab12", "-".repeat(40))).unwrap();
        assert_eq!(Owner::this("-x").unwrap().run, "x");
        for (key, value) in owner.labels() {
            let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            assert!(
                value.len() <= 63 && ends(value.chars().next()) && ends(value.chars().last()),
                "{key}={value}"
            );
            assert!(value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)), "{key}={value}");
        }
    }
}
