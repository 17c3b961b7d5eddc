//! The program in the drivers of network cards (XDP), and what stands in its way at an interface.
//!
//! A packet that XDP carries meets neither tc nor a queue. So it carries only where these decide nothing, and the program at tc carries
//! the rest. Interfaces are looked at again twice a second.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_bpf::{
    Attached, Direction, Mapped, ProgramFd, XdpMode, attach_xdp, program_name, tcx_programs, xdp_abilities,
};
use weir_netlink::ethtool::Ethtool;
use weir_netlink::nftables::{self, Hook};
use weir_netlink::{EGRESS_HOOK, INGRESS_HOOK, Link, QueueingDiscipline, Rtnetlink};
use weir_sys::ProcRoot;

use crate::clsact::is_own;
use crate::hooks::{is_gone, is_table};
use crate::shared::{WEIR_PORT_GIVES, WEIR_PORT_TAKES, WeirPort};
use crate::{Error, Result};

/// The interfaces at which the program at XDP carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Xdp {
    /// Nowhere: it is not loaded.
    #[default]
    Off,
    /// In drivers of network cards.
    Cards,
    /// At veth devices, too, whose other ends send single packets with whole checksums only. XDP on a veth spoils a checksum that the
    /// sender leaves to its interface, so that is for a lab.
    SingleFrames,
}

/// The part of XDP at an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct XdpInterface {
    /// Its name; text from outside.
    pub name: String,
    /// Why packets that come in there are left to tc; none if XDP carries them.
    pub incoming: Option<String>,
    /// Why packets that leave there are left to tc; none if XDP carries them.
    pub outgoing: Option<String>,
}

impl XdpInterface {
    /// True if XDP is of no use there.
    pub fn is_unfit(&self) -> bool {
        self.incoming.is_some() && self.outgoing.is_some()
    }
}

/// Queueing disciplines that neither shape nor drop by what a packet is.
const PLAIN_QUEUES: [&str; 9] =
    ["noqueue", "mq", "pfifo_fast", "pfifo", "bfifo", "fq_codel", "fq", "clsact", "ingress"];
/// The programs at tc.
const TC_IN: &str = "fastpath_in";
const TC_OUT: &str = "fastpath_out";

/// Answers of the kernel for a look at some interfaces.
struct Look<'a> {
    net: Rtnetlink,
    ethtool: Ethtool,
    queues: Vec<QueueingDiscipline>,
    /// Interfaces with chains of nftables at their egress.
    egress_chains: &'a [String],
    xdp: Xdp,
}

/// Interfaces with chains of nftables at their egress.
fn egress_chains(root: &ProcRoot) -> Result<Vec<String>> {
    let tables = nftables::read(root)?.unwrap_or_default();
    let bases = tables.chains.into_iter().filter_map(|chain| chain.base);
    Ok(bases.filter(|base| base.hook == Hook::Egress).flat_map(|base| base.devices).collect())
}

/// Looks at interfaces before the program is attached.
pub(crate) fn look_at<'a>(xdp: Xdp, links: impl Iterator<Item = &'a Link>) -> Result<Vec<XdpInterface>> {
    let chains = egress_chains(&ProcRoot::default())?;
    let mut look = Look::new(xdp, &chains)?;
    links.map(|link| look.at(link, None)).collect()
}

impl<'a> Look<'a> {
    fn new(xdp: Xdp, egress_chains: &'a [String]) -> Result<Self> {
        let mut net = Rtnetlink::open()?;
        let queues = net.queueing_disciplines()?;
        Ok(Look { net, ethtool: Ethtool::open()?, queues, egress_chains, xdp })
    }

    /// Looks for obstacles at an interface; `own`: the number of the program, where it is attached.
    fn at(&mut self, link: &Link, own: Option<u32>) -> Result<XdpInterface> {
        let name = link.name.clone();
        let abilities = xdp_abilities(link.index)?;
        if let Some(why) = self.why_no_program(link, own, abilities.redirects)? {
            return Ok(XdpInterface { name, incoming: Some(why.clone()), outgoing: Some(why) });
        }
        let incoming = match self.others(link.index, Direction::Ingress)? {
            None if self.takes_tags_off(link)? => Some(
                "the card takes VLAN tags off, so that XDP does not see them (ethtool -K ... rxvlan off)"
                    .into(),
            ),
            other => other,
        };
        let queue = self.queues.iter().find(|queue| {
            queue.interface == link.index && !queue.class && !PLAIN_QUEUES.contains(&queue.kind.as_str())
        });
        let outgoing = if let Some(queue) = queue {
            Some(format!("its queueing discipline {} decides about them", queue.kind))
        } else if self.egress_chains.contains(&link.name) {
            Some("a chain of nftables at its egress must see them".into())
        } else if !abilities.sends {
            Some(
                "its driver does not send what another interface redirects to it, or only while a program is attached (a veth: while \
                 its other end has GRO)"
                    .into(),
            )
        } else {
            self.others(link.index, Direction::Egress)?
        };
        Ok(XdpInterface { name, incoming, outgoing })
    }

    fn why_no_program(&self, link: &Link, own: Option<u32>, redirects: bool) -> Result<Option<String>> {
        if link.xdp.iter().any(|(_, id)| Some(*id) != own) {
            return Ok(Some("another XDP program is attached".into()));
        }
        if link.kind == "veth" && self.xdp != Xdp::SingleFrames {
            return Ok(Some(
                "it is a veth: XDP turns its segmentation offload (GSO) off and spoils checksums that its other end leaves to it".into(),
            ));
        }
        if redirects {
            return Ok(None);
        }
        let driver = self.ethtool.driver(&link.name)?;
        Ok(Some(format!("its driver {driver} has no XDP, or the kernel does not tell (before Linux 6.3)")))
    }

    /// Programs and filters at tc that packets of XDP would not meet.
    fn others(&mut self, interface: u32, direction: Direction) -> Result<Option<String>> {
        let (own, hook) = match direction {
            Direction::Ingress => (TC_IN, INGRESS_HOOK),
            Direction::Egress => (TC_OUT, EGRESS_HOOK),
        };
        for id in tcx_programs(interface, direction)? {
            match program_name(id) {
                Ok(name) if name == own => {}
                Ok(name) => return Ok(Some(format!("the program {name} at tc must see them"))),
                Err(e) if is_gone(&e) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let filters = self.net.filters(interface, hook)?;
        let other = filters.iter().find(|filter| !is_own(filter) && !is_table(filter));
        Ok(other.map(|filter| format!("a filter of tc ({}) must see them", filter.kind)))
    }

    /// On a veth the sender decides about tags.
    fn takes_tags_off(&self, link: &Link) -> Result<bool> {
        if link.kind == "veth" {
            return Ok(false);
        }
        Ok(self.ethtool.features(&link.name)?.get("rx-vlan-hw-parse") == Some(&true))
    }
}

/// The program at its interfaces, and what it knows of them.
#[derive(Debug)]
pub(crate) struct Drivers {
    xdp: Xdp,
    program: ProgramFd,
    table: Mapped<WeirPort>,
    wanted: Vec<String>,
    attached: HashMap<String, (u32, Attached)>,
    /// See [`egress_chains`]; none if they must be read again.
    egress_chains: Option<Vec<String>>,
    seen: Vec<XdpInterface>,
}

impl Drivers {
    pub(crate) fn new(xdp: Xdp, program: ProgramFd, table: Mapped<WeirPort>) -> Self {
        let (wanted, attached, seen) = (Vec::new(), HashMap::new(), Vec::new());
        Drivers { xdp, program, table, wanted, attached, egress_chains: None, seen }
    }

    /// Attaches the program to an interface that fits, and keeps it there.
    pub(crate) fn add(&mut self, name: &str) -> Result<()> {
        let links = Rtnetlink::open()?.links()?;
        let shown = name.escape_default();
        let missing = || Error::Interface(format!("there is no interface {shown} here"));
        let link = links.iter().find(|link| link.name == name).ok_or_else(missing)?;
        for state in look_at(self.xdp, std::iter::once(link))? {
            if let (true, Some(why)) = (state.is_unfit(), state.incoming) {
                return Err(Error::Interface(format!("{shown}: no XDP: {why}")));
            }
        }
        self.attach(link)?;
        self.wanted.push(name.to_owned());
        self.try_to_look()
    }

    fn attach(&mut self, link: &Link) -> Result<()> {
        let attached = attach_xdp(&self.program, link.index, XdpMode::Native)?;
        self.attached.insert(link.name.clone(), (link.index, attached));
        Ok(())
    }

    /// Looks at the interfaces again, and lets the program carry only where nothing stands in its way.
    pub(crate) fn look(&mut self, rules_changed: bool) {
        if rules_changed {
            self.egress_chains = None;
        }
        if let Err(e) = self.try_to_look() {
            let why = Some(format!("the kernel does not tell what is there: {e}"));
            self.attached.values().for_each(|(index, _)| self.table.set(*index as usize, NOTHING));
            let state = |name: &String| XdpInterface {
                name: name.clone(),
                incoming: why.clone(),
                outgoing: why.clone(),
            };
            self.seen = self.wanted.iter().map(state).collect();
        }
    }

    fn try_to_look(&mut self) -> Result<()> {
        let chains = match self.egress_chains.take() {
            Some(chains) => chains,
            None => egress_chains(&ProcRoot::default())?,
        };
        let links = Rtnetlink::open()?.links()?;
        let mut look = Look::new(self.xdp, &chains)?;
        let mut seen = Vec::new();
        for name in self.wanted.clone() {
            let link = links.iter().find(|link| link.name == name);
            seen.push(match link {
                Some(link) => self.look_at(link, &mut look)?,
                None => {
                    let why = Some("it is gone".to_owned());
                    XdpInterface { name, incoming: why.clone(), outgoing: why }
                }
            });
        }
        self.seen = seen;
        self.egress_chains = Some(chains);
        Ok(())
    }

    /// Attaches the program again where the interface was made anew.
    fn look_at(&mut self, link: &Link, look: &mut Look<'_>) -> Result<XdpInterface> {
        let name = &link.name;
        if let Some((old, _)) = self.attached.get(name).filter(|(index, _)| *index != link.index) {
            self.table.set(*old as usize, NOTHING);
            self.attached.remove(name);
        }
        if !self.attached.contains_key(name) {
            let state = look.at(link, None)?;
            if state.is_unfit() {
                return Ok(state);
            }
            self.attach(link)?;
        }
        let own = match self.attached.get(name) {
            Some((_, attached)) => Some(attached.describe()?.program),
            None => None,
        };
        let state = look.at(link, own)?;
        self.table.set(link.index as usize, port(link, &state));
        Ok(state)
    }

    /// The interfaces as they were seen last.
    pub(crate) fn seen(&self) -> &[XdpInterface] {
        &self.seen
    }
}

const NOTHING: WeirPort = WeirPort { mac: 0, mac_end: 0, does: 0 };

fn port(link: &Link, state: &XdpInterface) -> WeirPort {
    let Ok([a, b, c, d, e, f]) = <[u8; 6]>::try_from(&link.address[..]) else {
        return NOTHING;
    };
    let allowed = |why: &Option<String>, does: u64| if why.is_none() { does as u16 } else { 0 };
    WeirPort {
        mac: u32::from_ne_bytes([a, b, c, d]),
        mac_end: u16::from_ne_bytes([e, f]),
        does: allowed(&state.incoming, WEIR_PORT_TAKES) | allowed(&state.outgoing, WEIR_PORT_GIVES),
    }
}
