//! Facts about a host: enough to judge if two runs are comparable.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use weir_netlink::ethtool::Ethtool;
use weir_netlink::{Interface, Rtnetlink};
use weir_record::{HostFacts, InterfaceFacts};
use weir_sys::process::{run_captured, which};
use weir_sys::uname::Uname;
use weir_sys::{ProcRoot, Result, sched, sysctl};
use weir_text::order;

use weir_netlink::features;

/// Settings that change what forwarding, NAT or the tester's sockets cost.
const SYSCTLS: [&str; 22] = [
    "net.core.default_qdisc",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_max",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.ip_forward",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_wmem",
    "net.ipv6.conf.all.disable_ipv6",
    "net.ipv6.conf.all.forwarding",
    "net.netfilter.nf_conntrack_acct",
    "net.netfilter.nf_conntrack_buckets",
    "net.netfilter.nf_conntrack_max",
    "net.netfilter.nf_conntrack_tcp_be_liberal",
    "net.bridge.bridge-nf-call-iptables",
    "kernel.unprivileged_bpf_disabled",
];

/// Programs that a run may use, and how each is asked for its version.
const PROGRAMS: [(&str, &str); 12] = [
    ("nft", "--version"),
    ("iptables", "--version"),
    ("iptables-legacy", "--version"),
    ("ip", "-V"),
    ("conntrack", "--version"),
    ("iperf3", "--version"),
    ("docker", "--version"),
    ("ssh", "-V"),
    ("nginx", "-v"),
    ("apache2", "-v"),
    ("ab", "-V"),
    ("wrk", "-v"),
];

/// Facts of the host (and network namespace) of the calling thread. `interfaces` are those on the measured path; without
/// any, all but `lo` are taken. Takes a few tens of milliseconds: kernel features are probed, programs asked for versions.
///
/// # Errors
/// If the interfaces cannot be listed. Whatever else the host does not tell is left empty.
pub fn host_facts(role: &str, transport: &str, interfaces: &[String]) -> Result<HostFacts> {
    let root = ProcRoot::new("/");
    let Uname { hostname, release: kernel, build: kernel_build, machine } = Uname::current();
    let features = features::probe().into_iter().map(|(name, found)| (name.to_owned(), found.to_string()));
    Ok(HostFacts {
        role: role.to_owned(),
        transport: transport.to_owned(),
        hostname,
        kernel,
        kernel_build,
        machine,
        os: root.os_release().remove("PRETTY_NAME").unwrap_or_default(),
        cpu_model: root.cpu_model().unwrap_or_default(),
        cpus: sched::online_cpus(&root).map_or(0, |cpus| u32::try_from(cpus.len()).unwrap_or(u32::MAX)),
        memory_bytes: root.meminfo().map_or(0, |memory| memory.total),
        virtual_machine: root.is_virtual_machine(),
        governor: root.governor(),
        mitigations: root.vulnerabilities(),
        sysctls: sysctls(&root),
        programs: programs(),
        features: order::map(features),
        interfaces: interface_facts(interfaces)?,
    })
}

/// Only the interfaces, which is what differs between the hosts of a lab. See [`host_facts`].
pub fn interface_facts(wanted: &[String]) -> Result<Vec<InterfaceFacts>> {
    let ethtool = Ethtool::open()?;
    let is_wanted = |i: &Interface| if wanted.is_empty() { i.name != "lo" } else { wanted.contains(&i.name) };
    let facts = |i: Interface| InterfaceFacts {
        // A device without a driver or switches (a tunnel, a bridge on an old kernel) has none to show.
        driver: ethtool.driver(&i.name).unwrap_or_default(),
        offloads: ethtool.features(&i.name).unwrap_or_default(),
        name: i.name,
        mtu: i.mtu,
        addresses: i.addresses.iter().map(|(address, prefix)| format!("{address}/{prefix}")).collect(),
    };
    Ok(Rtnetlink::open()?.interfaces()?.into_iter().filter(is_wanted).map(facts).collect())
}

fn sysctls(root: &ProcRoot) -> BTreeMap<String, String> {
    let value = |name: &str| Some((name.to_owned(), sysctl::get(root, name).ok()?));
    order::map(SYSCTLS.iter().filter_map(|name| value(name)))
}

/// First line of what each installed program says of its version.
fn programs() -> BTreeMap<String, String> {
    let version = |(program, flag): &(&str, &str)| {
        let mut command = Command::new(which(program)?);
        command.arg(flag);
        // ssh prints its version on standard error.
        let output = run_captured(command, Duration::from_secs(2)).ok()?;
        let text = if output.stdout.is_empty() { output.message() } else { output.stdout_text() };
        Some(((*program).to_owned(), text.lines().next()?.trim().to_owned()))
    };
    order::map(PROGRAMS.iter().filter_map(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_facts() {
        let facts = host_facts("gateway", "local", &["lo".to_owned()]).unwrap();
        assert_eq!((facts.role.as_str(), facts.transport.as_str()), ("gateway", "local"));
        assert!(facts.cpus > 0 && facts.memory_bytes > 0);
        assert!(facts.sysctls.contains_key("net.ipv4.ip_forward"), "{:?}", facts.sysctls);
        assert!(facts.features.contains_key("nft-masquerade"));
        let lo = &facts.interfaces[0];
        assert_eq!((facts.interfaces.len(), lo.name.as_str()), (1, "lo"));
        let mtu = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_eq!(lo.mtu.to_string(), mtu.trim());
        assert!(!lo.offloads.is_empty());
    }

    #[test]
    fn an_interface_that_is_not_there_has_no_facts() {
        assert!(interface_facts(&["no-such-interface".to_owned()]).unwrap().is_empty());
    }
}
