//! The hosts of a run: the lab's, or real ones; one agent on each.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use weir_agent::Task;
use weir_agent::pods::Pods;
use weir_agent::remote::Remote;
use weir_agent::transport::{Options, Transport};
use weir_gateway::path::Path;
use weir_gateway::{Place, Role, VariantKind};
use weir_lab::{Lab, SiteSpec};

use crate::SHORT;
use crate::error::Error;
use crate::fit;
use crate::links::Emulated;
use crate::order::Order;
use crate::pods::{self, Made};
use crate::scenario::{
    EndHost, HostAddress, HostsTestbed, KubernetesTestbed, LabTestbed, Load, Testbed, VariantRun,
};
use crate::settings::Settings;
use crate::site::{Member, Site, any};

/// All hosts of a run. Dropping it ends the agents, which undo what they did, and takes the lab down.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// By variant, in the order of the run; on real hosts all are the same hosts.
    pub(crate) sites: Vec<Site>,
    /// In words, for the record.
    pub(crate) description: String,
    /// True in the lab: each variant has hosts of its own, and all share one machine.
    pub(crate) is_lab: bool,
    /// True if the user did not choose the cores for the gateway's work, so weir may choose them: in a lab without `rps.gateway`.
    pub(crate) steers: bool,
    /// True if weir may flush the gateway's connection table: in a lab, the table has no other user.
    pub(crate) flushes: bool,
    /// Keeps changed settings of the machine, and takes them back when it ends.
    pub(crate) settings: Settings,
    /// For the user and the record.
    pub(crate) notes: Vec<String>,
    /// Dropped after the agents in it.
    _lab: Option<Lab>,
    /// Pods that were made for the run; as the lab.
    pods: Option<Pods>,
}

impl Hosts {
    /// Builds the lab or reaches the hosts.
    pub(crate) fn open(order: &Order<'_>, variants: &[VariantRun]) -> Result<Self, Error> {
        match &order.scenario.testbed {
            Testbed::Lab(lab) => {
                let frames = order.scenario.workloads.iter().any(|w| matches!(w.workload, Load::Packets(_)));
                open_lab(lab, &order.id, variants, frames)
            }
            Testbed::Hosts(hosts) => open_hosts(hosts, variants),
            Testbed::Kubernetes(nodes) => open_pods(order, nodes, variants),
        }
    }

    /// The same failure, or the reason for it that only the cluster knows.
    pub(crate) fn explain(&self, failure: Error) -> Error {
        match &self.pods {
            Some(pods) => pods::explain(pods, failure),
            None => failure,
        }
    }

    /// Ends everything after a failure, and returns it with what could not be ended.
    pub(crate) fn fail(mut self, failure: Error) -> Error {
        let failure = self.explain(failure);
        let pods = self.pods.take();
        // The agents undo what they did while their pods are still there.
        drop(self);
        match pods {
            Some(pods) => pods::give_up(pods, failure),
            None => failure,
        }
    }

    /// Removes the pods of a run whose agents have ended. Returns what is left, in words.
    pub(crate) fn release(&mut self) -> Option<String> {
        let mut pods = self.pods.take()?;
        // Its agent is in one of them.
        self.settings = Settings::none();
        pods.remove().err().map(|left| left.to_string())
    }
}

fn open_lab(testbed: &LabTestbed, run: &str, variants: &[VariantRun], frames: bool) -> Result<Hosts, Error> {
    let settings = Settings::hold(
        &testbed.host_sysctls,
        variants,
        "this machine",
        &Transport::Host(HostAddress::Local),
        &Options::default(),
    )?;
    let specs: Vec<SiteSpec> = variants.iter().map(|v| site_spec(v, testbed)).collect();
    let mut lab = Lab::build(run, &testbed.options, &specs).map_err(Error::Lab)?;
    let mut sites = Vec::new();
    let mut started = Vec::new();
    for (number, variant) in variants.iter().enumerate() {
        let site =
            lab.site(&variant.name).ok_or_else(|| Error::Internal("a variant without a site".into()))?;
        let member = |role: Role| -> Result<Option<Member>, Error> {
            let Some(namespace) = site.host(role) else { return Ok(None) };
            let transport = Transport::Namespace(namespace.clone());
            let name = format!("{} of {}", role.name(), variant.name);
            let agent = Arc::new(Remote::start(&name, &transport, &Options::default())?);
            let address = match role {
                Role::Initiator => site.addresses().initiator,
                Role::Gateway => site.addresses().gateway_inside,
                Role::Responder => site.addresses().responder,
            };
            Ok(Some(Member { role, agent, address, cpus: lab.cpus(role), interfaces: site.interfaces(role) }))
        };
        let site = Site {
            place: place(site.addresses(), testbed, number),
            initiators: member(Role::Initiator)?.into_iter().collect(),
            gateway: member(Role::Gateway)?,
            responders: member(Role::Responder)?.into_iter().collect(),
            listen: any(site.addresses().responder),
            link: Emulated::start(site, &variant.link, frames)?,
        };
        started.extend(site.members().map(|m| m.agent.pid()));
        sites.push(site);
    }
    for pid in started {
        lab.registry().add_process(pid).map_err(Error::Lab)?;
    }
    let description = lab.describe();
    let steers = !testbed.options.rps.contains_key(&Role::Gateway);
    let notes = Vec::new();
    Ok(Hosts {
        sites,
        description,
        is_lab: true,
        steers,
        flushes: true,
        settings,
        notes,
        _lab: Some(lab),
        pods: None,
    })
}

/// The responder gets a route back to the inside only if it must see the initiator's own address: otherwise replies to
/// untranslated packets would go unnoticed.
fn site_spec(variant: &VariantRun, testbed: &LabTestbed) -> SiteSpec {
    let kind = &variant.variant;
    let topology = kind.topology();
    let place = place(&weir_lab::Addresses::of(topology, testbed.options.family), testbed, 0);
    let seen = kind.expectation(&place).seen_source;
    let return_route = seen.is_none() || seen == Some(place.initiator);
    SiteSpec { name: variant.name.clone(), topology, return_route, wan: !variant.link.is_plain() }
}

fn place(a: &weir_lab::Addresses, testbed: &LabTestbed, number: usize) -> Place {
    Place {
        family: a.family,
        // A direct site has none; the names only have to be valid.
        inside_interface: named(&a.inside_interface, "inside"),
        outside_interface: named(&a.outside_interface, "outside"),
        initiator: a.initiator,
        gateway_inside: a.gateway_inside,
        gateway_outside: a.gateway_outside,
        spare_outside: a.spare_outside,
        responder: a.responder,
        ports: testbed.ports.0.clone(),
        tag: format!("v{number}"),
    }
}

fn named(name: &str, otherwise: &str) -> String {
    if name.is_empty() { otherwise.to_owned() } else { name.to_owned() }
}

fn open_hosts(testbed: &HostsTestbed, variants: &[VariantRun]) -> Result<Hosts, Error> {
    let initiators = testbed.initiators.len();
    fit::real_hosts(testbed.gateway.is_some(), &testbed.host_sysctls, &testbed.ports, initiators, variants)?;
    let start = |role: Role, host: &HostAddress, options: &Options| {
        let name = format!("{} ({host})", role.name());
        Remote::start(&name, &Transport::Host(host.clone()), options).map(Arc::new)
    };
    let end = |role: Role, host: &EndHost| -> Result<Member, Error> {
        let agent = start(role, &host.host, &login(host.program.as_ref(), host.sudo))?;
        Ok(Member { role, agent, address: host.address, cpus: host.cpus.clone(), interfaces: Vec::new() })
    };
    let ends = |role: Role, hosts: &[EndHost]| -> Result<Vec<Member>, Error> {
        hosts.iter().map(|host| end(role, host)).collect()
    };
    let initiators = ends(Role::Initiator, &testbed.initiators)?;
    let responders = ends(Role::Responder, &testbed.responders)?;
    let (mut settings, mut gateway) = (Settings::none(), None);
    if let Some(g) = &testbed.gateway {
        let options = login(g.program.as_ref(), g.sudo);
        let transport = Transport::Host(g.host.clone());
        settings = Settings::hold(&testbed.host_sysctls, variants, "the gateway", &transport, &options)?;
        gateway = Some(Member {
            role: Role::Gateway,
            agent: start(Role::Gateway, &g.host, &options)?,
            address: g.inside_address,
            cpus: Vec::new(),
            interfaces: vec![g.inside_interface.clone(), g.outside_interface.clone()],
        });
    }
    let flushes = testbed.gateway.as_ref().is_some_and(|g| g.flush_conntrack);
    let mut sites = Vec::new();
    for (number, variant) in variants.iter().enumerate() {
        let place = real_place(testbed, number)?;
        let translates =
            variant.variant.expectation(&place).seen_source.is_some_and(|s| s != place.initiator);
        if translates && initiators.len() > 1 {
            return Err(Error::Unfit(format!(
                "variant `{}` translates one initiator's address, and this testbed has {} initiators",
                variant.name,
                initiators.len()
            )));
        }
        let (initiators, gateway) = (initiators.clone(), gateway.clone());
        let responders = reached(&responders, &variant.variant);
        let listen = listen(&place, &responders, &variant.variant)?;
        sites.push(Site { place, initiators, gateway, responders, listen, link: None });
    }
    let members = initiators.iter().chain(&gateway).chain(&responders);
    Ok(Hosts {
        sites,
        description: described(members),
        is_lab: false,
        steers: false,
        flushes,
        settings,
        notes: Vec::new(),
        _lab: None,
        pods: None,
    })
}

fn described<'a>(members: impl Iterator<Item = &'a Member>) -> String {
    let names: Vec<String> = members.map(|m| format!("{} {}", m.role.name(), m.agent.transport())).collect();
    names.join(", ")
}

fn open_pods(
    order: &Order<'_>,
    testbed: &KubernetesTestbed,
    variants: &[VariantRun],
) -> Result<Hosts, Error> {
    let Made { testbed, pods, notes } = pods::make(order, testbed, variants)?;
    match open_hosts(&testbed, variants) {
        Ok(hosts) => Ok(Hosts { notes, pods: Some(pods), ..hosts }),
        Err(failure) => {
            let failure = pods::explain(&pods, failure);
            Err(pods::give_up(pods, failure))
        }
    }
}

/// Who answers: of a path with a target of its own the responder with that address, or else the first, which has it beside
/// the one by which it is known.
fn reached(responders: &[Member], variant: &VariantKind) -> Vec<Member> {
    let VariantKind::Path(Path { target: Some(target) }) = variant else { return responders.to_vec() };
    let has_it = |member: &&Member| member.address == *target;
    responders.iter().find(has_it).or(responders.first()).cloned().into_iter().collect()
}

/// Returns the address on which a variant's responder listens. It tries to listen on the target of a path, to find out if the
/// host owns that address.
fn listen(place: &Place, responders: &[Member], variant: &VariantKind) -> Result<IpAddr, Error> {
    let any = any(place.responder);
    let (VariantKind::Path(Path { target: Some(target) }), Some(responder)) = (variant, responders.first())
    else {
        return Ok(any);
    };
    let bind = SocketAddr::new(*target, *place.ports.start());
    match responder.agent.call(Task::OpenEcho { bind }, SHORT) {
        Ok(_) => {
            responder.agent.call(Task::CloseEcho, SHORT)?;
            Ok(*target)
        }
        Err(weir_agent::Error::Task { .. }) => Ok(any),
        Err(error) => Err(error.into()),
    }
}

fn login(program: Option<&PathBuf>, sudo: bool) -> Options {
    Options { program: program.map(|p| p.display().to_string()), sudo }
}

/// Interfaces and addresses as the scenario gives them. Without a gateway its names are of no meaning, but must be valid.
fn real_place(testbed: &HostsTestbed, number: usize) -> Result<Place, Error> {
    let (Some(near), Some(far)) = (testbed.initiators.first(), testbed.responders.first()) else {
        return Err(Error::Internal("a testbed without ends".into()));
    };
    let gateway = testbed.gateway.as_ref();
    Ok(Place {
        family: testbed.family,
        inside_interface: gateway.map_or("inside".into(), |g| g.inside_interface.clone()),
        outside_interface: gateway.map_or("outside".into(), |g| g.outside_interface.clone()),
        initiator: near.address,
        gateway_inside: gateway.map_or(far.address, |g| g.inside_address),
        gateway_outside: gateway.map_or(far.address, |g| g.outside_address),
        spare_outside: gateway.and_then(|g| g.spare_address),
        responder: far.address,
        ports: testbed.ports.0.clone(),
        tag: format!("v{number}"),
    })
}
