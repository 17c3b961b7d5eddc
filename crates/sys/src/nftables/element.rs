//! Whether a set holds a key, asked one by one.

use super::expression::{Data, data_of};
use super::{Family, NFGENMSG, Verdict};
use crate::error::{Context, Result};
use crate::netlink::{Attributes, Message, Socket};

const GET_ELEMENT: u16 = 13; // NFT_MSG_GETSETELEM
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ELEMENT: u16 = 1; // NFTA_LIST_ELEM
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_FLAGS: u16 = 3;
const DATA_VALUE: u16 = 1;
/// NFT_SET_ELEM_INTERVAL_END and NFT_SET_ELEM_CATCHALL.
const INTERVAL_END: u32 = 1;

/// What a set says of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    /// It is in the set.
    Present,
    /// It is in the map, with these data.
    Value(Vec<u8>),
    /// It is in the map, with this verdict.
    Verdict(Verdict),
}

/// A connection to ask through.
#[derive(Debug)]
pub struct Asker {
    socket: Socket,
}

impl Asker {
    /// To the calling thread's namespace. Only where nftables is there ([`super::read`] was not `None`).
    ///
    /// # Errors
    /// If no socket is to be had.
    pub fn open() -> Result<Self> {
        let socket = Socket::open(libc::NETLINK_NETFILTER).context(|| "ask sets of nftables".into())?;
        Ok(Asker { socket })
    }

    /// What a set says of a key; `None` if the key is not in it. In a set of intervals, any interval that holds the key is
    /// found (net/netfilter/nft_set_rbtree.c, nft_rbtree_get; nft_set_pipapo.c, nft_pipapo_get).
    ///
    /// # Errors
    /// If there is no such set, the key has not its length, or the right to ask is missing.
    pub fn find(&mut self, family: Family, table: &str, set: &str, key: &[u8]) -> Result<Option<Element>> {
        let kind = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8 | GET_ELEMENT;
        let message = Message::new(kind, libc::NLM_F_ACK)
            .raw(&[family.number(), 0, 0, 0])
            .attr_str(LIST_TABLE, table)
            .attr_str(LIST_SET, set)
            .nest(LIST_ELEMENTS, |m| {
                m.nest(LIST_ELEMENT, |m| m.nest(ELEMENT_KEY, |m| m.attr(DATA_VALUE, key)))
            });
        let mut found = None;
        let asked = self.socket.request_with(message, |received| {
            found = found.take().or_else(|| element(received.payload));
        });
        match asked {
            Ok(()) => Ok(found),
            // A set without the table or itself says ENOENT as well; both were just listed.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(crate::Error::new(format!("ask the nft set {table} {set}"), e)),
        }
    }
}

fn element(payload: &[u8]) -> Option<Element> {
    let list = Attributes(Attributes::after(payload, NFGENMSG).get(LIST_ELEMENTS)?);
    let element = Attributes(list.get(LIST_ELEMENT)?);
    let flags = element.get(ELEMENT_FLAGS).and_then(crate::netlink::u32_be).unwrap_or(0);
    if flags & INTERVAL_END != 0 {
        return None;
    }
    Some(match element.get(ELEMENT_DATA).and_then(data_of) {
        Some(Data::Value(value)) => Element::Value(value),
        Some(Data::Verdict(verdict)) => Element::Verdict(verdict),
        None => Element::Present,
    })
}
