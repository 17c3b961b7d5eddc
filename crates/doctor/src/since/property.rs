//! A host that is worse off is never called better, whatever else changed. Hundreds of draws from a fixed seed.

use rand::seq::{IndexedMutRandom as _, IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::tests::{balance, finding, host};
use super::*;
use crate::evidence::EvidenceSource;
use crate::finding::Finding;

const DRAWS: u64 = 2000;

const CAUSES: [&str; 6] =
    ["nft-rule-drop", "no-route", "udp-buffer-full", "mss-small", "link-down", "no-listener"];

/// The ways in which a host gets worse.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Impairment {
    AddLoss,
    NewFinding,
    CutAll,
    CutOnePlace,
    Blind,
    RaiseSeverity,
    MoreHarm,
}

const ALL: [Impairment; 7] = [
    Impairment::AddLoss,
    Impairment::NewFinding,
    Impairment::CutAll,
    Impairment::CutOnePlace,
    Impairment::Blind,
    Impairment::RaiseSeverity,
    Impairment::MoreHarm,
];

fn severity(random: &mut ChaCha8Rng) -> Severity {
    *[Severity::Note, Severity::Warning, Severity::Critical].choose(random).unwrap()
}

/// A host with one to four namespaces, some findings, and traffic in every namespace.
fn draw(random: &mut ChaCha8Rng) -> Diagnosis {
    let places: Vec<String> = (0..random.random_range(1..=4)).map(|n| format!("netns n{n}")).collect();
    let mut findings: Vec<Finding> = Vec::new();
    for n in 0..random.random_range(1..=5) {
        let place = places.choose(random).unwrap();
        let packets = if random.random() { random.random_range(1..2000) } else { 0 };
        let cause = CAUSES.choose(random).unwrap();
        let mut drawn = finding(cause, place, &format!("object {n}"), severity(random), packets);
        drawn.impact = if random.random() { random.random_range(0.0..0.8) } else { 0.0 };
        findings.push(drawn);
    }
    let mut host = host(findings);
    host.window_s = *[1.0, 10.0, 60.0].choose(random).unwrap();
    host.balance = places
        .iter()
        .map(|place| {
            let lost = lost_in(&host.findings, place);
            balance(place, lost + random.random_range(2_000..200_000), lost)
        })
        .collect();
    for source in &EvidenceSource::ALL {
        host.evidence_sources.insert(*source, Sight::Seen);
    }
    host
}

fn lost_in(findings: &[Finding], place: &str) -> u64 {
    findings.iter().filter(|f| f.place == place).map(|f| f.explains_packets).sum()
}

/// Removes some findings with their loss, as a fix does, and lets the traffic grow.
fn improve(random: &mut ChaCha8Rng, host: &mut Diagnosis) {
    host.ended_unix_s += 60;
    let keep = random.random_range(0.0..1.0);
    host.findings.retain(|_| random.random_bool(keep));
    let growth = random.random_range(1.0..3.0);
    for of in &mut host.balance {
        of.lost = lost_in(&host.findings, &of.place);
        of.delivered = (of.delivered as f64 * growth) as u64;
        of.received = of.delivered + of.lost;
    }
    host.lost.packets = host.balance.iter().map(|b| b.lost).sum();
}

fn cut(of: &mut crate::diagnosis::Balance, to: f64) {
    of.delivered = (of.delivered as f64 * to) as u64;
    of.received = of.delivered + of.lost;
}

/// Makes `now` worse than `before`. False where this host has nothing to impair in that way.
fn impair(random: &mut ChaCha8Rng, how: Impairment, before: &Diagnosis, now: &mut Diagnosis) -> bool {
    let left = *[0.5, 0.1].choose(random).unwrap();
    match how {
        Impairment::AddLoss => {
            // Half more than before, with or without a finding that claims it.
            let came: u64 = now.balance.iter().map(|b| b.received).sum();
            let came_before: u64 = before.balance.iter().map(|b| b.received).sum();
            let share = 1.5 * before.lost.packets as f64 / came_before as f64;
            let lost = ((share * came as f64) as u64 + 100).min(came);
            now.lost.packets = lost.max(now.lost.packets);
        }
        Impairment::NewFinding => {
            let place = now.balance.choose(random).unwrap().place.clone();
            let mut new = finding("conntrack-full", &place, "", severity(random).max(Severity::Warning), 0);
            new.explains_packets = random.random_range(0..300);
            now.findings.push(new);
        }
        Impairment::CutAll => {
            // Below what was, although the traffic may have grown.
            for (of, was) in now.balance.iter_mut().zip(&before.balance) {
                of.delivered = was.delivered;
                cut(of, left);
            }
        }
        Impairment::CutOnePlace => {
            let matters = |f: &&Finding| f.severity > Severity::Note;
            let Some(found) = before.findings.iter().rfind(matters) else { return false };
            let at = before.balance.iter().position(|b| b.place == found.place).unwrap();
            now.balance[at].delivered = before.balance[at].delivered;
            cut(&mut now.balance[at], left);
        }
        Impairment::Blind => {
            let source = *EvidenceSource::ALL.choose(random).unwrap();
            now.evidence_sources.insert(source, Sight::Blind("gone".into()));
        }
        Impairment::RaiseSeverity => {
            let low = |f: &&mut Finding| f.severity < Severity::Critical;
            let Some(finding) = now.findings.iter_mut().find(low) else { return false };
            finding.severity = Severity::Critical;
        }
        Impairment::MoreHarm => {
            let Some(finding) = now.findings.choose_mut(random) else { return false };
            finding.explains_packets = 2 * finding.explains_packets + 20;
        }
    }
    true
}

#[test]
fn an_impaired_host_is_never_better() {
    let mut random = ChaCha8Rng::seed_from_u64(20_261_128);
    let mut seen = [0_u32; ALL.len()];
    for draw_number in 0..DRAWS {
        let before = draw(&mut random);
        let mut now = before.clone();
        if random.random() {
            improve(&mut random, &mut now);
        }
        let mut chosen = ALL;
        chosen.shuffle(&mut random);
        let mut done = Vec::new();
        for how in &chosen[..random.random_range(1..=3)] {
            // The loss is a share of the traffic, so it is added last.
            if *how != Impairment::AddLoss && impair(&mut random, *how, &before, &mut now) {
                done.push(*how);
            }
        }
        if chosen[0] == Impairment::AddLoss || done.is_empty() {
            impair(&mut random, Impairment::AddLoss, &before, &mut now);
            done.push(Impairment::AddLoss);
        }
        let since = compare("before.json", &before, &now);
        assert_ne!(since.verdict, SinceVerdict::Better, "draw {draw_number}, {done:?}: {since:#?}");
        for how in done {
            seen[ALL.iter().position(|one| *one == how).unwrap()] += 1;
        }
    }
    assert!(seen.iter().all(|n| *n >= 100), "{seen:?}");
}

/// The other side: a verdict that is never better would pass the test above.
#[test]
fn a_host_that_lost_a_finding_that_harmed_is_better() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let (mut better, mut same) = (0, 0);
    for _ in 0..DRAWS {
        let before = draw(&mut random);
        let mut now = before.clone();
        improve(&mut random, &mut now);
        let since = compare("before.json", &before, &now);
        match since.verdict {
            SinceVerdict::Better => better += 1,
            SinceVerdict::Same => same += 1,
            _ => panic!("{since:#?}"),
        }
        let helped = since.changes.iter().any(|c| c.counts);
        assert_eq!(since.verdict == SinceVerdict::Better, helped, "{since:#?}");
    }
    assert!(better > 1000 && same > 10, "{better} better, {same} the same");
}
