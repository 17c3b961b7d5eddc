//! The preparation of the gateway under test for single frames.

use std::collections::BTreeMap;

use weir_agent::gateway_side::{GatewayAnswer, GatewayTask};
use weir_agent::{Answer, Task};

use crate::SHORT;
use crate::error::Error;
use crate::error::unexpected;
use crate::packets_path::Path;
use crate::site::{Member, Site};

/// Gets the gateway ready. Returns what was changed, in words.
pub(crate) fn prepare(path: Path<'_>) -> Result<Vec<String>, Error> {
    let Some(gateway) = &path.site.gateway else { return Ok(Vec::new()) };
    let steer =
        if path.steers && path.packets.procedure.searches() { steering(path.site) } else { BTreeMap::new() };
    let task = GatewayTask::Prepare {
        interfaces: gateway.interfaces.clone(),
        steer,
        journal: gateway.agent.outlives_agent(),
    };
    match gateway.agent.call(Task::Gateway(task), SHORT)? {
        Answer::Gateway(GatewayAnswer::Prepared(words)) => Ok(words),
        other => Err(unexpected(&other)),
    }
}

/// Which cores do the gateway's work: for each interface not those of the host that sends there. On a veth the sender's core does
/// it otherwise: it would send only as fast as the gateway works, and nothing could ever be lost.
fn steering(site: &Site) -> BTreeMap<String, Vec<usize>> {
    let cpus = |members: &[Member]| members.first().map(|m| m.cpus.clone()).unwrap_or_default();
    let (initiator, responder) = (cpus(&site.initiators), cpus(&site.responders));
    let interfaces = site.gateway.as_ref().map(|g| g.interfaces.as_slice()).unwrap_or_default();
    if initiator == responder || initiator.is_empty() || responder.is_empty() {
        return BTreeMap::new();
    }
    // The last one is the veth of the responder's link, also where that is the port of a bridge.
    let ends = [(Some(&site.place.inside_interface), responder), (interfaces.last(), initiator)];
    ends.into_iter().filter_map(|(name, cpus)| Some((name?.clone(), cpus))).collect()
}
