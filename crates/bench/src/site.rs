//! The hosts of one variant.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use weir_agent::remote::Remote;
use weir_gateway::{Place, Role};

use crate::links::Emulated;

/// Longest until a fresh path answers.
pub(crate) const REACH: Duration = Duration::from_secs(5);

/// One host of a site.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// Its role.
    pub(crate) role: Role,
    /// Its agent.
    pub(crate) agent: Arc<Remote>,
    /// Its address on the measured path.
    pub(crate) address: IpAddr,
    /// Cores for its load threads.
    pub(crate) cpus: Vec<usize>,
    /// Interfaces on the measured path; empty for all.
    pub(crate) interfaces: Vec<String>,
}

/// The hosts of one variant.
#[derive(Debug)]
pub(crate) struct Site {
    /// The place of the variant: its addresses and interfaces.
    pub(crate) place: Place,
    /// At least one.
    pub(crate) initiators: Vec<Member>,
    /// None where nothing lies between, or nothing that we may touch.
    pub(crate) gateway: Option<Member>,
    /// At least one.
    pub(crate) responders: Vec<Member>,
    /// Address on which responders listen. By default it is any address, because behind some translations a host does not own the
    /// address at which clients reach it. If the host owns this address and others, it listens on this one: answers over UDP
    /// would otherwise come from another.
    pub(crate) listen: IpAddr,
    /// The lab's link, where it is not a plain one.
    pub(crate) link: Option<Emulated>,
}

impl Site {
    /// All hosts: the gateway first, since the others depend on it.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.gateway.iter().chain(&self.initiators).chain(&self.responders)
    }
}

/// The address to listen on: any, because behind some translations a host does not have the address it is reached at.
pub(crate) fn any(of: IpAddr) -> IpAddr {
    if of.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}
