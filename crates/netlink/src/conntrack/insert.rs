//! Entries that no packet made: for tests of what a full table does, thousands of them in a second.

use std::net::{IpAddr, SocketAddr};

use super::entry::{
    IP_V4_DST, IP_V4_SRC, IP_V6_DST, IP_V6_SRC, MARK, PROTO_DST_PORT, PROTO_ICMP_CODE, PROTO_ICMP_ID,
    PROTO_ICMP_TYPE, PROTO_NUM, PROTO_SRC_PORT, PROTOINFO, PROTOINFO_STATE, PROTOINFO_TCP, STATUS, TIMEOUT,
    TUPLE_IP, TUPLE_ORIG, TUPLE_PROTO, TUPLE_REPLY, ZONE,
};
use super::{Conntrack, NEW, Status, family, request_for};
use crate::Message;
use weir_sys::error::{Context, Error, Result};

const NAT_SRC: u16 = 6;
const NAT_V4_MINIP: u16 = 1;
const NAT_V4_MAXIP: u16 = 2;
const NAT_PROTO: u16 = 3;
const NAT_V6_MINIP: u16 = 4;
const NAT_V6_MAXIP: u16 = 5;
const PROTONAT_PORT_MIN: u16 = 1;
const PROTONAT_PORT_MAX: u16 = 2;

/// IPPROTO_ICMP, whose tuple has an identifier and a type instead of ports.
const ICMP: u8 = 1;
/// IPPROTO_TCP.
const TCP: u8 = 6;

/// IPS_CONFIRMED: is in the table. The kernel sets it first and then refuses a status that would take it away.
const CONFIRMED: u32 = 1 << 3;

/// Bytes of requests in one send. The kernel reads them one after the other within the call.
const BATCH: usize = 32 << 10;

/// An entry to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewEntry {
    /// Source of the original direction; its port is the identifier of ICMP echo.
    pub source: SocketAddr,
    /// Destination of the original direction, of the same family.
    pub destination: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Seconds that it lives.
    pub timeout_s: u32,
    /// `enum tcp_conntrack`; only for TCP.
    pub tcp_state: u8,
    /// Bits that may be set from outside: seen reply, assured.
    pub status: Status,
    /// Translate the source to this address and port.
    pub source_nat: Option<SocketAddr>,
    /// Mark of the connection.
    pub mark: u32,
    /// Zone.
    pub zone: u16,
}

impl Conntrack {
    /// Makes entries; how many were asked for. They count against `nf_conntrack_max` like those that packets make.
    ///
    /// # Errors
    /// The kernel's first refusal, e.g. `AlreadyExists`; entries before it, and some after it, were made.
    pub fn insert(&mut self, entries: impl IntoIterator<Item = NewEntry>) -> Result<u64> {
        let mut entries = entries.into_iter().peekable();
        let mut made = 0;
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(entry) = entries.next() {
            made += 1;
            if entries.peek().is_some() && batch.len() < BATCH {
                batch.extend(entry.message(libc::NLM_F_CREATE | libc::NLM_F_EXCL)?.finish(0));
                continue;
            }
            // The kernel handles requests in order and reports a refusal even if no answer was requested. So the answer to the
            // last one of a batch comes when all are done.
            let last = entry.message(libc::NLM_F_CREATE | libc::NLM_F_EXCL | libc::NLM_F_ACK)?;
            self.socket
                .request_after(&batch, last)
                .context(|| format!("make conntrack entry {} to {}", entry.source, entry.destination))?;
            batch.clear();
        }
        Ok(made)
    }
}

impl NewEntry {
    /// A UDP entry that saw packets both ways and lives for ten minutes.
    pub fn udp(source: SocketAddr, destination: SocketAddr) -> Self {
        NewEntry {
            source,
            destination,
            protocol: 17,
            timeout_s: 600,
            tcp_state: 0,
            status: Status(Status::SEEN_REPLY.0 | Status::ASSURED.0),
            source_nat: None,
            mark: 0,
            zone: 0,
        }
    }

    /// A TCP entry in that state.
    pub fn tcp(source: SocketAddr, destination: SocketAddr, state: u8) -> Self {
        NewEntry { protocol: TCP, tcp_state: state, ..NewEntry::udp(source, destination) }
    }

    fn message(&self, flags: i32) -> Result<Message> {
        if self.source.is_ipv4() != self.destination.is_ipv4() {
            return Err(Error::other("make a conntrack entry", "source and destination differ in family"));
        }
        let mut m = request_for(family(self.source.ip()), NEW, flags)
            .nest(TUPLE_ORIG, |m| self.tuple(m, self.source, self.destination, 8))
            .nest(TUPLE_REPLY, |m| self.tuple(m, self.destination, self.source, 0))
            .attr(STATUS, &(self.status.0 | CONFIRMED).to_be_bytes())
            .attr(TIMEOUT, &self.timeout_s.to_be_bytes())
            .attr(MARK, &self.mark.to_be_bytes());
        if self.protocol == TCP {
            m = m.nest(PROTOINFO, |m| m.nest(PROTOINFO_TCP, |m| m.attr(PROTOINFO_STATE, &[self.tcp_state])));
        }
        if let Some(outside) = self.source_nat {
            m = m.nest(NAT_SRC, |m| nat(m, outside));
        }
        if self.zone != 0 {
            m = m.attr(ZONE, &self.zone.to_be_bytes());
        }
        Ok(m)
    }

    fn tuple(&self, m: Message, from: SocketAddr, to: SocketAddr, icmp_type: u8) -> Message {
        let m = m.nest(TUPLE_IP, |m| match (from.ip(), to.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => m.attr(IP_V4_SRC, &a.octets()).attr(IP_V4_DST, &b.octets()),
            (a, b) => m.attr(IP_V6_SRC, &v6(a)).attr(IP_V6_DST, &v6(b)),
        });
        m.nest(TUPLE_PROTO, |m| {
            let m = m.attr(PROTO_NUM, &[self.protocol]);
            if self.protocol == ICMP {
                m.attr(PROTO_ICMP_ID, &self.source.port().to_be_bytes())
                    .attr(PROTO_ICMP_TYPE, &[icmp_type])
                    .attr(PROTO_ICMP_CODE, &[0])
            } else {
                m.attr(PROTO_SRC_PORT, &from.port().to_be_bytes())
                    .attr(PROTO_DST_PORT, &to.port().to_be_bytes())
            }
        })
    }
}

fn nat(m: Message, outside: SocketAddr) -> Message {
    let m = match outside.ip() {
        IpAddr::V4(ip) => m.attr(NAT_V4_MINIP, &ip.octets()).attr(NAT_V4_MAXIP, &ip.octets()),
        IpAddr::V6(ip) => m.attr(NAT_V6_MINIP, &ip.octets()).attr(NAT_V6_MAXIP, &ip.octets()),
    };
    let port = outside.port().to_be_bytes();
    m.nest(NAT_PROTO, |m| m.attr(PROTONAT_PORT_MIN, &port).attr(PROTONAT_PORT_MAX, &port))
}

fn v6(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
