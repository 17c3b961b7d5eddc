//! Receive Packet Steering: which cores handle what the first queue of an interface receives
//! (Documentation/networking/scaling.rst).
//!
//! `/sys` shows the interfaces of the namespace that it was mounted in, so reading and writing belong within
//! [`NetNs::run_with_own_sysfs`](crate::NetNs::run_with_own_sysfs).

use crate::error::{Context, Result};

/// A bitmap as the kernel reads it: hexadecimal, groups of 32 bits, highest first.
pub fn mask(cpus: &[usize]) -> String {
    let groups = cpus.iter().max().map_or(1, |most| most / 32 + 1);
    let mut words = vec![0u32; groups];
    for cpu in cpus {
        words[cpu / 32] |= 1 << (cpu % 32);
    }
    words.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

/// The mask of cores; the kernel writes as many groups of digits as it has cores for.
///
/// # Errors
/// `NotFound` if there is no such interface.
pub fn get(interface: &str) -> Result<String> {
    let path = path(interface);
    let text = std::fs::read_to_string(&path).context(|| format!("read {path}"))?;
    Ok(text.trim().to_owned())
}

/// Sets the mask of cores.
///
/// # Errors
/// Also when the kernel refuses the mask.
pub fn set(interface: &str, mask: &str) -> Result<()> {
    let path = path(interface);
    std::fs::write(&path, mask).context(|| format!("write {mask} to {path}"))
}

fn path(interface: &str) -> String {
    format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_hexadecimal_groups() {
        assert_eq!(mask(&[]), "00000000");
        assert_eq!(mask(&[0, 1]), "00000003");
        assert_eq!(mask(&[33, 0]), "00000002,00000001");
    }
}
