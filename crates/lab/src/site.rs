//! One site: the hosts and links of one variant.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use weir_netlink::ethtool::Ethtool;
use weir_netlink::{Mac, Route, Rtnetlink, VethEnd};
use weir_sys::{NetNs, ProcRoot, Result, rps, sysctl};

use crate::options::{Family, LabOptions, Role};
use crate::plan::{self, Addresses, BRIDGE, END, FAR, INSIDE, NEAR, Networks, OUTSIDE, Topology, mac};

/// The gateway's veth behind the bridge.
const BRIDGE_PORT: &str = "port0";

/// Longest time until an address is usable; it takes a few milliseconds.
const USABLE: Duration = Duration::from_secs(5);

/// The specification of a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteSpec {
    /// Name, unique in the lab (the variant's).
    pub name: String,
    /// Hosts and links.
    pub topology: Topology,
    /// The responder has a route back to the inside. Without it only translated packets are answered, which is
    /// what proves a NAT; a gateway that only routes needs it.
    pub return_route: bool,
    /// A further router, the `wan`, on the responder's link. There [`crate::emulate`] changes the link, and [`crate::impair`] can
    /// hold packets. It lowers the hop limit by one; no host has a route to its address, which only its ICMP messages show.
    pub wan: bool,
}

/// The hosts of one variant. Its namespaces live as long as it, its clones of [`NetNs`] and the processes in them.
#[derive(Debug)]
pub struct Site {
    spec: SiteSpec,
    addresses: Addresses,
    hosts: BTreeMap<Role, NetNs>,
    wan: Option<NetNs>,
}

impl Site {
    /// Makes hosts and links, and sets everything up.
    pub(crate) fn build(spec: &SiteSpec, options: &LabOptions) -> Result<Self> {
        let mut hosts = BTreeMap::new();
        for role in Role::ALL {
            if role != Role::Gateway || spec.topology != Topology::Direct {
                hosts.insert(role, new_host(options, options.sysctls.get(&role))?);
            }
        }
        let wan = if spec.wan { Some(new_wan(options)?) } else { None };
        let addresses = Addresses::of(spec.topology, options.family);
        let site = Site { spec: spec.clone(), addresses, hosts, wan };
        site.link(options.mtu)?;
        site.address()?;
        site.switch_offloads(options)?;
        for (role, cpus) in &options.rps {
            if let Some(host) = site.hosts.get(role) {
                spread_packets(host, &site.interfaces(*role), cpus)?;
            }
        }
        Ok(site)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The specification that it was built from.
    pub fn spec(&self) -> &SiteSpec {
        &self.spec
    }

    /// Its addresses and the gateway's interfaces.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The host of a role; there is no gateway in a direct site.
    pub fn host(&self, role: Role) -> Option<&NetNs> {
        self.hosts.get(&role)
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = (Role, &NetNs)> {
        self.hosts.iter().map(|(role, host)| (*role, host))
    }

    /// The wan, if the site was made with one.
    pub fn wan(&self) -> Option<&NetNs> {
        self.wan.as_ref()
    }

    /// The interfaces of a role on the measured path.
    pub fn interfaces(&self, role: Role) -> Vec<String> {
        let names: &[&str] = match (role, self.spec.topology) {
            (Role::Gateway, Topology::Direct) => &[],
            (Role::Gateway, Topology::Routed) => &[INSIDE, OUTSIDE],
            (Role::Gateway, Topology::Bridged) => &[INSIDE, BRIDGE, BRIDGE_PORT],
            (Role::Initiator | Role::Responder, _) => &[END],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// The host at the near end of the responder's link: its role, its interface with the address, its veth, and the
    /// Ethernet address under which it is reached.
    fn near_end(&self) -> (Role, &'static str, &'static str, Mac) {
        match self.spec.topology {
            Topology::Direct => (Role::Initiator, END, END, mac::INITIATOR),
            Topology::Routed => (Role::Gateway, OUTSIDE, OUTSIDE, mac::OUTSIDE),
            Topology::Bridged => (Role::Gateway, BRIDGE, BRIDGE_PORT, mac::OUTSIDE),
        }
    }

    /// Makes all links and sets them up.
    fn link(&self, mtu: u32) -> Result<()> {
        let host = |role| &self.hosts[&role];
        let (near_role, _, near_veth, near_mac) = self.near_end();
        let veth_mac = if self.spec.topology == Topology::Bridged { mac::BRIDGE_PORT } else { near_mac };
        let near = end(near_veth, host(near_role), mtu, veth_mac);
        let far = end(END, host(Role::Responder), mtu, mac::RESPONDER);
        if let Some(gateway) = self.hosts.get(&Role::Gateway) {
            connect(
                end(END, host(Role::Initiator), mtu, mac::INITIATOR),
                end(INSIDE, gateway, mtu, mac::INSIDE),
            )?;
        }
        match &self.wan {
            None => connect(near, far)?,
            Some(wan) => {
                connect(near, end(NEAR, wan, mtu, mac::NEAR))?;
                connect(end(FAR, wan, mtu, mac::FAR), far)?;
            }
        }
        if self.spec.topology == Topology::Bridged {
            let mut net = Rtnetlink::open_in(host(Role::Gateway))?;
            net.create_bridge(BRIDGE, mtu, mac::OUTSIDE)?;
            net.set_master(BRIDGE_PORT, BRIDGE)?;
        }
        for (role, namespace) in &self.hosts {
            let mut net = Rtnetlink::open_in(namespace)?;
            for interface in self.interfaces(*role) {
                net.set_up(&interface)?;
            }
        }
        if let Some(wan) = &self.wan {
            let mut net = Rtnetlink::open_in(wan)?;
            net.set_up(NEAR)?;
            net.set_up(FAR)?;
        }
        Ok(())
    }

    /// Address at the near end of the responder's link.
    fn near_address(&self) -> IpAddr {
        match self.spec.topology {
            Topology::Direct => self.addresses.initiator,
            Topology::Routed | Topology::Bridged => self.addresses.gateway_outside,
        }
    }

    /// Makes the wan carry packets of at most that many bytes, towards the responder and back.
    pub(crate) fn limit_wan(&self, egress: Option<u32>, ingress: Option<u32>) -> Result<()> {
        let Some(wan) = &self.wan else { return Ok(()) };
        let mut net = Rtnetlink::open_in(wan)?;
        let routes = wan_routes(&self.addresses, self.near_address());
        for (route, mtu) in routes.into_iter().zip([egress, ingress]) {
            mtu.map_or(Ok(()), |mtu| net.limit_route(route, mtu))?;
        }
        Ok(())
    }

    /// Lets frames that were sent by XDP reach the wan: veth takes them in only where GRO or an XDP program is on
    /// (veth_xdp_xmit of drivers/net/veth.c).
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_frames_in_wan(&self) -> Result<()> {
        let Some(wan) = &self.wan else { return Ok(()) };
        let ethtool = wan.run(Ethtool::open)??;
        let gro = BTreeMap::from([("gro".to_owned(), true)]);
        [NEAR, FAR].iter().try_for_each(|interface| ethtool.set(interface, &gro))
    }

    /// Gives every host its addresses, routes and neighbours.
    fn address(&self) -> Result<()> {
        let a = &self.addresses;
        let nets = Networks::of(a.family);
        let (near_role, near_interface, _, near_mac) = self.near_end();
        // Behind a wan, each side takes the wan's Ethernet address for the other side's.
        let (mac_of_near, mac_of_far) =
            if self.wan.is_some() { (mac::FAR, mac::NEAR) } else { (near_mac, mac::RESPONDER) };
        let near_address = self.near_address();
        let via = |destination, via, interface| Route { destination, via, interface, onlink: false };

        let mut responder = Rtnetlink::open_in(&self.hosts[&Role::Responder])?;
        responder.add_address(END, a.responder, nets.outside.1)?;
        responder.add_neighbour(END, near_address, mac_of_near)?;
        let mut near = Rtnetlink::open_in(&self.hosts[&near_role])?;
        if near_role == Role::Gateway {
            near.add_address(INSIDE, a.gateway_inside, nets.inside.1)?;
            near.add_neighbour(INSIDE, a.initiator, mac::INITIATOR)?;
            near.add_address(near_interface, a.gateway_outside, nets.outside.1)?;
            responder.add_route(via(Some(nets.spare), Some(a.gateway_outside), END))?;
            if self.spec.return_route {
                responder.add_route(via(Some(nets.inside), Some(a.gateway_outside), END))?;
            }
            let mut initiator = Rtnetlink::open_in(&self.hosts[&Role::Initiator])?;
            initiator.add_address(END, a.initiator, nets.inside.1)?;
            initiator.add_neighbour(END, a.gateway_inside, mac::INSIDE)?;
            initiator.add_route(via(None, Some(a.gateway_inside), END))?;
        } else {
            near.add_address(END, a.initiator, nets.inside.1)?;
            near.add_route(via(Some(nets.outside), None, END))?;
            responder.add_route(via(Some(nets.inside), None, END))?;
        }
        near.add_neighbour(near_interface, a.responder, mac_of_far)?;
        let own: &[(Role, IpAddr)] = match near_role {
            Role::Gateway => &[(Role::Gateway, a.gateway_inside), (Role::Gateway, a.gateway_outside)],
            _ => &[],
        };
        for (role, address) in
            [(Role::Initiator, a.initiator), (Role::Responder, a.responder)].iter().chain(own)
        {
            Rtnetlink::open_in(&self.hosts[role])?.wait_until_local(*address, USABLE)?;
        }
        if let Some(wan) = &self.wan {
            route_wan(wan, a, near_address, near_mac)?;
        }
        Ok(())
    }

    fn switch_offloads(&self, options: &LabOptions) -> Result<()> {
        let switches = options.offloads.switches();
        if switches.is_empty() {
            return Ok(());
        }
        let wan = self.wan.iter().map(|wan| (wan, vec![NEAR.to_owned(), FAR.to_owned()]));
        let hosts = self.hosts.iter().map(|(role, namespace)| (namespace, self.interfaces(*role)));
        for (namespace, interfaces) in hosts.chain(wan) {
            let ethtool = namespace.run(Ethtool::open)??;
            // A bridge takes its offloads from its ports.
            for interface in interfaces.iter().filter(|name| *name != BRIDGE) {
                ethtool.set(interface, &switches)?;
            }
        }
        Ok(())
    }
}

/// One end of a link.
fn end<'a>(name: &'a str, namespace: &'a NetNs, mtu: u32, mac: Mac) -> VethEnd<'a> {
    VethEnd { name, namespace: Some(namespace), mtu, mac: Some(mac) }
}

fn connect(a: VethEnd<'_>, b: VethEnd<'_>) -> Result<()> {
    let mut net = match a.namespace {
        Some(namespace) => Rtnetlink::open_in(namespace)?,
        None => Rtnetlink::open()?,
    };
    net.create_veth(a, b)
}

/// Creates a host without links: quiet, forwarding nothing, its `lo` up. Settings that a namespace inherits from the machine
/// (forwarding on a Docker host, reverse-path filters of a distribution) are set explicitly.
fn new_host(options: &LabOptions, own: Option<&BTreeMap<String, String>>) -> Result<NetNs> {
    let host = NetNs::create()?;
    host.run(|| {
        let root = ProcRoot::new("/");
        for (name, value) in settings(options.family) {
            // Without IPv6 in the kernel there is nothing to silence; a lab that wants IPv6 fails at its first address.
            if name.starts_with("net.ipv6.") && sysctl::get_optional(&root, name)?.is_none() {
                continue;
            }
            sysctl::set(&root, name, value)?;
        }
        for (name, value) in own.into_iter().flatten() {
            sysctl::set(&root, name, value)?;
        }
        Rtnetlink::open()?.set_up("lo")
    })??;
    Ok(host)
}

/// Settings of every host, before it has interfaces.
fn settings(family: Family) -> impl Iterator<Item = (&'static str, &'static str)> {
    let ipv6_off = if family == Family::Ipv4 { "1" } else { "0" };
    [
        ("net.ipv4.ip_forward", "0"),
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        ("net.ipv4.conf.all.send_redirects", "0"),
        ("net.ipv4.conf.default.send_redirects", "0"),
        ("net.ipv6.conf.all.disable_ipv6", ipv6_off),
        ("net.ipv6.conf.default.disable_ipv6", ipv6_off),
        ("net.ipv6.conf.all.forwarding", "0"),
        ("net.ipv6.conf.default.forwarding", "0"),
        ("net.ipv6.conf.default.accept_ra", "0"),
        ("net.ipv6.conf.default.autoconf", "0"),
        ("net.ipv6.conf.default.accept_dad", "0"),
        ("net.ipv6.conf.default.router_solicitations", "0"),
        // in6_addr_gen_mode: 1 is "none". No link-local address: nothing here needs one.
        ("net.ipv6.conf.default.addr_gen_mode", "1"),
    ]
    .into_iter()
}

/// The router in the responder's link.
fn new_wan(options: &LabOptions) -> Result<NetNs> {
    let wan = new_host(options, None)?;
    let name = match options.family {
        Family::Ipv4 => "net.ipv4.ip_forward",
        Family::Ipv6 => "net.ipv6.conf.all.forwarding",
    };
    wan.run(|| {
        let root = ProcRoot::new("/");
        sysctl::set(&root, name, "1")?;
        // Path MTU discovery receives every answer that it requests.
        for limit in ["net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"] {
            if sysctl::get_optional(&root, limit)?.is_some() {
                sysctl::set(&root, limit, "0")?;
            }
        }
        let one = if options.family == Family::Ipv4 { 32 } else { 128 };
        Rtnetlink::open()?.add_address("lo", plan::wan(options.family), one)
    })??;
    Ok(wan)
}

/// No host resolves the wan as a neighbour: it knows both sides by their fixed Ethernet addresses.
fn route_wan(wan: &NetNs, a: &Addresses, near_address: IpAddr, near_mac: Mac) -> Result<()> {
    let mut net = Rtnetlink::open_in(wan)?;
    let [egress, ingress] = wan_routes(a, near_address);
    net.add_neighbour(FAR, a.responder, mac::RESPONDER)?;
    net.add_route(egress)?;
    net.add_neighbour(NEAR, near_address, near_mac)?;
    net.add_route(ingress)
}

/// The wan's way to the responder, and that to everybody else.
fn wan_routes(a: &Addresses, near_address: IpAddr) -> [Route<'static>; 2] {
    let one = if a.family == Family::Ipv4 { 32 } else { 128 };
    [
        Route { destination: Some((a.responder, one)), via: None, interface: FAR, onlink: false },
        Route { destination: None, via: Some(near_address), interface: NEAR, onlink: true },
    ]
}

/// The kernel hands packets received on these interfaces to those cores.
fn spread_packets(host: &NetNs, interfaces: &[String], cpus: &[usize]) -> Result<()> {
    let mask = rps::mask(cpus);
    host.run_with_own_sysfs(|| interfaces.iter().try_for_each(|interface| rps::set(interface, &mask)))?
}
