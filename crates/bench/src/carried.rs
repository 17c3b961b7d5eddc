//! Variants with a fast path: the proof that it carries flows, and its share of each trial's packets.

use std::net::SocketAddr;

use weir_agent::{Answer, Task};
use weir_gateway::{Carried, VariantKind};
use weir_load::Workload;
use weir_record::{Better, Fault, FaultCode, MetricDef, Trial, Unit};

use crate::SHORT;
use crate::error::Error;
use crate::filtering::counting;
use crate::scenario::Load;
use crate::site::{REACH, Site};

/// Datagrams of one flow, for the proof.
const FLOW: u32 = 64;
/// A trial of long flows of which the fast path carries a smaller share measures the rules beside it.
const LEAST: f64 = 0.5;
const METRIC: &str = "fastpath_carried_ratio";

/// The share of a trial's packets that the fast path carried.
pub(crate) fn metric() -> MetricDef {
    MetricDef::value(
        METRIC,
        "carried by the fast path",
        Unit::Ratio,
        Better::Neither,
        "Packets that the fast path carried, of all that came in by the gateway's interfaces, warm-up included",
    )
    .by_difference()
    .detail()
}

/// The counts so far; `None` for variants without a fast path.
pub(crate) fn read(site: &Site, variant: &VariantKind) -> Result<Option<Carried>, Error> {
    if !variant.has_fastpath() {
        return Ok(None);
    }
    let Some(member) = counting(site, variant) else { return Ok(None) };
    let task = Task::Carried { variant: variant.clone(), place: site.place.clone() };
    match member.agent.call(task, SHORT)? {
        Answer::Carried(counts) => Ok(counts),
        other => Err(Error::Internal(format!("unexpected answer {other:?}"))),
    }
}

/// Proves that the fast path carries a flow: its own counter must move by the datagrams of one. `None` for variants without a fast
/// path; the inner error is the reason why the proof failed.
pub(crate) fn prove(
    site: &Site,
    variant: &VariantKind,
    target: SocketAddr,
) -> Result<Option<Result<String, String>>, Error> {
    let Some(before) = read(site, variant)? else { return Ok(None) };
    let Some(initiator) = site.initiators.first() else {
        return Err(Error::Internal("a site without ends".into()));
    };
    let source = site.place.initiator;
    initiator.agent.call(Task::SendFrom { source, target, count: FLOW }, SHORT)?;
    // The echo answers in order: when it has answered a later connection, the datagrams have passed.
    initiator.agent.call(Task::Reach { target, timeout: REACH }, REACH + SHORT)?;
    let moved = read(site, variant)?.unwrap_or_default().since(before).carried;
    Ok(Some(if moved >= u64::from(FLOW / 2) {
        Ok(format!("the fast path carried {moved} packets of a flow of {FLOW} and its answers"))
    } else {
        Err(format!(
            "the fast path carried {moved} packets of a flow of {FLOW}; the rules handled the others"
        ))
    }))
}

/// Notes the share of a trial. One with long flows that the fast path did not carry is void: it measured the rules.
pub(crate) fn judge(counts: Carried, load: &Load, trial: &mut Trial) {
    if counts.came_in == 0 {
        return;
    }
    let share = counts.carried as f64 / counts.came_in as f64;
    trial.metrics.insert(METRIC.into(), share);
    if share < LEAST && has_long_flows(load) {
        let detail = format!(
            "the fast path carried only {:.1} % of the packets: this trial measured the rules beside it",
            share * 100.0
        );
        trial.faults.push(Fault::void(FaultCode::VariantLost, "gateway", detail));
    }
}

/// True if most packets belong to flows that last. Connections of a few packets are not meant to be carried.
fn has_long_flows(load: &Load) -> bool {
    match load {
        Load::Packets(packets) => !packets.procedure.counts_connections(),
        Load::Sockets(Workload::TcpStream(_) | Workload::UdpStream(_)) => true,
        Load::Sockets(Workload::TcpRr(_) | Workload::UdpRr(_)) => true,
        Load::Sockets(
            Workload::TcpConnect(_)
            | Workload::TcpCrr(_)
            | Workload::Http(_)
            | Workload::Mtu(_)
            | Workload::External(_),
        ) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_that_the_fast_path_did_not_carry_is_void() {
        let stream = Load::Sockets(Workload::TcpStream(weir_load::tcp_stream::TcpStream::default()));
        let connect = Load::Sockets(Workload::TcpConnect(weir_load::tcp_connect::TcpConnect::default()));
        for (carried, load, is_void) in
            [(499, &stream, true), (500, &stream, false), (0, &stream, true), (0, &connect, false)]
        {
            let mut trial = Trial::default();
            judge(Carried { carried, came_in: 1000 }, load, &mut trial);
            assert_eq!(trial.is_void(), is_void, "{carried}");
            assert_eq!(trial.metrics[METRIC], carried as f64 / 1000.0);
        }
        let mut trial = Trial::default();
        judge(Carried::default(), &stream, &mut trial);
        assert!(!trial.is_void() && trial.metrics.is_empty(), "nothing came in, and other rules judge that");
    }
}
