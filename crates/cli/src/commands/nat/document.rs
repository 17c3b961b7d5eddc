//! The documents of `weir nat`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
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
    /// Version of the kernel.
    pub(crate) kernel: String,
    /// Longest idle time that was tried, s; 0: timers were skipped.
    pub(crate) idle_s: f64,
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
    /// The verdicts.
    #[serde(flatten)]
    pub(crate) table: Table,
    /// The packets that were seen.
    pub(crate) observations: Observations,
}

impl Document for NatTables {
    const KIND: Kind = Kind::NatLab;
}

/// `weir nat check --json`.
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
