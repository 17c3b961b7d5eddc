//! The path of single frames, and how weir sends them.

use weir_gateway::VariantKind;
use weir_packets::workload::Packets;

use crate::sampling::{AliveCheck, Profiled};
use crate::site::Site;

/// The path of single frames, and how weir sends them.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    /// The hosts.
    pub(crate) site: &'a Site,
    /// The variant on the gateway.
    pub(crate) variant: &'a VariantKind,
    /// The workload to measure.
    pub(crate) packets: &'a Packets,
    /// True where the gateway's work may be handed to another core than the sender's: in a lab that does not say itself where
    /// it is done.
    pub(crate) steers: bool,
    /// True where the gateway's table may be emptied.
    pub(crate) flushes: bool,
    /// True where all hosts are one machine.
    pub(crate) is_lab: bool,
    /// The run's.
    pub(crate) seed: u64,
    /// Asked again and again while something is waited for.
    pub(crate) watch: AliveCheck<'a>,
    /// The doctor watches the gateway.
    pub(crate) diagnose: bool,
}

impl<'a> Path<'a> {
    /// Whose kernel is profiled, if the workload asks for it and there is a gateway.
    pub(crate) fn profiled(&self) -> Option<Profiled<'a>> {
        let gateway = self.site.gateway.as_ref().filter(|_| self.packets.profile)?;
        Some(Profiled { agent: &gateway.agent, shared: self.is_lab })
    }
}
