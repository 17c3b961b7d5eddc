//! Whether a set holds a key, asked one by one.

use super::expression::{Data, data_of};
use super::{Family, NftVerdict, SET_FLAGS, describe_set, request, whole};
use crate::{Attributes, Message, NFGENMSG, Received, Socket, u32_be};
use weir_sys::error::{Context, Result};

const GET_ELEMENT: u16 = 13; // NFT_MSG_GETSETELEM
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ELEMENT: u16 = 1; // NFTA_LIST_ELEM
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_FLAGS: u16 = 3;
const ELEMENT_KEY_END: u16 = 10;
const DATA_VALUE: u16 = 1;
/// NFT_SET_ELEM_INTERVAL_END and NFT_SET_ELEM_CATCHALL.
const INTERVAL_END: u32 = 1;
const CATCHALL: u32 = 2;
/// NFT_SET_INTERVAL and NFT_SET_CONCAT.
const INTERVAL: u32 = 4;
const CONCATENATION: u32 = 1 << 7;

/// Keys of a set: the first and last of each interval, which may be the same.
pub type KeySpans = Vec<(Vec<u8>, Vec<u8>)>;

/// A set's answer about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    /// It is in the set.
    Present,
    /// It is in the map, with these data.
    Value(Vec<u8>),
    /// It is in the map, with this verdict.
    Verdict(NftVerdict),
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

    /// Returns a set's answer about a key; `None` if the key is not in it. In a set of intervals, any interval that holds the key
    /// is found (net/netfilter/nft_set_rbtree.c, nft_rbtree_get; nft_set_pipapo.c, nft_pipapo_get).
    ///
    /// # Errors
    /// If there is no such set, the key has not its length, or the right to ask is missing.
    pub fn find(&mut self, family: Family, table: &str, set: &str, key: &[u8]) -> Result<Option<Element>> {
        let message = elements(family, table, set, libc::NLM_F_ACK).nest(LIST_ELEMENTS, |m| {
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
            Err(e) => Err(weir_sys::Error::new(format!("ask the nft set {table} {set}"), e)),
        }
    }
}

/// The verdicts that a map can give.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MapVerdicts {
    /// Those of its keys, each once.
    pub keys: Vec<NftVerdict>,
    /// The verdict for all other keys.
    pub others: Option<NftVerdict>,
}

impl Asker {
    /// Returns the verdicts of a map, by a walk through all of its elements.
    ///
    /// # Errors
    /// If there is no such map, it changes all the time, or the right to ask is missing.
    pub fn verdicts(&mut self, family: Family, table: &str, map: &str) -> Result<MapVerdicts> {
        let message = elements(family, table, map, libc::NLM_F_DUMP);
        let add = &mut |found: &mut MapVerdicts, received: Received<'_>| found.add(received.payload);
        whole(&mut self.socket, &message, MapVerdicts::default, add)
            .context(|| format!("list the nft map {table} {map}"))
    }

    /// Returns the keys of a set or map, by a walk through all of its elements; `None` if it has more than that many elements, or one
    /// for all other keys.
    ///
    /// # Errors
    /// If there is no such set, it changes all the time, or the right to ask is missing.
    pub fn keys(&mut self, family: Family, table: &str, set: &str, most: usize) -> Result<Option<KeySpans>> {
        let what = || format!("list the nft set {table} {set}");
        let describe = describe_set(family.number(), table, set);
        let mut flags = 0;
        let note = |received: Received<'_>| {
            flags =
                Attributes::after(received.payload, NFGENMSG).get(SET_FLAGS).and_then(u32_be).unwrap_or(0);
        };
        self.socket.request_with(describe, note).context(what)?;
        let message = elements(family, table, set, libc::NLM_F_DUMP);
        let begin = || Keys { most, ..Keys::default() };
        let add = &mut |found: &mut Keys, received: Received<'_>| found.add(received.payload);
        Ok(whole(&mut self.socket, &message, begin, add).context(what)?.spans(flags))
    }
}

/// A request for elements of a set.
fn elements(family: Family, table: &str, set: &str, flags: i32) -> Message {
    request(family.number(), GET_ELEMENT, flags).attr_str(LIST_TABLE, table).attr_str(LIST_SET, set)
}

/// Elements of a set as they come.
#[derive(Debug, Default)]
struct Keys {
    most: usize,
    /// Key, whether an interval ends before it, and the last key of an interval of several fields.
    all: Vec<(Vec<u8>, bool, Option<Vec<u8>>)>,
    /// Something cannot be written as keys.
    unreadable: bool,
}

impl Keys {
    fn add(&mut self, payload: &[u8]) {
        for (element, flags) in listed(payload) {
            let key = |attribute| {
                element.get(attribute).and_then(|key| Attributes(key).get(DATA_VALUE)).map(<[u8]>::to_vec)
            };
            match key(ELEMENT_KEY) {
                // Both ends of an interval are elements.
                Some(first) if flags & CATCHALL == 0 && self.all.len() < 2 * self.most => {
                    self.all.push((first, flags & INTERVAL_END != 0, key(ELEMENT_KEY_END)));
                }
                _ => self.unreadable = true,
            }
        }
    }

    fn spans(mut self, flags: u32) -> Option<KeySpans> {
        if self.unreadable {
            return None;
        }
        let spans = if flags & INTERVAL != 0 && flags & CONCATENATION == 0 {
            // An end sorts before the beginning at the same place: the one is of the interval before.
            self.all.sort_by(|a, b| (&a.0, !a.1).cmp(&(&b.0, !b.1)));
            let mut spans = KeySpans::new();
            let mut open: Option<Vec<u8>> = None;
            for (key, is_end, last) in self.all {
                if let Some(last) = last {
                    spans.push((key, last));
                    continue;
                }
                match (open.take(), is_end) {
                    (Some(first), true) => spans.push((first, before(key)?)),
                    // Nothing was open: the kernel's list begins with the end of what no interval holds.
                    (None, true) => {}
                    (None, false) => open = Some(key),
                    (Some(_), false) => return None,
                }
            }
            spans.extend(open.map(|first| (first.clone(), vec![0xff; first.len()])));
            spans
        } else {
            self.all.into_iter().map(|(first, _, last)| (first.clone(), last.unwrap_or(first))).collect()
        };
        (spans.len() <= self.most).then_some(spans)
    }
}

/// The number before, most significant byte first.
fn before(mut number: Vec<u8>) -> Option<Vec<u8>> {
    for byte in number.iter_mut().rev() {
        let is_zero = *byte == 0;
        *byte = byte.wrapping_sub(1);
        if !is_zero {
            return Some(number);
        }
    }
    None
}

impl MapVerdicts {
    fn add(&mut self, payload: &[u8]) {
        for (element, flags) in listed(payload) {
            match element.get(ELEMENT_DATA).and_then(data_of) {
                Some(Data::Verdict(verdict)) if flags & CATCHALL != 0 => self.others = Some(verdict),
                Some(Data::Verdict(verdict)) if !self.keys.contains(&verdict) => self.keys.push(verdict),
                _ => {}
            }
        }
    }
}

/// The elements in a message, and the flags of each.
fn listed(payload: &[u8]) -> impl Iterator<Item = (Attributes<'_>, u32)> {
    let list = Attributes::after(payload, NFGENMSG).get(LIST_ELEMENTS).unwrap_or_default();
    let elements = Attributes(list).filter(|(kind, _)| *kind == LIST_ELEMENT);
    elements.map(|(_, element)| {
        let element = Attributes(element);
        (element, element.get(ELEMENT_FLAGS).and_then(u32_be).unwrap_or(0))
    })
}

fn element(payload: &[u8]) -> Option<Element> {
    let (element, flags) = listed(payload).next()?;
    if flags & INTERVAL_END != 0 {
        return None;
    }
    Some(match element.get(ELEMENT_DATA).and_then(data_of) {
        Some(Data::Value(value)) => Element::Value(value),
        Some(Data::Verdict(verdict)) => Element::Verdict(verdict),
        None => Element::Present,
    })
}
