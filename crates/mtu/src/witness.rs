//! The single fragments that a host sees, distinguished by the session of the datagram that they belong to.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use weir_sys::ProcRoot;
use weir_sys::fragment_tap::FragmentTap;
use weir_wire::{Fragment, Ipv4, Ipv6, Udp, ipv6, protocol};

use crate::message::{FarCounts, Message};

/// Datagrams whose fragments are remembered: a prober sends some ten, and fragments of others come in between.
const DATAGRAMS: usize = 1024;
/// Sessions that are counted, the latest ones.
const SESSIONS: usize = 64;
/// Fragments that are read for one answer: as many as fit the tap's buffer.
const MOST_READ: usize = 16_384;

/// Watches a network namespace's fragments, where it may (CAP_NET_RAW); the host's own counters it can always read.
#[derive(Debug)]
pub struct Witness {
    tap: Option<FragmentTap>,
    root: ProcRoot,
    book: Book,
}

/// The observations.
#[derive(Debug, Default)]
struct Book {
    datagrams: VecDeque<Datagram>,
    sessions: VecDeque<(u64, Counts)>,
    missed: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    first: u32,
    later: u32,
    out_of_order: u32,
}

/// One fragmented datagram.
#[derive(Debug)]
struct Datagram {
    source: IpAddr,
    identification: u32,
    /// Known once its first fragment came, if it is one of ours.
    session: Option<u64>,
    first_seen: bool,
    later: u32,
    greatest_offset: usize,
    out_of_order: bool,
}

impl Witness {
    /// In the namespace of the calling thread. Without the privilege it sees no single fragments.
    pub fn open() -> Self {
        Witness { tap: FragmentTap::open().ok(), root: ProcRoot::new("/"), book: Book::default() }
    }

    /// Why it would see no single fragments here; `None` if it sees them.
    pub fn blind(&self) -> Option<&'static str> {
        self.tap.is_none().then_some("single fragments are seen with CAP_NET_RAW only")
    }

    /// Returns the counts so far of a session, with the fragments from an address whose session is unknown.
    ///
    /// # Errors
    /// The packet socket cannot be read.
    pub fn tally(&mut self, session: u64, from: IpAddr) -> io::Result<FarCounts> {
        if let Some(tap) = &self.tap {
            let mut buffer = [0; 256];
            for _ in 0..MOST_READ {
                let Some(n) = tap.read(&mut buffer)? else { break };
                if let Some((source, fragment, session)) = read(&buffer[..n]) {
                    self.book.add(source, fragment, session);
                }
            }
            self.book.missed |= tap.missed()? > 0;
        }
        let mut tally = self.book.tally(session, from.to_canonical());
        tally.sees_fragments = self.tap.is_some();
        tally.host_fragments = self.host_fragments(from);
        Ok(tally)
    }

    /// Fragments that came to the host from any sender (RFC 4293, ReasmReqds).
    fn host_fragments(&self, from: IpAddr) -> Option<u32> {
        let counters = self.root.protocol_counters().ok()?;
        let name = if from.to_canonical().is_ipv4() { "ip.ReasmReqds" } else { "ip6.ReasmReqds" };
        // The wire's counter is narrower; only differences are used.
        counters.get(name).map(|n| *n as u32)
    }
}

/// Source, place and, of a first fragment of ours, session.
fn read(packet: &[u8]) -> Option<(IpAddr, Fragment, Option<u64>)> {
    let (source, kind, fragment, payload): (IpAddr, _, _, _) = match packet.first()? >> 4 {
        4 => {
            let (header, payload) = Ipv4::read_quoted(packet).ok()?;
            (header.source.into(), header.protocol, header.fragment()?, payload)
        }
        _ => {
            let (header, rest) = Ipv6::read_quoted(packet).ok()?;
            let upper = ipv6::upper_layer(header.next_header, rest).ok()?;
            (header.source.into(), upper.protocol, upper.fragment?, upper.payload)
        }
    };
    let session = (kind == protocol::UDP && fragment.offset == 0)
        .then(|| Udp::read_quoted(payload).ok().and_then(|(_, data)| Message::read(data)))
        .flatten()
        .map(|message| message.session);
    Some((source, fragment, session))
}

impl Book {
    fn add(&mut self, source: IpAddr, fragment: Fragment, session: Option<u64>) {
        let same = |d: &Datagram| d.source == source && d.identification == fragment.identification;
        // The latest one: identifications of IPv4 come again after 65,536.
        let at = self.datagrams.iter().rposition(same).unwrap_or_else(|| {
            if self.datagrams.len() == DATAGRAMS {
                self.datagrams.pop_front();
            }
            self.datagrams.push_back(Datagram {
                source,
                identification: fragment.identification,
                session: None,
                first_seen: false,
                later: 0,
                greatest_offset: 0,
                out_of_order: false,
            });
            self.datagrams.len() - 1
        });
        let datagram = &mut self.datagrams[at];
        let overtaken = fragment.offset < datagram.greatest_offset && !datagram.out_of_order;
        datagram.out_of_order |= overtaken;
        datagram.greatest_offset = datagram.greatest_offset.max(fragment.offset);
        let mut counts = Counts::default();
        if fragment.offset == 0 {
            datagram.first_seen = true;
            if session.is_some() && datagram.session.is_none() {
                datagram.session = session;
                counts =
                    Counts { first: 1, later: datagram.later, out_of_order: datagram.out_of_order.into() };
            }
        } else {
            datagram.later += 1;
            counts = Counts { first: 0, later: 1, out_of_order: overtaken.into() };
        }
        if let Some(session) = datagram.session {
            self.count(session, counts);
        }
    }

    fn count(&mut self, session: u64, more: Counts) {
        let at = self.sessions.iter().position(|(s, _)| *s == session).unwrap_or_else(|| {
            if self.sessions.len() == SESSIONS {
                self.sessions.pop_front();
            }
            self.sessions.push_back((session, Counts::default()));
            self.sessions.len() - 1
        });
        let (_, counts) = &mut self.sessions[at];
        counts.first += more.first;
        counts.later += more.later;
        counts.out_of_order += more.out_of_order;
    }

    fn tally(&self, session: u64, from: IpAddr) -> FarCounts {
        let counts = self.sessions.iter().find(|(s, _)| *s == session).map_or(Counts::default(), |(_, c)| *c);
        // Without the first fragment nothing but the address tells whose they are.
        let orphans = self.datagrams.iter().filter(|d| d.source == from && !d.first_seen);
        FarCounts {
            missed: self.missed,
            first: counts.first,
            later: counts.later + orphans.map(|d| d.later).sum::<u32>(),
            out_of_order: counts.out_of_order,
            ..FarCounts::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Kind;

    const SESSION: u64 = 77;

    fn source() -> IpAddr {
        "198.18.0.2".parse().unwrap()
    }

    fn book(fragments: &[(u32, usize, Option<u64>)]) -> FarCounts {
        let mut book = Book::default();
        for (identification, offset, session) in fragments {
            let fragment = Fragment { identification: *identification, offset: *offset, more: true };
            book.add(source(), fragment, *session);
        }
        book.tally(SESSION, source())
    }

    fn counts(t: FarCounts) -> (u32, u32, u32) {
        (t.first, t.later, t.out_of_order)
    }

    #[test]
    fn fragments_are_counted_by_the_session_of_their_first() {
        let ours = Some(SESSION);
        assert_eq!(counts(book(&[(1, 0, ours), (1, 1480, None), (1, 2960, None)])), (1, 2, 0));
        // Two datagrams, the second one's fragments in another order.
        let mixed = [(1, 0, ours), (2, 2960, None), (1, 1480, None), (2, 1480, None), (2, 0, ours)];
        assert_eq!(counts(book(&mixed)), (2, 3, 1));
        // Another host's datagram, whose first fragment came.
        assert_eq!(
            counts(book(&[(3, 0, Some(5)), (3, 1480, None), (4, 0, None), (4, 1480, None)])),
            (0, 0, 0)
        );
        // Without first fragments.
        assert_eq!(counts(book(&[(5, 1480, None), (6, 1480, None), (6, 2960, None)])), (0, 3, 0));
        assert_eq!(counts(book(&[(7, 0, ours), (8, 0, ours)])), (2, 0, 0));
    }

    proptest::proptest! {
        #[test]
        fn no_packet_is_too_strange(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..160)) {
            if let Some((source, fragment, session)) = read(&bytes) {
                proptest::prop_assert!(session.is_none() || fragment.offset == 0);
                let mut book = Book::default();
                book.add(source, fragment, session);
                proptest::prop_assert_eq!(book.datagrams.len(), 1);
            }
        }
    }

    #[test]
    fn a_flood_of_fragments_takes_no_more_memory() {
        let mut book = Book::default();
        for i in 0..100_000u32 {
            book.add(source(), Fragment { identification: i, offset: 0, more: true }, Some(u64::from(i)));
        }
        assert_eq!((book.datagrams.len(), book.sessions.len()), (DATAGRAMS, SESSIONS));
    }

    #[test]
    fn packets_are_read_as_the_standards_say() {
        let message =
            Message { session: SESSION, number: 1, kind: Kind::Probe, splits: true, fragment: 0, size: 0 }
                .write(40);
        let mut datagram = vec![0; 8];
        datagram.extend(&message);
        datagram[4..6].copy_from_slice(&8200u16.to_be_bytes());
        let mut packet = vec![0; 20];
        let header = Ipv4 {
            tos: 0,
            total_length: 1500,
            identification: 9,
            dont_fragment: false,
            more_fragments: true,
            fragment_offset: 0,
            ttl: 64,
            protocol: protocol::UDP,
            source: "198.18.0.2".parse().unwrap(),
            destination: "198.19.0.2".parse().unwrap(),
        };
        header.write(&mut packet).unwrap();
        packet.extend(&datagram);
        let (from, fragment, session) = read(&packet).unwrap();
        assert_eq!((from, fragment.offset, session), (source(), 0, Some(SESSION)));
        // A later one: what follows is no UDP header, whatever it looks like.
        Ipv4 { fragment_offset: 185, ..header }.write(&mut packet).unwrap();
        let (_, fragment, session) = read(&packet).unwrap();
        assert_eq!((fragment.offset, session), (1480, None));
        // A whole datagram is none.
        Ipv4 { more_fragments: false, ..header }.write(&mut packet).unwrap();
        assert!(read(&packet).is_none());
        assert!(read(&[]).is_none() && read(&[0x60; 30]).is_none());
    }
}
