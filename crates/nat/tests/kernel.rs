//! The kernel's NAT: ports that the experiments saw are those that the kernel's own table has.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use weir_lab::{Lab, LabOptions, Role, SiteSpec, Topology};
use weir_nat::lab::LabEnds;
use weir_nat::measure;
use weir_sys::process::which;
use weir_sys::{NetNs, ProcRoot, Stop, privilege, sysctl};

const RULES: &str = "table ip nat { chain post { type nat hook postrouting priority srcnat; \
                     oifname \"outside\" masquerade fully-random; }; }\n";

fn run(gateway: &NetNs, program: &str, args: &[&str], input: &str) -> String {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    gateway.enter_on_spawn(&mut command);
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {args:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn root_ports_are_those_of_the_kernels_table() {
    if privilege::test_needs_root() {
        return;
    }
    if let Some(missing) = ["nft", "conntrack"].into_iter().find(|program| which(program).is_none()) {
        println!("SKIP: {missing} is not installed");
        return;
    }
    let spec = SiteSpec { name: "s".into(), topology: Topology::Routed, return_route: false, wan: false };
    let lab = Lab::build(&format!("test-nat-kernel-{}", std::process::id()), &LabOptions::default(), &[spec])
        .unwrap();
    let site = lab.site("s").unwrap();
    let gateway = site.host(Role::Gateway).unwrap();
    gateway.run(|| sysctl::set(&ProcRoot::new("/"), "net.ipv4.ip_forward", "1")).unwrap().unwrap();
    run(gateway, "nft", &["-f", "-"], RULES);
    let seen = measure(&mut LabEnds::attach(site, Duration::ZERO, &Stop::default()).unwrap(), &mut |_| true)
        .unwrap();
    for (protocol, translations) in [
        ("udp", seen.udp_ports.unwrap()),
        ("tcp", seen.tcp_mapping.unwrap().into_iter().flat_map(|mapping| mapping.seen).collect()),
    ] {
        let table = run(gateway, "conntrack", &["-L", "-p", protocol], "");
        for translation in translations {
            let (inside, to, seen) = (translation.inside, translation.to, translation.seen.unwrap());
            let sent =
                format!("src={} dst={} sport={} dport={} ", inside.ip(), to.ip(), inside.port(), to.port());
            let back =
                format!("src={} dst={} sport={} dport={} ", to.ip(), seen.ip(), to.port(), seen.port());
            let entry =
                table.lines().find(|line| line.contains(&sent)).unwrap_or_else(|| panic!("{sent}:\n{table}"));
            assert!(entry.contains(&back), "{back}: {entry}");
            assert_ne!(inside.port(), seen.port(), "{entry}");
        }
    }
}
