//! Connection tracking and address translation.

mod checksum;
mod early_drop;
mod entry_lost;
mod full;
mod hairpin;
mod hash_small;
mod helper_missing;
mod insert_race;
mod invalid_dropped;
mod invalid_reset;
mod masquerade;
mod memory;
mod packet;
#[cfg(test)]
mod recorded;
mod refused;
mod relief;
mod snat_ports;
mod udp_timeout;
mod zone_split;

use super::Cause;

/// Those of this group.
pub(super) static CAUSES: &[&Cause] = &[
    &full::CAUSE,
    &early_drop::CAUSE,
    &snat_ports::CAUSE,
    &insert_race::CAUSE,
    &hash_small::CAUSE,
    &memory::CAUSE,
    &invalid_dropped::CAUSE,
    &invalid_reset::CAUSE,
    &entry_lost::CAUSE,
    &udp_timeout::CAUSE,
    &helper_missing::CAUSE,
    &hairpin::CAUSE,
    &masquerade::CAUSE,
    &checksum::CAUSE,
    &zone_split::CAUSE,
];
