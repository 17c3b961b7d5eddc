//! From a scenario to a run: rounds of trials in random order, until there are enough.

use std::sync::Arc;
use std::time::Instant;

use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use weir_agent::gateway_side::GatewayTask;
use weir_agent::{Answer, Task};
use weir_record::{
    Fault, FaultCode, HostFacts, Run, SCHEMA_VERSION, Status, Trial, VariantFact, VariantInfo, WorkloadInfo,
};
use weir_stats::stop::{self, Decision};

use crate::SHORT;
use crate::analysis::analyse;
use crate::error::Error;
use crate::filtering;
use crate::links;
use crate::order::Order;
use crate::progress::{Event, Progress};
use crate::proof;
use crate::rehearsal;
use crate::scenario::{VariantRun, WorkloadEntry, load};
use crate::site::{Member, Site};
use crate::store::Store;
use crate::summary::conclude;
use crate::testbed::Hosts;
use crate::trial::{self, Rules};

/// The state of a run.
struct Runner<'a> {
    order: &'a Order<'a>,
    run: Run,
    store: Store,
    hosts: Hosts,
    variants: Vec<VariantRun>,
    begun: Instant,
}

/// Makes a run. Once a trial was measured there is a record, whatever happens then: its status says how far it got.
///
/// # Errors
/// If nothing could be measured at all.
pub fn conduct(order: &Order<'_>, progress: &mut dyn Progress) -> Result<Run, Error> {
    let scenario = order.scenario;
    let variants = scenario.runs();
    let mut run = blank(order, &variants);
    progress.tell(Event::Planned {
        run: &run,
        trials: scenario.trials_per_round(),
        seconds: scenario.expected_seconds(),
    });
    // A folder that cannot be written is known now, and not only when there is something to write.
    let store = Store::create(&order.folder)?;
    let begun = Instant::now();
    let hosts = Hosts::open(order, &variants)?;
    progress.tell(Event::HostsUp { testbed: &hosts.description, seconds: begun.elapsed().as_secs_f64() });
    if let Err(failure) = prepare(order, &hosts, &variants, &mut run, progress) {
        return Err(hosts.fail(failure));
    }
    let mut runner = Runner { order, run, store, hosts, variants, begun };
    let outcome = runner.rounds(progress);
    runner.close(outcome, progress)
}

/// Describes the hosts, and makes sure of every variant before the first trial.
fn prepare(
    order: &Order<'_>,
    hosts: &Hosts,
    variants: &[VariantRun],
    run: &mut Run,
    progress: &mut dyn Progress,
) -> Result<(), Error> {
    run.testbed = hosts.description.clone();
    for note in &hosts.notes {
        progress.tell(Event::Note(note));
        run.notes.push(note.clone());
    }
    for (site, variant) in hosts.sites.iter().zip(variants) {
        require_programs(site, variant, &order.scenario.workloads)?;
    }
    run.hosts = facts(hosts)?;
    for (number, variant) in variants.iter().enumerate() {
        let Established { proof, facts, notes } = establish(order, hosts, number, variant)?;
        progress.tell(Event::Proved { variant: &variant.name, proof: &proof });
        run.variants[number].proof = proof;
        run.variants[number].facts = facts;
        for note in notes.into_iter().filter(|note| !run.notes.contains(note)).collect::<Vec<_>>() {
            progress.tell(Event::Note(&note));
            run.notes.push(note);
        }
        if (order.interrupted)() {
            return Err(Error::Agent(weir_agent::Error::Interrupted));
        }
    }
    Ok(())
}

/// A variant that was in effect.
struct Established {
    /// One line per check.
    proof: Vec<String>,
    /// Its cost apart from traffic.
    facts: Vec<VariantFact>,
    /// Notes for readers of the record.
    notes: Vec<String>,
}

/// Applies and proves a variant; on real hosts it is removed again, because the next one works on the same hosts.
fn establish(
    order: &Order<'_>,
    hosts: &Hosts,
    number: usize,
    variant: &VariantRun,
) -> Result<Established, Error> {
    let site = &hosts.sites[number];
    proof::apply(site, &variant.variant)?;
    let proved = proof::prove(site, &variant.name, &variant.variant).and_then(|mut proof| {
        let rehearsal = rehearsal::rehearse(site, variant, &order.scenario.workloads, &rules(order, hosts))?;
        proof.extend(rehearsal.proof);
        proof.extend(links::mechanisms(site.link.as_ref()));
        let facts = filtering::facts(site, &variant.variant)?;
        Ok(Established { proof, facts, notes: rehearsal.notes })
    });
    if !hosts.is_lab {
        let removed = proof::remove(site, &variant.variant);
        let proved = proved?;
        removed?;
        return Ok(proved);
    }
    proved
}

/// Returns the rules for every trial of a run.
fn rules<'a>(order: &Order<'a>, hosts: &Hosts) -> Rules<'a> {
    Rules {
        max_steal: order.scenario.plan.max_steal,
        is_lab: hosts.is_lab,
        steers: hosts.steers,
        flushes: hosts.flushes,
        seed: order.seed,
        diagnose: order.scenario.plan.diagnose,
        interrupted: order.interrupted,
    }
}

/// The record before anything was done.
fn blank(order: &Order<'_>, variants: &[VariantRun]) -> Run {
    let scenario = order.scenario;
    let is_lab = matches!(scenario.testbed, crate::scenario::Testbed::Lab(_));
    let workload = |w: &WorkloadEntry| {
        let mut metrics = w.workload.metrics(scenario.testbed.delay());
        metrics.extend(trial::common_metrics(is_lab));
        WorkloadInfo {
            name: w.name.clone(),
            kind: w.workload.kind().to_owned(),
            description: w.describe(),
            metrics,
            rounds: w.rounds,
            point: w.point.clone(),
        }
    };
    let variant = |v: &VariantRun| VariantInfo {
        name: v.name.clone(),
        kind: v.variant.kind().to_owned(),
        description: described(v),
        baseline: v.baseline,
        twin_of: v.twin_of.clone(),
        proof: Vec::new(),
        labels: v.labels.clone(),
        facts: Vec::new(),
        point: v.point.clone(),
    };
    Run {
        schema: SCHEMA_VERSION,
        weir: env!("CARGO_PKG_VERSION").to_owned(),
        id: order.id.clone(),
        scenario: scenario.name.clone(),
        title: scenario.title.clone(),
        scenario_toml: scenario.to_toml().to_owned(),
        seed: order.seed,
        started: now(),
        ended: None,
        status: Status::Running,
        plan: scenario.plan.to_record(),
        variants: variants.iter().map(variant).collect(),
        workloads: scenario.workloads.iter().map(workload).collect(),
        compare: scenario.compare.clone(),
        patterns: scenario.patterns.clone(),
        testbed: String::new(),
        hosts: Vec::new(),
        trials: Vec::new(),
        results: None,
        summary: None,
        notes: scenario.notes.clone(),
    }
}

/// Describes a variant, and its link if that is not a plain one.
fn described(variant: &VariantRun) -> String {
    let (hop, link) = (variant.variant.describe(), variant.link.describe());
    if link.is_empty() { hop } else { format!("{hop}; link: {link}") }
}

/// Wall-clock time in UTC, RFC 3339, to the second. Durations come from the monotonic clock.
fn now() -> String {
    let now = jiff::Timestamp::now();
    now.round(jiff::Unit::Second).unwrap_or(now).to_string()
}

/// Every program that variant and workloads need must be there before the first trial.
fn require_programs(site: &Site, variant: &VariantRun, workloads: &[WorkloadEntry]) -> Result<(), Error> {
    let of = |w: &WorkloadEntry, role| {
        let under = w.under.as_ref().map(|u| load::programs(u, role)).unwrap_or_default();
        [w.workload.programs(role), under].concat()
    };
    for member in site.members() {
        let mut programs = variant.variant.programs(member.role);
        if member.role != weir_gateway::Role::Gateway {
            programs.extend(workloads.iter().flat_map(|w| of(w, member.role)).map(str::to_owned));
        }
        programs.sort();
        programs.dedup();
        if programs.is_empty() {
            continue;
        }
        if let Answer::Missing(missing) = member.agent.call(Task::Missing { programs }, SHORT)?
            && !missing.is_empty()
        {
            return Err(Error::Missing(format!(
                "{} needs {}, which {} not installed there; on Debian: apt-get install {}",
                member.agent.name(),
                missing.join(", "),
                if missing.len() == 1 { "is" } else { "are" },
                missing.iter().map(|p| weir_sys::process::package(p)).collect::<Vec<_>>().join(" ")
            )));
        }
    }
    Ok(())
}

/// Describes each host once; in the lab all sites are alike but for their rules, so the first gateway stands for all.
fn facts(hosts: &Hosts) -> Result<Vec<HostFacts>, Error> {
    let site = hosts.sites.iter().find(|s| s.gateway.is_some()).or(hosts.sites.first());
    let mut members: Vec<&Member> = site.into_iter().flat_map(Site::members).collect();
    // On real hosts a path may lead to a responder of its own.
    for member in hosts.sites.iter().filter(|_| !hosts.is_lab).flat_map(Site::members) {
        if !members.iter().any(|known| Arc::ptr_eq(&known.agent, &member.agent)) {
            members.push(member);
        }
    }
    let mut all = Vec::new();
    for member in members {
        let task = Task::Facts {
            role: member.role,
            transport: member.agent.transport().to_owned(),
            interfaces: member.interfaces.clone(),
        };
        match member.agent.call(task, SHORT)? {
            Answer::Facts(facts) => all.push(*facts),
            other => return Err(Error::Internal(format!("unexpected answer {other:?}"))),
        }
    }
    Ok(all)
}

impl Runner<'_> {
    /// Rounds until the stop rule is content.
    fn rounds(&mut self, progress: &mut dyn Progress) -> Result<Status, Error> {
        let started = Instant::now();
        let mut random = ChaCha8Rng::seed_from_u64(self.order.seed);
        let plan = self.run.plan.clone();
        for round in 0u32.. {
            self.round(round, &mut random, progress)?;
            let results = analyse(&self.run);
            let widest = results.widest.as_ref().map(|w| w.0);
            self.run.results = Some(results);
            self.store.write(&self.run)?;
            let elapsed_s = started.elapsed().as_secs_f64();
            let rounds = round + 1;
            let state = stop::Progress {
                rounds,
                min_rounds: plan.min_rounds,
                max_rounds: plan.max_rounds,
                widest_half_width: widest,
                target_half_width: plan.target_half_width,
                elapsed_s,
                budget_s: plan.budget_s,
                mean_round_s: self.order.scenario.next_round_s(rounds, elapsed_s),
            };
            progress.tell(Event::Round { run: &self.run, rounds, remaining_s: stop::remaining_s(&state) });
            match stop::decide(&state) {
                Decision::Continue => {}
                Decision::Precise => return Ok(Status::Precise),
                Decision::RoundsDone => return Ok(Status::RoundsDone),
                Decision::BudgetSpent => return Ok(Status::BudgetSpent),
            }
        }
        Ok(Status::RoundsDone)
    }

    /// Every variant x workload of this round once, in random order.
    fn round(
        &mut self,
        round: u32,
        random: &mut ChaCha8Rng,
        progress: &mut dyn Progress,
    ) -> Result<(), Error> {
        let workloads = self.order.scenario.workloads.iter().enumerate();
        let takes_part: Vec<usize> =
            workloads.filter(|(_, w)| w.is_in_round(round)).map(|(w, _)| w).collect();
        let mut cells: Vec<(usize, usize)> =
            (0..self.variants.len()).flat_map(|v| takes_part.iter().map(move |w| (v, *w))).collect();
        cells.shuffle(random);
        let of = cells.len();
        for (position, (v, w)) in cells.into_iter().enumerate() {
            let entry = &self.order.scenario.workloads[w];
            let (variant, workload) = (&self.variants[v].name, &entry.name);
            progress.tell(Event::Trial { round, position, of, variant, workload });
            let mut trial = Trial {
                round,
                position: position as u32,
                variant: variant.clone(),
                workload: workload.clone(),
                start_s: self.begun.elapsed().as_secs_f64(),
                ..Trial::default()
            };
            let began = Instant::now();
            let outcome = self.trial(v, entry, random.random(), &mut trial);
            let outcome = outcome.map_err(|failure| self.hosts.explain(failure));
            trial.took_s = began.elapsed().as_secs_f64();
            let interrupted = match &outcome {
                Err(e) if e.is_interrupted() => {
                    Some((FaultCode::Interrupted, "the user stopped the run".into()))
                }
                Err(e) => Some((FaultCode::AgentLost, e.to_string())),
                Ok(()) => None,
            };
            if let Some((code, words)) = interrupted {
                trial.faults.push(Fault::void(code, "runner", words));
            }
            progress.tell(Event::Measured { trial: &trial });
            self.run.trials.push(trial);
            self.store.write(&self.run)?;
            outcome?;
        }
        Ok(())
    }

    /// One trial from a fresh state.
    fn trial(
        &self,
        number: usize,
        entry: &WorkloadEntry,
        cookie: u64,
        trial: &mut Trial,
    ) -> Result<(), Error> {
        if (self.order.interrupted)() {
            return Err(Error::Agent(weir_agent::Error::Interrupted));
        }
        let (site, variant) = (&self.hosts.sites[number], &self.variants[number]);
        let rules = rules(self.order, &self.hosts);
        self.hosts.settings.of(variant)?;
        if self.hosts.is_lab {
            // The table is this gateway's own. Hosts without tracking have nothing to forget.
            for member in site.members() {
                member.agent.call(Task::Gateway(GatewayTask::Flush), SHORT)?;
            }
            return trial::make(site, &variant.variant, entry, cookie, &rules, trial);
        }
        proof::apply(site, &variant.variant)?;
        let made = proof::prove(site, &variant.name, &variant.variant)
            .and_then(|_| trial::make(site, &variant.variant, entry, cookie, &rules, trial));
        let removed = proof::remove(site, &variant.variant);
        made?;
        removed
    }

    /// Concludes the record, whatever happened, and ends the agents.
    fn close(mut self, outcome: Result<Status, Error>, progress: &mut dyn Progress) -> Result<Run, Error> {
        let measured = self.run.trials.iter().any(|t| !t.is_void());
        self.run.status = match &outcome {
            Ok(status) => status.clone(),
            Err(e) if e.is_interrupted() => Status::Interrupted,
            Err(e) => Status::Failed { message: e.to_string() },
        };
        if self.hosts.is_lab && outcome.is_ok() {
            self.prove_again(progress);
        }
        for member in self.hosts.sites.iter().flat_map(Site::members) {
            // On real hosts the sites share their agents: ending one twice is harmless.
            if let Some(words) = member.agent.end().filter(|_| outcome.is_ok()) {
                self.run.notes.push(words);
            }
        }
        if let Some(words) = self.hosts.release() {
            progress.tell(Event::Note(&words));
            self.run.notes.push(words);
        }
        self.run.ended = Some(now());
        conclude(&mut self.run);
        match (self.store.write(&self.run), outcome) {
            (_, Err(error)) if !measured => Err(error),
            // A full disk, for example: weir still reports the measurements, and the record holds as much as fitted.
            (Err(error), Ok(_)) => Err(error),
            _ => Ok(self.run),
        }
    }

    /// Each variant must still be in effect after the last trial.
    fn prove_again(&mut self, progress: &mut dyn Progress) {
        for (site, variant) in self.hosts.sites.iter().zip(&self.variants) {
            // A table that the last trial filled on purpose is no lost variant.
            let emptied = site
                .members()
                .try_for_each(|m| m.agent.call(Task::Gateway(GatewayTask::Flush), SHORT).map(drop));
            let proved = emptied.map_err(Error::from);
            if let Err(error) = proved.and_then(|()| proof::prove(site, &variant.name, &variant.variant)) {
                let words = format!("after the last trial: {error}");
                progress.tell(Event::Note(&words));
                for trial in self.run.trials.iter_mut().filter(|t| t.variant == variant.name) {
                    trial.faults.push(Fault::void(FaultCode::VariantLost, "gateway", words.clone()));
                }
                self.run.notes.push(words);
            }
        }
    }
}
