//! The lab's part of a scenario: what its hosts and links are like.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use weir_record::{Family, Role};

use crate::Error;
pub use crate::offloads::{Offloads, Preset};

/// Properties of the lab's hosts and links; the same for all variants of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LabOptions {
    /// IP version: addresses out of 198.18.0.0/15 (RFC 2544, RFC 6890) or out of 2001:2::/48 (RFC 5180). The other one
    /// is off: no host has an address of it, and IPv6 sends no packet by itself.
    pub family: Family,
    /// MTU of every link in bytes, 68 to 65535 (IPv6: 1280 to 65535).
    pub mtu: u32,
    /// Offloads of every interface: `"default"` leaves them as the kernel makes them, `"off"` turns `gro`, `gso`, `tso` and
    /// `tx-udp-segmentation` off, so that every packet crosses the hop singly; or a table of offloads by ethtool name.
    pub offloads: Offloads,
    /// Cores of each role's load threads. By default the initiator has the first core, the responder the last.
    pub cpus: BTreeMap<Role, Vec<usize>>,
    /// Cores to which each role's interfaces spread received packets (Receive Packet Steering). By default none: veth
    /// handles a packet on the core of its sender.
    pub rps: BTreeMap<Role, Vec<usize>>,
    /// Settings (`net.*`) of each role's namespace, set before anything else happens there.
    pub sysctls: BTreeMap<Role, BTreeMap<String, String>>,
}

impl Default for LabOptions {
    fn default() -> Self {
        LabOptions {
            family: Family::Ipv4,
            mtu: 1500,
            offloads: Offloads::default(),
            cpus: BTreeMap::new(),
            rps: BTreeMap::new(),
            sysctls: BTreeMap::new(),
        }
    }
}

impl LabOptions {
    /// Options out of range: one message that names the key and what is valid. `online` are the machine's cores.
    pub fn validate(&self, online: &[usize]) -> Result<(), Error> {
        // RFC 791 and RFC 8200 section 5: what every link must carry.
        let least = if self.family == Family::Ipv4 { 68 } else { 1280 };
        if !(least..=65_535).contains(&self.mtu) {
            return Err(Error::Option(format!("mtu = {}: valid are {least} to 65535", self.mtu)));
        }
        for (key, map) in [("cpus", &self.cpus), ("rps", &self.rps)] {
            for (role, cpus) in map {
                if let Some(cpu) = cpus.iter().find(|cpu| !online.contains(cpu)) {
                    let (key, role) = (key, role.name());
                    return Err(Error::Option(format!(
                        "{key}.{role}: there is no core {cpu}; online are {online:?}"
                    )));
                }
            }
        }
        for (role, sysctls) in &self.sysctls {
            // Anything else is the whole machine's, not the lab's.
            if let Some(name) = sysctls.keys().find(|name| !name.starts_with("net.")) {
                return Err(Error::Option(format!(
                    "sysctls.{}: `{name}` is not a setting of a network namespace (net.*)",
                    role.name()
                )));
            }
        }
        Ok(())
    }

    /// Cores for the load threads of a role: as set, or the first core for the initiator and the last for the responder.
    pub fn cpus(&self, role: Role, online: &[usize]) -> Vec<usize> {
        if let Some(cpus) = self.cpus.get(&role) {
            return cpus.clone();
        }
        match role {
            Role::Initiator => online.first().copied().into_iter().collect(),
            Role::Responder => online.last().copied().into_iter().collect(),
            Role::Gateway => Vec::new(),
        }
    }

    /// The lab in one line for people and records.
    pub fn describe(&self, online: &[usize]) -> String {
        let family = if self.family == Family::Ipv4 { "IPv4" } else { "IPv6" };
        let mut words =
            format!("lab on this machine, {family}, MTU {}, offloads {}", self.mtu, self.offloads);
        for role in Role::ALL {
            let cpus = self.cpus(role, online);
            if !cpus.is_empty() {
                words.push_str(&format!(", {} on core {}", role.name(), list(&cpus)));
            }
        }
        for (role, cpus) in self.rps.iter().filter(|(_, cpus)| !cpus.is_empty()) {
            words.push_str(&format!(", {} spreads packets to cores {} (RPS)", role.name(), list(cpus)));
        }
        for (role, sysctls) in &self.sysctls {
            for (name, value) in sysctls {
                words.push_str(&format!(", {} {name}={value}", role.name()));
            }
        }
        words
    }
}

fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<LabOptions, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn nothing_set_is_valid_and_pins_the_two_ends_apart() {
        let options = parse("{}").unwrap();
        assert_eq!(options, LabOptions::default());
        options.validate(&[0, 1, 2, 3]).unwrap();
        assert_eq!(options.cpus(Role::Initiator, &[0, 1, 2, 3]), [0]);
        assert_eq!(options.cpus(Role::Responder, &[0, 1, 2, 3]), [3]);
        assert!(options.cpus(Role::Gateway, &[0, 1]).is_empty());
        let words = options.describe(&[0, 1]);
        assert_eq!(
            words,
            "lab on this machine, IPv4, MTU 1500, offloads default, initiator on core 0, responder on core 1"
        );
    }

    #[test]
    fn everything_can_be_set() {
        let options = parse(
            r#"{"family": "ipv6", "mtu": 9000, "offloads": {"preset": "off", "gro": true},
                "cpus": {"initiator": [1]}, "rps": {"gateway": [0, 1]},
                "sysctls": {"gateway": {"net.ipv4.conf.all.forwarding": "0"}}}"#,
        )
        .unwrap();
        options.validate(&[0, 1]).unwrap();
        let again = parse(&serde_json::to_string(&options).unwrap()).unwrap();
        assert_eq!(again, options);
    }

    #[test]
    fn mistakes_are_named() {
        for (json, word) in [
            (r#"{"mtuu": 1}"#, "mtuu"),
            (r#"{"cpus": {"client": [0]}}"#, "client"),
            (r#"{"offloads": "none"}"#, "none"),
            (r#"{"offloads": {"gro": "yes"}}"#, "bool"),
            (r#"{"family": "ipv5"}"#, "ipv5"),
        ] {
            assert!(parse(json).unwrap_err().contains(word), "{json}");
        }
        for (json, word) in [
            (r#"{"mtu": 67}"#, "68 to 65535"),
            (r#"{"mtu": 1279, "family": "ipv6"}"#, "1280 to 65535"),
            (r#"{"mtu": 65536}"#, "65536"),
            (r#"{"cpus": {"gateway": [7]}}"#, "cpus.gateway: there is no core 7"),
            (r#"{"sysctls": {"gateway": {"vm.swappiness": "1"}}}"#, "vm.swappiness"),
        ] {
            let message = parse(json).unwrap().validate(&[0, 1]).unwrap_err().to_string();
            assert!(message.contains(word), "{json}: {message}");
        }
    }
}
