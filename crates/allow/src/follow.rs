//! Refused and logged packets as they come. Only the BPF filter tells of single ones.

use std::net::IpAddr;

use weir_sys::clock::Clocks;

use crate::bpf::Following;
use crate::policy::{Backend, Policy};
use crate::store::Store;
use crate::{Error, bpf, load};

/// A packet that was refused or logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// When, microseconds since 1970.
    pub unix_us: u64,
    /// Its source address.
    pub source: IpAddr,
    /// Its destination address.
    pub destination: IpAddr,
    /// Name of its class; `rest` for an address in no list, `class N` if the policy is no longer on disk.
    pub class: String,
    /// Number of its class; 0: in no list.
    pub class_number: usize,
    /// The action taken: `drop` or `log`.
    pub action: &'static str,
    /// Number of its protocol.
    pub protocol: u8,
    /// Destination port of TCP and UDP; a fragment has none.
    pub port: Option<u16>,
    /// Whether it is a fragment.
    pub fragment: bool,
    /// Its length from the Ethernet header on.
    pub bytes: u32,
}

/// Reads what the lists that are loaded refuse and log. The kernel tells of it only while there is one of these, and for 3 s
/// after a killed one.
#[derive(Debug)]
pub struct Follow {
    inner: Following,
    classes: Vec<String>,
}

impl Follow {
    /// Begins with the next packet. `None` if nothing is loaded.
    ///
    /// # Errors
    /// [`Error::Lacking`] if the back end does not report single packets, [`Error::Busy`] if another process already follows:
    /// each of two would get only a part.
    pub fn begin(store: &Store) -> Result<Option<Follow>, Error> {
        let Some((backend, id)) = load::loaded_id()? else { return Ok(None) };
        if backend != Backend::Bpf {
            return Err(Error::Lacking(format!(
                "{} has no events of single packets: only --backend bpf has; `weir allow status` shows what {} has counted",
                backend.name(),
                backend.name()
            )));
        }
        let names = |policy: Policy| policy.classes.into_iter().map(|class| class.name).collect();
        let classes = store.find(&id)?.map_or_else(Vec::new, names);
        Ok(bpf::follow()?.map(|inner| Follow { inner, classes }))
    }

    /// Packets since it was last asked; does not wait. To be asked several times a second.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn read(&mut self) -> Result<Vec<Refused>, Error> {
        let events = self.inner.follower.read()?;
        let now = Clocks::read();
        Ok(events.iter().map(|event| self.refused(event, &now)).collect())
    }

    fn refused(&self, event: &weir_filter::Event, now: &Clocks) -> Refused {
        let class_number = bpf::class_number(event.class);
        let class = match class_number {
            0 => "rest".to_owned(),
            n => self.classes.get(n - 1).cloned().unwrap_or_else(|| format!("class {n}")),
        };
        Refused {
            unix_us: now.real(event.time_ns) / 1000,
            source: event.source,
            destination: event.destination,
            class,
            class_number,
            action: event.action,
            protocol: event.protocol,
            port: event.port,
            fragment: event.fragment,
            bytes: event.bytes,
        }
    }

    /// Counts refused packets since the beginning that were not reported, because too many came at a time.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn lost(&self) -> Result<u64, Error> {
        Ok(self.inner.follower.lost()?)
    }

    /// Whether the lists that it reads are still those that are in effect.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn is_current(&self) -> Result<bool, Error> {
        Ok(bpf::in_use()?.as_deref() == Some(self.inner.tables.as_str()))
    }
}
