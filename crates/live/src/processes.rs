//! Processes at the ends of flows, and the flows of each.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_flows::{ELSEWHERE, Flow, LocalEnd, Reading, UdpFlow};
use weir_text::escape::line;

/// A process, or one of unknown process, with its container; none for flows without an end on this machine.
pub(crate) type Owner = Option<(LocalEnd, Option<String>)>;

/// The flows of an owner, and its addresses.
#[derive(Default)]
pub(crate) struct Share<'a> {
    pub(crate) flows: Vec<&'a Flow>,
    pub(crate) udp: Vec<&'a UdpFlow>,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The owners of a flow, with their addresses: of the client's end and of the server's, as their own packets have them.
fn owners(
    [client, server]: [&Option<LocalEnd>; 2],
    addresses: [IpAddr; 2],
    reading: &Reading,
) -> BTreeMap<Owner, Vec<IpAddr>> {
    // A process that talks to itself has one flow, not two.
    let mut owners: BTreeMap<Owner, Vec<IpAddr>> = BTreeMap::new();
    for (end, address) in [client, server].into_iter().zip(addresses) {
        if let Some(end) = end {
            let container = reading.container(address).map(str::to_owned);
            owners.entry(Some((end.clone(), container))).or_default().push(address);
        }
    }
    if owners.is_empty() {
        owners.insert(None, Vec::new());
    }
    owners
}

/// Names of the processes at both ends of a flow, by which a filter finds it, and their numbers.
pub(crate) fn searched(ends: [&Option<LocalEnd>; 2]) -> (String, Vec<u32>) {
    let ends = || ends.into_iter().flatten();
    let names: Vec<String> = ends().map(|end| line(&end.words()).to_lowercase()).collect();
    (names.join(" "), ends().filter_map(|end| end.pid).collect())
}

/// Name of an owner, without escape sequences.
pub(crate) fn name(owner: &Owner) -> String {
    match owner {
        None => ELSEWHERE.to_owned(),
        Some((end, None)) => line(&end.words()),
        Some((end, Some(container))) => line(&format!("{}  {container}", end.words())),
    }
}

/// The flows of each process; one share each for the flows whose process is unknown, and for those without an end on this machine.
pub(crate) fn shares(reading: &Reading) -> BTreeMap<Owner, Share<'_>> {
    let mut shares: BTreeMap<Owner, Share<'_>> = BTreeMap::new();
    for flow in &reading.flows {
        let addresses = [flow.client.ip(), flow.server_inside.unwrap_or(flow.server).ip()];
        for (owner, addresses) in owners([&flow.client_here, &flow.server_here], addresses, reading) {
            let share = shares.entry(owner).or_default();
            share.flows.push(flow);
            share.addresses.extend(addresses);
        }
    }
    for flow in &reading.udp_flows {
        let addresses = [flow.client.ip(), flow.server_inside.unwrap_or(flow.server).ip()];
        for (owner, addresses) in owners([&flow.client_here, &flow.server_here], addresses, reading) {
            let share = shares.entry(owner).or_default();
            share.udp.push(flow);
            share.addresses.extend(addresses);
        }
    }
    for share in shares.values_mut() {
        share.addresses.sort_unstable();
        share.addresses.dedup();
    }
    shares
}
