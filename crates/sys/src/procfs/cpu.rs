//! Cores: time by mode, model, governor, mitigations.

use std::collections::BTreeMap;

use super::ProcRoot;
use crate::error::Result;

/// Time of one core by mode since boot, in ticks of [`ticks_per_second`] (proc_stat(5)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// User mode; contains guest time.
    pub user: u64,
    /// User mode with lowered priority; contains its guest time.
    pub nice: u64,
    /// Kernel mode outside interrupts.
    pub system: u64,
    /// Idle.
    pub idle: u64,
    /// Idle with I/O outstanding.
    pub iowait: u64,
    /// Hard interrupts.
    pub irq: u64,
    /// Soft interrupts.
    pub softirq: u64,
    /// Taken by the hypervisor.
    pub steal: u64,
}

impl CpuTicks {
    /// The ticks since an earlier reading. The kernel's idle and iowait may go back by a little (proc_stat(5)): that is 0.
    #[must_use]
    pub fn since(&self, earlier: &CpuTicks) -> CpuTicks {
        CpuTicks {
            user: self.user.saturating_sub(earlier.user),
            nice: self.nice.saturating_sub(earlier.nice),
            system: self.system.saturating_sub(earlier.system),
            idle: self.idle.saturating_sub(earlier.idle),
            iowait: self.iowait.saturating_sub(earlier.iowait),
            irq: self.irq.saturating_sub(earlier.irq),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

/// USER_HZ: the unit of [`CpuTicks`], 100 on every common machine.
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

/// Cores by number out of `/proc/stat`; the sum line `cpu` is left out.
pub fn parse_stat(text: &str) -> BTreeMap<usize, CpuTicks> {
    let mut cores = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let number = words.next().and_then(|w| w.strip_prefix("cpu")).and_then(|n| n.parse().ok());
        let Some(number) = number else { continue };
        let mut values = words.map_while(|w| w.parse::<u64>().ok());
        let mut next = || values.next().unwrap_or(0);
        let core = CpuTicks {
            user: next(),
            nice: next(),
            system: next(),
            idle: next(),
            iowait: next(),
            irq: next(),
            softirq: next(),
            steal: next(),
        };
        cores.insert(number, core);
    }
    cores
}

/// Numbers out of a list such as `0-3,8,10-11`; `None` if it is none. An empty text is an empty list.
pub fn parse_cpu_list(text: &str) -> Option<Vec<usize>> {
    /// More cores than any kernel supports (CONFIG_NR_CPUS is at most 8192): a larger number is garbage.
    const MOST: usize = 1 << 16;
    let mut cpus = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

impl ProcRoot {
    /// `/proc/stat`, per core.
    pub fn stat(&self) -> Result<BTreeMap<usize, CpuTicks>> {
        Ok(parse_stat(&self.read("proc/stat")?))
    }

    /// The CPU's name: `model name` on x86, otherwise what the machine calls itself.
    pub fn cpu_model(&self) -> Option<String> {
        let text = self.read_optional("proc/cpuinfo").unwrap_or_default();
        let field = |key: &str| {
            text.lines()
                .filter_map(|l| l.split_once(':'))
                .find(|(k, _)| k.trim() == key)
                .map(|(_, v)| v.trim().to_owned())
        };
        field("model name")
            .or_else(|| field("cpu model"))
            .or_else(|| field("Model"))
            .or_else(|| {
                self.read_optional("proc/device-tree/model").map(|m| m.trim_end_matches('\0').to_owned())
            })
            .filter(|name| !name.is_empty())
    }

    /// True if the CPU shows the hypervisor flag (x86), or the firmware names a virtual machine.
    pub fn is_virtual_machine(&self) -> bool {
        let flag = self.read_optional("proc/cpuinfo").is_some_and(|text| {
            text.lines()
                .any(|l| l.starts_with("flags") && l.split_ascii_whitespace().any(|w| w == "hypervisor"))
        });
        let names = [
            "KVM",
            "QEMU",
            "VMware",
            "VirtualBox",
            "Virtual Machine",
            "HVM domU",
            "Google Compute Engine",
            "Amazon EC2",
        ];
        let product = ["sys/class/dmi/id/product_name", "sys/class/dmi/id/sys_vendor"]
            .iter()
            .filter_map(|path| self.read_optional(path))
            .any(|text| names.iter().any(|name| text.contains(name)) && !text.contains(".metal"));
        flag || product
    }

    /// The frequency governor of the first core, if the machine scales its frequency.
    pub fn governor(&self) -> Option<String> {
        self.read_optional("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").filter(|g| !g.is_empty())
    }

    /// CPU vulnerabilities by name, with the mitigation as the kernel prints it.
    pub fn vulnerabilities(&self) -> BTreeMap<String, String> {
        let dir = "sys/devices/system/cpu/vulnerabilities";
        let names = self.names(dir).into_iter();
        names.filter_map(|name| Some((name.clone(), self.read_optional(&format!("{dir}/{name}"))?))).collect()
    }
}
