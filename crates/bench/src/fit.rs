//! Testbeds and variants that do not fit each other.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::scenario::{Ports, VariantRun};

/// Refuses settings that the scenario's format allows but these hosts cannot provide.
pub(crate) fn real_hosts(
    has_gateway: bool,
    host_sysctls: &BTreeMap<String, String>,
    ports: &Ports,
    initiators: usize,
    variants: &[VariantRun],
) -> Result<(), Error> {
    crate::filtering::fits_real_hosts(variants)?;
    let changes = !host_sysctls.is_empty() || variants.iter().any(|v| !v.host_sysctls.is_empty());
    if !has_gateway && changes {
        return Err(Error::Unfit(
            "host-sysctls are the gateway's, and this testbed has no [testbed.gateway]".into(),
        ));
    }
    // Each initiator has a port for the workload and one for the load under which it is measured.
    let (have, need) = (ports.0.len(), 2 * initiators);
    if have < need {
        return Err(Error::Unfit(format!("ports has {have} ports, and {initiators} initiators need {need}")));
    }
    Ok(())
}
