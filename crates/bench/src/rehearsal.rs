//! Single frames once through every variant, before anything is measured: what cannot work fails here, with its reason, and not in
//! every trial of a long run.

use std::ops::RangeInclusive;

use weir_agent::gateway_side::Table;
use weir_agent::remote;
use weir_packets::workload::{Packets, Procedure};

use crate::error::Error;
use crate::packets_testbed::{self, passable};
use crate::scenario::{Load, VariantRun, WorkloadEntry};
use crate::site::Site;
use crate::trial::Rules;

/// The observations of a rehearsal.
#[derive(Default)]
pub(crate) struct Rehearsal {
    /// One line per check.
    pub(crate) proof: Vec<String>,
    /// Notes for readers of the record.
    pub(crate) notes: Vec<String>,
}

/// Sends a frame of each kind through a variant that is in effect, and sees that its table has room for the flows.
pub(crate) fn rehearse(
    site: &Site,
    variant: &VariantRun,
    workloads: &[WorkloadEntry],
    rules: &Rules<'_>,
) -> Result<Rehearsal, Error> {
    let mut rehearsal = Rehearsal::default();
    let mut table = None;
    let mut seen: Vec<&Packets> = Vec::new();
    let watch = || match (rules.interrupted)() {
        true => Err(remote::Error::Interrupted),
        false => site.members().try_for_each(|member| member.agent.check()),
    };
    for (entry, packets) in of_packets(workloads) {
        crate::filtering::sees_frames(variant)?;
        fits(site, entry, packets, rules)?;
        if seen.iter().any(|other| goes_the_same_way(other, packets, rules.is_lab)) {
            continue;
        }
        seen.push(packets);
        let path = rules.path(site, &variant.variant, packets, &watch);
        let (line, fallbacks) = packets_testbed::with(path, u64::from(u32::MAX), |tester| {
            let line = tester.prove()?;
            table = tester.look_at_table()?;
            Ok((line, tester.fallbacks()?))
        })
        .map_err(|error| named(error, &variant.name))?;
        rehearsal.notes.extend(fallbacks);
        rehearsal.proof.push(line);
    }
    if let Some((_, packets)) = of_packets(workloads).find(|(_, packets)| packets.profile)
        && let Some(profiled) = rules.path(site, &variant.variant, packets, &watch).profiled()
        && let Some(reason) = profiled.try_out()?
    {
        rehearsal.notes.push(format!("no profile of the gateway's kernel: {reason}"));
    }
    let open = variant.variant.expectation(&site.place).ports;
    for (entry, packets) in of_packets(workloads) {
        has_ports(open.as_ref(), &variant.name, entry, packets)?;
        has_room(table, &variant.name, entry, packets)?;
    }
    rehearsal.proof.dedup();
    Ok(rehearsal)
}

fn of_packets(workloads: &[WorkloadEntry]) -> impl Iterator<Item = (&WorkloadEntry, &Packets)> {
    workloads.iter().filter_map(|entry| match &entry.workload {
        Load::Packets(packets) => Some((entry, packets)),
        Load::Sockets(_) => None,
    })
}

/// True if what holds for a frame of one holds for one of the other.
fn goes_the_same_way(one: &Packets, other: &Packets, is_lab: bool) -> bool {
    let way = |p: &Packets| {
        // Between machines what is timed must come back.
        let comes_back = (p.procedure.answers(), !is_lab && p.stamps());
        (p.engine, p.inject, p.protocol, p.frame_bytes, comes_back, p.procedure.searches())
    };
    way(one) == way(other)
}

/// Refuses a workload that the scenario's format allows but these hosts cannot run.
fn fits(site: &Site, entry: &WorkloadEntry, packets: &Packets, rules: &Rules<'_>) -> Result<(), Error> {
    let (initiators, responders) = (site.initiators.len(), site.responders.len());
    if initiators > 1 || responders > 1 {
        return Err(Error::Unfit(format!(
            "workload `{}` sends single frames between one initiator and one responder, and this testbed has {initiators} and \
             {responders}",
            entry.name
        )));
    }
    if site.gateway.is_some() && !rules.flushes && needs_empty_table(packets.procedure) {
        return Err(Error::Unfit(format!(
            "workload `{}` must empty the gateway's table of connections before each step, which breaks connections that others \
             have through it: allow it with `flush-conntrack = true` in [testbed.gateway]",
            entry.name
        )));
    }
    Ok(())
}

fn needs_empty_table(procedure: Procedure) -> bool {
    procedure.counts_connections() || procedure == Procedure::ThroughputBidirectional
}

fn named(error: Error, variant: &str) -> Error {
    match error {
        Error::NotProved { reason, .. } => Error::NotProved { variant: variant.to_owned(), reason },
        other => other,
    }
}

/// A table that is too small would be measured in place of the gateway; `capacity` is there to measure it.
fn has_room(
    table: Option<Table>,
    variant: &str,
    entry: &WorkloadEntry,
    packets: &Packets,
) -> Result<(), Error> {
    let Some(table) = table.filter(|t| t.max > 0) else { return Ok(()) };
    let flows = u64::from(packets.flow_count());
    if flows <= table.max || packets.procedure == Procedure::Capacity {
        return Ok(());
    }
    // Some room for what else the gateway tracks, and one slot per entry, which is the kernel's own proportion
    // (Documentation/networking/nf_conntrack-sysctl.rst).
    let room = flows + flows / 10;
    Err(Error::Unfit(format!(
        "workload `{}` has {flows} flows, and the gateway of `{variant}` tracks at most {} connections (nf_conntrack_max): use fewer \
         `flows`, or set for this run, as root, [testbed.host-sysctls] \"net.netfilter.nf_conntrack_max\" = \"{room}\" and \
         \"net.netfilter.nf_conntrack_buckets\" = \"{room}\"",
        entry.name, table.max
    )))
}

/// A variant that lets only some ports through has fewer different flows.
fn has_ports(
    open: Option<&RangeInclusive<u16>>,
    variant: &str,
    entry: &WorkloadEntry,
    packets: &Packets,
) -> Result<(), Error> {
    let ([first, last], [from, to]) = (packets.source_ports, packets.destination_ports);
    let used = passable(&(from..=to), open);
    let pairs = (u64::from(last - first) + 1) * used.len() as u64;
    if u64::from(packets.flow_count()) <= pairs {
        return Ok(());
    }
    Err(Error::Unfit(format!(
        "workload `{}` has {} flows, but variant `{variant}` lets destination ports {} to {} through, which with {} source ports \
         make {pairs}",
        entry.name,
        packets.flow_count(),
        used.start(),
        used.end(),
        u32::from(last - first) + 1
    )))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn entry(packets: &Packets) -> WorkloadEntry {
        WorkloadEntry {
            name: "w".into(),
            workload: Load::Packets(packets.clone()),
            warmup: Duration::ZERO,
            duration: Duration::from_secs(1),
            under: None,
            rounds: None,
            point: None,
        }
    }

    #[test]
    fn a_table_that_is_too_small_is_told_with_what_sets_it() {
        let full = Table { entries: 1, max: 10_000, buckets: 10_000 };
        let fits = |table, packets: &Packets| has_room(Some(table), "nat", &entry(packets), packets);
        let many = Packets { flows: Some(10_001), ..Packets::default() };
        let error = fits(full, &many).unwrap_err();
        assert!(matches!(error, Error::Unfit(_)));
        let words = error.to_string();
        for word in ["10001 flows", "at most 10000", "host-sysctls", "nf_conntrack_buckets", "\"11001\""] {
            assert!(words.contains(word), "no {word}: {words}");
        }
        assert!(fits(full, &Packets { flows: Some(10_000), ..many.clone() }).is_ok());
        assert!(fits(Table { max: 0, ..full }, &many).is_ok(), "no limit");
        assert!(has_room(None, "nat", &entry(&many), &many).is_ok());
        let capacity = Packets { procedure: Procedure::Capacity, ..many };
        assert!(fits(full, &capacity).is_ok(), "what the table holds is the question");
    }

    #[test]
    fn a_variant_with_few_open_ports_has_few_flows() {
        let many = Packets { flows: Some(64_512 * 10 + 1), ..Packets::default() };
        let error =
            has_ports(Some(&(21_100..=21_109)), "docker", &entry(&many), &many).unwrap_err().to_string();
        assert!(error.contains("21100 to 21109") && error.contains("make 645120"), "{error}");
        assert!(has_ports(None, "nat", &entry(&many), &many).is_ok());
        let fewer = Packets { flows: Some(64_512 * 10), ..many };
        assert!(has_ports(Some(&(21_100..=21_109)), "docker", &entry(&fewer), &fewer).is_ok());
    }

    #[test]
    fn procedures_that_fill_the_table_must_empty_it() {
        for procedure in [Procedure::Establishment, Procedure::TearDown, Procedure::ThroughputBidirectional] {
            assert!(needs_empty_table(procedure));
        }
        assert!(!needs_empty_table(Procedure::Rate));
        assert!(!needs_empty_table(Procedure::Throughput));
    }
}
