//! One case, tried once.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use weir_agent::{HostAddress, Remote, Task, Transport};
use weir_doctor::collect::{self, OpenWindow, Scope};
use weir_doctor::diagnosis::{Diagnosis, diagnose};
use weir_doctor::evidence::Evidence;
use weir_doctor::finding::Severity;
use weir_doctor::recipe::{LabHost, Step};
use weir_sys::process::{install, which};
use weir_sys::{ProcRoot, Stop};

use crate::Error;
use crate::case::{Case, Kind};
use crate::lab::{Hosts, name};
use crate::load;
use crate::step::perform;
use crate::traffic::Running;
use crate::wait::wait;

/// Time that traffic has to get going before the window begins.
const SETTLE: Duration = Duration::from_millis(500);
/// Longest time that changing a setting of the machine may take.
const SHORT: Duration = Duration::from_secs(10);

/// How cases are tried.
#[derive(Debug, Clone)]
pub struct Options {
    /// Length of the window.
    pub window: Duration,
    /// Settings of the whole machine may be changed (and are put back).
    pub machine: bool,
    /// Raised to end early.
    pub stop: Stop,
}

/// The doctor's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// As it should.
    Right,
    /// Found, but not where it belongs in the list.
    Late,
    /// Not found; of a healthy load: something was found.
    Wrong,
    /// A healthy load that did not happen: that nothing was found says nothing.
    Void,
}

/// How a case went.
#[derive(Debug, Clone, Default)]
pub struct CaseTrial {
    /// Right or wrong; `None` if it could not be tried.
    pub answer: Option<Answer>,
    /// Why it could not be tried.
    pub skipped: Option<String>,
    /// Causes found, in their order, with place and severity.
    pub found: Vec<(String, String, Severity)>,
    /// The doctor's finding.
    pub diagnosis: Option<Diagnosis>,
    /// The object of the finding.
    pub evidence: Option<Evidence>,
    /// The faults while sending; a fault of the recipe, not of the doctor. It makes a healthy load void.
    pub troubles: Vec<String>,
}

/// Tries a case once, in a lab of its own.
///
/// # Errors
/// If the lab cannot be built or a step of a recipe fails.
pub fn run(case: &Case, options: &Options) -> Result<CaseTrial, Error> {
    if let Some(why) = unfit(case, options) {
        return Ok(CaseTrial::skipped(why));
    }
    let settings: BTreeMap<String, String> =
        case.machine_settings().map(|(n, v)| ((*n).to_owned(), v.clone())).collect();
    let mut hosts = Hosts::build(&format!("selftest-{}", std::process::id()))?;
    for step in case.recipes.iter().flat_map(|r| &r.setup) {
        perform(&mut hosts, step, &options.stop)?;
    }
    // Dropped last: an agent of its own puts the settings back, also when this process is killed.
    let _keeper = if settings.is_empty() {
        None
    } else {
        let keeper =
            Remote::start("this machine", &Transport::Host(HostAddress::Local), &Default::default())?;
        keeper.call(Task::HostSysctls { values: settings }, SHORT)?;
        Some(keeper)
    };
    let traffic: Vec<_> = case.recipes.iter().flat_map(|r| r.traffic.clone()).collect();
    let running = Running::start(&hosts, &traffic)?;
    let alone: Vec<LabHost> = case.recipes.iter().filter(|r| r.alone).map(|r| r.at).collect();
    let watched = watch(&hosts, &alone, options);
    let mut troubles = running.end();
    let evidence = watched?;
    if case.kind == Kind::Healthy {
        troubles.extend(load::missed(&traffic, &evidence));
    }
    let diagnosis = diagnose(&evidence);
    let found: Vec<_> =
        diagnosis.findings.iter().map(|f| (f.cause.clone(), f.place.clone(), f.severity)).collect();
    let answer = Some(judge(case, &found, &troubles));
    let (diagnosis, evidence) = (Some(diagnosis), Some(evidence));
    Ok(CaseTrial { answer, skipped: None, found, diagnosis, evidence, troubles })
}

fn watch(hosts: &Hosts, alone: &[LabHost], options: &Options) -> Result<Evidence, Error> {
    wait(SETTLE, &options.stop)?;
    let asked = collect::Options { scope: Scope::These(hosts.named(alone)), ..collect::Options::default() };
    let watch = OpenWindow::begin(asked)?;
    wait(options.window, &options.stop)?;
    Ok(watch.end())
}

/// Why a case cannot be tried here.
fn unfit(case: &Case, options: &Options) -> Option<String> {
    let needs = case.recipes.iter().flat_map(|r| &r.needs).find(|p| which(p).is_none());
    if let Some(program) = needs {
        return Some(format!("{program} is not installed; {}", install(program)));
    }
    let steps = || case.recipes.iter().flat_map(|recipe| &recipe.setup);
    if steps().any(|step| matches!(step, Step::FastPath(..)))
        && let Some(why) = crate::fastpath::why_not()
    {
        return Some(why);
    }
    let mut machine = case.machine_settings();
    if !options.machine {
        return machine.next().map(|(name, _)| format!("it changes {name} of the whole machine"));
    }
    // A namespace of a container shows the machine's settings and may not change them.
    let root = ProcRoot::default();
    let read_only = |name: &&(&str, String)| {
        let path = root.path(&format!("proc/sys/{}", name.0.replace('.', "/")));
        std::fs::OpenOptions::new().write(true).open(path).is_err()
    };
    machine.find(read_only).map(|(name, _)| format!("{name} of the machine cannot be changed from here"))
}

fn judge(case: &Case, found: &[(String, String, Severity)], troubles: &[String]) -> Answer {
    if case.kind == Kind::Healthy {
        let silent = found.iter().all(|(_, _, severity)| *severity < Severity::Warning);
        return match (silent, troubles) {
            (false, _) => Answer::Wrong,
            (true, []) => Answer::Right,
            (true, _) => Answer::Void,
        };
    }
    let within = if case.kind == Kind::Pair { 3 } else { 1 };
    let at = |cause: &str, place: &str| {
        found.iter().position(|(c, p, _)| c == cause && (p == place || p == "machine"))
    };
    let places: Vec<_> = case.expected.iter().map(|(cause, place)| at(cause, name(*place))).collect();
    if places.iter().all(|p| p.is_some_and(|p| p < within)) {
        Answer::Right
    } else if places.iter().all(Option::is_some) {
        Answer::Late
    } else {
        Answer::Wrong
    }
}

impl CaseTrial {
    fn skipped(why: String) -> Self {
        CaseTrial { skipped: Some(why), ..CaseTrial::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(kind: Kind, expected: &[(&'static str, LabHost)]) -> Case {
        Case { name: "x".into(), kind, expected: expected.to_vec(), recipes: Vec::new() }
    }

    fn found(list: &[(&str, &str, Severity)]) -> Vec<(String, String, Severity)> {
        list.iter().map(|(c, p, s)| ((*c).to_owned(), (*p).to_owned(), *s)).collect()
    }

    #[test]
    fn only_the_first_finding_in_the_right_place_is_right() {
        use Severity::{Critical, Note, Warning};
        let one = case(Kind::Cause, &[("a", LabHost::Gateway)]);
        assert_eq!(
            judge(&one, &found(&[("a", "gateway", Critical), ("b", "gateway", Note)]), &[]),
            Answer::Right
        );
        assert_eq!(judge(&one, &found(&[("b", "gateway", Note), ("a", "gateway", Note)]), &[]), Answer::Late);
        assert_eq!(judge(&one, &found(&[("a", "responder", Critical)]), &[]), Answer::Wrong);
        assert_eq!(judge(&one, &[], &[]), Answer::Wrong);
        let two = case(Kind::Pair, &[("a", LabHost::Gateway), ("b", LabHost::Gateway)]);
        let list = [("c", "gateway", Critical), ("b", "gateway", Warning), ("a", "gateway", Note)];
        assert_eq!(judge(&two, &found(&list), &[]), Answer::Right);
        let healthy = case(Kind::Healthy, &[]);
        assert_eq!(judge(&healthy, &found(&[("a", "gateway", Note)]), &[]), Answer::Right);
        assert_eq!(judge(&healthy, &found(&[("a", "gateway", Warning)]), &[]), Answer::Wrong);
        // A load that broke down is no healthy one; one that was made on purpose may break something.
        let trouble = ["connections to 198.19.0.2:9003: no route".to_owned()];
        assert_eq!(judge(&healthy, &[], &trouble), Answer::Void);
        assert_eq!(judge(&healthy, &found(&[("a", "gateway", Warning)]), &trouble), Answer::Wrong);
        assert_eq!(judge(&one, &found(&[("a", "gateway", Critical)]), &trouble), Answer::Right);
    }
}
