//! The hosts of one case.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use weir_doctor::recipe::LabHost;
use weir_lab::{Lab, LabOptions, Role, SiteSpec, Topology};
use weir_netlink::{Mac, Rtnetlink, VethEnd};
use weir_sys::NetNs;
use weir_sys::process::run_captured;

use crate::Error;
use crate::fastpath::Kept;

/// Longest time that a script of a recipe may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// MTU of a further host's link.
const MTU: u32 = 1500;

/// The hosts.
#[derive(Debug)]
pub(crate) struct Hosts {
    places: BTreeMap<LabHost, NetNs>,
    further: BTreeMap<&'static str, NetNs>,
    addresses: weir_lab::Addresses,
    fastpaths: Vec<Kept>,
    /// Held to the end.
    _lab: Lab,
}

impl Hosts {
    /// A fresh lab of three.
    pub(crate) fn build(run: &str) -> Result<Self, Error> {
        let spec =
            SiteSpec { name: "selftest".into(), topology: Topology::Routed, return_route: true, wan: false };
        let mut options = LabOptions::default();
        let forward = BTreeMap::from([("net.ipv4.ip_forward".to_owned(), "1".to_owned())]);
        options.sysctls.insert(Role::Gateway, forward);
        let lab = Lab::build(run, &options, std::slice::from_ref(&spec))?;
        let site = lab.site(&spec.name).ok_or_else(|| Error::Recipe("the lab has no site".into()))?;
        let mut places = BTreeMap::new();
        for (role, host) in site.hosts() {
            let place = match role {
                Role::Initiator => LabHost::Initiator,
                Role::Gateway => LabHost::Gateway,
                Role::Responder => LabHost::Responder,
            };
            places.insert(place, host.clone());
        }
        let addresses = site.addresses().clone();
        Ok(Hosts { places, further: BTreeMap::new(), addresses, fastpaths: Vec::new(), _lab: lab })
    }

    /// The hosts that are looked at, by the names that findings carry. Those whose name begins with `far-` stand for others'
    /// hosts, into which no doctor sees. With `alone` it sees into these places only.
    pub(crate) fn named(&self, alone: &[LabHost]) -> Vec<(String, NetNs)> {
        let seen = self.places.iter().filter(|(place, _)| alone.is_empty() || alone.contains(place));
        let places = seen.map(|(place, host)| (name(*place).to_owned(), host.clone()));
        let ours = self.further.iter().filter(|(name, _)| !name.starts_with("far-"));
        let further = ours.map(|(name, host)| ((*name).to_owned(), host.clone()));
        places.chain(further).collect()
    }

    /// The host of a place.
    pub(crate) fn host(&self, place: LabHost) -> Result<&NetNs, Error> {
        self.places.get(&place).ok_or_else(|| Error::Recipe(format!("there is no {}", name(place))))
    }

    /// Index and Ethernet address of the interface of an end, and the address of the gateway's that it is linked to.
    pub(crate) fn macs(&self, end: LabHost) -> Result<(u32, Mac, Mac), Error> {
        let of = |host: LabHost, interface: &str| -> Result<(u32, Mac), Error> {
            let found = Rtnetlink::open_in(self.host(host)?)?.interface(interface)?;
            let mac =
                found.mac.ok_or_else(|| Error::Recipe(format!("{interface} has no Ethernet address")))?;
            Ok((found.index, mac))
        };
        let (index, own) = of(end, "eth0")?;
        let (_, peer) = of(LabHost::Gateway, if end == LabHost::Initiator { "inside" } else { "outside" })?;
        Ok((index, own, peer))
    }

    /// A further host, by its name.
    pub(crate) fn further(&self, name: &str) -> Result<&NetNs, Error> {
        self.further.get(name).ok_or_else(|| Error::Recipe(format!("there is no further host {name}")))
    }

    /// Keeps a fast path as long as the hosts.
    pub(crate) fn keep(&mut self, fastpath: Kept) {
        self.fastpaths.push(fastpath);
    }

    /// Adds a further host with a link `there` - `here` to a place.
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        to: LabHost,
        there: &str,
        here: &str,
    ) -> Result<(), Error> {
        let host = NetNs::create()?;
        let at = self.host(to)?;
        let end = |name, namespace| VethEnd { name, namespace: Some(namespace), mtu: MTU, mac: None };
        Rtnetlink::open()?.create_veth(end(there, at), end(here, &host))?;
        for (namespace, interface) in [(at, there), (&host, here), (&host, "lo")] {
            Rtnetlink::open_in(namespace)?.set_up(interface)?;
        }
        self.further.insert(name, host);
        Ok(())
    }

    /// A command that knows the addresses, in a host.
    pub(crate) fn command(&self, host: &NetNs, script: &str) -> Command {
        let a = &self.addresses;
        let mut command = Command::new("sh");
        command.args(["-euc", script]);
        command
            .env("INITIATOR", a.initiator.to_string())
            .env("GATEWAY_INSIDE", a.gateway_inside.to_string())
            .env("GATEWAY_OUTSIDE", a.gateway_outside.to_string())
            .env("RESPONDER", a.responder.to_string());
        host.enter_on_spawn(&mut command);
        command
    }

    /// Runs a script in a host.
    pub(crate) fn script(&self, host: &NetNs, script: &str) -> Result<(), Error> {
        let output = run_captured(self.command(host, script), PATIENCE)?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::Step {
            what: script.lines().next().unwrap_or_default().to_owned(),
            words: output.message(),
        })
    }
}

/// The name of a place.
pub(crate) fn name(place: LabHost) -> &'static str {
    match place {
        LabHost::Initiator => "initiator",
        LabHost::Gateway => "gateway",
        LabHost::Responder => "responder",
    }
}
