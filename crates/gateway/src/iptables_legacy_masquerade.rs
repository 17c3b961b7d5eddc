//! Translation to the address of the outside interface, by iptables on x_tables.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::iptables::{self, Backend};
use crate::options::{self, Allocation, MssClamp, PortRange, Timeouts};
use crate::{Error, Expectation, Hop, Journal, Place, Role, Topology, routed};

const BACKEND: Backend = Backend::Legacy;

/// One rule of iptables (legacy back end, where the kernel still has it) masquerades what the initiator sends out.
///
/// The kernel keeps the empty NAT table, and with it connection tracking, until its module is unloaded: on hosts that are not
/// thrown away afterwards, what is measured later may be slower.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct IptablesLegacyMasquerade {
    /// Choose source ports at random, offset by a hash of the connection.
    pub random: bool,
    /// Choose source ports at random for each connection anew.
    #[serde(alias = "random-fully")]
    pub fully_random: bool,
    /// Source ports that may be used for TCP and UDP, e.g. `"1024-65535"`; by default the kernel keeps the initiator's if it
    /// can.
    pub ports: Option<PortRange>,
    /// Lower the maximum segment size in SYN packets: `true` for the path MTU, or a number of bytes.
    pub mss_clamp: MssClamp,
    /// Timeouts of connection tracking, e.g. `{ udp = "120s" }`.
    pub conntrack_timeouts: Timeouts,
}

impl IptablesLegacyMasquerade {
    fn allocation(&self) -> Allocation {
        Allocation {
            random: self.random,
            fully_random: self.fully_random,
            persistent: false,
            ports: self.ports,
        }
    }
}

impl Hop for IptablesLegacyMasquerade {
    fn kind(&self) -> &'static str {
        "iptables-legacy-masquerade"
    }
    fn describe(&self) -> String {
        options::describe(
            "iptables masquerade (legacy)",
            &self.allocation(),
            self.mss_clamp,
            &self.conntrack_timeouts,
        )
    }
    fn validate(&self) -> Result<(), String> {
        self.allocation().validate()?;
        self.mss_clamp.validate()?;
        self.conntrack_timeouts.validate()
    }
    fn topology(&self) -> Topology {
        Topology::Routed
    }
    fn programs(&self, role: Role) -> Vec<String> {
        BACKEND.programs(role)
    }
    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        if role != Role::Gateway {
            return Ok(());
        }
        iptables::apply_masquerade(BACKEND, place, &self.allocation(), self.mss_clamp, journal)?;
        self.conntrack_timeouts.apply(journal)?;
        routed::forward(place, journal)
    }
    fn expectation(&self, place: &Place) -> Expectation {
        Expectation { target: place.responder, seen_source: Some(place.gateway_outside), hops: Some(1) }
    }
    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        iptables::counter(BACKEND, place, "MASQUERADE").map(Some)
    }
}
