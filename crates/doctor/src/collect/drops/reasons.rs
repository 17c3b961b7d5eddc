//! Names of drop reasons, which have other numbers on every kernel.

use std::collections::HashMap;
use std::path::Path;

use weir_bpf::Btf;
use weir_sys::ProcRoot;

use super::format;

/// The number's upper half says who gave the reason (include/net/dropreason.h).
const SUBSYSTEM_SHIFT: u32 = 16;

/// Who gives reasons of their own: name of the subsystem in `enum skb_drop_reason_subsys`, its module, its enum.
const SUBSYSTEMS: &[(&str, &str, &str)] = &[
    ("SKB_DROP_REASON_SUBSYS_OPENVSWITCH", "openvswitch", "ovs_drop_reason"),
    ("SKB_DROP_REASON_SUBSYS_MAC80211_UNUSABLE", "mac80211", "mac80211_drop_reason"),
    ("SKB_DROP_REASON_SUBSYS_MAC80211_MONITOR", "mac80211", "mac80211_drop_reason"),
];

/// Names by number.
#[derive(Debug, Default)]
pub(super) struct Reasons(HashMap<u32, String>);

impl Reasons {
    /// Reads the reasons of the running kernel: from its types, else from the tracepoint's format.
    pub(super) fn read(btf: Option<&Btf>, root: &ProcRoot) -> Self {
        match btf {
            Some(btf) => Self::of_types(btf, &root.path("sys/kernel/btf")),
            None => Self::named(format::read(root).map(|f| f.reasons).unwrap_or_default()),
        }
    }

    fn of_types(btf: &Btf, modules: &Path) -> Self {
        let mut reasons = Self::named(btf.enumeration("skb_drop_reason").unwrap_or_default());
        let subsystems = btf.enumeration("skb_drop_reason_subsys").unwrap_or_default();
        for (subsystem, module, name) in SUBSYSTEMS {
            let Some((number, _)) = subsystems.iter().find(|(_, n)| n == subsystem) else { continue };
            let members = btf.enumeration(name).or_else(|| {
                // Built as a module, it has types of its own.
                btf.enumeration_of_module(&modules.join(module), name)
            });
            let own = members.unwrap_or_default().into_iter();
            reasons.0.extend(own.filter(|(value, _)| value >> SUBSYSTEM_SHIFT == *number));
        }
        reasons
    }

    fn named(members: Vec<(u32, String)>) -> Self {
        let short = |name: String| {
            let plain = name.strip_prefix("SKB_DROP_REASON_").or_else(|| name.strip_prefix("SKB_"));
            plain.map(str::to_owned).unwrap_or(name)
        };
        Reasons(members.into_iter().map(|(number, name)| (number, short(name))).collect())
    }

    /// The name, `UNKNOWN` of kernels that give none, and the number of one that is not known.
    pub(super) fn name(&self, number: u32) -> String {
        match self.0.get(&number) {
            _ if self.0.is_empty() || number == 0 => "UNKNOWN".into(),
            Some(name) => name.clone(),
            None => format!("REASON_{number:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_unknown_numbers_stay_numbers() {
        let members =
            [(1, "SKB_CONSUMED"), (2, "SKB_DROP_REASON_NOT_SPECIFIED"), (0x2_0001, "OVS_DROP_LAST_ACTION")];
        let reasons = Reasons::named(members.map(|(n, name)| (n, name.to_owned())).to_vec());
        assert_eq!(reasons.name(1), "CONSUMED");
        assert_eq!(reasons.name(2), "NOT_SPECIFIED");
        assert_eq!(reasons.name(0x2_0001), "OVS_DROP_LAST_ACTION");
        assert_eq!(reasons.name(0x3_0007), "REASON_0x30007");
        // Kernels before 5.17 give none.
        assert_eq!(Reasons::default().name(0), "UNKNOWN");
    }

    #[test]
    fn the_running_kernel_names_its_reasons() {
        let path = Path::new("/sys/kernel/btf/vmlinux");
        let Ok(btf) = Btf::read(path) else {
            println!("SKIP: this kernel has no BTF");
            return;
        };
        let reasons = Reasons::read(Some(&btf), &ProcRoot::default());
        let names: Vec<&String> = reasons.0.values().collect();
        // include/net/dropreason-core.h, since 5.17.
        for name in ["NOT_SPECIFIED", "NO_SOCKET", "NETFILTER_DROP"] {
            assert!(names.iter().any(|n| *n == name), "{name}");
        }
    }
}
