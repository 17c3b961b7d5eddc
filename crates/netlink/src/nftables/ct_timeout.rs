//! Objects of nftables that give connections idle times of their own (`ct timeout`).

use super::{Family, GET_OBJECT, OBJECT_DATA, OBJECT_NAME, OBJECT_TABLE, OBJECT_TYPE, dump, number};
use crate::{Attributes, Socket, text, u32_be};
use weir_sys::ProcRoot;
use weir_sys::error::{Context, Result};
use weir_sys::modules;

/// NFT_OBJECT_CT_TIMEOUT.
const CT_TIMEOUT: u32 = 7;
/// NFTA_CT_TIMEOUT_L4PROTO and NFTA_CT_TIMEOUT_DATA.
const L4PROTO: u16 = 2;
const DATA: u16 = 3;

/// A `ct timeout` object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CtTimeout {
    /// Family of its table.
    pub family: Family,
    /// Table, as its owner called it.
    pub table: String,
    /// Name, likewise.
    pub name: String,
    /// IP protocol.
    pub protocol: u8,
    /// Times in seconds by the attribute's number (CTA_TIMEOUT_TCP_*, CTA_TIMEOUT_UDP_*, CTA_TIMEOUT_ICMP_*).
    pub seconds: Vec<(u16, u32)>,
}

/// Those of the calling thread's namespace. Empty where nftables is not there: asking would load it.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN over the namespace; `Interrupted` if they change all the time.
pub fn ct_timeouts(root: &ProcRoot) -> Result<Vec<CtTimeout>> {
    if !modules::is_loaded(root, "nf_tables") {
        return Ok(Vec::new());
    }
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).context(|| "read nftables objects".into())?;
    dump(&mut socket, GET_OBJECT, "objects", |family, attributes| {
        if number(attributes, OBJECT_TYPE)? != CT_TIMEOUT {
            return None;
        }
        let data = Attributes(attributes.get(OBJECT_DATA)?);
        let times = Attributes(data.get(DATA)?);
        Some(CtTimeout {
            family,
            table: attributes.get(OBJECT_TABLE).map(text)?,
            name: attributes.get(OBJECT_NAME).map(text)?,
            protocol: data.get(L4PROTO).and_then(|bytes| bytes.first().copied())?,
            seconds: times.filter_map(|(kind, value)| Some((kind, u32_be(value)?))).collect(),
        })
    })
}
