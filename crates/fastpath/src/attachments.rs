//! The places of the programs. They are to run behind all other programs of an interface: those decide, and carrying comes last.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_bpf::{Attached, Direction, ProgramFd, attach_tcx, has_tcx, tcx_programs};
use weir_netlink::{Link, Rtnetlink};

use crate::clsact::Filters;
use crate::needs::named;
use crate::{Error, Result};

/// An entry of the table has 16 bits for the number of an interface.
pub(crate) const LARGEST_INDEX: u32 = u16::MAX as u32;

/// Both programs at one interface.
#[derive(Debug)]
struct Attachment {
    name: String,
    index: u32,
    hooks: Hooks,
}

#[derive(Debug)]
enum Hooks {
    /// Detached in this order: what came in is looked up no more before what leaves teaches no more.
    Tcx {
        carries: Attached,
        learns: Attached,
    },
    Clsact(Filters),
}

/// The hook of the kernel that runs the programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AttachedBy {
    /// TCX (Linux 6.6): the programs end with their process.
    #[default]
    Tcx,
    /// Filters of the qdisc `clsact`: they outlive their process, and carry nothing then.
    Clsact,
}

/// The interfaces that the programs are to be attached to, and those that they are attached to.
#[derive(Debug)]
pub(crate) struct Attachments {
    carries: ProgramFd,
    learns: ProgramFd,
    /// As if the kernel had no TCX.
    without_tcx: bool,
    wanted: Vec<String>,
    attachments: Vec<Attachment>,
}

/// Why packets of an interface cannot be carried; `None` if they can.
pub(crate) fn why_not(link: &Link) -> Option<String> {
    if !link.has_ethernet_header() {
        return Some(
            "its packets have no Ethernet header (WireGuard, tun, PPP and most tunnels): not supported"
                .into(),
        );
    }
    if link.index > LARGEST_INDEX {
        return Some(format!(
            "its number is {}; an entry of the flow table has room for {LARGEST_INDEX}",
            link.index
        ));
    }
    None
}

impl Attachment {
    /// Whether no other program comes behind the one that carries.
    fn is_last(&self) -> Result<bool> {
        match &self.hooks {
            Hooks::Tcx { carries, .. } => {
                let last = tcx_programs(self.index, Direction::Ingress)?.last().copied();
                Ok(last == Some(carries.describe()?.program))
            }
            Hooks::Clsact(filters) => filters.are_last(),
        }
    }

    /// Whether both are where they should be.
    fn is_whole(&self) -> Result<bool> {
        match &self.hooks {
            Hooks::Tcx { carries, learns } => {
                Ok(carries.describe()?.interface == self.index && learns.describe()?.interface == self.index)
            }
            Hooks::Clsact(filters) => filters.are_there(),
        }
    }
}

impl Attachments {
    pub(crate) fn new(carries: ProgramFd, learns: ProgramFd, without_tcx: bool) -> Self {
        Attachments { carries, learns, without_tcx, wanted: Vec::new(), attachments: Vec::new() }
    }

    /// Attaches both programs to an interface, and keeps them there.
    pub(crate) fn add(&mut self, name: &str) -> Result<()> {
        let links = Rtnetlink::open()?.links()?;
        let missing = || Error::Interface(format!("there is no interface {} here", name.escape_default()));
        let link = links.iter().find(|link| link.name == name).ok_or_else(missing)?;
        if let Some(why) = why_not(link) {
            return Err(Error::Interface(format!("{}: {why}", name.escape_default())));
        }
        self.attach(link)?;
        self.wanted.push(name.to_owned());
        Ok(())
    }

    fn attach(&mut self, link: &Link) -> Result<()> {
        let hooks = if !self.without_tcx && has_tcx(link.index)? {
            let at = |program, direction| attach_tcx(program, link.index, direction).map_err(named);
            let learns = at(&self.learns, Direction::Egress)?;
            Hooks::Tcx { carries: at(&self.carries, Direction::Ingress)?, learns }
        } else {
            Hooks::Clsact(Filters::attach(&self.carries, &self.learns, link.index)?)
        };
        self.attachments.push(Attachment { name: link.name.clone(), index: link.index, hooks });
        Ok(())
    }

    /// Attaches the programs to interfaces that were made anew, and behind programs that came later. True if anything changed: what the
    /// table knows was decided without them.
    pub(crate) fn mend(&mut self) -> Result<bool> {
        let links = Rtnetlink::open()?.links()?;
        let mut changed = false;
        for name in self.wanted.clone() {
            let link = links.iter().find(|link| link.name == name && why_not(link).is_none());
            let right = match (link, self.attachments.iter().find(|place| place.name == name)) {
                (Some(link), Some(place)) => place.index == link.index && place.is_last()?,
                (None, None) => true,
                _ => false,
            };
            if right {
                continue;
            }
            changed = true;
            // The kernel attaches a program once: the old attachment goes first, and packets take the kernel's way in between.
            self.attachments.retain(|place| place.name != name);
            if let Some(link) = link {
                self.attach(link)?;
            }
        }
        Ok(changed)
    }

    /// Whether all programs are where they should be.
    pub(crate) fn are_whole(&self) -> Result<bool> {
        for place in &self.attachments {
            if !place.is_whole()? {
                return Ok(false);
            }
        }
        Ok(!self.attachments.is_empty() && self.attachments.len() == self.wanted.len())
    }

    /// How they are attached, if they are.
    pub(crate) fn by(&self) -> Option<AttachedBy> {
        self.attachments.first().map(|place| match place.hooks {
            Hooks::Tcx { .. } => AttachedBy::Tcx,
            Hooks::Clsact(_) => AttachedBy::Clsact,
        })
    }

    /// Names of the interfaces with programs.
    pub(crate) fn names(&self) -> Vec<String> {
        self.attachments.iter().map(|place| place.name.clone()).collect()
    }
}
