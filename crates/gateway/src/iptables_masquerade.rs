//! Translation to the address of the outside interface, by iptables on either of its back ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extra_rules::{ExtraRules, Filter};
use crate::iptables::{self, Backend};
use crate::options::{Allocation, FastpathOption, MssClamp, PortRange, Timeouts};
use crate::source_nat::{Options, SourceNat};
use crate::{Error, Journal, Place};

/// Options of both.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
// A reference to a schema that allows these keys and no others would forbid `kind`.
#[schemars(inline)]
pub struct Masquerade {
    /// Choose source ports at random, offset by a hash of the connection.
    pub random: bool,
    /// Choose source ports at random for each connection anew.
    pub fully_random: bool,
    /// Source ports that may be used for TCP and UDP, e.g. `"1024-65535"`; by default the kernel keeps the initiator's if it
    /// can.
    pub ports: Option<PortRange>,
    /// Lower the maximum segment size in SYN packets: `true` for the path MTU, or a number of bytes.
    pub mss_clamp: MssClamp,
    /// Timeouts of connection tracking, e.g. `{ udp = "120s" }`.
    pub conntrack_timeouts: Timeouts,
    /// Extra rules and routes on the gateway: `{ rules = 1000, routes = 10000 }`.
    pub extra: ExtraRules,
    /// Carry established connections by weir's BPF flow table beside these rules: `true`, `"xdp"` for in drivers, too, or a
    /// table `{ hook = "xdp", packets = 1 }`.
    pub fastpath: FastpathOption,
}

/// One rule of iptables (nf_tables back end) masquerades what the initiator sends out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct IptablesMasquerade(pub Masquerade);

/// One rule of iptables (legacy back end, where the kernel still has it) masquerades what the initiator sends out.
///
/// The kernel keeps the empty NAT table, and with it connection tracking, until its module is unloaded: on hosts that are not
/// thrown away afterwards, what is measured later may be slower.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct IptablesLegacyMasquerade(pub Masquerade);

/// The differences between the two.
trait ByIptables {
    const BACKEND: Backend;
    const KIND: &'static str;
    const WHAT: &'static str;

    fn chosen(&self) -> &Masquerade;
}

impl ByIptables for IptablesMasquerade {
    const BACKEND: Backend = Backend::NfTables;
    const KIND: &'static str = "iptables-masquerade";
    const WHAT: &'static str = "iptables masquerade (nf_tables)";

    fn chosen(&self) -> &Masquerade {
        &self.0
    }
}

impl ByIptables for IptablesLegacyMasquerade {
    const BACKEND: Backend = Backend::Legacy;
    const KIND: &'static str = "iptables-legacy-masquerade";
    const WHAT: &'static str = "iptables masquerade (legacy)";

    fn chosen(&self) -> &Masquerade {
        &self.0
    }
}

impl<T: ByIptables> SourceNat for T {
    const KIND: &'static str = <T as ByIptables>::KIND;

    fn what(&self) -> String {
        T::WHAT.into()
    }
    fn options(&self) -> Options<'_> {
        let chosen = self.chosen();
        let allocation = Allocation {
            random: chosen.random,
            fully_random: chosen.fully_random,
            persistent: false,
            ports: chosen.ports,
        };
        Options {
            allocation,
            mss_clamp: chosen.mss_clamp,
            timeouts: &chosen.conntrack_timeouts,
            fastpath: chosen.fastpath,
            extra: &chosen.extra,
        }
    }
    fn filter(&self) -> Filter {
        Filter::Iptables(T::BACKEND)
    }
    fn set_rules(&self, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        let options = self.options();
        iptables::apply_masquerade(T::BACKEND, place, &options.allocation, options.mss_clamp, journal)
    }
}
