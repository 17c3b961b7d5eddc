//! `[testbed] hosts = "kubernetes"`: pods that weir makes on nodes, for the run.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml_edit::Table;
use weir_agent::pods::Nodes;
use weir_lab::Family;

use super::problem::{Source, as_table};
use super::section::{Result, Section, tables};
use super::span::Span;
use super::{Ports, Scenario, Testbed, check};

/// Pods that weir makes, one on each node meant.
#[derive(Debug, Clone, PartialEq)]
pub struct KubernetesTestbed {
    /// IP version of the traffic.
    pub family: Family,
    /// Properties of all pods.
    pub pods: PodSettings,
    /// Nodes of the hosts that open connections, at least one entry.
    pub initiators: Vec<NodeEnd>,
    /// The node that is the hop; absent where every variant does without (`direct`, `path`).
    pub gateway: Option<NodeGateway>,
    /// Nodes of the hosts that answer, at least one entry.
    pub responders: Vec<NodeEnd>,
    /// Sysctls of the gateway that are global to its machine, to be set for the run and put back.
    pub host_sysctls: BTreeMap<String, String>,
    /// Ports on which the responders answer.
    pub ports: Ports,
}

/// `[testbed.pods]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSettings {
    /// Namespace of the cluster, which must be there.
    pub namespace: String,
    /// Container image.
    pub image: String,
    /// The `weir` program in the image; absent: weir copies itself into each pod.
    pub program: Option<PathBuf>,
    /// Time after which the cluster ends the pods, 1 min to 7 days; absent: [`Scenario::pod_deadline`] finds one.
    pub deadline: Option<Duration>,
    /// Longest until all pods run, images pulled.
    pub start_within: Duration,
}

/// An initiator or a responder on each of these nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEnd {
    /// The nodes.
    pub nodes: Nodes,
    /// Its address on the measured path, where that is not the pod's own.
    pub address: Option<IpAddr>,
    /// In the node's network instead of the pods'.
    pub host_network: bool,
    /// Capabilities of the pod.
    pub capabilities: Vec<String>,
    /// Cores of its load threads; empty leaves them to the scheduler.
    pub cpus: Vec<usize>,
}

/// The node that is the hop under test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGateway {
    /// The node: a selector must match one.
    pub node: Nodes,
    /// Capabilities of the pod.
    pub capabilities: Vec<String>,
    /// A privileged pod: with all capabilities, and settings that can be written.
    pub privileged: bool,
    /// Interface towards the initiators.
    pub inside_interface: String,
    /// Interface towards the responders; the same one on a one-armed gateway.
    pub outside_interface: String,
    /// Its address towards the initiators, where that is not the node's own.
    pub inside_address: Option<IpAddr>,
    /// Its address towards the responders, where that is not the node's own.
    pub outside_address: Option<IpAddr>,
    /// A further outside address that is routed to it and that nothing else uses.
    pub spare_address: Option<IpAddr>,
    /// Its table of connections may be emptied, which breaks what others have through it.
    pub flush_conntrack: bool,
}

/// The shortest deadline: below it a pod could end before its agent has started.
const LEAST_DEADLINE: Duration = Duration::from_secs(60);
const MOST_DEADLINE: Duration = Duration::from_secs(7 * 86_400);
/// Room of a deadline for the start of the pods, and for rounds that take longer than expected.
const ROOM: Duration = Duration::from_secs(600);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawTestbed {
    #[serde(default)]
    family: Option<Family>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawPods {
    namespace: Option<String>,
    image: String,
    program: Option<PathBuf>,
    deadline: Option<Span>,
    start_within: Option<Span>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawEnd {
    node: Option<String>,
    nodes: Option<Vec<String>>,
    selector: Option<String>,
    address: Option<IpAddr>,
    #[serde(default)]
    host_network: bool,
    #[serde(default)]
    capabilities: Vec<String>,
    #[serde(default)]
    cpus: Vec<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawGateway {
    node: Option<String>,
    selector: Option<String>,
    capabilities: Option<Vec<String>>,
    #[serde(default)]
    privileged: bool,
    inside_interface: String,
    outside_interface: String,
    inside_address: Option<IpAddr>,
    outside_address: Option<IpAddr>,
    spare_address: Option<IpAddr>,
    #[serde(default)]
    flush_conntrack: bool,
}

/// Reads the part of `[testbed]` that is of pods; `common` are its keys for all testbeds.
pub(super) fn read(
    section: &Section<'_>,
    table: &Table,
    common: (BTreeMap<String, String>, Ports),
) -> Result<Testbed> {
    let parts = ["pods", "initiator", "gateway", "responder"];
    let (_, own) = super::section::split(table, &parts);
    let all = ["kind", "hosts", "host-sysctls", "ports", "pods", "initiator", "gateway", "responder"];
    let raw: RawTestbed = section.read(&own, &all, &|_| Ok(()))?;
    let family = raw.family.unwrap_or_default();
    let pods = pods(section, table)?;
    let initiators = ends(section, table, "initiator", family)?;
    let responders = ends(section, table, "responder", family)?;
    let gateways = tables(section.source, table, "gateway")?;
    if gateways.len() > 1 {
        return Err(section.error(
            Some("gateway"),
            "only one gateway is measured at a time".to_owned(),
            None,
        ));
    }
    let gateway = gateways.first().map(|table| gateway(section.source, table, family)).transpose()?;
    let (host_sysctls, ports) = common;
    Ok(Testbed::Kubernetes(KubernetesTestbed {
        family,
        pods,
        initiators,
        gateway,
        responders,
        host_sysctls,
        ports,
    }))
}

fn pods(testbed: &Section<'_>, table: &Table) -> Result<PodSettings> {
    let Some(table) = table.get("pods").and_then(as_table) else {
        let what = "hosts = \"kubernetes\" needs [testbed.pods] with an `image`".to_owned();
        return Err(testbed.error(Some("hosts"), what, None));
    };
    let section = Section { source: testbed.source, table: &table, heading: "[testbed.pods]" };
    let valid = |raw: &RawPods| {
        name("namespace", raw.namespace.as_deref().unwrap_or_default(), 63)?;
        image(&raw.image)?;
        if let Some(Span(deadline)) = raw.deadline {
            check::within("deadline", deadline, LEAST_DEADLINE, MOST_DEADLINE)?;
        }
        let start = raw.start_within.map_or(START_WITHIN, |span| span.0);
        check::within("start-within", start, Duration::from_secs(1), Duration::from_secs(3600))
    };
    let raw: RawPods = section.read(&table, &[], &valid)?;
    Ok(PodSettings {
        namespace: raw.namespace.unwrap_or_else(|| "default".to_owned()),
        image: raw.image,
        program: raw.program,
        deadline: raw.deadline.map(|span| span.0),
        start_within: raw.start_within.map_or(START_WITHIN, |span| span.0),
    })
}

/// An image of some hundred megabytes over a slow line.
const START_WITHIN: Duration = Duration::from_secs(180);

fn ends(section: &Section<'_>, table: &Table, role: &str, family: Family) -> Result<Vec<NodeEnd>> {
    let heading = format!("[testbed.{role}]");
    let tables = tables(section.source, table, role)?;
    if tables.is_empty() {
        return Err(section.error(Some("hosts"), format!("a testbed of pods needs {heading}"), None));
    }
    let end = |table: &Table| {
        let end = Section { source: section.source, table, heading: &heading };
        let valid = |raw: &RawEnd| {
            let nodes = nodes(raw.node.as_ref(), raw.nodes.as_ref(), raw.selector.as_ref())?;
            capabilities(&raw.capabilities)?;
            match (raw.address, nodes) {
                (Some(_), Nodes::Selected(_)) => {
                    Err("address: one address is of one `node`, not of a selector".to_owned())
                }
                (Some(_), Nodes::Named(names)) if names.len() > 1 => {
                    Err("address: one address is of one `node`, not of several".to_owned())
                }
                (Some(address), _) => check::family("address", address, family),
                (None, _) => Ok(()),
            }
        };
        let raw: RawEnd = end.read(table, &[], &valid)?;
        let nodes = nodes(raw.node.as_ref(), raw.nodes.as_ref(), raw.selector.as_ref())
            .map_err(|what| end.error(None, what, None))?;
        let RawEnd { address, host_network, capabilities, cpus, .. } = raw;
        Ok(NodeEnd { nodes, address, host_network, capabilities, cpus })
    };
    tables.iter().map(end).collect()
}

fn gateway(source: Source<'_>, table: &Table, family: Family) -> Result<NodeGateway> {
    let section = Section { source, table, heading: "[testbed.gateway]" };
    let valid = |raw: &RawGateway| {
        nodes(raw.node.as_ref(), None, raw.selector.as_ref())?;
        capabilities(raw.capabilities.as_deref().unwrap_or_default())?;
        check::interface("inside-interface", &raw.inside_interface)?;
        check::interface("outside-interface", &raw.outside_interface)?;
        let addresses = [
            ("inside-address", raw.inside_address),
            ("outside-address", raw.outside_address),
            ("spare-address", raw.spare_address),
        ];
        addresses
            .into_iter()
            .filter_map(|(key, address)| Some((key, address?)))
            .try_for_each(|(key, address)| check::family(key, address, family))
    };
    let raw: RawGateway = section.read(table, &[], &valid)?;
    let node = nodes(raw.node.as_ref(), None, raw.selector.as_ref())
        .map_err(|what| section.error(None, what, None))?;
    // docs/reference/scenarios.md: rules need the one, namespaces and programs the other.
    let usual = || ["NET_ADMIN", "SYS_ADMIN"].map(str::to_owned).to_vec();
    Ok(NodeGateway {
        node,
        capabilities: raw.capabilities.unwrap_or_else(usual),
        privileged: raw.privileged,
        inside_interface: raw.inside_interface,
        outside_interface: raw.outside_interface,
        inside_address: raw.inside_address,
        outside_address: raw.outside_address,
        spare_address: raw.spare_address,
        flush_conntrack: raw.flush_conntrack,
    })
}

/// The nodes that a role's keys mean: one of the keys must be there.
fn nodes(
    node: Option<&String>,
    nodes: Option<&Vec<String>>,
    selector: Option<&String>,
) -> std::result::Result<Nodes, String> {
    match (node, nodes, selector) {
        (Some(node), None, None) => {
            name("node", node, 253)?;
            Ok(Nodes::Named(vec![node.clone()]))
        }
        (None, Some(nodes), None) => {
            if nodes.is_empty() {
                return Err("nodes: an empty list means no host".to_owned());
            }
            for (index, node) in nodes.iter().enumerate() {
                name("nodes", node, 253)?;
                if nodes[..index].contains(node) {
                    return Err(format!("nodes: \"{node}\" is there twice"));
                }
            }
            Ok(Nodes::Named(nodes.clone()))
        }
        (None, None, Some(selector)) => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./=!,() ".contains(c);
            if selector.trim().is_empty() || !selector.chars().all(allowed) {
                return Err(format!("selector = \"{selector}\": expected labels, like \"zone=b,disk=ssd\""));
            }
            Ok(Nodes::Selected(selector.clone()))
        }
        (None, None, None) => Err("needs `node`, `nodes` or `selector`".to_owned()),
        _ => Err("of `node`, `nodes` and `selector` only one can be there".to_owned()),
    }
}

/// A name as Kubernetes takes it (RFC 1123: parts of letters, digits and -). An absent one is empty.
fn name(key: &str, name: &str, longest: usize) -> std::result::Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    if name.len() <= longest && name.chars().all(allowed) && !name.starts_with('-') {
        return Ok(());
    }
    Err(format!("{key} = \"{name}\": expected a name of Kubernetes: a-z, 0-9, - and ."))
}

fn image(image: &str) -> std::result::Result<(), String> {
    let allowed = |c: char| c.is_ascii_graphic() && !"\"'\\".contains(c);
    if !image.is_empty() && image.chars().all(allowed) {
        return Ok(());
    }
    Err(format!(
        "image = \"{image}\": expected the name of an image, like \"registry.example.com/weir:0.1.0\""
    ))
}

fn capabilities(names: &[String]) -> std::result::Result<(), String> {
    let allowed = |c: char| c.is_ascii_uppercase() || c == '_';
    match names.iter().find(|name| name.is_empty() || name.starts_with("CAP_") || !name.chars().all(allowed))
    {
        Some(name) => {
            Err(format!("capabilities: \"{name}\": expected a name like \"NET_ADMIN\", without CAP_"))
        }
        None => Ok(()),
    }
}

impl Scenario {
    /// Time after which the cluster ends the pods of `hosts = "kubernetes"`: the scenario's, or twice what the run will take at
    /// most and ten minutes.
    pub fn pod_deadline(&self, pods: &PodSettings) -> Duration {
        let most = Duration::from_secs_f64(self.expected_seconds().1.min(MOST_DEADLINE.as_secs_f64()));
        pods.deadline.unwrap_or_else(|| (most * 2 + ROOM).min(MOST_DEADLINE))
    }

    /// Refuses a deadline at which the run would still need its pods.
    pub(super) fn check_deadline(&self) -> std::result::Result<(), String> {
        let Testbed::Kubernetes(testbed) = &self.testbed else { return Ok(()) };
        let Some(deadline) = testbed.pods.deadline else { return Ok(()) };
        let most = self.expected_seconds().1;
        if deadline.as_secs_f64() > most {
            return Ok(());
        }
        let words = weir_text::time::duration;
        Err(format!(
            "deadline = {}: the run may take {}; leave the deadline out, or make it longer",
            words(deadline.as_secs_f64()),
            words(most)
        ))
    }
}

#[cfg(test)]
#[path = "kubernetes_tests.rs"]
mod tests;
