//! The environment of a run: enough to judge whether two runs may be compared.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One interface of a host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceFacts {
    /// Name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Driver as ethtool reports it (`veth`, `virtio_net`), empty if unknown.
    pub driver: String,
    /// Addresses with prefix length.
    pub addresses: Vec<String>,
    /// Offloads by ethtool name: `gro`, `gso`, `tso`, `tx-checksum`, `tx-udp-segmentation`, ...
    pub offloads: BTreeMap<String, bool>,
}

/// One host of the testbed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostFacts {
    /// Role: `initiator`, `gateway`, `responder`; in the lab all share one machine.
    pub role: String,
    /// How it is reached: `netns`, `local`, `ssh://user@host`, ...
    pub transport: String,
    /// Host name.
    pub hostname: String,
    /// `uname -r`.
    pub kernel: String,
    /// `uname -v`.
    pub kernel_build: String,
    /// Machine, `uname -m`.
    pub machine: String,
    /// Distribution, PRETTY_NAME of os-release.
    pub os: String,
    /// CPU model.
    pub cpu_model: String,
    /// Online cores.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Hypervisor flag seen.
    pub virtual_machine: bool,
    /// cpufreq governor of cpu0, if any.
    pub governor: Option<String>,
    /// CPU vulnerabilities and their mitigation, as the kernel prints them.
    pub mitigations: BTreeMap<String, String>,
    /// Sysctls that matter for forwarding, with their values.
    pub sysctls: BTreeMap<String, String>,
    /// Versions of the programs a run uses (nft, iptables, iperf3, ...).
    pub programs: BTreeMap<String, String>,
    /// Kernel features that were probed by doing, with the outcome in words.
    pub features: BTreeMap<String, String>,
    /// Interfaces on the measured path.
    pub interfaces: Vec<InterfaceFacts>,
}
