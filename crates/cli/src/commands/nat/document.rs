//! The documents of `weir nat`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::Serialize;
use weir_nat::served::PortSurvey;
use weir_nat::stun::StunServer;
use weir_nat::table::{Line, NatKind};
use weir_nat::{Observations, Table};

use crate::documents::{Document, Kind};

/// `weir nat lab --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NatTables {
    /// Version of weir.
    pub(crate) weir: &'static str,
    /// RFC 3339, UTC.
    pub(crate) time: String,
    /// When each part of the run began, with --progress; RFC 3339, UTC.
    pub(crate) started: Vec<String>,
    /// Version of the kernel.
    pub(crate) kernel: String,
    /// Longest idle time that was tried, s; 0: timers were skipped.
    pub(crate) idle_s: f64,
    /// The same of established and half-closed connections, s.
    pub(crate) connections_idle_s: f64,
    /// Most mappings that were opened at once, in search of the end of ports; 0: it was skipped.
    pub(crate) mappings: u32,
    /// Over IPv6.
    pub(crate) ipv6: bool,
    /// Settings of the gateways that were changed first.
    pub(crate) sysctls: BTreeMap<String, String>,
    /// One entry per gateway.
    pub(crate) gateways: Vec<Measured>,
}

/// One gateway.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Measured {
    /// Its name.
    pub(crate) gateway: String,
    /// Its settings in one line.
    pub(crate) describes: String,
    /// Packets that its fast path carried; `null` without one, and of a result that --progress has kept.
    pub(crate) carried: Option<u64>,
    /// The verdicts.
    #[serde(flatten)]
    pub(crate) table: Table,
    /// The packets that were seen.
    pub(crate) observations: Observations,
}

impl Document for NatTables {
    const KIND: Kind = Kind::NatLab;
}

/// `weir nat check --stun --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NatCheck {
    /// Version of weir.
    pub(crate) weir: &'static str,
    /// RFC 3339, UTC.
    pub(crate) time: String,
    /// The server, and this host as it was seen there.
    pub(crate) server: StunServer,
    /// The kind of NAT.
    pub(crate) kind: NatKind,
    /// The rows that a STUN server shows.
    pub(crate) rows: Vec<Line>,
}

impl Document for NatCheck {
    const KIND: Kind = Kind::NatCheck;
}

/// `weir nat check SERVER --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NatCheckServer {
    /// Version of weir.
    pub(crate) weir: &'static str,
    /// RFC 3339, UTC.
    pub(crate) time: String,
    /// When each part of the check began, with --progress; RFC 3339, UTC.
    pub(crate) started: Vec<String>,
    /// The two ends.
    pub(crate) path: Path,
    /// Longest idle time that was tried, s; 0: timers were skipped.
    pub(crate) idle_s: f64,
    /// The same of established and half-closed connections, s, which need raw packets.
    pub(crate) connections_idle_s: f64,
    /// Why no raw packets were exchanged; `null` if they were.
    pub(crate) no_raw_packets: Option<String>,
    /// The verdicts.
    #[serde(flatten)]
    pub(crate) table: Table,
    /// The packets that were seen.
    pub(crate) observations: Observations,
}

impl Document for NatCheckServer {
    const KIND: Kind = Kind::NatCheckServer;
}

/// This host and the server, on both sides of the NAT.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Path {
    /// The server's address and port.
    pub(crate) server: SocketAddr,
    /// The endpoints that packets were sent to.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Address of this host.
    pub(crate) local: IpAddr,
    /// Bytes through the NAT that the server received and sent, headers included.
    pub(crate) received_bytes: u64,
    /// See above; never more.
    pub(crate) sent_bytes: u64,
}

/// `weir nat ports --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NatPortsSeen {
    /// Version of weir.
    pub(crate) weir: &'static str,
    /// RFC 3339, UTC.
    pub(crate) time: String,
    /// The two ends.
    pub(crate) path: Path,
    /// The ports.
    #[serde(flatten)]
    pub(crate) survey: PortSurvey,
}

impl Document for NatPortsSeen {
    const KIND: Kind = Kind::NatPorts;
}
