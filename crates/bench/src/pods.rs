//! From the nodes of a scenario to hosts: pods, made for the run.

use std::net::IpAddr;

use weir_agent::pods::{Ask, Cluster, Pod, Pods, Rights, Template};
use weir_gateway::{Family, Role};

use crate::error::Error;
use crate::fit;
use crate::order::Order;
use crate::scenario::{EndHost, GatewayHost, HostsTestbed, KubernetesTestbed, NodeEnd, VariantRun};

/// Pods that run, and the testbed that they are.
pub(crate) struct Made {
    pub(crate) testbed: HostsTestbed,
    pub(crate) pods: Pods,
    /// For the user and the record.
    pub(crate) notes: Vec<String>,
}

/// Makes the pods of a testbed, after removing those of runs that were killed.
pub(crate) fn make(
    order: &Order<'_>,
    testbed: &KubernetesTestbed,
    variants: &[VariantRun],
) -> Result<Made, Error> {
    let settings = &testbed.pods;
    let cluster = Cluster::open(&settings.namespace, &order.id)?;
    let mut notes = Vec::new();
    match cluster.remove_leftovers()? {
        0 => {}
        left => notes.push(format!(
            "removed {left} pods in namespace {} that an earlier run left when it was killed",
            settings.namespace
        )),
    }
    let asks = asks(&cluster, testbed)?;
    let hosts = |role: Role| asks.iter().filter(|a| a.role == role).map(|a| a.nodes.len()).sum();
    fit::real_hosts(
        testbed.gateway.is_some(),
        &testbed.host_sysctls,
        &testbed.ports,
        hosts(Role::Initiator),
        variants,
    )?;
    let template = Template {
        image: settings.image.clone(),
        program: settings.program.as_ref().map(|p| p.display().to_string()),
        deadline: order.scenario.pod_deadline(settings),
    };
    let pods = cluster.make(&template, &asks, settings.start_within, order.interrupted)?;
    match hosts_of(testbed, &pods.asked) {
        Ok(testbed) => Ok(Made { testbed, pods, notes }),
        Err(error) => Err(give_up(pods, error)),
    }
}

/// The same failure, or the reason for it that only the cluster knows: an agent is lost when its pod is evicted.
pub(crate) fn explain(pods: &Pods, failure: Error) -> Error {
    let lost = matches!(&failure, Error::Agent(error) if error.is_fatal());
    let why = if lost { pods.why() } else { None };
    why.map_or(failure, Error::Pods)
}

/// Removes the pods after a failure. Their agents must have ended.
pub(crate) fn give_up(mut pods: Pods, failure: Error) -> Error {
    match pods.remove() {
        Ok(()) => failure,
        Err(left) => Error::LeftBehind { failure: Box::new(failure), left },
    }
}

/// The pods of the initiators, of the responders, and of the gateway, in the order of the scenario.
fn asks(cluster: &Cluster, testbed: &KubernetesTestbed) -> Result<Vec<Ask>, Error> {
    let mut asks = Vec::new();
    for (role, ends) in [(Role::Initiator, &testbed.initiators), (Role::Responder, &testbed.responders)] {
        for end in ends {
            asks.push(Ask { role, nodes: cluster.find(&end.nodes)?, rights: rights(end) });
        }
    }
    if let Some(gateway) = &testbed.gateway {
        let rights = Rights {
            // A pod in a network of its own is on no path between others.
            host_network: true,
            capabilities: gateway.capabilities.clone(),
            privileged: gateway.privileged,
            changes_node: true,
        };
        asks.push(Ask { role: Role::Gateway, nodes: cluster.find_one(&gateway.node)?, rights });
    }
    Ok(asks)
}

fn rights(end: &NodeEnd) -> Rights {
    Rights {
        host_network: end.host_network,
        capabilities: end.capabilities.clone(),
        privileged: false,
        // Routes of `nft-stateless`, and the user's own commands.
        changes_node: end.host_network && !end.capabilities.is_empty(),
    }
}

/// The testbed of these pods, which are in the order of [`asks`].
fn hosts_of(testbed: &KubernetesTestbed, asked: &[Vec<Pod>]) -> Result<HostsTestbed, Error> {
    let mut asked = asked.iter();
    let mut ends = |ends: &[NodeEnd]| -> Result<Vec<EndHost>, Error> {
        let mut hosts = Vec::new();
        for (end, pods) in ends.iter().zip(asked.by_ref()) {
            for pod in pods {
                hosts.push(EndHost {
                    host: pod.host.clone(),
                    address: end.address.map_or_else(|| address(pod, testbed.family), Ok)?,
                    program: testbed.pods.program.clone(),
                    sudo: false,
                    cpus: end.cpus.clone(),
                });
            }
        }
        Ok(hosts)
    };
    let initiators = ends(&testbed.initiators)?;
    let responders = ends(&testbed.responders)?;
    if let Some(both) = initiators.iter().find(|i| responders.iter().any(|r| r.address == i.address)) {
        return Err(Error::Unfit(format!(
            "an initiator and a responder have the same address {}: with host-network they need different nodes",
            both.address
        )));
    }
    let pod = asked.next().and_then(|pods| pods.first());
    let gateway = testbed.gateway.as_ref().zip(pod).map(|(gateway, pod)| {
        let own = || address(pod, testbed.family);
        Ok::<_, Error>(GatewayHost {
            host: pod.host.clone(),
            program: testbed.pods.program.clone(),
            sudo: false,
            inside_interface: gateway.inside_interface.clone(),
            outside_interface: gateway.outside_interface.clone(),
            inside_address: gateway.inside_address.map_or_else(own, Ok)?,
            outside_address: gateway.outside_address.map_or_else(own, Ok)?,
            spare_address: gateway.spare_address,
            flush_conntrack: gateway.flush_conntrack,
        })
    });
    Ok(HostsTestbed {
        family: testbed.family,
        initiators,
        gateway: gateway.transpose()?,
        responders,
        host_sysctls: testbed.host_sysctls.clone(),
        ports: testbed.ports.clone(),
    })
}

/// The address of a pod, of the run's IP version.
fn address(pod: &Pod, family: Family) -> Result<IpAddr, Error> {
    let found = pod.addresses.iter().find(|a| a.is_ipv4() == (family == Family::Ipv4));
    found.copied().ok_or_else(|| {
        let version = if family == Family::Ipv4 { "IPv4" } else { "IPv6" };
        Error::Unfit(format!(
            "pod {} on node {} has no {version} address: set `family` in [testbed] to the version of the cluster",
            pod.name, pod.node
        ))
    })
}
